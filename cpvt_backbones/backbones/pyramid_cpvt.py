"""PyramidCPVT: PVT with a PEG in every stage (CPVTv2 = Twins-PCPVT, arXiv 2104.13840,
section 3.1).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from mmengine.model import normal_init
from mmengine.registry import MODELS
from torch import Tensor, nn

from cpvt_backbones.layers import (
    PatchEmbed,
    SpatialReductionAttention,
    Stage,
    ceil_div,
    tokens_to_map,
)
from cpvt_backbones.layers.checks import check_bool, check_positive, forwards_to, strict_keywords

from .archs import PYRAMIDS, resolve_arch, resolve_indices, resolve_size
from .base import PAPER_POSITION, Backbone, Position, init_linear_layers

PATCH_SIZES = (4, 2, 2, 2)


@MODELS.register_module()
@strict_keywords
class PyramidCPVT(Backbone):
    """Pyramid vision transformer for any image size; maps of strides 4, 8, 16, 32.

    Keys of the state dict are those of the authors and of timm's ``twins_pcpvt_*``. Stages that no
    output needs are not built, so that every parameter is trained. Errors are those of
    :class:`CPVT`.

    Args:
        arch: ``'tiny'``, ``'small'``, ``'base'``, ``'large'``, or a dict with depths, embed_dims,
            num_heads, mlp_ratios and sr_ratios, one number a stage.
        img_size: Side (or height and width) in pixels that learned tables have entries for. Any
            size runs.
        out_indices: Stage, or stages, whose output is returned; negative counts from the end.
        position: See :class:`CPVT`; block indices count within each stage. Default: a PEG after
            block 0 of every stage. PVT: ``dict(type='Learned', interpolation='bilinear',
            antialias=False)``.
        with_cls_token: Add a class token at the last stage, as in PVT.
        embed_norm_eps: Epsilon of the norms of patch embeddings and spatial reductions (Twins:
            1e-5; PVT: 1e-6).
        final_norm: Normalise the last stage's output; ``None``: unless it is a feature map, as in
            PVT and Twins.
        shared: in_channels, out_type, qkv_bias, drop_rate, attn_drop_rate, drop_path_rate,
            norm_eps, frozen_stages, with_cp, init_cfg: see :class:`Backbone`.
    """

    @forwards_to(Backbone.__init__, without=('depths',))
    def __init__(
        self,
        *,
        arch: str | Mapping[str, Any] = 'small',
        img_size: int | Sequence[int] = 224,
        out_indices: int | Sequence[int] = (0, 1, 2, 3),
        position: Position = PAPER_POSITION,
        with_cls_token: bool = False,
        embed_norm_eps: float = 1e-5,
        final_norm: bool | None = None,
        **shared: Any,
    ) -> None:
        numbers = resolve_arch(arch, PYRAMIDS)
        num_stages = len(PATCH_SIZES)
        keys = ('embed_dims', 'num_heads', 'depths', 'mlp_ratios', 'sr_ratios')
        dims, heads, depths, mlp_ratios, sr_ratios = (numbers[key] for key in keys)
        check_positive(embed_norm_eps=embed_norm_eps)
        super().__init__(depths=depths, with_cls_token=with_cls_token, **shared)
        self.out_indices = resolve_indices('out_indices', out_indices, num_stages)
        used = max(self.out_indices) + 1
        if with_cls_token and used < num_stages:
            where = 'out_indices holds the last stage, where the class token is added'
            raise ValueError(
                f'with_cls_token must be False unless {where}, got True with'
                f' out_indices={out_indices!r}'
            )
        if self.out_type == 'cls_token' and self.out_indices != (num_stages - 1,):
            where = "with out_type='cls_token' (only the last stage has a class token)"
            raise ValueError(f'out_indices must be -1 {where}, got {out_indices!r}')
        self.out_channels = tuple(dims[s] for s in self.out_indices)
        self.out_strides = tuple(math.prod(PATCH_SIZES[: s + 1]) for s in self.out_indices)

        channels = (self.in_channels, *dims)
        self.patch_embeds = nn.ModuleList(
            PatchEmbed(channels[s], dims[s], patch_size=PATCH_SIZES[s], norm_eps=embed_norm_eps)
            for s in range(used)
        )
        self.pos_drops = nn.ModuleList(nn.Dropout(self.drop_rate) for _ in range(used))
        self.blocks = nn.ModuleList()
        for s in range(used):
            attention = partial(
                SpatialReductionAttention, sr_ratio=sr_ratios[s], norm_eps=embed_norm_eps
            )
            options = dict(num_heads=heads[s], mlp_ratio=mlp_ratios[s])
            indices = range(sum(depths[:s]), sum(depths[: s + 1]))
            self.blocks.append(
                nn.ModuleList(
                    self._block(index, dims[s], attention, **options) for index in indices
                )
            )
        final_norm = self.out_type != 'featmap' if final_norm is None else final_norm
        check_bool(final_norm=final_norm)
        normed = final_norm and used == num_stages
        self.norm = nn.LayerNorm(dims[-1], eps=self.norm_eps) if normed else nn.Identity()
        init_linear_layers(self)
        if with_cls_token:
            self.cls_token = nn.Parameter(
                nn.init.trunc_normal_(torch.empty(1, 1, dims[-1]), std=0.02)
            )

        grid = resolve_size('img_size', img_size)
        stages = []
        for s in range(used):
            grid = (ceil_div(grid[0], PATCH_SIZES[s]), ceil_div(grid[1], PATCH_SIZES[s]))
            sizes = dict(dim=dims[s], depth=depths[s], used=depths[s], head_dim=dims[s] // heads[s])
            stages.append(Stage(**sizes, grid=grid, sr_ratio=sr_ratios[s]))
        if used == num_stages:
            outputs_map = self.out_type != 'cls_token'
            stages[-1] = replace(
                stages[-1], outputs_map=outputs_map, num_prefix=int(with_cls_token)
            )
        self._add_positions(position, stages)
        self._init_convolutions()
        self._check_padding('in a pyramid', position)
        self._freeze()

    def _init_convolutions(self) -> None:
        """Initialise patch embeddings, reductions and PEGs as PVT and Twins do: normal, sqrt(2 /
        fan-out).
        """
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                fan_out = (
                    module.kernel_size[0]
                    * module.kernel_size[1]
                    * module.out_channels
                    // module.groups
                )
                normal_init(module, std=math.sqrt(2 / fan_out))

    def _features(self, images: Tensor) -> tuple[Any, ...]:
        outputs: dict[int, Any] = {}
        feature_map, last = images, len(PATCH_SIZES) - 1
        for s, (embed, blocks) in enumerate(zip(self.patch_embeds, self.blocks, strict=True)):
            tokens, grid = embed(feature_map)
            prefix_tokens = self._prefix_tokens(images.shape[0]) if s == last else None
            tokens, prefix_tokens, grid = self._before_stage(s, tokens, prefix_tokens, grid)
            rotations = self._rotations(s, grid, prefix_tokens, tokens.device)
            tokens = self.pos_drops[s](tokens)
            for index, block in enumerate(cast(nn.ModuleList, blocks)):
                tokens, prefix_tokens, grid = self._run_block(
                    s, index, block, tokens, prefix_tokens, grid, rotations
                )
            if s in self.out_indices:
                outputs[s] = self._format(tokens, prefix_tokens, grid, last=s == last)
            feature_map = tokens_to_map(tokens, grid)
        return tuple(outputs[s] for s in self.out_indices)

    def _layer_id(self, name: str) -> tuple[int, int] | None:
        part, _, rest = name.partition('.')
        numbers = [int(n) for n in rest.split('.')[:2] if n.isdigit()]
        if part == 'cls_token':
            return len(self.depths) - 1, -1
        if part in ('patch_embeds', 'pos_drops') and numbers:
            return numbers[0], -1
        if part == 'blocks' and len(numbers) == 2:
            return numbers[0], numbers[1]
        return super()._layer_id(name)
