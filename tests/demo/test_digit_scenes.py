"""Digit scenes: labels match the image at any size, the splits share nothing, and the files hold
the scene.
"""

import json
import sys

import numpy as np
import pytest
from digit_scenes import (
    CLASSES,
    DIGITS_PER_TILE,
    FIRST_HELDOUT_DIGIT,
    MIN_SIDE,
    PHOTOS,
    compose_scene,
    main,
    set_name,
    write_scenes,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

SMALL = dict(height=40, width=56)
sides = st.integers(MIN_SIDE, 160)


@settings(max_examples=40, deadline=None)
@given(
    split=st.sampled_from(['train', 'heldout']), height=sides, width=sides, seed=st.integers(0, 99)
)
def test_boxes_masks_and_seg_map_agree(split, height, width, seed):
    scene = compose_scene(split=split, height=height, width=width, index=3, seed=seed)
    assert scene.image.shape == (height, width, 3) and scene.image.dtype == np.uint8
    assert len(scene.digits) >= 1
    expected = np.zeros((height, width), np.uint8)
    for digit in scene.digits:
        rows, columns = np.nonzero(digit.mask)
        tight = (
            columns.min(),
            rows.min(),
            columns.max() - columns.min() + 1,
            rows.max() - rows.min() + 1,
        )
        assert digit.box == tight
        assert not expected[digit.mask].any(), 'masks overlap'
        expected[digit.mask] = digit.label + 1
    np.testing.assert_array_equal(scene.seg_map, expected)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 99), index=st.integers(0, 99))
def test_splits_share_no_digit_and_no_photograph(seed, index):
    train, heldout = (
        compose_scene(split=split, index=index, seed=seed, **SMALL)
        for split in ('train', 'heldout')
    )
    assert all(digit.source < FIRST_HELDOUT_DIGIT for digit in train.digits)
    assert all(digit.source >= FIRST_HELDOUT_DIGIT for digit in heldout.digits)
    assert not set(PHOTOS['train']) & set(PHOTOS['heldout'])
    assert train.photo in {name for _, name in PHOTOS['train']}
    assert heldout.photo in {name for _, name in PHOTOS['heldout']}


def test_scene_depends_on_index_and_seed_only():
    first = compose_scene(split='train', index=1, seed=5, **SMALL)
    again = compose_scene(split='train', index=1, seed=5, **SMALL)
    np.testing.assert_array_equal(first.image, again.image)
    np.testing.assert_array_equal(first.seg_map, again.seg_map)
    for other in (dict(index=2, seed=5), dict(index=1, seed=6)):
        assert not np.array_equal(first.image, compose_scene(split='train', **other, **SMALL).image)


@pytest.mark.parametrize('split', ['train', 'heldout'])
def test_digits_contrast_with_their_surroundings(split):
    for index in range(30):
        scene = compose_scene(split=split, height=128, width=128, index=index)
        brightness = scene.image @ np.array([0.299, 0.587, 0.114])
        for digit in scene.digits:
            x, y, w, h = digit.box
            window = np.zeros_like(digit.mask)
            window[y : y + h, x : x + w] = True
            around = window & (scene.seg_map == 0)
            if around.sum() >= 20:
                assert abs(brightness[digit.mask].mean() - np.median(brightness[around])) > 30


def test_larger_scenes_hold_more_digits_of_the_same_size():
    def digits(height, width, scenes):
        found = [
            compose_scene(split='train', height=height, width=width, index=i) for i in range(scenes)
        ]
        boxes = np.array([digit.box for scene in found for digit in scene.digits])
        return len(boxes) / (scenes * height * width), boxes[:, 3].mean()

    density, size = digits(128, 128, 96)
    large_density, large_size = digits(384, 512, 8)
    assert large_density == pytest.approx(density, rel=0.35)
    assert large_size == pytest.approx(size, rel=0.1)


def test_number_of_digits_on_one_tile():
    counts = {
        len(compose_scene(split='train', height=128, width=128, index=index).digits)
        for index in range(40)
    }
    assert counts == set(range(DIGITS_PER_TILE[0], DIGITS_PER_TILE[1] + 1))


