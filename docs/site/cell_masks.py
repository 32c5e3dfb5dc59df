"""What a segmentor predicts on photographs of blood cells, beside their masks.

    python docs/site/cell_masks.py out/cell_masks    # after the commands of docs/example_masks.md

copies the class maps to docs/evidence/cell_masks, which `make pictures` draws.
"""

import argparse
from pathlib import Path

import before_after
import cv2
import numpy as np
import sheet as sheets
from cards import CELL_COLOURS
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from PIL import Image
from sheet import Sheet

DOCS = Path(__file__).parents[1]
MAPS = DOCS / 'evidence/cell_masks'
CELLS = before_after.CELLS
MASKS = CELLS.parent / 'cell_masks'
CLASSES = MASKS.joinpath('classes.txt').read_text(encoding='utf-8').splitlines()
OPACITY = 0.55  # of a class's colour on the photograph
SCALE = 4  # px of the picture for one of the photograph


def store(folder: str) -> None:
    """Copy the class maps that `cpvt infer` wrote."""
    MAPS.mkdir(exist_ok=True)
    for path in sorted(Path(folder, 'pred').glob('*.png')):
        cv2.imwrite(str(MAPS / path.name), cv2.imread(str(path), cv2.IMREAD_UNCHANGED))


def read(folder: Path, name: str) -> np.ndarray:
    """Class of each pixel of a photograph."""
    with Image.open(folder / f'{Path(name).stem}.png') as mask:
        return np.asarray(mask)


def count(names: list[str]) -> np.ndarray:
    """Pixels by class of the mask (row) and predicted class (column) of some photographs."""
    pairs = np.zeros((len(CLASSES), len(CLASSES)), int)
    for name in names:
        np.add.at(pairs, (read(MASKS / 'val', name), read(MAPS, name)), 1)
    return pairs


def iou(names: list[str]) -> np.ndarray:
    """IoU of each class in percent."""
    pairs = count(names)
    both = pairs.diagonal()
    return 100 * both / (pairs.sum(0) + pairs.sum(1) - both)


def names() -> list[str]:
    """Photographs for validation, the worst first."""
    found = [path.name for path in (CELLS / 'val').iterdir()]
    return sorted(found, key=lambda name: iou([name]).mean())


def coloured(name: str, classes: np.ndarray | None) -> np.ndarray:
    """A photograph, with the colours of classes on it if they are given."""
    photo = Image.open(CELLS / 'val' / name)
    size = (SCALE * photo.width, SCALE * photo.height)
    pixels = np.asarray(photo.resize(size, Image.Resampling.LANCZOS)) / 255
    if classes is None:
        return pixels
    large = classes.repeat(SCALE, 0).repeat(SCALE, 1)
    for label, one in enumerate(CLASSES):
        if one in CELL_COLOURS:
            mixed = (1 - OPACITY) * pixels + OPACITY * np.array(to_rgb(CELL_COLOURS[one]))
            pixels = np.where((large == label)[..., None], mixed, pixels)
    return pixels


def rows() -> dict[str, str]:
    """Photographs of the picture, and what is said of them."""
    worst, *_, best = names()
    texts = {best: f'Best of {len(names())} photographs', worst: 'Worst'}
    return {name: f'{text}: mIoU {iou([name]).mean():.1f}' for name, text in texts.items()}


TITLES = 'Photograph', 'Mask', 'Predicted'


def panel(sheet: Sheet, name: str, title: str, x: float, y: float, side: int) -> None:
    """Draw a photograph, or its mask or prediction on it, as the title says."""
    shown = {'Photograph': None, 'Mask': read(MASKS / 'val', name), 'Predicted': read(MAPS, name)}
    axis = sheet.axis(x, y, side, side)
    axis.imshow(coloured(name, shown[title]))
    axis.axis('off')


def draw(theme: str) -> Figure:
    """Two photographs with their masks and predictions, for a page."""
    sheet = Sheet(830, 632, theme)
    for place, title in enumerate(TITLES):
        sheet.write(14 + 272 * place, 28, title, 16, weight='bold')
    for place, (name, text) in enumerate(rows().items()):
        for column, title in enumerate(TITLES):
            panel(sheet, name, title, 14 + 272 * column, 40 + 294 * place, 258)
        sheet.write(14, 318 + 294 * place, text, 13)
    before_after.colours(sheet, 656, 28, 13)
    return sheet.figure


def draw_narrow(theme: str) -> Figure:
    """The same for a phone, each photograph above its prediction."""
    sheet = Sheet(358, 806, theme)
    for place, (name, text) in enumerate(rows().items()):
        top = 408 * place
        for index, title in enumerate(TITLES):
            x, y = 8 + 175 * (index % 2), top + 24 + 196 * (index // 2)
            sheet.write(x, y - 6, title, 14, weight='bold')
            panel(sheet, name, title, x, y, 167)
        first, _, score = text.partition(': ')
        sheet.write(183, top + 290, f'{first}:', 13)
        sheet.write(183, top + 308, score, 13)
        for row, label in enumerate(CELL_COLOURS):
            if label in CLASSES:
                before_after.colour(sheet, 183, top + 334 + 22 * row, label, 13)
    return sheet.figure


def save(folder: Path) -> None:
    """Write the picture for both themes and both widths."""
    sheets.save(draw, folder / 'cell_masks')
    sheets.save(draw_narrow, folder / 'cell_masks_narrow')


if __name__ == '__main__':
    parser = argparse.ArgumentParser(description=__doc__.partition('\n\n')[0])
    parser.add_argument('folder', help='of `cpvt infer`')
    store(parser.parse_args().folder)
