"""Every page of the site in Chromium: accessibility, overflow, errors; `make test-site` runs it."""

import functools
import os
import subprocess
import sys
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

pytestmark = pytest.mark.slow
sync_api = pytest.importorskip('playwright.sync_api')
axe = pytest.importorskip('axe_playwright_python.sync_playwright')

ROOT = Path(__file__).parents[2]
# What users type, and the page that comes first.
QUERIES = {
    'num_classes': 'docs/own_config.html',
    'bbox_head.num_classes': 'docs/own_config.html',
    'init_cfg': 'docs/weights.html',
    'from_pretrained': 'docs/weights.html',
    "type='PyramidCPVT'": 'api/pyramid_cpvt.html',
    'PyramidCPVT': 'api/pyramid_cpvt.html',
    'MultiScaleCPVT': 'api/multi_scale_cpvt.html',
    'PEGPosition': 'api/peg.html',
    'frozen_stages': 'docs/own_config.html',
    'paramwise_cfg': 'docs/own_config.html',
    'learning rate': 'docs/own_config.html',
    'deit_small_patch16_224': 'docs/weights.html',
    'yolo': 'docs/own_data.html',
    'export onnx': 'docs/tutorials/onnx.html',
    'infer.py': 'docs/inference.html',
    'images per second': 'docs/speed.html',
    'gpu speed': 'docs/speed.html',
    'rope': 'docs/rope.html',
    'install': 'docs/install.html',
    'drop_path_rate': 'docs/own_config.html',
    'position encoding': 'docs/evidence.html',
    'out of memory': 'docs/own_config.html',
    'video': 'docs/inference.html',
    'license': 'docs/own_data.html',
    'valid_sizes': 'docs/own_config.html',
    'ValidSizesDetDataPreprocessor': 'api/preprocessors.html',
    'out_indices': 'docs/own_config.html',
    'any size': 'index.html',
    'fine-tune': 'docs/tutorials/finetune.html',
    'finetune': 'docs/tutorials/finetune.html',
    'freeze': 'docs/own_config.html',
    'own classes': 'docs/own_config.html',
    'small objects': 'docs/own_data.html',
    'low memory': 'docs/own_config.html',
    'batch padding': 'docs/own_config.html',
    'large images': 'docs/inference.html',
    'best checkpoint': 'docs/own_data.html',
    'satellite': 'docs/tutorials/satellite.html',
    'int8': 'docs/export.html',
    'windows': 'docs/install.html',
    'nan': 'docs/reliability.html',
    'pip install': 'docs/install.html',
    'pretrained': 'docs/weights.html',
    'load timm weights': 'docs/weights.html',
    'timm': 'docs/weights.html',
    'own data': 'docs/own_data.html',
    'custom dataset': 'docs/own_data.html',
    'coco json': 'docs/tutorials/detector_coco.html',
    'voc': 'docs/tutorials/detector_voc.html',
    'masks': 'docs/tutorials/segmentor.html',
    'layer decay': 'docs/own_config.html',
    'onnx': 'docs/tutorials/onnx.html',
    'tensorrt': 'docs/export.html',
    'tensorrt fp16': 'docs/export.html',
    'reduce_zero_label': 'docs/own_config.html',
    'ignore_index': 'docs/own_config.html',
    'num_classes mismatch': 'docs/own_config.html',
    'openvino': 'docs/export.html',
    'quantization': 'docs/export.html',
    'fp16': 'docs/own_config.html',
    'amp': 'docs/own_config.html',
    'mixed precision': 'docs/own_config.html',
    'batch size': 'docs/own_config.html',
    'image size': 'index.html',
    'different resolution': 'index.html',
    'padding': 'docs/own_config.html',
    'swin': 'docs/evidence.html',
    'speed': 'docs/speed.html',
    'fps': 'docs/speed.html',
    'memory': 'docs/own_config.html',
    'resume': 'docs/own_data.html',
    'semantic fpn': 'configs/semantic_fpn/index.html',
    'retinanet': 'configs/retinanet/index.html',
    'mask rcnn': 'configs/mask_rcnn/index.html',
    'mask2former': 'configs/mask2former/index.html',
    'dinov3': 'docs/weights.html',
    'dinov2': 'docs/weights.html',
    'clip': 'docs/weights.html',
    'sam': 'docs/weights.html',
    'peg': 'docs/how_it_works.html',
    'which encoding': 'docs/evidence.html',
    'which position encoding': 'docs/evidence.html',
    'keyerror registry': 'docs/own_config.html',
    'not in the registry': 'docs/own_config.html',
    'tiles': 'docs/inference.html',
    'webcam': 'docs/inference.html',
    'attention map': 'docs/analysis.html',
    'register tokens': 'docs/weights_reference.html',
    'cite': 'docs/paper.html',
    'gpu': 'docs/install.html',
    'multi gpu': 'docs/scale.html',
    'multi node': 'docs/scale.html',
    'distributed': 'docs/scale.html',
    'flops': 'docs/models.html',
    'model zoo': 'docs/models.html',
    'checkpoint': 'docs/weights.html',
    'huggingface': 'docs/weights.html',
    'classification': 'docs/tutorials/classifier.html',
    'segmentation': 'docs/tutorials/segmentor.html',
    'detection': 'docs/tutorials/detector_coco.html',
    'inference': 'docs/inference.html',
    'predict': 'docs/inference.html',
    'demo': 'docs/get_started.html',
    'early stopping': 'docs/own_data.html',
    'backbone': 'docs/own_config.html',
    'neck': 'docs/own_config.html',
    'fpn': 'docs/own_config.html',
    'geotiff': 'docs/tutorials/satellite.html',
    'multispectral': 'docs/tutorials/satellite.html',
    'grayscale': 'docs/weights_reference.html',
    'docker': 'docs/install.html',
    'windowed attention': 'docs/own_config.html',
    'torch.compile': 'docs/speed.html',
    'changelog': 'CHANGELOG.html',
    'accuracy': 'docs/models.html',
    'twins': 'docs/weights.html',
    'pvt': 'docs/weights.html',
    'labelme': 'docs/own_data.html',
    'cvat': 'docs/own_data.html',
    'label studio': 'docs/own_data.html',
    'knowledge distillation': 'api/distillation.html',
    'gradio': 'docs/app.html',
    'slurm': 'docs/scale.html',
    'different resolutions': 'index.html',
    'deit': 'docs/weights.html',
    'grad cam': 'docs/bridges.html',
    'mac': 'docs/install.html',
    'confidence': 'docs/inference.html',
    'score threshold': 'docs/inference.html',
    'overlap': 'docs/inference.html',
    'annotation': 'docs/own_data.html',
    'labels': 'docs/own_data.html',
    'yolo format': 'docs/own_data.html',
    'ema': 'docs/own_data_reference.html',
    'parameters': 'docs/models.html',
    'optimizer': 'docs/own_config.html',
    'dataset': 'docs/own_data.html',
    'validation split': 'docs/own_data.html',
    'lightning': 'docs/bridges.html',
    'upernet': 'configs/upernet/index.html',
    'vitdet': 'configs/vitdet/index.html',
    'libgl': 'docs/install.html',
    'mmcv': 'docs/install.html',
    '16 bit': 'docs/own_data.html',
    'medical': 'docs/own_data.html',
    'weight decay': 'docs/own_config.html',
    'export': 'docs/export.html',
    'tile': 'docs/inference.html',
    'offline': 'docs/weights.html',
    'missing keys': 'docs/weights.html',
    'heatmap': 'docs/analysis.html',
    'load checkpoint': 'docs/weights.html',
    'cpu': 'docs/install.html',
    'freeze backbone': 'docs/own_config.html',
    'how do I train on my own data': 'docs/own_data.html',
    'how to load a checkpoint': 'docs/weights.html',
    'use it in mmdet': 'docs/own_config.html',
    'What is a PEG': 'docs/how_it_works.html',
    'run on a video': 'docs/inference.html',
    'how to export to onnx': 'docs/tutorials/onnx.html',
    'how fast is it on a gpu': 'docs/speed.html',
    'how to cite': 'docs/paper.html',
    'train on several gpus': 'docs/own_config.html',
    'install on a mac': 'docs/install.html',
}
# The theme's own worker, without its page.
SEARCH = """async ([worker, queries]) => {
    const index = __index
    const searching = new Worker(worker)
    const ask = (message) => new Promise((done) => {
        searching.onmessage = (event) => done(event.data)
        searching.postMessage(message)
    })
    await ask({type: 0, data: {config: index.config, docs: index.docs, options: {suggest: true}}})
    const found = {}
    for (const query of queries) {
        const { data } = await ask({type: 2, data: query})
        found[query] = data.items[0]?.[0].location.split('#')[0]
    }
    return found
}"""
# The theme's script gives a side bar that stays in the window its height.
SIZED = """() => [...document.querySelectorAll('.md-sidebar')].every((bar) => (
    !bar.getClientRects().length
    || getComputedStyle(bar).position !== 'sticky'
    || bar.querySelector('.md-sidebar__scrollwrap').style.height !== ''
))"""
WINDOWS = {'desktop': (1440, 900), 'phone': (390, 844)}


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@pytest.fixture(scope='module')
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp('site')
    command = [sys.executable, '-m', 'mkdocs', 'build', '-f', ROOT / 'docs/mkdocs.yml']
    command += ['-d', folder]
    environment = {**os.environ, 'NO_MKDOCS_2_WARNING': '1'}
    subprocess.run(command, check=True, capture_output=True, env=environment)
    handler = functools.partial(QuietHandler, directory=folder)
    with ThreadingHTTPServer(('127.0.0.1', 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield folder, f'http://127.0.0.1:{server.server_port}'
        server.shutdown()


@pytest.mark.parametrize('theme', ['light', 'dark'])
@pytest.mark.parametrize('window', WINDOWS)
def test_pages_are_accessible_and_fit_the_window(site, browser, window, theme):
    width, height = WINDOWS[window]
    context = browser.new_context(
        viewport=dict(width=width, height=height), color_scheme=theme, reduced_motion='reduce'
    )
    page = context.new_page()
    errors = []
    page.on('pageerror', lambda error: errors.append(str(error)))
    faults = []
    folder, address = site
    pages = sorted(folder.rglob('*.html'))
    for file in pages:
        name = file.relative_to(folder).as_posix()
        page.goto(f'{address}/{name}')
        page.wait_for_function(SIZED)
        found = axe.Axe().run(page).response['violations']
        faults += [(name, one['id'], one['nodes'][0]['html'][:200]) for one in found]
        wide = page.evaluate('document.documentElement.scrollWidth')
        if wide > width:
            faults.append((name, 'overflow', f'{wide} px'))
    context.close()
    assert len(pages) > 50
    assert not faults
    assert not errors


def test_a_wide_table_of_words_becomes_cards_on_a_phone(site, browser):
    """Each cell says which column it is of. A table of many rows or of numbers stays one."""
    page = browser.new_page()
    for width, cards in ((1440, False), (390, True)):
        page.set_viewport_size(dict(width=width, height=844))
        page.goto(f'{site[1]}/docs/evidence.html')
        tables = page.locator('article table.stacked')
        assert (tables.count() > 0) == cards
    heads = tables.first.locator('th').all_text_contents()
    cells = tables.first.locator('tbody tr').first.locator('td')
    shown = [cell.get_attribute('data-column').strip() for cell in cells.all()]
    assert shown == [' '.join(head.split()) for head in heads]
    page.goto(f'{site[1]}/docs/weights.html')
    part = page.locator('details:has-text("SAM: 3 names")')
    part.locator('summary').click()
    part.locator('table.stacked').wait_for()
    cells = part.locator('td.empty')
    assert cells.count() > 0 and not any(cell.is_visible() for cell in cells.all())
    page.goto(f'{site[1]}/docs/speed.html')
    assert page.locator('article table:not(.stacked)').count() > 0
    page.close()


def test_a_word_opens_the_tables_that_have_it(site, browser):
    """Names of public weights are in a closed table for each family."""
    page = browser.new_page()
    page.goto(f'{site[1]}/docs/weights.html')
    field = page.locator('input.rows')
    parts = page.locator('input.rows ~ details')
    assert parts.count() > 5
    assert [row.is_visible() for row in parts.locator('tbody tr').all()].count(True) == 0
    field.fill('DINOv3 small')
    shown = [
        row.inner_text().lower() for row in parts.locator('tbody tr').all() if row.is_visible()
    ]
    assert len(shown) > 1
    assert all('dinov3' in text and 'small' in text for text in shown)
    assert [part.is_visible() for part in parts.all()].count(True) == 1
    field.fill('')
    assert all(part.is_visible() for part in parts.all())
    assert [row.is_visible() for row in parts.locator('tbody tr').all()].count(True) == 0
    page.close()


def test_the_zoo_shows_recipes_with_a_score_first(site, browser):
    page = browser.new_page()
    for width in (1440, 390):
        page.set_viewport_size(dict(width=width, height=844))
        page.goto(f'{site[1]}/docs/models.html')
        choice = page.locator('select.status').first
        table = page.locator('article table').nth(1)
        rows = table.locator('tbody tr').all()
        status = [row.locator('td').last.text_content() for row in rows]
        shown = [text for row, text in zip(rows, status, strict=True) if row.is_visible()]
        assert shown == [text for text in status if text != 'not trained']
        assert 0 < len(shown) < len(rows)
        choice.select_option('')
        assert all(row.is_visible() for row in rows)
    assert 'stacked' in table.get_attribute('class')  # on a phone
    page.close()


def test_the_filters_of_the_zoo_find_rows_without_a_score(site, browser):
    page = browser.new_page()
    page.goto(f'{site[1]}/docs/models.html')
    for table in page.locator('article table').all()[1:]:
        rows = table.locator('tbody tr')
        name = next(row for row in rows.all() if not row.is_visible()).locator('td').first
        word = name.text_content()
        assert page.get_by_text(word, exact=True).locator('visible=true').count() == 0
        table.locator('xpath=preceding::input[contains(@class,"rows")][1]').fill(word)
        assert word in [
            row.locator('td').first.text_content() for row in rows.all() if row.is_visible()
        ]
    page.close()


def test_on_a_phone_code_scrolls_and_a_command_wraps_between_words(site, browser):
    page = browser.new_page(viewport=dict(width=390, height=844))
    page.goto(f'{site[1]}/docs/own_config.html')
    code = page.locator('.language-python pre > code').first
    assert code.evaluate('code => getComputedStyle(code).whiteSpace') == 'pre'
    assert code.evaluate('code => code.scrollWidth > code.clientWidth')
    page.goto(f'{site[1]}/docs/tutorials/detector_coco.html')
    page.evaluate("""() => {
        const code = document.querySelector('.language-bash pre > code')
        code.textContent = 'python tools/infer.py CONFIG CHECKPOINT photos/ --long-side 800'
        const script = document.createElement('script')
        script.src = '../../code.js'
        return new Promise((done) => { script.onload = done; document.body.append(script) })
    }""")
    command = page.locator('.language-bash pre > code').first
    assert command.evaluate('code => code.scrollWidth == code.clientWidth')
    words = command.locator('.word')
    assert words.all_text_contents()[-2:] == ['--long-side', '800']
    assert {word.evaluate('word => word.getClientRects().length') for word in words.all()} == {1}
    page.goto(site[1])  # its commands have several lines
    assert page.locator('code.command').count() > 4
    for command in page.locator('code.command').all():
        assert command.evaluate('code => code.scrollWidth == code.clientWidth')
    page.close()


def test_the_reference_is_read_on_a_phone_without_scrolling_sideways(site, browser):
    """Arguments, signatures and tables of words; examples and tables of numbers may scroll. The
    ground of code may reach a few px beyond its text.
    """
    page = browser.new_page(viewport=dict(width=390, height=844))
    for name in ('backbones', 'pyramid_cpvt', 'backbone', 'checkpoints', 'inference'):
        page.goto(f'{site[1]}/api/{name}.html')
        page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true })")
        parts = page.locator('.doc-section-item, .doc-signature code, article table').all()
        assert len(parts) > 4
        wide = """one => one.scrollWidth > one.clientWidth + 8
            || one.getBoundingClientRect().right > 390"""
        assert [part.inner_text()[:60] for part in parts if part.evaluate(wide)] == [], name
    page.close()


