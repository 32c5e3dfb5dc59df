"""The documentation site: complete, strict, and nothing fetched by its pages."""

import csv
import html
import inspect
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path

import pytest
import yaml

import cpvt_backbones
from cpvt.__main__ import COMMANDS
from cpvt_backbones.analysis.complexity import complexity_against_size
from cpvt_backbones.toolboxes import read_config
from cpvt_backbones.weights import shipped_weights

ROOT = Path(__file__).resolve().parents[2]
LOADED = dict(script='src', img='src', iframe='src', source='src', video='src')


def recipes():
    index = yaml.safe_load((ROOT / 'model-index.yml').read_text())
    metafiles = [yaml.safe_load((ROOT / file).read_text()) for file in index['Import']]
    return [model for metafile in metafiles for model in metafile['Models']]


def costs():
    with (ROOT / 'docs/flops.csv').open() as file:
        return {(row['model'], int(row['height'])): row for row in csv.DictReader(file)}


def test_a_published_score_stands_at_one_batch():
    """Recipes that differ in their batch alone do not share a score: it belongs to one of them."""
    for readme in (ROOT / 'configs').glob('*/README.md'):
        rows = re.findall(r'^\| \[(\S+)\]\(\1\.py\) \|.*\| (\d[^|]+) \|$', readme.read_text(), re.M)
        models = [(re.sub(r'_\d+xb\d+', '', name), scores) for name, scores in rows]
        assert len(models) == len({*models}), readme
    ablations = (ROOT / 'configs/imagenet/ablations/README.md').read_text()
    marked = re.findall(r'^\| \[.* (\d\d\.\d)† \|$', ablations, re.MULTILINE)
    assert sorted([*{*marked}] * 2) == sorted(marked), 'two readings share each figure'


def pages_for_readers():
    """Markdown of the repository, without the changes of earlier versions."""
    found = [ROOT / 'README.md']
    for folder in ('docs', 'configs', 'projects', 'demo', 'cpvt_backbones/weights'):
        found += (ROOT / folder).rglob('*.md')
    return found


@pytest.mark.parametrize('page', pages_for_readers(), ids=lambda path: path.name)
def test_scores_are_in_percent(page):
    """In sentences and in columns of AP, mIoU and top-1."""
    text = page.read_text()
    metric = r'\b(?:AP|AP50|mIoU|top-1)\b'
    assert re.findall(rf'{metric}(?: is| of|:)? 0\.\d\d', ' '.join(text.split())) == []
    for table in re.findall(r'(?:^\|.*\n)+', text, re.MULTILINE):
        head, _, *rows = ([*line.strip('|\n').split('|')] for line in table.splitlines())
        for place, name in enumerate(head):
            if re.search(metric, name):
                assert [row for row in rows if re.match(r' *0\.\d\d', row[place])] == []


def test_every_page_is_in_the_navigation():
    listed = re.findall(r'[\w./-]+\.md', (ROOT / 'docs/mkdocs.yml').read_text())
    pages = set()
    for folder in ('docs', 'configs', 'projects', 'cpvt_backbones/weights'):
        pages |= {path.relative_to(ROOT).as_posix() for path in (ROOT / folder).rglob('*.md')}
    pages.remove('docs/site/index.md')  # the site's own, at its top
    assert pages - {*listed} == set()  # add it to `nav`
    assert len(listed) == len({*listed})


def test_a_guide_has_the_same_name_in_the_navigation_and_as_its_heading():
    """The navigation takes the heading of a page that it gives no name of its own."""
    text = (ROOT / 'docs/mkdocs.yml').read_text()
    pages = r'(?:docs/|docs/tutorials/|api/)\w+\.md'
    assert len(re.findall(rf'^ +- {pages}$', text, re.MULTILINE)) > 30
    assert re.findall(rf'^ +- .+: {pages}$', text, re.MULTILINE) == []
    headings = [
        page.read_text().partition('\n')[0]
        for folder in ('docs', 'docs/tutorials')
        for page in (ROOT / folder).glob('*.md')
    ]
    assert len({*headings}) == len(headings)


def first_page(entry):
    """The page that a click on an entry of the navigation opens."""
    while not isinstance(entry, str):
        (entry,) = entry.values() if isinstance(entry, dict) else entry[:1]
    return entry


