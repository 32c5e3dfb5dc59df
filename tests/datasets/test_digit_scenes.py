"""Digit scenes: what is written is exactly what is in the picture, at any size, and the two splits share nothing."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from cpvt_backbones.datasets.digit_scenes import (
    CLASSES,
    FIRST_HELDOUT_DIGIT,
    MIN_SIDE,
    PHOTOS,
    compose_scene,
    set_name,
    write_scenes,
)

SMALL = dict(height=40, width=56)
sides = st.integers(MIN_SIDE, 160)


@settings(max_examples=40, deadline=None)
@given(split=st.sampled_from(['train', 'heldout']), height=sides, width=sides, seed=st.integers(0, 99))
def test_boxes_masks_and_index_map_agree(split, height, width, seed):
    scene = compose_scene(split=split, height=height, width=width, index=3, seed=seed)
    assert scene.image.shape == (height, width, 3) and scene.image.dtype == np.uint8
    assert len(scene.digits) >= 1
    expected = np.zeros((height, width), np.uint8)
    for digit in scene.digits:
        rows, columns = np.nonzero(digit.mask)
        tight = (columns.min(), rows.min(), columns.max() - columns.min() + 1, rows.max() - rows.min() + 1)
        assert digit.box == tight
        assert not expected[digit.mask].any(), 'masks overlap'
        expected[digit.mask] = digit.label + 1
    np.testing.assert_array_equal(scene.index_map, expected)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 99), index=st.integers(0, 99))
def test_splits_share_no_digit_and_no_photograph(seed, index):
    train, heldout = (compose_scene(split=split, index=index, seed=seed, **SMALL) for split in ('train', 'heldout'))
    assert all(digit.source < FIRST_HELDOUT_DIGIT for digit in train.digits)
    assert all(digit.source >= FIRST_HELDOUT_DIGIT for digit in heldout.digits)
    assert not set(PHOTOS['train']) & set(PHOTOS['heldout'])
    assert train.photo in {name for _, name in PHOTOS['train']}
    assert heldout.photo in {name for _, name in PHOTOS['heldout']}


def test_same_arguments_same_scene_other_arguments_another():
    first = compose_scene(split='train', index=1, seed=5, **SMALL)
    again = compose_scene(split='train', index=1, seed=5, **SMALL)
    np.testing.assert_array_equal(first.image, again.image)
    np.testing.assert_array_equal(first.index_map, again.index_map)
    for other in (dict(index=2, seed=5), dict(index=1, seed=6)):
        assert not np.array_equal(first.image, compose_scene(split='train', **other, **SMALL).image)


@pytest.mark.parametrize('split', ['train', 'heldout'])
def test_a_digit_can_be_seen(split):
    """Its ink differs in brightness from what surrounds it, on average over the digit."""
    for index in range(30):
        scene = compose_scene(split=split, height=128, width=128, index=index)
        brightness = scene.image @ np.array([0.299, 0.587, 0.114])
        for digit in scene.digits:
            x, y, w, h = digit.box
            window = np.zeros_like(digit.mask)
            window[y : y + h, x : x + w] = True
            around = window & (scene.index_map == 0)
            if around.sum() >= 20:
                assert abs(brightness[digit.mask].mean() - np.median(brightness[around])) > 30


def test_a_larger_scene_holds_more_digits_of_the_same_size():
    def digits(height, width, scenes):
        found = [compose_scene(split='train', height=height, width=width, index=i) for i in range(scenes)]
        boxes = np.array([digit.box for scene in found for digit in scene.digits])
        return len(boxes) / (scenes * height * width), boxes[:, 3].mean()

    density, size = digits(128, 128, 96)
    large_density, large_size = digits(384, 512, 8)
    assert large_density == pytest.approx(density, rel=0.35)
    assert large_size == pytest.approx(size, rel=0.1)


def test_the_number_of_digits_is_as_asked():
    for index in range(20):
        scene = compose_scene(split='train', height=128, width=128, index=index, digits_per_tile=(2, 3))
        assert 2 <= len(scene.digits) <= 3


def test_written_files_hold_the_scene(tmp_path):
    mask_utils = pytest.importorskip('pycocotools.mask')
    folder = write_scenes(root=tmp_path, split='train', count=3, seed=7, **SMALL)
    coco = json.loads((folder / 'instances.json').read_text())
    assert [category['name'] for category in coco['categories']] == list(CLASSES[1:])
    for image in coco['images']:
        scene = compose_scene(split='train', index=image['id'], seed=7, **SMALL)
        picture = np.asarray(Image.open(folder / 'images' / image['file_name'])).astype(int)
        assert abs(picture - scene.image).mean() < 3, 'JPEG at quality 95 is close to the scene'
        label_file = (folder / 'labels' / image['file_name']).with_suffix('.png')
        np.testing.assert_array_equal(np.asarray(Image.open(label_file)), scene.index_map)
        annotations = [a for a in coco['annotations'] if a['image_id'] == image['id']]
        for annotation, digit in zip(annotations, scene.digits, strict=True):
            encoded = mask_utils.frPyObjects(annotation['segmentation'], *scene.index_map.shape)
            np.testing.assert_array_equal(mask_utils.decode(encoded).astype(bool), digit.mask)
            assert tuple(annotation['bbox']) == digit.box
            assert annotation['area'] == digit.mask.sum()
            assert annotation['category_id'] == digit.label + 1


def contents(folder):
    return {path.name: path.stat().st_mtime_ns for path in sorted(folder.rglob('*')) if path.is_file()}


def test_a_finished_set_is_kept_and_other_parameters_replace_it(tmp_path):
    folder = write_scenes(root=tmp_path, split='heldout', count=2, **SMALL)
    before = contents(folder)
    assert write_scenes(root=tmp_path, split='heldout', count=2, **SMALL) == folder
    assert contents(folder) == before
    write_scenes(root=tmp_path, split='heldout', count=3, **SMALL)
    assert len(list((folder / 'images').iterdir())) == 3


def test_an_interrupted_set_is_done_again(tmp_path):
    def interrupt(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_scenes(root=tmp_path, split='train', count=2, progress=interrupt, **SMALL)
    folder = tmp_path / set_name(split='train', **SMALL)
    assert not folder.exists()
    assert write_scenes(root=tmp_path, split='train', count=2, **SMALL) == folder
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    folder = tmp_path / set_name(split='train', **SMALL)
    folder.mkdir()
    (folder / 'mine.txt').write_text('precious')
    with pytest.raises(FileExistsError, match=r'holds no scenes.json'):
        write_scenes(root=tmp_path, split='train', count=1, **SMALL)
    assert (folder / 'mine.txt').read_text() == 'precious'


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        (dict(split='val'), r"split must be one of \('train', 'heldout'\), got 'val'"),
        (dict(height=15), r'height must be at least 16 px.*got 15'),
        (dict(width=0), r'width must be at least 16 px.*got 0'),
        (dict(index=-1), r'index must be 0 or more, got -1'),
        (dict(digits_per_tile=(0, 5)), r'digits_per_tile must be .* 1 <= least <= most, got \(0, 5\)'),
        (dict(digits_per_tile=(3, 2)), r'digits_per_tile must be .*got \(3, 2\)'),
        (dict(digit_size=(4, 20)), r'digit_size must be .* 16 <= least <= most, got \(4, 20\)'),
    ],
)
def test_wrong_arguments_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        compose_scene(**{**dict(split='train', index=0), **SMALL, **change})


def test_no_scenes_is_an_error(tmp_path):
    with pytest.raises(ValueError, match=r'count must be 1 or more, got 0'):
        write_scenes(root=tmp_path, split='train', count=0, **SMALL)


def test_stock_data_sets_read_them(tmp_path):
    datasets = pytest.importorskip('mmdet.datasets')
    seg_datasets = pytest.importorskip('mmseg.datasets')
    folder = write_scenes(root=tmp_path, split='train', count=3, **SMALL)
    coco = json.loads((folder / 'instances.json').read_text())
    found = datasets.CocoDataset(
        data_root=str(folder),
        ann_file='instances.json',
        data_prefix=dict(img='images/'),
        metainfo=dict(classes=CLASSES[1:]),
        pipeline=[],
    )
    assert len(found) == 3
    assert sum(len(found.get_data_info(i)['instances']) for i in range(3)) == len(coco['annotations'])
    maps = seg_datasets.BaseSegDataset(
        data_root=str(folder),
        img_suffix='.jpg',
        seg_map_suffix='.png',
        data_prefix=dict(img_path='images', seg_map_path='labels'),
        metainfo=dict(classes=CLASSES),
        pipeline=[],
    )
    assert len(maps) == 3
