"""What the shipped detector finds on photographs of another laboratory, and what it finds after a
training on 80 of them: a picture, and the counts of docs/own_data.md.

    python docs/site/before_after.py CONFIG CHECKPOINT    # after a training of that page

writes the boxes of both models to docs/evidence/cells.csv. `make pictures` draws them without a
model. Lengths are px of the shown picture, from its upper left corner.
"""

import argparse
import hashlib
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from PIL import Image

sys.path.extend(str(Path(__file__).resolve().parents[2] / name) for name in ('', 'demo'))

from sheets import THEMES

from cpvt_backbones.analysis.matching import match
from cpvt_backbones.inference import Inferencer
from cpvt_backbones.toolboxes import read_config
from cpvt_backbones.weights import find_shipped

ROOT = Path(__file__).parents[2]
DETECTOR = 'retinanet_cpvt_tiny_gap-bccd'
CELLS = ROOT / 'demo/cells'
FOUND = ROOT / 'docs/evidence/cells.csv'
SCORE = 0.3  # the least that tools/infer.py draws
DRAWN = 0.5  # the least of the picture
NAMES = {'RBC': 'red cell', 'WBC': 'white cell', 'Platelets': 'platelet'}
MODELS = {'shipped': 'shipped detector', 'trained': 'after the training'}
CORNERS = ['x1', 'y1', 'x2', 'y2']
# Colours that differ in lightness, too; a dark line around them.
COLOURS = {'red cell': '#ffd92f', 'white cell': '#56b4e9', 'platelet': 'white'}
EDGE = '#14181f'
LEGEND = 32  # px
SIDE = 256  # px of a photograph
SHOWN = 2  # photographs, the first ones of the validation images


class Counts(NamedTuple):
    """Cells that a box of their class meets, of all of them, and boxes that meet none."""

    red: int
    white: int
    all_red: int
    all_white: int
    extra: int


def read_truth() -> dict[str, pd.DataFrame]:
    """Class and corners of the labelled cells of each validation image, in the order of numbers."""
    coco = json.loads((CELLS / 'annotations/instances_val.json').read_text(encoding='utf-8'))
    names = {one['id']: one['name'] for one in coco['categories']}
    truth = {}
    for image in coco['images']:
        cells = [one for one in coco['annotations'] if one['image_id'] == image['id']]
        left, top, width, height = np.array([one['bbox'] for one in cells]).T
        corners = dict(zip(CORNERS, (left, top, left + width, top + height), strict=True))
        labels = [names[one['category_id']] for one in cells]
        truth[image['file_name']] = pd.DataFrame({'class': labels, **corners})
    return truth


def version() -> str:
    """The hash of what is drawn, boxes from a score on. A test compares it with the picture's."""
    return hashlib.sha256(FOUND.read_bytes() + f'{DRAWN}'.encode()).hexdigest()


def predict(config: str, checkpoint: str) -> None:
    """Write the boxes that the shipped detector and a trained one find on the validation images."""
    shipped = find_shipped(DETECTOR)
    models = dict(shipped=(shipped.config_file, DETECTOR), trained=(config, checkpoint))
    rows = []
    for model, (file, weights) in models.items():
        inferencer = Inferencer(cfg=read_config(file), checkpoint=weights)
        for name in read_truth():
            found, _ = inferencer(str(CELLS / 'val' / name), score_thr=SCORE)
            for label, box, score in zip(
                found['classes'], found['boxes'], found['scores'], strict=True
            ):
                rows.append((model, name, NAMES.get(label, label), score, *box))
    table = pd.DataFrame(rows, columns=['model', 'image', 'class', 'score', *CORNERS])
    table.round({'score': 3, **dict.fromkeys(CORNERS, 1)}).to_csv(FOUND, index=False)


def meets_a_cell(boxes: pd.DataFrame, cells: pd.DataFrame) -> np.ndarray:
    """True for each box that meets a cell. The boxes are in the order of scores."""
    return match(boxes[CORNERS], boxes['class'], cells[CORNERS], cells['class']) >= 0


def count(model: str, images: list[str], score: float = SCORE) -> Counts:
    """Cells that a model finds on images, by boxes of at least ``score``."""
    truth, found = read_truth(), pd.read_csv(FOUND)
    found = found[(found['model'] == model) & (found['score'] >= score)]
    classes: list[str] = []
    extra = 0
    for image in images:
        boxes = found[found['image'] == image]
        meets = meets_a_cell(boxes, truth[image])
        classes += boxes['class'][meets].tolist()
        extra += int((~meets).sum())
    every = [name for image in images for name in truth[image]['class']]
    kinds = ('red cell', 'white cell')
    return Counts(*map(classes.count, kinds), *map(every.count, kinds), extra)


