"""The first picture of README and site: one detector at several image sizes.

Above, what it finds on a drawn image, to scale. Below, its accuracy on real test images, from its
card. Lengths are px of the shown picture, from its upper left corner.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from app_views import find_hits
from example_images import Example, draw_smear
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle

from cpvt_backbones.analysis.resolution import GOOD
from cpvt_backbones.inference import Inferencer
from cpvt_backbones.toolboxes import read_config
from cpvt_backbones.weights import find_shipped

CARDS = Path(__file__).parents[2] / 'cpvt_backbones/weights'
INK, SOFT, LINE = '#1f2328', '#4a5058', '#d5d9de'  # text, remarks, lines
RED, WHITE = '#c2263d', '#1f4fd8'  # boxes of red and white cells
CURVE, BAND = '#1b5e9e', '#e3eefa'
POINTS = 0.72  # of a px: the figure has 100 px an inch
TITLE = 'One detector, one set of weights'


@dataclass(frozen=True)
class Score:
    """A row of a card's table: width of the images in px, box AP in percent, good size or not."""

    width: int
    percent: float
    is_good: bool


@dataclass(frozen=True)
class Card:
    """What the card of a shipped detector says of image sizes."""

    scores: list[Score]
    images: int
    trained: tuple[int, int]  # smallest and largest width in px

    @property
    def good(self) -> list[int]:
        """Widths that the card advises."""
        return [score.width for score in self.scores if score.is_good]

    @property
    def advice(self) -> str:
        """The range of these widths."""
        return f'advised: {min(self.good)} to {max(self.good)} px'

    @property
    def training(self) -> str:
        """The range of the training images' widths."""
        low, high = self.trained
        return f'Training widths: {low} to {high} px.'


def read_card(name: str) -> Card:
    """Read scores and sizes from a model's card and its entry in the index."""
    shipped = find_shipped(name)
    text = (CARDS / f'{name}.md').read_text(encoding='utf-8')
    rows = re.findall(r'^\| ([\d.]+) \| (\d+) x \d+ \| ([\d.]+) \|$', text, re.M)
    low, high = shipped.sizes['low'], shipped.sizes['high']
    scores = [
        Score(int(width), 100 * float(value), low <= float(factor) <= high)
        for factor, width, value in rows
    ]
    (images,) = re.findall(r'^\*\*Accuracy\*\* of this file on (\d+) images', text, re.M)
    smallest, largest = re.findall(r'trained at (\d+) x \d+ to (\d+) x', shipped.about)[0]
    return Card(scores, int(images), (int(smallest), int(largest)))


