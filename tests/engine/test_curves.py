"""loss.png: what is read from mmengine's logs, and when it is drawn."""

import json

import numpy as np
import pytest
from PIL import Image

from cpvt_backbones.engine.curves import draw_curves, read_curves


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
