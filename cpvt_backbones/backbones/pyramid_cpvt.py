"""PyramidCPVT, a hierarchical ViT: PVT with a PEG in every stage, Twins-SVT and PVTv2."""

import math
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, cast

from mmengine.model import normal_init
from mmengine.registry import MODELS
from torch import Tensor, nn

from cpvt_backbones.checks import check_bool, check_positive
from cpvt_backbones.errors import InputError
from cpvt_backbones.layers import (
    PatchEmbed,
    SpatialReductionAttention,
    Stage,
    WindowAttention,
    ceil_div,
    tokens_to_map,
)
from cpvt_backbones.layers.position import StageTokens
from cpvt_backbones.layers.tokens import prepend_tokens, split_tokens

from .archs import HIERARCHICAL_ARCHS, resolve_arch, resolve_indices, resolve_size
from .base import (
    NEEDS_CLS_TOKEN,
    PAPER_POSITION,
    Backbone,
    InitCfg,
    Position,
    init_linear_layers,
    prefix_parameter,
)

PATCH_SIZES = (4, 2, 2, 2)


@MODELS.register_module()
class PyramidCPVT(Backbone):
    """Hierarchical vision transformer for images of any size, with strides 4, 8, 16 and 32.

    It is PVT with a PEG in every stage (Twins-PCPVT and Twins-SVT, arXiv 2104.13840, section 3).
    The state dict has the keys of the authors and of timm's ``twins_*``. Stages that no output
    needs are not built, so that every parameter is trained. With ``out_indices=(0, 1)``, it has no
    keys of stages 2 and 3.

    | ``arch`` | ``depths`` | parameters, M |
    | --- | --- | --- |
    | tiny | 2, 2, 2, 2 | 12.3 |
    | small | 3, 4, 6, 3 | 23.6 |
    | base | 3, 4, 18, 3 | 43.3 |
    | large | 3, 8, 27, 3 | 60.5 |
    | svt_small | 2, 2, 10, 4 | 23.5 |
    | svt_base | 2, 2, 18, 2 | 55.3 |
    | svt_large | 2, 2, 18, 2 | 98.2 |
    | pvtv2_b0 | 2, 2, 2, 2 | 3.4 |
    | pvtv2_b1 | 2, 2, 2, 2 | 13.5 |
    | pvtv2_b2 | 3, 4, 6, 3 | 24.9 |
    | pvtv2_b3 | 3, 4, 18, 3 | 44.7 |
    | pvtv2_b4 | 3, 8, 27, 3 | 62.1 |
    | pvtv2_b5 | 3, 6, 40, 3 | 81.5 |

    Parameters are those of the default arguments, without a head. The stages have these values;
    ``embed_dims`` are the channels of the maps:

    | ``out_indices`` | 0 | 1 | 2 | 3 |
    | --- | ---: | ---: | ---: | ---: |
    | stride, px | 4 | 8 | 16 | 32 |
    | ``sr_ratios`` | 8 | 4 | 2 | 1 |
    | ``embed_dims`` of tiny to large | 64 | 128 | 320 | 512 |
    | their ``num_heads`` | 1 | 2 | 5 | 8 |
    | their ``mlp_ratios`` | 8 | 8 | 4 | 4 |
    | ``embed_dims`` of svt_small | 64 | 128 | 256 | 512 |
    | ``embed_dims`` of svt_base | 96 | 192 | 384 | 768 |
    | ``embed_dims`` of svt_large | 128 | 256 | 512 | 1024 |
    | ``embed_dims`` of pvtv2_b0 | 32 | 64 | 160 | 256 |

    Twins-SVT (``svt_*``) has heads of 32 channels and ``mlp_ratios`` of 4. Blocks 0, 2, 4, ... of
    a stage attend within windows of 7 x 7 tokens. Blocks 1, 3, 5, ... attend to the whole map, with
    keys reduced by ``sr_ratios``. PVTv2 (``pvtv2_*``) has overlapping patches and a convolution in
    the MLPs. Its heads and ``mlp_ratios`` are those of tiny to large, but pvtv2_b5 has
    ``mlp_ratios`` of 4. The ``embed_dims`` of pvtv2_b1 to pvtv2_b5 are those of tiny to large.

    | ``frozen_stages`` | frozen: not trained, in evaluation mode |
    | --- | --- |
    | -1 | nothing |
    | 0 | patch embedding and position embedding of stage 0 |
    | 1 | stage 0: both embeddings, blocks and their PEG |
    | 2 | stages 0 and 1 |
    | 3 | stages 0 to 2 |
    | 4 | all stages, class token and final norm: the whole model |

    Args:
        arch: A name in the table, or a dict with depths, embed_dims, num_heads, mlp_ratios and
            sr_ratios, each with four numbers, one per stage. Twins-SVT also has a window_size, in
            tokens. PVTv2 also has patch_kernels=(7, 3, 3, 3), the sides of overlapping patches, and
            mlp_kernel_size=3, the side of a convolution in the MLPs.
        img_size: Image size of learned position embeddings in pixels: a side, ``224``, or (height,
            width), ``(480, 640)``. The model takes images of any size.
        out_indices: Stages whose output is returned: one, ``-1``, or several, ``(1, 2, 3)``.
            Integers in [-4, 3], as in the table; -1 is stage 3, the last.
        position: Position encoding: ``None``, a dict with its ``type`` and arguments, or a list of
            such dicts. Types: ``'PEG'`` (:class:`PEGPosition`), ``'Learned'``
            (:class:`LearnedTable`), ``'SinCos'`` (:class:`SinCos`), ``'RoPE'`` (:class:`RoPE`).
            ``'Relative'``, ``'DecomposedRelative'`` and ``'RelativeBias'`` need ``sr_ratios`` of 1.
            Blocks count from 0 in each stage. Default: a PEG after block 0 of every stage. PVT has
            ``dict(type='Learned', interpolation='bilinear', antialias=False)``. PVTv2 has ``None``,
            because the convolutions of its MLPs encode positions; it also needs
            ``norm_after_stage=True``.
        mask_window_padding: With windows, leave the padding of the last row and column of windows
            out of attention, as in mmseg. ``False`` lets tokens attend to it, as in timm's
            Twins-SVT. At multiples of 224 px there is no padding.
        norm_after_stage: Normalise each stage's output before the next stage and the maps use it,
            as in PVTv2 and in segmentors with Twins-SVT.
        with_cls_token: Add a class token at the last stage, as in PVT.
        embed_norm_eps: Epsilon of the norms of patch embeddings and spatial reductions (Twins:
            1e-5; PVT: 1e-6).
        final_norm: Normalise the last stage's output. ``None`` normalises vectors and tokens, but
            not feature maps, as PVT and Twins do.
        frozen_stages: Number of stages to freeze, counted from the first: 2 freezes stages 0 and 1.
            An integer in [-1, 4]; the table lists what each value freezes.

    The other arguments are those of :class:`Backbone`.

    Raises:
        ValueError: An argument is wrong. The message names it, its value and what is accepted.

    Examples:
        >>> import torch
        >>> from cpvt_backbones import PyramidCPVT
        >>> model = PyramidCPVT(arch='tiny', out_indices=(1, 3))
        >>> maps = model(torch.rand(1, 3, 50, 70))
        >>> [tuple(one.shape) for one in maps]
        [(1, 128, 7, 9), (1, 512, 2, 3)]
        >>> model.out_strides, model.out_channels
        ((8, 32), (128, 512))

        Freeze the first stage:

        >>> model = PyramidCPVT(arch='tiny', frozen_stages=1).train()
        >>> [not stage.training for stage in model.patch_embeds]
        [True, False, False, False]

        A config of RetinaNet with pretrained weights. The neck takes ``out_channels``:

        ```python
        # retinanet_pyramid.py
        _base_ = 'mmdet::retinanet/retinanet_r50_fpn_1x_coco.py'
        custom_imports = dict(imports=['cpvt_backbones'])
        model = dict(
            data_preprocessor=dict(type='ValidSizesDetDataPreprocessor'),
            backbone=dict(
                _delete_=True,
                type='PyramidCPVT',
                arch='small',
                drop_path_rate=0.2,
                init_cfg='timm://twins_pcpvt_small.in1k',
            ),
            neck=dict(in_channels=[64, 128, 320, 512]),
        )
        # AdamW, not SGD; PEG without weight decay
        spared = dict(pos_block=dict(decay_mult=0))
        optim_wrapper = dict(
            optimizer=dict(
                _delete_=True, type='AdamW', lr=1e-4, weight_decay=1e-4
            ),
            paramwise_cfg=dict(custom_keys=spared),
        )
        ```
    """

    def __init__(
        self,
        *,
        arch: str | Mapping[str, Any] = 'small',
        img_size: int | Sequence[int] = 224,
        out_indices: int | Sequence[int] = (0, 1, 2, 3),
        position: Position = PAPER_POSITION,
        mask_window_padding: bool = True,
        norm_after_stage: bool = False,
        with_cls_token: bool = False,
        embed_norm_eps: float = 1e-5,
        final_norm: bool | None = None,
        in_channels: int = 3,
        out_type: str = 'featmap',
        qkv_bias: bool = True,
        drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        norm_eps: float = 1e-6,
        frozen_stages: int = -1,
        with_cp: bool = False,
        init_cfg: InitCfg = None,
    ) -> None:
        numbers = resolve_arch(arch, HIERARCHICAL_ARCHS)
        num_stages = len(PATCH_SIZES)
        keys = ('embed_dims', 'num_heads', 'depths', 'sr_ratios')
        dims, heads, depths, sr_ratios = (numbers[key] for key in keys)
        check_positive(embed_norm_eps=embed_norm_eps)
        normalised = out_type != 'featmap' if final_norm is None else final_norm
        check_bool(
            mask_window_padding=mask_window_padding,
            norm_after_stage=norm_after_stage,
            final_norm=normalised,
        )
        super().__init__(
            depths=depths,
            with_cls_token=with_cls_token,
            in_channels=in_channels,
            out_type=out_type,
            qkv_bias=qkv_bias,
            drop_rate=drop_rate,
            attn_drop_rate=attn_drop_rate,
            drop_path_rate=drop_path_rate,
            norm_eps=norm_eps,
            frozen_stages=frozen_stages,
            with_cp=with_cp,
            init_cfg=init_cfg,
        )
        self.arch = arch
        self.img_size = img_size
        self.out_indices = resolve_indices('out_indices', out_indices, num_stages)
        self._taps = self.out_indices
        self.mask_window_padding = mask_window_padding
        self.norm_after_stage = norm_after_stage
        self.embed_norm_eps = embed_norm_eps
        self.final_norm = final_norm
        used = max(self.out_indices) + 1
        if with_cls_token and used < num_stages:
            raise InputError(
                'with_cls_token must be False unless out_indices holds the last stage, where the '
                f'class token is added, got True with out_indices={out_indices!r}'
            )
        if out_type in NEEDS_CLS_TOKEN and self.out_indices != (num_stages - 1,):
            raise InputError(
                f'out_indices must be -1 with out_type={out_type!r} (only the last stage has a '
                f'class token), got {out_indices!r}'
            )
        self.out_channels = tuple(dims[s] * self._vectors for s in self.out_indices)
        self.out_strides = tuple(math.prod(PATCH_SIZES[: s + 1]) for s in self.out_indices)

        channels = (in_channels, *dims)
        self.patch_embeds = nn.ModuleList()
        self.pos_drops = nn.ModuleList()
        self.blocks = nn.ModuleList()
        for s in range(used):
            embed = PatchEmbed(
                channels[s],
                dims[s],
                patch_size=PATCH_SIZES[s],
                norm_eps=embed_norm_eps,
                kernel_size=numbers['patch_kernels'][s] if 'patch_kernels' in numbers else None,
            )
            self.patch_embeds.append(embed)
            self.pos_drops.append(nn.Dropout(drop_rate))
            self.blocks.append(self._stage_blocks(s, numbers))
        if norm_after_stage:
            self.norm_list = nn.ModuleList(nn.LayerNorm(dim, eps=norm_eps) for dim in dims[:used])
        normed = normalised and used == num_stages
        self.norm = nn.LayerNorm(dims[-1], eps=norm_eps) if normed else nn.Identity()
        init_linear_layers(self)
        if with_cls_token:
            self.cls_token = prefix_parameter(1, dims[-1])

        grid = resolve_size('img_size', img_size)
        stages = []
        for s in range(used):
            last = s == num_stages - 1
            grid = (ceil_div(grid[0], PATCH_SIZES[s]), ceil_div(grid[1], PATCH_SIZES[s]))
            stage = Stage(
                dim=dims[s],
                depth=depths[s],
                used=depths[s],
                head_dim=dims[s] // heads[s],
                grid=grid,
                outputs_map=not last or out_type != 'cls_token',
                num_prefix=self._num_prefix if last else 0,
                sr_ratio=sr_ratios[s],
                window_size=numbers.get('window_size'),
                global_blocks=tuple(range(1, depths[s], 2)),
            )
            stages.append(stage)
        self._add_positions(position, stages)
        self._init_convolutions()
        self._check_padding('in a pyramid', position)
        self._freeze_stages()

    def _stage_blocks(self, stage: int, numbers: Mapping[str, Any]) -> nn.ModuleList:
        """Build the blocks of a stage; with a ``window_size``, every other block has windows."""
        reducing = partial(
            SpatialReductionAttention,
            sr_ratio=numbers['sr_ratios'][stage],
            norm_eps=self.embed_norm_eps,
        )
        in_windows = partial(
            WindowAttention,
            window_size=numbers.get('window_size', 1),
            mask_padding=self.mask_window_padding,
        )
        blocks = nn.ModuleList()
        for index in range(self.depths[stage]):
            windowed = 'window_size' in numbers and index % 2 == 0
            block = self._block(
                sum(self.depths[:stage]) + index,
                numbers['embed_dims'][stage],
                in_windows if windowed else reducing,
                num_heads=numbers['num_heads'][stage],
                mlp_ratio=numbers['mlp_ratios'][stage],
                mlp_kernel_size=numbers.get('mlp_kernel_size'),
            )
            blocks.append(block)
        return blocks

    def _init_convolutions(self) -> None:
        """Initialise patch embeddings, reductions and PEGs like PVT and Twins.

        Weights are normal with standard deviation sqrt(2 / fan-out).
        """
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                kernel_area = module.kernel_size[0] * module.kernel_size[1]
                fan_out = kernel_area * module.out_channels // module.groups
                normal_init(module, std=math.sqrt(2 / fan_out))

    def _run_trunk(self, images: Tensor, taps: Collection[int]) -> dict[int, StageTokens]:
        outputs: dict[int, StageTokens] = {}
        feature_map = images
        last = len(PATCH_SIZES) - 1
        for s, embed, blocks in zip(
            range(max(taps) + 1), self.patch_embeds, self.blocks, strict=False
        ):
            tokens, grid = embed(feature_map)
            prefix_tokens = self._prefix_tokens(images.shape[0]) if s == last else None
            tokens, prefix_tokens, grid = self._before_stage(s, tokens, prefix_tokens, grid)
            num_prefix = self._num_prefix if s == last else 0
            x = prepend_tokens(prefix_tokens, self.pos_drops[s](tokens))
            del tokens, prefix_tokens  # or their memory would be held until the last block
            rotations = self._rotations(s, grid, num_prefix, x.device)
            for index, block in enumerate(cast(nn.ModuleList, blocks)):
                x, grid = self._run_block(s, index, block, x, num_prefix, grid, rotations)
            if self.norm_after_stage:
                x = self.norm_list[s](x)
            tokens, prefix_tokens = split_tokens(x, num_prefix)
            if s in taps:
                outputs[s] = tokens, prefix_tokens, grid
            feature_map = tokens_to_map(tokens, grid)
        return outputs

    def _layer_id(self, name: str) -> tuple[int, int] | None:
        part, _, rest = name.partition('.')
        numbers = [int(n) for n in rest.split('.')[:2] if n.isdigit()]
        if part == 'cls_token':
            return len(self.depths) - 1, -1
        if part in ('patch_embeds', 'pos_drops') and numbers:
            return numbers[0], -1
        if part == 'blocks' and len(numbers) == 2:
            return numbers[0], numbers[1]
        if part == 'norm_list' and numbers:
            return numbers[0], self.depths[numbers[0]] - 1
        return super()._layer_id(name)
