"""Two shipped models on an example each: what the demo shows before it trains."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import picture
from example_images import DETECTOR, SEGMENTOR, draw_smear, open_street
from PIL import Image

from cpvt_backbones.inference.inferencer import Inferencer
from cpvt_backbones.toolboxes import read_config
from cpvt_backbones.weights import find_shipped

SIDES = (320, 480, 640)  # px, the longer side


def show_shipped_models(file: Path, say: Callable[[str], None]) -> None:
    """Run the detector on a drawn smear and the segmentor on a photograph of a street, at three
    sizes each, draw the results to ``file`` and say what they are.
    """
    say('Shipped models at three sizes, on a drawn blood smear and a photograph of a street:')
    cells, street = (
        Inferencer(cfg=read_config(find_shipped(name).config_file), checkpoint=name, scale='native')
        for name in (DETECTOR, SEGMENTOR)
    )
    scenes = [Image.fromarray(example.image) for example in (draw_smear(), open_street())]
    rows: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    for side in SIDES:
        small = [image.resize((side, round(side * image.height / image.width))) for image in scenes]
        found, boxes = cells(np.asarray(small[0])[..., ::-1], score_thr=0.5, vis=True)
        areas, masks = street(np.asarray(small[1])[..., ::-1], vis=True)
        largest = picture.largest_classes(areas['seg_map'], street.predictor.classes)
        say(f'  {side:4} px: {len(found["boxes"])} boxes on 24 cells; a street: {largest}')
        for row, drawn in zip(rows, (boxes, masks), strict=True):
            row.append(drawn)
    picture.tile(rows).save(file)
    say(f'  picture: {file}')
