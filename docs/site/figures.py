"""Draw the pictures of README and docs: python docs/site/figures.py

They come from the package's own functions and from the models that ship.
"""

import sys
from io import BytesIO, StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import matplotlib

matplotlib.use('Agg')
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_hex, to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image, ImageOps

sys.path.extend(
    str(Path(__file__).resolve().parents[2] / name) for name in ('', 'demo', 'projects', 'tools')
)

import ade20k
import before_after
import cards
import cell_masks
import hero
import make_config
import terminal
from example_images import SEGMENTOR, open_street

from cpvt_backbones import CPVT, PEG, MultiScaleCPVT, PyramidCPVT
from cpvt_backbones.inference import Inferencer
from cpvt_backbones.inference.tiles import make_grid, ramp_weights
from cpvt_backbones.toolboxes import read_config
from cpvt_backbones.weights import find_shipped, shipped_weights

FOLDER = Path(__file__).parents[1] / 'figures'
CELLS = Path(__file__).parents[2] / 'demo/cells'
MASKS = CELLS.with_name('cell_masks')
# Black and white text is readable on BLUE, ORANGE and LIGHT.
BLUE, ORANGE, GREEN, LIGHT = '#4f86cc', '#d9822b', '#3f8f5f', '#a3a3a3'
INK = '#101010'  # text on these colours
GROUND, TEXT, *_ = cards.THEMES['light']

TOP = 16  # height of a backbone in its picture, layers of height 1 but for the last
WIDTHS = {False: 9, True: 3.65}  # inches of a picture, and of its narrow form: 350 px on a phone


def panels(
    mosaic: str, height: float, *, narrow: bool = False, **options: Any
) -> tuple[Figure, list[Axes]]:
    """A figure of axes without ticks, origin at the top left.

    Args:
        mosaic: A letter a panel, rows split by ``;``: see matplotlib's ``subplot_mosaic``.
        height: Inches.
        narrow: For a phone.
        options: Of ``subplot_mosaic``.
    """
    size = (WIDTHS[narrow], height)
    figure, axes = plt.subplot_mosaic(mosaic, figsize=size, layout='constrained', **options)
    for axis in axes.values():
        axis.set(aspect='equal')
        axis.axis('off')
        axis.invert_yaxis()
    return figure, [axes[letter] for letter in sorted(axes)]


def cells(
    axis: Axes, colours: np.ndarray, side: float = 1, origin: float = 0, **options: object
) -> None:
    """A grid of cells, (rows, columns) of colours, from (``origin``, ``origin``) on."""
    for (row, column), colour in np.ndenumerate(colours):
        style = dict(facecolor=colour, edgecolor='white') | options
        corner = (origin + column * side, origin + row * side)
        axis.add_patch(Rectangle(corner, side, side, **style))
    axis.autoscale_view()


def peg(*, narrow: bool) -> Figure:
    """One cell's neighbourhood with its zeros, and what PEG makes of equal tokens: their place."""
    mosaic, height = ('AA;BC', 4.7) if narrow else ('ABC', 3.1)
    ratios = dict(width_ratios=(5, 9), height_ratios=(7, 5)) if narrow else {}
    figure, (tokens, *results) = panels(mosaic, height, narrow=narrow, **ratios)
    grid = np.full((7, 7), 'none', object)
    grid[1:-1, 1:-1] = BLUE
    cells(tokens, np.full((7, 7), 'none', object), edgecolor=LIGHT, linestyle=':')
    cells(tokens, grid[1:-1, 1:-1], origin=1)
    tokens.add_patch(Rectangle((3, 0), 3, 3, fill=False, edgecolor=ORANGE, linewidth=3))
    tokens.add_patch(Rectangle((4, 1), 1, 1, facecolor=ORANGE, edgecolor='white'))
    for row, column in np.argwhere(grid == 'none'):
        style = dict(ha='center', va='center', color=TEXT)
        tokens.text(column + 0.5, row + 0.5, '0', **style)
    tokens.set_title('Tokens as a map: the 3 x 3 weights of\na channel move over it, zeros outside')
    module = PEG(1, bias=False).requires_grad_(False)
    for parameter in module.parameters():
        parameter.fill_(1)
    colours = {5: ORANGE, 7: '#c9a94f', 10: BLUE}
    for axis, (rows, columns) in zip(results, ((5, 5), (5, 9)), strict=True):
        ones = torch.ones(1, rows * columns, 1)
        values = module(ones, (rows, columns)).view(rows, columns).numpy()
        cells(axis, np.vectorize(colours.get)(values.astype(int)))
        for (row, column), value in np.ndenumerate(values):
            style = dict(ha='center', va='center', color=INK)
            axis.text(column + 0.5, row + 0.5, f'{value:g}', **style)
        axis.set_title(f'After PEG: {rows} x {columns} equal\ntokens differ at the border')
    if narrow:
        results[0].set_title('After PEG,\n5 x 5 tokens')
        results[1].set_title('5 x 9 equal tokens:\nthey differ at the border')
    return figure


