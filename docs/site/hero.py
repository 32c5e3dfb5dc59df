"""The first picture of README and site: one segmentor on one photograph, at several sizes.

Above, its classes at each size, to scale; the last size is one that the card does not advise.
Below, the accuracy of the shipped models on test images of other widths, from their cards. Lengths
are px of the shown picture, from its upper left corner.
"""

from dataclasses import dataclass
from functools import cache

import cv2
import numpy as np
from example_images import CLASSIFIER, DETECTOR, SEGMENTOR, STREET
from matplotlib import patheffects
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image
from sheets import Card, Sheet, read_card

from cpvt_backbones.inference import Inferencer
from cpvt_backbones.toolboxes import read_config
from cpvt_backbones.weights import find_shipped

TITLE = 'One segmentor, one set of weights'
CHARTS = {SEGMENTOR: 'Streets', DETECTOR: 'Blood cells', CLASSIFIER: 'Ten things'}
METRICS = {'mIoU': 'mIoU', 'Box AP': 'box AP', 'Top-1': 'top-1'}
TRAINED = {SEGMENTOR: (240, 960), DETECTOR: (160, 640), CLASSIFIER: (64, 112)}  # px, before a crop
CROP = (320, 256)  # px of the images in training


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


def overlay(image: np.ndarray, classes: np.ndarray, palette: np.ndarray) -> np.ndarray:
    """The image in the colours of its classes, with a white line between two classes."""
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
    model: Segmentor,
    x: float,
    base: float,
    shown: float,
) -> float:
    """Draw an image in the colours of its classes, with their names where they fit.

    Returns the picture's top.
    """
    top = sheet.show(overlay(image, classes, model.palette), x, base, shown)
    scale = shown / classes.shape[1]
    outline = [patheffects.withStroke(linewidth=2.5, foreground='#14181f')]
    for label, (across, down, radius) in spots(classes).items():
        name = model.names[label]
        if radius * scale >= 4.2 * len(name):
            half = 4.6 * len(name)  # of the text's width
            middle = np.clip(x + across * scale, x + half, x + shown - half)
            style = dict(ha='center', va='center', color='white', path_effects=outline)
            sheet.write(middle, top + down * scale, name, 14, weight='bold', **style)
    return top


def panel(sheet: Sheet, model: Segmentor, view: View, x: float, base: float, scale: float) -> float:
    """Draw the classes at a size, with their names where they fit; returns the panel's top."""
    image, classes = model.predict(view)
    top = show_classes(sheet, image, classes, model, x, base, view.size[0] * scale)
    centre = x + view.size[0] * scale / 2
    sheet.write(centre, base + 20, view.name, 15, ha='center', weight='bold')
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


def scores() -> str:
    """What the charts show. A test compares it with that of the picture."""
    return '; '.join(
        ' '.join(f'{score.width}: {score.percent:.1f}' for score in read_card(name).scores)
        for name in CHARTS
    )


def chart(sheet: Sheet, name: str, left: float, right: float, y: float) -> None:
    """Plot the accuracy of a shipped model over the width of its test images, below ``y``."""
    card = read_card(name)
    low, high = TRAINED[name]
    sheet.write(left, y, f'{CHARTS[name]}: {METRICS[card.metric]} (%)', 15, weight='bold')
    sheet.write(left, y + 20, f'{card.images:,} test images; trained at {low} to {high} px')
    spans = dict(left=left + 26, right=right, top=y + 36, bottom=y + 136)
    sheet.curve(card, **spans, text='advised')


def draw_wide(model: Segmentor, theme: str) -> Figure:
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


def draw_narrow(model: Segmentor, theme: str) -> Figure:
    """The picture for a phone, 350 px wide."""
    sheet, scale, left = Sheet(350, 910, theme), 0.327, 18
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
    legend(sheet, model, left, 644, 3, 108)
    chart(sheet, SEGMENTOR, left, 332, 740)
    return sheet.figure
