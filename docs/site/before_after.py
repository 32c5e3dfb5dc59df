"""What a detector finds on photographs of blood cells, before and after a training.

    python docs/site/before_after.py CONFIG CHECKPOINT    # after a training of docs/own_data.md

writes the boxes of the shipped detector and of a trained one to docs/evidence/cells.csv, which
`make pictures` draws.
"""

import argparse
import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

sys.path.append(str(Path(__file__).resolve().parents[2] / 'demo'))
import sheet as sheets
from cards import CELL_COLOURS, DARK, NAMES, SCORE
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image
from sheet import POINTS, Sheet

from cpvt_backbones.analysis.matching import match
from cpvt_backbones.inference import Inferencer
from cpvt_backbones.toolboxes import read_config
from cpvt_backbones.weights import find_shipped

DOCS = Path(__file__).parents[1]
CELLS = DOCS.parent / 'demo/cells'
MINUTES = 15  # of the training, docs/own_data.md
DETECTOR = 'retinanet_cpvt_tiny_gap-bccd'  # from which the training starts
KEPT = 0.3  # the least score in the file, that of `cpvt infer`
CORNERS = ['x1', 'y1', 'x2', 'y2']
FIRST = 'image-8.jpg'  # of the photographs for validation, by number


@cache
def read_labels() -> dict[str, pd.DataFrame]:
    """Class and corners of the labelled cells of each photograph for validation."""
    coco = json.loads((CELLS / 'annotations/instances_val.json').read_text(encoding='utf-8'))
    names = {one['id']: one['name'] for one in coco['categories']}
    labels = {}
    for image in coco['images']:
        cells = [one for one in coco['annotations'] if one['image_id'] == image['id']]
        left, top, width, height = np.array([one['bbox'] for one in cells]).T
        corners = dict(zip(CORNERS, (left, top, left + width, top + height), strict=True))
        named = [names[one['category_id']] for one in cells]
        labels[image['file_name']] = pd.DataFrame({'class': named, **corners})
    return labels


def predict(config: str, checkpoint: str) -> None:
    """Write the boxes that the shipped detector and a trained one find."""
    shipped = find_shipped(DETECTOR)
    models = dict(shipped=(shipped.config_file, DETECTOR), trained=(config, checkpoint))
    rows = []
    for model, (file, weights) in models.items():
        inferencer = Inferencer(cfg=read_config(file), checkpoint=weights)
        for name in read_labels():
            found, _ = inferencer(str(CELLS / 'val' / name), score_thr=KEPT)
            boxes = zip(found['classes'], found['boxes'], found['scores'], strict=True)
            rows += [(model, name, NAMES.get(one, one), score, *box) for one, box, score in boxes]
    table = pd.DataFrame(rows, columns=['model', 'image', 'class', 'score', *CORNERS])
    table = table.round({'score': 3, **dict.fromkeys(CORNERS, 1)})
    table.to_csv(DOCS / 'evidence/cells.csv', index=False)


def read_boxes(image: str, model: str = 'trained') -> pd.DataFrame:
    """Boxes on a photograph with a score of at least ``SCORE``.

    ``is_extra`` is true for those that meet no cell of their class.
    """
    boxes = pd.read_csv(DOCS / 'evidence/cells.csv')
    boxes = boxes[(boxes.model == model) & (boxes.image == image) & (boxes.score >= SCORE)]
    cells = read_labels()[image]
    meets = match(boxes[CORNERS], boxes['class'], cells[CORNERS], cells['class']) >= 0
    return boxes.assign(is_extra=~meets)


def count(images: list[str], model: str = 'trained') -> tuple[int, int, int]:
    """Labelled cells of some photographs, those that are found, and extra boxes."""
    extra = pd.concat([read_boxes(image, model) for image in images]).is_extra
    cells = sum(len(read_labels()[image]) for image in images)
    return cells, int((~extra).sum()), int(extra.sum())


