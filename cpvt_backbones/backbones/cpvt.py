"""CPVT, the columnar model: DeiT's trunk with PEG in place of the position table (arXiv 2102.10882)."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from mmengine.registry import MODELS
from torch import Tensor, nn

from cpvt_backbones.layers import Attention, Block, PatchEmbed, Stage, WindowAttention, ceil_div
from cpvt_backbones.layers.checks import check_bool, check_heads, check_int, check_positive, strict_keywords

from .archs import COLUMNS, resolve_arch, resolve_indices, resolve_size
from .base import (
    PAPER_POSITION,
    Backbone,
    Position,
    drop_path_schedule,
    init_linear_layers,
)


@MODELS.register_module()
@strict_keywords
class CPVT(Backbone):
    """Vision transformer for any image size, conditional positional encoding by default.

    Keys of the state dict are those of timm's DeiT and ViT, with ``pos_block.<i>.proj.0`` for the i-th PEG.
    Blocks that no output needs are not built, so that every parameter is trained.

    Args:
        arch: ``'tiny'``, ``'small'``, ``'base'``, or a dict with embed_dims, depth, num_heads, mlp_ratio.
        img_size: Side (or height and width) in pixels that learned tables have entries for. Any size runs.
        patch_size: Side of a patch in pixels.
        in_channels: Channels of an image.
        out_indices: Block, or blocks, whose output is returned; negative counts from the end.
        out_type: ``'featmap'``: maps (B, C, H', W'); ``'cls_token'`` and ``'avg_featmap'`` (mean over the patch
            tokens): vectors (B, C); ``'raw'``: tokens (B, [P +] N, C), the class token first. With a distillation
            token, ``'cls_token'`` is a pair of vectors, as mmpretrain's DeiT heads take it.
        position: Position encoding as plain data: ``None``, ``dict(type='PEG' | 'Learned' | 'SinCos' | 'Relative',
            ...)`` or a list of such dicts. Default: one PEG after block 0, k = 3.
        with_cls_token: Add a class token; ``False`` is the paper's GAP model.
        with_dist_token: Add a distillation token to the class token (DeiT, arXiv 2012.12877, section 4).
        window_size: Side in tokens of the windows that attention is limited to; ``None`` for global attention.
        global_blocks: With windows, the blocks with global attention.
        qkv_bias: Give queries, keys and values a bias.
        drop_rate: Dropout behind the embedding and in the MLPs.
        attn_drop_rate: Dropout on attention weights.
        drop_path_rate: Stochastic depth of the last block; grows linearly from 0 at the first.
        layer_scale_init: Initial layer scale; ``None`` for none.
        norm_eps: Epsilon of every LayerNorm.
        final_norm: Normalise the last block's output.
        frozen_stages: -1: none; 0: the embedding; n: and the first n blocks with the PEG behind each; with all
            blocks, the final norm too.
        with_cp: Recompute each block in the backward pass instead of storing its activations.
        init_cfg: mmengine's initialisation, e.g. ``dict(type='Pretrained', checkpoint=...)``. It takes effect in
            ``init_weights()``; until then the weights are random. Without a Runner use :meth:`from_pretrained`.

    Raises:
        ValueError, TypeError: An argument outside what it accepts, named with its value.
    """

    def __init__(
        self,
        *,
        arch: str | Mapping[str, Any] = 'small',
        img_size: int | Sequence[int] = 224,
        patch_size: int = 16,
        in_channels: int = 3,
        out_indices: int | Sequence[int] = -1,
        out_type: str = 'featmap',
        position: Position = PAPER_POSITION,
        with_cls_token: bool = True,
        with_dist_token: bool = False,
        window_size: int | None = None,
        global_blocks: Sequence[int] = (),
        qkv_bias: bool = True,
        drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        layer_scale_init: float | None = None,
        norm_eps: float = 1e-6,
        final_norm: bool = True,
        frozen_stages: int = -1,
        with_cp: bool = False,
        init_cfg: Any = None,
    ) -> None:
        numbers = resolve_arch(arch, COLUMNS)
        dim, depth, num_heads = numbers['embed_dims'], numbers['depth'], numbers['num_heads']
        check_int('embed_dims', dim)
        check_int('depth', depth)
        check_heads(dim, num_heads)
        check_positive(mlp_ratio=numbers['mlp_ratio'], norm_eps=norm_eps)
        check_int('patch_size', patch_size)
        check_bool(with_cls_token=with_cls_token, with_dist_token=with_dist_token, final_norm=final_norm)
        if layer_scale_init is not None:
            check_positive(layer_scale_init=layer_scale_init)
        if window_size is None and len(resolve_indices('global_blocks', global_blocks, depth, allow_none=True)):
            raise ValueError(f'global_blocks must be empty without window_size, got {global_blocks!r}')
        if with_dist_token and not with_cls_token:
            raise ValueError('with_dist_token must be False with with_cls_token=False, got True')
        super().__init__(
            in_channels=in_channels,
            out_type=out_type,
            with_cls_token=with_cls_token,
            qkv_bias=qkv_bias,
            drop_rate=drop_rate,
            attn_drop_rate=attn_drop_rate,
            drop_path_rate=drop_path_rate,
            with_cp=with_cp,
            frozen_stages=frozen_stages,
            max_frozen=depth,
            init_cfg=init_cfg,
        )
        self.embed_dims = dim
        self.depth = depth
        self.num_layers = depth + 2
        self._taps = self.out_indices = resolve_indices('out_indices', out_indices, depth)
        self.out_channels = (dim,) * len(self.out_indices)
        self.out_strides = (patch_size,) * len(self.out_indices)
        used = max(self.out_indices) + 1

        self.patch_embed = PatchEmbed(in_channels, dim, patch_size=patch_size)
        if with_cls_token:
            self.cls_token = nn.Parameter(nn.init.trunc_normal_(torch.empty(1, 1, dim), std=0.02))
        if with_dist_token:
            self.dist_token = nn.Parameter(nn.init.trunc_normal_(torch.empty(1, 1, dim), std=0.02))
        self.pos_drop = nn.Dropout(drop_rate)

        windowed = set(range(used)) - set(resolve_indices('global_blocks', global_blocks, depth, allow_none=True))
        drop_paths = drop_path_schedule(drop_path_rate, depth)

        def attention(index: int) -> Attention:
            arguments: dict[str, Any] = dict(
                num_heads=num_heads, qkv_bias=qkv_bias, attn_drop=attn_drop_rate, proj_drop=drop_rate
            )
            if window_size is None or index not in windowed:
                return Attention(dim, **arguments)
            return WindowAttention(dim, window_size=window_size, **arguments)

        self.blocks = nn.ModuleList(
            Block(
                dim,
                attn=attention(index),
                mlp_ratio=numbers['mlp_ratio'],
                drop=drop_rate,
                drop_path=drop_paths[index],
                layer_scale_init=layer_scale_init,
                norm_eps=norm_eps,
            )
            for index in range(used)
        )
        self.norm = nn.LayerNorm(dim, eps=norm_eps) if final_norm and used == depth else nn.Identity()
        init_linear_layers(self)
        height, width = resolve_size('img_size', img_size)
        self._add_positions(
            position,
            [
                Stage(
                    dim=dim,
                    depth=depth,
                    used=used,
                    head_dim=dim // num_heads,
                    num_prefix=int(with_cls_token) + int(with_dist_token),
                    outputs_map=out_type != 'cls_token',
                    grid=(ceil_div(height, patch_size), ceil_div(width, patch_size)),
                )
            ],
        )
        self._freeze()

    def _features(self, images: Tensor) -> tuple[Any, ...]:
        tokens, grid = self.patch_embed(images)  # (B, N, C)
        tokens = tokens.to(images.dtype)  # under autocast the residual stream is fp32, with a class token or without
        prefix_tokens = self._prefix_tokens(images.shape[0])
        tokens, prefix_tokens, grid = self._before_stage(0, tokens, prefix_tokens, grid)
        tokens = self.pos_drop(tokens)
        outputs: dict[int, Any] = {}
        for index, block in enumerate(self.blocks):
            tokens, prefix_tokens, grid = self._run_block(0, index, block, tokens, prefix_tokens, grid)
            if index in self._taps:
                outputs[index] = self._format(tokens, prefix_tokens, grid, last=index == self.depth - 1)
        return tuple(outputs[index] for index in self._taps)

    def _layer_of(self, name: str) -> int:
        part, _, rest = name.partition('.')
        if part in ('patch_embed', 'cls_token', 'dist_token', 'pos_drop'):
            return 0
        if part == 'blocks' and rest:
            return int(rest.split('.')[0]) + 1
        if part in self._position_names and rest:
            return getattr(self, part).layer_id(rest)[1] + 1
        return self.num_layers - 1

    def _freeze_level(self, name: str) -> float:
        if name.partition('.')[0] == 'norm':
            return self.depth
        level = self._layer_of(name)
        return level if level <= self.depth else float('inf')
