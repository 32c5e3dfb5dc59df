"""ClassMix: each pixel comes from one of the two images, with its label, and whole classes
are put.
"""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip('mmseg')

from class_mix import ClassMix
from mmengine.registry import DATASETS, init_default_scope

from cpvt_backbones.engine.launch import read_config

FOLDER = Path(__file__).resolve().parents[2] / 'projects/class_mix'
CONFIG = FOLDER / 'configs/semantic-fpn_cpvt-tiny-gap-p8_camvid-mixed.py'
VOID = 11


def image(rng, height, width, offset):
    """Labels in blocks of 4 px; the pixels of label k of this image are k + offset."""
    labels = (
        rng.integers(0, VOID + 1, (height // 4, width // 4))
        .repeat(4, 0)
        .repeat(4, 1)
        .astype(np.uint8)
    )
    return dict(img=(labels + offset)[..., None].repeat(3, 2), gt_seg_map=labels)


@pytest.mark.parametrize(
    'sizes', [((24, 32), (24, 32)), ((24, 32), (16, 40)), ((16, 20), (24, 12))]
)
def test_half_of_the_other_images_classes_are_put_whole(sizes):
    rng = np.random.default_rng(0)
    np.random.seed(0)
    for _ in range(20):
        first, other = image(rng, *sizes[0], offset=0), image(rng, *sizes[1], offset=100)
        before = {key: value.copy() for key, value in first.items()}
        kept = {key: value.copy() for key, value in other.items()}
        mixed = ClassMix(prob=1, ignore_index=VOID).transform(dict(first, mix_results=[other]))
        put = mixed['img'][..., 0] >= 100
        assert np.array_equal(mixed['img'][..., 0] - 100 * put, mixed['gt_seg_map'])
        assert np.array_equal(mixed['gt_seg_map'][~put], before['gt_seg_map'][~put])
        height, width = np.minimum(*sizes)
        inside = other['gt_seg_map'][:height, :width]
        chosen = np.unique(mixed['gt_seg_map'][put])
        assert (
            np.array_equal(put[:height, :width], np.isin(inside, chosen))
            and put[:height, :width].sum() == put.sum()
        )
        assert (
            VOID not in chosen
            and len(chosen) <= (len(np.setdiff1d(other['gt_seg_map'], [VOID])) + 1) // 2
        )
        assert all(np.array_equal(kept[key], other[key]) for key in kept)


def test_prob_is_the_share_of_mixed_images():
    rng, count = np.random.default_rng(0), 400
    np.random.seed(0)
    transform, mixed = ClassMix(prob=0.25, ignore_index=VOID), 0
    for _ in range(count):
        results = dict(image(rng, 16, 16, 0), mix_results=[image(rng, 16, 16, 100)])
        mixed += (transform.transform(results)['img'] >= 100).any()
    assert abs(mixed - count / 4) < 5 * (count * 0.25 * 0.75) ** 0.5
    void = dict(img=np.full((8, 8, 3), 100, np.uint8), gt_seg_map=np.full((8, 8), VOID, np.uint8))
    results = ClassMix(prob=1, ignore_index=VOID).transform(
        dict(image(rng, 8, 8, 0), mix_results=[void])
    )
    assert (results['img'] < 100).all()


@pytest.mark.parametrize('prob', [-0.1, 1.5])
def test_a_wrong_share_is_named(prob):
    with pytest.raises(ValueError, match=f'prob={prob}'):
        ClassMix(prob=prob)


def test_the_config_mixes_images_of_both_splits(scenes):
    init_default_scope('mmseg')
    settings = read_config(CONFIG).train_dataloader.dataset
    parts = settings.dataset.datasets
    assert [part.data_prefix.img_path for part in parts] == ['images/train', 'images/val']
    for part, split in zip(parts, ('train', 'test'), strict=True):
        part.update(
            data_root=str(scenes),
            data_prefix=dict(img_path=f'images/{split}', seg_map_path=f'labels/{split}'),
        )
    dataset = DATASETS.build(settings)
    assert len(dataset) == 24
    np.random.seed(0)
    for index in range(0, 24, 5):
        sample = dataset[index]
        labels = sample['data_samples'].gt_sem_seg.data
        assert sample['inputs'].shape[1:] == labels.shape[1:] and set(labels.unique().tolist()) <= {
            1,
            3,
            VOID,
        }
