"""The picture of cells found before and after a training, and the counts beside it."""

import re
import sys
from importlib import import_module
from pathlib import Path

import pandas as pd
import pytest
from PIL import ExifTags, Image

from cpvt_backbones.inference import Inferencer
from cpvt_backbones.toolboxes import read_config
from cpvt_backbones.weights import find_shipped

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / 'docs/site'))
picture = import_module('before_after')
COLUMNS = ['class', *picture.CORNERS]


def test_a_cell_is_found_once_by_a_box_of_its_class():
    truth = pd.DataFrame(
        [('red cell', 0, 0, 10, 10), ('white cell', 50, 50, 90, 90)], columns=COLUMNS
    )
    boxes = pd.DataFrame(
        [
            ('red cell', 0, 0, 10, 9),  # found
            ('red cell', 0, 0, 10, 10),  # a second box on it
            ('red cell', 50, 50, 90, 90),  # of another class
            ('white cell', 50, 50, 70, 88),  # an IoU below 0.5
            ('white cell', 50, 50, 72, 88),  # above
            ('platelet', 0, 0, 10, 10),
        ],
        columns=COLUMNS,
    )
    assert picture.meets_a_cell(boxes, truth).tolist() == [True, False, False, False, True, False]


def test_the_guide_has_the_counts_of_the_boxes():
    page = (ROOT / 'docs/own_data.md').read_text(encoding='utf-8')
    models = {title: name for name, title in picture.MODELS.items()}
    rows = re.findall(r'^\| ([a-z ]+) \| (0\.\d) or more \| (.+) \|$', page, re.M)
    assert len(rows) == 4
    for title, score, cells in rows:
        red, white, all_red, all_white, extra = picture.count(
            models[title], [*picture.read_truth()], float(score)
        )
        assert cells == f'{red} of {all_red} | {white} of {all_white} | {extra}'


def test_the_first_page_has_the_white_cells_of_all_images():
    page = ' '.join((ROOT / 'docs/site/index.md').read_text(encoding='utf-8').split())
    images = [*picture.read_truth()]
    before, after = (picture.count(one, images, picture.DRAWN) for one in picture.MODELS)
    assert before.white == 0 and f'finds none of the {before.all_white} white cells' in page
    assert f'from `--weights`, it finds {after.white} of them' in page
    assert after.red > before.red and after.extra > before.extra


def test_the_caption_says_what_the_picture_shows():
    """The shipped detector misses the white cells and most red ones; the trained one does not."""
    images = [*picture.read_truth()][: picture.SHOWN]
    before, after = (picture.count(model, images, picture.DRAWN) for model in picture.MODELS)
    assert (before.white, after.white, after.all_white) == (0, 2, 2)
    assert before.red < before.all_red / 2 < after.red
    for name in ('cells', 'cells_narrow', 'cells_dark', 'cells_narrow_dark'):
        with Image.open(ROOT / f'docs/figures/{name}.webp') as image:
            assert image.getexif()[ExifTags.Base.ImageHistory] == picture.version()


def test_the_boxes_are_those_that_the_shipped_detector_finds():
    """On one image; scores near the least differ a little between processors."""
    pytest.importorskip('mmdet')
    shipped = find_shipped(picture.DETECTOR)
    inferencer = Inferencer(cfg=read_config(shipped.config_file), checkpoint=picture.DETECTOR)
    image, *_ = picture.read_truth()
    found, _ = inferencer(str(picture.CELLS / 'val' / image), score_thr=0.25)
    rows = [
        (picture.NAMES[label], *box)
        for label, box in zip(found['classes'], found['boxes'], strict=True)
    ]
    table = pd.read_csv(picture.FOUND)
    kept = table[(table['model'] == 'shipped') & (table['image'] == image)]
    assert len(kept) > 10
    # Each has a box that it would be found by, if the detector's boxes were the truth.
    assert picture.meets_a_cell(kept, pd.DataFrame(rows, columns=COLUMNS)).all()
