"""The page in Chromium: controls, sizes of windows, accessibility; `make test-app` runs it.

Pictures are written to build/app; app_*.jpg are those of docs/figures.
"""

import io
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from example_images import CLASSIFIER, DETECTOR, SEGMENTOR, examples
from PIL import ExifTags, Image

from cpvt_backbones.weights import shipped_weights

pytestmark = pytest.mark.slow
sync_api = pytest.importorskip('playwright.sync_api')
axe = pytest.importorskip('axe_playwright_python.sync_playwright')
expect = sync_api.expect
expect.set_options(timeout=60_000)

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / 'build/app'
NAMES = {one.model: one.name for one in examples()}


@pytest.fixture
def open_page(browser, app):
    """Open the page, ready; in the end, everything was asked of this machine, without errors."""
    contexts, asked, errors = [], [], []

    def open_it(width=1440, height=1000, **options):
        size = dict(width=width, height=height)
        contexts.append(browser.new_context(viewport=size, **options))
        page = contexts[-1].new_page()
        page.on('request', lambda request: asked.append(request.url))
        page.on('console', lambda message: errors.append(message) if message.type == 'error' else 0)
        page.on('pageerror', lambda error: errors.append(error))
        page.goto(f'http://127.0.0.1:{app.port}/')
        expect(page.locator('#results figure')).to_have_count(1)
        return page

    yield open_it
    for context in contexts:
        context.close()
    own = f'http://127.0.0.1:{app.port}/'
    assert asked and not [url for url in asked if not url.startswith((own, 'data:', 'blob:'))]
    assert not [str(error) for error in errors]


def choose(page, model):
    page.get_by_role('button', name=NAMES[model]).click()
    expect(page.get_by_role('combobox', name='Model')).to_have_value(model)


def view(page, name):
    page.get_by_role('tab', name=name).click()


def done(page, text):
    expect(page.locator('#results')).to_contain_text(re.compile(text, re.DOTALL))


def give(page, name, content):
    page.locator('input[type=file]').first.set_input_files(
        dict(name=name, mimeType='image/png', buffer=content)
    )


def encoded(array, kind='PNG', **options):
    stream = io.BytesIO()
    Image.fromarray(array).save(stream, format=kind, **options)
    return stream.getvalue()


def picture(page, name, model=None, *, whole=True):
    """Take a picture; of ``model`` for the docs, with the sum of its weights. Of the window, if not
    of the whole page.
    """
    FOLDER.mkdir(parents=True, exist_ok=True)
    page.mouse.move(0, 0)
    page.screenshot(path=FOLDER / f'{name}.png', full_page=whole)
    if model is not None:
        comment = f'{model} {shipped_weights()[model].sha256}'
        with Image.open(FOLDER / f'{name}.png') as image:
            if whole:
                image.thumbnail((1400, 1400))
            image.convert('RGB').save(FOLDER / f'{name}.jpg', quality=72, comment=comment)


def test_the_first_screen_is_a_finished_example(open_page):
    page = open_page()
    assert page.locator('#results figure img').bounding_box()['y'] < 300
    expect(page.locator('body')).to_contain_text('see what a model finds')
    done(page, r'112 x 112 px, \d+ ms \| church 9\d% \| good size')
    expect(page.get_by_label('number input for Lowest score')).to_be_hidden()
    picture(page, 'app_prediction', CLASSIFIER)


