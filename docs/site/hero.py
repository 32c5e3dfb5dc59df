"""The first picture of README and site: box AP by time and memory, and detections by training.

AP is published; time and memory are those of docs/benchmarks/detectors.csv. Lengths are px of the
shown picture, from its upper left corner.
"""

import textwrap
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import pandas as pd
from cards import THEMES
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from cpvt_backbones.weights import published_weights

DOCS = Path(__file__).parents[1]
POINTS = 0.72  # of a px: the figure has 100 px an inch
FAMILY, OURS = 'PVTv2', 'PyramidCPVT-S'
# By theme: models that run by name, the backbone with PEG, and other backbones.
COLOURS = {
    'light': {FAMILY: '#1b5e9e', OURS: '#b4540a', '': '#5f6670'},
    'dark': {FAMILY: '#7db4f0', OURS: '#f0a35e', '': '#b4bac4'},
}
COSTS = {'ms': 'Seconds per image', 'mib': 'Memory of a call, MiB'}
LIMITS = {'ms': (1.6, 7.9), 'mib': (100, 560)}
# Offsets in px of the labels that would lie on a line or on another label; others are to the right.
OFFSETS = {
    ('ms', 'PVT-S'): (9, -5),
    ('ms', 'Swin-T'): (9, -2),
    ('ms', 'PVTv2-B1'): (-9, -2),
    ('ms', 'PVTv2-B2'): (-9, -2),
    ('ms', 'PVTv2-B3'): (8, -15),
    ('ms', 'PVTv2-B4'): (-4, 10),
    ('ms', 'PVTv2-B5'): (0, -20),
    ('mib', 'Swin-T'): (-9, -5),
    ('mib', 'PVTv2-B3'): (9, -11),
    ('mib', 'PVTv2-B4'): (9, -1),
    ('mib', 'PVTv2-B0'): (9, -2),
}
# Upper left corner and side in px of a photograph in cells.webp, with the texts of that picture.
SIDE = 406
PHOTOS = {(11, 88): 'before: 8 of 27 cells found', (441, 88): 'after 41 min: 23, 2 extra'}
SOURCE = (
    'AP: Twins’ paper, RetinaNet 1x, one recipe; PVTv2: mmdet. Time and memory: this repository,'
    ' 800 x 1344 px, AMD EPYC, 2 cores.'
)


def read_points() -> pd.DataFrame:
    """Box AP, milliseconds and peak MiB by backbone, in the order of the measurement."""
    measured = pd.read_csv(DOCS / 'benchmarks/detectors.csv').set_index('backbone')
    ap = pd.read_csv(DOCS / 'benchmarks/twins_tables.csv').set_index('backbone').box_ap.to_dict()
    for name, entry in published_weights().items():
        if name.startswith('retinanet_pvtv2_'):
            ap[f'{FAMILY}-{name[16:18].upper()}'] = entry.scores['box AP']
    return measured.assign(ap=pd.Series(ap))


@dataclass
class Sheet:
    """A card of ``width`` x ``height`` px in the colours of a theme."""

    width: int
    height: int
    theme: str

    def __post_init__(self) -> None:
        self.ground, self.ink, *_ = THEMES[self.theme]
        size = (self.width / 100, self.height / 100)
        self.figure = Figure(figsize=size, facecolor=self.ground)

    def axis(self, x: float, y: float, width: float, height: float) -> Axes:
        """Axes at a place of the sheet."""
        bottom = self.height - y - height
        place = (x / self.width, bottom / self.height, width / self.width, height / self.height)
        return self.figure.add_axes(place)

    def write(self, x: float, y: float, text: str, size: float = 13, **style: Any) -> None:
        """Write at a base line, ``size`` px high."""
        style = dict(color=self.ink, va='baseline') | style
        place = (x / self.width, 1 - y / self.height)
        self.figure.text(*place, text, fontsize=size * POINTS, **style)


