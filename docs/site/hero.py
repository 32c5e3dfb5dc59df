"""The first picture of README and site: one segmentor on one photograph, at several sizes.

Above, its classes at each size, to scale; the last size is one that the card does not advise.
Below, the accuracy of the shipped models on test images of other widths, from their cards. Lengths
are px of the shown picture, from its upper left corner.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from cards import Card, overlay, read_card, spots
from example_images import CLASSIFIER, DETECTOR, SEGMENTOR, STREET
from matplotlib import patheffects
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle
from PIL import Image

from cpvt_backbones.inference import Inferencer
from cpvt_backbones.toolboxes import read_config
from cpvt_backbones.weights import find_shipped

TITLE = 'One segmentor, one set of weights'
CHARTS = {SEGMENTOR: 'Streets', DETECTOR: 'Blood cells', CLASSIFIER: 'Ten things'}
METRICS = {'mIoU': 'mIoU', 'Box AP': 'box AP', 'Top-1': 'top-1'}
TRAINED = {SEGMENTOR: (240, 960), DETECTOR: (160, 640), CLASSIFIER: (64, 112)}  # px, before a crop
CROP = (320, 256)  # px of the images in training


POINTS = 0.72  # of a px: the figure has 100 px an inch


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
class View:
    """A part of the photograph (x1, y1, x2, y2 in px), scaled to ``size``, (width, height)."""

    part: tuple[int, int, int, int]
    size: tuple[int, int]

    @property
    def name(self) -> str:
        """Its size."""
        return '{} x {} px'.format(*self.size)


WHOLE = (0, 85, 1024, 768)
LARGE = View(WHOLE, (800, 533))
TALL = View((190, 85, 630, 768), (347, 539))
WIDE = View((0, 300, 1024, 684), (960, 360))
MIDDLE = View(WHOLE, (560, 373))
SMALL = View(WHOLE, (240, 160))


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
    ) -> None:
        """Plot the metric over the widths of the card. The advised ones have another background.

        Args:
            card: What to plot.
            left: x of the axis.
            right: x of its end.
            top: y of the highest grid line.
            bottom: y of 0 %.
            size: Height of the text.
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
        self.write(start + 10, bottom - 9, 'advised', size, color=theme.soft)
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


class Segmentor:
    """The shipped segmentor, and the photograph of a street."""

    def __init__(self) -> None:
        self.photo = Image.open(STREET)
        self.shipped = find_shipped(SEGMENTOR)
        self.card: Card = read_card(SEGMENTOR)
        self.names, palette = (self.shipped.dataset_meta[key] for key in ('classes', 'palette'))
        self.palette = np.array(palette, np.uint8)

    @cache  # noqa: B019 (one of them in a process)
    def predict(self, view: View) -> tuple[np.ndarray, np.ndarray]:
        """The image that the model sees, RGB, and the class of each of its pixels."""
        part = self.photo.crop(view.part).resize(view.size, Image.Resampling.BICUBIC)
        image = np.asarray(part)
        inferencer = Inferencer(
            cfg=read_config(self.shipped.config_file),
            checkpoint=self.shipped.name,
            long_side=max(view.size),
        )
        found, _ = inferencer(np.ascontiguousarray(image[..., ::-1]))
        return image, found['seg_map']


def panel(sheet: Sheet, model: Segmentor, view: View, x: float, base: float, scale: float) -> float:
    """Draw the classes at a size, with their names where they fit; returns the panel's top."""
    image, classes = model.predict(view)
    shown = view.size[0] * scale
    top = sheet.show(overlay(image, classes, model.palette), x, base, shown)
    outline = [patheffects.withStroke(linewidth=2.5, foreground='#14181f')]
    for label, (across, down, radius) in spots(classes).items():
        name = model.names[label]
        if radius * scale >= 4.2 * len(name):
            half = 4.6 * len(name)  # of the text's width
            middle = np.clip(x + across * scale, x + half, x + shown - half)
            style = dict(ha='center', va='center', color='white', path_effects=outline)
            sheet.write(middle, top + down * scale, name, 14, weight='bold', **style)
    sheet.write(x + shown / 2, base + 20, view.name, 15, ha='center', weight='bold')
    return top


def legend(sheet: Sheet, model: Segmentor, x: float, y: float, columns: int, width: float) -> None:
    """Write the classes with their colours, in columns of ``width`` px. x, y: upper left corner."""
    rows = -(-len(model.names) // columns)
    for place, (name, colour) in enumerate(zip(model.names, model.palette / 255, strict=True)):
        left, upper = x + place // rows * width, y + place % rows * 17
        sheet.axis.add_patch(Rectangle((left, upper), 11, 11, color=colour))
        sheet.write(left + 17, upper + 10, name, 13)


def crop(sheet: Sheet, x: float, y: float, scale: float) -> None:
    """Draw the size of the images in training, to scale, from its upper left corner."""
    style = dict(fill=False, edgecolor=sheet.theme.soft, linestyle=(0, (4, 2)), linewidth=1.3)
    width, height = (side * scale for side in CROP)
    sheet.axis.add_patch(Rectangle((x, y), width, height, **style))
    for line, text in enumerate(('training crop', '{} x {} px'.format(*CROP))):
        middle = (x + width / 2, y + height / 2 + 16 * line - 3)
        sheet.write(*middle, text, 13, ha='center', color=sheet.theme.soft)


def chart(sheet: Sheet, name: str, left: float, right: float, y: float) -> None:
    """Plot the accuracy of a shipped model over the width of its test images, below ``y``."""
    card = read_card(name)
    low, high = TRAINED[name]
    sheet.write(left, y, f'{CHARTS[name]}: {METRICS[card.metric]} (%)', 15, weight='bold')
    sheet.write(left, y + 20, f'{card.images:,} test images; trained at {low} to {high} px')
    spans = dict(left=left + 26, right=right, top=y + 36, bottom=y + 136)
    sheet.curve(card, **spans)


def draw(model: Segmentor, theme: str) -> Figure:
    """The picture for a page of about 900 px."""
    sheet, scale, left, base = Sheet(930, 650, theme), 0.4, 18, 380
    sheet.write(left, 34, f'{TITLE}, one photograph, to scale', 17, weight='bold')
    legend(sheet, model, left, 58, 3, 110)
    x = float(left)
    panel(sheet, model, LARGE, x, base, scale)
    x += LARGE.size[0] * scale + 22
    panel(sheet, model, TALL, x, base, scale)
    crop(sheet, x, 56, scale)
    x += TALL.size[0] * scale + 22
    panel(sheet, model, WIDE, x, 56 + WIDE.size[1] * scale, scale)
    panel(sheet, model, MIDDLE, x, base, scale)
    x += MIDDLE.size[0] * scale + 18
    top = panel(sheet, model, SMALL, x, base, scale)
    middle = x + SMALL.size[0] * scale / 2
    sheet.write(middle, top - 8, 'not advised', ha='center', color=sheet.theme.soft)
    sheet.write(left, 446, 'The shipped models at other widths (px)', 17, weight='bold')
    for place, name in enumerate(CHARTS):
        chart(sheet, name, left + 302 * place, left + 302 * place + 284, 476)
    return sheet.figure
