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
from tiny_configs import ROOT, detection, lively_model, save

from cpvt_backbones.run import run_script

STAND_IN = 'mmcv has no compiled operators: torchvision '


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


@pytest.fixture
def operatorless(tmp_path, monkeypatch):
    """A working folder; Python processes started in it find no compiled operators."""
    (tmp_path / 'site').mkdir()
    (tmp_path / 'site/sitecustomize.py').write_text(WITHOUT_COMPILED_OPERATORS)
    folders = [tmp_path / 'site', ROOT]
    monkeypatch.setenv('PYTHONPATH', os.pathsep.join(map(str, folders)))
    monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '')
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_python(*arguments):
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def mmdet_script(name):
    return Path(find_spec('mmdet').origin).parent / '.mim/tools' / name


def test_mmdets_own_train_without_compiled_operators(scenes, operatorless):
    """``custom_imports`` of the config come before the models, and bring operators for them."""
    config, options = detection(scenes, operatorless)
    script = mmdet_script('train.py')
    result = run_python(script, config, '--work-dir', 'work', '--cfg-options', *options)
    assert result.returncode == 0, result.stderr[-3000:]
    assert STAND_IN in result.stdout + result.stderr
    assert Path('work/iter_2.pth').exists()


def test_mmdets_own_test_without_compiled_operators(scenes, operatorless):
    """A worker that is spawned imports mmdet first, too."""
    config, options = detection(scenes, operatorless)
    save(lively_model(config, options), 'model.pth')
    options += ['test_dataloader.num_workers=1', 'env_cfg.mp_cfg.mp_start_method=spawn']
    arguments = [mmdet_script('test.py'), config, 'model.pth', '--cfg-options', *options]
    result = run_python('-m', 'cpvt_backbones.run', *arguments)
    assert result.returncode == 0, result.stderr[-3000:]
    assert STAND_IN in result.stdout and 'coco/bbox_mAP' in result.stdout


def test_mmdets_own_browse_dataset_without_compiled_operators(scenes, operatorless):
    config, options = detection(scenes, operatorless)
    arguments = [mmdet_script('analysis_tools/browse_dataset.py'), config, '--not-show']
    arguments += ['--output-dir', 'shown', '--cfg-options', *options]
    result = run_python('-m', 'cpvt_backbones.run', *arguments)
    assert result.returncode == 0, result.stderr[-3000:]
    assert STAND_IN in result.stdout and len(list(Path('shown').iterdir())) == 8


def test_a_script_runs_as_the_main_one(tmp_path, monkeypatch):
    """Its folder, arguments, name and exit code are those that ``python FILE`` gives it."""
    (tmp_path / 'neighbour.py').write_text('value = 3')
    (tmp_path / 'ä script').write_text(
        'import sys, neighbour\nfrom pathlib import Path\n'
        'print(__name__, Path(__file__).name, sys.argv[1:], neighbour.value)\nsys.exit(7)\n',
        encoding='utf-8',
    )
    monkeypatch.setenv('PYTHONPATH', str(ROOT))
    module = ('-m', 'cpvt_backbones.run')
    result = run_python(*module, tmp_path / 'ä script', '--a', 'b c')
    assert result.stdout == "__main__ ä script ['--a', 'b c'] 3\n"
    assert result.returncode == 7 and not result.stderr
    with pytest.raises(SystemExit, match=r"^error: there is no script 'absent\.py'$"):
        run_script(['absent.py'])
    with pytest.raises(SystemExit, match='^error: name a script and its arguments$'):
        run_script([])