def plot(sheet: Sheet, axis: Axes, cost: str) -> None:
    """Draw box AP by a column of the measurement; models that run by name are joined over time."""
    points, colours = read_points(), COLOURS[sheet.theme]
    points['x'] = points[cost] / (1000 if cost == 'ms' else 1)
    named = points[points.index.str.startswith(FAMILY)]
    if cost == 'ms':
        axis.plot(named.x, named.ap, color=colours[FAMILY], linewidth=1.2, zorder=1)
    for name, row in points.iterrows():
        colour = next(colours[key] for key in colours if str(name).startswith(key))
        axis.scatter(row.x, row.ap, s=60, color=colour, edgecolor=sheet.ground, zorder=2)
        right, up = OFFSETS.get((cost, str(name)), (9, -5))
        axis.annotate(
            label(str(name), row.ap, cost),
            (row.x, row.ap),
            xytext=(right * POINTS, up * POINTS),
            textcoords='offset points',
            ha='left' if right > 0 else 'right' if right < -4 else 'center',
            color=colour,
            weight='bold' if name == OURS else 'normal',
            fontsize=12 * POINTS,
        )
    axis.set(xlim=LIMITS[cost], ylim=(35.5, 47.5), facecolor=sheet.ground)
    axis.set_xlabel(COSTS[cost], color=sheet.ink, fontsize=13 * POINTS)
    axis.spines[['top', 'right']].set_visible(False)
    axis.spines[:].set_color(sheet.ink)
    axis.tick_params(colors=sheet.ink, labelsize=12 * POINTS)


def label(name: str, ap: float, cost: str) -> str:
    """Name at a point, short for all but the first of the family; its AP in the first plot."""
    shown = name if name == f'{FAMILY}-B0' else name.removeprefix(f'{FAMILY}-')
    return f'{shown} {ap:.1f}' if cost == 'ms' else shown


def photos(sheet: Sheet, x: float, y: float, side: float, step: tuple[float, float]) -> None:
    """Draw the photographs with their boxes, and what was found below each."""
    picture = Image.open(DOCS / 'figures/cells.webp')
    for place, (corner, text) in enumerate(PHOTOS.items()):
        left, top = x + place * step[0], y + place * step[1]
        axis = sheet.axis(left, top, side, side)
        axis.imshow(picture.crop((*corner, corner[0] + SIDE, corner[1] + SIDE)))
        axis.axis('off')
        sheet.write(left, top + side + 17, text, 12)


def draw(theme: str) -> Figure:
    """The picture for a page of about 830 px."""
    sheet = Sheet(830, 486, theme)
    sheet.write(14, 28, 'Box AP on COCO', 16, weight='bold')
    plot(sheet, sheet.axis(36, 44, 348, 364), 'ms')
    memory = sheet.axis(402, 44, 206, 364)
    plot(sheet, memory, 'mib')
    memory.tick_params(labelleft=False)
    sheet.write(630, 28, 'A small detector', 16, weight='bold')
    photos(sheet, 630, 40, 184, (0, 208))
    sheet.write(14, 474, SOURCE, 12)
    return sheet.figure


def draw_narrow(theme: str) -> Figure:
    """The picture for a phone."""
    sheet = Sheet(358, 876, theme)
    sheet.write(8, 26, 'Box AP on COCO', 16, weight='bold')
    plot(sheet, sheet.axis(28, 40, 322, 250), 'ms')
    plot(sheet, sheet.axis(28, 350, 322, 190), 'mib')
    for line, text in enumerate(textwrap.wrap(SOURCE, 54)):
        sheet.write(8, 606 + 17 * line, text, 12)
    sheet.write(8, 674, 'A small detector', 16, weight='bold')
    photos(sheet, 8, 684, 167, (175, 0))
    return sheet.figure


def save(folder: Path) -> None:
    """Write the picture for both themes and both widths."""
    for name, draw_one in (('hero', draw), ('hero_narrow', draw_narrow)):
        for theme, ending in (('light', ''), ('dark', '_dark')):
            drawn = BytesIO()
            draw_one(theme).savefig(drawn, dpi=200)
            picture = Image.open(drawn).convert('RGB')
            picture.save(folder / f'{name}{ending}.webp', quality=85, method=6)
