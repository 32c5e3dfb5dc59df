"""The photographs of blood cells in demo/cells, as they are read for a training."""

import json
import re
from pathlib import Path

import cv2
import numpy as np
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


def test_every_fifth_photograph_by_number_is_for_validation():
    names = {
        part: [one['file_name'] for one in labels(part)['images']] for part in ('train', 'val')
    }
    ordered = sorted(names['train'] + names['val'], key=lambda name: int(name[6:-4]))
    assert ordered[4::5] == names['val']


def test_the_guide_has_what_make_config_prints(call, capsys, tmp_path, monkeypatch):
    """Nothing is noted, skipped, altered or refused."""
    monkeypatch.chdir(tmp_path)
    call('make_config', f'{DATA}/', '--out', 'mine/cells.py')
    printed = capsys.readouterr().out.splitlines()
    assert not [line for line in printed if re.match('note|skipped|altered|refused', line)]
    page = (ROOT / 'docs/own_data.md').read_text(encoding='utf-8')
    section = page.partition('## Try it on 100 photographs')[2]
    (*lines, last) = re.search(r'^```text\n(.+?)^```', section, re.DOTALL | re.M)[1].splitlines()
    assert len(lines) > 8
    # They are in this order, and others are between them.
    order = iter(printed)
    assert all(line in order for line in lines)
    assert any(line.startswith(last) for line in order)
    (length,) = re.findall(r'^max_iters = (\d+)$', Path('mine/cells.py').read_text(), re.M)
    assert f'work_dirs/cells/iter_{length}.pth' in section


def pixels(part):
    files = (DATA / part).iterdir()
    return {file.name: np.asarray(Image.open(file).convert('L')) for file in files}


def test_three_validation_photographs_share_a_white_cell_with_a_training_one():
    """At another place of the image, so that make_config.py does not find them alike."""
    train, val, coco = pixels('train'), pixels('val'), labels('val')
    names = {one['id']: one['file_name'] for one in coco['images']}
    shared = set()
    for box in coco['annotations']:
        if box['category_id'] != 2:
            continue
        x, y, width, height = (int(value) for value in box['bbox'])
        cell = val[names[box['image_id']]][y : y + height, x : x + width]
        for name, image in train.items():
            if cv2.matchTemplate(image, cell, cv2.TM_CCOEFF_NORMED).max() > 0.95:
                shared.add((names[box['image_id']][:-4], name[:-4]))
    text = (DATA / 'README.md').read_text(encoding='utf-8')
    assert shared == {*re.findall(r'`(image-\d+)` and `(image-\d+)`', text)} and len(shared) == 3
