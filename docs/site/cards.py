"""The picture of a model's card: two predictions on an example image, and accuracy against size.

Lengths are px of the shown picture, from its upper left corner.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from example_images import Example, examples
from hero import Segmentor, show_classes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from sheets import Sheet, read_card

from cpvt_backbones.analysis.matching import match
from cpvt_backbones.inference import Inferencer
from cpvt_backbones.toolboxes import read_config
from cpvt_backbones.weights import find_shipped

WIDTH, GAP, LEFT = 480, 20, 18
TALLEST = 3 / 4  # height by width of an image; all cards have room for it


@cache
def example_of(name: str) -> Example:
    """The example image of a model."""
    (example,) = (one for one in examples() if one.model == name)
    return example


@cache
def predict(name: str, width: int) -> Any:
    """What the model finds on its example at ``width`` px; boxes have scores of at least 0.5."""
    shipped = find_shipped(name)
    cfg = read_config(shipped.config_file)
    inferencer = Inferencer(cfg=cfg, checkpoint=name, long_side=width)
    image = np.ascontiguousarray(example_of(name).image[..., ::-1])
    found, _ = inferencer(image, score_thr=0.5)
    return found


def boxes(sheet: Sheet, name: str, width: int, x: float, base: float, shown: float) -> str:
    """Draw the boxes; returns how many of the objects have one."""
    example, found = example_of(name), predict(name, width)
    top = sheet.show(example.image, x, base, shown)
    height, across = example.image.shape[:2]
    zoom = shown / across
    palette = np.array(find_shipped(name).dataset_meta['palette']) / 255
    for box, label in zip(found['boxes'], found['labels'], strict=True):
        x1, y1, x2, y2 = np.clip(box, 0, (across, height) * 2) * zoom
        style = dict(fill=False, edgecolor=palette[label], linewidth=1.3)
        sheet.axis.add_patch(Rectangle((x + x1, top + y1), x2 - x1, y2 - y1, **style))
    met = match(found['boxes'], found['labels'], example.boxes, example.labels)
    return f'{(met >= 0).sum()} of {len(example.boxes)} found'


def pixels(sheet: Sheet, name: str, width: int, x: float, base: float, shown: float) -> str:
    """Draw the classes; their names stand in the picture, so that it needs no text."""
    example, found = example_of(name), predict(name, width)
    show_classes(sheet, example.image, found['seg_map'], Segmentor(), x, base, shown)
    return ''


def word(sheet: Sheet, name: str, width: int, x: float, base: float, shown: float) -> str:
    """Draw the photograph; returns its class and score."""
    sheet.show(example_of(name).image, x, base, shown)
    found = predict(name, width)
    return f'{found["class"]}, score {found["score"]:.2f}'


Draw = Callable[[Sheet, str, int, float, float, float], str]
# How to draw a prediction, the name of the image, and that of the test images.
KINDS: dict[str, tuple[Draw, str, str]] = {
    'Top-1': (word, 'A photograph', 'photographs'),
    'mIoU': (pixels, 'A street', 'real streets'),
    'Box AP': (boxes, 'A drawn blood smear', 'real smears'),
}


def draw(name: str, theme: str) -> Figure:
    """Predictions at one and two times the test scale, to scale, and the curve of the card."""
    card = read_card(name)
    panel, title, tested = KINDS[card.metric]
    size = find_shipped(name).sizes
    first = next(score.width for score in card.scores if score.width >= size['side'])
    height, across = example_of(name).image.shape[:2]
    unit = (WIDTH - 2 * LEFT - GAP) / 3
    base = 54 + 2 * unit * TALLEST
    sheet = Sheet(WIDTH, round(base) + 240, theme)
    sheet.write(LEFT, 36, f'{title} at two sizes', 17, weight='bold')
    x = float(LEFT)
    for width, shown in ((first, unit), (2 * first, 2 * unit)):
        text = panel(sheet, name, width, x, base, shown)
        middle = x + shown / 2
        pixel = f'{width} x {round(width * height / across)} px'
        sheet.write(middle, base + 21, pixel, 16, ha='center', weight='bold')
        sheet.write(middle, base + 41, text, 15, ha='center')
        x += shown + GAP
    title = f'{card.metric} (%) of {card.images:,} {tested}, by width in px'
    sheet.write(LEFT, base + 84, title, 16, weight='bold')
    spans = dict(left=46, right=WIDTH - LEFT, top=base + 98, bottom=base + 200)
    sheet.curve(card, size=15, **spans)
    return sheet.figure
