"""The demo: targets, threads, a run with little data and (slow) the whole demo with its
commands.
"""

import json
import os
import shlex
import subprocess
from types import SimpleNamespace

import pytest
import shipped_models
import torch
from PIL import Image

import demo
from tools import train

pytest.importorskip('mmdet')
pytest.importorskip('mmseg')


@pytest.fixture(autouse=True)
def threads():
    """The demo sets torch's threads, on which the rounding of later tests depends."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ('ap50', 'larger', 'miou', 'missed'),
    [
        (0.85, 0.8, 0.5, []),
        (0.849, 0.849, 0.6, ['AP50 at the training size is 0.849, below 0.85']),
        (0.85, 0.85, 0.499, ['mIoU at the training size is 0.499, below 0.5']),
        (
            0.9,
            0.849,
            0.6,
            ['AP50 at 1.6 times the training size is lower by 0.051, more than 0.05'],
        ),
    ],
)
def test_a_missed_target_is_named(ap50, larger, miou, missed):
    rows = [dict(ap50=ap50, miou=miou), dict(ap50=larger, miou=0.1)]
    assert demo.missed_targets(rows) == missed


def test_sizes_are_as_documented():
    first, larger, odd, huge = demo.SIZES
    assert (first.width, first.height) == (demo.TRAIN_SIDE, demo.TRAIN_SIDE)
    assert larger.width / first.width == pytest.approx(1.6, abs=0.03)
    assert odd.width % 16 and odd.height % 16 and odd.width != odd.height
    assert max(huge.width, huge.height) > 1000


@pytest.mark.parametrize(
    ('cores', 'load', 'threads'), [(2, 9.0, 1), (8, 0.4, 4), (8, 5.0, 1), (64, 0, 4)]
)
def test_threads_are_those_that_others_leave(monkeypatch, cores, load, threads):
    monkeypatch.setattr(os, 'sched_getaffinity', lambda pid: set(range(cores)))
    monkeypatch.setattr(os, 'getloadavg', lambda: (load, 0, 0))
    assert demo.choose_threads()[0] == threads


def little(tmp_path):
    size = demo.TestSize
    folders = dict(work_dir=tmp_path / 'work', data_root=tmp_path / 'data')
    return dict(
        folders,
        sizes=(size(128, 128, 2, 4), size(75, 50, 2, 2)),
        train_scenes=8,
        iterations=1,
        seed=3,
    )


class Here:
    """In place of a training's process: ``tools/train.py`` in this one, without importing the
    toolboxes again.
    """

    def __init__(self, command, **options):
        train.main(command[2:])

    def poll(self):
        return 0


def test_demo_with_little_data(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, 'subprocess', SimpleNamespace(Popen=Here))
    monkeypatch.setattr(shipped_models, 'SIDES', (96, 128))
    monkeypatch.setattr(
        'yapf.yapflib.yapf_api.FormatCode', lambda text, **options: (text, False)
    )  # seconds each
    results = demo.run(**little(tmp_path))
    assert [(row['width'], row['height']) for row in results['sizes']] == [(128, 128), (75, 50)]
    assert len(results['missed']) == 2, 'one iteration teaches nothing'
    assert json.loads((tmp_path / 'work/results.json').read_text()) == results
    for name, least in (('shipped.png', 96 + 128), ('demo.png', 1000)):
        assert Image.open(tmp_path / 'work' / name).width > least


@pytest.mark.slow
def test_interrupted_demo_resumes(tmp_path, monkeypatch):
    options = dict(little(tmp_path), iterations=30)
    folder = tmp_path / 'work/detector'
    read = demo.iteration

    def interrupt(cfg):
        if read(cfg) >= 10:
            raise KeyboardInterrupt
        return read(cfg)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(demo, 'iteration', interrupt)
        demo.run(**options)
    assert (folder / 'interrupted.pth').is_file() and not (folder / 'iter_30.pth').is_file()
    demo.run(**options)
    assert 'resumed' in (folder / 'train.log').read_text()
    # A finished training is kept; other settings start another.
    trained = (folder / 'iter_30.pth').stat()
    demo.run(**options)
    assert (folder / 'iter_30.pth').stat() == trained
    demo.run(**{**options, 'iterations': 2})
    assert (folder / 'iter_2.pth').is_file() and not (folder / 'iter_30.pth').is_file()


@pytest.mark.slow
def test_demo_reaches_its_targets_and_its_commands_work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders = dict(work_dir=tmp_path / 'work', data_root=tmp_path / 'data')
    assert demo.run(**folders)['missed'] == []
    commands = demo.next_commands(**folders)
    for command in commands:
        subprocess.run(shlex.split(command), check=True)
    assert len(commands) == 3
    assert len(list((tmp_path / 'work').glob('*/vis/*'))) == 2 * demo.SIZES[-1].scenes
    assert (tmp_path / 'work/detector.onnx').is_file()
