"""Mask2Former through the inferencer: masks are those of mmdet, at the size of the image."""

import copy

import numpy as np
import pytest
import torch
from pycocotools import mask as coco_mask
from shrink import ROOT, build, read_small

from cpvt_backbones.inference import Inferencer

CONFIG = ROOT / 'configs/mask2former/mask2former_pyramid-cpvt-s_8xb2-lsj-50e_coco.py'


@pytest.mark.full
def test_masks_of_a_large_image_are_mmdets(tmp_path):
    """To the pixel: its pipeline loads float32, and resizes without rounding to grey levels."""
    apis = pytest.importorskip('mmdet.apis')
    cfg = read_small(CONFIG)
    pipeline = cfg.test_dataloader.dataset.pipeline
    assert pipeline[0].to_float32
    pipeline[1].scale = (144, 144)
    torch.manual_seed(0)
    model = build(cfg).eval()
    torch.save(dict(state_dict=model.state_dict(), meta={}), tmp_path / 'model.pth')
    image = np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8)
    image = image.repeat(16, 0).repeat(16, 1)  # 320 x 480 px

    model.cfg = copy.deepcopy(cfg)  # mmdet changes it
    dataset = model.cfg.test_dataloader.dataset
    dataset.pipeline = [step for step in dataset.pipeline if 'Annotations' not in step['type']]
    wanted = apis.inference_detector(model, image).pred_instances
    inferencer = Inferencer(cfg=cfg, checkpoint=str(tmp_path / 'model.pth'), device='cpu')
    prediction, _ = inferencer(image, score_thr=0.0)

    assert inferencer.sizing.size_of(480, 320) == (144, 96)
    assert len(prediction['boxes']) == len(wanted) == 100
    assert prediction['scores'] == pytest.approx(wanted.scores.numpy())
    assert prediction['labels'] == wanted.labels.tolist()
    masks = np.array([coco_mask.decode(mask) for mask in prediction['masks']], bool)
    np.testing.assert_array_equal(masks, wanted.masks.numpy())
    assert 0 < masks.mean() < 1
