"""The three backbones as timm models: their arguments by timm's names."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cpvt_backbones.backbones import CPVT, MultiScaleCPVT, PyramidCPVT
from cpvt_backbones.backbones.base import DENSE_POSITION, PAPER_POSITION, Position
from cpvt_backbones.layers.position import StageTokens
from cpvt_backbones.layers.tokens import prepend_tokens

from .base import POOLS, Intermediate, TimmModel, pool_tokens


class TimmCPVT(TimmModel, CPVT):
    """CPVT as a timm model: tokens as features, the class token or their mean to classify.

    Example:
        >>> model = timm.create_model('cpvt_tiny', num_classes=10, drop_path_rate=0.1)
        >>> model(torch.randn(2, 3, 160, 200)).shape
        torch.Size([2, 10])
        >>> model.forward_intermediates(torch.randn(2, 3, 160, 200), 1, intermediates_only=True)

    Args:
        in_chans: Channels of an image.
        num_classes: Number of classes; 0 for no classifier.
        global_pool: ``'token'`` (the class token), ``'avg'``, ``'max'``, ``'avgmax'`` or ``''``.
            Default: the class token, or ``'avg'`` for a model without.
        drop_rate: Dropout before the classifier.
        proj_drop_rate: Dropout after the embeddings and in the MLPs.
        device, dtype: Where the parameters are, and their type.

    The other arguments are those of :class:`cpvt_backbones.CPVT`.
    """

    plain = CPVT
    pools = (*POOLS, 'token')
    default_indices = 3  # the last three blocks, as of timm's ViTs

    def __init__(
        self,
        *,
        arch: str | Mapping[str, Any] = 'small',
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str | None = None,
        img_size: int | Sequence[int] = 224,
        patch_size: int = 16,
        position: Position = PAPER_POSITION,
        with_cls_token: bool = True,
        num_registers: int = 0,
        window_size: int | None = None,
        global_blocks: Sequence[int] = (),
        mask_window_padding: bool = True,
        layer_scale_init: float | None = None,
        activation: str = 'gelu',
        pre_norm: bool = False,
        final_norm: bool = True,
        qkv_bias: bool = True,
        drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        norm_eps: float = 1e-6,
        frozen_stages: int = -1,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(
            arch=arch,
            in_channels=in_chans,
            img_size=img_size,
            patch_size=patch_size,
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
            qkv_bias=qkv_bias,
            drop_rate=proj_drop_rate,
            attn_drop_rate=attn_drop_rate,
            drop_path_rate=drop_path_rate,
            norm_eps=norm_eps,
            frozen_stages=frozen_stages,
        )
        self.num_prefix_tokens = int(with_cls_token) + num_registers
        self.feature_info = [
            dict(num_chs=self.embed_dims, reduction=patch_size, module=f'blocks.{index}')
            for index in range(self.depth)
        ]
        if global_pool is None:
            global_pool = 'token' if with_cls_token else 'avg'
        self._add_head(
            self.embed_dims,
            num_classes=num_classes,
            global_pool=global_pool,
            drop_rate=drop_rate,
            device=device,
            dtype=dtype,
        )

    def _final(self, index: int, output: StageTokens) -> Tensor:
        tokens, prefix_tokens, _ = output
        return self.norm(prepend_tokens(prefix_tokens, tokens))

    def _pool(self, features: Tensor) -> Tensor:
        if not self.global_pool:
            return features
        if self.global_pool == 'token':
            return features[:, 0]
        return pool_tokens(features[:, self.num_prefix_tokens :], self.global_pool)


class TimmMultiScaleCPVT(TimmModel, MultiScaleCPVT):
    """MultiScaleCPVT as a timm model: features are its maps of strides 4, 8, 16 and 32.

    The classifier sees all maps, averaged to the grid of the coarsest and concatenated, so that it
    trains every parameter that a detector needs.

    Example:
        >>> model = timm.create_model('multiscale_cpvt_tiny', features_only=True)
        >>> model.feature_info.reduction()
        [4, 8, 16, 32]

    Args:
        in_chans, num_classes, drop_rate, proj_drop_rate, device, dtype: See :class:`TimmCPVT`.
        global_pool: ``'avg'``, ``'max'``, ``'avgmax'`` or ``''``.

    The other arguments are those of :class:`cpvt_backbones.MultiScaleCPVT`.
    """

    plain = MultiScaleCPVT

    def __init__(
        self,
        *,
        arch: str | Mapping[str, Any] = 'small',
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str = 'avg',
        source: str = 'last',
        taps: Sequence[int] | None = None,
        img_size: int | Sequence[int] = 224,
        patch_size: int = 16,
        position: Position = DENSE_POSITION,
        with_cls_token: bool = False,
        num_registers: int = 0,
        window_size: int | None = None,
        global_blocks: Sequence[int] = (),
        mask_window_padding: bool = True,
        layer_scale_init: float | None = None,
        activation: str = 'gelu',
        pre_norm: bool = False,
        final_norm: bool = True,
        qkv_bias: bool = True,
        drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        norm_eps: float = 1e-6,
        frozen_stages: int = -1,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(
            arch=arch,
            in_channels=in_chans,
            source=source,
            taps=taps,
            img_size=img_size,
            patch_size=patch_size,
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
            qkv_bias=qkv_bias,
            drop_rate=proj_drop_rate,
            attn_drop_rate=attn_drop_rate,
            drop_path_rate=drop_path_rate,
            norm_eps=norm_eps,
            frozen_stages=frozen_stages,
        )
        self.feature_info = [
            dict(num_chs=width, reduction=stride, module=f'pyramid.{level}')
            for level, (width, stride) in enumerate(
                zip(self.out_channels, self.out_strides, strict=True)
            )
        ]
        self._add_head(
            sum(self.out_channels),
            num_classes=num_classes,
            global_pool=global_pool,
            drop_rate=drop_rate,
            device=device,
            dtype=dtype,
        )

    def forward_features(self, images: Tensor) -> Tensor:
        """The maps of all levels, averaged to the grid of the coarsest, (B, sum of C, H', W')."""
        self._check_images(images)
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
        """The norm stays: the maps are made of normalised tokens."""


class TimmPyramidCPVT(TimmModel, PyramidCPVT):
    """PyramidCPVT as a timm model: keys and logits are those of timm's ``twins_*``.

    Features are maps of strides 4, 8, 16 and 32; ``forward_features`` gives the last, normalised.

    Example:
        >>> model = timm.create_model('pyramid_cpvt_small.in1k', pretrained=True)
        >>> model(torch.randn(2, 3, 160, 200)).shape
        torch.Size([2, 1000])

    Args:
        in_chans, num_classes, drop_rate, proj_drop_rate, device, dtype: See :class:`TimmCPVT`.
        global_pool: ``'avg'``, ``'max'``, ``'avgmax'`` or ``''``.

    The other arguments are those of :class:`cpvt_backbones.PyramidCPVT`.
    """

    plain = PyramidCPVT

    def __init__(
        self,
        *,
        arch: str | Mapping[str, Any] = 'small',
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str = 'avg',
        img_size: int | Sequence[int] = 224,
        position: Position = PAPER_POSITION,
        mask_window_padding: bool = True,
        norm_after_stage: bool = False,
        with_cls_token: bool = False,
        embed_norm_eps: float = 1e-5,
        final_norm: bool = True,
        qkv_bias: bool = True,
        drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        norm_eps: float = 1e-6,
        frozen_stages: int = -1,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(
            arch=arch,
            in_channels=in_chans,
            img_size=img_size,
            position=position,
            mask_window_padding=mask_window_padding,
            norm_after_stage=norm_after_stage,
            with_cls_token=with_cls_token,
            embed_norm_eps=embed_norm_eps,
            final_norm=final_norm,
            qkv_bias=qkv_bias,
            drop_rate=proj_drop_rate,
            attn_drop_rate=attn_drop_rate,
            drop_path_rate=drop_path_rate,
            norm_eps=norm_eps,
            frozen_stages=frozen_stages,
        )
        self.feature_info = [
            dict(num_chs=width, reduction=stride, module=f'blocks.{stage}')
            for stage, (width, stride) in enumerate(
                zip(self.out_channels, self.out_strides, strict=True)
            )
        ]
        self._add_head(
            self.out_channels[-1],
            num_classes=num_classes,
            global_pool=global_pool,
            drop_rate=drop_rate,
            device=device,
            dtype=dtype,
        )

    def _is_normed(self, index: int) -> bool:
        return index == self.num_freezable - 1
