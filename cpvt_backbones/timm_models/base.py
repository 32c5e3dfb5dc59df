"""timm's methods for a backbone: a classifier, features of chosen blocks, groups of parameters.

The methods, their arguments and the names of parameters are those of timm's vision transformers.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any, ClassVar

import torch
from mmengine.logging import print_log
from timm.models._features import feature_take_indices
from torch import Tensor, fx, nn

from cpvt_backbones.backbones.base import Backbone
from cpvt_backbones.backbones.padded import features_of_sizes
from cpvt_backbones.checkpoints import (
    convert_state_dict,
    load_checkpoint,
    read_checkpoint,
    weights_in,
)
from cpvt_backbones.checks import check_choice, check_int, check_keywords, check_probability
from cpvt_backbones.errors import InputError
from cpvt_backbones.layers.position import StageTokens
from cpvt_backbones.layers.tokens import map_to_tokens, tokens_to_map

POOLS = ('', 'avg', 'max', 'avgmax')
# Arguments of the backbones that timm names differently, or sets by methods.
_FIXED = (
    *('in_channels', 'drop_rate', 'with_dist_token', 'with_cp'),
    *('out_type', 'out_indices', 'init_cfg'),
)

Intermediate = tuple[Tensor, Tensor | None]
"""A map (B, C, H, W) and the prefix tokens (B, P, C) beside it, or ``None``."""


def pool_tokens(tokens: Tensor, global_pool: str) -> Tensor:
    """Pool (B, N, C) to (B, C): the mean, the maximum, or the mean of both (``'avgmax'``)."""
    if global_pool == 'avg':
        return tokens.mean(dim=1)
    if global_pool == 'max':
        return tokens.amax(dim=1)
    return (tokens.mean(dim=1) + tokens.amax(dim=1)) / 2


class TimmModel(Backbone):
    """Base class of the three models, with the methods that timm's scripts and tools call.

    Args:
        in_chans: Channels of an image.
        num_classes: Number of classes; 0 for no classifier.
        global_pool: One of ``pools``; ``''`` for none. Default: the class token, or ``'avg'`` for a
            model without one.
        drop_rate: Dropout before the classifier.
        proj_drop_rate: Dropout after the embeddings and in the MLPs.
        device, dtype: Device and type of the parameters.
        backbone: Arguments of ``plain``, such as ``arch`` and ``position``.

    Attributes:
        plain: The backbone without timm's methods.
        pools: Names accepted as ``global_pool``.
        default_indices: Features of ``features_only=True`` without ``out_indices``.
        defaults: Arguments of ``plain`` that differ from its own defaults.
        num_features, head_hidden_size: Channels of ``forward_features`` and of pooled features.
        num_classes, global_pool, in_chans: As given.
        feature_info: One dict per feature: ``num_chs``, ``reduction`` (stride in px), ``module``.
        head: Linear layer, or the identity for ``num_classes=0``.
    """

    plain: ClassVar[type[Backbone]]
    pools: ClassVar[tuple[str, ...]] = POOLS
    default_indices: ClassVar[Any] = (0, 1, 2, 3)
    defaults: ClassVar[Mapping[str, Any]] = {}
    feature_info: list[dict[str, Any]]
    out_indices: tuple[int, ...]
    final_norm: Any
    head: nn.Module
    head_drop: nn.Module

    def __init__(
        self,
        *,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str | None = None,
        drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        device: Any = None,
        dtype: Any = None,
        **backbone: Any,
    ) -> None:
        check_keywords(type(self).__name__, self.plain, backbone, positional=_FIXED)
        check_int(num_classes=num_classes, minimum=0)
        check_probability(drop_rate=drop_rate)
        trunk = dict(self.defaults, in_channels=in_chans, drop_rate=proj_drop_rate)
        super().__init__(**{**trunk, **backbone})
        self.in_chans = in_chans
        self.feature_info = self._describe_features()
        self.num_features = self.head_hidden_size = self._head_width()
        self.head_drop = nn.Dropout(drop_rate)
        if global_pool is None:
            global_pool = 'token' if 'token' in self.pools and self.with_cls_token else 'avg'
        self.reset_classifier(num_classes, global_pool)
        self._register_load_state_dict_pre_hook(rename_classifier)
        if device is not None or dtype is not None:
            self.to(device=device, dtype=dtype)

    def _describe_features(self) -> list[dict[str, Any]]:
        """Return ``feature_info`` of a new backbone."""
        raise NotImplementedError

    def _head_width(self) -> int:
        """Return the number of channels of ``forward_features``."""
        raise NotImplementedError

    # -- classification
    # ----------------------------------------------------------------------------------------------

    def get_classifier(self) -> nn.Module:
        """Return the last layer, ``head``."""
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Replace the classifier by a new one.

        Args:
            num_classes: Number of classes. With 0, ``forward`` gives pooled features.
            global_pool: ``'avg'``, ``'max'``, ``'avgmax'`` or, with a class token, ``'token'``;
                ``''`` for none; ``None`` keeps it.
        """
        if global_pool is not None:
            accepted = [pool for pool in self.pools if pool != 'token' or self.with_cls_token]
            check_choice(accepted, global_pool=global_pool)
            self.global_pool = global_pool
        self.num_classes = num_classes
        like = next(self.parameters())
        self.head = nn.Identity()
        if num_classes > 0:
            self.head = nn.Linear(
                self.num_features, num_classes, device=like.device, dtype=like.dtype
            )
            nn.init.trunc_normal_(self.head.weight, std=0.02)
            nn.init.zeros_(self.head.bias)

    def forward_features(self, images: Tensor) -> Tensor:
        """Compute normalised features after the last block, before pooling.

        Returns:
            For a plain ViT, tokens (B, [P +] N, C), starting with class and register tokens. For a
            hierarchical one, a map (B, C, H', W').

        Raises:
            ValueError: Sizes were announced for padded images, whose tokens cannot be padded.
        """
        self._check_images(images)
        self._refuse_padded(images)
        last = len(self.blocks) - 1
        return self._final(last, self._run_trunk(images, (last,))[last])

    def forward_head(self, features: Tensor, pre_logits: bool = False) -> Tensor:
        """Pool the result of :meth:`forward_features` and classify it.

        Args:
            features: Tokens or a map.
            pre_logits: Return the pooled features (B, C).
        """
        pooled = self.head_drop(self._pool(features))
        return pooled if pre_logits else self.head(pooled)

    def forward(self, images: Tensor) -> Tensor:  # type: ignore[override]
        """Compute logits (B, num_classes) of images (B, in_chans, H, W).

        With ``num_classes=0``, the result is pooled features (B, C). If also ``global_pool=''``, it
        is that of :meth:`forward_features`. :func:`cpvt_backbones.backbones.announce_sizes` keeps
        the padding of a batch out of the features.
        """
        self._check_images(images)
        sizes = self._sizes_in_batch(images)
        if not sizes:
            return self.forward_head(self.forward_features(images))
        check_choice(self.pools[1:], global_pool=self.global_pool)

        def logits(part: Tensor) -> tuple[Tensor]:
            return (self.forward_head(self.forward_features(part)),)

        return features_of_sizes(logits, images, sizes, None)[0]

    def _refuse_padded(self, images: Tensor) -> None:
        if self._sizes_in_batch(images):
            raise InputError(
                'forward_features must get images without padding: call the model, or'
                " forward_intermediates with output_fmt='NCHW' and intermediates_only=True"
            )

    def _pool(self, features: Tensor) -> Tensor:
        if not self.global_pool:
            return features
        return pool_tokens(map_to_tokens(features), self.global_pool)

    def _final(self, index: int, output: StageTokens) -> Tensor:
        """Convert tokens, prefix tokens and grid after the last block to the final features."""
        tokens, _, grid = output
        return tokens_to_map(self.norm(tokens) if self._is_normed(index) else tokens, grid)

    # -- features
    # ----------------------------------------------------------------------------------------------

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | Sequence[int] | None = None,
        return_prefix_tokens: bool = False,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = 'NCHW',
        intermediates_only: bool = False,
        output_dict: bool = False,
    ) -> Any:
        """Compute features of chosen blocks, stages or levels.

        Args:
            x: Images (B, in_chans, H, W).
            indices: Entries of ``feature_info``; a number takes as many of the last ones; ``None``
                takes all.
            return_prefix_tokens: Return pairs of a map and its prefix tokens (B, P, C), if the
                model has any.
            norm: Apply the final norm; in a hierarchical ViT, to the last stage. Maps of
                MultiScaleCPVT always come from normalised tokens.
            stop_early: Run no block after the last index.
            output_fmt: ``'NCHW'`` for maps (B, C, H', W'), ``'NLC'`` for tokens (B, H' * W', C).
            intermediates_only: Return only the intermediate features.
            output_dict: Return a dict with ``image_intermediates``, ``image_intermediates_prefix``
                and ``image_features``.

        Returns:
            The final features, as in :meth:`forward_features`, and a list of intermediate ones,
            unless the arguments above say otherwise.

        Raises:
            ValueError: A feature was pruned; or images are padded, sizes were announced, and more
                than maps is requested.
        """
        check_choice(('NCHW', 'NLC'), output_fmt=str(getattr(output_fmt, 'value', output_fmt)))
        self._check_images(x)
        wanted, _ = feature_take_indices(len(self.feature_info), indices)
        built = self._built_features()
        if not set(wanted) <= set(built):
            raise InputError(f'indices must be among those built, {built}, got {wanted}')
        if sizes := self._sizes_in_batch(x):
            if output_fmt != 'NCHW' or output_dict or not intermediates_only:
                raise InputError(
                    "valid_sizes must be None unless output_fmt='NCHW', intermediates_only=True"
                    ' and output_dict=False'
                )

            def maps(part: Tensor) -> tuple[Tensor, ...]:
                found, _ = self._intermediates(part, wanted, norm=norm, run_all=False, final=False)
                return tuple(feature_map for feature_map, _ in found)

            strides = [self.feature_info[index]['reduction'] for index in wanted]
            return list(features_of_sizes(maps, x, sizes, strides))
        found, final = self._intermediates(
            x,
            wanted,
            norm=norm,
            run_all=not (stop_early or intermediates_only),
            final=not intermediates_only,
        )
        features: list[Any] = [feature_map.contiguous() for feature_map, _ in found]
        if output_fmt == 'NLC':
            features = [map_to_tokens(feature_map) for feature_map in features]
        prefix = [tokens for _, tokens in found if tokens is not None]
        return_prefix_tokens = return_prefix_tokens and len(prefix) == len(features)
        if output_dict:
            result: dict[str, Any] = dict(image_intermediates=features)
            if return_prefix_tokens:
                result['image_intermediates_prefix'] = prefix
            return result if intermediates_only else dict(result, image_features=final)
        if return_prefix_tokens:
            features = list(zip(features, prefix, strict=True))
        return features if intermediates_only else (final, features)

    def _built_features(self) -> tuple[int, ...]:
        """Return the indices into ``feature_info`` that were not pruned."""
        return tuple(range(len(self.blocks)))

    def _intermediates(
        self, images: Tensor, wanted: Sequence[int], *, norm: bool, run_all: bool, final: bool
    ) -> tuple[list[Intermediate], Tensor | None]:
        """Compute maps and prefix tokens for the indices, and final features if requested."""
        last = len(self.blocks) - 1
        outputs = self._run_trunk(images, {*wanted, last} if run_all else set(wanted))
        found: list[Intermediate] = []
        for index in wanted:
            tokens, prefix, grid = outputs[index]
            if norm and self._is_normed(index):
                tokens = self.norm(tokens)
                prefix = None if prefix is None else self.norm(prefix)
            found.append((tokens_to_map(tokens, grid), prefix))
        end = max(outputs)
        return found, self._final(end, outputs[end]) if final else None

    def _is_normed(self, index: int) -> bool:
        """``True`` if the final norm applies to a feature."""
        return True

    def prune_intermediate_layers(
        self,
        indices: int | Sequence[int] = 1,
        prune_norm: bool = False,
        prune_head: bool = True,
    ) -> list[int]:
        """Remove parts that the features of ``indices`` do not need.

        All remaining parameters are trained.

        Args:
            indices: See :meth:`forward_intermediates`.
            prune_norm: Also remove the final norm.
            prune_head: Remove pooling and classifier.

        Returns:
            The indices, counted from 0.
        """
        kept, _ = feature_take_indices(len(self.feature_info), indices)
        self._keep(tuple(kept))
        if prune_norm:
            self._remove_norm()
        if prune_head:
            self.reset_classifier(0, '')
        return list(kept)

    def _keep(self, kept: tuple[int, ...]) -> None:
        """Rebuild the trunk for these outputs, with its current parameters."""
        with torch.device('meta'):
            trunk = self.plain(**{**self._trunk_arguments(), 'out_indices': kept})
        wanted = trunk.state_dict()
        weights = {key: value for key, value in self.state_dict().items() if key in wanted}
        trunk.load_state_dict(weights, assign=True)
        for name, child in trunk.named_children():
            if name != 'norm':
                setattr(self, name, child)
        self.out_indices, self._taps = trunk.out_indices, trunk._taps
        self.train(self.training)

    def _remove_norm(self) -> None:
        self.norm = nn.Identity()
        self.final_norm = False

    # -- training
    # ----------------------------------------------------------------------------------------------

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Recompute each block in the backward pass instead of storing its activations."""
        self.with_cp = enable

    def group_matcher(self, coarse: bool = False) -> Callable[[str], int]:
        """Return a function from a parameter's name to its group, for layer-wise learning rates.

        The groups are those of ``get_layer_depth``: the stem, each block with the PEG after it, and
        final norm and head. With ``coarse``, they are the stem, each stage, and final norm and
        head.
        """

        def group(name: str) -> int:
            if not coarse:
                return self.get_layer_depth(name)[0]
            layer_id = self._layer_id(name)
            if layer_id is None:
                return len(self.depths) + 1
            return 0 if layer_id == (0, -1) else layer_id[0] + 1

        return group

    # -- weights
    # ----------------------------------------------------------------------------------------------

    def load_pretrained(self, checkpoint_path: str | PathLike[str], prefix: str = '') -> None:
        """Load any checkpoint that this package reads; the method's name is timm's.

        timm calls it with ``pretrained_cfg_overlay=dict(file=..., custom_load=True)``. The
        classifier's weights are loaded too if it has the same number of classes.

        Args:
            checkpoint_path: File, folder or name, as in
                :func:`cpvt_backbones.checkpoints.load_checkpoint`.
            prefix: Convert only keys with this prefix.

        Raises:
            FileNotFoundError, CheckpointError: See
                :func:`cpvt_backbones.checkpoints.load_checkpoint`.
        """
        trunk = self.plain(**self._trunk_arguments())
        load_checkpoint(trunk, checkpoint_path, prefix=prefix or None)
        self.load_state_dict(trunk.state_dict(), strict=False)
        head = _head_weights(weights_in(read_checkpoint(checkpoint_path)))
        own = self.head.state_dict()
        # Only a classifier of the same shape is loaded.
        if own and {k: v.shape for k, v in head.items()} == {k: v.shape for k, v in own.items()}:
            self.head.load_state_dict(head)
        elif own:
            text = f'it has no classifier of {self.num_classes} classes, so head is random'
            print_log(f'load {checkpoint_path}: {text}', 'current')

    def _trunk_arguments(self) -> dict[str, Any]:
        """Return the arguments of ``plain`` for the trunk of this model."""
        names = [name for name in inspect.signature(self.plain).parameters if name != 'init_cfg']
        return {name: getattr(self, name) for name in names}

    def _to_save(self) -> tuple[type[Backbone], dict[str, Tensor]]:
        """Return only the backbone, so that its ``from_pretrained`` reads the saved file.

        ``timm.models.save_for_hf`` saves the whole model.
        """
        weights = {k: v for k, v in self.state_dict().items() if not k.startswith('head.')}
        return self.plain, weights

    def __prepare_scriptable__(self) -> nn.Module:
        """Return the graph of ``torch.fx``, which ``torch.jit.script`` compiles.

        Raises:
            RuntimeError: The model cannot be traced.
        """
        if self.training:
            raise RuntimeError('torch.jit.script takes a model in evaluation mode: call eval()')
        return fx.symbolic_trace(self)


def filter_checkpoint(state_dict: dict[str, Any], model: TimmModel) -> dict[str, Tensor]:
    """Convert the trunk's weights and keep the classifier's: timm's hook for ``pretrained=True``.

    Args:
        state_dict: Weights of a ViT, DeiT, Twins-PCPVT or CPVT, in any naming that
            :func:`cpvt_backbones.checkpoints.convert_state_dict` reads.
        model: The model that they are for.

    Raises:
        CheckpointError: The weights do not fit.
    """
    trunk = model.plain(**model._trunk_arguments())
    weights, report = convert_state_dict(state_dict, trunk)
    trunk.load_state_dict(weights, strict=False)
    print_log(str(report), 'current')
    head = {f'head.{leaf}': value for leaf, value in _head_weights(weights_in(state_dict)).items()}
    return {**trunk.state_dict(), **head}


# Names of the last layer in timm and this package, and of mmpretrain's linear and ViT heads.
_HEADS = ('head', 'head.fc', 'head.layers.head')


def _head_weights(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return ``weight`` and ``bias`` of a classifier, or an empty dict."""
    for name in _HEADS:
        found = {leaf: weights.get(f'{name}.{leaf}') for leaf in ('weight', 'bias')}
        if all(value is not None and value.dim() < 3 for value in found.values()):
            return {leaf: value for leaf, value in found.items() if value is not None}
    return {}


def rename_classifier(state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """Accept the names of mmpretrain's classifiers: hook of ``load_state_dict``.

    Their backbone is under ``backbone.``, and their last layer is ``head.fc``. So timm's
    ``checkpoint_path`` may be weights that this package trained or ships.
    """
    start = f'{prefix}backbone.'
    if not any(key.startswith(start) for key in state_dict):
        return
    for key in list(state_dict):
        if key.startswith(start):
            state_dict[prefix + key.removeprefix(start)] = state_dict.pop(key)
        elif key.startswith(f'{prefix}head.fc.'):
            state_dict[key.replace('head.fc.', 'head.')] = state_dict.pop(key)
