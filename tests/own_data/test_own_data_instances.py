"""Instances from masks that number objects; tiles of large images; predictions that are added."""

import json

import cv2
import numpy as np
import pytest
from own_data_sets import (
    HEIGHT,
    WIDTH,
    assert_used,
    data_set,
    has,
    mask,
    outline_of,
    photo,
    read_json,
    write_coco,
)
from PIL import Image


def numbered_masks(folder):
    """Masks of two classes; an image of two objects of the first, and one of the second."""
    for kind, spans in (('cat', ((4, 20), (30, 40))), ('route 66', ((25, 60),))):
        (folder / kind).mkdir(parents=True)
        for i in range(5):
            array = np.zeros((HEIGHT, WIDTH), np.uint8)
            for number, (left, right) in enumerate(spans, 1):
                array[10:30, left + i : right] = number
            Image.fromarray(array).save(folder / f'{kind}/{i}.png')


def test_each_value_of_a_mask_is_an_object_and_each_folder_a_class(masks, table, refuse, config):
    pytest.importorskip('mmdet')
    numbers = masks.folder / 'numbers'
    numbered_masks(numbers)
    data = ['instances', masks.images, numbers]
    named = [*data, *masks.classes('cat\nroute 66\n')]
    assert has(table(*named, '--strict'), 'used 12 training objects')
    written = read_json(masks.folder / 'mine/train.json')
    assert [category['name'] for category in written['categories']] == ['cat', 'route 66']
    of_first = [(one['bbox'], one['area']) for one in written['annotations'][:3]]
    assert of_first == [([4, 10, 16, 20], 320), ([30, 10, 10, 20], 200), ([25, 10, 35, 20], 700)]
    assert config().model.roi_head.mask_head.num_classes == 2
    assert 'images without a mask' in refuse(*data)
    assert has(table('instances', masks.images, numbers / 'cat'), 'used 8 training objects')
    assert config().classes == ('object',)
    (numbers / 'cat/3.png').unlink()
    assert has(table(*named), 'used 10 training objects')
    (numbers / 'route 66/3.png').unlink()
    assert 'images without a mask' in refuse(*named)


@pytest.mark.parametrize(
    ('values', 'reason'),
    [
        ([0, 255], 'masks of 0 and 255 only'),
        ([0, 1], 'masks of one value in several pieces'),
        ([[0, 0, 0], [255, 255, 255]], 'masks of 0 and 255 only'),
    ],
)
def test_class_maps_are_no_instances(masks, refuse, values, reason):
    pytest.importorskip('mmdet')
    masks.fill(values)
    assert reason in refuse('instances', masks.images, masks.masks)


def test_polygons_of_yolo_are_instances(yolo, table, refuse):
    for file in yolo.folder.glob('labels/*/*.txt'):
        file.write_text('1 0.25 0.25 0.75 0.25 0.75 0.5\n')
    assert has(table('instances', yolo.folder), 'used 5 training objects')
    assert 'instances takes COCO JSON' in refuse('instances', yolo.folder / 'images')


@pytest.mark.parametrize('form', ['coco', 'instances'])
def test_large_images_with_small_objects_are_cut_into_tiles(tmp_path, table, config, form):
    """Boxes in tiles have the pixels of the boxes in the images."""
    pytest.importorskip('mmdet')
    from pycocotools import mask as coco_mask

    rng = np.random.default_rng(0)
    images, annotations = [], []
    (tmp_path / 'a').mkdir()
    for i in range(3):
        array = rng.integers(0, 60, (110, 150, 3), np.uint8).repeat(10, 0).repeat(10, 1)
        images.append(dict(id=i, file_name=f'a/{i}.png'))
        for left, top in ((30, 40), (700, 700), (632, 300)):
            array[top : top + 20, left : left + 20] = 255
            box = [left, top, 20, 20]
            one = dict(id=len(annotations), image_id=i, category_id=1, bbox=box)
            annotations.append(dict(one, segmentation=outline_of(box)))
        Image.fromarray(array).save(tmp_path / f'a/{i}.png', compress_level=1)
    write_coco(tmp_path / 'all.json', images, annotations, [dict(id=1, name='square')])
    printed = table(form, tmp_path / 'all.json', tmp_path)
    assert 'side of 20 px in the images, 9 px if shrunk to 640 px: the config trains on' in printed
    assert '--scale native --tile-size 640 --overlap 64 --max-pixels 409600' in printed
    assert config().scale == (640, 640)
    train = read_json(tmp_path / 'mine/train.json')
    # (700, 700) is whole in one tile, (30, 40) too, (632, 300) whole in one, cut in another.
    assert len(train['annotations']) == 2 * 4
    files = {image['id']: image['file_name'] for image in train['images']}
    for one in train['annotations']:
        tile = cv2.imread(str(tmp_path / 'mine/tiles/train' / files[one['image_id']]))
        assert tile.shape[:2] == (640, 640)
        x, y, width, height = one['bbox']
        assert one['iscrowd'] == (width * height < 200)
        bright = tile[..., 0] > 150
        assert bright[y : y + height, x : x + width].all()
        if form == 'instances':
            outline = one['segmentation']
            if isinstance(outline, list):
                outline = coco_mask.merge(coco_mask.frPyObjects(outline, 640, 640))
            found = coco_mask.decode(outline).astype(bool)
            assert found.sum() == width * height and bright[found].all()


