"""loss.png: what is read from mmengine's logs, and when it is drawn."""

import json
import os
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from cpvt_backbones.engine import curves
from cpvt_backbones.engine.curves import LossCurveHook, draw_curves, read_curves


@pytest.fixture
def write_log(tmp_path):
    def write(start, *records, end='\n'):
        folder = tmp_path / 'work' / start / 'vis_data'
        folder.mkdir(parents=True)
        text = '\n'.join(map(json.dumps, records)) + end
        (folder / 'scalars.json').write_text(text)
        return tmp_path / 'work'

    return write


def trained(step, loss):
    return {'lr': 0.1, 'loss': loss, 'loss_cls': 9.0, 'iter': step, 'step': step}


def scored(step, **scores):
    return {**scores, 'data_time': 0.1, 'time': 0.2, 'step': step}


@pytest.mark.parametrize('step', [0, 1, 20], ids=['none', 'an epoch', 'an iteration'])
def test_scores_stand_at_iterations(step, write_log):
    """mmengine logs a score with iteration, epoch or 0, by the loop and the logger's settings."""
    record = scored(step, **{'coco/bbox_mAP': 0.25, 'coco/bbox_mAP_50': 0.5, 'mIoU': 31.5})
    folder = write_log('20260101_000000', trained(10, 3.0), trained(20, 2.0), record)
    expected = {'loss': {10: 3.0, 20: 2.0}, 'coco/bbox_mAP': {20: 0.25}, 'mIoU': {20: 31.5}}
    assert read_curves(folder) == expected


def test_a_resumed_training_replaces_what_it_repeats(write_log):
    """The first was killed at iteration 40, in the middle of a line; its checkpoint is of 20."""
    first = [trained(10, 4.0), scored(10, mIoU=1.0), trained(30, 9.0), scored(30, mIoU=9.0)]
    folder = write_log('20260101_000000', *first, end='\n{"lr": 0.1, "lo')
    write_log('20260102_000000', trained(30, 3.0), scored(30, mIoU=3.0), trained(50, 2.0))
    assert read_curves(folder) == {
        'loss': {10: 4.0, 30: 3.0, 50: 2.0},
        'mIoU': {10: 1.0, 30: 3.0},
    }
    write_log('20260103_000000', trained(10, 7.0))  # anew, in the same folder
    assert read_curves(folder) == {'loss': {10: 7.0}, 'mIoU': {}}


@pytest.mark.parametrize('scores', [{}, {'mIoU': {10: 1.0}}, {'mIoU': {}}])
def test_the_picture_shows_the_curve(scores, tmp_path):
    pictures = []
    for loss in ({10: 3.0, 20: 1.0}, {10: 1.0, 20: 3.0}, {10: float('nan'), 20: 3.0}):
        file = draw_curves({'loss': loss, **scores}, tmp_path / 'loss.png')
        pictures.append(np.asarray(Image.open(file).convert('RGB')))
    falling, rising, _ = pictures
    assert falling.shape == rising.shape and (falling != rising).any()


def test_a_training_of_one_iteration_shows_its_loss(tmp_path):
    file = draw_curves({'loss': {1: 3.0}}, tmp_path / 'loss.png')
    colours = np.asarray(Image.open(file).convert('RGB')).astype(int)
    line = np.abs(colours - [31, 119, 180]).max(axis=2) < 8  # the first colour of matplotlib
    assert line.sum() > 20


DAMAGED = [
    '{"step":2,"mIoU":[1]}',
    '\x00',
    '{"step":3,"loss":1e999}',
    '{"step":1,"loss":{}}',
    '{"step":1,"loss":true}',
    '[' * 100_000,
    '{"step":1.5,"loss":2}',
]


@pytest.mark.parametrize('line', DAMAGED)
def test_damaged_lines_end_no_training(line, write_log, monkeypatch):
    """Of an earlier start in the same folder."""
    folder = write_log('20260101_000000', trained(10, 3.0))
    (folder / 'a/vis_data').mkdir(parents=True)
    (folder / 'a/vis_data/scalars.json').write_text(f'{line}\n{json.dumps(trained(20, 2.0))}\n')
    os.mkfifo(folder / '20260101_000000/vis_data/fifo')
    (folder / 'b/vis_data').mkdir(parents=True)
    os.mkfifo(folder / 'b/vis_data/scalars.json')
    runner = SimpleNamespace(work_dir=str(folder), logger=SimpleNamespace(info=print))
    assert read_curves(folder)['loss'][20] == 2.0
    LossCurveHook().after_train(runner)
    assert (folder / 'loss.png').is_file()


def test_a_picture_that_fails_is_one_warning(write_log, monkeypatch):
    folder = write_log('20260101_000000', trained(10, 3.0))
    said = []
    monkeypatch.setattr(curves, 'print_log', lambda text, *_: said.append(text))
    monkeypatch.setattr(curves, 'draw_curves', lambda *_: [][0])
    runner = SimpleNamespace(work_dir=str(folder), logger=SimpleNamespace(info=said.append))
    LossCurveHook().after_train(runner)
    assert said[0] == 'loss.png was not written: IndexError: list index out of range'
