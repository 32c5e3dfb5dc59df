"""The picture of a model's card: predictions on an example at two sizes, and accuracy by size."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from example_images import Example, examples
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from cpvt_backbones.analysis.matching import match
from cpvt_backbones.inference import Inferencer
from cpvt_backbones.toolboxes import read_config
from cpvt_backbones.weights import find_shipped

CARDS = Path(__file__).parents[2] / 'cpvt_backbones/weights'
METRICS = {'accuracy/top1': 'Top-1', 'mIoU': 'mIoU', 'coco/bbox_mAP': 'Box AP'}
# Of each metric: the image, and the test images.
TITLES = {
    'Top-1': ('One photograph at two sizes', 'photographs'),
    'mIoU': ('A street at two sizes', 'real streets'),
    'Box AP': ('Cells of another data set at two sizes', 'smears of BCCD'),
}
NAMES = {'RBC': 'red cell', 'WBC': 'white cell', 'Platelets': 'platelet'}
CELL_COLOURS = {'red cell': '#ffd447', 'white cell': '#22d3ee', 'platelet': '#e9b8ff'}
SCORE = 0.5  # the least of a box in a picture
DARK = '#14181f'  # margin of a box, and text on its colour
# Of each theme: ground, text, curve, good sizes.
THEMES = {
    'light': ('white', '#1f2328', '#1b5e9e', '#e3eefa'),
    'dark': ('#171b22', '#e6e9ee', '#7db4f0', '#22324a'),
}


@dataclass(frozen=True)
class Score:
    """A row of a card's table: size of the images in px, metric in percent, good size or not."""

    width: int
    height: int
    percent: float
    is_good: bool

    @property
    def size(self) -> int:
        """Root of width x height, as in ``GoodSizes``."""
        return round((self.width * self.height) ** 0.5)


@dataclass(frozen=True)
class Card:
    """What the card of a shipped model says of image sizes."""

    scores: list[Score]
    images: int
    metric: str


def read_card(name: str) -> Card:
    """Read scores and sizes from a model's card and its entry in the index."""
    shipped = find_shipped(name)
    text = (CARDS / f'{name}.md').read_text(encoding='utf-8')
    rows = re.findall(r'^\| ([\d.]+(?:px)?) \| (\d+) x (\d+) \| ([\d.]+) \|$', text, re.M)
    (test_width,) = (int(width) for factor, width, _, _ in rows if factor == '1')
    low, high = shipped.sizes['low'], shipped.sizes['high']
    scores = [
        Score(
            int(width), int(height), float(value), low <= round(int(width) / test_width, 3) <= high
        )
        for _, width, height, value in rows
    ]
    (images,) = re.findall(r'^\*\*Accuracy\*\* of this file on (\d+) images', text, re.M)
    return Card(scores, int(images), METRICS[shipped.sizes['metric']])


@cache
def example_of(name: str) -> Example:
    """The example image of a model."""
    (example,) = (one for one in examples() if one.model == name)
    return example


@cache
def predict(name: str, width: int) -> Any:
    """What the model finds on its example at ``width`` px, with boxes from ``SCORE`` on."""
    cfg = read_config(find_shipped(name).config_file)
    inferencer = Inferencer(cfg=cfg, checkpoint=name, long_side=width)
    image = np.ascontiguousarray(example_of(name).image[..., ::-1])
    found, _ = inferencer(image, score_thr=SCORE)
    return found


def overlay(image: np.ndarray, classes: np.ndarray, palette: np.ndarray) -> np.ndarray:
    """The image in the colours of its classes, with a white line between two classes."""
    mixed = (0.5 * image + 0.5 * palette[classes]).astype(np.uint8)
    edge = cv2.morphologyEx(classes.astype(np.uint8), cv2.MORPH_GRADIENT, np.ones((2, 2))) > 0
    mixed[edge] = 255
    return mixed


def class_colours(name: str) -> dict[str, str]:
    """Colour of each class of a model in the pictures, by the name that they show."""
    meta = find_shipped(name).dataset_meta
    if find_shipped(name).sizes['metric'] == 'coco/bbox_mAP':
        return {NAMES[one]: CELL_COLOURS[NAMES[one]] for one in meta['classes']}
    return dict(zip(meta['classes'], map(to_hex, np.array(meta['palette']) / 255), strict=True))


def classes_of(found: Any) -> list[int]:
    """The classes of a prediction, with most boxes or pixels first."""
    counts = np.bincount(np.ravel(found['seg_map'] if 'seg_map' in found else found['labels']))
    return [label for label in np.argsort(-counts, kind='stable').tolist() if counts[label]]


