"""EoMT through the inferencer: masks are merged at the size of the picture, as the authors do."""

import numpy as np
import pytest
import torch
from eomt_peers import (
    SIDE,
    AuthorsEoMT,
    instances_of,
    of_picture,
    on_square,
    published,
    segments_of,
)
from mmengine.config import Config
from PIL import Image
from pycocotools import mask as coco_mask
from tiny import PANOPTIC_CLASSES, eomt

from benchmarks.peer_models import scaled
from cpvt_backbones.images.windows import resize_classes
from cpvt_backbones.inference import Inferencer
from cpvt_backbones.inference.predictions import merged_size

THINGS = 3
PICTURES = [(150, 110), (90, 200), (48, 64)]  # height and width in px


@pytest.fixture(scope='module')
def peer():
    """The formula, with queries that differ and predict several segments."""
    torch.manual_seed(4)
    peer = scaled(AuthorsEoMT(len(PANOPTIC_CLASSES))).eval()
    peer.attn_mask_probs.zero_()
    with torch.no_grad():
        peer.class_head.weight.mul_(12)
        peer.q.weight.mul_(3)
        peer.class_head.bias.zero_()
    return peer


@pytest.fixture
def inferencer(peer, tmp_path):
    """Function that gives the inferencer of a task."""

    def inferencer(task):
        is_panoptic = task == 'panoptic'
        tests = dict(square=SIDE, max_per_image=10, panoptic_on=is_panoptic)
        steps = [
            dict(type='LoadImageFromFile'),
            dict(type='Resize', scale=(SIDE, SIDE), keep_ratio=True, backend='pillow'),
            dict(type='PackDetInputs', meta_keys=('ori_shape', 'img_shape', 'scale_factor')),
        ]
        dataset = dict(type='CocoDataset', metainfo=dict(classes=PANOPTIC_CLASSES), pipeline=steps)
        content = dict(default_scope='mmdet', test_dataloader=dict(dataset=dataset))
        content['model'] = eomt(**{'test_cfg': dict(tests, instance_on=not is_panoptic)})
        cfg = Config(dict(content, visualizer=dict(type='DetLocalVisualizer')))
        torch.save(published(peer, 'network.'), tmp_path / 'published.pth')
        return Inferencer(cfg=cfg, checkpoint=str(tmp_path / 'published.pth'), device='cpu')

    return inferencer


def picture(size):
    """Random shades in large cells, and the authors' resizing of it."""
    rng = np.random.default_rng(0)
    cells = Image.fromarray(rng.integers(0, 256, (7, 5, 3), dtype=np.uint8))
    photo = cells.resize(size[::-1], Image.Resampling.BICUBIC)
    factor = SIDE / max(size)
    seen = (round(size[0] * factor), round(size[1] * factor))
    resized = np.asarray(photo.resize(seen[::-1], Image.Resampling.BILINEAR))
    image = torch.from_numpy(resized.copy()).permute(2, 0, 1) / 255
    return np.asarray(photo)[..., ::-1].copy(), image, seen


def labels_of(prediction):
    """Class of each pixel; -1 without one."""
    found = np.full(prediction['panoptic'].shape, -1)
    for one in prediction['segments']:
        found[prediction['panoptic'] == one['id']] = one['label']
    return found


def same_parts(left, right):
    """Whether two maps of ids have the same segments."""
    pairs = np.unique(np.stack((left.ravel(), right.ravel())), axis=1)
    return len({*pairs[0]}) == len({*pairs[1]}) == pairs.shape[1]


@pytest.mark.parametrize('size', PICTURES)
def test_segments_of_a_picture_are_the_authors(size, peer, inferencer):
    pixels, image, seen = picture(size)
    with torch.no_grad():
        ((masks, classes),) = peer(on_square(image))
    wanted = segments_of(of_picture(masks, seen, size), classes[0], THINGS).numpy()
    prediction, _ = inferencer('panoptic')(pixels)
    assert len(np.unique(wanted[0])) > 2
    assert np.array_equal(labels_of(prediction), wanted[1])
    assert same_parts(prediction['panoptic'], wanted[0])
    coarse = segments_of(of_picture(masks, seen, seen), classes[0], THINGS)[1].numpy()
    coarse = resize_classes(coarse, height=size[0], width=size[1])
    assert np.array_equal(coarse, wanted[1]) == (max(size) == SIDE)


@pytest.mark.parametrize('size', PICTURES)
def test_instances_of_a_picture_are_the_authors(size, peer, inferencer):
    pixels, image, seen = picture(size)
    with torch.no_grad():
        ((masks, classes),) = peer(on_square(image))
    wanted = instances_of(of_picture(masks, seen, size), classes[0], THINGS, count=10)
    prediction, _ = inferencer('instances')(pixels, score_thr=0.0)
    found = [
        (label, score, coco_mask.decode(mask).astype(bool), box)
        for label, score, mask, box in zip(
            *(prediction[key] for key in ('labels', 'scores', 'masks', 'boxes')), strict=True
        )
        if mask['counts'] and coco_mask.area(mask)
    ]
    order = lambda one: (one[0], -one[1])  # noqa: E731
    for got, right in zip(sorted(found, key=order), sorted(wanted, key=order), strict=True):
        assert got[0] == right[0] and got[1] == pytest.approx(right[1], abs=1e-5)
        assert np.array_equal(got[2], right[2].numpy())
        rows, columns = np.nonzero(got[2])
        box = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
        assert got[3] == pytest.approx(box, abs=1e-3)
    assert len(wanted) > 2


def test_a_large_picture_is_merged_at_fewer_pixels(peer, inferencer):
    pixels, image, seen = picture((300, 220))
    model = inferencer('panoptic')
    model.predictor.merge_pixels = 150 * 110
    prediction, _ = model(pixels)
    merged = merged_size((220, 300), 150 * 110)
    assert merged == (150, 110)
    with torch.no_grad():
        ((masks, classes),) = peer(on_square(image))
    wanted = segments_of(of_picture(masks, seen, merged), classes[0], THINGS)[1].numpy()
    wanted = resize_classes(wanted, height=300, width=220)
    assert np.array_equal(labels_of(prediction), wanted)
