"""Base of all backbones: outputs, freezing, layer depth, position encodings, checkpointing."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from mmengine.model import BaseModule, PretrainedInit
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from cpvt_backbones.layers import (
    PEG,
    Block,
    Grid,
    LearnedTable,
    PositionEncoding,
    Stage,
    adapt_tables,
    build_positions,
    ceil_div,
    group_by_shape,
    prepend_tokens,
    tokens_to_map,
)
from cpvt_backbones.layers.checks import check_bool, check_choice, check_int, check_probability, list_of_dicts
from cpvt_backbones.weights import find_shipped

from .archs import resolve_size

OUT_TYPES = ('featmap', 'cls_token', 'avg_featmap', 'raw')

Position = dict[str, Any] | Sequence[dict[str, Any]] | None
"""``None``, a dict with ``type`` and an encoding's arguments, or a list of such dicts."""

PAPER_POSITION: dict[str, Any] = dict(type='PEG', after_blocks=(0,), kernel_size=3)
"""The paper's default: one PEG after the first block, k = 3."""

DENSE_POSITION: dict[str, Any] = dict(type='PEG', after_blocks='0-5', kernel_size=3)
"""The paper's "0-5": one PEG after each of the first five blocks, or of all blocks where there are fewer."""


def drop_path_schedule(rate: float, depth: int) -> list[float]:
    """Stochastic depth of each block, linear from 0 to ``rate``; plain numbers, also on the meta device."""
    return [rate * index / max(depth - 1, 1) for index in range(depth)]


def init_linear_layers(model: nn.Module) -> None:
    """Truncated normal weights with standard deviation 0.02 and no bias, as DeiT, PVT and Twins do."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def _check_valid_sizes(valid_sizes: Any, shape: Sequence[int]) -> list[tuple[int, int]]:
    count, _, height, width = shape
    if not isinstance(valid_sizes, Sequence) or len(valid_sizes) != count:
        raise ValueError(f'valid_sizes must be a (height, width) for each of {count} images, got {valid_sizes!r}')
    sizes = [resolve_size('valid_sizes', list(size) if isinstance(size, Sequence) else None) for size in valid_sizes]
    for index, (h, w) in enumerate(sizes):
        if h > height or w > width:
            raise ValueError(
                f'valid_sizes must be at most {height} x {width}, as the batch, got {h} x {w} for image {index}'
            )
    return sizes


def _pick(output: Any, index: int) -> Any:
    """One image's part of an output, which may be a pair of vectors."""
    return tuple(part[index] for part in output) if isinstance(output, tuple) else output[index]


def _grid_of(output: Any) -> tuple[int, int]:
    return (output.shape[1], output.shape[2]) if isinstance(output, Tensor) and output.dim() == 3 else (0, 0)


def _stack(outputs: list[Any], size: tuple[int, int]) -> Any:
    """One output of each image to a batch: pairs and vectors as they are, maps with zeros up to ``size``."""
    if isinstance(outputs[0], tuple):
        return tuple(torch.stack(parts) for parts in zip(*outputs, strict=True))
    if outputs[0].dim() == 1:
        return torch.stack(outputs)
    return torch.stack([F.pad(o, (0, size[1] - o.shape[2], 0, size[0] - o.shape[1])) for o in outputs])


def _is_pretrained(entry: Mapping[str, Any]) -> bool:
    return entry['type'] in ('Pretrained', PretrainedInit)


