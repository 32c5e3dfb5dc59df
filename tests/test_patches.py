"""Contacts with other packages: their count, transformers 5 beside the toolboxes, tags in YAML."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from mmengine.config import Config
from tiny import only

from cpvt_backbones.errors import InputError
from cpvt_backbones.patches import CONTACTS
from cpvt_backbones.toolboxes import read_config

ROOT = Path(__file__).parents[1]
MODULES = [file for name in ('cpvt_backbones', 'cpvt') for file in (ROOT / name).rglob('*.py')]


def private(name):
    return name.startswith('_') and not name.startswith('__')


def defined_names(tree):
    """Functions, classes, variables and attributes of ``self`` that a module defines."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if ast.unparse(node.value) in ('self', 'cls'):
                yield node.attr


def used_names(tree):
    """Private names that a module imports, or reads and sets as attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from [*node.module.split('.'), *(one.name for one in node.names)]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ('getattr', 'setattr'):
            yield from (one.value for one in node.args if isinstance(one, ast.Constant))


def test_contacts_with_insides_of_other_packages_are_listed_and_few():
    trees = {file: ast.parse(file.read_text(encoding='utf-8')) for file in MODULES}
    own = {name for tree in trees.values() for name in defined_names(tree)}
    listed = {name for contact in CONTACTS for name in contact.used}
    standard_library = {'_exit', '_codecs', '_actions', '_metavar_formatter'}
    found = {}
    for file, tree in trees.items():
        for name in filter(lambda one: isinstance(one, str) and private(one), used_names(tree)):
            found.setdefault(name, file.relative_to(ROOT))
    unlisted = {name: found[name] for name in found.keys() - own - listed - standard_library}
    assert not unlisted
    assert listed <= {*found, *own, '_ext'}  # mmcv's module, which a finder names in a string
    assert len(CONTACTS) <= 12
    assert all(all(contact[2:]) or contact.changed for contact in CONTACTS)


def test_nothing_is_swapped_behind_a_readers_back():
    """No stack frames, no class swapped at run time, no hook at every module of a process."""
    pattern = r'f_locals|f_back|__class__ = |object\.__setattr__|register_module_[a-z_]*hook'
    for file in MODULES:
        assert not re.search(pattern, file.read_text(encoding='utf-8')), file
        filters = r'addFilter|warnings\.filterwarnings'
        if file.name != 'patches.py':
            lines = re.findall(rf'^(?:{filters}).*', file.read_text(encoding='utf-8'), re.MULTILINE)
            assert not lines, file


SCRIPT = """
import sys
sys.path.insert(0, {folder!r})
import cpvt_backbones
import mmdet.models, mmpretrain.models, mmseg.models
from mmpretrain.registry import MODELS
from mmpretrain.utils.dependency import WITH_MULTIMODAL
print(WITH_MULTIMODAL, MODELS.get('ImageClassifier').__name__)
try:
    MODELS.build(dict(type='BlipCaption'))
except ImportError as error:
    print(error)
"""


@pytest.mark.full
@pytest.mark.parametrize('release', only(of=['5.1.0', '10.0']))
def test_multimodal_models_are_left_out(release, tmp_path):
    """mmpretrain asks for the version of the distribution alone; no such package is there."""
    for name in ('mmdet', 'mmseg', 'mmpretrain'):
        pytest.importorskip(name)
    pytest.importorskip('pycocotools')
    info = tmp_path / f'transformers-{release}.dist-info'
    info.mkdir()
    (info / 'METADATA').write_text(
        f'Metadata-Version: 2.1\nName: transformers\nVersion: {release}\n'
    )
    script = SCRIPT.format(folder=str(tmp_path))
    done = subprocess.run([sys.executable, '-c', script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    printed = done.stdout.splitlines()
    assert 'False ImageClassifier' in printed
    assert any('requires extra multi-modal dependencies' in line for line in printed)


@pytest.mark.parametrize('base', [False, True], ids=['config', 'base'])
def test_a_yaml_config_runs_nothing(base, tmp_path):
    trace, file = tmp_path / 'trace', tmp_path / 'config.yaml'
    file.write_text(f'work_dir: !!python/object/apply:os.system ["touch {trace}"]\n')
    if base:
        file = tmp_path / 'config.py'
        file.write_text("_base_ = 'config.yaml'\n")
    with pytest.raises(InputError, match=r'config\.(yaml|py).*python/object/apply:os.system'):
        read_config(file)
    assert not trace.exists()


def test_a_yaml_config_of_plain_data_is_read(tmp_path):
    content = dict(scale=(1333, 800), model=dict(type='CPVT', ratio=0.5, names=['a', None, True]))
    Config(content).dump(tmp_path / 'config.yaml')
    assert '!!python/tuple' in (tmp_path / 'config.yaml').read_text()
    assert Config.fromfile(tmp_path / 'config.yaml').to_dict() == content


def test_a_config_of_a_toolbox_is_found_without_its_metafiles(monkeypatch):
    mmdet = pytest.importorskip('mmdet')
    monkeypatch.setattr('mmengine.config.utils.load', lambda file: pytest.fail(f'reads {file}'))
    path, scope = Config._get_cfg_path('mmdet::retinanet/retinanet_r50_fpn_1x_coco.py', 'own.py')
    assert scope == 'mmdet'
    assert Path(path).parts[-2:] == ('retinanet', 'retinanet_r50_fpn_1x_coco.py')
    assert Path(path).is_relative_to(Path(mmdet.__file__).parent)