@pytest.mark.full
def test_predictions_are_added_to_the_training(coco, table, refuse, config, monkeypatch):
    """Paths of predicted images start from the working directory, or are absolute."""
    monkeypatch.chdir(coco.folder)
    images, found = [], []
    for i, place in enumerate(['more/a0.png', str(coco.folder / 'more/a1.png')], 1):
        photo(coco.folder / place)
        images.append(dict(id=i, file_name=place, width=WIDTH, height=HEIGHT))
        found.append(dict(image_id=i, category_id=0, bbox=[1, 2, 30, 40], score=0.9))
    categories = [dict(id=0, name='dog'), dict(id=1, name='cat')]
    labels = coco.folder / 'labels'
    labels.mkdir()
    (labels / 'images.json').write_text(json.dumps(dict(images=images, categories=categories)))
    (labels / 'predictions.json').write_text(json.dumps(found))
    arguments = [*coco.arguments(), '--add', 'labels']
    assert_used(table(*arguments), 10, 2)
    written = coco.read('train')
    names = {category['id']: category['name'] for category in written['categories']}
    last = written['annotations'][-1]
    assert (names[last['category_id']], last['bbox']) == ('dog', [1, 2, 30, 40])
    data = data_set(config(), 'train')
    assert all(cv2.imread(data.get_data_info(i)['img_path']) is not None for i in range(len(data)))
    (labels / 'predictions.json').write_text('[]')
    assert 'labels has no predictions' in refuse(*arguments)


# -- the sheet of images with their labels
# --------------------------------------------------------------------------------------------------


def sheet(folder):
    """The sheet beside the config, RGB. An image of 64 x 48 px has 480 x 360 px in it, from 8, 8"""
    return np.asarray(Image.open(folder / 'mine/sheet.jpg')).astype(int)


def assert_near(pixel, colour):
    assert np.abs(pixel - np.array(colour)).max() < 40, (pixel, colour)


CYAN = np.array([0, 204, 255])  # of the second class, and of the second object


@pytest.mark.parametrize('form', ['coco', 'instances'])
def test_the_sheet_shows_boxes_and_outlines(coco, table, form):
    for image in coco.images:
        mask(coco.photos / image['file_name'], [[0, 0, 0]])
    for one in coco.annotations:
        one['bbox'] = [16, 16, 32, 16] if one['id'] % 2 else [50, 8, 8, 8]
    coco.add_outlines()
    printed = table(*coco.arguments(form))
    assert any(line.endswith(f'{coco.folder}/mine/sheet.jpg') for line in printed.splitlines())
    found = sheet(coco.folder)
    assert_near(found[8 + 200, 8 + 121], CYAN)  # its left side, at 16 / 64 of the width
    inside = CYAN * 0.6 if form == 'instances' else [0, 0, 0]
    assert_near(found[8 + 200, 8 + 240], inside)
    assert_near(found[8 + 300, 8 + 240], [0, 0, 0])
    # Eight of training in two rows, two of validation.
    assert found.shape[1] == 8 + 4 * 488 and found.shape[0] == 8 + 3 * (360 + 18 + 8)
