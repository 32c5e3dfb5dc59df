"""Feature maps as pictures: principal components as colours, and norms."""

import torch
from torch import Tensor


def principal_colours(feature_map: Tensor, *, clip: float = 0.01) -> Tensor:
    """The first three principal components of a map as red, green and blue.

    Args:
        feature_map: (C, h, w), C >= 3.
        clip: Share of the cells at either end of each component that is cut off.

    Returns:
        (h, w, 3), each component stretched to [0, 1]; 0.5 where it is the same everywhere.
    """
    if feature_map.dim() != 3 or feature_map.shape[0] < 3:
        raise ValueError(f'feature_map must be (C, h, w) with C >= 3, got shape {tuple(feature_map.shape)}')
    cells = feature_map.flatten(1).T.double()  # (N, C)
    cells = cells - cells.mean(dim=0)
    directions = torch.linalg.eigh(cells.T @ cells).eigenvectors[:, -3:].flip(1)  # the largest first
    # A direction may as well point the other way: its largest entry shall be positive.
    largest = directions.gather(0, directions.abs().argmax(dim=0, keepdim=True))
    scores = cells @ (directions * largest.sign())
    low, high = scores.quantile(clip, dim=0), scores.quantile(1 - clip, dim=0)
    spread = high - low
    flat = spread <= 1e-9 * scores.abs().amax().clamp_min(1e-12)
    stretched = ((scores - low) / torch.where(flat, 1.0, spread)).clamp(0, 1)
    return torch.where(flat, 0.5, stretched).float().unflatten(0, tuple(feature_map.shape[1:]))


def channel_norm(feature_map: Tensor) -> Tensor:
    """Euclidean norm over the channels of a (C, h, w) map: (h, w)."""
    return feature_map.norm(dim=0)