def test_a_tab_opens_the_page_that_its_name_promises():
    tabs = yaml.safe_load((ROOT / 'docs/mkdocs.yml').read_text())['nav']
    assert {name: first_page(tab) for tab in tabs for name in tab} == {
        'Home': 'index.md',
        'Start': 'docs/get_started.md',
        'Train': 'docs/own_data.md',
        'Predict and deploy': 'docs/inference.md',
        'Models': 'docs/models.md',
        'Evidence': 'docs/evidence.md',
        'Reference': 'api/names.md',
    }


def predictions():
    """Output folder and other words of each command of infer.py, in README, docs and cards."""
    pages = [ROOT / 'README.md', *(ROOT / 'docs').rglob('*.md')]
    pages += (ROOT / 'cpvt_backbones/weights').glob('*.md')
    for page in pages:
        text = page.read_text(encoding='utf-8').replace('\\\n', ' ')
        for block in re.findall(r'^```bash\n(.+?)^```', text, re.DOTALL | re.MULTILINE):
            for line in re.findall(r'^(?!#).*tools/infer\.py (.* --out-dir .*)$', block, re.M):
                # The shards of a run share its folder.
                words = re.sub(r'--shard \S+|--merge', '', line).split()
                place = words.index('--out-dir')
                yield words[place + 1], (*words[:place], *words[place + 2 :])


def test_each_prediction_has_an_output_folder_of_its_own():
    """A second run with other settings in the same folder is an error."""
    runs = {}
    for folder, words in predictions():
        runs.setdefault(folder, set()).add(words)
    assert len(runs) > 15
    assert {folder: found for folder, found in runs.items() if len(found) > 1} == {}


def sections(entries):
    """Names of the parts of the navigation that have pages or parts below them."""
    for entry in entries:
        for name, below in entry.items() if isinstance(entry, dict) else ():
            if isinstance(below, list):
                yield name
                yield from sections(below)


def lines_of(entries, level=2):
    """How many lines of a tab's side bar show at first: parts of the third level are folded."""
    count = 0
    for entry in entries:
        below = [*entry.values()][0] if isinstance(entry, dict) else entry
        folded = isinstance(below, str) or level == 3
        count += 1 if folded else 1 + lines_of(below, level + 1)
    return count


def test_the_side_bar_of_a_tab_fits_a_window():
    tabs = yaml.safe_load((ROOT / 'docs/mkdocs.yml').read_text())['nav']
    lines = [lines_of(pages) for tab in tabs[1:] for pages in tab.values()]
    assert len(lines) == 6 and max(lines) <= 24


def test_parts_of_the_navigation_differ_in_name():
    """On a phone, each is a landmark, which a screen reader calls by its name."""
    found = [*sections(yaml.safe_load((ROOT / 'docs/mkdocs.yml').read_text())['nav'])]
    assert len(found) > 10
    assert len({*found}) == len(found)


def test_costs_are_those_of_the_zoo():
    rows = costs()
    shipped = {Path(entry.config).stem for entry in shipped_weights().values()}
    assert shipped <= {name for name, _ in rows} <= {model['Name'] for model in recipes()} | shipped
    assert all((name, height) in rows for name, _ in rows for height in (224, 800))
    for model in recipes():
        if row := rows.get((model['Name'], 224)):
            assert int(row['parameters']) == model['Metadata']['Parameters'], model['Name']


def test_cost_of_a_shipped_model():
    path = Path(shipped_weights()['cpvt_tiny_gap-imagenette'].config)
    name = path.stem
    for row in complexity_against_size({name: read_config(ROOT / path)}, [(224, 224), (800, 1344)]):
        assert row.gmacs == pytest.approx(float(costs()[name, row.height]['gmacs']), rel=1e-5)