def test_prediction_and_scores(open_page):
    page = open_page()
    choose(page, DETECTOR)
    view(page, 'Prediction')
    done(
        page,
        r'240 x 240 px, \d+ ms \| 9 of the 11 labelled cells found, 0 false boxes'
        r' \| missed \(dashed outlines\): 1 WBC, 1 RBC.+RBC\s*\d',
    )
    automatic = page.get_by_label('Automatic size')
    side = page.get_by_role('tabpanel').first.get_by_label('number input for Longer side')
    expect(side).to_be_hidden()
    automatic.uncheck()
    done(page, '512 x 512 px')
    side.fill('480')
    side.press('Enter')
    side.blur()
    done(page, r'480 x 480 px, \d+ ms \| \d+ of the 11 labelled cells found, \d+ false.+RBC\s*\d')
    score = page.get_by_label('number input for Lowest score')
    score.fill('1')
    score.press('Enter')
    score.blur()
    done(page, '0 of the 11 labelled cells found, 0 false boxes')
    choose(page, SEGMENTOR)
    done(page, r'building\s*2\d\.\d%')
    expect(score).to_be_hidden()
    expect(automatic).to_be_checked()
    expect(side).to_be_hidden()
    opacity = page.get_by_label('number input for Opacity of the mask')
    before = page.locator('#results figure img').get_attribute('src')
    opacity.fill('0.2')
    opacity.press('Enter')
    opacity.blur()
    expect(page.locator('#results figure img')).not_to_have_attribute('src', before)


def test_several_sizes(open_page):
    page = open_page()
    choose(page, DETECTOR)
    view(page, 'Features')
    done(page, '512 x 512 px as a map of 32 x 32 cells')
    view(page, 'Several sizes')
    done(page, r'120 x 120 px, .+ outside the good sizes.+480 x 480 px, \d+ ms \|')
    done(
        page,
        r'240 x 240 px, \d+ ms \| 9 of .+ 0 false boxes \| missed .+ \| this model was trained on',
    )
    choose(page, SEGMENTOR)
    done(
        page,
        r'640 x 480 px \| the image.+480 x 360 px, .+ building 2\d%, tree 2\d%.+960 x 720 px, ',
    )
    picture(page, 'app_sizes', SEGMENTOR)
    view(page, 'Features')
    done(page, '512 x 384 px as a map of 128 x 96 cells')
    picture(page, 'app_features', SEGMENTOR)
    choose(page, CLASSIFIER)
    done(page, '224 x 168 px as a map of 14 x 11 cells')
    view(page, 'Several sizes')
    done(page, r'129 x 97 px, \d+ ms \| church \d\d% \| good size')


def to_tab(page, name):
    """Scroll to a tab and return it."""
    tab = page.get_by_role('tab', name=name)
    tab.evaluate('tab => scrollBy(0, tab.getBoundingClientRect().top - 8)')
    return tab


def test_the_screen_of_a_phone_shows_the_tabs_and_a_result(open_page):
    page = open_page(width=390, height=844, device_scale_factor=2)
    to_tab(page, 'Prediction')
    picture(page, 'app_prediction_narrow', CLASSIFIER, whole=False)
    choose(page, SEGMENTOR)
    view(page, 'Features')
    done(page, '512 x 384 px as a map of 128 x 96 cells')
    for tab, text in (
        ('Features', '512 x 384 px as a map of 128 x 96 cells'),
        ('Several sizes', r'480 x 360 px, .+ building 2\d%.+960 x 720 px, '),
    ):
        view(page, tab)
        done(page, text)
        page.wait_for_timeout(1500)  # the page scrolls to the result
        tabs = to_tab(page, tab)
        result = page.locator('#results figure img:visible').first
        result.wait_for()
        for part in (tabs, result):
            box = part.bounding_box()
            assert box['y'] >= 0 and box['y'] + box['height'] <= 844
        name = {'Features': 'features', 'Several sizes': 'sizes'}[tab]
        picture(page, f'app_{name}_narrow', SEGMENTOR, whole=False)


def test_a_point_is_chosen_by_a_click_and_by_the_keyboard(open_page):
    page = open_page()
    view(page, 'Features')
    done(page, '224 x 168 px as a map of 14 x 11 cells')
    page.locator('#results button img').click(position=dict(x=20, y=20))
    across = page.get_by_label('number input for Point: % from the left')
    expect(across).to_be_hidden()
    page.get_by_role('button', name='Set the point by keyboard').press('Enter')
    expect(across).not_to_have_value('50')
    across.focus()
    page.keyboard.press('ArrowUp')
    layer = page.get_by_label('number input for Attention layer')
    for number, name in (
        ('1', r'1 of 12 \(backbone\.blocks\.0'),
        ('99', r'12 of 12 \(backbone\.blocks\.11'),
    ):
        layer.fill(number)
        layer.press('Enter')
        layer.blur()
        done(page, rf'Layer {name}\.attn\)')