def test_no_page_of_the_reference_is_long_on_a_phone(site, browser):
    """Less than eleven screens. The first page has about eight."""
    folder, address = site
    page = browser.new_page(viewport=dict(width=390, height=844))
    page.goto(address)
    assert page.evaluate('document.documentElement.scrollHeight') < 7200
    files = sorted((folder / 'api').glob('*.html'))
    assert len(files) > 20
    heights = {}
    for file in files:
        page.goto(f'{address}/api/{file.name}')
        heights[file.stem] = page.evaluate('document.documentElement.scrollHeight')
    page.close()
    assert {name: height for name, height in heights.items() if height > 9284} == {}


def test_on_a_phone_a_link_opens_the_folded_entry(site, browser):
    """A method shows its first sentence; a link to a method of a helper opens the helper."""
    entry = 'cpvt_backbones.inference.predictors.Predictor'
    page = browser.new_page()
    for width, folded in ((1440, False), (390, True)):
        page.set_viewport_size(dict(width=width, height=844))
        page.goto(f'{site[1]}/api/backbone.html')
        method = page.locator(
            '.doc-object:has(> [id="cpvt_backbones.backbones.base.Backbone.fuse"])'
        )
        assert method.get_by_text('Return a copy for inference').is_visible()
        assert method.locator('.doc-signature').is_visible() != folded
        page.goto(f'{site[1]}/api/predictors.html')
        logits = page.locator(f'[id="{entry}.logits"]')
        assert logits.is_visible() != folded
        page.goto('about:blank')
        page.goto(f'{site[1]}/api/predictors.html#{entry}.logits')
        logits.wait_for(state='visible')
        page.wait_for_timeout(300)
        assert 0 <= logits.bounding_box()['y'] < 844
    page.close()


