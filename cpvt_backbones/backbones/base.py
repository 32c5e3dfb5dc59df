"""Base of all backbones: outputs, freezing, layer depth, position encodings, checkpointing."""

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from functools import partial, reduce
from operator import add
from os import PathLike
from typing import Any

import torch
from mmengine.model import PretrainedInit, trunc_normal_init
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from cpvt_backbones import checks
from cpvt_backbones.errors import InputError, InputTypeError
from cpvt_backbones.layers import (
    PEG,
    Block,
    LearnedTable,
    LogitBias,
    PositionEncoding,
    Stage,
)
from cpvt_backbones.layers.attention import Arrange
from cpvt_backbones.layers.learned_table import fit_stored_embeddings
from cpvt_backbones.layers.position import StageTokens, build_positions
from cpvt_backbones.layers.tokens import (
    Grid,
    is_symbolic,
    is_tracing,
    patch_tokens,
    prepend_tokens,
    replace_patch_tokens,
    tokens_to_map,
)

from .announced import announced_sizes
from .padded import features_of_sizes, resolve_valid_sizes
from .pretrained import CheckpointInit, PretrainedModel

Rotations = list[tuple[PositionEncoding, Any]]

OUT_TYPES = ('featmap', 'cls_token', 'avg_featmap', 'cls_and_avg', 'raw', 'with_cls_token')
NEEDS_CLS_TOKEN = ('cls_token', 'cls_and_avg', 'with_cls_token')

Position = dict[str, Any] | Sequence[dict[str, Any]] | None
"""``None``, a dict with an encoding's ``type`` and arguments, or a list of such dicts."""

InitCfg = str | PathLike[str] | dict[str, Any] | Sequence[dict[str, Any]] | None
"""A name or file of weights, an initialisation of mmengine as a dict, or a list of these."""

PAPER_POSITION: dict[str, Any] = dict(type='PEG', after_blocks=(0,), kernel_size=3)
"""The paper's default: one PEG after the first block, k = 3."""

DENSE_POSITION: dict[str, Any] = dict(type='PEG', after_blocks='0-5', kernel_size=3)
"""The paper's "0-5": one PEG after each of the first five blocks, or after all if fewer."""


