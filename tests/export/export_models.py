"""Detector, segmentor and classifier of a few thousand weights, as their toolboxes build them."""

from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from mmengine.config import Config
from mmengine.runner import save_checkpoint
from tiny import ONE_BLOCK, PYRAMID, TWO_BLOCKS, outputs_of
from torch import nn

BACKBONES = {
    'multi_scale': dict(type='MultiScaleCPVT', arch=TWO_BLOCKS),
    'windowed': dict(type='MultiScaleCPVT', arch=TWO_BLOCKS, window_size=4, global_blocks=(1,)),
    'pyramid': dict(type='PyramidCPVT', arch=PYRAMID),
    # One map: recording takes a fraction of the time.
    'single': dict(type='MultiScaleCPVT', out_indices=(1,), **ONE_BLOCK),
}


def random(config: dict) -> nn.Module:
    """The model with every weight random: no two scores are alike."""
    torch.manual_seed(0)
    return tiny.randomise(tiny.build(config)).eval()


def detector(
    backbone: str = 'multi_scale', *, levels: int = 5, divisor: int = 1, **test_cfg
) -> nn.Module:
    """RetinaNet with four anchors a cell; its scores are neither all high nor all low."""
    config = tiny.retinanet(
        {**BACKBONES[backbone], 'out_indices': (1, 2, 3)[:levels]},
        data_preprocessor=dict(pad_size_divisor=divisor, pad_value=7),
        neck=dict(add_extra_convs='on_input', num_outs=levels),
        test_cfg={'nms_pre': 60, 'score_thr': 0.05, **test_cfg},
    )
    head = config['bbox_head']
    head['anchor_generator'].update(scales_per_octave=2, ratios=[0.5, 1.0])
    head['anchor_generator']['strides'] = [8, 16, 32, 64, 128][:levels]
    head['bbox_coder']['target_stds'] = [0.1, 0.1, 0.2, 0.2]
    model = random(config)
    layers = model.bbox_head.retina_cls, model.bbox_head.retina_reg
    with torch.no_grad():
        outputs = model(torch.randn(2, 3, 96, 96))
        for layer, maps, spread in zip(layers, outputs, (2.0, 1.0), strict=True):
            layer.weight *= spread / torch.cat([one.flatten() for one in maps]).std()
            layer.bias.normal_(std=0.5)
        model.bbox_head.retina_cls.bias -= 2
    return model


def rcnn(kind: str = 'mask_rcnn/mask-rcnn') -> nn.Module:
    """mmdet's Mask or Cascade R-CNN, narrow, with few proposals.

    Its scores are neither all high nor all low.
    """
    pytest.importorskip('mmdet')
    backbone = BACKBONES['multi_scale']
    config = tiny.stock_detector(
        f'{kind}_r50_fpn_1x_coco.py', backbone, channels=outputs_of(backbone)[0]
    )
    # Smaller boxes have equal scores.
    config.test_cfg.rpn.update(nms_pre=50, max_per_img=40, min_bbox_size=4)
    config.test_cfg.rcnn.update(max_per_img=15, score_thr=0.2)
    config.data_preprocessor.pad_size_divisor = 1
    return random(config)


def segmentor(
    backbone: str = 'multi_scale',
    *,
    classes: int = 5,
    upernet=False,
    test_cfg=None,
    padding=None,
    **preprocessor,
) -> nn.Module:
    """Semantic FPN or UPerNet; its class maps have several classes."""
    config = tiny.semantic_fpn(
        BACKBONES[backbone],
        classes=2 if classes == 1 else classes,
        data_preprocessor=dict(test_cfg=padding, **preprocessor),
        decode_head=dict(
            out_channels=classes,
            threshold=0.4 if classes == 1 else None,
            loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=classes == 1),
        ),
        test_cfg=test_cfg or {},
    )
    if upernet:
        del config['neck'], config['decode_head']['feature_strides']
        channels, _ = outputs_of(BACKBONES[backbone])
        config['decode_head'] |= dict(
            type='UPerHead', in_channels=channels, pool_scales=(1, 2, 3, 6)
        )
    model = random(config)
    with torch.no_grad():
        scores = model(torch.randn(2, 3, 96, 96))
        # So that every class has its chance.
        model.decode_head.conv_seg.bias -= scores.mean(dim=(0, 2, 3))
    return model


def classifier() -> nn.Module:
    """A column with class token."""
    backbone = dict(type='CPVT', arch=TWO_BLOCKS, out_type='cls_token')
    return random(tiny.image_classifier(backbone, classes=7))


class Toolbox:
    """A model run by its toolbox's own ``test_step``; a predictor without config and checkpoint."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def predict(self, images: list[np.ndarray]) -> list[dict]:
        samples = self._run(images)
        if 'pred_instances' not in samples[0]:
            return [dict(scores=sample.pred_score.numpy()) for sample in samples]
        names = dict(boxes='bboxes', scores='scores', labels='labels', masks='masks')
        return [
            {
                ours: sample.pred_instances[theirs].numpy()
                for ours, theirs in names.items()
                if theirs in sample.pred_instances
            }
            for sample in samples
        ]

    def logits(self, images: list[np.ndarray]) -> torch.Tensor:
        return torch.stack([sample.seg_logits.data for sample in self._run(images)])

    def to_classes(self, logits: torch.Tensor) -> torch.Tensor:
        return logits.argmax(0) if len(logits) > 1 else logits[0] > self.model.decode_head.threshold

    def _run(self, images: list[np.ndarray]) -> list:
        size = images[0].shape[:2]
        meta = dict(img_shape=size, ori_shape=size, scale_factor=(1.0, 1.0))
        inputs = [torch.from_numpy(image.transpose(2, 0, 1).copy()) for image in images]
        samples = [_sample_class(self.model)(metainfo=meta) for _ in images]
        with torch.no_grad():
            return self.model.test_step(dict(inputs=inputs, data_samples=samples))


def _sample_class(model: nn.Module) -> type:
    if hasattr(model, 'bbox_head') or hasattr(model, 'roi_head'):
        from mmdet.structures import DetDataSample as Sample
    elif hasattr(model, 'decode_head'):
        from mmseg.structures import SegDataSample as Sample
    else:
        from mmpretrain.structures import DataSample as Sample
    return Sample


def trained_classifier(folder: Path) -> tuple[Path, Path]:
    """Config and checkpoint of a classifier, as ``tools/export.py`` takes them."""
    backbone = dict(type='CPVT', with_cls_token=False, out_type='avg_featmap', **ONE_BLOCK)
    model = tiny.image_classifier(backbone)
    dataset = dict(type='CustomDataset', data_root='')
    dataset['pipeline'] = [dict(type='LoadImageFromFile'), dict(type='PackInputs')]
    cfg = Config(dict(default_scope='mmpretrain', model=model))
    cfg.custom_imports = dict(imports=['cpvt_backbones'])
    cfg.test_dataloader = dict(dataset=dataset)
    cfg.dump(folder / 'config.py')
    weights = tiny.build(model).state_dict()
    save_checkpoint(dict(state_dict=weights, meta={}), str(folder / 'model.pth'))
    return folder / 'config.py', folder / 'model.pth'
