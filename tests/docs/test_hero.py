"""Pictures of README, first page and cards: what they say is what the models' cards say."""

import re
import sys
from importlib import import_module
from math import sqrt
from pathlib import Path

import numpy as np
import pytest
from mmengine.config import Config
from PIL import ExifTags, Image

from cpvt_backbones.inference import GoodSizes
from cpvt_backbones.weights import find_shipped, shipped_weights

pytest.importorskip('mkdocs')  # of the extra `docs`
ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / 'docs/site'))
hero, sheets, site = (import_module(name) for name in ('hero', 'sheets', 'hooks'))


@pytest.mark.parametrize('name', shipped_weights())
def test_the_curve_is_that_of_the_card(name):
    card = sheets.read_card(name)
    text = (sheets.CARDS / f'{name}.md').read_text()
    assert len(card.scores) >= 4
    for score in card.scores:
        row = f'| {score.width} x {score.height} | {score.percent:.4g} |'
        assert row in text
    assert f'on {card.images} images' in text


@pytest.mark.parametrize('name', shipped_weights())
def test_the_advised_widths_are_the_good_sizes(name):
    card, sizes = sheets.read_card(name), GoodSizes.of(name)
    good = [score for score in card.scores if score.is_good]
    sides = [sqrt(score.width * score.height) for score in (good[0], good[-1])]
    assert sides == pytest.approx([sizes.low * sizes.side, sizes.high * sizes.side], rel=0.01)
    assert len(good) < len(card.scores)


def test_only_the_last_view_is_of_a_size_that_is_not_advised():
    sizes = GoodSizes.of(hero.SEGMENTOR)
    views = (hero.LARGE, hero.TALL, hero.WIDE, hero.MIDDLE, hero.SMALL)
    sides = [sqrt(view.size[0] * view.size[1]) / sizes.side for view in views]
    assert [sizes.low <= side <= sizes.high for side in sides] == [True] * 4 + [False]


def test_a_view_keeps_the_proportions_of_its_part():
    for view in (hero.LARGE, hero.TALL, hero.WIDE, hero.MIDDLE, hero.SMALL):
        x1, y1, x2, y2 = view.part
        height = view.size[0] * (y2 - y1) / (x2 - x1)
        assert view.size[1] == pytest.approx(height, abs=1)


@pytest.mark.parametrize('name', ['sizes', 'sizes_dark', 'sizes_narrow', 'sizes_narrow_dark'])
def test_the_picture_has_the_curves_of_the_cards(name):
    """`make pictures` draws it again."""
    with Image.open(ROOT / f'docs/figures/{name}.webp') as image:
        assert image.getexif()[ExifTags.Base.ImageHistory] == hero.scores()


@pytest.mark.parametrize('name', shipped_weights())
def test_the_widths_of_the_training_are_those_of_the_card(name):
    low, high = hero.TRAINED[name]
    first = ' '.join((sheets.CARDS / f'{name}.md').read_text().split('\n\n')[1].split())
    if name == hero.SEGMENTOR:
        test_width = min(sheets.read_card(name).good)
        assert first.endswith('at 0.5 to 2 times the size.')
        assert (low, high) == (test_width / 2, 2 * test_width)
    else:
        assert re.search(rf'trained at {low}( x \d+)? to {high}( x \d+)? px', first)


def test_the_colours_of_the_streets_are_those_of_their_recipe():
    camvid = Config.fromfile(ROOT / 'configs/_base_/datasets/camvid.py')
    meta = find_shipped(hero.SEGMENTOR).dataset_meta
    assert [*map(tuple, meta['palette'])] == [*map(tuple, camvid.metainfo['palette'])]
    assert len({*map(tuple, meta['palette'])}) == len(meta['classes'])


def test_cards_stand_beside_each_other_in_one_size():
    sizes = [Image.open(path).size for path in (ROOT / 'docs/figures').glob('card_*.webp')]
    assert len(sizes) == 2 * len(shipped_weights()) and len({*sizes}) == 1


def test_the_name_of_a_class_stands_within_its_pixels():
    classes = np.zeros((60, 80), int)
    classes[10:50, 20:30] = 3
    classes[40:44, 60:62] = 3
    x, y, radius = hero.spots(classes)[3]
    assert classes[int(y), int(x)] == 3 and 20 <= x < 30 and 4 <= radius <= 6


def test_a_picture_for_both_themes_has_a_file_for_each():
    page = (ROOT / 'docs/site/index.md').read_text()
    pictures = [match[0] for match in site.PICTURE.finditer(page)]
    for picture, files in zip(pictures, (4, 2), strict=True):  # the first has two for phones
        both = site.both_themes(picture)
        assert 'prefers-color-scheme' not in both
        names = [name.partition('#') for name in site.IMAGE.findall(both)]
        assert [theme for _, _, theme in names if theme] == ['only-light', 'only-dark']
        assert len({name for name, _, _ in names}) == files
        sizes = {name: Image.open(ROOT / name).size for name, _, _ in names}
        assert all(sizes[name] == sizes[site.dark(name)] for name in sizes)
