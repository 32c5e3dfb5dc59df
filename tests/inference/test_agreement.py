"""The demo's trained segmentor: tiles see less of the image, and say almost the same of it."""

from pathlib import Path

import numpy as np
import pytest

from cpvt_backbones.datasets.digit_scenes import write_scenes
from cpvt_backbones.engine.launch import read_config
from cpvt_backbones.inference import Inferencer, find_images

DEMO = Path(__file__).resolve().parents[2] / 'work_dirs/demo/segmentor'


@pytest.mark.slow
def test_tiled_class_maps_agree_with_whole_ones(tmp_path):
    pytest.importorskip('mmseg')
    checkpoint = DEMO / 'iter_1200.pth'
    if not checkpoint.is_file():
        pytest.skip('no trained demo: run `make demo`')
    scenes = write_scenes(root=tmp_path, split='heldout', width=1536, height=1152, count=1)
    whole = Inferencer(cfg=read_config(DEMO / 'config.py'), checkpoint=checkpoint, device='cpu')
    tiled = Inferencer(predictor=whole.predictor, max_pixels=1024 * 1024)  # the default tiles
    a, b = (
        np.stack([result.prediction['index_map'] for result in inferencer.predict(find_images(scenes / 'images'))])
        for inferencer in (whole, tiled)
    )
    assert (a == b).mean() > 0.995
    shares = [((a == c) & (b == c)).sum() / ((a == c) | (b == c)).sum() for c in range(11)]
    assert np.mean(shares) >= 0.98
    assert shares[0] > 0.995
