"""What the shipped detector finds on photographs of another laboratory, and what it finds after a
training on 80 of them: a picture, and the counts of docs/own_data.md.

    python docs/site/before_after.py CONFIG CHECKPOINT    # after a training of that page

writes the boxes of both models to docs/evidence/cells.csv. `make pictures` draws them without a
model.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import patheffects
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from PIL import Image

sys.path.append(str(Path(__file__).resolve().parents[2]))


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
# Colours that differ in lightness, too.
COLOURS = {'red cell': '#ffd92f', 'white cell': '#56b4e9', 'platelet': 'white'}
SIDE = 256  # px of a photograph
SHOWN = 2  # photographs, the first ones of the validation images


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


def draw() -> Figure:
    """The first validation images, each with the likelier boxes of both models and their counts.

    Boxes that meet no cell of their class are dashed.
    """
    figure = Figure(figsize=(5.2, 6.3), layout='constrained')
    rows = figure.subplots(SHOWN, len(MODELS))
    truth, found = read_truth(), pd.read_csv(FOUND)
    for axes, image in zip(rows, list(truth)[:SHOWN], strict=True):
        cells = truth[image]
        for axis, (model, title) in zip(axes, MODELS.items(), strict=True):
            boxes = found[(found['model'] == model) & (found['image'] == image)]
            boxes = boxes[boxes['score'] >= DRAWN]
            meets = match(boxes[CORNERS], boxes['class'], cells[CORNERS], cells['class']) >= 0
            axis.imshow(Image.open(CELLS / 'val' / image))
            for (_, box), hit in zip(boxes.iterrows(), meets, strict=True):
                x1, y1, x2, y2 = np.clip(box[CORNERS].to_numpy(float), 0, SIDE - 1)
                style = line(box['class'], hit)
                axis.add_patch(Rectangle((x1, y1), x2 - x1, y2 - y1, fill=False, **style))
            axis.set(xticks=[], yticks=[])
            axis.spines[:].set_visible(False)
            if image == next(iter(truth)):
                axis.set_title(title, fontsize=11)
            extra = (~meets).sum()
            text = f'{meets.sum()} of {len(cells)} cells found\n{extra} extra boxes'
            axis.set_xlabel(text, fontsize=11)
    samples = [
        Line2D([], [], label=text, color=COLOURS[name], linestyle=line(name, hit)['linestyle'])
        for text, name, hit in (
            ('red cell', 'red cell', True),
            ('white cell', 'white cell', True),
            ('extra box', 'red cell', False),
        )
    ]
    place = dict(loc='outside upper left', ncols=3, frameon=False)
    legend = figure.legend(handles=samples, fontsize=11, **place)
    for sample in legend.get_lines():
        sample.set_path_effects([patheffects.withStroke(linewidth=2.5, foreground='#14181f')])
    return figure


def line(name: str, hit: bool) -> dict[str, Any]:
    """The style of a box: a dark line around its colour."""
    width = 1.7 if name == 'white cell' else 1.0
    dark = patheffects.withStroke(linewidth=width + 0.8, foreground='#14181f')
    dashes = 'solid' if hit else (0, (2.5, 2))
    return dict(edgecolor=COLOURS[name], linewidth=width, linestyle=dashes, path_effects=[dark])


if __name__ == '__main__':
    parser = argparse.ArgumentParser(description=__doc__.partition('\n\n')[0])
    parser.add_argument('config')
    parser.add_argument('checkpoint')
    predict(**vars(parser.parse_args()))
