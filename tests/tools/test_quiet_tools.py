"""No tool shows what other packages print or warn of unasked; ``CPVT_DEBUG=1`` shows all of it."""

import logging
import os
import re
import subprocess
import sys
import warnings

import numpy as np
import pytest
from PIL import Image
from tiny_configs import ROOT, classification, lively_model, save, segmentation

from cpvt.command_line import CUDA_LOGGER, quiet

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
NOISE = re.compile('OneDL|[Dd]eprecat|UserWarning|FutureWarning|CUDA_HOME|SyncBatchNorm|backend')


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
def test_a_run_of_each_tool_says_nothing_of_other_packages(commands, tmp_path):
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
    told = [line for line in done.stderr.splitlines() if not line.startswith('loading PyTorch')]
    assert told == [f'## {line.rstrip()}' for line in lines]
    shown = [line for line in done.stdout.splitlines() if not line.startswith('##')]
    assert [line for line in shown if NOISE.search(line)] == []
    assert 'mIoU' in done.stdout and 'dropped' not in done.stdout


def speak():
    """A message of a package and one of the user's data, printed and as a warning."""
    print('Could not import OneDL')
    print('Could not import my_dataset')
    warnings.warn('The draw is False, it means that ...', stacklevel=1)
    warnings.warn('an image has no label', stacklevel=1)


def test_only_known_messages_are_dropped(capsys):
    with pytest.warns(UserWarning) as warned, quiet():
        speak()
        assert not logging.getLogger(CUDA_LOGGER).isEnabledFor(logging.WARNING)
    assert [str(one.message) for one in warned] == ['an image has no label']
    assert capsys.readouterr() == ('Could not import my_dataset\n', '')


def test_debug_shows_everything(capsys, monkeypatch):
    monkeypatch.setenv('CPVT_DEBUG', '1')
    with pytest.warns(UserWarning) as warned, quiet():
        speak()
    assert len(warned) == 2
    assert capsys.readouterr().out == 'Could not import OneDL\nCould not import my_dataset\n'


def test_the_scores_of_boxes_are_not_printed_beside_those_of_the_toolbox(capsys):
    evaluation = pytest.importorskip('pycocotools.cocoeval').COCOeval(iouType='bbox')
    evaluation.eval = dict(precision=np.ones((10, 101, 1, 4, 3)), recall=np.ones((10, 1, 4, 3)))
    with quiet():
        print('before')
        evaluation.summarize()
        print('after')
    assert capsys.readouterr().out == 'before\nafter\n'
    assert evaluation.stats.shape == (12,)
