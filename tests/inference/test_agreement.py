"""Agreement of tiles with whole images: the measurement, and the trained segmentor of the demo."""

from pathlib import Path

import cv2
import numpy as np
import pytest
from digit_scenes import write_scenes
from local_models import BlockDetector, LocalSegmentor

from benchmarks.tile_agreement import compare_boxes, compare_maps, measure_agreement
from cpvt_backbones.inference import ToolboxPredictor
from cpvt_backbones.toolboxes import read_config

DEMO = Path(__file__).resolve().parents[2] / 'work_dirs/demo-long/segmentor'


@pytest.fixture
def photos(tmp_path):
    image = np.zeros((64, 96, 3), np.uint8)
    image[8:24, 8:32, 0] = image[34:56, 60:86, 1] = 255
    for name in ('a', 'b'):
        cv2.imwrite(str(tmp_path / f'{name}.png'), image)
    return tmp_path


def test_comparisons_against_values_by_hand():
    maps = [
        [dict(seg_map=np.array(values, np.uint8))] for values in ([[0, 0, 1, 1]], [[0, 0, 0, 3]])
    ]
    assert compare_maps(*maps) == dict(equal=0.5, mIoU=pytest.approx((2 / 3 + 0 + 0) / 3))
    assert compare_maps(*(one * 2 for one in maps)) == compare_maps(*maps)
    whole = dict(boxes=[[0, 0, 10, 10], [20, 0, 30, 10], [50, 0, 60, 10]], labels=[0, 1, 0])
    tiled = dict(
        boxes=[[1, 0, 10, 10], [20, 0, 30, 10], [0, 0, 10, 4], [80, 0, 90, 10]], labels=[0, 0, 0, 0]
    )
    none = dict(boxes=[], labels=[])
    assert compare_boxes([whole], [tiled]) == dict(
        whole=3, tiled=4, found=pytest.approx(1 / 3), confirmed=1 / 4
    )
    assert compare_boxes([whole, none], [tiled, none]) == compare_boxes([whole], [tiled])
    assert compare_boxes([none], [tiled]) == dict(
        whole=0, tiled=4, found=pytest.approx(np.nan, nan_ok=True), confirmed=0
    )


@pytest.mark.parametrize('long_side', [None, 144])
def test_pixelwise_models_agree_with_themselves(photos, long_side):
    done = []
    options = dict(long_side=long_side, tiles=[(48, 44), (56, 44)], on_image=lambda: done.append(1))
    segmentor, detector = LocalSegmentor(), BlockDetector()
    for row, tile in zip(
        measure_agreement(segmentor, [str(photos)], **options), (48, 56), strict=True
    ):
        # Of enlarged images, the logits of whole images are resized, but the classes of tiled ones.
        equal, miou = (1, 1) if long_side is None else (pytest.approx(1, abs=0.02), row['mIoU'])
        assert row == dict(tile=tile, overlap=44, images=2, equal=equal, mIoU=miou)
    for row in measure_agreement(detector, [str(photos)], **options):
        assert (row['whole'], row['tiled'], row['found'], row['confirmed']) == (4, 4, 1, 1)
    assert len(done) == 2 * 2 * 3
    sizes = {size for forward in segmentor.forwards for size in forward}
    assert sizes == {(48, 48), (56, 56), (64, 96) if long_side is None else (96, 144)}


@pytest.mark.slow
def test_tiled_class_maps_agree_with_whole_ones(tmp_path):
    pytest.importorskip('mmseg')
    checkpoint = DEMO / 'iter_1200.pth'
    if not checkpoint.is_file():
        pytest.skip('no trained demo: run `make demo ARGS=--long`')
    scenes = write_scenes(root=tmp_path, split='heldout', width=1536, height=1152, count=1)
    predictor = ToolboxPredictor(
        cfg=read_config(DEMO / 'config.py'), checkpoint=checkpoint, device='cpu'
    )
    (row,) = measure_agreement(
        predictor, [str(scenes / 'images')], long_side=None, tiles=[(1024, 256)]
    )  # the default
    assert row['equal'] > 0.995
    assert row['mIoU'] >= 0.98