class Loads(HTMLParser):
    """Addresses that a browser fetches by itself."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag == 'link' and attributes.get('rel') not in ('canonical', 'next', 'prev'):
            self.found.append(attributes['href'])
        if tag in LOADED and LOADED[tag] in attributes:
            self.found.append(attributes[LOADED[tag]])
        if 'srcset' in attributes:
            self.found.append(attributes['srcset'])


@pytest.mark.full
def test_site_builds_and_its_pages_fetch_nothing(tmp_path):
    pytest.importorskip('mkdocs')  # of the extra `docs`
    command = [sys.executable, '-m', 'mkdocs', 'build', '-f', ROOT / 'docs/mkdocs.yml']
    command += ['-d', tmp_path]
    environment = {**os.environ, 'NO_MKDOCS_2_WARNING': '1'}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    pages = [*tmp_path.rglob('*.html')]
    assert len(pages) > 100
    for page in pages:
        loads = Loads()
        loads.feed(page.read_text(encoding='utf-8'))
        for address in loads.found:
            assert not re.match('(https?:)?//', address), f'{page.name} fetches {address}'
            if not address.startswith('data:'):
                assert (page.parent / address.partition('?')[0].partition('#')[0]).exists(), (
                    f'{page.name}: {address}'
                )
    for sheet in tmp_path.rglob('*.css'):
        assert not re.search(
            r'(url\(|@import )["\']?(https?:)?//', sheet.read_text(encoding='utf-8')
        ), sheet.name
    index = json.loads((tmp_path / 'search/search_index.json').read_text())
    assert {'index.html', 'docs/how_it_works.html', 'api/backbones.html'} <= {
        one['location'] for one in index['docs']
    }
    check_search(index)
    for name, plot in (('speed', 'benchmarks/cpu'), ('evidence', 'evidence/sizes')):
        page = (tmp_path / f'docs/{name}.html').read_text()  # the plot for phones
        assert re.search(rf'<source [^>]*{plot}_narrow.png"[^>]*>\s*<img [^>]*{plot}.png"', page)
    check_home((tmp_path / 'index.html').read_text())
    check_reference({page.read_text() for page in (tmp_path / 'api').glob('*.html')})
    check_contents(tmp_path / 'api')
    check_sources(tmp_path / 'api')
    check_recipes(tmp_path / 'configs')
    check_zoo((tmp_path / 'docs/models.html').read_text())
    check_names((tmp_path / 'api/names.html').read_text())
    check_command_lines((tmp_path / 'api/command_line.html').read_text())
    check_concepts((tmp_path / 'docs/concepts.html').read_text())


def check_search(index):
    """Tables of measurements are left out, titles of pages differ, and code is split into words."""
    pages = [one for one in index['docs'] if '#' not in one['location']]
    found = {one['location'] for one in pages if one['location'].startswith('docs/benchmarks/')}
    assert found == {'docs/benchmarks/details.html'}
    titles = [one['title'] for one in pages]
    assert len({*titles}) == len(titles) > 60
    words = re.split(index['config']['separator'], "bbox_head.num_classes='3', timm://x.in1k")
    assert [*filter(None, words)] == ['bbox_head', 'num_classes', '3', 'timm', 'x', 'in1k']


def check_home(page):
    """A card has the four commands for own pictures; the card of each task has a command and the
    config that it names; the last one predicts. Weights, backbone and encoding have one table.
    """
    choice = page.partition('id="which-backbone-encoding-weights"')[2].partition('<h2')[0]
    for name in ('PyramidCPVT', 'MultiScaleCPVT', 'CPVT', 'Learned', 'RoPE', 'PEG'):
        assert name in re.sub('<.+?>', '', choice.partition('</table>')[0])
    own, *cards, last = page.split('<div class="task">')[1:]
    assert re.findall(r'tools/(\w+)\.py', last.split('</pre>')[0]) == ['infer']
    assert re.findall(r'tools/(\w+)\.py', own) == ['make_config', 'train', 'test', 'infer']
    assert len(cards) == 3
    for card in cards:
        command, config = re.findall(r'<pre>.*?<code>(.+?)</code></pre>', card, re.DOTALL)[:2]
        text = re.sub('<.+?>', '', config)
        (name,) = re.findall(r'tools/train\.py (\w+\.py)', re.sub('<.+?>', '', command))
        assert text.startswith(f'# {name}\n')
        assert 'timm://twins_pcpvt_small.in1k' in text
        assert max(map(len, text.splitlines())) <= 75


def check_reference(pages):
    """Every name that the package and its folders offer has an entry, with methods."""
    entries = set(re.findall(r'id="(cpvt_backbones\.[\w.]+)"', ''.join(pages)))
    offered = [getattr(cpvt_backbones, name) for name in cpvt_backbones.__all__]
    for room in ('backbones', 'checkpoints', 'export', 'inference', 'layers'):
        offered += vars(import_module(f'cpvt_backbones.{room}')).values()
    for one in offered:
        if (inspect.isclass(one) or inspect.isfunction(one)) and one.__name__[0] != '_':
            if one.__module__.startswith('cpvt_backbones.'):
                assert f'{one.__module__}.{one.__qualname__}' in entries
    # Each backbone explains the arguments that it shares with others.
    backbones = [page for page in pages if 'id="cpvt_backbones.backbones.' in page]
    classes = [page for page in backbones if 'drop_path_rate</code></b>' in page]
    assert len(classes) == 4
    for name in ('frozen_stages', 'drop_path_rate'):
        for page in classes:
            assert len(re.findall(rf'<b><code[^>]*>{name}</code></b>', page)) == 1
    # The import, the summary, the signature and an example stand before the arguments.
    (page,) = (page for page in classes if 'id="cpvt_backbones.backbones.pyramid_cpvt.P' in page)
    _, _, entry = page.partition('id="cpvt_backbones.backbones.pyramid_cpvt.PyramidCPVT"')
    parts = ('from cpvt_backbones import', '<p>Pyramid', 'doc-signature')
    parts += ('>Examples:<', '<table', '>Parameters:<')
    places = [entry.index(part) for part in parts]
    assert places == sorted(places)
    assert '\n          –\n' not in ''.join(pages)  # names and types of arguments stand alone
    # What is returned is one item, not one a line.
    assert re.search(
        r'One output per entry(?:(?!</li>).)*a map smaller', ' '.join(pages), re.DOTALL
    )
    # A method stands at the class that defines it, and each of the others has a link.
    for method in ('forward', 'from_pretrained'):
        entry = f'cpvt_backbones.backbones.base.Backbone.{method}'
        assert entry in entries
        assert f'cpvt_backbones.backbones.cpvt.CPVT.{method}' not in entries
        link = rf'<a href="backbone.html#{re.escape(entry)}"><code[^>]*>{method}</code></a>'
        assert sum(len(re.findall(link, page)) for page in backbones) == 3
    # Calling is documented, and what mmengine calls on hooks is not.
    assert 'cpvt_backbones.inference.inferencer.Inferencer.__call__' in entries
    assert not any(re.search(r'\.(before|after)_(train|val|test)', entry) for entry in entries)
    # Defaults are values.
    signatures = re.findall(r'<pre>.+?</pre>', ''.join(backbones), re.DOTALL)
    assert len(signatures) > 10
    assert not any('_POSITION' in re.sub('<.+?>', '', text) for text in signatures)


def check_contents(folder):
    """The contents of a backbone's page list its sections, tables, arguments and methods."""
    for file, name in (
        ('cpvt', 'CPVT'),
        ('multi_scale_cpvt', 'MultiScaleCPVT'),
        ('pyramid_cpvt', 'PyramidCPVT'),
    ):
        page = (folder / f'{file}.html').read_text(encoding='utf-8')
        listed = re.findall(r'<a href="#([^"]+)" class="md-nav__link">', page)
        listed = [*dict.fromkeys(listed)]
        signature = inspect.signature(getattr(cpvt_backbones, name))
        arguments = [f'{name}.{one}' for one in signature.parameters]
        assert [one for one in listed if one in arguments] == arguments
        sections = ['examples', 'table-arch', 'table-frozen_stages', 'parameters', 'raises']
        sections += ['attributes-and-methods', f'{name}.out_channels', f'{name}.forward']
        assert [one for one in listed if one in sections] == sections
        for anchor in listed:
            assert page.count(f'id="{anchor}"') == 1
    guide = (folder / '../docs/own_config.html').read_text(encoding='utf-8')
    assert '../api/cpvt.html#cpvt_backbones.backbones.cpvt.CPVT"' in guide
    costs = (folder / 'costs.html').read_text(encoding='utf-8')
    assert '<a href="inference.html#type-ConfigInput">ConfigInput</a>' in costs
    assert 'id="type-ConfigInput"' in (folder / 'inference.html').read_text(encoding='utf-8')
    folders = (folder / 'folders.html').read_text(encoding='utf-8')
    assert '<a href="../docs/inference.html">docs/inference.md</a>' in folders


