"""mmpretrain, and with it mmdet and mmseg, import beside transformers 5."""

import subprocess
import sys

import pytest
from tiny import only

from cpvt_backbones import patches

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


@pytest.mark.parametrize('release', [None, '4.57.6', 'unknown', ''])
def test_other_releases_change_nothing(release, monkeypatch):
    """``None`` is what Python answers for a distribution that is half installed."""
    monkeypatch.setattr(patches, 'version', lambda name: release)
    before = [*sys.meta_path]
    patches.leave_out_multimodal()
    assert sys.meta_path == before
