"""Folders of images, runs on them, and their output."""

import json

import numpy as np
from local_models import BlockDetector, Brightness, LocalSegmentor
from PIL import Image

from cpvt_backbones.inference import Inferencer, find_images, predict_to_folder

MODELS = [BlockDetector, LocalSegmentor, Brightness]


def write_images(folder, count=6, first=0):
    """Different images, of two sizes."""
    folder.mkdir(exist_ok=True)
    for i in range(first, first + count):
        image = np.zeros((30 + 10 * (i % 2), 50, 3), np.uint8)
        image[5:15, 5 : 15 + i] = [255, 0, 0]
        Image.fromarray(image[..., ::-1]).save(folder / f'{i}.png')
    return folder


def run(predictor, inputs, out, inferencer=None, **options):
    options = dict(progress=False, **options)
    model = Inferencer(predictor=predictor, **(inferencer or {}))
    return predict_to_folder(model, find_images(inputs), out_dir=out, **options)


def read(out, name):
    return json.loads((out / name).read_text())


def snapshot(out):
    """All output files except records and lock."""
    files = [
        file
        for file in out.rglob('*')
        if file.is_file() and not file.name.startswith(('records.jsonl', '.lock'))
    ]
    return {str(file.relative_to(out)): file.read_bytes() for file in files}
