"""Tools of the toolboxes that this package has no counterpart of run its configs by path."""

import os
import runpy
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from mmengine.config import Config
from tiny import WITHOUT_COMPILED_OPERATORS
from tiny_configs import ROOT, detection


def run_theirs(scope, tool, *arguments, monkeypatch):
    pytest.importorskip(scope)
    script = Path(find_spec(scope).origin).parent / '.mim/tools' / tool
    monkeypatch.setattr(sys, 'argv', [str(script), *map(str, arguments)])
    runpy.run_path(str(script), run_name='__main__')


@pytest.mark.parametrize(
    ('scope', 'name'),
    [
        ('mmdet', 'demo/retinanet_multiscale-cpvt_digits'),
        ('mmseg', 'demo/semantic-fpn_multiscale-cpvt_digits'),
        ('mmpretrain', 'imagenet/cpvt-s_8xb256_in1k'),
    ],
)
def test_print_config(scope, name, tmp_path, monkeypatch, capsys):
    path = ROOT / f'configs/{name}.py'
    monkeypatch.chdir(tmp_path)
    option = ['--cfg-options', 'model.backbone.patch_size=32']
    run_theirs(scope, 'misc/print_config.py', path, *option, monkeypatch=monkeypatch)
    (tmp_path / 'printed.py').write_text(capsys.readouterr().out.removeprefix('Config:'))
    found, expected = Config.fromfile(tmp_path / 'printed.py'), Config.fromfile(path)
    assert found.model.backbone.patch_size == 32
    assert (
        found.train_dataloader == expected.train_dataloader
        and found.optim_wrapper == expected.optim_wrapper
    )


def test_browse_dataset(scenes, tmp_path, monkeypatch):
    config, options = detection(scenes, tmp_path)
    output = ['--output-dir', tmp_path / 'shown', '--not-show', '--cfg-options', *options]
    run_theirs(
        'mmdet', 'analysis_tools/browse_dataset.py', config, *output, monkeypatch=monkeypatch
    )
    assert len(list((tmp_path / 'shown').iterdir())) == 8


def test_mmdets_own_train_without_compiled_operators(scenes, tmp_path):
    """``custom_imports`` of the config come before the models, and bring operators for them."""
    config, options = detection(scenes, tmp_path)
    script = Path(find_spec('mmdet').origin).parent / '.mim/tools/train.py'
    code = (
        f'{WITHOUT_COMPILED_OPERATORS}\nimport runpy; runpy.run_path({str(script)!r},'
        ' run_name="__main__")'
    )
    result = subprocess.run(
        [sys.executable, '-c', code, str(config), '--work-dir', str(tmp_path / 'work'),
            '--cfg-options', *options],
        capture_output=True, text=True, cwd=tmp_path, env={**os.environ,
            'CUDA_VISIBLE_DEVICES': ''},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-3000:]
    assert 'mmcv has no compiled operators' in result.stdout + result.stderr
    assert (tmp_path / 'work' / 'iter_2.pth').exists()
