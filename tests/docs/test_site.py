"""The documentation site: complete, strict, and nothing fetched by its pages."""

import csv
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

from cpvt.__main__ import COMMANDS
from cpvt_backbones.analysis.complexity import complexity_against_size
from cpvt_backbones.toolboxes import read_config
from cpvt_backbones.version import __version__
from cpvt_backbones.weights import named_models, shipped_weights

ROOT = Path(__file__).resolve().parents[2]
LOADED = dict(script='src', img='src', iframe='src', source='src', video='src')


def recipes():
    index = yaml.safe_load((ROOT / 'model-index.yml').read_text())
    metafiles = [yaml.safe_load((ROOT / file).read_text()) for file in index['Import']]
    return [model for metafile in metafiles for model in metafile['Models']]


def costs():
    with (ROOT / 'docs/flops.csv').open() as file:
        return {(row['model'], int(row['height'])): row for row in csv.DictReader(file)}


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


def test_the_workflow_publishes_the_folder_that_make_docs_writes():
    workflow = yaml.safe_load((ROOT / '.github/workflows/docs.yml').read_text())
    steps = workflow['jobs']['build']['steps']
    assert [step['run'] for step in steps if 'run' in step] == ['make docs']
    (folder,) = [step['with']['path'] for step in steps if 'pages-artifact' in step.get('uses', '')]
    (site_dir,) = re.findall(r'^site_dir: (.+)$', (ROOT / 'docs/mkdocs.yml').read_text(), re.M)
    assert ROOT / folder == (ROOT / 'docs' / site_dir).resolve()


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


def test_the_index_of_the_pages_has_each_of_them():
    text = (ROOT / 'docs/README.md').read_text(encoding='utf-8')
    linked = {(ROOT / 'docs' / link).resolve() for link in re.findall(r'\]\(([^)#]+)', text)}
    pages = {path.resolve() for path in (ROOT / 'docs').glob('*.md') if path.name != 'README.md'}
    assert pages <= linked and all(path.is_file() for path in linked)


@pytest.mark.full
def test_site_builds_and_its_pages_fetch_nothing(tmp_path):
    pytest.importorskip('mkdocs')  # of the extra `docs`
    command = [sys.executable, '-m', 'mkdocs', 'build', '-f', ROOT / 'docs/mkdocs.yml']
    command += ['-d', tmp_path]
    environment = {**os.environ, 'NO_MKDOCS_2_WARNING': '1'}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    # The page 404 is served at any address, so its links begin at the root.
    pages = [page for page in tmp_path.rglob('*.html') if page.name != '404.html']
    assert len(pages) > 60
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
    found = {one['location'].partition('#')[0] for one in index['docs']}
    assert {'index.html', 'docs/how_it_works.html', 'docs/api/backbones.html'} <= found
    names = re.findall(
        r'<h2 id="(cpvt_backbones[.\w]+)"', page_text(tmp_path, 'docs/api/backbones')
    )
    assert 'cpvt_backbones.CPVT' in names
    assert f'cpvt_backbones {__version__}' in page_text(tmp_path, 'index')
    commands = page_text(tmp_path, 'docs/api/command_line')
    assert all(f'usage: cpvt {name}' in commands for name in COMMANDS)
    run = page_text(tmp_path, 'docs/models')
    assert all(f'<code>{name}</code>' in run for name in named_models())
    trained = page_text(tmp_path, 'configs/index')
    assert all(f'/{model["Name"]}.py.html' in trained for model in recipes())
    card = page_text(tmp_path, 'cpvt_backbones/weights/cpvt_tiny_gap-imagenette')
    assert '<a href="../../docs/models.html">← Models and results</a>' in card
    for scheme in ('light', 'dark'):
        assert card.count(f'#only-{scheme}"') == 1
    home = page_text(tmp_path, 'index')
    for scheme, ending in (('light', ''), ('dark', '_dark')):
        assert home.count(f'docs/figures/hero{ending}.webp#only-{scheme}"') == 1
        assert home.count(f'srcset="docs/figures/hero_narrow{ending}.webp"') == 1
        assert run.count(f'srcset="figures/ade20k_narrow{ending}.webp"') == 1
    assert not any(
        'prefers-color-scheme: dark)" srcset' in page.read_text('utf-8') for page in pages
    )
    assert (tmp_path / 'configs/imagenet/cpvt-t_8xb256_in1k.py.html').is_file()


def page_text(folder, name):
    """HTML of a page of the site."""
    return (folder / f'{name}.html').read_text(encoding='utf-8')
