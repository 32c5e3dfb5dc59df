"""The first picture of README and site: one segmentor on one photograph, at several sizes.

Above, its classes at each size, to scale; the last size is one that the card does not advise.
Below, its accuracy on real test images, from its card, and the accuracy of four encodings at other
sizes than that of the training, from the experiment. Lengths are px of the shown picture, from its
upper left corner.
"""

from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

import cv2
import numpy as np
import pandas as pd
from example_images import SEGMENTOR, STREET
from matplotlib import patheffects
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image
from sheets import Card, Sheet, read_card
from size_experiment.experiment import read_rows
from size_experiment.protocol import FINAL, PLAN, ROWS
from size_experiment.report import final_values

from benchmarks import plots
from cpvt_backbones.inference import Inferencer
from cpvt_backbones.toolboxes import read_config
from cpvt_backbones.weights import find_shipped

EVIDENCE = Path(__file__).parents[1] / 'evidence'
TITLE = 'One segmentor, one set of weights'
NAMES = dict(none='no encoding', table='learned table', peg='PEG', rope='RoPE (DINOv3)')
CROP = (320, 256)  # px of the images in training
# Blue, orange and green, which colour-blind readers tell apart; the data set's are close.
COLOURS = dict(
    sky='#5aa9e6', building='#e8603c', tree='#3fa34d', fence='#8e5ea2', sign='#f2c14e',
    car='#1d3557', pole='#d9d9d9', road='#6d6875', pavement='#d58ccf', pedestrian='#7f5539',
    bicyclist='#00b4d8',
)  # fmt: skip


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


class Segmentor:
    """The shipped segmentor, and the photograph of a street."""

    def __init__(self) -> None:
        self.photo = Image.open(STREET)
        self.shipped = find_shipped(SEGMENTOR)
        self.card: Card = read_card(SEGMENTOR)
        self.names = self.shipped.dataset_meta['classes']

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


def rgb(colour: str) -> np.ndarray:
    """Values of ``'#rrggbb'``."""
    return np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)])


def overlay(image: np.ndarray, classes: np.ndarray, names: list[str]) -> np.ndarray:
    """The image in the colours of its classes, with a white line between two classes."""
    palette = np.array([rgb(COLOURS[name]) for name in names])
    mixed = (0.5 * image + 0.5 * palette[classes]).astype(np.uint8)
    edge = cv2.morphologyEx(classes.astype(np.uint8), cv2.MORPH_GRADIENT, np.ones((2, 2))) > 0
    mixed[edge] = 255
    return mixed


def spots(classes: np.ndarray) -> dict[int, tuple[float, float, float]]:
    """Of each class x, y and radius in px of the largest circle within its pixels."""
    found = {}
    for label in np.unique(classes):
        inside = np.pad(classes == label, 1).astype(np.uint8)
        distance = cv2.distanceTransform(inside, cv2.DIST_L2, 5)
        y, x = np.unravel_index(distance.argmax(), distance.shape)
        found[int(label)] = (x - 1, y - 1, float(distance.max()))
    return found


def show_classes(
    sheet: Sheet,
    image: np.ndarray,
    classes: np.ndarray,
    names: list[str],
    x: float,
    base: float,
    shown: float,
) -> float:
    """Draw an image in the colours of its classes, with their names where they fit.

    Returns the picture's top.
    """
    top = sheet.show(overlay(image, classes, names), x, base, shown)
    scale = shown / classes.shape[1]
    outline = [patheffects.withStroke(linewidth=2.5, foreground='#14181f')]
    for label, (across, down, radius) in spots(classes).items():
        name = names[label]
        if radius * scale >= 3.2 * len(name):
            half = 4.6 * len(name)  # of the text's width
            middle = np.clip(x + across * scale, x + half, x + shown - half)
            style = dict(ha='center', va='center', color='white', path_effects=outline)
            sheet.write(middle, top + down * scale, name, 14, weight='bold', **style)
    return top


