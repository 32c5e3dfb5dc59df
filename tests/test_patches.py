"""Changes in other packages: transformers 5 beside the toolboxes, tags in YAML."""

import subprocess
import sys
from pathlib import Path

import pytest
from mmengine.config import Config
from tiny import only

from cpvt_backbones.errors import InputError
from cpvt_backbones.toolboxes import read_config

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