def backbones(*, narrow: bool) -> Figure:
    """Layers, from the bottom up, and outputs of the three backbones."""
    mosaic, height = ('A;B;C', 9.6) if narrow else ('ABC', 4)
    figure, axes = panels(mosaic, height, narrow=narrow)
    drawn = (
        (CPVT(arch='small'), {16: (9.5, 9.5)}),
        (
            MultiScaleCPVT(arch='small'),
            {4: (13.5, 2), 8: (13.5, 6), 16: (13.5, 10), 32: (13.5, 14)},
        ),
        (PyramidCPVT(arch='small'), {4: (3.5, 2), 8: (7.5, 6), 16: (11.5, 10), 32: (15.5, 14)}),
    )
    for axis, (model, maps) in zip(axes, drawn, strict=True):
        bottom = 0.0
        layers = layers_of(model)
        for index, (name, colour) in enumerate(layers):
            height = TOP - bottom if index == len(layers) - 1 else 1
            style = dict(facecolor=colour, edgecolor='white')
            axis.add_patch(Rectangle((0, bottom), 7, height, **style))
            axis.text(3.5, bottom + height / 2, name, color=INK, ha='center', va='center')
            bottom += height
        for stride, (start, end) in maps.items():
            arrow = dict(arrowstyle='->', color=TEXT)
            axis.annotate('', (9, end), (7, start), arrowprops=arrow)
            count = 32 // stride
            for row, place in np.ndindex(count, count):
                corner = (9 + 3 * place / count, end - 1.5 + 3 * row / count)
                style = dict(facecolor=GREEN, edgecolor='white', linewidth=0.5)
                axis.add_patch(Rectangle(corner, 3 / count, 3 / count, **style))
            axis.text(12.5, end, f'stride {stride}', va='center', color=TEXT)
        title = type(model).__name__
        axis.set(xlim=(-0.1, 16.5), ylim=(-0.1, TOP + 0.1))
        axis.set_title(title, weight='bold')
    axes[0].text(12.5, 8.25, 'or a vector', va='center', color=TEXT)
    return figure


def layers_of(model: CPVT | PyramidCPVT) -> list[tuple[str, str]]:
    """Names and colours of a backbone's layers, from the input on, with a PEG where it has one."""
    (encoding,) = model.position_encodings
    side = model.patch_size if isinstance(model, CPVT) else model.out_strides[0]
    layers = []
    for stage, depth in enumerate(model.depths):
        layers.append(('2 x 2 tokens' if stage else f'patches, {side} px', LIGHT))
        first = 0
        for block in range(depth):
            has_peg = (stage, block) in encoding.layer_ids
            if has_peg or block == depth - 1:
                name = f'block {block}' if first == block else f'blocks {first} to {block}'
                layers.append((name, BLUE))
                first = block + 1
            if has_peg:
                layers.append(('PEG', ORANGE))
    return layers


def multi_scale(*, narrow: bool) -> Figure:
    """The four maps of one image, each cell where its pixels are."""
    maps = MultiScaleCPVT(arch='tiny').eval()(torch.zeros(1, 3, 100, 150))
    figure, axes = panels(*(('AB;CD', 3.6) if narrow else ('ABCD', 2.2)), narrow=narrow)
    for axis, features, stride in zip(axes, maps, (4, 8, 16, 32), strict=True):
        channels, rows, columns = features.shape[1:]
        axis.add_patch(Rectangle((0, 0), columns * stride, rows * stride, facecolor=BLUE))
        axis.vlines(np.arange(columns) * stride, 0, rows * stride, 'white', linewidth=0.5)
        axis.hlines(np.arange(rows) * stride, 0, columns * stride, 'white', linewidth=0.5)
        axis.add_patch(Rectangle((0, 0), 150, 100, fill=False, edgecolor=ORANGE, linewidth=2))
        axis.set(xlim=(-2, 162), ylim=(130, -2))
        axis.set_title(f'Stride {stride}: {channels} x {rows} x {columns}')
    return figure


