"""Version, date and licences say the same wherever they stand."""

import re
import shlex
import subprocess
from pathlib import Path

import yaml

from cpvt_backbones.version import __version__
from cpvt_backbones.weights import published_weights, shipped_weights

ROOT = Path(__file__).resolve().parents[2]
WEIGHTS = ROOT / 'cpvt_backbones/weights'


def test_version_and_date():
    citation = yaml.safe_load((ROOT / 'CITATION.cff').read_text(encoding='utf-8'))
    changelog = (ROOT / 'CHANGELOG.md').read_text(encoding='utf-8')
    newest = re.search(r'^## (\S+) \((.+)\)$', changelog, re.MULTILINE)
    assert newest.groups() == (__version__, citation['date-released'].isoformat())
    assert citation['version'] == __version__


def test_the_wheel_is_tried_with_the_configs_of_the_readme():
    script = (ROOT / '.ci/try_wheel').read_text(encoding='utf-8')
    (function,) = re.findall(r'^block\(\) .+$', script, re.MULTILINE)
    toolboxes = re.findall(r'^ +block (\w+) >', script, re.MULTILINE)
    assert toolboxes == ['mmdet', 'mmseg']
    readme = (ROOT / 'README.md').read_text(encoding='utf-8')
    for toolbox in toolboxes:
        command = f'set -euo pipefail\nroot={shlex.quote(str(ROOT))}\n{function}\nblock {toolbox}'
        done = subprocess.run(['bash', '-c', command], capture_output=True, text=True, check=True)
        assert done.stdout.startswith(f"_base_ = '{toolbox}::")
        assert f'```python\n{done.stdout}```\n' in readme


def test_the_licence_of_the_code():
    citation = yaml.safe_load((ROOT / 'CITATION.cff').read_text(encoding='utf-8'))
    assert citation['license'] == 'Apache-2.0'
    lines = (ROOT / 'LICENSE').read_text(encoding='utf-8').split()
    assert lines[:4] == ['Apache', 'License', 'Version', '2.0,']
    assert "license='Apache-2.0 (code); weights: see" in (ROOT / 'setup.py').read_text()


def test_shipped_weights_are_non_commercial_wherever_they_are_named():
    """In each card, in the table of models and in README; no other card is in the folder."""
    assert {path.stem for path in WEIGHTS.glob('*.md')} == {*shipped_weights()}
    models = (ROOT / 'docs/models.md').read_text(encoding='utf-8')
    for name in shipped_weights():
        card = (WEIGHTS / f'{name}.md').read_text(encoding='utf-8')
        assert re.search(r'Not for\scommercial\suse\s\(see\sthe\sterms\)', card), name
        assert '\n**Terms.** ' in card, name
        assert re.search(rf'^\| `{name}` .* non-commercial \|$', models, re.MULTILINE)
    assert 'those in the package are non-commercial' in (ROOT / 'README.md').read_text(
        encoding='utf-8'
    )


def test_every_published_model_has_a_licence_in_the_table():
    models = (ROOT / 'docs/models.md').read_text(encoding='utf-8')
    for name, entry in published_weights().items():
        (shown,) = re.findall(rf'^\| `{name}` .*\| (.+?) \|$', models, re.MULTILINE)
        assert shown.lower().replace(' ', '-') == entry.license.lower().replace(' ', '-')
