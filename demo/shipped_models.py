"""Two shipped models on an example each: what the demo shows before it trains."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import picture
from example_images import DETECTOR, SEGMENTOR, draw_smear, draw_street
from PIL import Image

from cpvt_backbones.inference.inferencer import Inferencer
from cpvt_backbones.toolboxes import read_config
from cpvt_backbones.weights import find_shipped

SIDES = (320, 480, 640)  # px, the longer side


def show_shipped_models(file: Path, say: Callable[[str], None]) -> None:
    """Run both models on a drawn scene each at three sizes, draw the results to ``file`` and say
    what they are.
    """
    say('Shipped models, each on a drawn scene at three sizes:')
    cells, street = (
        Inferencer(cfg=read_config(find_shipped(name).config_file), checkpoint=name, scale='native')
        for name in (DETECTOR, SEGMENTOR)
    )
    scenes = [Image.fromarray(example.image) for example in (draw_smear(), draw_street())]
    rows: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    for side in SIDES:
        small = [image.resize((side, round(side * image.height / image.width))) for image in scenes]
        found, boxes = cells(np.asarray(small[0])[..., ::-1], score_thr=0.5, vis=True)
        areas, masks = street(np.asarray(small[1])[..., ::-1], vis=True)
        classes = street.predictor.classes
        share = (
            np.bincount(areas['seg_map'].ravel(), minlength=len(classes)) / areas['seg_map'].size
        )
        largest = ', '.join(f'{classes[i].lower()} {share[i]:.0%}' for i in np.argsort(-share)[:3])
        say(f'  {side:4} px: {len(found["boxes"])} boxes on 24 cells; a street: {largest}')
        for row, drawn in zip(rows, (boxes, masks), strict=True):
            row.append(drawn)
    picture.tile(rows).save(file)
    say(f'  picture: {file}')
