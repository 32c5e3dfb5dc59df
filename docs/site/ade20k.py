"""The plot of docs/models.md: mIoU on ADE20K by time, of models that run by name and of peers."""

from pathlib import Path

import pandas as pd
import sheet as sheets
import zoo
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from sheet import POINTS, Sheet

# Of each kind: start of its names, text of the legend, colours by theme.
KINDS = {
    'eomt_': ('EoMT', dict(light='#7a3fa0', dark='#c79be8')),
    'segmenter_': ('Segmenter', dict(light='#1b5e9e', dark='#7db4f0')),
    'semantic_fpn_twins_pcpvt_': (
        'Semantic FPN, PyramidCPVT',
        dict(light='#b4540a', dark='#f0a35e'),
    ),
    'upernet_twins_pcpvt_': ('UPerNet, PyramidCPVT', dict(light='#8a6d00', dark='#e3c44a')),
    '': ('others by name', dict(light='#9aa1ab', dark='#7f8792')),
    '*peer: ': ('peers: Semantic FPN (left), UPerNet', dict(light='#5f6670', dark='#b4bac4')),
}
PEERS = '*peer: '
# Offsets in px of the labels from their points.
LABELS = {
    'eomt_large-ade20k': ('EoMT-L', (-8, -4)),
    'segmenter_vit_tiny-ade20k': ('T', (0, 9)),
    'segmenter_vit_small-ade20k': ('Segmenter-S', (-8, 5)),
    'segmenter_linear_vit_small-ade20k': ('linear', (-8, -5)),
    'segmenter_vit_base-ade20k': ('B', (0, 9)),
    'segmenter_vit_large-ade20k': ('L', (0, 9)),
    'semantic_fpn_twins_pcpvt_small-ade20k': ('S', (-7, -14)),
    'semantic_fpn_twins_pcpvt_base-ade20k': ('B', (5, -16)),
    'semantic_fpn_twins_pcpvt_large-ade20k': ('L', (9, -4)),
    'upernet_twins_pcpvt_small-ade20k': ('S', (10, -5)),
    'upernet_twins_pcpvt_base-ade20k': ('B', (-9, -2)),
    'upernet_twins_pcpvt_large-ade20k': ('L', (-9, -1)),
    'upernet_beit_base-ade20k': ('BEiT-B', (0, 9)),
    'upernet_twins_svt_large-ade20k': ('SVT-L', (9, -2)),
    '*peer: UPerNet, Swin-T*': ('Swin-T', (-9, -5)),
    '*peer: UPerNet, ResNet-50*': ('ResNet-50', (0, -18)),
    '*peer: Semantic FPN, Swin-T*': ('Swin-T', (9, -4)),
    '*peer: Semantic FPN, PVT-S*': ('PVT-S', (9, -4)),
    '*peer: Semantic FPN, ResNet-50*': ('ResNet-50', (9, -4)),
}


def read_points() -> pd.DataFrame:
    """The mIoU, seconds and kind by name of the model, as in the table of the page."""
    index = zoo.read_index()
    entries = {
        name: entry
        for name, entry in index.items()
        if 'backbone' not in entry and zoo.part_of(entry) == 'ADE20K'
    }
    rows = zoo.rows_of('ADE20K', entries, ['mIoU'])
    table = pd.DataFrame([row[:3] for row in rows], columns=['name', 'miou', 'ms'])
    table.name = table.name.str.strip('`')
    kinds = sorted(KINDS, key=len, reverse=True)
    table['kind'] = [next(kind for kind in kinds if name.startswith(kind)) for name in table.name]
    table['seconds'] = table.ms.astype(int) / 1000
    return table.assign(miou=table.miou.astype(float)).set_index('name')


def plot(axis: Axes, theme: str, ground: str, ink: str) -> None:
    """Draw the points; sizes of one model are joined."""
    points = read_points()
    for order, (kind, (_, colours)) in enumerate(KINDS.items()):
        colour, some = colours[theme], points[points.kind == kind].sort_values('seconds')
        marker = 'D' if kind == PEERS else 'o'
        axis.scatter(some.seconds, some.miou, s=26, color=colour, marker=marker, zorder=3)
        if kind not in ('', PEERS):
            sizes = some[~some.index.str.contains('linear')]
            axis.plot(sizes.seconds, sizes.miou, color=colour, linewidth=1.4, zorder=2 - order / 9)
        for name, row in some.iterrows():
            text, (right, up) = LABELS.get(str(name), ('', (0, 0)))
            axis.annotate(
                text,
                (row.seconds, row.miou),
                xytext=(right * POINTS, up * POINTS),
                textcoords='offset points',
                ha='left' if right > 4 else 'right' if right < -4 else 'center',
                color=colour,
                fontsize=12 * POINTS,
            )
    style = dict(color=ink, fontsize=12 * POINTS)
    axis.set_xscale('log')
    axis.set(xlim=(0.18, 8.2), ylim=(35.5, 60), facecolor=ground)
    ticks = [0.2, 0.5, 1, 2, 5]
    axis.set_xticks(ticks, [f'{tick:g}' for tick in ticks])
    axis.set_xticks([], minor=True)
    axis.set_xlabel('Seconds per image, log scale (512 px, two cores of an AMD EPYC)', **style)
    axis.text(0.01, 0.985, 'mIoU', transform=axis.transAxes, va='top', **style)
    axis.spines[['top', 'right']].set_visible(False)
    axis.spines[:].set_color(ink)
    axis.tick_params(colors=ink, labelsize=12 * POINTS)


def legend(sheet: Sheet, places: list[tuple[int, int]]) -> None:
    """Write what the colours mean."""
    for (x, y), (kind, (text, colours)) in zip(places, KINDS.items(), strict=True):
        axis = sheet.axis(x - 8, y - 8, 16, 16)
        axis.scatter(0, 0, s=30, color=colours[sheet.theme], marker='D' if kind == PEERS else 'o')
        axis.axis('off')
        sheet.write(x + 12, y + 4, text, 12)


def draw(theme: str) -> Figure:
    """The picture for a page of about 830 px."""
    sheet = Sheet(830, 430, theme)
    plot(sheet.axis(38, 12, 780, 320), theme, sheet.ground, sheet.ink)
    legend(sheet, [(22 + 260 * (i // 2), 388 + 22 * (i % 2)) for i in range(6)])
    return sheet.figure


def draw_narrow(theme: str) -> Figure:
    """The picture for a phone."""
    sheet = Sheet(358, 520, theme)
    axis = sheet.axis(28, 10, 322, 330)
    plot(axis, theme, sheet.ground, sheet.ink)
    axis.set_xlabel('Seconds, log scale, on two cores of an AMD EPYC', fontsize=12 * POINTS)
    legend(sheet, [(20, 396 + 22 * i) for i in range(6)])
    return sheet.figure


def save(folder: Path) -> None:
    """Write the picture for both themes and both widths."""
    sheets.save(draw, folder / 'ade20k')
    sheets.save(draw_narrow, folder / 'ade20k_narrow')
