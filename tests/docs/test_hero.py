"""First picture of README and site: what it says is what the model's card says."""

import sys
from importlib import import_module
from math import sqrt
from pathlib import Path

import numpy as np
import pytest
from app_views import count_found, find_hits
from example_images import DETECTOR, draw_smear

from cpvt_backbones.inference import GoodSizes

sys.path.append(str(Path(__file__).parents[2] / 'docs/site'))
hero = import_module('hero')


def test_the_curve_is_that_of_the_card():
    card = hero.read_card(DETECTOR)
    text = (hero.CARDS / f'{DETECTOR}.md').read_text()
    for score in card.scores:
        row = f'| {score.width} x {score.width * 3 // 4} | {score.percent / 100:.4g} |'
        assert row in text
    assert f'on {card.images} images' in text


def test_the_advised_widths_are_the_good_sizes():
    card, sizes = hero.read_card(DETECTOR), GoodSizes.of(DETECTOR)
    sides = [width * sqrt(3 / 4) for width in (min(card.good), max(card.good))]
    assert sides == pytest.approx([sizes.low * sizes.side, sizes.high * sizes.side], rel=0.01)
    assert len(card.good) < len(card.scores)


def test_a_cell_without_a_box_of_its_class_is_missed():
    smear = draw_smear()
    labels = np.array(smear.labels)
    labels[3] = 1 - labels[3]
    boxes = np.array(smear.boxes)
    boxes[5] += 60  # px
    found = dict(boxes=boxes.tolist(), labels=labels.tolist())
    hits = find_hits(found, smear)
    assert [place for place, hit in enumerate(hits.tolist()) if not hit] == [3, 5]
    assert count_found(found, smear) == len(hits) - 2
