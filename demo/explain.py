"""What a backbone sees of an image: its features as colours, and where it attends to."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from mmengine.config import Config
from mmengine.structures import BaseDataElement
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from cpvt_backbones.analysis.complexity import build_model, explicit_attention
from cpvt_backbones.backbones.base import Backbone
from cpvt_backbones.checkpoints import load_checkpoint, load_weights
from cpvt_backbones.errors import InputError
from cpvt_backbones.layers import Attention, SpatialReductionAttention
from cpvt_backbones.toolboxes import step_name

# `_safe_softmax` is there from torch 2.5 on.
_SOFTMAX = tuple(
    getattr(torch.ops.aten, name)
    for name in ('_softmax', '_safe_softmax')
    if hasattr(torch.ops.aten, name)
)


class FeatureExtractor(nn.Module):
    """Feature maps of the backbone of a config, with the config's normalisation.

    Args:
        cfg: Config of a whole model.
        checkpoint: File or name of its weights.

    Raises:
        CheckpointError: The checkpoint lacks weights of the backbone.
        InputError: The config reads images by ``LoadRange``. The page shows RGB of 8 bits.
    """

    def __init__(self, cfg: Config, checkpoint: str) -> None:
        super().__init__()
        steps = cfg.get('test_dataloader', {}).get('dataset', {}).get('pipeline', ())
        if 'LoadRange' in [step_name(step) for step in steps]:
            reason = 'features are shown of RGB images of 8 bits'
            raise InputError(f'cfg reads images by LoadRange (--range, --bands); {reason}')
        model = build_model(cfg)
        self.backbone: Any = model.get_submodule('backbone')
        self.preprocessor = model.get_submodule('data_preprocessor')
        if isinstance(self.backbone, Backbone):
            load_checkpoint(self.backbone, checkpoint)
        else:
            load_weights(self.backbone, checkpoint, prefix='backbone.')
        if hasattr(self.backbone, 'out_type'):  # classifiers output pooled features
            self.backbone.out_type = 'featmap'
        self.eval()

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Maps (B, C, h, w) of normalised images (B, 3, H, W)."""
        return tuple(self.backbone(images))

    def normalise(self, picture: np.ndarray) -> Tensor:
        """An RGB picture (H, W, 3), uint8, as a batch (1, 3, H, W), without padding."""
        height, width = picture.shape[:2]
        # The data preprocessors of the toolboxes take BGR.
        pixels = torch.from_numpy(picture[:, :, ::-1].copy()).permute(2, 0, 1)
        # mmseg's class with a ``test_cfg`` needs a sample to write the padding to.
        data = dict(inputs=[pixels], data_samples=[BaseDataElement()])
        batch = self.preprocessor(data)['inputs']
        return batch[:, :, :height, :width]


def principal_colours(feature_map: Tensor, *, clip: float = 0.01) -> Tensor:
    """The first three principal components (PCA) of a feature map as red, green and blue.

    Args:
        feature_map: (C, h, w), with C of at least 3.
        clip: Share of the cells that is clipped at either end of a component.

    Returns:
        (h, w, 3), each component scaled to [0, 1]; a constant component is 0.5.
    """
    cells = feature_map.flatten(1).T.double()  # (N, C)
    cells = cells - cells.mean(dim=0)
    # Eigenvalues ascend: the largest comes first.
    directions = torch.linalg.eigh(cells.T @ cells).eigenvectors[:, -3:].flip(1)
    # The sign of an eigenvector is arbitrary: make its largest entry positive.
    largest = directions.gather(0, directions.abs().argmax(dim=0, keepdim=True))
    scores = cells @ (directions * largest.sign())
    low, high = scores.quantile(clip, dim=0), scores.quantile(1 - clip, dim=0)
    spread = high - low
    flat = spread <= 1e-9 * scores.abs().amax().clamp_min(1e-12)
    scaled = ((scores - low) / torch.where(flat, 1.0, spread)).clamp(0, 1)
    return torch.where(flat, 0.5, scaled).float().unflatten(0, tuple(feature_map.shape[1:]))


def attention_layers(model: nn.Module) -> dict[str, Attention | SpatialReductionAttention]:
    """Attention layers of this package, by name."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, (Attention, SpatialReductionAttention))
    }


@torch.no_grad()
def attention_map(model: nn.Module, images: Tensor, layer: str, *, x: int, y: int) -> Tensor:
    """Weights with which the cell of a pixel attends to all cells in a layer, mean of the heads.

    Args:
        model: In evaluation mode.
        images: (1, 3, H, W), normalised.
        layer: Of :func:`attention_layers`.
        x: Column of the pixel.
        y: Row of the pixel.

    Returns:
        (h, w), without the weights of class and register tokens; its sum is at most 1.

    Raises:
        InputError: The layer computes its attention in windows or parts.
    """
    module = attention_layers(model)[layer]
    with _recording(module) as record:
        model(images)
    rows, columns = record.grid
    count = record.num_prefix + rows * columns
    weights = record.weights[0]
    if len(record.weights) != 1 or weights.shape[0] != 1 or weights.shape[2] != count:
        raise InputError(f'layer must attend over the whole image at once, got {layer!r}')
    height, width = images.shape[2:]
    cell = _side_of_cells(height, width, record.grid)
    query = record.num_prefix + (y // cell) * columns + x // cell
    ratio = getattr(module, 'sr_ratio', 1)
    keys = weights[0, :, query, record.num_prefix :].mean(0)
    return keys.unflatten(0, (-(-rows // ratio), -(-columns // ratio)))


def _side_of_cells(height: int, width: int, grid: tuple[int, int]) -> int:
    """Side in px of the square cells of a grid; the last row and column may cover less.

    If several sides give the grid, it is the one divisible by the largest power of two.
    """
    sides = range(1, max(height, width) + 1)
    fitting = [side for side in sides if (-(-height // side), -(-width // side)) == grid]
    if not fitting:
        raise InputError(f'layer must have square cells, got {grid} of {height} x {width} px')
    return max(fitting, key=lambda side: side & -side)


class _Record(TorchDispatchMode):
    """Softmax outputs and the arguments of a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.weights: list[Tensor] = []
        self.grid = (0, 0)
        self.num_prefix = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket in _SOFTMAX:
            self.weights.append(result)
        return result


@contextmanager
def _recording(module: nn.Module) -> Iterator[_Record]:
    """Context in which a layer computes its attention unfused, and its weights are recorded."""
    record = _Record()
    forward = module.forward

    def recorded(tokens: Tensor, grid: tuple[int, int], *args: Any, **kwargs: Any) -> Any:
        record.grid, record.num_prefix = grid, kwargs.get('num_prefix', 0)
        with explicit_attention(), record:
            return forward(tokens, grid, *args, **kwargs)

    module.forward = recorded
    try:
        yield record
    finally:
        del module.forward
