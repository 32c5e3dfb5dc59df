"""Accuracy by the size of the image and of the object, from Tiny ImageNet's boxes.

A resized image has larger objects and more tokens. A padded one keeps its objects' size and has
more tokens alone.
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

from .classify import Classification, ClassifyRun
from .runs import read_records, write_json
from .variants import classify_config

FILE = 'objects.json'
EVERY = 3
"""Every third test image is classified."""
GROUPS = ('small', 'middle', 'large')
"""Thirds of the test images, by the share of the picture that the object's box has."""
WAYS = ('resized', 'padded')


def split_by_object(folder: Path) -> None:
    """Write ``objects.json`` into the folder of each finished run that has none: a row for each
    size, way and group.

    Args:
        folder: Of the classifiers of Tiny ImageNet.

    Raises:
        FileNotFoundError: The folder has no finished run, or the data set no ``boxes.tsv``.
        ValueError: A test image has no box.
    """
    runs = [ClassifyRun(**record['run']) for record in read_records(folder)]
    if not runs:
        raise FileNotFoundError(
            f'--work-dir: {folder} has no finished run; train it with `classify`'
        )
    stage = Classification(
        folder, None, {run.variant: classify_config(run.variant) for run in runs}, {}, {}
    )
    root = Path(stage.plan['data_root'])
    groups = group_images(root)
    first, *larger = stage.plan['sizes'][::2]
    for run in runs:
        file, rows = folder / run.name / FILE, []
        if file.is_file():
            continue
        for way, size in [(WAYS[0], first), *((way, size) for way in WAYS for size in larger)]:
            side = size if way == 'resized' else first
            hits = classify(stage.config(run), file.with_name('weights.pth'), side, size)
            for group in GROUPS:
                found = [
                    hit
                    for path, hit in hits.items()
                    if groups[path.relative_to(root).as_posix()] == group
                ]
                counts = dict(correct=sum(found), images=len(found))
                rows.append(run._asdict() | dict(way=way, size=size, object=group) | counts)
            print(
                f'{run.name}: {way} to {size} px, top-1 {100 * np.mean(list(hits.values())):.1f}',
                flush=True,
            )
        write_json(file, rows)


def read_objects(folder: Path) -> list[dict[str, Any]]:
    """Rows of all runs of a stage's folder."""
    return [
        row for file in sorted(folder.glob(f'*/{FILE}')) for row in json.loads(file.read_text())
    ]


def group_images(root: Path) -> dict[str, str]:
    """Path of each image that is classified, as in ``meta/test.txt``, to the third that its box is
    in.

    ``boxes.tsv`` has a path and x1, y1, x2, y2 in px between tabs, the last pixels included. All
    images have one size.
    """
    if not (root / 'boxes.tsv').is_file():
        raise FileNotFoundError(
            f'data_root: {root}/boxes.tsv is needed: path, x1, y1, x2, y2 between tabs'
        )
    table = pd.read_csv(
        root / 'boxes.tsv', sep='\t', names=['path', 'x1', 'y1', 'x2', 'y2'], index_col='path'
    )
    areas = (table['x2'] - table['x1'] + 1) * (table['y2'] - table['y1'] + 1)
    tested = [line.rsplit(' ', 1)[0] for line in (root / 'meta/test.txt').read_text().splitlines()][
        ::EVERY
    ]
    if missing := [path for path in tested if path not in areas]:
        raise ValueError(f'data_root: {root}/boxes.tsv has no box of {missing[0]}')
    thirds = np.digitize(areas[tested], np.quantile(areas[tested], [1 / 3, 2 / 3]))
    return {path: GROUPS[third] for path, third in zip(tested, thirds, strict=True)}


def classify(cfg: Config, weights: Path, side: int, canvas: int) -> dict[Path, bool]:
    """Every third test image, a square on a square, to True if it is classified correctly.

    Args:
        cfg, weights: Of a run.
        side: Of the resized image, px.
        canvas: Of the square whose upper left corner it is, px; the rest has the mean colour.
    """
    cfg = copy.deepcopy(cfg)
    model: Any = build_model(cfg)
    load_weights(model, weights)
    loader = cfg.test_dataloader
    resize, *_, pack = loader.dataset.pipeline
    resize.scale = (side, side)
    pad = dict(
        type='Pad', size=(canvas, canvas), pad_val=dict(img=tuple(cfg.data_preprocessor.mean[::-1]))
    )
    count = len(Runner.build_dataloader(copy.deepcopy(loader)).dataset)
    loader.dataset.update(pipeline=[resize, pad, pack], indices=list(range(0, count, EVERY)))
    with torch.inference_mode():
        samples = [
            sample for batch in Runner.build_dataloader(loader) for sample in model.test_step(batch)
        ]
    return {Path(sample.img_path): bool(sample.pred_label == sample.gt_label) for sample in samples}
