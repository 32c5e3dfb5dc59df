"""Tools of the toolboxes that this package has no counterpart of run its configs by path."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from tiny import WITHOUT_COMPILED_OPERATORS
from tiny_configs import ROOT, detection, lively_model, save

from cpvt_backbones.run import run_script


def script_of(scope, name):
    pytest.importorskip(scope)
    return Path(find_spec(scope).origin).parent / '.mim/tools' / name


# Runs each line of standard input as `python ARGUMENTS` in a process of its own. These share the
# imports of what mmengine and mmdet need. No toolbox and no operators are imported before.
RUN_EACH = """
import json, os, runpy, sys, traceback
import cv2, matplotlib.pyplot, mmengine.runner, pycocotools.coco, scipy.optimize, torchvision
for line in sys.stdin:
    child = os.fork()
    if child:
        assert os.waitpid(child, 0)[1] == 0, line
        continue
    try:
        file, *sys.argv[1:] = json.loads(line)
        sys.argv[0] = file
        sys.path[0] = file.rpartition('/')[0]
        if file == '-m':
            del sys.argv[0]
            runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)
        else:
            runpy.run_path(file, run_name='__main__')
        code = 0
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
"""


@pytest.mark.full
def test_mmdets_own_tools_without_compiled_operators(scenes, tmp_path):
    """train.py: ``custom_imports`` of the config come before the models, and bring operators.

    test.py: a worker that is spawned imports mmdet first, too.
    """
    config, options = detection(scenes, tmp_path)
    save(lively_model(config, options), tmp_path / 'model.pth')
    spawn = ['test_dataloader.num_workers=1', 'env_cfg.mp_cfg.mp_start_method=spawn']
    run = ['-m', 'cpvt_backbones.run']
    shown = ['--not-show', '--output-dir', 'shown']
    commands = [
        [script_of('mmdet', 'train.py'), config, '--work-dir', 'work', '--cfg-options', *options],
        [*run, script_of('mmdet', 'test.py'), config, 'model.pth', '--cfg-options']
        + [*options, *spawn],
        [*run, script_of('mmdet', 'analysis_tools/browse_dataset.py'), config, *shown]
        + ['--cfg-options', *options],
    ]
    (tmp_path / 'site').mkdir()
    (tmp_path / 'site/sitecustomize.py').write_text(WITHOUT_COMPILED_OPERATORS)
    path = os.pathsep.join(map(str, [tmp_path / 'site', ROOT]))
    result = subprocess.run(
        [sys.executable, '-c', RUN_EACH],
        env={**os.environ, 'PYTHONPATH': path, 'CUDA_VISIBLE_DEVICES': ''},
        cwd=tmp_path,
        input=''.join(f'{json.dumps([*map(str, command)])}\n' for command in commands),
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    stand_in = 'mmcv has no compiled operators: torchvision '
    assert (result.stdout + result.stderr).count(stand_in) >= 3
    assert (tmp_path / 'work/iter_2.pth').exists()
    assert 'coco/bbox_mAP' in result.stdout
    assert len([*(tmp_path / 'shown').iterdir()]) == 8


@pytest.mark.full
def test_a_script_runs_as_the_main_one(tmp_path, monkeypatch):
    """Its folder, arguments, name and exit code are those that ``python FILE`` gives it."""
    (tmp_path / 'neighbour.py').write_text('value = 3')
    (tmp_path / 'ä script').write_text(
        'import sys, neighbour\nfrom pathlib import Path\n'
        'print(__name__, Path(__file__).name, sys.argv[1:], neighbour.value)\nsys.exit(7)\n',
        encoding='utf-8',
    )
    monkeypatch.setenv('PYTHONPATH', str(ROOT))
    command = [sys.executable, '-m', 'cpvt_backbones.run', tmp_path / 'ä script', '--a', 'b c']
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.stdout == "__main__ ä script ['--a', 'b c'] 3\n"
    assert result.returncode == 7 and not result.stderr


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (['absent.py'], r"^error: there is no script 'absent\.py'$"),
        ([], '^error: name a script and its arguments$'),
    ],
)
def test_a_script_that_is_not_there_is_named(arguments, message):
    with pytest.raises(SystemExit, match=message):
        run_script(arguments)
