"""Feature maps of the backbone of any mm config, and their display as colours."""

import os
from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
import torch
from torch import Tensor, nn

from cpvt_backbones.backbones.base import Backbone
from cpvt_backbones.checkpoints import load_checkpoint, load_weights
from cpvt_backbones.errors import InputError
from cpvt_backbones.inference import read_image
from cpvt_backbones.toolboxes import ConfigInput, resolve_config, step_name

from .complexity import build_model


class FeatureExtractor(nn.Module):
    """Feature maps of the backbone of a config, with the config's normalisation.

    Args:
        cfg: Config of a whole model, from :func:`read_config`, or the path of its file.
        checkpoint: The weights; ``None`` for random ones.

    Attributes:
        backbone (torch.nn.Module): The backbone, which outputs feature maps.
        preprocessor (torch.nn.Module): The data preprocessor of the config.

    Raises:
        FileNotFoundError: The checkpoint does not exist.
        CheckpointError: The checkpoint lacks weights of the backbone.
        ValueError: The config reads images by :class:`LoadRange`. Pictures here are RGB of 8 bits.

    Examples:
        >>> import numpy as np
        >>> from cpvt_backbones.analysis.features import (
        ...     FeatureExtractor, principal_colours
        ... )
        >>> from cpvt_backbones.weights import find_shipped
        >>> shipped = find_shipped('cpvt_tiny_gap-imagenette')
        >>> extractor = FeatureExtractor(shipped.config_file, shipped.name)
        >>> photo = np.random.randint(0, 256, (64, 96, 3), np.uint8)  # RGB
        >>> maps = extractor(extractor.normalise([photo]))
        >>> maps[-1].shape
        torch.Size([1, 192, 4, 6])
        >>> principal_colours(maps[-1][0]).shape
        torch.Size([4, 6, 3])
    """

    def __init__(self, cfg: ConfigInput, checkpoint: str | os.PathLike[str] | None = None) -> None:
        super().__init__()
        cfg = resolve_config(cfg)
        steps = cfg.get('test_dataloader', {}).get('dataset', {}).get('pipeline', ())
        if 'LoadRange' in [step_name(step) for step in steps]:
            reason = 'features are shown of RGB images of 8 bits'
            raise InputError(f'cfg reads images by LoadRange (--range, --bands); {reason}')
        model = build_model(cfg)
        self.backbone: Any = model.get_submodule('backbone')
        self.preprocessor = model.get_submodule('data_preprocessor')
        if checkpoint is not None and isinstance(self.backbone, Backbone):
            load_checkpoint(self.backbone, checkpoint)
        elif checkpoint is not None:
            load_weights(self.backbone, checkpoint, prefix='backbone.')
        if hasattr(self.backbone, 'out_type'):  # classifiers output pooled features
            self.backbone.out_type = 'featmap'
        self.eval()

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Compute maps (B, C, h, w) of normalised images (B, 3, H, W)."""
        return tuple(self.backbone(images))

    def normalise(self, pictures: Sequence[np.ndarray]) -> Tensor:
        """Normalise RGB pictures (H, W, 3), uint8, of one size to a batch (B, 3, H, W), without
        padding.
        """
        height, width = pictures[0].shape[:2]
        # The data preprocessors of the toolboxes take BGR.
        inputs = [
            torch.from_numpy(picture[:, :, ::-1].copy()).permute(2, 0, 1) for picture in pictures
        ]
        batches = [
            self.preprocessor(dict(inputs=[one], data_samples=None))['inputs'] for one in inputs
        ]
        return torch.cat([batch[:, :, :height, :width] for batch in batches])


def load_picture(
    path: str | os.PathLike[str], *, size: tuple[int, int] | None = None
) -> np.ndarray:
    """Read an image file as RGB (H, W, 3), uint8.

    Args:
        path: The file, see :func:`read_image`.
        size: (height, width) in px to resize to; ``None`` for the image's own size.
    """
    picture = read_image(path)[..., ::-1]
    return (
        picture if size is None else cv2.resize(picture, size[::-1], interpolation=cv2.INTER_AREA)
    )


def principal_colours(feature_map: Tensor, *, clip: float = 0.01) -> Tensor:
    """Show a feature map as colours: its first three principal components (PCA) as red, green and
    blue.

    Args:
        feature_map: (C, h, w), with C of at least 3.
        clip: Share of the cells that is clipped at either end of a component.

    Returns:
        (h, w, 3), each component scaled to [0, 1]; a constant component is 0.5.

    Examples:
        The first component is red. The other two are constant:

        >>> import torch
        >>> from cpvt_backbones.analysis.features import principal_colours
        >>> feature_map = torch.zeros(8, 1, 3)
        >>> feature_map[5] = torch.arange(3)  # grows from left to right
        >>> principal_colours(feature_map, clip=0)[0]
        tensor([[0.0000, 0.5000, 0.5000],
                [0.5000, 0.5000, 0.5000],
                [1.0000, 0.5000, 0.5000]])
    """
    if feature_map.dim() != 3 or feature_map.shape[0] < 3:
        raise InputError(
            f'feature_map must be (C, h, w) with C >= 3, got shape {tuple(feature_map.shape)}'
        )
    cells = feature_map.flatten(1).T.double()  # (N, C)
    cells = cells - cells.mean(dim=0)
    directions = (
        torch.linalg.eigh(cells.T @ cells).eigenvectors[:, -3:].flip(1)
    )  # largest eigenvalue first
    # The sign of an eigenvector is arbitrary: make its largest entry positive.
    largest = directions.gather(0, directions.abs().argmax(dim=0, keepdim=True))
    scores = cells @ (directions * largest.sign())
    low, high = scores.quantile(clip, dim=0), scores.quantile(1 - clip, dim=0)
    spread = high - low
    flat = spread <= 1e-9 * scores.abs().amax().clamp_min(1e-12)
    scaled = ((scores - low) / torch.where(flat, 1.0, spread)).clamp(0, 1)
    return torch.where(flat, 0.5, scaled).float().unflatten(0, tuple(feature_map.shape[1:]))


def channel_norm(feature_map: Tensor) -> Tensor:
    """Euclidean norm over the channels of a (C, h, w) map: (h, w)."""
    return feature_map.norm(dim=0)
