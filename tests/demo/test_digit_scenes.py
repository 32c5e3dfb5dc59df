"""Digit scenes: labels match the image at any size, the splits share nothing, and the files hold
the scene.
"""

import json

import numpy as np
import pytest
from digit_scenes import (
    CLASSES,
    FIRST_HELDOUT_DIGIT,
    MIN_SIDE,
    PHOTOS,
    compose_scene,
    set_name,
    write_scenes,
)
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

SMALL = dict(height=40, width=56)
sides = st.integers(MIN_SIDE, 160)
splits = st.sampled_from(['train', 'heldout'])


@given(split=splits, height=sides, width=sides, seed=st.integers(0, 99))
def test_boxes_masks_and_class_map_agree(split, height, width, seed):
    scene = compose_scene(split=split, height=height, width=width, index=3, seed=seed)
    assert scene.image.shape == (height, width, 3) and scene.image.dtype == np.uint8
    assert len(scene.digits) >= 1
    expected = np.zeros((height, width), np.uint8)
    for digit in scene.digits:
        rows, columns = np.nonzero(digit.mask)
        left, top = columns.min(), rows.min()
        assert digit.box == (left, top, columns.max() - left + 1, rows.max() - top + 1)
        assert not expected[digit.mask].any(), 'masks overlap'
        expected[digit.mask] = digit.label + 1
        assert (digit.source < FIRST_HELDOUT_DIGIT) == (split == 'train')
    np.testing.assert_array_equal(scene.seg_map, expected)
    assert scene.photo in {name for _, name in PHOTOS[split]}
    assert not set(PHOTOS['train']) & set(PHOTOS['heldout'])


def test_written_files_hold_the_scene_and_the_toolboxes_read_them(tmp_path):
    mask_utils = pytest.importorskip('pycocotools.mask')
    datasets = pytest.importorskip('mmdet.datasets')
    seg_datasets = pytest.importorskip('mmseg.datasets')
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

    common = dict(data_root=str(folder), pipeline=[])
    metainfo, images = dict(classes=CLASSES[1:]), dict(img='images/')
    found = datasets.CocoDataset(
        ann_file='instances.json', data_prefix=images, metainfo=metainfo, **common
    )
    boxes = sum(len(found.get_data_info(index)['instances']) for index in range(3))
    assert len(found) == 3 and boxes == len(coco['annotations'])
    prefix = dict(img_path='images', seg_map_path='labels')
    maps = seg_datasets.BaseSegDataset(data_prefix=prefix, metainfo=dict(classes=CLASSES), **common)
    assert len(maps) == 3


def test_a_set_is_kept_replaced_or_written_again_but_no_folder_of_others(tmp_path):
    folder = write_scenes(root=tmp_path, split='heldout', count=2, **SMALL)
    files = [path for path in folder.rglob('*') if path.is_file()]
    before = [path.stat().st_mtime_ns for path in files]
    assert write_scenes(root=tmp_path, split='heldout', count=2, **SMALL) == folder
    assert [path.stat().st_mtime_ns for path in files] == before
    write_scenes(root=tmp_path, split='heldout', count=3, **SMALL)
    assert len(list((folder / 'images').iterdir())) == 3

    def interrupt(indices):
        yield indices[0]
        raise KeyboardInterrupt

    folder = tmp_path / set_name(split='train', **SMALL)
    with pytest.raises(KeyboardInterrupt):
        write_scenes(root=tmp_path, split='train', count=2, progress=interrupt, **SMALL)
    assert not folder.exists()
    assert write_scenes(root=tmp_path, split='train', count=2, **SMALL) == folder
    assert len(list(tmp_path.iterdir())) == 2, 'nothing is left of the interrupted one'

    mine = tmp_path / 'other' / folder.name
    mine.mkdir(parents=True)
    (mine / 'mine.txt').write_text('precious')
    with pytest.raises(FileExistsError, match=r'has no scenes.json'):
        write_scenes(root=mine.parent, split='train', count=1, **SMALL)
    assert (mine / 'mine.txt').read_text() == 'precious'