def photograph(
    sheet: Sheet, place: tuple[float, float, float], image: str, model: str, *, tags: bool
) -> None:
    """Draw a photograph with its boxes at (x, y, side); extra ones are dashed."""
    x, y, side = place
    axis = sheet.axis(x, y, side, side)
    photo = Image.open(CELLS / 'val' / image)
    width = photo.width
    shown = photo.resize((4 * width, 4 * width), Image.Resampling.LANCZOS)
    axis.imshow(shown, extent=(0, width, width, 0))
    for _, box in read_boxes(image, model).iloc[::-1].iterrows():
        x1, y1, x2, y2 = np.clip(box[CORNERS].to_numpy(float), 1, width - 1)
        colour = CELL_COLOURS[box['class']]
        style: dict[str, Any] = dict(facecolor='none', edgecolor=colour, linewidth=1.5)
        if box.is_extra:
            style |= dict(linestyle=(0, (2.5, 2)))
        axis.add_patch(Rectangle((x1, y1), x2 - x1, y2 - y1, **style))
        if tags:
            tag = dict(boxstyle='square,pad=0.15', facecolor=colour, edgecolor='none')
            text = f'{box["class"].partition(" ")[0]} {box.score:.2f}'
            style = dict(va='bottom', bbox=tag, color=DARK, fontsize=9.5 * POINTS)
            axis.text(x1 + 1.5, max(y1 - 0.5, 10), text, **style)
    axis.axis('off')


def colour(sheet: Sheet, x: float, y: float, label: str, size: float) -> float:
    """Write a class with its colour; returns the x behind it."""
    axis = sheet.axis(x, y - 11, 14, 14)
    style = dict(facecolor=CELL_COLOURS[label], edgecolor=sheet.ink, linewidth=1)
    axis.add_patch(Rectangle((0, 0), 1, 1, **style))
    axis.axis('off')
    sheet.write(x + 19, y, label, size)
    return x + 29 + 0.55 * size * len(label)


def colours(sheet: Sheet, x: float, y: float, size: float) -> float:
    """Write the classes with their colours beside each other; returns the x behind them."""
    for label in ('red cell', 'white cell'):
        x = colour(sheet, x, y, label, size)
    return x


def legend(sheet: Sheet, x: float, y: float, size: float = 13) -> None:
    """Write what the colours and the dashes of the boxes mean, and from which score they count."""
    x = colours(sheet, x, y, size)
    sheet.write(x, y, f'dashed: false; score ≥ {SCORE}', size)


def caption(model: str) -> str:
    """What a model finds on the first photograph."""
    cells, found, extra = count([FIRST], model)
    return f'{found} of {cells} cells found, {extra} false box{"" if extra == 1 else "es"}'


PARTS = {
    'shipped': 'Before: trained on other smears',
    'trained': f'After {MINUTES} minutes on a CPU thread',
}


def draw(theme: str) -> Figure:
    """The first photograph before and after the training, for a page."""
    sheet = Sheet(830, 502, theme)
    for place, (model, title) in enumerate(PARTS.items()):
        left = 14 + 408 * place
        sheet.write(left, 28, title, 16, weight='bold')
        photograph(sheet, (left, 42, 394), FIRST, model, tags=False)
        sheet.write(left, 460, caption(model), 13)
    legend(sheet, 14, 488)
    return sheet.figure


def draw_narrow(theme: str) -> Figure:
    """The same for a phone."""
    sheet = Sheet(358, 850, theme)
    for place, (model, title) in enumerate(PARTS.items()):
        top = 412 * place
        sheet.write(8, top + 26, title, 15, weight='bold')
        photograph(sheet, (8, top + 38, 342), FIRST, model, tags=False)
        sheet.write(8, top + 398, caption(model), 12)
    legend(sheet, 8, 834, 12)
    return sheet.figure


def save(folder: Path) -> None:
    """Write the picture for both themes and both widths."""
    sheets.save(draw, folder / 'cells')
    sheets.save(draw_narrow, folder / 'cells_narrow')


if __name__ == '__main__':
    parser = argparse.ArgumentParser(description=__doc__.partition('\n\n')[0])
    parser.add_argument('config')
    parser.add_argument('checkpoint')
    predict(**vars(parser.parse_args()))