def test_written_files_hold_the_scene(tmp_path):
    mask_utils = pytest.importorskip('pycocotools.mask')
    folder = write_scenes(root=tmp_path, split='train', count=3, seed=7, **SMALL)
    coco = json.loads((folder / 'instances.json').read_text())
    assert [category['name'] for category in coco['categories']] == list(CLASSES[1:])
    for image in coco['images']:
        scene = compose_scene(split='train', index=image['id'], seed=7, **SMALL)
        written = np.asarray(Image.open(folder / 'images' / image['file_name'])).astype(int)
        assert abs(written - scene.image).mean() < 3, 'JPEG at quality 95 is close to the scene'
        label_file = (folder / 'labels' / image['file_name']).with_suffix('.png')
        np.testing.assert_array_equal(np.asarray(Image.open(label_file)), scene.seg_map)
        annotations = [a for a in coco['annotations'] if a['image_id'] == image['id']]
        for annotation, digit in zip(annotations, scene.digits, strict=True):
            encoded = mask_utils.frPyObjects(annotation['segmentation'], *scene.seg_map.shape)
            np.testing.assert_array_equal(mask_utils.decode(encoded).astype(bool), digit.mask)
            assert tuple(annotation['bbox']) == digit.box
            assert annotation['area'] == digit.mask.sum()
            assert annotation['category_id'] == digit.label + 1


def contents(folder):
    return {
        path.name: path.stat().st_mtime_ns for path in sorted(folder.rglob('*')) if path.is_file()
    }


def test_finished_set_is_kept_and_other_parameters_replace_it(tmp_path):
    folder = write_scenes(root=tmp_path, split='heldout', count=2, **SMALL)
    before = contents(folder)
    assert write_scenes(root=tmp_path, split='heldout', count=2, **SMALL) == folder
    assert contents(folder) == before
    write_scenes(root=tmp_path, split='heldout', count=3, **SMALL)
    assert len(list((folder / 'images').iterdir())) == 3


def test_interrupted_set_is_written_again(tmp_path):
    def interrupt(indices):
        yield indices[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_scenes(root=tmp_path, split='train', count=2, progress=interrupt, **SMALL)
    folder = tmp_path / set_name(split='train', **SMALL)
    assert not folder.exists()
    assert write_scenes(root=tmp_path, split='train', count=2, **SMALL) == folder
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


def test_folder_with_other_content_is_left_alone(tmp_path):
    folder = tmp_path / set_name(split='train', **SMALL)
    folder.mkdir()
    (folder / 'mine.txt').write_text('precious')
    with pytest.raises(FileExistsError, match=r'has no scenes.json'):
        write_scenes(root=tmp_path, split='train', count=1, **SMALL)
    assert (folder / 'mine.txt').read_text() == 'precious'


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        (dict(split='val'), r"split must be one of \['heldout', 'train'\], got 'val'"),
        (dict(height=15), r'height must be an integer >= 16, got 15'),
        (dict(width=0), r'width must be an integer >= 16, got 0'),
        (dict(index=-1), r'index must be an integer >= 0, got -1'),
    ],
)
def test_errors_name_the_argument(change, message):
    with pytest.raises(ValueError, match=message):
        compose_scene(**{**dict(split='train', index=0), **SMALL, **change})


def test_set_without_scenes_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r'count must be an integer >= 1, got 0'):
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
    assert sum(len(found.get_data_info(i)['instances']) for i in range(3)) == len(
        coco['annotations']
    )
    maps = seg_datasets.BaseSegDataset(
        data_root=str(folder),
        img_suffix='.jpg',
        seg_map_suffix='.png',
        data_prefix=dict(img_path='images', seg_map_path='labels'),
        metainfo=dict(classes=CLASSES),
        pipeline=[],
    )
    assert len(maps) == 3


def test_command_line_writes_sets_height_first(tmp_path, monkeypatch, capsys):
    def call(*arguments):
        monkeypatch.setattr(sys, 'argv', ['digit_scenes.py', '--root', str(tmp_path), *arguments])
        main()

    call('--train', '30x40:2', '--heldout', '40x30:1', '20:1')
    assert {path.name for path in tmp_path.iterdir()} == {
        'train_30x40',
        'heldout_40x30',
        'heldout_20x20',
    }
    assert Image.open(tmp_path / 'train_30x40/images/000000.jpg').size == (40, 30)
    for wrong, message in (
        ('40', "HEIGHTxWIDTH:COUNT is expected, such as 640x1024:8, got '40'"),
        ('40x:2', 'HEIGHTxWIDTH or SIDE in px is expected'),
        ('40:0', "an integer of at least 1 is expected, got '0'"),
    ):
        with pytest.raises(SystemExit):
            call('--train', wrong)
        assert message in capsys.readouterr().err