def test_on_a_phone_the_sections_of_a_long_page_open(site, browser):
    """The recipe is shown, and the sections after it are folded: questions, or whole parts. A link
    to one opens it. Printed output wraps.
    """
    page = browser.new_page()
    for width, folded in ((1440, False), (390, True)):
        page.set_viewport_size(dict(width=width, height=844))
        for name, section, text in (
            ('own_data', 'which-checkpoint-is-best', 'Use the file that begins with'),
            ('own_data_reference', 'tiles', 'Such images are cut into tiles'),
            ('export', 'verification', 'The tool keeps a file only if'),
        ):
            page.goto(f'{site[1]}/docs/{name}.html')
            assert page.locator('article pre, article table').first.is_visible()
            assert page.locator(f'[id="{section}"]').is_visible()
            assert page.get_by_text(text).is_visible() != folded
            if folded:
                assert page.evaluate('document.documentElement.scrollHeight') < 6000
            page.goto('about:blank')
            page.goto(f'{site[1]}/docs/{name}.html#{section}')
            page.get_by_text(text).wait_for(state='visible')
    page.goto(f'{site[1]}/docs/own_data.html')
    for code in page.locator('.language-text pre > code').all():
        assert code.evaluate('code => code.scrollWidth == code.clientWidth')
    page.close()


