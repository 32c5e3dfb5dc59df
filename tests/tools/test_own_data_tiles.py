"""Images whose smallest objects would vanish at the scale of training are cut into tiles."""

import json

import cv2
import numpy as np
import pytest


@pytest.fixture
def made(call, capsys):
    """Function that makes ``mine.py``; returns what is printed."""

    def made(*data, options=()):
        call('make_config', *data, '--out', 'mine.py', *options)
        return ' '.join(capsys.readouterr().out.split())

    return made


def test_small_objects_of_few_large_images(made, tmp_path, monkeypatch):
    """Objects of 20 px that have 4 px when their image has the size of the median image."""
    pytest.importorskip('mmdet')
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'images').mkdir()
    images, boxes = [], []
    for i in range(9):
        size = (1500, 900) if i >= 6 else (300, 200)
        pixels = np.random.default_rng(i).integers(0, 255, (*size[::-1], 3)).astype(np.uint8)
        cv2.imwrite(str(tmp_path / f'images/{i}.png'), pixels)
        images.append(dict(id=i, file_name=f'{i}.png', width=size[0], height=size[1]))
        boxes.append(dict(id=i, image_id=i, category_id=1, bbox=[30, 40, 20, 20]))
    content = dict(images=images, annotations=boxes, categories=[dict(id=1, name='dot')])
    (tmp_path / 'all.json').write_text(json.dumps(content))
    printed = made('coco', 'all.json', 'images')
    assert 'objects of the smallest class: 20 px, 4 px in images of 300 px' in printed
    assert '--scale native --tile-size 640' in printed
