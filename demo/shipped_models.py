"""Two shipped models on photographs of installed packages: what the demo shows before it trains.

The coins are scikit-image's (Brooklyn Museum, no known copyright restrictions), the temple is
scikit-learn's ``china.jpg`` (danielbuechele on Flickr, CC BY 2.0).
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import picture
from digit_scenes import open_photo
from PIL import Image

from cpvt_backbones.inference.inferencer import Inferencer
from cpvt_backbones.toolboxes import read_config
from cpvt_backbones.weights import find_shipped

DETECTOR, SEGMENTOR = 'retinanet_cpvt_tiny_gap-bccd', 'semantic_fpn_cpvt_tiny_gap-camvid'
SIDES = (288, 384, 480)  # px, the longer side


def blood_smear() -> Image.Image:
    """The negative of 24 coins, in a smear's colours: blood cells are darker than what is behind
    them.
    """
    ink = np.clip(
        np.asarray(open_photo('skimage.data', 'coins.png'), np.float32)[..., :1] / 127 - 0.7, 0, 1
    )
    return Image.fromarray(np.uint8((235, 225, 215) + ink * np.float32((-30, -95, -65))))


def show_shipped_models(file: Path, say: Callable[[str], None]) -> None:
    """Run both models on one photograph each at three sizes, draw the results to ``file`` and say
    what they are.
    """
    say('Shipped models, each on one photograph at three sizes:')
    cells, street = (
        Inferencer(cfg=read_config(find_shipped(name).config_file), checkpoint=name, scale='native')
        for name in (DETECTOR, SEGMENTOR)
    )
    smear, temple = blood_smear(), open_photo('sklearn.datasets.images', 'china.jpg')
    rows: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    for side in SIDES:
        small = [
            image.resize((side, round(side * image.height / image.width)))
            for image in (smear, temple)
        ]
        found, boxes = cells(np.asarray(small[0])[..., ::-1], score_thr=0.4, vis=True)
        areas, masks = street(np.asarray(small[1])[..., ::-1], vis=True)
        classes = street.predictor.classes
        share = (
            np.bincount(areas['seg_map'].ravel(), minlength=len(classes)) / areas['seg_map'].size
        )
        largest = ', '.join(f'{classes[i].lower()} {share[i]:.0%}' for i in np.argsort(-share)[:3])
        say(f'  {side:4} px: {len(found["boxes"])} boxes on 24 coins; a temple: {largest}')
        for row, drawn in zip(rows, (boxes, masks), strict=True):
            row.append(drawn)
    picture.tile(rows).save(file)
    say(f'  picture: {file}')