RNG = np.random.default_rng(0)
TURNED = Image.Exif()
TURNED[ExifTags.Base.Orientation] = 6
KINDS = {
    'alpha.png': encoded(RNG.integers(0, 255, (40, 60, 4), np.uint8)),
    'sixteen_bits.tif': encoded(RNG.integers(0, 65535, (40, 60), np.uint16), 'TIFF'),
    'turned.jpg': encoded(RNG.integers(0, 255, (60, 40, 3), np.uint8), 'JPEG', exif=TURNED),
}


@pytest.mark.parametrize('name', KINDS)
def test_kinds_of_images(open_page, name):
    page = open_page()
    view(page, 'Features')
    page.get_by_label('Remove Image').click()
    give(page, name, KINDS[name])
    done(page, '224 x 149 px as a map of 14 x 10 cells')


def test_a_file_that_is_no_image(open_page):
    page = open_page()
    page.get_by_label('Remove Image').click()
    done(page, 'choose an example, or drop an image of your own')
    expect(page.locator('#results figure')).to_have_count(0)
    give(page, 'a.png', b'/etc/passwd')
    expect(page.locator('body')).to_contain_text('not an image of an accepted format')
    expect(page.locator('#results figure')).to_have_count(0)
    choose(page, DETECTOR)
    done(page, 'of the 11 labelled cells found')


def test_a_second_user_waits_and_is_told_so(open_page, monkeypatch):
    import app_views

    released, predict = threading.Event(), app_views.predict
    monkeypatch.setattr(app_views, 'predict', lambda *a: released.wait(60) and predict(*a))
    first, second = open_page(), open_page()
    choose(first, SEGMENTOR)
    expect(first.locator('#results')).to_contain_text('processing')
    choose(second, SEGMENTOR)
    expect(second.locator('#results')).to_contain_text(re.compile(r'queue: 1/\d'))
    released.set()
    for page in (first, second):
        done(page, r'building\s*2\d')


@pytest.mark.parametrize('colours', ['light', 'dark'])
@pytest.mark.parametrize('width', [1440, 390])
def test_windows_and_accessibility(open_page, colours, width):
    page = open_page(width=width, height=844, color_scheme=colours)
    found = {}

    def check(name):
        page.wait_for_timeout(500)  # Gradio fades its overlays
        picture(page, f'{name}_{width}_{colours}')
        for one in axe.Axe().run(page).response['violations']:
            nodes = [node['html'][:150] for node in one['nodes']]
            found[name, one['id']] = nodes
        assert page.evaluate('document.documentElement.scrollWidth') <= width

    check('opened')
    assert page.evaluate('scrollY') == 0
    choose(page, DETECTOR)
    done(page, r'RBC\s*\d')
    if width < 800:  # the result is in view after the tap
        page.wait_for_timeout(1000)
        assert -1 <= page.locator('#results').bounding_box()['y'] < 300
        page.screenshot(path=FOLDER / f'after_tap_{colours}.png')
    check('prediction')
    view(page, 'Features')
    done(page, '512 x 512 px as a map of 32 x 32 cells')
    check('features')
    view(page, 'Several sizes')
    done(page, '480 x 480 px')
    check('sizes')
    assert found == {}, [*found]


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_and_removes_its_files(tmp_path, number):
    environment = dict(os.environ, TMPDIR=str(tmp_path), PYTHONUNBUFFERED='1')
    command = [sys.executable, 'demo/app.py', '--port', '7893', '--device', 'cpu']
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    )
    assert any(line.startswith('open http://127.0.0.1:7893/') for line in process.stdout)
    assert [*tmp_path.glob('cpvt_app_*')]
    process.send_signal(number)
    assert process.wait(30) == 130
    assert not [*tmp_path.glob('cpvt_app_*')]
