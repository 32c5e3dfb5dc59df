"""The first picture of README and site: box AP by time and memory, and a prediction.

AP is published; time and memory are those of docs/benchmarks/detectors.csv. Boxes of the cells are
those of docs/evidence/cells.csv. Lengths are px of the shown picture, from its upper left corner.
"""

import json
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from cards import THEMES
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image

from cpvt_backbones.analysis.matching import match
from cpvt_backbones.weights import published_weights

DOCS = Path(__file__).parents[1]
CELLS = DOCS.parent / 'demo/cells'
POINTS = 0.72  # of a px: the figure has 100 px an inch
FAMILY, OURS, BASE = 'PVTv2', 'PyramidCPVT-S', 'ResNet-50'
# By theme: models that run by name, the backbone with PEG, and other backbones.
COLOURS = {
    'light': {FAMILY: '#1b5e9e', OURS: '#b4540a', '': '#5f6670'},
    'dark': {FAMILY: '#7db4f0', OURS: '#f0a35e', '': '#b4bac4'},
}
KINDS = {
    OURS: 'this package: you train it',
    FAMILY: 'PVTv2: runs by name',
    '': 'other backbones',
}
LIMITS = dict(xlim=(0.3, 8.1), ylim=(35.2, 47.6))
AREA = 0.42  # of a marker, in square points per MiB
SAMPLES = (100, 400)  # MiB, in the legend
# Offsets in px of the labels, from the middle of the marker; others are to the right.
OFFSETS = {
    'PVTv2-B0': (-10, -10),
    'Swin-T': (25, -4),  # the arrow passes between
    'PVTv2-B1': (-15, -8),
    'PVTv2-B2': (-16, -3),
    'PVTv2-B3': (2, -26),
    'PVTv2-B4': (-4, 17),
    'PVTv2-B5': (-3, -24),
}
NEW_LINES = dict.fromkeys(('PVTv2-B0', 'PVTv2-B1'), '\n')
SHOWN = 'image-84.jpg'  # the photograph of which all cells are found
SCORE = 0.5  # the least of a box
CORNERS = ['x1', 'y1', 'x2', 'y2']
BOXES = {'red cell': '#ffd447', 'white cell': '#22d3ee'}
MINUTES = 19  # of the training, docs/own_data.md
SOURCE = (
    'COCO, RetinaNet 1x. AP: Twins paper; PVTv2: mmdet.',
    'Time, memory: 800 x 1344 px on two cores of an AMD EPYC.',
)


def read_points() -> pd.DataFrame:
    """Box AP, milliseconds and peak MiB by backbone, in the order of the measurement."""
    measured = pd.read_csv(DOCS / 'benchmarks/detectors.csv').set_index('backbone')
    ap = pd.read_csv(DOCS / 'benchmarks/twins_tables.csv').set_index('backbone').box_ap.to_dict()
    for name, entry in published_weights().items():
        if name.startswith('retinanet_pvtv2_'):
            ap[f'{FAMILY}-{name[16:18].upper()}'] = entry.scores['box AP']
    return measured.assign(ap=pd.Series(ap))


def read_boxes() -> pd.DataFrame:
    """Boxes of the trained detector with a score of at least ``SCORE``."""
    boxes = pd.read_csv(DOCS / 'evidence/cells.csv')
    return boxes[(boxes.model == 'trained') & (boxes.score >= SCORE)]


def heading() -> str:
    """What the plot says."""
    ap = read_points().ap
    return f'Replace {BASE}: +{ap[OURS] - ap[BASE]:.1f} box AP'


def caption() -> tuple[str, str]:
    """What the training took, and what its model finds on the photographs for validation."""
    coco = json.loads((CELLS / 'annotations/instances_val.json').read_text(encoding='utf-8'))
    names = {one['id']: one['name'] for one in coco['categories']}
    boxes, found, cells_in_all = read_boxes(), 0, len(coco['annotations'])
    for image in coco['images']:
        cells = [one for one in coco['annotations'] if one['image_id'] == image['id']]
        left, top, width, height = np.array([one['bbox'] for one in cells]).T
        corners = np.stack([left, top, left + width, top + height], 1)
        drawn = boxes[boxes.image == image['file_name']]
        labels = [names[one['category_id']] for one in cells]
        found += int((match(drawn[CORNERS], drawn['class'], corners, labels) >= 0).sum())
    return (
        f'{MINUTES} minutes on a CPU thread, 80 photographs.',
        f'{len(coco["images"])} others: {found} of {cells_in_all} cells found, '
        f'{len(boxes) - found} extra boxes.',
    )


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


def plot(sheet: Sheet, axis: Axes) -> None:
    """Draw box AP by seconds; a marker's area is the memory. Models that run by name are joined."""
    points, colours = read_points(), COLOURS[sheet.theme]
    points['x'] = points.ms / 1000
    named = points[points.index.str.startswith(FAMILY)]
    axis.plot(named.x, named.ap, color=colours[FAMILY], linewidth=1, alpha=0.5, zorder=1)
    for name, row in points.iterrows():
        colour = next(colours[key] for key in colours if str(name).startswith(key))
        style = dict(color=colour, edgecolor=sheet.ground, zorder=2)
        axis.scatter(row.x, row.ap, s=AREA * row.mib, **style)
        radius = (AREA * row.mib / np.pi) ** 0.5 / POINTS
        right, up = OFFSETS.get(str(name), (radius + 4, -4))
        axis.annotate(
            f'{name}{NEW_LINES.get(str(name), " ")}{row.ap:.1f}',
            (row.x, row.ap),
            xytext=(right * POINTS, up * POINTS),
            textcoords='offset points',
            ha='left' if right > 4 else 'right' if right < -4 else 'center',
            color=colour,
            linespacing=1,
            weight='bold' if name == OURS else 'normal',
            fontsize=(13 if name == OURS else 12) * POINTS,
        )
    gain(axis, points.loc[BASE], points.loc[OURS], colours[OURS])
    axis.set(**LIMITS, facecolor=sheet.ground)
    style = dict(color=sheet.ink, fontsize=12 * POINTS)
    axis.set_xlabel('Seconds per image on a CPU', **style)
    axis.text(0.02, 0.985, 'Box AP', transform=axis.transAxes, **style)
    axis.spines[['top', 'right']].set_visible(False)
    axis.spines[:].set_color(sheet.ink)
    axis.tick_params(colors=sheet.ink, labelsize=12 * POINTS)


