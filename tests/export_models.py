"""Detector, segmentor and classifier of a few thousand weights, as their toolboxes build them."""

import numpy as np
import torch
from mmengine.config import ConfigDict
from mmengine.registry import MODELS, init_default_scope
from torch import nn
from zoo import COLUMN, PYRAMID, randomise

TWO_BLOCKS = {**COLUMN, 'depth': 2}

NORMALISE = dict(mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375])
BACKBONES = {
    'multi_scale': dict(type='MultiScaleCPVT', arch=TWO_BLOCKS),
    'windowed': dict(type='MultiScaleCPVT', arch=TWO_BLOCKS, window_size=4, global_blocks=(1,)),
    'pyramid': dict(type='PyramidCPVT', arch=PYRAMID),
}
CHANNELS = {'multi_scale': [6, 12, 24, 24], 'windowed': [6, 12, 24, 24], 'pyramid': list(PYRAMID['embed_dims'])}


def build(scope: str, config: dict) -> nn.Module:
    """The model, every weight random: no two scores are alike."""
    init_default_scope(scope)
    torch.manual_seed(0)
    return randomise(MODELS.build(ConfigDict(config))).eval()


def detector(backbone: str = 'multi_scale', *, divisor: int = 1, **test_cfg) -> nn.Module:
    """RetinaNet with real anchors on five levels; its scores are neither all high nor all low."""
    model = build(
        'mmdet',
        dict(
            type='RetinaNet',
            data_preprocessor=dict(
                type='DetDataPreprocessor', **NORMALISE, bgr_to_rgb=True, pad_size_divisor=divisor, pad_value=7
            ),
            backbone={**BACKBONES[backbone], 'out_indices': (1, 2, 3)},
            neck=dict(
                type='FPN', in_channels=CHANNELS[backbone][1:], out_channels=16, add_extra_convs='on_input', num_outs=5
            ),
            bbox_head=dict(
                type='RetinaHead',
                num_classes=3,
                in_channels=16,
                feat_channels=16,
                stacked_convs=1,
                anchor_generator=dict(
                    type='AnchorGenerator',
                    octave_base_scale=4,
                    scales_per_octave=2,
                    ratios=[0.5, 1.0],
                    strides=[8, 16, 32, 64, 128],
                ),
                bbox_coder=dict(type='DeltaXYWHBBoxCoder', target_stds=[0.1, 0.1, 0.2, 0.2]),
            ),
            test_cfg={
                **dict(
                    nms_pre=60,
                    min_bbox_size=0,
                    score_thr=0.05,
                    nms=dict(type='nms', iou_threshold=0.5),
                    max_per_img=30,
                ),
                **test_cfg,
            },
        ),
    )
    noise = torch.randn(2, 3, 96, 96)
    with torch.no_grad():
        for layer, outputs, spread in zip(
            (model.bbox_head.retina_cls, model.bbox_head.retina_reg), model(noise), (2.0, 1.0), strict=True
        ):
            layer.weight *= spread / torch.cat([output.flatten() for output in outputs]).std()
            layer.bias.normal_(std=0.5)
        model.bbox_head.retina_cls.bias -= 2
    return model


def segmentor(
    backbone: str = 'multi_scale', *, classes: int = 5, test_cfg=None, padding=None, **preprocessor
) -> nn.Module:
    """Semantic FPN; a class map of its has several classes."""
    model = build(
        'mmseg',
        dict(
            type='EncoderDecoder',
            data_preprocessor=dict(
                type='SegDataPreProcessor',
                **NORMALISE,
                bgr_to_rgb=True,
                **{'size_divisor': 1, **preprocessor},
                test_cfg=padding,
            ),
            backbone=BACKBONES[backbone],
            neck=dict(type='FPN', in_channels=CHANNELS[backbone], out_channels=16, num_outs=4),
            decode_head=dict(
                type='FPNHead',
                in_channels=[16] * 4,
                in_index=[0, 1, 2, 3],
                feature_strides=[4, 8, 16, 32],
                channels=16,
                num_classes=2 if classes == 1 else classes,
                out_channels=classes,
                threshold=0.4 if classes == 1 else None,
                norm_cfg=dict(type='GN', num_groups=4),
                align_corners=False,
                loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=classes == 1),
            ),
            test_cfg=test_cfg or dict(mode='whole'),
        ),
    )
    with torch.no_grad():
        scores = model(torch.randn(2, 3, 96, 96))
        model.decode_head.conv_seg.bias -= scores.mean(dim=(0, 2, 3))  # so that every class has its chance
    return model


def classifier() -> nn.Module:
    """A column with class token."""
    return build(
        'mmpretrain',
        dict(
            type='ImageClassifier',
            data_preprocessor=dict(**NORMALISE, to_rgb=True),
            backbone=dict(type='CPVT', arch=TWO_BLOCKS, out_type='cls_token'),
            head=dict(type='LinearClsHead', num_classes=7, in_channels=COLUMN['embed_dims']),
        ),
    )


class Toolbox:
    """A model run by its toolbox's own ``test_step``; a predictor without config and checkpoint."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def predict(self, images: list[np.ndarray]) -> list[dict]:
        samples = self._run(images)
        if hasattr(self.model, 'bbox_head'):
            found = [sample.pred_instances for sample in samples]
            return [dict(boxes=f.bboxes.numpy(), scores=f.scores.numpy(), labels=f.labels.numpy()) for f in found]
        return [dict(scores=sample.pred_score.numpy()) for sample in samples]

    def logits(self, images: list[np.ndarray]) -> torch.Tensor:
        return torch.stack([sample.seg_logits.data for sample in self._run(images)])

    def to_classes(self, logits: torch.Tensor) -> torch.Tensor:
        return logits.argmax(0) if len(logits) > 1 else logits[0] > self.model.decode_head.threshold

    def _run(self, images: list[np.ndarray]) -> list:
        height, width = images[0].shape[:2]
        meta = dict(img_shape=(height, width), ori_shape=(height, width), scale_factor=(1.0, 1.0))
        inputs = [torch.from_numpy(image.transpose(2, 0, 1).copy()) for image in images]
        with torch.no_grad():
            return self.model.test_step(dict(inputs=inputs, data_samples=[_sample(self.model, meta) for _ in images]))


def _sample(model: nn.Module, meta: dict):
    if hasattr(model, 'bbox_head'):
        from mmdet.structures import DetDataSample as Sample
    elif hasattr(model, 'decode_head'):
        from mmseg.structures import SegDataSample as Sample
    else:
        from mmpretrain.structures import DataSample as Sample
    return Sample(metainfo=meta)
