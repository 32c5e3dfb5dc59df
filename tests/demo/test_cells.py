"""The photographs of blood cells in demo/cells and their masks, as they are read for a training."""

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
from make_masks import compute_mask, white_boxes
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / 'demo/cells'
MASKS = ROOT / 'demo/cell_masks'
# Two boxes of white cells are around red ones, and one shows a narrow strip of a cell.
WITHOUT_WHITE = ('image-100', 'image-104', 'image-114')


def labels(part):
    return json.loads((DATA / f'annotations/instances_{part}.json').read_text(encoding='utf-8'))


@pytest.mark.parametrize(('part', 'count'), [('train', 80), ('val', 20)])
def test_each_photograph_has_256_x_256_px_and_boxes(part, count):
    coco = labels(part)
    assert [one['name'] for one in coco['categories']] == ['red cell', 'white cell']
    files = {path.name for path in (DATA / part).iterdir()}
    assert files == {one['file_name'] for one in coco['images']} and len(files) == count
    assert {box['image_id'] for box in coco['annotations']} == {one['id'] for one in coco['images']}
    for name in files:
        with Image.open(DATA / part / name) as image:
            image.load()
            assert (image.format, image.mode, image.size) == ('JPEG', 'RGB', (256, 256)), name


@pytest.mark.parametrize('part', ['train', 'val'])
def test_each_photograph_has_a_mask_of_three_classes(part):
    assert (MASKS / 'classes.txt').read_text().split('\n') == [
        'background',
        'red cell',
        'white cell',
        '',
    ]
    names = {path.stem for path in (DATA / part).iterdir()}
    assert {path.name for path in (MASKS / part).iterdir()} == {f'{name}.png' for name in names}
    for name in names:
        with Image.open(MASKS / part / f'{name}.png') as mask:
            values = np.asarray(mask)
        assert values.shape == (256, 256) and {0, 1} <= {*np.unique(values)} <= {0, 1, 2}, name


@pytest.mark.full
def test_the_masks_are_those_that_the_program_computes():
    """But for few pixels, because decoders of JPEG may differ by one in a value."""
    different = []
    for part in ('train', 'val'):
        for path, boxes in white_boxes(part).items():
            mask = np.asarray(Image.open(MASKS / part / f'{path.stem}.png'))
            different.append(np.mean(compute_mask(cv2.imread(str(path)), boxes) != mask))
    assert len(different) == 100 and np.mean(different) < 0.005


@pytest.mark.parametrize('part', ['train', 'val'])
def test_white_cells_of_the_masks_are_in_their_boxes(part):
    """A mask of another photograph, or a swapped class, would fill other boxes."""
    for path, boxes in white_boxes(part).items():
        white = np.asarray(Image.open(MASKS / part / f'{path.stem}.png')) == 2
        outside = white.copy()
        for x1, y1, x2, y2 in boxes.round().astype(int):
            outside[y1:y2, x1:x2] = False
        assert not outside.any(), path.name
        filled = [white[y1:y2, x1:x2].mean() for x1, y1, x2, y2 in boxes.round().astype(int)]
        left_out = path.stem in WITHOUT_WHITE
        assert sum(share > 0.4 for share in filled) == len(boxes) - left_out, path.name