def any_size(*, narrow: bool) -> Figure:
    """Patches of three image sizes; hatched: the zeros that fill the last patches."""
    figure, axes = panels(*(('AC;BC', 3.9) if narrow else ('ABC', 3)), narrow=narrow)
    for axis, (height, width) in zip(axes, ((96, 96), (70, 150), (130, 41)), strict=True):
        (features,) = CPVT(arch='tiny', out_type='featmap').eval()(torch.zeros(1, 3, height, width))
        rows, columns = features.shape[2:]
        cells(axis, np.full((rows, columns), 'none', object), 16, hatch='////', edgecolor=LIGHT)
        axis.add_patch(Rectangle((0, 0), width, height, facecolor=BLUE))
        cells(axis, np.full((rows, columns), 'none', object), 16)
        axis.set(xlim=(-1, 161), ylim=(145, -1))
        axis.set_title(f'{height} x {width} px:\n{rows} x {columns} tokens', loc='left')
    return figure


def padded_batch(*, narrow: bool) -> Figure:
    """Where features of a padded image differ from those that it has alone."""
    torch.manual_seed(0)
    model = CPVT(arch='tiny', with_cls_token=False, out_type='featmap').eval()
    small, size = torch.randn(1, 3, 96, 128), (96, 128)
    batch = torch.zeros(2, 3, 160, 192)
    batch[0, :, :96, :128], batch[1] = small, torch.randn(3, 160, 192)
    with torch.no_grad():
        alone = model(small)[0][0]
        results = [
            model(batch, valid_sizes=sizes)[0][0, :, :6, :8] for sizes in (None, [size, (160, 192)])
        ]
    mosaic, height = ('AA;BC', 4.9) if narrow else ('ABC', 2.8)
    figure, (padded, *axes) = panels(mosaic, height, narrow=narrow)
    is_padding = np.logical_or.outer(np.arange(10) > 5, np.arange(12) > 7)
    cells(padded, np.where(is_padding, LIGHT, BLUE))
    padded.set_title('An image of 96 x 128 px in a\nbatch of 160 x 192 px; grey: padding')
    scale = LinearSegmentedColormap.from_list('differs', (BLUE, '#c9a94f', ORANGE))
    for axis, result, name in zip(axes, results, ('Without', 'With'), strict=True):
        error = (result - alone).norm(dim=0) / alone.norm(dim=0)
        picture = axis.pcolormesh(error.numpy(), cmap=scale, vmin=0, vmax=0.25, edgecolor='white')
        limit = f'up to {error.max():.2f}' if error.max() > 1e-5 else 'rounding, below 0.00001'
        axis.set_title(f'{name} valid_sizes:\n{limit}')
    bar = dict(location='bottom', pad=0.04) if narrow else dict(shrink=0.7)
    label = 'relative difference to the\nfeatures of the image alone'
    figure.colorbar(picture, ax=axes, label=label, ticks=(0, 0.1, 0.2), **bar)
    return figure


def tiles(*, narrow: bool) -> Figure:
    """Tiles of a large image, and the weights that blend a row of them."""
    grid = make_grid(1500, 2400, tile_size=1024, overlap=256)
    mosaic, height = ('A;B', 5) if narrow else ('AB', 3)
    size = (WIDTHS[narrow], height)
    figure, axes = plt.subplot_mosaic(mosaic, figsize=size, layout='constrained')
    image, weights = axes['A'], axes['B']
    columns = dict(left=BLUE, middle=ORANGE, right=GREEN)
    for (left, right), colour in zip(grid.columns, columns.values(), strict=True):
        for top, bottom in grid.rows:
            corner, sides = (left, top), (right - left, bottom - top)
            style = dict(facecolor=to_rgba(colour, 0.3), edgecolor=colour, linewidth=1.5)
            image.add_patch(Rectangle(corner, *sides, **style))
    image.set(xlim=(0, 2400), ylim=(1500, 0), aspect='equal', xlabel='px', ylabel='px')
    image.set_title('1500 x 2400 px: six tiles of 1024 px,\nstronger where they overlap')
    for span, weight, (name, colour) in zip(
        grid.columns, ramp_weights(grid.columns), columns.items(), strict=True
    ):
        weights.plot(np.arange(*span), weight, color=colour, linewidth=2)
        highest = np.flatnonzero(weight == weight.max()).mean()
        weights.text(span[0] + highest, 0.45, name, ha='center', color=TEXT)
    weights.set(xlabel='px from the left', ylabel='weight', ylim=(0, 1.05), xlim=(0, 2400))
    weights.set_title('Weights of the tiles in a row:\nthey sum to 1')
    for axis in (image, weights):
        axis.set_xticks(range(0, 2400, 1000 if narrow else 500))
    return figure


