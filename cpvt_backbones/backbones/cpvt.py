"""CPVT, a plain ViT: DeiT's trunk with PEG instead of a position embedding (arXiv 2102.10882)."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from mmengine.registry import MODELS
from torch import Tensor, nn

from cpvt_backbones.checks import check_bool, check_int
from cpvt_backbones.errors import InputError
from cpvt_backbones.layers import Attention, PatchEmbed, Stage, WindowAttention, ceil_div
from cpvt_backbones.layers.position import StageTokens
from cpvt_backbones.layers.tokens import (
    Grid,
    crop_map,
    is_symbolic,
    prepend_tokens,
    split_tokens,
    tokens_to_map,
)

from .archs import PLAIN_ARCHS, resolve_arch, resolve_indices, resolve_size
from .base import (
    PAPER_POSITION,
    Backbone,
    InitCfg,
    Position,
    Rotations,
    init_linear_layers,
    prefix_parameter,
)
from .padded import features_of_sizes
from .queries import Prediction, Queries


@MODELS.register_module()
class CPVT(Backbone):
    """Vision transformer for images of any size, with PEG as its default position encoding.

    The state dict has the keys of timm's DeiT and ViT, so that their weights load. The i-th PEG is
    ``pos_block.<i>.proj.0``. Blocks that no output needs are not built, so that every parameter is
    trained.

    | ``arch`` | ``embed_dims`` | ``depth`` | ``num_heads`` | parameters, M |
    | --- | --- | --- | --- | --- |
    | tiny | 192 | 12 | 3 | 5.5 |
    | small | 384 | 12 | 6 | 21.6 |
    | base | 768 | 12 | 12 | 85.7 |

    Parameters are those of the default arguments, without a head. ``mlp_ratio`` is 4. A map has
    ``embed_dims`` channels and a stride of ``patch_size`` pixels.

    | ``frozen_stages`` | frozen: not trained, in evaluation mode |
    | --- | --- |
    | -1 | nothing |
    | 0 | patch embedding, extra tokens, position embedding, norm before the blocks |
    | n in [1, depth) | the same, with blocks 0 to n - 1 and the PEGs after them |
    | depth (12) | all blocks and PEGs, and the final norm: the whole model |

    Args:
        arch: ``'tiny'``, ``'small'`` or ``'base'``, as in the table, or a dict such as
            ``dict(embed_dims=256, depth=6, num_heads=4, mlp_ratio=4)``.
        img_size: Image size of a learned position embedding in pixels: a side, ``224``, or (height,
            width), ``(480, 640)``. The model takes images of any size.
        patch_size: Side of a patch in pixels, which is the stride of the map.
        out_indices: Blocks whose output is returned: one, ``-1``, or several, ``(5, 11)``.
            Integers in [-depth, depth - 1]: 0 is the first block, and -1 the last.
        position: Position encoding: ``None``, a dict with its ``type`` and arguments, or a list of
            such dicts. Types: ``'PEG'`` (:class:`PEGPosition`), ``'Learned'``
            (:class:`LearnedTable`), ``'SinCos'`` (:class:`SinCos`), ``'Relative'``
            (:class:`Relative`), ``'DecomposedRelative'`` (:class:`DecomposedRelative`),
            ``'RelativeBias'`` (:class:`RelativeBias`), ``'RoPE'`` (:class:`RoPE`).
            Default: one PEG, after block 0.
        with_cls_token: Add a class token. ``False`` is the paper's GAP model.
        with_dist_token: Add a distillation token to the class token (DeiT, arXiv 2012.12877,
            section 4).
        num_registers: Number of register tokens beside the class token (arXiv 2309.16588; DINOv3:
            4).
        window_size: Side of the attention windows in tokens. ``None`` means global attention in all
            blocks.
        global_blocks: With windows, the blocks with global attention: integers in
            [-depth, depth - 1]. ViTDet's choice for 12 blocks is
            ``window_size=14, global_blocks=(2, 5, 8, 11)``.
        mask_window_padding: With windows, leave the padding of the last row and column of windows
            out of attention. ViTDet and SAM do not, so set ``False`` for their weights.
        layer_scale_init: Initial value of the layer scale, a learned factor per channel after
            attention and MLP (arXiv 2103.17239). ``None`` adds no layer scale.
        activation: Activation of the MLPs: ``'gelu'``, ``'gelu_tanh'`` (SigLIP), ``'quick_gelu'``
            (CLIP) or ``'swiglu'`` (see :class:`MLP`).
        pre_norm: Normalise the tokens after the position embedding, before the first block (CLIP).
        final_norm: Normalise the last block's output.
        frozen_stages: Number of blocks to freeze, counted from the first: 2 freezes blocks 0 and 1.
            An integer in [-1, depth]; the table lists what each value freezes.

    The other arguments are those of :class:`Backbone`.

    Raises:
        ValueError: An argument is wrong. The message names it, its value and what is accepted.

    Examples:
        >>> import torch
        >>> from cpvt_backbones import CPVT
        >>> model = CPVT(arch='tiny', position=dict(type='PEG'))
        >>> (feature_map,) = model(torch.rand(1, 3, 50, 70))
        >>> feature_map.shape  # a cell for each 16 px begun
        torch.Size([1, 192, 4, 5])

        A config of a classifier with pretrained weights, in mmpretrain:

        ```python
        # classifier_cpvt.py
        _base_ = 'mmpretrain::deit/deit-small_4xb256_in1k.py'
        custom_imports = dict(imports=['cpvt_backbones'])
        model = dict(
            backbone=dict(
                _delete_=True,
                type='CPVT',
                arch='small',
                out_type='cls_token',
                position=dict(type='Learned'),  # that of the weights
                init_cfg='timm://deit_small_patch16_224.fb_in1k',
            ),
            head=dict(num_classes=10),
        )
        ```
    """

    def __init__(
        self,
        *,
        arch: str | Mapping[str, Any] = 'small',
        img_size: int | Sequence[int] = 224,
        patch_size: int = 16,
        out_indices: int | Sequence[int] = -1,
        position: Position = PAPER_POSITION,
        with_cls_token: bool = True,
        with_dist_token: bool = False,
        num_registers: int = 0,
        window_size: int | None = None,
        global_blocks: Sequence[int] = (),
        mask_window_padding: bool = True,
        layer_scale_init: float | None = None,
        activation: str = 'gelu',
        pre_norm: bool = False,
        final_norm: bool = True,
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
        numbers = resolve_arch(arch, PLAIN_ARCHS)
        dim, depth, num_heads = numbers['embed_dims'], numbers['depth'], numbers['num_heads']
        check_bool(
            with_dist_token=with_dist_token,
            mask_window_padding=mask_window_padding,
            pre_norm=pre_norm,
            final_norm=final_norm,
        )
        check_int(minimum=0, num_registers=num_registers)
        global_indices = resolve_indices('global_blocks', global_blocks, depth, allow_none=True)
        if window_size is None and global_indices:
            raise InputError(
                f'global_blocks must be empty without window_size, got {global_blocks!r}'
            )
        super().__init__(
            depths=(depth,),
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
        if with_dist_token and not with_cls_token:
            raise InputError('with_dist_token must be False with with_cls_token=False, got True')
        self.arch = arch
        self.img_size = img_size
        self.patch_size = patch_size
        self.out_indices = resolve_indices('out_indices', out_indices, depth)
        self.with_dist_token = with_dist_token
        self.num_registers = num_registers
        self.window_size = window_size
        self.global_blocks = global_blocks
        self.mask_window_padding = mask_window_padding
        self.layer_scale_init = layer_scale_init
        self.activation = activation
        self.pre_norm = pre_norm
        self.final_norm = final_norm

        self.embed_dims = dim
        self.depth = depth
        self.out_channels = (dim * self._vectors,) * len(self.out_indices)
        self.out_strides = (patch_size,) * len(self.out_indices)
        self._taps = self.out_indices
        used = max(self._taps) + 1

        self._num_prefix += with_dist_token + num_registers
        self.patch_embed = PatchEmbed(in_channels, dim, patch_size=patch_size)
        if with_cls_token:
            self.cls_token = prefix_parameter(1, dim)
        if with_dist_token:
            self.dist_token = prefix_parameter(1, dim)
        if num_registers:
            self.reg_token = prefix_parameter(num_registers, dim)
        self.pos_drop = nn.Dropout(drop_rate)
        self.norm_pre = nn.LayerNorm(dim, eps=norm_eps) if pre_norm else nn.Identity()
        self.blocks = nn.ModuleList()
        for index in range(used):
            block = self._block(
                index,
                dim,
                self._attention(windowed=index not in global_indices),
                num_heads=num_heads,
                mlp_ratio=numbers['mlp_ratio'],
                layer_scale_init=layer_scale_init,
                activation=activation,
            )
            self.blocks.append(block)
        normed = final_norm and used == depth
        self.norm = nn.LayerNorm(dim, eps=norm_eps) if normed else nn.Identity()
        init_linear_layers(self)

        height, width = resolve_size('img_size', img_size)
        stage = Stage(
            dim=dim,
            depth=depth,
            used=used,
            head_dim=dim // num_heads,
            grid=(ceil_div(height, patch_size), ceil_div(width, patch_size)),
            outputs_map=out_type != 'cls_token',
            num_prefix=self._num_prefix,
            window_size=window_size,
            global_blocks=global_indices,
        )
        self._add_positions(position, [stage])
        self._freeze_stages()

    def _attention(self, *, windowed: bool) -> Callable[..., nn.Module]:
        """Build the attention of a block; ``windowed`` is ``False`` for ``global_blocks``."""
        if self.window_size is None or not windowed:
            return Attention
        return partial(
            WindowAttention,
            window_size=self.window_size,
            mask_padding=self.mask_window_padding,
        )

    def forward(
        self,
        images: Tensor,
        valid_sizes: Sequence[tuple[int, int]] | Tensor | None = None,
        queries: Queries | None = None,
    ) -> tuple[Any, ...]:
        """Compute features, or predictions of queries that join the tokens of the last blocks.

        Args:
            images: (B, in_channels, H, W), normalised, any H, W >= 1.
            valid_sizes: Size of each image before padding; see :meth:`Backbone.forward`.
            queries: Further tokens for the last blocks, and how to predict from them.

        Returns:
            Without ``queries``, the outputs of :meth:`Backbone.forward`. With ``queries``, pairs of
            a map (B, Q, ceil(H / stride), ceil(W / stride)) and vectors (B, Q, K): one pair after
            the last block and, with ``queries.limit``, one before each of the last blocks.

        Raises:
            TypeError: ``images`` or ``queries.tokens`` is not a floating point tensor.
            ValueError: ``images``, ``valid_sizes`` or a value of ``queries`` is wrong.

        Examples:
            >>> import torch
            >>> from cpvt_backbones import CPVT
            >>> from cpvt_backbones.backbones import Queries
            >>> def predict(queries, features):
            ...     maps = torch.einsum('bqc,bchw->bqhw', queries, features)
            ...     return maps, queries[..., :3]  # one each for a query
            >>> queries = Queries(
            ...     tokens=torch.rand(5, 192), num_blocks=3, predict=predict, stride=16
            ... )
            >>> model = CPVT(arch='tiny')
            >>> ((maps, vectors),) = model(torch.rand(1, 3, 50, 70), queries=queries)
            >>> maps.shape, vectors.shape
            (torch.Size([1, 5, 4, 5]), torch.Size([1, 5, 3]))
        """
        if queries is None or is_symbolic():  # where no argument is None
            return super().forward(images, valid_sizes)
        self._check_images(images)
        queries.check(self.embed_dims, self.depth, len(self.blocks))
        predictions = partial(self._run_queries, queries=queries)
        sizes = self._sizes_in_batch(images, valid_sizes)
        if not sizes:
            return predictions(images)
        count = 1 if queries.limit is None else queries.num_blocks + 1
        strides = [queries.stride] * count
        return features_of_sizes(predictions, images, sizes, strides, queries.padding_value)

    def _embed(self, images: Tensor) -> tuple[Tensor, Grid]:
        """Return tokens (B, P + N, C) before the first block, and the grid of the last N."""
        tokens, grid = self.patch_embed(images)  # (B, N, C)
        # Under autocast, the residual stream is fp32 with or without a class token.
        tokens = tokens.to(images.dtype)
        prefix_tokens = self._prefix_tokens(images.shape[0])
        tokens, prefix_tokens, grid = self._before_stage(0, tokens, prefix_tokens, grid)
        return self.norm_pre(prepend_tokens(prefix_tokens, self.pos_drop(tokens))), grid

    def _run_trunk(self, images: Tensor, taps: Collection[int]) -> dict[int, StageTokens]:
        x, grid = self._embed(images)
        rotations = self._rotations(0, grid, self._num_prefix, x.device)
        outputs: dict[int, StageTokens] = {}
        for index, block in zip(range(max(taps) + 1), self.blocks, strict=False):
            x, grid = self._run_block(0, index, block, x, self._num_prefix, grid, rotations)
            if index in taps:
                outputs[index] = (*split_tokens(x, self._num_prefix), grid)
        return outputs

    def _run_queries(self, images: Tensor, queries: Queries) -> tuple[Prediction, ...]:
        """Compute predictions of queries for images without padding."""
        x, grid = self._embed(images)
        num_prefix, count = self._num_prefix, len(queries.tokens)
        joined = self._rotations_with_queries(grid, count, x.device)
        rotations, size = joined[0], images.shape[2:]
        predictions = []
        for index, block in enumerate(self.blocks):
            k, limit = index - (self.depth - queries.num_blocks), None
            if k == 0:
                x = prepend_tokens(queries.tokens.to(x.dtype).expand(x.shape[0], -1, -1), x)
                num_prefix, rotations = num_prefix + count, joined[1]
            if k >= 0 and queries.limit is not None:
                maps, vectors = self._predict(queries, x, num_prefix, grid)
                limit = queries.limit(k, maps, grid)
                predictions.append((crop_map(maps, size, queries.stride), vectors))
            x, grid = self._run_block(0, index, block, x, num_prefix, grid, rotations, limit)
        maps, vectors = self._predict(queries, x, num_prefix, grid)
        return *predictions, (crop_map(maps, size, queries.stride), vectors)

    def _predict(self, queries: Queries, x: Tensor, num_prefix: int, grid: Grid) -> Prediction:
        """Predict from the tokens (B, Q + P + N, C) between two blocks."""
        x = self.norm(x)
        features = tokens_to_map(x[:, num_prefix:], grid)
        return queries.predict(x[:, : len(queries.tokens)], features)

    def _rotations_with_queries(
        self, grid: Grid, count: int, device: torch.device
    ) -> tuple[Rotations, Rotations]:
        """Prepare rotations for the first blocks and for the last, which have ``count`` queries."""
        if not any(encoding.has_rotation for encoding in self.position_encodings):
            return [], []
        devices = [device] if device.type == 'cuda' else []
        # A random scale of the coordinates is the same in all blocks.
        with torch.random.fork_rng(devices) if self.training else nullcontext():
            first = self._rotations(0, grid, self._num_prefix, device)
        return first, self._rotations(0, grid, self._num_prefix + count, device)

    def _layer_id(self, name: str) -> tuple[int, int] | None:
        part, _, rest = name.partition('.')
        if part in ('patch_embed', 'cls_token', 'dist_token', 'reg_token', 'pos_drop', 'norm_pre'):
            return 0, -1
        if part == 'blocks' and rest:
            return 0, int(rest.split('.')[0])
        return super()._layer_id(name)
