"""The three backbones as timm models, whose arguments have timm's names."""

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cpvt_backbones.backbones import CPVT, MultiScaleCPVT, PyramidCPVT
from cpvt_backbones.layers.position import StageTokens
from cpvt_backbones.layers.tokens import prepend_tokens

from .base import POOLS, Intermediate, TimmModel, pool_tokens


class TimmCPVT(TimmModel, CPVT):  # type: ignore[misc]
    """CPVT as a timm model, which classifies the class token or the mean of the tokens.

    Examples:
        >>> import timm, torch
        >>> import cpvt_backbones.timm_models
        >>> model = timm.create_model('cpvt_tiny', num_classes=10)
        >>> model(torch.randn(2, 3, 80, 100)).shape
        torch.Size([2, 10])

    Its arguments are those of :class:`TimmModel` and of :class:`cpvt_backbones.CPVT`;
    ``global_pool='token'`` classifies the class token.
    """

    plain = CPVT
    pools = (*POOLS, 'token')
    default_indices = 3  # the last three blocks, as of timm's ViTs

    @property
    def num_prefix_tokens(self) -> int:
        """Number of class and register tokens before those of the patches."""
        return int(self.with_cls_token) + self.num_registers

    def _describe_features(self) -> list[dict[str, Any]]:
        return [
            dict(num_chs=self.embed_dims, reduction=self.patch_size, module=f'blocks.{index}')
            for index in range(self.depth)
        ]

    def _head_width(self) -> int:
        return self.embed_dims

    def _final(self, index: int, output: StageTokens) -> Tensor:
        tokens, prefix_tokens, _ = output
        return self.norm(prepend_tokens(prefix_tokens, tokens))

    def _pool(self, features: Tensor) -> Tensor:
        if not self.global_pool:
            return features
        if self.global_pool == 'token':
            return features[:, 0]
        return pool_tokens(features[:, self.num_prefix_tokens :], self.global_pool)


class TimmMultiScaleCPVT(TimmModel, MultiScaleCPVT):  # type: ignore[misc]
    """MultiScaleCPVT as a timm model: features are its maps of strides 4, 8, 16 and 32.

    The classifier sees all maps, averaged to the grid of the coarsest and concatenated, so that it
    trains every parameter that a detector needs.

    Examples:
        >>> import timm
        >>> import cpvt_backbones.timm_models
        >>> name = 'multiscale_cpvt_tiny'
        >>> model = timm.create_model(name, features_only=True)
        >>> model.feature_info.reduction()
        [4, 8, 16, 32]

    Its arguments are those of :class:`TimmModel` and of :class:`cpvt_backbones.MultiScaleCPVT`.
    """

    plain = MultiScaleCPVT

    def _describe_features(self) -> list[dict[str, Any]]:
        levels = enumerate(zip(self.out_channels, self.out_strides, strict=True))
        return [
            dict(num_chs=width, reduction=stride, module=f'pyramid.{level}')
            for level, (width, stride) in levels
        ]

    def _head_width(self) -> int:
        return sum(self.out_channels)

    def forward_features(self, images: Tensor) -> Tensor:
        """Average the maps of all levels to the coarsest grid, (B, sum of C, H', W')."""
        self._check_images(images)
        self._refuse_padded(images)
        return self._concatenate(self._features(images))

    def _concatenate(self, maps: Sequence[Tensor]) -> Tensor:
        coarsest = maps[self.out_indices.index(max(self.out_indices))]
        size = (coarsest.shape[2], coarsest.shape[3])
        return torch.cat([F.adaptive_avg_pool2d(level, size) for level in maps], dim=1)

    def _built_features(self) -> tuple[int, ...]:
        return self.out_indices

    def _intermediates(
        self, images: Tensor, wanted: Sequence[int], *, norm: bool, run_all: bool, final: bool
    ) -> tuple[list[Intermediate], Tensor | None]:
        maps = self._features(images)
        levels = dict(zip(self.out_indices, maps, strict=True))
        found: list[Intermediate] = [(levels[index], None) for index in wanted]
        return found, self._concatenate(maps) if final else None

    def _keep(self, kept: tuple[int, ...]) -> None:
        super()._keep(kept)
        self.num_features = sum(self.feature_info[level]['num_chs'] for level in kept)
        self.head_hidden_size = self.num_features

    def _remove_norm(self) -> None:
        """Keep the norm, because the maps come from normalised tokens."""


class TimmPyramidCPVT(TimmModel, PyramidCPVT):
    """PyramidCPVT as a timm model, with the keys and logits of timm's ``twins_*``.

    Features are maps of strides 4, 8, 16 and 32; ``forward_features`` gives the last, normalised.
    With ``pretrained=True``, ``'pyramid_cpvt_small.in1k'`` has timm's weights.

    Examples:
        >>> import timm, torch
        >>> import cpvt_backbones.timm_models
        >>> model = timm.create_model('pyramid_cpvt_tiny', num_classes=10)
        >>> model(torch.randn(2, 3, 80, 100)).shape
        torch.Size([2, 10])

    Its arguments are those of :class:`TimmModel` and of :class:`cpvt_backbones.PyramidCPVT`.
    """

    plain = PyramidCPVT
    defaults = MappingProxyType(dict(final_norm=True))

    def _describe_features(self) -> list[dict[str, Any]]:
        stages = enumerate(zip(self.out_channels, self.out_strides, strict=True))
        return [
            dict(num_chs=width, reduction=stride, module=f'blocks.{stage}')
            for stage, (width, stride) in stages
        ]

    def _head_width(self) -> int:
        return self.out_channels[-1]

    def _is_normed(self, index: int) -> bool:
        return index == self.num_freezable - 1
