"""MultiScaleCPVT: a column with outputs of strides 4, 8, 16 and 32, for necks and heads made for
pyramids.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from mmengine.registry import MODELS
from torch import Tensor, nn

from cpvt_backbones.layers import ceil_div, pad_to_multiple
from cpvt_backbones.layers.checks import check, check_choice
from cpvt_backbones.layers.tokens import crop

from .archs import COLUMNS, resolve_arch, resolve_indices
from .base import DENSE_POSITION, Position
from .cpvt import CPVT

STRIDES = (4, 8, 16, 32)


class LayerNorm2d(nn.LayerNorm):
    """LayerNorm over the channels of a (B, C, H, W) map.

    Independent of the batch, unlike BatchNorm.
    """

    def forward(self, feature_map: Tensor) -> Tensor:
        """(B, C, H, W) to the same shape."""
        return super().forward(feature_map.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class CeilMaxPool(nn.MaxPool2d):
    """Max pooling that rounds sizes up, as ``ceil_mode`` does, but without a new compilation for
    each rounding.
    """

    def forward(self, feature_map: Tensor) -> Tensor:
        """(B, C, H, W) to (B, C, ceil(H / p), ceil(W / p))."""
        return super().forward(pad_to_multiple(feature_map, self.kernel_size, value=-torch.inf))  # type: ignore[arg-type]


def resample(dim: int, *, factor: float, halve: bool) -> tuple[nn.Module, int]:
    """A module that changes a map's stride by ``factor`` (a power of two), and its output width.

    Up (factor < 1): transposed convolutions of stride 2, with norm and GELU between them; each
    halves the width if ``halve``. Down: max pooling that rounds sizes up. Neither: identity.
    """
    if factor >= 1:
        pool = int(factor)
        return (CeilMaxPool(pool) if pool > 1 else nn.Identity()), dim
    steps = round(-math.log2(factor))
    if halve and dim < 2**steps:
        raise ValueError(
            f"embed_dims must be >= {2**steps} with source='last' (it is halved {steps} times), got"
            f' {dim}'
        )
    layers: list[nn.Module] = []
    for step in range(steps):
        if step:
            layers += [LayerNorm2d(dim, eps=1e-6), nn.GELU()]
        width = dim // 2 if halve else dim
        layers.append(nn.ConvTranspose2d(dim, width, 2, stride=2))
        dim = width
    return nn.Sequential(*layers), dim


@MODELS.register_module()
class MultiScaleCPVT(CPVT):
    """A :class:`CPVT` whose outputs are maps of strides 4, 8, 16 and 32.

    The trunk's parameters keep their names: a checkpoint of :class:`CPVT` loads with none missing.
    New ones are under ``pyramid.``. Errors are those of :class:`CPVT`.

    Args:
        arch: As in :class:`CPVT`.
        source: ``'last'``: every level from the last map, upsampling halves the channels (ViTDet,
            arXiv 2203.16527, section 3; at patch 16: C / 4, C / 2, C, C). ``'taps'``: each level
            from the map of another block, all C wide (BEiT and XCiT, arXiv 2106.09681, section 4).
        taps: With ``source='taps'``, the block of each stride; ``None``: the ends of four quarters
            (2, 5, 8, 11 of 12).
        out_indices: Levels that are returned: 0 is stride 4, 3 is stride 32.
        patch_size: 4, 8, 16 or 32 pixels.
        position: See :class:`CPVT`. Default: one PEG after each of the first five blocks, or of all
            if there are fewer.
        with_cls_token: See :class:`CPVT`. Default: no class token.
        window_size, global_blocks, mask_window_padding: See :class:`CPVT`. Global attention in a
            few blocks, windowed in the rest: ``window_size=14, global_blocks=(2, 5, 8, 11)``.

    The other arguments are those of :class:`CPVT`.

    Examples:
        >>> import torch
        >>> from cpvt_backbones import MultiScaleCPVT
        >>> model = MultiScaleCPVT(arch='tiny')
        >>> model.out_strides, model.out_channels
        ((4, 8, 16, 32), (48, 96, 192, 192))
        >>> maps = model(torch.rand(1, 3, 50, 70))
        >>> [tuple(one.shape[2:]) for one in maps]
        [(13, 18), (7, 9), (4, 5), (2, 3)]
    """

    def __init__(
        self,
        *,
        arch: str | Mapping[str, Any] = 'small',
        source: str = 'last',
        taps: Sequence[int] | None = None,
        out_indices: int | Sequence[int] = (0, 1, 2, 3),
        patch_size: int = 16,
        position: Position = DENSE_POSITION,
        with_cls_token: bool = False,
        img_size: int | Sequence[int] = 224,
        num_registers: int = 0,
        window_size: int | None = None,
        global_blocks: Sequence[int] = (),
        mask_window_padding: bool = True,
        layer_scale_init: float | None = None,
        activation: str = 'gelu',
        pre_norm: bool = False,
        final_norm: bool = True,
        in_channels: int = 3,
        qkv_bias: bool = True,
        drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        norm_eps: float = 1e-6,
        frozen_stages: int = -1,
        with_cp: bool = False,
        init_cfg: Any = None,
    ) -> None:
        check_choice(('last', 'taps'), source=source)
        check(f'one of {STRIDES}', lambda size: size in STRIDES, patch_size=patch_size)
        depth = resolve_arch(arch, COLUMNS)['depth']
        levels = resolve_indices('out_indices', out_indices, len(STRIDES))
        if source == 'last':
            check("None with source='last'", lambda value: value is None, taps=taps)
            blocks = [depth - 1] * len(levels)
        else:
            chosen = [max(depth * (i + 1) // 4 - 1, 0) for i in range(4)] if taps is None else taps
            resolved = resolve_indices('taps', chosen, depth)
            if len(resolved) != len(STRIDES) or list(resolved) != sorted(resolved):
                raise ValueError(
                    f'taps must be {len(STRIDES)} block indices in ascending order, got {chosen!r}'
                )
            blocks = [resolved[level] for level in levels]
        super().__init__(
            arch=arch,
            img_size=img_size,
            patch_size=patch_size,
            out_indices=blocks,
            position=position,
            with_cls_token=with_cls_token,
            num_registers=num_registers,
            window_size=window_size,
            global_blocks=global_blocks,
            mask_window_padding=mask_window_padding,
            layer_scale_init=layer_scale_init,
            activation=activation,
            pre_norm=pre_norm,
            final_norm=final_norm,
            in_channels=in_channels,
            qkv_bias=qkv_bias,
            drop_rate=drop_rate,
            attn_drop_rate=attn_drop_rate,
            drop_path_rate=drop_path_rate,
            norm_eps=norm_eps,
            frozen_stages=frozen_stages,
            with_cp=with_cp,
            init_cfg=init_cfg,
        )
        self._check_padding('in a model for dense prediction', position)
        self.out_indices = levels
        self.source = source
        self.taps = taps
        self.pyramid = nn.ModuleDict()
        widths = {}
        for level in sorted(set(levels)):
            factor, halve = STRIDES[level] / patch_size, source == 'last'
            self.pyramid[str(level)], widths[level] = resample(
                self.embed_dims, factor=factor, halve=halve
            )
        self.out_channels = tuple(widths[level] for level in levels)
        self.out_strides = tuple(STRIDES[level] for level in levels)

    def _features(self, images: Tensor) -> tuple[Tensor, ...]:
        outputs = []
        for level, trunk_map in zip(self.out_indices, super()._features(images), strict=True):
            stride = STRIDES[level]
            feature_map = self.pyramid[str(level)](trunk_map)
            # An upsampled map covers the padding of the last patch too; cells without a pixel are
            # cropped.
            size = (ceil_div(images.shape[2], stride), ceil_div(images.shape[3], stride))
            outputs.append(crop(feature_map, (2, 3), size))
        return tuple(outputs)
