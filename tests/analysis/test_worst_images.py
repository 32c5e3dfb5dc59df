"""Scores of the images of a test, by which the worst are chosen."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mmengine.structures import InstanceData, PixelData
from PIL import Image

from cpvt_backbones.analysis.worst_images import WorstImagesHook

NAMES = ('cell', 'large cell', 'other')


class Dataset:
    """One image for each list of objects."""

    metainfo = dict(classes=NAMES, palette=[(1, 2, 3)] * 3)
    pipeline = SimpleNamespace(transforms=[])

    def __init__(self, images):
        self.images = images

    def __len__(self):
        return len(self.images)

    def get_data_info(self, index):
        return self.images[index]


def hook_of(task, folder, images=(), count=20):
    hook = WorstImagesHook(file=str(folder / 'worst.jpg'), task=task, count=count)
    dataset = Dataset(images)
    hook.before_test(SimpleNamespace(test_dataloader=SimpleNamespace(dataset=dataset)))
    return hook


def sample(path, **parts):
    return SimpleNamespace(metainfo=dict(img_path=path), **parts)


def box(left, label, *, ignored=0):
    return dict(bbox=[left, 10, left + 20, 30], bbox_label=label, ignore_flag=ignored)


def found(*boxes):
    """Boxes of (left, label, score)."""
    return InstanceData(
        bboxes=torch.tensor([[left, 11.0, left + 20, 31.0] for left, _, _ in boxes]).reshape(-1, 4),
        labels=torch.tensor([label for _, label, _ in boxes], dtype=torch.int64),
        scores=torch.tensor([score for _, _, score in boxes]),
    )


def test_a_detector_is_judged_by_f1(tmp_path):
    images = [
        dict(img_path='all', instances=[box(0, 0), box(50, 1)]),
        dict(img_path='half', instances=[box(0, 0), box(50, 1), box(100, 2, ignored=1)]),
        dict(img_path='empty', instances=[]),
        dict(img_path='only extra', instances=[]),
    ]
    hook = hook_of('detection', tmp_path, images)
    outputs = [
        sample('all', pred_instances=found((51, 1, 0.9), (0, 0, 0.31), (70, 2, 0.29))),
        # A box of another class, one twice, one on an ignored object.
        sample(
            'half',
            pred_instances=found((0, 0, 0.9), (1, 0, 0.8), (50, 0, 0.7), (100, 2, 0.6)),
        ),
        sample('empty', pred_instances=found()),
        sample('only extra', pred_instances=found((0, 2, 0.9))),
    ]
    hook.after_test_iter(None, 0, None, outputs)
    scores = {one.path: (one.score, one.about) for one in hook.worst}
    assert scores == {
        'all': (1.0, '2 of 2 found, 0 extra'),
        'half': (pytest.approx(2 / 5), '1 of 2 found, 2 extra'),
        'empty': (1.0, '0 of 0 found, 0 extra'),
        'only extra': (0.0, '0 of 0 found, 1 extra'),
    }


def test_a_segmentor_is_judged_by_the_classes_of_the_label(tmp_path):
    true = torch.tensor([[0, 0, 0, 1], [255, 1, 1, 1]])
    predicted = torch.tensor([[0, 0, 2, 1], [2, 0, 1, 1]])
    hook = hook_of('segmentation', tmp_path)
    maps = dict(gt_sem_seg=PixelData(data=true[None]), pred_sem_seg=PixelData(data=predicted[None]))
    hook.after_test_iter(None, 0, None, [sample('a', **maps)])
    (one,) = hook.worst
    assert one.score == pytest.approx((2 / 4 + 3 / 4) / 2)
    assert one.labels['seg_map'].tolist() == true.tolist()


def test_the_images_of_the_lowest_probability_are_drawn(tmp_path):
    hook = hook_of('classification', tmp_path, count=2)
    outputs = []
    for index, own in enumerate((0.5, 0.1, 0.9, 0.3)):
        file = tmp_path / f'{index}.png'
        Image.fromarray(np.full((30, 40, 3), 60 * index, np.uint8)).save(file)
        scores = torch.tensor([1 - own - 0.05, own, 0.05])
        outputs.append(sample(str(file), pred_score=scores, gt_label=torch.tensor([1])))
    hook.after_test_iter(None, 0, None, outputs[:3])
    hook.after_test_iter(None, 1, None, outputs[3:])
    hook.after_test_epoch(SimpleNamespace(logger=SimpleNamespace(info=print)))
    assert [one.about for one in hook.worst] == ['true class: 0.10', 'true class: 0.30']
    sheet = np.asarray(Image.open(tmp_path / 'worst.jpg')).astype(int)
    # The second image and the fourth, twice each, in their greys.
    greys = [sheet[300, 8 + 488 * column + 240].mean() for column in range(4)]
    assert greys == pytest.approx([60, 60, 180, 180], abs=3)
