"""What people train: RetinaNet and Semantic FPN, for a step of the benchmark."""

from typing import Any

import torch
from mmengine.registry import MODELS, init_default_scope
from torch import Tensor, nn

from cpvt_backbones.toolboxes import read_config
from cpvt_backbones.weights import repository_file

CONFIGS = {
    'retinanet': 'configs/retinanet/retinanet_pyramid-cpvt-s_fpn_1x_coco.py',
    'semantic_fpn': 'configs/semantic_fpn/semantic-fpn_pyramid-cpvt-s_8xb2-80k_ade20k-512x512.py',
}
BOXES = 8
"""Boxes of an image; COCO has 7 on average."""


class WithLosses(nn.Module):
    """A detector or segmentor that is called with images alone.

    In training it returns the losses for random labels, else the outputs of its head.
    """

    model: Any

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.samples: list[Any] = []

    def forward(self, images: Tensor) -> Any:
        """(B, 3, H, W), normalised."""
        if not self.training:
            return self.model(images, mode='tensor')
        if not self.samples:
            self.samples = [self._sample(*images.shape[2:]) for _ in images]
        return self.model(images, self.samples, mode='loss')

    def _sample(self, height: int, width: int) -> Any:
        shape = dict.fromkeys(('img_shape', 'ori_shape', 'pad_shape'), (height, width))
        if hasattr(self.model, 'bbox_head'):
            return self._boxes(height, width, shape)
        from mmengine.structures import PixelData
        from mmseg.structures import SegDataSample

        # Regions of 32 px, as a crop of a street or a room has them.
        cells = torch.randint(self.model.decode_head.num_classes, (1, 1, height // 32, width // 32))
        classes = nn.functional.interpolate(cells.float(), (height, width))[0].long()
        return SegDataSample(gt_sem_seg=PixelData(data=classes), metainfo=shape)

    def _boxes(self, height: int, width: int, shape: dict[str, tuple[int, int]]) -> Any:
        from mmdet.structures import DetDataSample
        from mmengine.structures import InstanceData

        sides = torch.tensor([width, height, width, height])
        corner, extent = torch.rand(BOXES, 2), 0.05 + 0.45 * torch.rand(BOXES, 2)
        boxes = torch.cat((corner * (1 - extent), corner * (1 - extent) + extent), dim=1) * sides
        labels = torch.randint(self.model.bbox_head.num_classes, (BOXES,))
        found = InstanceData(bboxes=boxes, labels=labels)
        return DetDataSample(gt_instances=found, metainfo=dict(shape, scale_factor=(1.0, 1.0)))


def build(name: str, backbone: dict[str, Any] | None = None) -> WithLosses:
    """A model of ``CONFIGS`` with random weights.

    Args:
        name: Key of ``CONFIGS``.
        backbone: Another backbone of the same strides and widths; ``None`` for the config's.
    """
    cfg = read_config(repository_file(CONFIGS[name]))
    model = cfg.model
    if backbone is not None:
        model.backbone = backbone
    else:
        model.backbone.init_cfg = None
    if name == 'semantic_fpn':
        model.decode_head.norm_cfg = dict(type='BN')  # SyncBN needs processes
    init_default_scope(cfg.default_scope)
    return WithLosses(MODELS.build(model))