def panel(sheet: Sheet, model: Segmentor, view: View, x: float, base: float, scale: float) -> float:
    """Draw the classes at a size, with their names where they fit; returns the panel's top."""
    image, classes = model.predict(view)
    top = show_classes(sheet, image, classes, model.names, x, base, view.size[0] * scale)
    centre = x + view.size[0] * scale / 2
    sheet.write(centre, base + 20, view.name, 15, ha='center', weight='bold')
    return top


def legend(sheet: Sheet, names: list[str], x: float, y: float, columns: int, width: float) -> None:
    """Write the classes with their colours, in columns of ``width`` px. x, y: upper left corner."""
    rows = -(-len(names) // columns)
    for place, name in enumerate(names):
        left, upper = x + place // rows * width, y + place % rows * 17
        sheet.axis.add_patch(Rectangle((left, upper), 11, 11, color=COLOURS[name]))
        sheet.write(left + 17, upper + 10, name, 13)


def crop(sheet: Sheet, x: float, y: float, scale: float) -> None:
    """Draw the size of the images in training, to scale, from its upper left corner."""
    style = dict(fill=False, edgecolor=sheet.theme.soft, linestyle=(0, (4, 2)), linewidth=1.3)
    width, height = (side * scale for side in CROP)
    sheet.axis.add_patch(Rectangle((x, y), width, height, **style))
    for line, text in enumerate(('training crop', '{} x {} px'.format(*CROP))):
        middle = (x + width / 2, y + height / 2 + 16 * line - 3)
        sheet.write(*middle, text, 13, ha='center', color=sheet.theme.soft)


def encodings() -> tuple[pd.DataFrame, str]:
    """Top-1 (%) of the experiment, the mean over seeds: a row for each size, a column for each
    encoding. From the sealed images; before they are read, from the held-out ones.

    The text says of how many runs.
    """
    sealed = EVIDENCE / 'size_experiment.csv'
    runs = f'{len(ROWS) * len(PLAN["seeds"])} runs'
    if sealed.exists():
        values = pd.read_csv(sealed).rename(columns=dict(top1='value'))
    else:
        rows = read_rows(EVIDENCE / 'size_experiment_runs.csv')
        values = final_values(rows, PLAN, 'held', PLAN['sizes'])
        runs = f'interim: {(rows["stage"] == FINAL).sum()} of {runs}'
    values = values[values['row'].isin(ROWS)]
    return values.groupby(['size', 'row'])['value'].mean().unstack()[list(ROWS)], runs


def rivals(sheet: Sheet, *, left: float, right: float, top: float, bottom: float) -> None:
    """Plot the accuracy of the encodings over the size, with a name at each line's end.

    Args:
        sheet: To draw on.
        left: x of the axis.
        right: x of the last size; the names stand behind it.
        top: y of the highest grid line. Above it stands what is plotted.
        bottom: y of the lowest one.
    """
    theme, (means, runs) = sheet.theme, encodings()
    sheet.write(left - 26, top - 18, f'top-1 (%) by size in px; {runs}')
    low, high = 10 * np.floor(means.min().min() / 10), 10 * np.ceil(means.max().max() / 10)
    sizes = means.index.to_numpy()
    places = np.interp(np.log2(sizes), np.log2([sizes[0], sizes[-1]]), (left + 16, right))
    for percent in np.arange(low, high + 1, 10):
        y = np.interp(percent, (low, high), (bottom, top))
        sheet.axis.plot((left, right + 6), (y, y), color=theme.line, linewidth=0.8)
        sheet.write(left - 8, y + 4.5, f'{percent:g}', ha='right', color=theme.soft)
    for x, size in zip(places, sizes, strict=True):
        trained = size == PLAN['train_size']
        style = dict(ha='center', weight='bold' if trained else 'normal')
        sheet.write(x, bottom + 18, f'{size}', **style)
        if trained:
            sheet.write(x, bottom + 34, 'training', ha='center', color=theme.soft)
    heights = {row: np.interp(means[row], (low, high), (bottom, top)) for row in means}
    order = sorted(heights, key=lambda row: heights[row][-1])  # from the top
    names = [heights[row][-1] for row in order]
    for above, below in pairwise(range(len(names))):
        names[below] = max(names[below], names[above] + 16)
    for row, y in zip(order, names, strict=True):
        ours = row == 'peg'
        style = dict(color=plots.ENCODINGS[row], linewidth=2.6 if ours else 1.6)
        sheet.axis.plot(places, heights[row], marker='o', markersize=6 if ours else 4, **style)
        sheet.axis.plot((right, right + 12), (heights[row][-1], y), **style)
        weight = 'bold' if ours else 'normal'
        sheet.write(right + 16, y + 4.5, NAMES[row], 14, weight=weight)
        if ours:
            last = -np.inf
            for x, height, value in zip(places, heights[row], means[row], strict=True):
                if x - last < 36:  # its text would cover the one before
                    continue
                last = x
                sheet.write(x, height - 9, f'{value:.1f}', 14, ha='center', weight='bold')


def training(sheet: Sheet, left: float, right: float, y: float, text: str) -> None:
    """Mark the widths of the images in training, below the curve."""
    style = dict(color=sheet.theme.soft, linewidth=1.3)
    sheet.axis.plot((left, right), (y, y), marker='|', markersize=7, **style)
    style = dict(ha='center', color=sheet.theme.soft, backgroundcolor=sheet.theme.ground)
    sheet.write((left + right) / 2, y + 4.5, text, **style)


def draw_wide(model: Segmentor, theme: str) -> Figure:
    """The picture for a page of about 900 px."""
    sheet, scale, left, base = Sheet(930, 638, theme), 0.4, 18, 380
    sheet.write(left, 34, f'{TITLE}, one photograph, to scale', 17, weight='bold')
    legend(sheet, model.names, left, 58, 3, 110)
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
    sheet.write(left, 440, 'This segmentor at other widths (px)', 17, weight='bold')
    sheet.write(left, 460, f'mIoU (%) of {model.card.images} real street images (CamVid)')
    sheet.curve(model.card, left=44, right=442, top=478, bottom=582)
    training(sheet, 80, 406, 617, 'widths in training, before the crop')
    x = 490
    sheet.write(x, 440, 'Four encodings, trained at 64 px alone', 17, weight='bold')
    rivals(sheet, left=x + 26, right=796, top=478, bottom=582)
    return sheet.figure


def draw_narrow(model: Segmentor, theme: str) -> Figure:
    """The picture for a phone, 350 px wide."""
    sheet, scale, left = Sheet(350, 1138, theme), 0.327, 18
    sheet.write(left, 34, TITLE, 16, weight='bold')
    sheet.write(left, 54, 'One photograph, to scale')
    panel(sheet, model, LARGE, left, 240, scale)
    panel(sheet, model, WIDE, left, 394, scale)
    panel(sheet, model, TALL, left, 606, scale)
    x = left + TALL.size[0] * scale + 45
    crop(sheet, x, 430, scale)
    top = panel(sheet, model, SMALL, x, 606, scale)
    middle = x + SMALL.size[0] * scale / 2
    sheet.write(middle, top - 8, 'not advised', ha='center', color=sheet.theme.soft)
    legend(sheet, model.names, left, 644, 3, 108)
    sheet.write(left, 740, 'mIoU (%) by image width in px', 16, weight='bold')
    sheet.write(left, 760, f'{model.card.images} real street images (CamVid)')
    sheet.curve(model.card, left=44, right=332, top=772, bottom=866, text='advised widths')
    training(sheet, 80, 296, 902, 'widths in training')
    sheet.write(left, 952, 'Four encodings, trained at 64 px', 16, weight='bold')
    rivals(sheet, left=44, right=218, top=990, bottom=1088)
    return sheet.figure