class Sheet:
    """A white card of ``width`` x ``height`` px to draw on, readable on a dark page too."""

    def __init__(self, width: int, height: int) -> None:
        self.figure = Figure(figsize=(width / 100, height / 100))
        self.axis = self.figure.add_axes((0, 0, 1, 1))
        self.axis.set(xlim=(0, width), ylim=(height, 0))
        self.axis.axis('off')
        shape = FancyBboxPatch(
            (8, 8), width - 16, height - 16, 'round,pad=7', facecolor='white', edgecolor=LINE
        )
        self.axis.add_patch(shape)
        shape.set_zorder(-1)

    def write(self, x: float, y: float, text: str, size: float = 13, **style: Any) -> None:
        """Write at a base line, ``size`` px high."""
        style = dict(color=INK, va='baseline') | style
        self.axis.text(x, y, text, fontsize=size * POINTS, **style)

    def legend(self, x: float, y: float, *, step: tuple[float, float]) -> None:
        """Name the kinds of boxes, each ``step`` px from the one before."""
        kinds = (('red cell', RED, '-'), ('white cell', WHITE, '-'), ('missed', INK, '--'))
        for place, (name, colour, line) in enumerate(kinds):
            left, base = x + place * step[0], y + place * step[1]
            style = dict(edgecolor=colour, linestyle=line, linewidth=1.4, fill=False)
            self.axis.add_patch(Rectangle((left, base - 11), 13, 13, **style))
            self.write(left + 20, base, name)

    def smear(self, x: float, base: float, width: int, scale: float, model: 'Detector') -> None:
        """Draw what the detector finds at ``width`` px; the panel stands on ``base``."""
        smear = model.smear
        found = model.predict(width)
        zoom = width * scale / smear.image.shape[1]  # px of the picture for one of the image
        high = smear.image.shape[0] * zoom
        shown = cv2.resize(smear.image, (width, width * 3 // 4), interpolation=cv2.INTER_AREA)
        self.axis.imshow(shown, extent=(x, x + width * scale, base, base - high), aspect='auto')
        hits = find_hits(found, smear).tolist()
        missed = [box for box, hit in zip(smear.boxes, hits, strict=True) if not hit]
        colours = [(RED, WHITE)[label] for label in found['labels']]
        boxes = [*zip(found['boxes'], colours, ['-'] * len(colours), strict=True)]
        boxes += [(box, INK, (0, (3, 1.5))) for box in missed]
        for box, colour, line in boxes:
            x1, y1, x2, y2 = np.clip(box, 0, [*smear.image.shape[1::-1]] * 2) * zoom
            style = dict(fill=False, edgecolor=colour, linestyle=line)
            style |= dict(linewidth=0.7 + 0.7 * scale * width / 320)
            corner = (x + x1, base - high + y1)
            self.axis.add_patch(Rectangle(corner, x2 - x1, y2 - y1, **style))
        centre = x + width * scale / 2
        extra = len(found['boxes']) - sum(hits)
        self.write(centre, base + 24, f'{width} px', 20, ha='center', weight='bold')
        self.write(centre, base + 43, f'{sum(hits)} of {len(hits)} found', ha='center')
        if extra:
            self.write(centre, base + 60, f'{extra} extra box' + 'es' * (extra > 1), ha='center')
        if width not in model.card.good:
            self.write(centre, base - high - 7, 'not advised', ha='center')

    def curve(
        self,
        places: list[float],
        card: Card,
        *,
        top: float,
        bottom: float,
        remark: str,
        has_ticks: bool,
    ) -> None:
        """Plot box AP over the widths of the card. The advised ones have another background.

        Args:
            places: x of each width.
            card: What to plot.
            top: y of 80 % AP.
            bottom: y of 0 % AP.
            remark: Text on the advised widths.
            has_ticks: Write the widths below.
        """
        heights = [bottom - (bottom - top) * score.percent / 80 for score in card.scores]
        left, right = 44, self.axis.get_xlim()[1] - 16
        first = [score.is_good for score in card.scores].index(True)
        start = (places[first - 1] + places[first]) / 2 if first else left
        corner, size = (start, top), (right - start, bottom - top)
        self.axis.add_patch(Rectangle(corner, *size, facecolor=BAND))
        self.write(start + 10, bottom - 8, remark, color=SOFT)
        for percent in (0, 20, 40, 60):
            y = bottom - (bottom - top) * percent / 80
            self.axis.plot((left, right), (y, y), color=LINE, linewidth=0.8)
            self.write(left - 8, y + 4.5, f'{percent}', ha='right', color=SOFT)
        self.axis.plot(places, heights, color=CURVE, linewidth=2, marker='o', markersize=6)
        for x, y, score in zip(places, heights, card.scores, strict=True):
            style = dict(ha='center', weight='bold', color=CURVE)
            self.write(x, y - 9, f'{score.percent:.1f}', 15, **style)
            if has_ticks:
                self.write(x, bottom + 18, f'{score.width}', ha='center')


class Detector:
    """The shipped detector of the drawn smear, with scores of at least 0.5."""

    def __init__(self) -> None:
        self.smear: Example = draw_smear()
        self.shipped = find_shipped(self.smear.model)
        self.card = read_card(self.shipped.name)

    def predict(self, width: int) -> Any:
        """Boxes on the smear at ``width`` px, in px of the image."""
        inferencer = Inferencer(
            cfg=read_config(self.shipped.config_file),
            checkpoint=self.shipped.name,
            long_side=width,
        )
        found, _ = inferencer(np.ascontiguousarray(self.smear.image[..., ::-1]), score_thr=0.5)
        return found


def draw_wide() -> Figure:
    """The picture for a page of about 880 px: a point of the curve below each panel."""
    model = Detector()
    card = model.card
    sheet, base, gap, left = Sheet(880, 562), 284, 22, 18
    widths = [score.width for score in card.scores]
    scale = (880 - 2 * left - gap * (len(widths) - 1)) / sum(widths)
    title = f'{TITLE}: a drawn blood smear at several widths, to scale'
    sheet.write(left, 34, title, 16, weight='bold')
    sheet.legend(left, 76, step=(0, 24))
    places, x = [], float(left)
    for width in widths:
        sheet.smear(x, base, width, scale, model)
        places.append(x + width * scale / 2)
        x += width * scale + gap
    title = f'Box AP (%) on the {card.images} real test images of BCCD, scaled to these widths'
    sheet.write(left, 374, title, 16, weight='bold')
    remark = f'{card.advice} (at least {GOOD:.0%} of the best AP)'
    sheet.curve(places, card, top=384, bottom=516, remark=remark, has_ticks=False)
    sheet.write(left, 542, card.training, color=SOFT)
    return sheet.figure


def draw_narrow() -> Figure:
    """The picture for a phone, 350 px wide: three panels, and the curve over the widths."""
    model = Detector()
    card = model.card
    sheet, scale, left = Sheet(350, 790), 0.49, 18
    sheet.write(left, 34, TITLE, 16, weight='bold')
    sheet.write(left, 54, 'A drawn blood smear, to scale')
    sheet.legend(left, 82, step=(100, 0))
    widths = [score.width for score in card.scores]
    small, middle, large = widths[0], widths[1], widths[-1]
    sheet.smear(left, 220, small, scale, model)
    sheet.smear(left + small * scale + 40, 220, middle, scale, model)
    sheet.smear(left, 536, large, scale, model)
    sheet.write(left, 612, 'Box AP (%) by image width', 16, weight='bold')
    sheet.write(left, 632, f'{card.images} real test images of BCCD')
    places = [70 + 240 * (width - small) / (large - small) for width in widths]
    sheet.curve(places, card, top=640, bottom=732, remark=card.advice, has_ticks=True)
    sheet.write(left, 774, card.training, color=SOFT)
    return sheet.figure
