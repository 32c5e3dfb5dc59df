"""The decoded data set gives what CustomDataset gives.

The batch crop shows the image it was cut from.
"""

import cv2
import numpy as np
import pytest
import torch

pytest.importorskip('mmpretrain')

from mmengine.registry import init_default_scope
from mmpretrain.datasets import CustomDataset

from cpvt_backbones.engine.cached_dataset import BatchRandomResizedCrop, DecodedDataset


@pytest.fixture(autouse=True)
def _scope():
    init_default_scope('mmpretrain')


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    """The folder of the arrays."""
    hub = tmp_path_factory.mktemp('hub')
    monkeypatch.setattr(torch.hub, 'get_dir', lambda: str(hub))
    return hub / 'decoded'


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    for label in 'ab':
        (tmp_path / 'train' / label).mkdir(parents=True)
        for index in range(3):
            image = rng.integers(0, 255, (20, 24, 3), dtype=np.uint8)
            cv2.imwrite(str(tmp_path / 'train' / label / f'{index}.png'), image)
    return tmp_path


def build(cls, folder, **options):
    return cls(data_root=str(folder), data_prefix='train', **options)


def test_same_images_and_labels_as_custom_dataset(folder):
    pack = dict(type='PackInputs')
    decoded = build(DecodedDataset, folder, pipeline=[pack])
    plain = build(CustomDataset, folder, pipeline=[dict(type='LoadImageFromFile'), pack])
    assert len(decoded) == len(plain) == 6
    for ours, theirs in zip(decoded, plain, strict=True):
        assert torch.equal(ours['inputs'], theirs['inputs'])
        assert ours['data_samples'].gt_label == theirs['data_samples'].gt_label
        assert ours['data_samples'].ori_shape == theirs['data_samples'].ori_shape


def test_pipelines_cannot_write_into_the_array(folder):
    decoded = build(DecodedDataset, folder, pipeline=[])
    before = np.array(decoded.images[0])
    decoded[0]['img'][:] = 0
    assert np.array_equal(decoded.images[0], before)


@pytest.mark.full
def test_a_changed_image_is_decoded_again(folder):
    build(DecodedDataset, folder, pipeline=[])
    cv2.imwrite(str(folder / 'train' / 'a' / '1.png'), np.full((20, 24, 3), 7, np.uint8))
    assert (build(DecodedDataset, folder, pipeline=[])[1]['img'] == 7).all()


@pytest.mark.full
@pytest.mark.parametrize('classes', [None, ['a', 'b']])
def test_the_array_is_no_class(folder, cache, classes):
    """At the second start the classes are those of the first."""
    before = sorted(folder.rglob('*'))
    for _ in range(2):
        data = DecodedDataset(data_root=str(folder / 'train'), classes=classes, pipeline=[])
        assert data.CLASSES == ('a', 'b')
        assert data.get_gt_labels().tolist() == [0, 0, 0, 1, 1, 1]
    assert sorted(folder.rglob('*')) == before
    assert len([*cache.iterdir()]) == 1
    for name in ('', 'train', 'train/new'):
        with pytest.raises(ValueError, match='cache_dir must be outside of'):
            DecodedDataset(
                data_root=str(folder / name.partition('/')[0]),
                cache_dir=str(folder / name),
                pipeline=[],
            )
    DecodedDataset(data_root=str(folder / 'train'), cache_dir=str(folder / 'mine'), pipeline=[])
    assert len([*(folder / 'mine').iterdir()]) == 1


def test_images_of_two_sizes_are_refused_and_leave_no_file(folder, cache):
    odd = folder / 'train' / 'b' / '2.png'
    cv2.imwrite(str(odd), np.zeros((21, 24, 3), np.uint8))
    with pytest.raises(ValueError, match=r'2\.png.*\(21, 24\)'):
        build(DecodedDataset, folder, pipeline=[])
    assert not list(cache.iterdir())


def ramp(count, height, width):
    """Images whose first two channels are the row and the column."""
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing='ij')
    return torch.stack((rows, columns, rows * 0)).float().expand(count, -1, -1, -1).contiguous()


def test_crops_are_upright_rectangles_within_bounds():
    torch.manual_seed(0)
    images, labels = ramp(200, 64, 64), torch.eye(2).repeat(100, 1)
    crops, scores = BatchRandomResizedCrop(size=16, area=(0.25, 0.5), ratio=(0.5, 2.0), flip=0.5)(
        images, labels
    )
    assert crops.shape == (200, 3, 16, 16)
    assert torch.equal(scores, labels)
    steps = crops.diff(dim=3)[:, 1, 8, 4:12], crops.diff(dim=2)[:, 0, 4:12, 8]
    for step in steps:  # away from the border, one scale an image
        assert (step - step[:, :1]).abs().max() < 1e-3
    widths, heights = (step[:, 0].abs() * 16 / 64 for step in steps)
    assert 0.24 < (widths * heights).min() < 0.3
    assert 0.45 < (widths * heights).max() < 0.51
    assert (widths / heights).min() > 0.49
    assert (widths / heights).max() < 2.02
    mirrored = steps[0][:, 0] < 0
    assert 60 < mirrored.sum() < 140
    assert (steps[1] > 0).all()  # never upside down
    assert crops[:, :2].min() >= 0
    assert crops[:, :2].max() <= 63


@pytest.mark.parametrize(
    ('options', 'name'),
    [
        ({'size': 0}, 'size'),
        ({'area': (0, 1)}, 'area'),
        ({'ratio': (2, 1)}, 'ratio'),
        ({'flip': 2}, 'flip'),
    ],
)
def test_bad_arguments_are_named(options, name):
    with pytest.raises(ValueError, match=name):
        BatchRandomResizedCrop(**{'size': 8, **options})
