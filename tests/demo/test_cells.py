"""The photographs of blood cells in demo/cells, as they are read for a training."""

import json
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / 'demo/cells'


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
