"""Tools show little of what other packages warn of; ``CPVT_DEBUG=1`` shows all of it."""

import os
import re
import subprocess
import sys
import warnings
from functools import partial

import pytest
from PIL import Image
from tiny_configs import ROOT, classification, lively_model, save, segmentation

from cpvt.command_line import quiet

# Runs each line of the file argv[1] as a command, in one process: the toolboxes are imported once.
RUN_ALL = """
import runpy, shlex, sys
for line in open(sys.argv[1]):
    for stream in (sys.stdout, sys.stderr):
        print('##', line, end='', file=stream, flush=True)
    sys.argv = shlex.split(line)
    sys.path[0] = sys.argv[0].rpartition('/')[0]
    try:
        runpy.run_path(sys.argv[0], run_name='__main__')
    except SystemExit as stop:
        assert not stop.code, line
"""
NOISE = re.compile('DeprecationWarning|FutureWarning|Traceback')


@pytest.fixture
def commands(scenes, tmp_path):
    """A small run of each tool; a classifier, and a segmentor, which warns of more."""
    pytest.importorskip('mmpretrain')
    pytest.importorskip('mmseg')
    classifier, _ = classification(None, tmp_path)
    model = save(lively_model(classifier), tmp_path / 'model.pth')
    segmentor, options = segmentation(scenes, tmp_path)
    options = ' '.join(f"'{option}'" for option in options)
    Image.new('RGB', (40, 32), (200, 90, 30)).save(tmp_path / 'photo.png')
    work = f'--work-dir work --cfg-options {options}'
    return [
        f'train {segmentor} {work}',
        f'test {classifier} {model} --work-dir tested',
        f'resolution_sweep --models a={classifier}:{model} --sizes 1 --out sweep.csv',
        f'get_flops {classifier} --shape 32 --memory',
        f'infer {classifier} {model} photo.png --out-dir out --device cpu',
        f'publish_checkpoint {model} published.pth',
        f'convert_checkpoint {model} converted.pth --config {classifier}',
        'make_config folders images --out own.py',
        f'export {classifier} {model} --format torch_export --out model.pt2 --verify-sizes 24x40'
        ' --verify-batches 1',
    ]


@pytest.mark.full
def test_a_run_of_each_tool_has_no_warnings_of_the_future(commands, tmp_path):
    scripts = {
        path.stem
        for path in (ROOT / 'tools').glob('*.py')
        if "__name__ == '__main__'" in path.read_text()
    }
    assert {command.partition(' ')[0] for command in commands} == scripts
    lines = [f'{ROOT}/tools/{command.replace(" ", ".py ", 1)}\n' for command in commands]
    (tmp_path / 'commands').write_text(''.join(lines))
    done = subprocess.run(
        [sys.executable, '-c', RUN_ALL, 'commands'],
        env={**os.environ, 'PYTHONPATH': str(ROOT), 'CPVT_DEBUG': '0'},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if line.startswith('##')] == [
        f'## {line.rstrip()}' for line in lines
    ]
    assert not NOISE.search(done.stderr)
    assert 'mIoU' in done.stdout and 'dropped' not in done.stdout


@pytest.mark.full
def test_a_metric_that_no_recipe_uses_is_not_warned_of():
    pytest.importorskip('mmdet')
    code = 'from cpvt.command_line import quiet\nwith quiet():\n    import mmdet.evaluation'
    environment = {**os.environ, 'PYTHONPATH': str(ROOT), 'CPVT_DEBUG': '0'}
    run = partial(subprocess.run, [sys.executable, '-c', code], capture_output=True, text=True)
    assert 'faster_coco' not in run(env=environment).stderr


def test_warnings_of_the_future_are_silent_and_others_are_not(monkeypatch):
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter('always')
        for debug in '01':
            monkeypatch.setenv('CPVT_DEBUG', debug)
            with quiet():
                warnings.warn('this will change', FutureWarning, stacklevel=1)
                warnings.warn('an image has no label', stacklevel=1)
    texts = [str(one.message) for one in warned]
    assert texts == ['an image has no label', 'this will change', 'an image has no label']