def show(axis: Axes, name: str, width: int) -> str:
    """Draw the prediction on an example; returns what stands below it."""
    example, found = example_of(name), predict(name, width)
    if 'seg_map' in found:
        palette = np.array(find_shipped(name).dataset_meta['palette'], np.uint8)
        axis.imshow(overlay(example.image, found['seg_map'], palette))
        return ''
    axis.imshow(example.image)
    if 'boxes' not in found:
        return f'{found["class"]}, score {found["score"]:.2f}'
    colours = [*class_colours(name).values()]
    for (x1, y1, x2, y2), label in zip(found['boxes'], found['labels'], strict=True):
        for colour, line in ((DARK, 2.3), (colours[label], 1.5)):
            style = dict(fill=False, edgecolor=colour, linewidth=line)
            axis.add_patch(Rectangle((x1, y1), x2 - x1, y2 - y1, **style))
    matched = (match(found['boxes'], found['labels'], example.boxes, example.labels) >= 0).sum()
    extra = len(found['boxes']) - matched
    return f'{matched} of {len(example.boxes)} found, {extra} false'


def explain(axis: Axes, name: str, widths: Sequence[int], ink: str) -> None:
    """Write above the small picture what the colours mean, or which way the scores go."""
    first, second = (predict(name, width) for width in widths)
    if 'score' in first:
        card = read_card(name)
        top = [next(one.percent for one in card.scores if one.width == width) for width in widths]
        text = (
            f'This score {direction(first["score"], second["score"])}.\nOver {card.images:,}'
            f' photographs\ntop-1 {direction(*top)}: see below.'
        )
        axis.text(0, 1.08, text, transform=axis.transAxes, color=ink, fontsize=9)
        return
    shown = dict.fromkeys(classes_of(first) + classes_of(second))
    colours = [*class_colours(name).items()]
    handles = [Patch(label=colours[i][0], facecolor=colours[i][1], edgecolor=ink) for i in shown]
    title = dict(title=f'Score ≥ {SCORE}', title_fontsize=8) if 'boxes' in first else {}
    style = dict(ncols=2 if len(handles) > 5 else 1, fontsize=8, labelcolor=ink, frameon=False)
    space = dict(borderpad=0, handlelength=0.9, handletextpad=0.4, columnspacing=0.8)
    place = dict(loc='lower left', bbox_to_anchor=(0, 1.04), borderaxespad=0)
    legend = axis.legend(handles=handles, **title, **style, **space, **place, alignment='left')
    legend.get_title().set_color(ink)
    legend.set_in_layout(False)


def direction(first: float, second: float) -> str:
    """What a number does from the smaller size to the larger."""
    return 'rises' if second > first else 'falls'


def plot(axis: Axes, card: Card, theme: str) -> None:
    """Plot the metric by the size of the test images; good sizes have another ground."""
    ground, ink, curve, band = THEMES[theme]
    sizes = [score.size for score in card.scores]
    good = [score.size for score in card.scores if score.is_good]
    axis.axvspan(min(good), max(good), color=band)
    axis.plot(sizes, [score.percent for score in card.scores], color=curve, marker='o')
    last = -np.inf
    for score in card.scores:
        if score.size - last < 0.12 * max(sizes):  # its text would cover the one before
            continue
        last = score.size
        place = dict(xytext=(0, 6), textcoords='offset points', ha='center', color=curve)
        axis.annotate(f'{score.percent:.1f}', (score.size, score.percent), weight='bold', **place)
    low, high = limits(card)
    title = f'{card.metric} (%) of {card.images:,} {TITLES[card.metric][1]}; axis from {low}'
    axis.set_title(title)
    axis.margins(x=0.08)
    axis.set_xlabel(f'root of width x height; good: {min(good)} to {max(good)} px')
    axis.set(xticks=sizes[:: 2 if len(sizes) > 5 else 1], facecolor=ground)
    axis.set(ylim=(low, high + 0.25 * (high - low)), yticks=range(low, high + 1, 10))
    axis.spines[['top', 'right']].set_visible(False)
    axis.spines[:].set_color(ink)
    axis.tick_params(colors=ink)
    for text in (axis.title, axis.xaxis.label):
        text.set_color(ink)


def limits(card: Card) -> tuple[int, int]:
    """Tens around the curve, percent."""
    percents = [score.percent for score in card.scores]
    return int((min(percents) - 1) // 10 * 10), int(-(-max(percents) // 10) * 10)


def draw(name: str, theme: str) -> Figure:
    """Predictions at the test scale and the largest good size, and the curve of the card."""
    ground, ink, *_ = THEMES[theme]
    card = read_card(name)
    side = find_shipped(name).sizes['side']
    first = next(score.width for score in card.scores if score.width >= side)
    widths = first, max(score.width for score in card.scores if score.is_good)
    height, across = example_of(name).image.shape[:2]
    figure = Figure(figsize=(4.8, 4.8), layout='constrained', facecolor=ground)
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.08)
    above, below = figure.subfigures(2, 1, height_ratios=(3, 2))
    above.suptitle(TITLES[card.metric][0], color=ink)
    axes = above.subplots(1, 2, width_ratios=widths)
    for axis, width in zip(axes, widths, strict=True):
        text = show(axis, name, width)
        axis.set_anchor('S')
        axis.set(xticks=[], yticks=[])
        axis.spines[:].set_visible(False)
        pixels = f'{width} x {round(width * height / across)} px'
        axis.set_xlabel(f'{pixels}\n{text}'.strip(), color=ink)
    explain(axes[0], name, widths, ink)
    plot(below.subplots(), card, theme)
    return figure
