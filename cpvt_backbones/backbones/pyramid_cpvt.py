"""PyramidCPVT: PVT with a PEG in every stage (CPVTv2 = Twins-PCPVT, arXiv 2104.13840, section 3.1)."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from mmengine.registry import MODELS
from torch import Tensor, nn

from cpvt_backbones.layers import Block, PatchEmbed, SpatialReductionAttention, Stage, ceil_div, tokens_to_map
from cpvt_backbones.layers.checks import check_bool, check_heads, check_int, check_positive, strict_keywords

from .archs import PYRAMIDS, resolve_arch, resolve_indices, resolve_size
from .base import (
    PAPER_POSITION,
    Backbone,
    Position,
    drop_path_schedule,
    init_linear_layers,
)

PATCH_SIZES = (4, 2, 2, 2)


@MODELS.register_module()
@strict_keywords
class PyramidCPVT(Backbone):
    """Pyramid vision transformer for any image size; maps of strides 4, 8, 16, 32.

    Keys of the state dict are those of the authors and of timm's ``twins_pcpvt_*``. Stages that no output needs are
    not built, so that every parameter is trained.

    Args:
        arch: ``'tiny'``, ``'small'``, ``'base'``, ``'large'``, or a dict with depths, embed_dims, num_heads,
            mlp_ratios and sr_ratios, one number a stage.
        img_size: Side (or height and width) in pixels that learned tables have entries for. Any size runs.
        in_channels: Channels of an image.
        out_indices: Stage, or stages, whose output is returned; negative counts from the end.
        out_type: As in :class:`CPVT`.
        position: As in :class:`CPVT`, with block indices counted within each stage. Default: a PEG after block 0 of
            every stage. PVT: ``dict(type='Learned', interpolation='bilinear', antialias=False)``.
        with_cls_token: Add a class token at the last stage, as in PVT.
        qkv_bias: Give queries, keys and values a bias.
        drop_rate: Dropout behind the embeddings and in the MLPs.
        attn_drop_rate: Dropout on attention weights.
        drop_path_rate: Stochastic depth of the last block; grows linearly from 0 at the first.
        norm_eps: Epsilon of the blocks' and the final LayerNorm.
        embed_norm_eps: Epsilon of the LayerNorm behind patch embeddings and spatial reductions (Twins: 1e-5;
            PVT: 1e-6).
        final_norm: Normalise the last stage's output; ``None``: unless it is a feature map, as in the dense models of
            PVT and Twins.
        frozen_stages: -1: none; 0: the first patch embedding; n: and the first n stages; with all stages, the final
            norm too.
        with_cp: Recompute each block in the backward pass instead of storing its activations.
        init_cfg: As in :class:`CPVT`.

    Raises:
        ValueError, TypeError: An argument outside what it accepts, named with its value.
    """

    def __init__(
        self,
        *,
        arch: str | Mapping[str, Any] = 'small',
        img_size: int | Sequence[int] = 224,
        in_channels: int = 3,
        out_indices: int | Sequence[int] = (0, 1, 2, 3),
        out_type: str = 'featmap',
        position: Position = PAPER_POSITION,
        with_cls_token: bool = False,
        qkv_bias: bool = True,
        drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        norm_eps: float = 1e-6,
        embed_norm_eps: float = 1e-5,
        final_norm: bool | None = None,
        frozen_stages: int = -1,
        with_cp: bool = False,
        init_cfg: Any = None,
    ) -> None:
        numbers = resolve_arch(arch, PYRAMIDS)
        for key, values in numbers.items():
            if not isinstance(values, Sequence) or len(values) != len(PATCH_SIZES):
                raise ValueError(f'arch must give {len(PATCH_SIZES)} numbers for {key}, one a stage, got {values!r}')
        for dim, heads, depth in zip(numbers['embed_dims'], numbers['num_heads'], numbers['depths'], strict=True):
            check_int('embed_dims', dim)
            check_heads(dim, heads)
            check_int('depths', depth)
        for ratio in numbers['mlp_ratios']:
            check_positive(mlp_ratios=ratio)
        for ratio in numbers['sr_ratios']:
            check_int('sr_ratios', ratio)
        check_positive(norm_eps=norm_eps, embed_norm_eps=embed_norm_eps)
        if final_norm is not None:
            check_bool(final_norm=final_norm)
        num_stages = len(PATCH_SIZES)
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
            max_frozen=num_stages,
            init_cfg=init_cfg,
        )
        self.depths: tuple[int, ...] = tuple(numbers['depths'])
        self.num_layers = sum(self.depths) + 2
        self.out_indices = resolve_indices('out_indices', out_indices, num_stages)
        used = max(self.out_indices) + 1
        if with_cls_token and used < num_stages:
            raise ValueError(
                'with_cls_token must be False unless out_indices holds the last stage, where the class '
                f'token is added, got True with out_indices={out_indices!r}'
            )
        if out_type == 'cls_token' and self.out_indices != (num_stages - 1,):
            raise ValueError(
                "out_indices must be -1 with out_type='cls_token' (only the last stage has a class "
                f'token), got {out_indices!r}'
            )
        dims: Sequence[int] = numbers['embed_dims']
        self.out_channels = tuple(dims[i] for i in self.out_indices)
        self.out_strides = tuple(math.prod(PATCH_SIZES[: i + 1]) for i in self.out_indices)

        self.patch_embeds = nn.ModuleList(
            PatchEmbed(dims[s - 1] if s else in_channels, dims[s], patch_size=PATCH_SIZES[s], norm_eps=embed_norm_eps)
            for s in range(used)
        )
        self.pos_drops = nn.ModuleList(nn.Dropout(drop_rate) for _ in range(used))
        drop_paths = iter(drop_path_schedule(drop_path_rate, sum(self.depths)))
        self.blocks = nn.ModuleList()
        for s in range(used):
            self.blocks.append(
                nn.ModuleList(
                    Block(
                        dims[s],
                        mlp_ratio=numbers['mlp_ratios'][s],
                        drop=drop_rate,
                        drop_path=next(drop_paths),
                        norm_eps=norm_eps,
                        attn=SpatialReductionAttention(
                            dims[s],
                            num_heads=numbers['num_heads'][s],
                            sr_ratio=numbers['sr_ratios'][s],
                            qkv_bias=qkv_bias,
                            attn_drop=attn_drop_rate,
                            proj_drop=drop_rate,
                            norm_eps=embed_norm_eps,
                        ),
                    )
                    for _ in range(self.depths[s])
                )
            )
        if final_norm is None:
            final_norm = out_type != 'featmap'
        self.norm = nn.LayerNorm(dims[-1], eps=norm_eps) if final_norm and used == num_stages else nn.Identity()
        init_linear_layers(self)
        if with_cls_token:
            self.cls_token = nn.Parameter(nn.init.trunc_normal_(torch.empty(1, 1, dims[-1]), std=0.02))

        grid = resolve_size('img_size', img_size)
        stages = []
        for s in range(used):
            grid = (ceil_div(grid[0], PATCH_SIZES[s]), ceil_div(grid[1], PATCH_SIZES[s]))
            stages.append(
                Stage(
                    dim=dims[s],
                    depth=self.depths[s],
                    used=self.depths[s],
                    head_dim=dims[s] // numbers['num_heads'][s],
                    grid=grid,
                    num_prefix=int(with_cls_token and s == num_stages - 1),
                    outputs_map=out_type != 'cls_token' or s < num_stages - 1,
                    reduces_keys=numbers['sr_ratios'][s] > 1,
                )
            )
        self._add_positions(position, stages)
        self._init_convolutions()
        if not all(encoding.keeps_grid for encoding in self.position_encodings):
            raise ValueError(f"padding must be 'zero' in a pyramid (the map would shrink), got position={position!r}")
        self._freeze()

    def _init_convolutions(self) -> None:
        """Initialise patch embeddings, reductions and PEGs as PVT and Twins do: normal, sqrt(2 / fan-out)."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                fan_out = module.kernel_size[0] * module.kernel_size[1] * module.out_channels // module.groups
                nn.init.normal_(module.weight, std=math.sqrt(2 / fan_out))
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def _features(self, images: Tensor) -> tuple[Any, ...]:
        outputs: dict[int, Any] = {}
        feature_map, last = images, len(PATCH_SIZES) - 1
        for s, (embed, blocks) in enumerate(zip(self.patch_embeds, self.blocks, strict=True)):
            tokens, grid = embed(feature_map)
            prefix_tokens = self._prefix_tokens(images.shape[0]) if s == last else None
            tokens, prefix_tokens, grid = self._before_stage(s, tokens, prefix_tokens, grid)
            tokens = self.pos_drops[s](tokens)
            for index, block in enumerate(cast(nn.ModuleList, blocks)):
                tokens, prefix_tokens, grid = self._run_block(s, index, block, tokens, prefix_tokens, grid)
            if s in self.out_indices:
                outputs[s] = self._format(tokens, prefix_tokens, grid, last=s == last)
            feature_map = tokens_to_map(tokens, grid)
        return tuple(outputs[s] for s in self.out_indices)

    def _layer_id(self, name: str) -> tuple[int, int] | None:
        """(stage, block) of a parameter or module, block -1 before the first; ``None`` outside the stages."""
        part, _, rest = name.partition('.')
        if part in self._position_names and rest:
            return getattr(self, part).layer_id(rest)
        if part == 'cls_token':
            return len(self.depths) - 1, -1
        numbers = [int(n) for n in rest.split('.')[:2] if n.isdigit()]
        if part in ('patch_embeds', 'pos_drops') and numbers:
            return numbers[0], -1
        if part == 'blocks' and len(numbers) == 2:
            return numbers[0], numbers[1]
        return None

    def _layer_of(self, name: str) -> int:
        layer_id = self._layer_id(name)
        if layer_id is None:
            return self.num_layers - 1
        stage, block = layer_id
        if stage == 0:
            return block + 1
        return sum(self.depths[:stage]) + max(block, 0) + 1

    def _freeze_level(self, name: str) -> float:
        if name.partition('.')[0] == 'norm':
            return len(self.depths)
        layer_id = self._layer_id(name)
        if layer_id is None:
            return float('inf')
        return 0 if layer_id == (0, -1) else layer_id[0] + 1