class Backbone(BaseModule):
    """Base of the backbones.

    Attributes:
        out_channels: Channels of each output, in the order of ``out_indices``.
        out_strides: Stride of each output in pixels, in the same order.
    """

    out_channels: tuple[int, ...]
    out_strides: tuple[int, ...]
    norm: nn.Module
    init_cfg: Any
    num_layers: int
    """Depth that layer-wise learning rates count: the stem, each block, and what follows."""

    def __init__(
        self,
        *,
        in_channels: int,
        out_type: str,
        with_cls_token: bool,
        qkv_bias: bool,
        drop_rate: float,
        attn_drop_rate: float,
        drop_path_rate: float,
        with_cp: bool,
        frozen_stages: int,
        max_frozen: int,
        init_cfg: Any,
    ) -> None:
        for entry in list_of_dicts('init_cfg', init_cfg):
            if 'type' not in entry:
                raise ValueError(f'init_cfg must name a type, got {init_cfg!r}')
        super().__init__(init_cfg=init_cfg)
        check_int('in_channels', in_channels)
        check_bool(with_cls_token=with_cls_token, qkv_bias=qkv_bias, with_cp=with_cp)
        check_probability(drop_rate=drop_rate, attn_drop_rate=attn_drop_rate, drop_path_rate=drop_path_rate)
        check_int('frozen_stages', frozen_stages, minimum=-1, maximum=max_frozen)
        check_choice('out_type', out_type, OUT_TYPES)
        if out_type == 'cls_token' and not with_cls_token:
            raise ValueError(
                "out_type must not be 'cls_token' with with_cls_token=False, got 'cls_token'; "
                "use 'avg_featmap' for a model without class token"
            )
        self.in_channels = in_channels
        self.out_type = out_type
        self.with_cp = with_cp
        self.frozen_stages = frozen_stages
        self.cls_token: nn.Parameter | None = None
        self.dist_token: nn.Parameter | None = None

    # -- position encodings ------------------------------------------------------------------------------------------

    def _add_positions(self, position: Position, stages: Sequence[Stage]) -> None:
        encodings = build_positions(position, stages)
        self._position_names = tuple(encodings)
        for name, encoding in encodings.items():
            self.add_module(name, encoding)
        self._has_bias = any(encoding.has_bias for encoding in encodings.values())
        if LearnedTable.attribute in encodings:
            self._register_load_state_dict_pre_hook(adapt_tables, with_module=True)

    @property
    def position_encodings(self) -> list[PositionEncoding]:
        """The position encodings, in the order they act."""
        return [getattr(self, name) for name in self._position_names]

    def _before_stage(
        self, stage: int, tokens: Tensor, prefix_tokens: Tensor | None, grid: Grid
    ) -> tuple[Tensor, Tensor | None, Grid]:
        for encoding in self.position_encodings:
            tokens, prefix_tokens, grid = encoding.before_stage(stage, tokens, prefix_tokens, grid)
        return tokens, prefix_tokens, grid

    def _attention_bias(self, stage: int, index: int, query: Tensor, grid: Grid) -> Tensor:
        biases = [e.attention_bias(stage, index, query, grid) for e in self.position_encodings if e.has_bias]
        return torch.stack(biases).sum(0) if len(biases) > 1 else biases[0]

    def _run_block(
        self, stage: int, index: int, block: nn.Module, tokens: Tensor, prefix_tokens: Tensor | None, grid: Grid
    ) -> tuple[Tensor, Tensor | None, Grid]:
        query_key = tokens
        for encoding in self.position_encodings:
            query_key = encoding.query_key(stage, index, query_key, grid)
        arguments: dict[str, Any] = dict(
            qk=None if query_key is tokens else query_key,
            bias=partial(self._attention_bias, stage, index) if self._has_bias else None,
        )
        if self.with_cp and torch.is_grad_enabled():
            tokens, prefix_tokens = checkpoint(block, tokens, prefix_tokens, grid, use_reentrant=False, **arguments)
        else:
            tokens, prefix_tokens = block(tokens, prefix_tokens, grid, **arguments)
        for encoding in self.position_encodings:
            tokens, grid = encoding.after_block(stage, index, tokens, grid)
        return tokens, prefix_tokens, grid

    # -- forward -----------------------------------------------------------------------------------------------------

    def forward(self, images: Tensor, valid_sizes: Sequence[tuple[int, int]] | None = None) -> tuple[Any, ...]:
        """Features of a batch.

        Args:
            images: (B, in_channels, H, W), normalised, any H, W >= 1.
            valid_sizes: (height, width) in pixels of each image before it was padded, on the right and at the bottom,
                to the size of the batch. Images of one size are then computed together, without the padding, so that
                neither padding nor neighbours change an image's features. Default: ``images.valid_sizes``, an attribute
                that :mod:`cpvt_backbones.engine.preprocessors` sets, where there is one.

        Returns:
            One output per entry of ``out_indices``: maps (B, C, ceil(H / stride), ceil(W / stride)), zero where an
            image has no pixel, or the output that ``out_type`` names. (A PEG with ``padding='none'`` makes a map
            smaller.)

        Raises:
            TypeError: ``images`` that are not a floating point tensor.
            ValueError: Images of another shape; ``valid_sizes`` that do not fit the batch, or with ``out_type='raw'``,
                whose tokens cannot be padded.
        """
        self._check_images(images)
        if valid_sizes is None:
            valid_sizes = getattr(images, 'valid_sizes', None)
        if valid_sizes is None:
            return self._features(images)
        return self._features_of_each(images, valid_sizes)

    def _features(self, images: Tensor) -> tuple[Any, ...]:
        """Features of images that fill the batch."""
        raise NotImplementedError

    def _features_of_each(self, images: Tensor, valid_sizes: Sequence[tuple[int, int]]) -> tuple[Any, ...]:
        sizes = _check_valid_sizes(valid_sizes, images.shape)
        if set(sizes) == {tuple(images.shape[2:])}:
            return self._features(images)
        if self.out_type == 'raw':
            raise ValueError("valid_sizes must be None with out_type='raw', whose tokens cannot be padded")
        results: list[tuple[Any, ...]] = [()] * len(sizes)
        for members in group_by_shape(sizes):
            height, width = sizes[members[0]]
            outputs = self._features(images[members, :, :height, :width])
            for position, member in enumerate(members):
                results[member] = tuple(_pick(output, position) for output in outputs)
        height, width = images.shape[2:]
        batch = []
        for level, stride in enumerate(self.out_strides):
            # With padding='none' a map is smaller than its stride says, by as much for every image.
            (h, w), (grid_h, grid_w) = sizes[0], _grid_of(results[0][level])
            lost = (ceil_div(h, stride) - grid_h, ceil_div(w, stride) - grid_w)
            size = (ceil_div(height, stride) - lost[0], ceil_div(width, stride) - lost[1])
            batch.append(_stack([result[level] for result in results], size))
        return tuple(batch)

    # -- input and output --------------------------------------------------------------------------------------------

    def _check_images(self, images: Any) -> None:
        if not isinstance(images, Tensor):
            raise TypeError(f'images must be a torch.Tensor (B, {self.in_channels}, H, W), got {type(images).__name__}')
        if images.dim() != 4 or images.shape[1] != self.in_channels or 0 in images.shape:
            raise ValueError(
                f'images must be (B, {self.in_channels}, H, W) with H, W >= 1, got shape {tuple(images.shape)}'
            )
        if not images.is_floating_point():
            raise TypeError(f'images must be of a floating point type, got {images.dtype}')

    def _prefix_tokens(self, batch: int) -> Tensor | None:
        """(B, P, C) class and distillation tokens, or ``None`` for a model without."""
        if self.cls_token is None:
            return None
        tokens = self.cls_token if self.dist_token is None else torch.cat((self.cls_token, self.dist_token), dim=1)
        # A copy: under `no_grad` a view of a parameter still requires gradients, which breaks torch's FLOP counter.
        return tokens.repeat(batch, 1, 1)

    def _format(
        self, tokens: Tensor, prefix_tokens: Tensor | None, grid: Grid, *, last: bool
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Tokens behind a block to an output of ``out_type``, of which alone the norm is computed."""

        def norm(x: Tensor) -> Tensor:
            return self.norm(x) if last else x

        if self.out_type == 'cls_token':
            assert prefix_tokens is not None
            prefix_tokens = norm(prefix_tokens)
            if self.dist_token is not None:
                return prefix_tokens[:, 0], prefix_tokens[:, 1]  # a pair, as mmpretrain's DeiT heads take it
            return prefix_tokens[:, 0]  # (B, C)
        if self.out_type == 'raw':
            return norm(prepend_tokens(prefix_tokens, tokens))  # (B, [P +] N, C)
        tokens = norm(tokens)
        if self.out_type == 'avg_featmap':
            return tokens.mean(dim=1)  # (B, C)
        return tokens_to_map(tokens, grid)  # (B, C, H, W)

    # -- weights -----------------------------------------------------------------------------------------------------

    @classmethod
    def from_pretrained(cls, name: str, **arguments: Any) -> 'Backbone':
        """A backbone with weights that come with the package.

        Args:
            name: Of :func:`cpvt_backbones.weights.shipped_weights`; in a config the same is
                ``init_cfg=dict(type='Pretrained', checkpoint=name)``.
            arguments: Override those that the weights were trained with, e.g. ``out_type='featmap'``.

        Raises:
            ValueError: An unknown name, or weights of another class.
        """
        shipped = find_shipped(name)
        built = dict(shipped.backbone)
        if built.pop('type') != cls.__name__:
            raise ValueError(
                f'name: {name!r} are weights of {shipped.backbone["type"]}, got it for {cls.__name__}; where the '
                f"blocks are the same, init_cfg=dict(type='Pretrained', checkpoint={name!r}) takes them"
            )
        model = cls(**{**built, **arguments, 'init_cfg': dict(type='Pretrained', checkpoint=name)})
        model.init_weights()
        return model

    def init_weights(self) -> None:
        """Initialise by ``init_cfg``; checkpoints of other packages are recognised and converted.

        As everywhere in mmengine, nothing is read before this call: mmengine's Runner makes it before training.

        Raises:
            FileNotFoundError, CheckpointError: See :class:`cpvt_backbones.checkpoints.RecognisedPretrained`.
        """
        init_cfg = self.init_cfg
        entries = sorted(list_of_dicts('init_cfg', init_cfg), key=_is_pretrained)  # last, as in mmengine
        self.init_cfg = [{**e, 'type': 'RecognisedPretrained'} if _is_pretrained(e) else e for e in entries]
        try:
            super().init_weights()
        finally:
            self.init_cfg = init_cfg

    def fuse(self) -> 'Backbone':
        """A copy for inference, of the weights at hand; this model stays as it is.

        Every PEG's identity is folded into its convolution, and sums and GELU overwrite tensors that are not needed
        again (hooks that keep the output of a submodule may find it changed). Outputs agree to 1e-5 in fp32. The copy
        is in evaluation mode and not to be trained. Its fused weights have other names, so its state dict does not load
        into an unfused model by mistake. Load weights before fusing.
        """
        fused = deepcopy(self).eval().requires_grad_(False)
        for module in fused.modules():
            if isinstance(module, (PEG, Block)):
                module.fuse()
        return fused

    # -- training ----------------------------------------------------------------------------------------------------

    def _layer_of(self, name: str) -> int:
        """Depth of a parameter or module by its path: 0 the stem, 1 the first block, ..."""
        raise NotImplementedError

    def _freeze_level(self, name: str) -> float:
        """The smallest ``frozen_stages`` that freezes this parameter or module; infinite for never."""
        raise NotImplementedError

    def _freeze(self) -> None:
        for name, parameter in self.named_parameters():
            if self._freeze_level(name) <= self.frozen_stages:
                parameter.requires_grad_(False)
        for name, module in self.named_modules():
            if name and self._freeze_level(name) <= self.frozen_stages:
                module.eval()

    def train(self, mode: bool = True) -> 'Backbone':
        """Set the mode; frozen stages stay in evaluation mode."""
        super().train(mode)
        self._freeze()
        return self

    def get_layer_depth(self, param_name: str, prefix: str = '') -> tuple[int, int]:
        """Depth of a parameter for layer-wise learning rates, in mmpretrain's convention.

        Args:
            param_name: Name of a parameter, as seen from the whole model.
            prefix: Prefix of this backbone's own names, e.g. ``'backbone.'``.

        Returns:
            The depth (0: stem, i + 1: block i and the PEG behind it, last: final norm, pyramid and everything outside
            this backbone) and the number of depths.
        """
        if not param_name.startswith(prefix):
            return self.num_layers - 1, self.num_layers
        return self._layer_of(param_name[len(prefix) :]), self.num_layers

    def no_weight_decay(self) -> set[str]:
        """Names of parameters that weight decay must spare: class and distillation token, position encodings.

        Norms and biases are left to the optimizer's own rules (``norm_decay_mult``, ``bias_decay_mult``).
        """
        names = {
            f'{name}.{parameter}'
            for name in self._position_names
            for parameter, _ in getattr(self, name).named_parameters()
        }
        return names | {name for name in ('cls_token', 'dist_token') if getattr(self, name) is not None}
