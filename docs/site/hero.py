"""The first picture of README and site: box AP by time and memory, and a prediction.

AP is published; time and memory are those of docs/benchmarks/detectors.csv.
"""

from collections.abc import Sequence
from pathlib import Path

import before_after
import numpy as np
import pandas as pd
import sheet as sheets
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from sheet import POINTS, Sheet

from cpvt_backbones.weights import published_weights

DOCS = Path(__file__).parents[1]
FAMILY, OURS, BASE = 'PVTv2', 'PyramidCPVT-S', 'ResNet-50'
# By theme: models that run by name, the backbone with PEG, and other backbones.
COLOURS = {
    'light': {FAMILY: '#1b5e9e', OURS: '#b4540a', '': '#5f6670'},
    'dark': {FAMILY: '#7db4f0', OURS: '#f0a35e', '': '#b4bac4'},
}
KINDS = {
    OURS: 'PyramidCPVT: you train it',
    FAMILY: 'PVTv2: COCO weights, by name',
    '': 'other backbones',
}
LIMITS = dict(xlim=(0.3, 8.1), ylim=(35.2, 47.6))
AREA = 0.6  # of a marker, in square points per MiB
SAMPLES = (150, 350)  # MiB, in the legend
# Offsets in px of the labels, from the middle of the marker; others are to the right.
OFFSETS = {
    'PVTv2-B0': (-10, -10),
    'Swin-T': (15, -4),  # on the arrow, which it covers
    'PVTv2-B1': (-15, -8),
    'PVTv2-B2': (-16, -3),
    'PVTv2-B3': (-6, 12),
    'PVTv2-B4': (-4, 17),
    'PVTv2-B5': (-3, -24),
}
NEW_LINES = dict.fromkeys(('PVTv2-B0', 'PVTv2-B1'), '\n')
SHOWN = 'image-84.jpg'  # a photograph of which all cells are found
SOURCE = (
    'RetinaNet on COCO. AP: Twins paper; PVTv2: mmdet.',
    'Time, memory: 800 x 1344 px (training: 512 px)',
    'on two cores of an AMD EPYC.',
)


def read_points() -> pd.DataFrame:
    """Box AP, milliseconds and peak MiB by backbone, in the order of the measurement."""
    measured = pd.read_csv(DOCS / 'benchmarks/detectors.csv').set_index('backbone')
    ap = pd.read_csv(DOCS / 'benchmarks/twins_tables.csv').set_index('backbone').box_ap.to_dict()
    for name, entry in published_weights().items():
        if name.startswith('retinanet_pvtv2_'):
            ap[f'{FAMILY}-{name[16:18].upper()}'] = entry.scores['box AP']
    return measured.assign(ap=pd.Series(ap))


def heading() -> str:
    """What the plot says."""
    ap = read_points().ap
    return f'Replace {BASE}: +{ap[OURS] - ap[BASE]:.1f} box AP'


def caption() -> tuple[str, str, str]:
    """Start and time of the training, and what its model finds on photographs for validation."""
    images = list(before_after.read_labels())
    labelled, found, extra = before_after.count(images)
    return (
        f'Our cell model, fine-tuned: 80 photos, {before_after.MINUTES} min, CPU.',
        f'{len(images)} others: {found} of {labelled} found, {extra} false'
        f' (score ≥ {before_after.SCORE}).',
        'Dashed: false positive.',
    )


def plot(sheet: Sheet, axis: Axes) -> None:
    """Draw box AP by seconds; a marker's area is the memory. Models that run by name are joined."""
    points, colours = read_points(), COLOURS[sheet.theme]
    points['x'] = points.ms / 1000
    gain(axis, points.loc[BASE], points.loc[OURS], colours[OURS])
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
            bbox=dict(facecolor=sheet.ground, edgecolor='none', pad=0.5),
            zorder=1.5,
        )
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
    training = pd.read_csv(DOCS / 'benchmarks/detectors_train.csv').set_index('backbone')
    pairs = dict(predict=(ours, base), train=(training.loc[OURS], training.loc[BASE]))
    lines = [
        f'{kind}: time × {one.ms / other.ms:.1f}, memory × {one.mib / other.mib:.1f}'
        for kind, (one, other) in pairs.items()
    ]
    text = '\n'.join(lines)
    axis.text(x, y - 0.2, text, color=colour, va='top', fontsize=11 * POINTS)


def legend(sheet: Sheet, places: Sequence[tuple[float, float]]) -> None:
    """Write what the colours and areas of the markers mean, at four places."""
    colours = COLOURS[sheet.theme]
    *coloured, (x, y) = places
    for (left, middle), (kind, text) in zip(coloured, KINDS.items(), strict=True):
        dot(sheet, left, middle, 130, colours[kind])
        sheet.write(left + 14, middle + 4, text, 12)
    for place, memory in enumerate(SAMPLES):
        dot(sheet, x + 22 * place, y, memory, colours[''])
    sheet.write(x + 40, y + 4, f'area: memory; {SAMPLES[0]}, {SAMPLES[1]} MiB', 12)


def dot(sheet: Sheet, x: float, y: float, memory: float, colour: str) -> None:
    """Draw a marker as large as that of ``memory`` MiB."""
    axis = sheet.axis(x - 15, y - 15, 30, 30)
    axis.scatter(0, 0, s=AREA * memory, color=colour)
    axis.axis('off')


def draw(theme: str) -> Figure:
    """The picture for a page of about 830 px."""
    sheet = Sheet(830, 478, theme)
    sheet.write(14, 30, heading(), 17, weight='bold')
    plot(sheet, sheet.axis(38, 48, 424, 284))
    legend(sheet, [(22, 386), (220, 386), (22, 406), (220, 406)])
    sheet.write(482, 30, 'Train it on your pictures', 17, weight='bold')
    before_after.photograph(sheet, (482, 44, 334), SHOWN, 'trained', tags=True)
    for line, text in enumerate(SOURCE):
        sheet.write(14, 433 + 17 * line, text, 12)
    for line, text in enumerate(caption()):
        sheet.write(482, 400 + 17 * line, text, 12)
    return sheet.figure


def draw_narrow(theme: str) -> Figure:
    """The picture for a phone."""
    sheet = Sheet(358, 975, theme)
    sheet.write(8, 28, heading(), 15.5, weight='bold')
    plot(sheet, sheet.axis(28, 44, 322, 300))
    legend(sheet, [(20, 402 + 19 * line) for line in range(4)])
    sheet.write(8, 553, 'Train it on your pictures', 15.5, weight='bold')
    before_after.photograph(sheet, (8, 565, 342), SHOWN, 'trained', tags=True)
    for line, text in enumerate(SOURCE):
        sheet.write(8, 486 + 17 * line, text, 11)
    for line, text in enumerate(caption()):
        sheet.write(8, 927 + 17 * line, text, 11.5)
    return sheet.figure


def save(folder: Path) -> None:
    """Write the picture for both themes and both widths."""
    sheets.save(draw, folder / 'hero')
    sheets.save(draw_narrow, folder / 'hero_narrow')