def check_sources(folder):
    """Each entry with an import has a link to its first line of source."""
    count = 0
    for page in folder.glob('*.html'):
        text = page.read_text(encoding='utf-8')
        links = re.findall(r'from [\w.]+ import (\w+)</code> <a href="([^"#]+)#([^"]+)">', text)
        assert len(links) == len(re.findall(r'<p><code[^>]*>from [\w.]+ import \w+</code>', text))
        for name, file, line in links:
            _, _, code = (folder / file).read_text(encoding='utf-8').partition(f'id="{line}">')
            shown = html.unescape(re.sub('<.+?>', '', code)).splitlines()
            first = next(one.strip() for one in shown if not one.strip().startswith('@'))
            assert first.startswith((f'class {name}', f'def {name}')), (file, line)
            count += 1
    assert count > 100


def check_recipes(folder):
    """The page of a config links each file of its ``_base_``, and the README beside it."""
    count = 0
    for page in folder.rglob('*.py.html'):
        source = ROOT / 'configs' / page.relative_to(folder).with_suffix('')
        text = page.read_text(encoding='utf-8')
        line = re.match(r'(?:(?!<div).)+', text.partition('</h1>')[2], re.DOTALL)[0]
        found = re.findall(r'href="([^"]+)"', line)
        given = re.search(r"^_base_ = (\[.+?\]|'.+?')", source.read_text(), re.DOTALL | re.M)
        names = re.findall("'(.+?)'", given[1]) if given else []
        wanted = {(source.parent / one).resolve() for one in names if '::' not in one}
        if (readme := source.parent / 'README.md').is_file():
            wanted.add(readme.with_name('index'))
        linked = [(page.parent / one).resolve() for one in found]
        assert all(one.is_file() for one in linked), page
        shown = {(ROOT / 'configs' / one.relative_to(folder)).with_suffix('') for one in linked}
        assert shown == wanted, page
        count += bool(names)
    assert count > 50