def draw(theme: str, *, narrow: bool) -> Figure:
    """The first validation images, side by side with the likelier boxes of both models.

    Args:
        theme: ``'light'`` or ``'dark'``, of the page.
        narrow: For a phone, 350 px wide: an image a row, below the legend, so that a page can cut
            off all but the first. Otherwise for a page of 900 px.
    """
    width, side, gap = (350, 164, 0) if narrow else (920, 217, 18)
    first, top, below = LEGEND if narrow else 0, 28, 44
    lines = SHOWN if narrow else 1
    height = lines * (top + side + below) + LEGEND
    figure = Figure(figsize=(width / 100, height / 100))
    axis = figure.add_axes((0, 0, 1, 1))
    axis.set(xlim=(0, width), ylim=(height, 0))
    axis.axis('off')
    truth, found = read_truth(), pd.read_csv(FOUND)
    for place, image in enumerate([*truth][:SHOWN]):
        left = 8 if narrow else 8 + place * (2 * side + 6 + gap)
        upper = first + top + (place * (top + side + below) if narrow else 0)
        for model, title in MODELS.items():
            boxes = found[(found['model'] == model) & (found['image'] == image)]
            boxes = boxes[boxes['score'] >= DRAWN]
            photo = Image.open(CELLS / 'val' / image)
            axis.imshow(photo, extent=(left, left + side, upper + side, upper), aspect='auto')
            outline(axis, boxes, meets_a_cell(boxes, truth[image]), (left, upper), side / SIDE)
            counts = count(model, [image], DRAWN)
            style = dict(color=THEMES[theme].ink, fontsize=13 * 0.72)
            axis.text(left, upper - 7, title, weight='bold', **style)
            total = counts.all_red + counts.all_white
            text = f'{counts.red + counts.white} of {total} cells found'
            axis.text(left, upper + side + 17, text, **style)
            axis.text(left, upper + side + 34, f'{counts.extra} extra boxes', **style)
            left += side + 6
    explain(figure, theme, narrow=narrow)
    return figure


def outline(
    axis: Axes, boxes: pd.DataFrame, meets: np.ndarray, corner: tuple[float, float], zoom: float
) -> None:
    """Draw boxes; those that meet no cell of their class are dashed."""
    for (_, box), hit in zip(boxes.iterrows(), meets, strict=True):
        x1, y1, x2, y2 = np.clip(box[CORNERS].to_numpy(float), 0, SIDE) * zoom
        place = (corner[0] + x1, corner[1] + y1)
        axis.add_patch(Rectangle(place, x2 - x1, y2 - y1, fill=False, **line(box['class'], hit)))


def line(name: str, hit: bool) -> dict[str, Any]:
    """The style of a box."""
    width = 1.7 if name == 'white cell' else 1.0
    dark = patheffects.withStroke(linewidth=width + 0.8, foreground=EDGE)
    dashes = 'solid' if hit else (0, (2.5, 2))
    colour = COLOURS[name]
    return dict(edgecolor=colour, linewidth=width, linestyle=dashes, path_effects=[dark])


def explain(figure: Figure, theme: str, *, narrow: bool) -> None:
    """Write the legend below the images, or above them in a narrow picture."""
    samples = {
        'red cell': ('red cell', True),
        'white cell': ('white cell', True),
        'extra box': ('red cell', False),
    }
    handles = []
    for text, (name, hit) in samples.items():
        style = line(name, hit)
        style['color'] = style.pop('edgecolor')
        handles.append(Line2D([], [], label=text, **style))
    figure.legend(
        handles=handles,
        loc='upper left' if narrow else 'lower left',
        ncols=3,
        columnspacing=1.2,
        handlelength=1.6,
        frameon=False,
        labelcolor=THEMES[theme].ink,
        fontsize=13 * 0.72,
        borderaxespad=0.4,
    )


if __name__ == '__main__':
    parser = argparse.ArgumentParser(description=__doc__.partition('\n\n')[0])
    parser.add_argument('config')
    parser.add_argument('checkpoint')
    predict(**vars(parser.parse_args()))
