"""Accuracy by the size of the image and of the object, from Tiny ImageNet's boxes.

A resized image has larger objects and more tokens. A padded one keeps its objects' size and has more tokens alone.
"""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from mmengine.config import Config
from mmengine.runner import Runner

from cpvt_backbones.analysis.complexity import build_model
from cpvt_backbones.checkpoints import load_weights

from .classify import Classification
from .runs import write_json

FILE = 'objects.json'
EVERY = 3
"""Every third test image is classified."""
GROUPS = ('small', 'middle', 'large')
"""Thirds of the test images, by the share of the picture that the object's box has."""
WAYS = ('resized', 'padded')


def split_by_object(stage: Classification) -> None:
    """Write ``objects.json`` into the folder of each finished run that has none: a row for each size, way and group."""
    root = Path(stage.plan['data_root'])
    boxes = shares(root / 'boxes.tsv')
    first, *larger = stage.plan['sizes'][::2]
    for run in filter(None, dict.fromkeys(stage.in_order())):
        file, rows = stage.folder / run.name / FILE, []
        if file.is_file() or stage.record(run) is None:
            continue
        for way, size in [(WAYS[0], first), *((way, size) for way in WAYS for size in larger)]:
            side = size if way == 'resized' else first
            paths, hits = classify(stage.config(run), file.with_name('weights.pth'), side, size)
            groups = thirds([boxes[Path(path).relative_to(root).as_posix()] for path in paths])
            for index, group in enumerate(GROUPS):
                counts = dict(correct=int(hits[groups == index].sum()), images=int((groups == index).sum()))
                rows.append(run._asdict() | dict(way=way, size=size, object=group) | counts)
            print(f'{run.name}: {way} to {size} px, top-1 {100 * hits.mean():.1f}', flush=True)
        write_json(file, rows)


def read_objects(folder: Path) -> list[dict[str, Any]]:
    """Rows of all runs of a stage's folder."""
    return [row for file in sorted(folder.glob(f'*/{FILE}')) for row in json.loads(file.read_text())]


def shares(file: Path) -> dict[str, float]:
    """Path of an image, relative to the data set, to the area of its object's box, px^2; all images are of one size.

    Args:
        file: Lines of a path and x1, y1, x2, y2, the last pixels included, between tabs.
    """
    table = pd.read_csv(file, sep='\t', names=['path', 'x1', 'y1', 'x2', 'y2'])
    areas = (table['x2'] - table['x1'] + 1) * (table['y2'] - table['y1'] + 1)
    return dict(zip(table['path'], areas.astype(float), strict=True))


def thirds(values: list[float]) -> np.ndarray:
    """Group of each value, 0 to 2, by its rank; equal values have one group."""
    return np.digitize(values, np.quantile(values, [1 / 3, 2 / 3]))


def classify(cfg: Config, weights: Path, side: int, canvas: int) -> tuple[list[str], np.ndarray]:
    """Paths of every third test image, and True where it is classified correctly, as a square on a square.

    Args:
        cfg, weights: Of a run.
        side: Of the resized image, px.
        canvas: Of the square whose upper left corner it is, px; the rest has the mean colour.
    """
    cfg = copy.deepcopy(cfg)
    loader = cfg.test_dataloader
    resize, *_, pack = loader.dataset.pipeline
    resize.scale = (side, side)
    pad = dict(type='Pad', size=(canvas, canvas), pad_val=dict(img=tuple(cfg.data_preprocessor.mean[::-1])))
    count = len(Runner.build_dataloader(copy.deepcopy(loader)).dataset)
    loader.dataset.update(pipeline=[resize, pad, pack], indices=list(range(0, count, EVERY)))
    model: Any = build_model(cfg)
    load_weights(model, weights)
    with torch.inference_mode():
        samples = [sample for batch in Runner.build_dataloader(loader) for sample in model.test_step(batch)]
    hits = np.array([bool(sample.pred_label == sample.gt_label) for sample in samples])
    return [sample.img_path for sample in samples], hits