def check_names(page):
    """Each name is a link to its entry, with a sentence on one line and no role of Sphinx. Tasks
    and what importing changes stand before.
    """
    tasks, _, page = page.partition('<h2 id="what-importing-changes">')
    assert 'api/backbone.html' not in tasks and 'backbone.html#cpvt_backbones.' in tasks
    changes, _, page = page.partition('<h2 id="backbones">')
    assert all(f'{name}</code>' in changes for name in ('sys.meta_path', "MODULE2PACKAGE['mmseg']"))
    rows = re.findall(r'<tr>\s*<td>(.+?)</td>\s*<td>(.+?)</td>', page)
    assert {'CPVT', 'PEG', 'Inferencer', 'export'} <= {
        re.sub('<.+?>', '', name) for name, _ in rows
    }
    for name, sentence in rows:
        assert re.match(r'<a href="\w+\.html#cpvt_backbones\.', name)
        assert re.sub('<.+?>', '', sentence).strip() and ':class:' not in sentence, name


def check_command_lines(page):
    """Every command has its help."""
    text = html.unescape(re.sub('<.+?>', '', page[: page.index('</article')]))
    for name in COMMANDS:
        assert f'usage: cpvt {name} [options]' in text
    assert max(map(len, text[text.index('usage: ') :].splitlines())) <= 80


def check_zoo(page):
    """The first table has the shipped models. Each task has a table of its recipes, with a number
    for each published score.
    """
    tables = [
        [
            [re.sub('<.+?>', '', cell) for cell in re.findall(r'<td[^>]*>(.*?)</td>', row)]
            for row in re.findall(r'<tr>(.+?)</tr>', table.partition('</thead>')[2], re.DOTALL)
        ]
        for table in re.findall(r'<table>(.+?)</table>', page, re.DOTALL)
    ]
    shipped, *tasks = tables
    assert {row[0] for row in shipped} == shipped_weights().keys()
    for row in shipped:
        assert row[4] in ('top-1', 'box AP', 'mIoU'), row
        sizes = [re.fullmatch(r'(\d\d\.\d) \(\d+ x \d+ px\)', cell) for cell in row[5:]]
        assert float(sizes[0][1]) <= float(sizes[1][1]), row
    heads = re.findall(r'<h3 id="([a-z-]+)"', page)
    assert len(heads) == len(tasks) == 4
    rows = {
        cells[0]: (head, cells[4:-1], cells[-1])
        for head, table in zip(heads, tasks, strict=True)
        for cells in table
    }
    assert rows.keys() == {model['Name'] for model in recipes()}
    assert rows['detr_r50_peg_8xb2-50e_coco'][:2] == ('object-detection', ['33.9'])
    masks = rows['mask-rcnn_pyramid-cpvt-s_fpn_1x_coco']
    assert masks[:2] == ('instance-segmentation', ['42.9', '40.0'])
    for name, (_, scores, status) in rows.items():
        numbers = [score for score in scores if score]
        assert all(re.fullmatch(r'\d\d\.\d+', score) for score in numbers), name
        assert bool(numbers) == (status != 'not trained'), name


def check_concepts(page):
    """A name in code is a link to its entry, but for arguments and attributes."""
    article = page[page.index('<article') : page.index('</article')].replace(' class="short"', '')
    names = set(re.findall(r'(?<!">)<code>([\w.]+)</code>', article))
    assert names == {'grid', 'out_strides', 'prefix_tokens'}
    assert {'CPVT', 'CPVT.forward', 'PEG', 'Stage', 'WindowAttention'} <= set(
        re.findall(r'<a href="../api/\w+.html#cpvt_backbones[\w.]+"><code>([\w.]+)</code>', article)
    )