def gain(axis: Axes, base: pd.Series, ours: pd.Series, colour: str) -> None:
    """Draw an arrow from the base to our backbone, with what changes beside it."""
    arrow = dict(arrowstyle='-|>', color=colour, linewidth=1.6, shrinkA=8, shrinkB=8)
    axis.annotate('', (ours.x, ours.ap), (base.x, base.ap), arrowprops=arrow, zorder=1)
    x, y = (base.x + ours.x) / 2 + 0.14, (base.ap + ours.ap) / 2 - 0.5
    style = dict(color=colour, weight='bold')
    axis.text(x, y, f'+{ours.ap - base.ap:.1f} AP', fontsize=16 * POINTS, **style)
    text = f'time x {ours.ms / base.ms:.1f}\nmemory x {ours.mib / base.mib:.1f}'
    axis.text(x - 0.12, y - 0.2, text, color=colour, va='top', fontsize=11 * POINTS)


def legend(sheet: Sheet, x: float, y: float, step: float = 19) -> None:
    """Write what the colours and areas of the markers mean, a line each."""
    colours = COLOURS[sheet.theme]
    for line, (kind, text) in enumerate(KINDS.items()):
        dot(sheet, x, y + line * step, 130, colours[kind])
        sheet.write(x + 14, y + line * step + 4, text, 12)
    y += len(KINDS) * step
    for place, memory in enumerate(SAMPLES):
        dot(sheet, x + 20 * place, y, memory, colours[''])
    sheet.write(x + 38, y + 4, f'memory: {SAMPLES[0]}, {SAMPLES[1]} MiB', 12)


def dot(sheet: Sheet, x: float, y: float, memory: float, colour: str) -> None:
    """Draw a marker as large as that of ``memory`` MiB."""
    axis = sheet.axis(x - 15, y - 15, 30, 30)
    axis.scatter(0, 0, s=AREA * memory, color=colour)
    axis.axis('off')


def prediction(sheet: Sheet, x: float, y: float, side: float) -> None:
    """Draw the photograph with its boxes; the name of a class stands at its first box."""
    axis = sheet.axis(x, y, side, side)
    photo = Image.open(CELLS / 'val' / SHOWN)
    shown = photo.resize((1024, 1024), Image.Resampling.LANCZOS)
    width = photo.width
    axis.imshow(shown, extent=(0, width, width, 0))
    boxes = read_boxes()
    for _, box in boxes[boxes.image == SHOWN].iloc[::-1].iterrows():
        x1, y1, x2, y2 = np.clip(box[CORNERS].to_numpy(float), 1, width - 1)
        colour = BOXES[box['class']]
        style = dict(facecolor=f'{colour}26', edgecolor=colour, linewidth=1.5)
        axis.add_patch(Rectangle((x1, y1), x2 - x1, y2 - y1, **style))
        tag = dict(boxstyle='square,pad=0.15', facecolor=colour, edgecolor='none')
        text = f'{box["class"].partition(" ")[0]} {box.score:.2f}'
        place = dict(va='bottom', ha='left', bbox=tag, color='#14181f')
        axis.text(x1 + 1.5, max(y1 - 0.5, 10), text, fontsize=9.5 * POINTS, **place)
    axis.axis('off')


def draw(theme: str) -> Figure:
    """The picture for a page of about 830 px."""
    sheet = Sheet(830, 432, theme)
    sheet.write(14, 30, heading(), 17, weight='bold')
    plot(sheet, sheet.axis(38, 48, 424, 300))
    legend(sheet, 286, 277, 18)
    sheet.write(482, 30, 'Train it on your pictures', 17, weight='bold')
    prediction(sheet, 482, 44, 334)
    for line, (left, right) in enumerate(zip(SOURCE, caption(), strict=True)):
        sheet.write(14, 406 + 17 * line, left, 12)
        sheet.write(482, 400 + 17 * line, right, 12)
    return sheet.figure


def draw_narrow(theme: str) -> Figure:
    """The picture for a phone."""
    sheet = Sheet(358, 940, theme)
    sheet.write(8, 28, heading(), 15.5, weight='bold')
    plot(sheet, sheet.axis(28, 44, 322, 300))
    legend(sheet, 20, 402)
    sheet.write(8, 536, 'Train it on your pictures', 15.5, weight='bold')
    prediction(sheet, 8, 548, 342)
    for line, (above, below) in enumerate(zip(SOURCE, caption(), strict=True)):
        sheet.write(8, 484 + 17 * line, above, 11.5)
        sheet.write(8, 910 + 17 * line, below, 11.5)
    return sheet.figure


def save(folder: Path) -> None:
    """Write the picture for both themes and both widths."""
    for name, draw_one in (('hero', draw), ('hero_narrow', draw_narrow)):
        for theme, ending in (('light', ''), ('dark', '_dark')):
            drawn = BytesIO()
            draw_one(theme).savefig(drawn, dpi=200)
            picture = Image.open(drawn).convert('RGB')
            picture.save(folder / f'{name}{ending}.webp', quality=85, method=6)