def init_linear_layers(model: nn.Module) -> None:
    """Set weights to a truncated normal (standard deviation 0.02) and biases to zero.

    DeiT, PVT and Twins do the same.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear):
            trunc_normal_init(module, std=0.02)


def prefix_parameter(count: int, dim: int) -> nn.Parameter:
    """Initial prefix tokens, (1, count, dim)."""
    return nn.Parameter(nn.init.trunc_normal_(torch.empty(1, count, dim), std=0.02))


def _count(prefix_tokens: Tensor | None) -> int:
    return 0 if prefix_tokens is None else prefix_tokens.shape[1]


class Backbone(PretrainedModel):
    """Base class of the backbones, with their common arguments.

    :class:`MultiScaleCPVT` has no ``out_type``. A backbone keeps each constructor argument as an
    attribute of the same name. :meth:`Backbone.save_pretrained` writes them to ``config.json``.

    Args:
        depths: Number of blocks in each stage. A plain ViT has one stage.
        with_cls_token: Add a class token.
        in_channels: Channels of an image.
        out_type: ``'featmap'`` returns maps (B, C, H', W'). ``'cls_token'`` and ``'avg_featmap'``
            (the mean over the patch tokens) return vectors (B, C). ``'cls_and_avg'`` returns both
            in one vector (B, 2C), for DINOv2's linear classifiers. ``'raw'`` returns tokens
            (B, [P +] N, C), starting with the P class, distillation and register tokens.
            ``'with_cls_token'`` returns pairs of a map and the class token (B, C), for mmseg's
            ``DPTHead``. With a distillation token, ``'cls_token'`` returns a pair of vectors, for
            mmpretrain's DeiT heads.
        qkv_bias: Give queries, keys and values a bias.
        drop_rate: Dropout after the embeddings, after attention and in the MLPs.
        attn_drop_rate: Dropout on attention weights.
        drop_path_rate: Stochastic depth of the last block. The rate grows linearly from 0 at the
            first block. It is fixed when the model is built, so setting the attribute later has no
            effect; :meth:`Backbone.from_pretrained` takes it as an argument.
        norm_eps: Epsilon of the LayerNorms in the blocks and of the final norm.
        frozen_stages: Number of blocks (:class:`CPVT`, :class:`MultiScaleCPVT`) or stages
            (:class:`PyramidCPVT`) to freeze, counted from the first, with their PEGs. 0 freezes
            only what precedes the first block, and -1 nothing. The final norm is frozen if all are.
        with_cp: Activation checkpointing: recompute each block in the backward pass instead of
            storing its activations.
        init_cfg: Pretrained weights: a file, a name, or ``dict(type='Pretrained',
            checkpoint=...)``. Other initialisations of mmengine are accepted too. **Weights stay
            random until ``init_weights()``**, which the Runner calls. Without a Runner, use
            :meth:`Backbone.from_pretrained`.

    Raises:
        ValueError: An argument is not accepted.
    """

    out_channels: tuple[int, ...]
    """Channels of each output, in the order of ``out_indices``; ``in_channels`` of a neck."""
    out_strides: tuple[int, ...]
    """Stride of each output map in pixels, in the order of ``out_indices``."""
    norm: nn.Module
    init_cfg: Any
    _taps: tuple[int, ...]  # blocks of a plain ViT, or stages, whose output is used

    def __init__(
        self,
        *,
        depths: Sequence[int],
        with_cls_token: bool,
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
        if isinstance(init_cfg, (str, PathLike)):
            init_cfg = dict(type='Pretrained', checkpoint=str(init_cfg))
        if not all('type' in entry for entry in checks.list_of_dicts('init_cfg', init_cfg)):
            raise InputError(f'init_cfg must name a type, got {init_cfg!r}')
        super().__init__(init_cfg=init_cfg)
        self.depths = tuple(depths)
        self.num_layers = sum(depths) + 2
        # Number of blocks of a plain ViT, or of stages.
        self.num_freezable = depths[0] if len(depths) == 1 else len(depths)
        checks.check_bool(with_cls_token=with_cls_token, qkv_bias=qkv_bias, with_cp=with_cp)
        checks.check_probability(
            drop_rate=drop_rate, attn_drop_rate=attn_drop_rate, drop_path_rate=drop_path_rate
        )
        checks.check_positive(norm_eps=norm_eps)
        checks.check_int(frozen_stages=frozen_stages, minimum=-1, maximum=self.num_freezable)
        checks.check_choice(OUT_TYPES, out_type=out_type)
        if out_type in NEEDS_CLS_TOKEN and not with_cls_token:
            other = 'avg_featmap' if out_type == 'cls_token' else 'featmap'
            raise InputError(
                f'out_type must not be {out_type!r} with with_cls_token=False, got {out_type!r}; '
                f'use {other!r} for a model without class token'
            )
        self.with_cls_token = with_cls_token
        self._num_prefix = int(with_cls_token)
        self.in_channels = in_channels
        self.out_type = out_type
        self._vectors = 2 if out_type == 'cls_and_avg' else 1  # in an output
        self.qkv_bias = qkv_bias
        self.drop_rate = drop_rate
        self.attn_drop_rate = attn_drop_rate
        self.drop_path_rate = drop_path_rate
        self.norm_eps = norm_eps
        self.frozen_stages = frozen_stages
        self.with_cp = with_cp
        self.cls_token: nn.Parameter | None = None
        self.dist_token: nn.Parameter | None = None
        self.reg_token: nn.Parameter | None = None

    def _block(
        self,
        index: int,
        dim: int,
        attention: Callable[..., nn.Module],
        *,
        num_heads: int,
        **options: Any,
    ) -> Block:
        """Build block ``index``, counted over all stages, with the trunk's dropout.

        ``options`` are further arguments of the block.
        """
        dropout = dict(attn_drop=self.attn_drop_rate, proj_drop=self.drop_rate)
        attn = attention(dim, num_heads=num_heads, qkv_bias=self.qkv_bias, **dropout)
        drop_path = self.drop_path_rate * index / max(sum(self.depths) - 1, 1)
        return Block(
            dim,
            attn=attn,
            drop=self.drop_rate,
            drop_path=drop_path,
            norm_eps=self.norm_eps,
            **options,
        )

    def _add_positions(self, position: Position, stages: Sequence[Stage]) -> None:
        self.position = deepcopy(position)
        encodings = build_positions(position, stages)
        self._position_names = tuple(encodings)
        for name, encoding in encodings.items():
            if hasattr(self, name) or name in self._later_names():
                fault = f'got {name!r}, an attribute of {type(self).__name__}'
                raise InputError(f'{type(encoding).__name__}.attribute must be a new name, {fault}')
            self.add_module(name, encoding)
        # With few tokens, Python calls take most of the time.
        self._acting = {
            (method, stage, block): tuple(
                name for name, e in encodings.items() if e.acts(method, stage, block)
            )
            for method in ('query_key', 'after_block')
            for stage, depth in enumerate(self.depths)
            for block in range(depth)
        }
        self._has_bias = any(encoding.has_bias for encoding in encodings.values())
        if any(encoding.has_rotation for encoding in encodings.values()):
            self._check_padding('beside a rotary encoding', position)
        if LearnedTable.attribute in encodings:
            self._register_load_state_dict_pre_hook(fit_stored_embeddings, with_module=True)

    def _later_names(self) -> set[str]:
        """Attributes that the class declares, or takes as arguments, and may set later."""
        names = set(inspect.signature(type(self)).parameters)
        for cls in type(self).__mro__:
            names |= inspect.get_annotations(cls).keys()
        return names

    def _check_padding(self, where: str, position: Position) -> None:
        if not all(encoding.keeps_grid for encoding in self.position_encodings):
            raise InputError(
                f"padding must be 'zero' {where} (the map would shrink), got position={position!r}"
            )

    @property
    def position_encodings(self) -> list[PositionEncoding]:
        """Position encodings in the order in which they are applied."""
        return [getattr(self, name) for name in self._position_names]

    def _before_stage(
        self, stage: int, tokens: Tensor, prefix_tokens: Tensor | None, grid: Grid
    ) -> StageTokens:
        given = prefix_tokens
        for encoding in self.position_encodings:
            tokens, prefix_tokens, grid = encoding.before_stage(stage, tokens, prefix_tokens, grid)
            if not is_symbolic() and _count(prefix_tokens) != _count(given):
                raise InputError(
                    f'{type(encoding).__name__}.before_stage must return as many prefix tokens as '
                    f'it gets, got {_count(prefix_tokens)} for {_count(given)}'
                )
        return tokens, prefix_tokens, grid

    def _attention_bias(self, stage: int, index: int, query: Tensor, grid: Grid) -> LogitBias:
        biases = [
            e.attention_bias(stage, index, query, grid)
            for e in self.position_encodings
            if e.has_bias
        ]
        return reduce(add, biases)

    def _rotations(
        self, stage: int, grid: Grid, num_prefix: int, device: torch.device
    ) -> Rotations:
        """List the encodings that rotate queries and keys, with what each prepared for a stage."""
        return [
            (e, e.prepare(stage, grid, num_prefix, device))
            for e in self.position_encodings
            if e.has_rotation
        ]

    @staticmethod
    def _rotate(
        rotations: Rotations,
        stage: int,
        index: int,
        query: Tensor,
        key: Tensor,
        arrange: Arrange | None,
    ) -> tuple[Tensor, Tensor]:
        for encoding, prepared in rotations:
            query, key = encoding.rotate(stage, index, query, key, prepared, arrange)
        return query, key

    def _run_block(
        self,
        stage: int,
        index: int,
        block: nn.Module,
        x: Tensor,
        num_prefix: int,
        grid: Grid,
        rotations: Rotations,
        limit: Tensor | None = None,
    ) -> tuple[Tensor, Grid]:
        """Run a block with the encodings before (``query_key``), in (bias, rotation) and after it.

        ``x`` is (B, P + H * W, C), where P is ``num_prefix``. :meth:`Block.forward` explains
        ``limit``.
        """
        qk = None
        if acting := self._acting['query_key', stage, index]:
            tokens = query_key = patch_tokens(x, num_prefix)
            for name in acting:
                query_key = getattr(self, name).query_key(stage, index, query_key, grid)
            if query_key is not tokens:
                qk = replace_patch_tokens(x, num_prefix, query_key)
        arguments: dict[str, Any] = dict(
            num_prefix=num_prefix,
            qk=qk,
            bias=partial(self._attention_bias, stage, index) if self._has_bias else None,
            rotate=partial(self._rotate, rotations, stage, index) if rotations else None,
        )
        if limit is not None:
            arguments['limit'] = limit
        if self.with_cp and torch.is_grad_enabled():
            x = checkpoint(block, x, grid, use_reentrant=False, **arguments)
        else:
            x = block(x, grid, **arguments)
        # Prefix and patch tokens stay together, so that a block without encoding copies nothing.
        if acting := self._acting['after_block', stage, index]:
            tokens = encoded = patch_tokens(x, num_prefix)
            for name in acting:
                encoded, grid = getattr(self, name).after_block(stage, index, encoded, grid)
            if encoded is not tokens:
                x = replace_patch_tokens(x, num_prefix, encoded)
        return x, grid

    def forward(
        self, images: Tensor, valid_sizes: Sequence[tuple[int, int]] | Tensor | None = None
    ) -> tuple[Any, ...]:
        """Compute the features of a batch.

        Args:
            images: (B, in_channels, H, W), normalised, any H, W >= 1.
            valid_sizes: (height, width) in pixels of each image before it was padded on the right
                and at the bottom to the size of the batch; a list, or integers (B, 2). Images of
                the same size are then computed together without their padding, so that neither
                padding nor other images change the features of an image. Default: the sizes that a
                data preprocessor announced for this batch
                (:func:`cpvt_backbones.backbones.announce_sizes`), because detectors and segmentors
                pass only the batch to the backbone.

        Returns:
            One output per entry of ``out_indices``, of the kind that ``out_type`` names. Maps
            (``'featmap'``) are (B, C, ceil(H / stride), ceil(W / stride)), and zero outside an
            image's valid size. A PEG with ``padding='none'`` makes maps smaller. ``'cls_token'``
            and ``'avg_featmap'`` are (B, C), ``'cls_and_avg'`` is (B, 2C), and ``'raw'`` is
            (B, [P +] N, C). ``'with_cls_token'`` is a pair of a map and (B, C).

        Raises:
            TypeError: ``images`` is not a floating point tensor, or it is float64 and the weights
                are not.
            ValueError: ``images`` has another shape, ``valid_sizes`` does not fit the batch, or an
                image is padded and ``out_type`` is ``'raw'``. Or sizes were announced for a padded
                batch that no backbone got, and ``images`` is not that batch but, say, a part of it.

        Examples:
            Two images in one padded batch. The first has the features that it has alone:

            >>> import torch
            >>> from cpvt_backbones import CPVT
            >>> model = CPVT(arch='tiny').eval()
            >>> batch = torch.zeros(2, 3, 64, 80)
            >>> image = batch[0, :, :48, :80] = torch.rand(3, 48, 80)
            >>> with torch.no_grad():
            ...     (maps,) = model(batch, valid_sizes=[(48, 80), (64, 80)])
            ...     (alone,) = model(image[None])
            >>> torch.allclose(maps[:1, :, :3], alone, atol=1e-5)
            True
        """
        self._check_images(images)
        sizes = self._sizes_in_batch(images, valid_sizes)
        if not sizes:
            outputs = self._features(images)
        elif self.out_type == 'raw':
            raise InputError(
                "valid_sizes must be None with out_type='raw', whose tokens cannot be padded"
            )
        else:
            has_maps = self.out_type in ('featmap', 'with_cls_token')
            strides = self.out_strides if has_maps else None
            outputs = features_of_sizes(self._features, images, sizes, strides)
        # mmcv's compiled operators (RoIAlign) assume contiguous maps; a neck's maps have the
        # strides of these.
        if self.out_type == 'featmap':
            outputs = tuple(output.contiguous() for output in outputs)
        elif self.out_type == 'with_cls_token':
            outputs = tuple((output.contiguous(), token) for output, token in outputs)
        return outputs

    @staticmethod
    def _sizes_in_batch(images: Tensor, valid_sizes: Any = None) -> list[Grid]:
        """(height, width) of each image before padding; empty if no image is padded."""
        if valid_sizes is None:
            valid_sizes = announced_sizes(images)
        if valid_sizes is None:
            return []
        sizes = resolve_valid_sizes(valid_sizes, len(images), *images.shape[2:])
        return [] if set(sizes) == {tuple(images.shape[2:])} else sizes

    def _features(self, images: Tensor) -> tuple[Any, ...]:
        """Compute all outputs for images without padding."""
        outputs = self._run_trunk(images, self._taps)
        last = self.num_freezable - 1
        return tuple(self._format(*outputs[index], last=index == last) for index in self._taps)

    def _run_trunk(self, images: Tensor, taps: Collection[int]) -> dict[int, StageTokens]:
        """Return tokens after the blocks (of a plain ViT) or stages in ``taps``.

        Nothing runs after the last of them.
        """
        raise NotImplementedError

    def _check_images(self, images: Any) -> None:
        if is_tracing():
            # The tracer warns of compared sizes.
            if torch.onnx.is_in_onnx_export():
                raise RuntimeError(
                    'torch.onnx.export(dynamo=False) fixes sizes in the file: cpvt export '
                    'writes ONNX for every size'
                )
            return
        shape = f'(B, {self.in_channels}, H, W)'
        if not isinstance(images, Tensor):
            raise InputTypeError(
                f'images must be a torch.Tensor {shape}, got {type(images).__name__}'
            )
        if images.dim() != 4 or images.shape[1] != self.in_channels or 0 in images.shape:
            advice = '; images[None] is a batch of one image' if images.dim() == 3 else ''
            raise InputError(
                f'images must be {shape} with H, W >= 1, got shape {tuple(images.shape)}{advice}'
            )
        if not images.is_floating_point():
            raise InputTypeError(f'images must be of a floating point type, got {images.dtype}')
        if images.dtype == torch.float64 and next(self.parameters()).dtype != torch.float64:
            raise InputTypeError(
                'images must be of the type of the weights, got torch.float64, as NumPy computes:'
                ' images.float() is of torch.float32'
            )

    def _prefix_tokens(self, batch: int) -> Tensor | None:
        """(B, P, C) class, distillation and register tokens, or ``None`` if the model has none."""
        parameters = (self.cls_token, self.dist_token, self.reg_token)
        tokens: list[Tensor] = [token for token in parameters if token is not None]
        # `cat` also copies a single tensor: under `no_grad` a view of a parameter still requires
        # gradients, which breaks torch's FLOP counter.
        return torch.cat(tokens, dim=1).expand(batch, -1, -1) if tokens else None

    def _format(
        self, tokens: Tensor, prefix_tokens: Tensor | None, grid: Grid, *, last: bool
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Convert tokens after a block to an output of ``out_type``.

        Only what is returned is normalised.
        """
        if self.out_type == 'cls_token':
            assert prefix_tokens is not None
            tokens = prefix_tokens
        elif self.out_type == 'raw':
            tokens = prepend_tokens(prefix_tokens, tokens)
        if last:
            tokens = self.norm(tokens)
        if self.out_type in ('with_cls_token', 'cls_and_avg'):
            assert prefix_tokens is not None
            token = self.norm(prefix_tokens[:, 0]) if last else prefix_tokens[:, 0]
            if self.out_type == 'cls_and_avg':
                return torch.cat((token, tokens.mean(dim=1)), dim=1)  # (B, 2C)
            return tokens_to_map(tokens, grid), token
        if self.out_type == 'cls_token':
            if self.dist_token is None:
                return tokens[:, 0]  # (B, C)
            return tokens[:, 0], tokens[:, 1]  # a pair, as mmpretrain's DeiT heads take it
        if self.out_type == 'avg_featmap':
            return tokens.mean(dim=1)  # (B, C)
        if self.out_type == 'raw':
            return tokens  # (B, [P +] N, C)
        return tokens_to_map(tokens, grid)  # (B, C, H, W)

    def init_weights(self) -> None:
        """Initialise the weights by ``init_cfg``; the Runner calls this before training.

        :func:`cpvt_backbones.checkpoints.load_checkpoint` loads pretrained weights after all other
        initialisers. Its arguments are the other keys of the entry with ``type='Pretrained'``. No
        file is read before this call.
        """
        init_cfg = self.init_cfg
        entries = checks.list_of_dicts('init_cfg', init_cfg)
        pretrained = [entry for entry in entries if entry['type'] in ('Pretrained', PretrainedInit)]
        others = [entry for entry in entries if entry not in pretrained]
        self.init_cfg = others + [{**entry, 'type': CheckpointInit} for entry in pretrained]
        try:
            super().init_weights()
        finally:
            self.init_cfg = init_cfg

    def fuse(self) -> 'Backbone':
        """Return a copy for inference, with the current weights and in evaluation mode.

        The copy cannot be trained. The residual of each PEG is folded into its convolution. Sums
        and GELU overwrite tensors that are not needed again, so a hook that keeps a submodule's
        output may find it changed. Outputs agree to 1e-5 in fp32. Fused weights have other names
        and do not load into an unfused model, so load weights before fusing.

        Examples:
            >>> import torch
            >>> from cpvt_backbones import CPVT
            >>> model, image = CPVT(arch='tiny').eval(), torch.rand(1, 3, 40, 40)
            >>> with torch.no_grad():
            ...     (expected,), (found,) = model(image), model.fuse()(image)
            >>> torch.allclose(found, expected, atol=1e-5)
            True
        """
        fused = deepcopy(self).eval().requires_grad_(False)
        for module in fused.modules():
            if isinstance(module, (PEG, Block)):
                module.fuse()
        return fused

    def _layer_id(self, name: str) -> tuple[int, int] | None:
        """Return (stage, block) of a parameter or module; block -1 precedes the first.

        ``None`` means outside the stages. For a position encoding, ``name`` must be a parameter's.
        """
        part, _, rest = name.partition('.')
        if part in self._position_names and rest:
            return getattr(self, part).layer_id(rest)
        return None

    def _freeze_level(self, name: str) -> float:
        """Return the smallest ``frozen_stages`` that freezes a parameter or module.

        It is infinite if no value does.
        """
        layer_id = self._layer_id(name)
        if layer_id is None:
            return self.num_freezable if name.partition('.')[0] == 'norm' else float('inf')
        if layer_id == (0, -1):
            return 0
        stage, block = layer_id
        return (block if len(self.depths) == 1 else stage) + 1

    def _freeze_stages(self) -> None:
        """Freeze by ``frozen_stages``, at the end of the constructor.

        Modules added to a frozen block later, such as adapters, are trained.
        """
        levels = {name: self._freeze_level(name) for name, _ in self.named_parameters()}
        for name, _ in self.named_modules():
            if name.partition('.')[0] in self._position_names:
                levels[name] = self._level_inside(name, levels)
            elif name:
                levels[name] = self._freeze_level(name)
        self._frozen = {name for name, level in levels.items() if level <= self.frozen_stages}
        self._freeze()

    @staticmethod
    def _level_inside(name: str, levels: Mapping[str, float]) -> float:
        """Return the level that freezes all parameters of a module in a position encoding.

        A module without parameters has the level of its parent.
        """
        while name:
            found = [level for key, level in levels.items() if key.startswith(f'{name}.')]
            if found:
                return max(found)
            name = name.rpartition('.')[0]
        return float('inf')

    def _freeze(self) -> None:
        for name, parameter in self.named_parameters():
            if name in self._frozen:
                parameter.requires_grad_(False)
        for name, module in self.named_modules():
            if name in self._frozen:
                module.training = False

    def train(self, mode: bool = True) -> 'Backbone':
        """Set training or evaluation mode; frozen stages stay in evaluation mode.

        Modules added to a frozen stage later, such as adapters, still follow ``mode``.
        """
        super().train(mode)
        self._freeze()
        return self

    def get_layer_depth(self, param_name: str, prefix: str = '') -> tuple[int, int]:
        """Return the depth of a parameter for layer-wise learning rates, as mmpretrain counts it.

        Parameters before the first block have depth 0. Block i and the PEG after it have depth
        i + 1; blocks are counted from 0 over all stages. The patch embedding of a later stage has
        the depth of that stage's first block. The final norm, the pyramid and everything outside
        this backbone have the last depth.

        Args:
            param_name: Name of the parameter in the whole model.
            prefix: Prefix of the backbone's parameters there, such as ``'backbone.'``.

        Returns:
            The depth, and the number of depths, which is the number of blocks plus 2.

        Examples:
            The first block of the second of four stages, which have two blocks each:

            >>> from cpvt_backbones import PyramidCPVT
            >>> model = PyramidCPVT(arch='tiny')
            >>> model.get_layer_depth('blocks.1.0.norm1.weight')
            (3, 10)
            >>> model.get_layer_depth('backbone.norm.weight', 'backbone.')
            (9, 10)
        """
        layer_id = None
        if param_name.startswith(prefix):
            layer_id = self._layer_id(param_name.removeprefix(prefix))
        if layer_id is None:
            return self.num_layers - 1, self.num_layers
        stage, block = layer_id
        # The embedding of a later stage belongs to its first block.
        return sum(self.depths[:stage]) + max(block, 0 if stage else -1) + 1, self.num_layers

    def no_weight_decay(self) -> set[str]:
        """List parameters without weight decay: extra tokens and position encodings.

        Norms and biases follow the optimizer's own rules (``norm_decay_mult``,
        ``bias_decay_mult``).
        """
        spared = ('cls_token', 'dist_token', 'reg_token', *self._position_names)
        return {name for name, _ in self.named_parameters() if name.partition('.')[0] in spared}
