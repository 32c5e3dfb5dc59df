"""MultiScaleCPVT: a plain ViT with feature maps of strides 4, 8, 16 and 32."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from mmengine.registry import MODELS
from torch import Tensor, nn

from cpvt_backbones.checks import check, check_choice
from cpvt_backbones.errors import InputError
from cpvt_backbones.layers import pad_to_multiple
from cpvt_backbones.layers.tokens import crop_map

from .archs import PLAIN_ARCHS, resolve_arch, resolve_indices
from .base import DENSE_POSITION, InitCfg, Position
from .cpvt import CPVT

STRIDES = (4, 8, 16, 32)


@MODELS.register_module()
class LayerNorm2d(nn.LayerNorm):
    """LayerNorm over the channels of a (B, C, H, W) map.

    Unlike BatchNorm, it does not depend on the batch. Heads use it with
    ``norm_cfg=dict(type='LayerNorm2d')``.
    """

    _abbr_ = 'norm_layer'  # name in mmcv's ConvModule, as in mmdet's project ViTDet

    def forward(self, feature_map: Tensor) -> Tensor:
        """Normalise a map (B, C, H, W)."""
        return super().forward(feature_map.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class CeilMaxPool(nn.MaxPool2d):
    """Max pooling that rounds sizes up like ``ceil_mode``, without a compilation per rounding."""

    def forward(self, feature_map: Tensor) -> Tensor:
        """Pool a map (B, C, H, W) to (B, C, ceil(H / p), ceil(W / p))."""
        return super().forward(pad_to_multiple(feature_map, self.kernel_size, value=-torch.inf))  # type: ignore[arg-type]


def resample(dim: int, *, factor: float, halve: bool) -> tuple[nn.Module, int]:
    """Build a module that multiplies a map's stride by ``factor``, a power of two.

    A factor below 1 gives transposed convolutions of stride 2 with norm and GELU between them; each
    halves the width if ``halve``. A factor above 1 gives max pooling that rounds sizes up. Factor 1
    gives the identity.

    Returns:
        The module and its output width.

    Raises:
        ValueError: The factor is not a power of two, or the width cannot be halved.
    """
    if factor >= 1:
        pool = int(factor)
        return (CeilMaxPool(pool) if pool > 1 else nn.Identity()), dim
    steps = round(-math.log2(factor))
    if halve and dim < 2**steps:
        raise InputError(
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
    """A :class:`CPVT` with feature maps of stride 4, 8, 16 and 32, for detectors and segmentors.

    Parameters of the trunk have the same names as in :class:`CPVT`, so that pretrained weights of a
    plain ViT load. New parameters are under ``pyramid.``. All outputs are maps, so there is no
    ``out_type``.

    | ``arch`` | ``embed_dims`` | ``depth`` | ``num_heads`` | parameters, M |
    | --- | --- | --- | --- | --- |
    | tiny | 192 | 12 | 3 | 5.7 |
    | small | 384 | 12 | 6 | 22.3 |
    | base | 768 | 12 | 12 | 88.3 |

    Parameters are those of the default arguments, without a head. ``mlp_ratio`` is 4.

    | ``out_indices`` | stride, px | channels, at patch 16 and ``source='last'`` |
    | --- | --- | --- |
    | 0 or -4 | 4 | ``embed_dims`` / 4 |
    | 1 or -3 | 8 | ``embed_dims`` / 2 |
    | 2 or -2 | 16 | ``embed_dims`` |
    | 3 or -1 | 32 | ``embed_dims`` |

    | ``frozen_stages`` | frozen: not trained, in evaluation mode |
    | --- | --- |
    | -1 | nothing |
    | 0 | patch embedding, extra tokens, position embedding, norm before the blocks |
    | n in [1, depth) | the same, with blocks 0 to n - 1 and the PEGs after them |
    | depth (12) | the whole trunk; ``pyramid`` is trained |

    Args:
        arch: ``'tiny'``, ``'small'`` or ``'base'``, as in the table, or a dict such as
            ``dict(embed_dims=256, depth=6, num_heads=4, mlp_ratio=4)``.
        source: ``'last'`` makes all levels from the last block and halves the channels at each
            upsampling by 2 (ViTDet, arXiv 2203.16527, section 3). ``'taps'`` makes each level from
            another block, with all channels (BEiT and XCiT, arXiv 2106.09681, section 4).
        taps: With ``source='taps'``, the blocks for strides 4, 8, 16 and 32, in ascending order.
            ``None`` takes the last block of each quarter: ``(2, 5, 8, 11)`` for 12 blocks.
        out_indices: Levels that are returned: one, ``1``, or several, ``(1, 2, 3)``. Integers in
            [-4, 3], as in the table.
        patch_size: Side of a patch: 4, 8, 16 or 32 pixels.
        position: Position encoding: ``None``, a dict with its ``type`` and arguments, or a list of
            such dicts. Types: ``'PEG'`` (:class:`PEGPosition`), ``'Learned'``
            (:class:`LearnedTable`), ``'SinCos'`` (:class:`SinCos`), ``'Relative'``
            (:class:`Relative`), ``'DecomposedRelative'`` (:class:`DecomposedRelative`),
            ``'RelativeBias'`` (:class:`RelativeBias`), ``'RoPE'`` (:class:`RoPE`).
            Default: one PEG after each of blocks 0 to 4, or of all blocks if there are fewer.
        with_cls_token: Add a class token, which takes part in attention but is not returned.
        frozen_stages: Number of blocks to freeze, counted from the first: 2 freezes blocks 0 and 1.
            An integer in [-1, depth]; the table lists what each value freezes.

    The other arguments are those of :class:`CPVT`.

    Raises:
        ValueError: An argument is wrong. The message names it, its value and what is accepted.

    Examples:
        >>> import torch
        >>> from cpvt_backbones import MultiScaleCPVT
        >>> model = MultiScaleCPVT(arch='tiny')
        >>> model.out_strides, model.out_channels
        ((4, 8, 16, 32), (48, 96, 192, 192))
        >>> maps = model(torch.rand(1, 3, 50, 70))
        >>> [tuple(one.shape[2:]) for one in maps]
        [(13, 18), (7, 9), (4, 5), (2, 3)]

        The feature map of stride 8 alone:

        >>> model = MultiScaleCPVT(arch='tiny', out_indices=(1,))
        >>> model.out_strides, model.out_channels
        ((8,), (96,))

        Freeze the patch embedding and the first four blocks:

        >>> model = MultiScaleCPVT(arch='tiny', frozen_stages=4).train()
        >>> [block.norm1.weight.requires_grad for block in model.blocks[:6]]
        [False, False, False, False, True, True]

        A config of RetinaNet with pretrained weights. The neck takes ``out_channels``:

        ```python
        # retinanet_multi_scale.py
        _base_ = 'mmdet::retinanet/retinanet_r50_fpn_1x_coco.py'
        custom_imports = dict(imports=['cpvt_backbones'])
        model = dict(
            data_preprocessor=dict(type='ValidSizesDetDataPreprocessor'),
            backbone=dict(
                _delete_=True,
                type='MultiScaleCPVT',
                arch='small',
                out_indices=(1, 2, 3),  # strides 8, 16 and 32
                frozen_stages=4,
                position=dict(type='Learned'),  # that of the weights
                init_cfg='timm://deit_small_patch16_224.fb_in1k',
            ),
            neck=dict(in_channels=[192, 384, 384], start_level=0),
        )
        # AdamW, not SGD; the table without weight decay
        spared = dict(pos_embed=dict(decay_mult=0))
        optim_wrapper = dict(
            optimizer=dict(
                _delete_=True, type='AdamW', lr=1e-4, weight_decay=1e-4
            ),
            paramwise_cfg=dict(custom_keys=spared),
        )
        ```
    """

    pyramid: nn.ModuleDict

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
        init_cfg: InitCfg = None,
    ) -> None:
        check_choice(('last', 'taps'), source=source)
        check(f'one of {STRIDES}', lambda size: size in STRIDES, patch_size=patch_size)
        depth = resolve_arch(arch, PLAIN_ARCHS)['depth']
        levels = resolve_indices('out_indices', out_indices, len(STRIDES))
        if source == 'last':
            check("None with source='last'", lambda value: value is None, taps=taps)
            blocks = [depth - 1] * len(levels)
        else:
            # By default, the last block of each quarter.
            chosen = [max(depth * (i + 1) // 4 - 1, 0) for i in range(4)] if taps is None else taps
            resolved = resolve_indices('taps', chosen, depth)
            if len(resolved) != len(STRIDES) or list(resolved) != sorted(resolved):
                raise InputError(
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
            outputs.append(crop_map(feature_map, images.shape[2:], stride))
        return tuple(outputs)