def test_the_halves_of_a_picture_stand_below_each_other_on_a_phone(site, browser):
    page = browser.new_page()
    for width, shown in ((1440, 1), (390, 2)):
        page.set_viewport_size(dict(width=width, height=844))
        page.goto(f'{site[1]}/docs/get_started.html')
        images = [one for one in page.locator('.halves img').all() if one.is_visible()]
        assert len(images) == shown
        assert all(image.bounding_box()['width'] > 340 for image in images)
    page.close()


def test_on_a_phone_a_long_config_of_a_card_is_folded(site, browser):
    page = browser.new_page()
    for width, folded in ((1440, False), (390, True)):
        page.set_viewport_size(dict(width=width, height=844))
        page.goto(site[1])
        config = page.locator('.task .highlight', has_text='my_detector.py').last
        assert config.is_visible() != folded
    page.locator('.task details', has_text='my_detector.py').locator('summary').click()
    assert config.is_visible()
    page.close()


def test_the_search_finds_what_users_type(site, browser):
    folder, address = site
    page = browser.new_page()
    page.goto(f'{address}/404.html')
    page.add_script_tag(url=f'{address}/search/search_index.js')
    (worker,) = (folder / 'assets/javascripts/workers').glob('search.*.js')
    found = page.evaluate(SEARCH, [f'{address}/{worker.relative_to(folder)}', [*QUERIES]])
    page.close()
    missed = {
        query: found.get(query) for query, name in QUERIES.items() if found.get(query) != name
    }
    assert missed == {}
