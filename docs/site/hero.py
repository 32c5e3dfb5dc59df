"""The first picture of README and site: one segmentor on one photograph, at several sizes, and what
padding changes.

Above, its classes at each size, to scale; the last size is one that the card does not advise.
Below, how much the features of an image in a padded batch differ from those that it has alone, in
timm's Twins-PCPVT-S and in PyramidCPVT-S with the same weights. Lengths are px of the shown
picture, from its upper left corner.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import matplotlib
import numpy as np
import timm
import torch
from cards import Card, overlay, read_card, spots
from example_images import SEGMENTOR, STREET
from matplotlib import patheffects
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle
from PIL import Image

from cpvt_backbones import PyramidCPVT, convert_state_dict
from cpvt_backbones.inference import Inferencer
from cpvt_backbones.toolboxes import read_config
from cpvt_backbones.weights import find_shipped

TITLE = 'One segmentor, one set of weights'
STAGE, STRIDE = 2, 16  # whose map is compared
IMAGE, BATCH = (320, 512), (448, 672)  # px, (height, width)
MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
CROP = (320, 256)  # px of the images in training


POINTS = 0.72  # of a px: the figure has 100 px an inch


@dataclass(frozen=True)
class Theme:
    """Colours of a picture: ground, text, remarks and lines."""

    ground: str
    ink: str
    soft: str
    line: str


THEMES = {
    'light': Theme('white', '#1f2328', '#4a5058', '#d5d9de'),
    'dark': Theme('#171b22', '#e6e9ee', '#b4bac4', '#434a55'),
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
PHONE = View(WHOLE, (400, 267))


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


@cache
def padding_errors() -> dict[str, np.ndarray]:
    """How much each cell of a map differs when the image lies in a padded batch, relative to the
    features that the image has alone, (H, W) for timm's model and this package's.

    Both have the same weights, which are not trained.
    """
    torch.manual_seed(0)
    peer = timm.create_model('twins_pcpvt_small').eval()
    ours = PyramidCPVT(arch='small').eval()
    ours.load_state_dict(convert_state_dict(peer.state_dict(), ours)[0])
    photo = Image.open(STREET).crop(WHOLE).resize(IMAGE[::-1], Image.Resampling.BICUBIC)
    pixels = (np.asarray(photo, np.float32) - MEAN) / STD
    image = torch.from_numpy(pixels).float().permute(2, 0, 1)[None]
    batch = torch.zeros(2, 3, *BATCH)
    batch[:1, :, : IMAGE[0], : IMAGE[1]] = image
    batch[1] = torch.randn(3, *BATCH)
    models: dict[str, Callable[..., Any]] = {
        "timm's Twins-PCPVT-S": partial(peer.forward_intermediates, intermediates_only=True),
        'PyramidCPVT-S': ours,
    }
    errors = {}
    for name, model in models.items():
        options = {} if model is not ours else dict(valid_sizes=[IMAGE, BATCH])
        with torch.no_grad():
            alone = model(image)[STAGE][0]
            padded = model(batch, **options)[STAGE][0]
        padded = padded[:, : alone.shape[1], : alone.shape[2]]
        errors[name] = ((padded - alone).norm(dim=0) / alone.norm(dim=0)).numpy()
    return errors


def in_batch(pixels: np.ndarray) -> np.ndarray:
    """The image's (H, W, 3) in the corner of a grey batch."""
    batch = np.full((*BATCH, 3), 128, np.uint8)
    batch[: IMAGE[0], : IMAGE[1]] = pixels
    return batch


def coloured(error: np.ndarray) -> np.ndarray:
    """A map of differences as an image, black where there is none."""
    colours = matplotlib.colormaps['inferno'](np.sqrt(np.clip(error, 0, 1)))[..., :3]
    return np.kron((255 * colours).astype(np.uint8), np.ones((STRIDE, STRIDE, 1), np.uint8))


def proof(sheet: Sheet, left: float, y: float, width: float, *, narrow: bool = False) -> None:
    """Draw the padded image and both models' differences, each ``width`` px wide, below ``y``.

    Without the image, and with captions of two lines, if ``narrow``.
    """
    photo = Image.open(STREET).crop(WHOLE).resize(IMAGE[::-1], Image.Resampling.BICUBIC)
    separator, size = ('\n', 13) if narrow else (': ', 15)
    pictures = [] if narrow else [('in a batch, padding in grey', np.asarray(photo))]
    for name, error in padding_errors().items():
        found = f'{error.min():.0%} to {error.max():.0%}' if error.any() else 'nothing'
        pictures.append((f'{name}{separator}{found}', coloured(error)))
    base = y + width * BATCH[0] / BATCH[1]
    for place, (name, pixels) in enumerate(pictures):
        x = left + place * (width + 20)
        sheet.show(in_batch(pixels), x, base, width)
        for line, text in enumerate(name.split('\n')):
            place_of_text = (x + width / 2, base + 20 + 19 * line)
            sheet.write(*place_of_text, text, size, weight='bold', ha='center')


def draw(model: Segmentor, theme: str) -> Figure:
    """The picture for a page of about 900 px."""
    sheet, scale, left, base = Sheet(930, 714, theme), 0.4, 18, 380
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
    title = 'The same image alone and in a padded batch: how much its features change'
    sheet.write(left, 446, title, 17, weight='bold')
    proof(sheet, left, 470, 284)
    remark = (
        'Change of each cell of the third map, of its size; black: none. '
        'Same weights (not trained); 320 x 512 px in 448 x 672 px.'
    )
    sheet.write(left, 704, remark, 13, color=sheet.theme.soft)
    return sheet.figure


def draw_narrow(model: Segmentor, theme: str) -> Figure:
    """The picture for a phone."""
    sheet, scale, left = Sheet(390, 824, theme), 0.44, 18
    sheet.write(left, 34, 'One segmentor, any size', 17, weight='bold')
    base = 50 + LARGE.size[1] * scale
    panel(sheet, model, LARGE, left, base, scale)
    base += 36 + TALL.size[1] * scale
    panel(sheet, model, TALL, left, base, scale)
    panel(sheet, model, PHONE, left + TALL.size[0] * scale + 20, base, scale)
    base += 62
    sheet.write(left, base, 'How much padding changes features', 17, weight='bold')
    proof(sheet, left, base + 16, 167, narrow=True)
    remark = 'Relative to their size; black: none. Same weights.'
    sheet.write(left, 810, remark, 13, color=sheet.theme.soft)
    return sheet.figure
