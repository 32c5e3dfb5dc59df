"""The backbone of any mm config with trained weights, and pictures as it wants them."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.config import Config
from PIL import Image
from torch import Tensor, nn

from cpvt_backbones.backbones.base import Backbone
from cpvt_backbones.checkpoints import CheckpointError, load_checkpoint, read_checkpoint

from .complexity import build_model


class FeatureMaps(nn.Module):
    """A config's backbone, made to hand out maps, with the config's own normalisation.

    Args:
        cfg: Config of a detector, segmentor or classifier.
        checkpoint: The weights; ``None`` for random ones.

    Raises:
        FileNotFoundError, CheckpointError: The checkpoint is not there, or lacks weights of the backbone.
    """

    def __init__(self, cfg: Config, checkpoint: str | os.PathLike[str] | None = None) -> None:
        super().__init__()
        model = build_model(cfg)
        self.backbone = model.get_submodule('backbone')
        self.preprocessor = model.get_submodule('data_preprocessor')
        if checkpoint is not None:
            _load_backbone(self.backbone, checkpoint)
        if getattr(self.backbone, 'out_type', 'featmap') != 'featmap':  # what classifiers pool
            backbone: Any = self.backbone
            backbone.out_type = 'featmap'
        self.eval()

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Normalised images (B, 3, H, W) to maps (B, C, h, w)."""
        return tuple(self.backbone(images))

    def normalise(self, pictures: Sequence[np.ndarray]) -> Tensor:
        """RGB pictures (H, W, 3), uint8, of one size, to a batch (B, 3, H, W), without the config's padding."""
        height, width = pictures[0].shape[:2]
        # The toolboxes load pictures as BGR.
        inputs = [torch.from_numpy(picture[:, :, ::-1].copy()).permute(2, 0, 1) for picture in pictures]
        batches = [self.preprocessor(dict(inputs=[one], data_samples=None))['inputs'] for one in inputs]
        return torch.cat([batch[:, :, :height, :width] for batch in batches])


def _load_backbone(backbone: nn.Module, checkpoint: str | os.PathLike[str]) -> None:
    if isinstance(backbone, Backbone):
        load_checkpoint(backbone, checkpoint)
        return
    content = read_checkpoint(checkpoint)
    weights = {name.removeprefix('module.'): value for name, value in content.get('state_dict', content).items()}
    own = {name.removeprefix('backbone.'): value for name, value in weights.items() if name.startswith('backbone.')}
    missing = backbone.load_state_dict(own, strict=False).missing_keys
    if missing:
        raise CheckpointError(
            f'checkpoint {str(checkpoint)!r} lacks {len(missing)} weights of the backbone: {", ".join(missing[:5])}'
        )


def load_picture(path: str | os.PathLike[str], *, size: tuple[int, int] | None = None) -> np.ndarray:
    """A picture as RGB (H, W, 3), uint8.

    Args:
        path: Image file.
        size: (width, height) in px to resize to; ``None`` for its own.

    Raises:
        FileNotFoundError: No such file.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f'images: there is no file {str(path)!r}')
    picture = Image.open(path).convert('RGB')
    return np.asarray(picture if size is None else picture.resize(size, Image.Resampling.BICUBIC))
