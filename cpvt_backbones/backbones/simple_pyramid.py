"""SimplePyramid: ViTDet's neck, which makes a feature pyramid from one map."""

from collections import OrderedDict
from collections.abc import Sequence

import torch.nn.functional as F
from mmengine.model import BaseModule
from mmengine.registry import MODELS
from torch import Tensor, nn

from cpvt_backbones.checks import check_int

from .multi_scale import CeilMaxPool, LayerNorm2d

EPS = 1e-5
"""Default epsilon of norms in mmcv."""


def _convolution(in_channels: int, out_channels: int, kernel_size: int) -> nn.Sequential:
    """Build a convolution and norm with the names of mmcv's ``ConvModule``."""
    conv = nn.Conv2d(in_channels, out_channels, kernel_size, padding=kernel_size // 2, bias=False)
    return nn.Sequential(OrderedDict(conv=conv, norm_layer=LayerNorm2d(out_channels, eps=EPS)))


@MODELS.register_module()
class SimplePyramid(BaseModule):
    """Simple feature pyramid of ViTDet (arXiv 2203.16527, section 3).

    Transposed convolutions, and max pooling that rounds sizes up, turn the last map of a
    :class:`CPVT`, of stride 16, into maps of stride 4, 8, 16 and 32. Each passes a 1 x 1 and a
    3 x 3 convolution with LayerNorm. Weights have the names of ``SimpleFPN`` in mmdet's project
    ViTDet. Heads use the same norm with ``norm_cfg=dict(type='LayerNorm2d')``.

    Args:
        in_channels: Channels of the map.
        out_channels: Channels of each output.
        num_outs: Number of outputs, at least 4. Each output after the fourth takes every other row
            and column of the previous one, as in mmdet's ``FPN``.

    Examples:
        >>> import torch
        >>> from cpvt_backbones.backbones import SimplePyramid
        >>> neck = SimplePyramid(in_channels=192, out_channels=64)
        >>> maps = neck((torch.rand(1, 192, 5, 7),))
        >>> [tuple(one.shape[2:]) for one in maps]
        [(20, 28), (10, 14), (5, 7), (3, 4), (2, 2)]
    """

    def __init__(self, *, in_channels: int, out_channels: int = 256, num_outs: int = 5) -> None:
        super().__init__()
        check_int(minimum=4, in_channels=in_channels, num_outs=num_outs)
        check_int(out_channels=out_channels)
        half, quarter = in_channels // 2, in_channels // 4
        self.num_outs = num_outs
        self.fpn1 = nn.Sequential(
            nn.ConvTranspose2d(in_channels, half, 2, stride=2),
            LayerNorm2d(half, eps=EPS),
            nn.GELU(),
            nn.ConvTranspose2d(half, quarter, 2, stride=2),
        )
        self.fpn2 = nn.Sequential(nn.ConvTranspose2d(in_channels, half, 2, stride=2))
        self.fpn4 = CeilMaxPool(2)
        widths = (quarter, half, in_channels, in_channels)
        self.lateral_convs = nn.ModuleList(_convolution(width, out_channels, 1) for width in widths)
        self.fpn_convs = nn.ModuleList(_convolution(out_channels, out_channels, 3) for _ in widths)

    def forward(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Compute the maps of strides 4, 8, 16, 32, ... from the last of ``inputs``."""
        feature_map = inputs[-1]
        levels = (
            self.fpn1(feature_map),
            self.fpn2(feature_map),
            feature_map,
            self.fpn4(feature_map),
        )
        # mmcv's compiled RoIAlign assumes contiguous maps.
        outputs = [
            convolve(lateral(level)).contiguous()
            for level, lateral, convolve in zip(
                levels, self.lateral_convs, self.fpn_convs, strict=True
            )
        ]
        while len(outputs) < self.num_outs:
            outputs.append(F.max_pool2d(outputs[-1], 1, stride=2))
        return tuple(outputs)
