"""EoMT (arXiv 2503.19108): masks and classes of queries that run through a trunk's last blocks."""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cpvt_backbones.backbones import Queries
from cpvt_backbones.backbones.queries import Prediction
from cpvt_backbones.checks import check_bool, check_int
from cpvt_backbones.errors import InputError
from cpvt_backbones.layers.tokens import Grid, crop, is_recording, map_to_tokens

OUTSIDE = -20.0
"""Mask logit outside an image of a padded batch: no mask is there, and no loss."""


def upscale_steps(patch_size: int) -> int:
    """Return the number of doublings from the patch stride to about 4 px, at least 1.

    Examples:
        >>> from cpvt_backbones.heads.eomt import upscale_steps
        >>> [upscale_steps(patch_size) for patch_size in (8, 14, 16, 32)]
        [1, 1, 2, 3]
    """
    return max(1, int(math.log2(patch_size)) - 2)


def resize_masks(masks: Tensor, size: Sequence[int]) -> Tensor:
    """Resize mask logits (Q, h, w) bilinearly to (Q, *size); Q may be 0."""
    if not len(masks):  # which torch refuses
        return masks.new_zeros(0, *size)
    return F.interpolate(masks[None], tuple(size), mode='bilinear')[0]


class Upscale(nn.Module):
    """Twice the height and width of a map: transposed convolution, GELU, depthwise convolution of
    3 x 3, LayerNorm over the channels. The channels stay.

    Args:
        dim: Channels of the map.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.conv1 = nn.ConvTranspose2d(dim, dim, 2, stride=2)
        self.conv2 = nn.Conv2d(dim, dim, 3, padding=1, groups=dim, bias=False)
        self.norm = nn.LayerNorm(dim, eps=1e-6)

    def forward(self, feature_map: Tensor) -> Tensor:
        """Upscale a map (B, C, H, W) to (B, C, 2 H, 2 W)."""
        x = self.conv2(F.gelu(self.conv1(feature_map)))
        return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class MaskLayers(nn.Module):
    """Queries of EoMT, and the layers that make masks and classes of them.

    A head of a toolbox inherits it and calls :meth:`add_mask_layers`. Keys of the state dict are
    those of the authors.
    """

    num_queries: int
    num_blocks: int
    stride: int
    attn_mask_probs: Tensor
    class_order: Tensor | None

    def add_mask_layers(
        self,
        *,
        embed_dims: int,
        num_classes: int,
        num_queries: int,
        num_blocks: int,
        patch_size: int,
        num_upscale: int | None,
        masked_attention: bool,
        class_order: Sequence[int] | None,
    ) -> None:
        """Add queries and layers.

        Args:
            embed_dims: Width C of the trunk.
            num_classes: Number of classes K. One more row of the class layer is "no object".
            num_queries: Number of queries Q.
            num_blocks: Number of the trunk's last blocks that the queries run through.
            patch_size: Side of a patch of the trunk, in px.
            num_upscale: Number of steps that each halve the stride of the masks, from that of the
                patches. ``None`` takes :func:`upscale_steps`: stride 4 for patches of 16 px.
            masked_attention: Begin a training with masked attention, see :meth:`limit`.
            class_order: Row of the class layer for each class, where the weights have the classes
                in another order.

        Raises:
            ValueError: An argument is wrong.
        """
        steps = upscale_steps(patch_size) if num_upscale is None else num_upscale
        check_int(embed_dims=embed_dims, num_classes=num_classes, num_queries=num_queries)
        check_int(num_blocks=num_blocks, patch_size=patch_size)
        check_int(minimum=0, num_upscale=steps)
        check_bool(masked_attention=masked_attention)
        if patch_size % 2**steps:
            raise InputError(
                f'num_upscale must be None or halve patch_size={patch_size} to an integer, got'
                f' {num_upscale!r}'
            )
        self.num_queries, self.num_blocks = num_queries, num_blocks
        self.stride = patch_size // 2**steps
        self.register_buffer('attn_mask_probs', torch.full((num_blocks,), float(masked_attention)))
        self.register_buffer('class_order', _order(class_order, num_classes), persistent=False)
        self.q = nn.Embedding(num_queries, embed_dims)
        self.class_head = nn.Linear(embed_dims, num_classes + 1)
        self.mask_head = nn.Sequential(
            nn.Linear(embed_dims, embed_dims),
            nn.GELU(),
            nn.Linear(embed_dims, embed_dims),
            nn.GELU(),
            nn.Linear(embed_dims, embed_dims),
        )
        self.upscale = nn.Sequential(*(Upscale(embed_dims) for _ in range(steps)))

    def run(self, backbone: nn.Module, images: Tensor) -> list[Prediction]:
        """Compute mask logits (B, Q, ceil(H / stride), ceil(W / stride)) and class logits.

        In training, there is a prediction before each of the last blocks, too. The last is the
        result.
        """
        limit = self.limit if self.training or self.masks_in_prediction() else None
        queries = Queries(
            tokens=self.q.weight,
            num_blocks=self.num_blocks,
            predict=self.predict_masks,
            stride=self.stride,
            limit=limit,
            padding_value=OUTSIDE,
        )
        return list(backbone(images, queries=queries))

    def predict_masks(self, queries: Tensor, features: Tensor) -> Prediction:
        """Compute mask logits (B, Q, h, w) and class logits (B, Q, K + 1).

        Args:
            queries: (B, Q, C).
            features: (B, C, H, W), of the stride of the patches.
        """
        classes = self.class_head(queries)
        if self.class_order is not None:
            classes = classes.index_select(2, self.class_order)
        features = self.upscale(features)
        pixels = map_to_tokens(features).transpose(1, 2)  # (B, C, h * w)
        masks = (self.mask_head(queries) @ pixels).unflatten(2, features.shape[2:])
        return masks, classes

    def limit(self, k: int, masks: Tensor, grid: Grid) -> Tensor | None:
        """Return the patches that each query may attend to in block k: (B, Q, H * W).

        These are the patches of its mask. The buffer ``attn_mask_probs`` has the probability, for
        each block, that a query is limited. :class:`MaskAnnealingHook` lowers it from 1 to 0. In
        prediction nothing is random: all queries are limited if it is above one half.
        """
        probability = float(self.attn_mask_probs[k])
        if probability == 0 or (not self.training and probability <= 0.5):
            return None
        inside = F.interpolate(masks.detach(), grid, mode='bilinear').flatten(2) > 0
        if self.training and probability < 1:
            free = torch.rand(inside.shape[:2], device=inside.device) > probability
            inside = inside | free[..., None]
        return inside

    def masks_in_prediction(self) -> bool:
        """Whether attention is masked outside training: before the annealing ends."""
        if is_recording() or self.attn_mask_probs.is_meta:  # a graph has no masks
            return False
        return bool((self.attn_mask_probs > 0.5).any())

    def upsample(self, masks: Tensor) -> Tensor:
        """Upsample mask logits (Q, h, w) to the pixels: (Q, h * stride, w * stride)."""
        height, width = masks.shape[1:]
        return resize_masks(masks, (height * self.stride, width * self.stride))

    def class_map(self, masks: Tensor, classes: Tensor, size: Sequence[int]) -> Tensor:
        """Scores of the classes in each pixel (B, K, H, W): the sum over the queries of the
        products of the probabilities of class and mask.

        Args:
            masks: Mask logits (B, Q, h, w).
            classes: Class logits (B, Q, K + 1).
            size: (H, W) in pixels.
        """
        probabilities = classes.softmax(2)[..., :-1].transpose(1, 2)  # (B, K, Q)
        if is_recording():  # a graph takes every number of images
            return self._class_maps(masks, probabilities, size)
        # Image by image: the masks are large at the resolution of the pixels.
        pairs = zip(masks.split(1), probabilities.split(1), strict=True)
        return torch.cat([self._class_maps(*pair, size) for pair in pairs])

    def _class_maps(self, masks: Tensor, probabilities: Tensor, size: Sequence[int]) -> Tensor:
        height, width = (side * self.stride for side in masks.shape[2:])
        pixels = F.interpolate(masks, (height, width), mode='bilinear')
        pixels = crop(pixels, (2, 3), (size[0], size[1])).sigmoid()
        return (probabilities @ pixels.flatten(2)).unflatten(2, (size[0], size[1]))


def _order(class_order: Any, num_classes: int) -> Tensor | None:
    """Rows of the class layer for the classes and "no object", or ``None``."""
    if class_order is None:
        return None
    if sorted(class_order) != list(range(num_classes)):
        raise InputError(
            f'class_order must have each of 0 to {num_classes - 1} once, got {class_order!r}'
        )
    return torch.tensor([*class_order, num_classes])