def cell_sheet(data: list[str], count: int) -> Image.Image:
    """The first ``count`` photographs of the sheet that make_config.py writes of labels."""
    with TemporaryDirectory() as folder:
        make_config.main([*data, '--out', f'{folder}/model.py', '--no-estimate'])
        return without_ground(Image.open(f'{folder}/model/sheet.jpg'), count, 488, 480)


def without_ground(whole: Image.Image, count: int, step: int, height: int) -> Image.Image:
    """Images of the first row of a sheet, without their captions and the white between them, so
    that they suit a dark page.

    Args:
        whole: The sheet.
        count: Number of images.
        step: Distance in px from the left edge of an image to that of the next one.
        height: Of an image, px.
    """
    images = []
    for left in range(8, 8 + count * step, step):
        slot = whole.crop((left, 8, left + step - 8, 8 + height))
        coloured = ImageOps.invert(slot.convert('L')).point(lambda value: 255 * (value > 24))
        images.append(slot.crop((0, 0, coloured.getbbox()[2], height)))
    width = sum(image.width for image in images) + 8 * (count - 1)
    row, left = Image.new('RGBA', (width, height)), 0
    for image in images:
        row.paste(image, (left, 0))
        left += image.width + 8
    return row


def save(figure: Figure, name: str, dpi: int) -> None:
    """Write a WebP file: a PNG file would store its photographs badly."""
    drawn = BytesIO()
    figure.savefig(drawn, dpi=dpi)
    Image.open(drawn).save(FOLDER / f'{name}.webp', quality=90, method=6)


def save_themed(figure: Figure, name: str) -> None:
    """Write an SVG file on a ground of its own; its style swaps ground and text on a dark page."""
    drawn = StringIO()
    figure.set_facecolor(GROUND)
    figure.savefig(
        drawn, format='svg', bbox_inches='tight', pad_inches=0.15, metadata={'Date': None}
    )
    ground, text, *_ = cards.THEMES['dark']
    rules = (
        f'[style*="fill: {to_hex(GROUND)}"] {{ fill: {ground} !important }}'
        f' [style*="fill: {TEXT}"] {{ fill: {text} !important }}'
        f' [style*="stroke: {TEXT}"] {{ stroke: {text} !important }}'
    )
    style = f'<style>@media (prefers-color-scheme: dark) {{ {rules} }}</style>'
    content = drawn.getvalue().replace('<defs>', f'{style}\n <defs>', 1)
    (FOLDER / f'{name}.svg').write_text(content, encoding='utf-8')


def vis() -> Image.Image:
    """The prediction of the shipped segmentor on the photograph of a street."""
    shipped, image = find_shipped(SEGMENTOR), open_street().image
    cfg = read_config(shipped.config_file)
    inferencer = Inferencer(cfg=cfg, checkpoint=shipped.name, long_side=480)
    _, picture = inferencer(np.ascontiguousarray(image[..., ::-1]), vis=True)
    return Image.fromarray(picture)


if __name__ == '__main__':
    plt.rcParams.update({'svg.hashsalt': 'cpvt', 'font.size': 9.5, 'axes.titlesize': 9.5})
    colours = ('axes.titlecolor', 'axes.labelcolor', 'axes.edgecolor', 'xtick.color', 'ytick.color')
    plt.rcParams.update(dict.fromkeys(colours, TEXT))
    for draw in (peg, backbones, multi_scale, any_size, padded_batch, tiles):
        save_themed(draw(narrow=False), draw.__name__)
        save_themed(draw(narrow=True), f'{draw.__name__}_narrow')
    hero.save(FOLDER)
    ade20k.save(FOLDER)
    before_after.save(FOLDER)
    cell_masks.save(FOLDER)
    terminal.save(FOLDER)
    for theme, ending in (('light', ''), ('dark', '_dark')):
        for name in shipped_weights():
            save(cards.draw(name, theme), f'card_{name}{ending}', 165)
    masks = ['masks', str(CELLS), str(MASKS), '--classes', str(MASKS / 'classes.txt')]
    for name, data in {'sheet_cells': [str(CELLS)], 'sheet_cell_masks': masks}.items():
        for ending, count in (('', 2), ('_narrow', 1)):
            picture = cell_sheet(data, count)
            picture.save(FOLDER / f'{name}{ending}.webp', quality=82, method=6)
    vis().save(FOLDER / 'vis.jpg', quality=82)
