"""Pictures with a title, panels and a curve, for light and dark pages; scores of a model's card.

Lengths are px of the shown picture, from its upper left corner.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle

from cpvt_backbones.weights import find_shipped

CARDS = Path(__file__).parents[2] / 'cpvt_backbones/weights'
POINTS = 0.72  # of a px: the figure has 100 px an inch
METRICS = {'accuracy/top1': 'Top-1', 'mIoU': 'mIoU', 'coco/bbox_mAP': 'Box AP'}


@dataclass(frozen=True)
class Theme:
    """Colours of a picture: ground, text, remarks, lines, curve, and advised sizes."""

    ground: str
    ink: str
    soft: str
    line: str
    curve: str
    band: str


THEMES = {
    'light': Theme('white', '#1f2328', '#4a5058', '#d5d9de', '#1b5e9e', '#e3eefa'),
    'dark': Theme('#171b22', '#e6e9ee', '#b4bac4', '#434a55', '#7db4f0', '#22324a'),
}


@dataclass(frozen=True)
class Score:
    """A row of a card's table: size of the images in px, metric in percent, good size or not."""

    width: int
    height: int
    percent: float
    is_good: bool


@dataclass(frozen=True)
class Card:
    """What the card of a shipped model says of image sizes."""

    scores: list[Score]
    images: int
    metric: str

    @property
    def good(self) -> list[int]:
        """Widths that the card advises."""
        return [score.width for score in self.scores if score.is_good]

    @property
    def advice(self) -> str:
        """The range of these widths."""
        return f'advised: {min(self.good)} to {max(self.good)} px'


def read_card(name: str) -> Card:
    """Read scores and sizes from a model's card and its entry in the index."""
    shipped = find_shipped(name)
    text = (CARDS / f'{name}.md').read_text(encoding='utf-8')
    rows = re.findall(r'^\| ([\d.]+(?:px)?) \| (\d+) x (\d+) \| ([\d.]+) \|$', text, re.M)
    (test_width,) = (int(width) for factor, width, _, _ in rows if factor == '1')
    low, high = shipped.sizes['low'], shipped.sizes['high']
    metric = shipped.sizes['metric']
    scores = [
        Score(
            int(width),
            int(height),
            float(value),
            low <= round(int(width) / test_width, 3) <= high,
        )
        for _, width, height, value in rows
    ]
    (images,) = re.findall(r'^\*\*Accuracy\*\* of this file on (\d+) images', text, re.M)
    return Card(scores, int(images), METRICS[metric])


class Sheet:
    """A card of ``width`` x ``height`` px to draw on."""

    def __init__(self, width: int, height: int, theme: str) -> None:
        self.theme = THEMES[theme]
        self.figure = Figure(figsize=(width / 100, height / 100))
        self.axis = self.figure.add_axes((0, 0, 1, 1))
        self.axis.set(xlim=(0, width), ylim=(height, 0))
        self.axis.axis('off')
        style = dict(facecolor=self.theme.ground, edgecolor=self.theme.line)
        shape = FancyBboxPatch((8, 8), width - 16, height - 16, 'round,pad=7', **style)
        self.axis.add_patch(shape)
        shape.set_zorder(-1)

    def write(self, x: float, y: float, text: str, size: float = 13, **style: Any) -> None:
        """Write at a base line, ``size`` px high."""
        style = dict(color=self.theme.ink, va='baseline') | style
        self.axis.text(x, y, text, fontsize=size * POINTS, **style)

    def show(self, image: np.ndarray, x: float, base: float, width: float) -> float:
        """Show an image ``width`` px wide that stands on ``base``; returns its top."""
        top = base - width * image.shape[0] / image.shape[1]
        self.axis.imshow(image, extent=(x, x + width, base, top), aspect='auto')
        return top

    def curve(
        self,
        card: Card,
        *,
        left: float,
        right: float,
        top: float,
        bottom: float,
        size: float = 13,
        text: str = '',
    ) -> None:
        """Plot the metric over the widths of the card. The advised ones have another background.

        Args:
            card: What to plot.
            left: x of the axis.
            right: x of its end.
            top: y of the highest grid line.
            bottom: y of 0 %.
            size: Height of the text.
            text: Remark on the advised widths.
        """
        theme = self.theme
        widths = np.array([score.width for score in card.scores])
        values = np.array([score.percent for score in card.scores])
        highest = 20 * np.ceil((values.max() + 4) / 20)
        places = np.interp(widths, (widths.min(), widths.max()), (left + 36, right - 36))
        heights = bottom - (bottom - top) * values / highest
        good = places[[score.is_good for score in card.scores]]
        start, end = good[0], good[-1]
        self.axis.add_patch(Rectangle((start, top), end - start, bottom - top, color=theme.band))
        self.write(start + 10, bottom - 9, text or card.advice, size, color=theme.soft)
        for percent in np.arange(0, highest + 1, 20):
            y = bottom - (bottom - top) * percent / highest
            self.axis.plot((left, right), (y, y), color=theme.line, linewidth=0.8)
            self.write(left - 8, y + 4.5, f'{percent:g}', size, ha='right', color=theme.soft)
        self.axis.plot(places, heights, color=theme.curve, linewidth=2, marker='o', markersize=6)
        bold = dict(ha='center', weight='bold', color=theme.curve)
        last = -np.inf
        for x, y, width, value in zip(places, heights, widths, values, strict=True):
            if x - last < 3.2 * size:  # its text would cover the one before
                continue
            last = x
            self.write(x, y - 9, f'{value:.1f}', size + 2, **bold)
            self.write(x, bottom + size + 5, f'{width}', size, ha='center')
