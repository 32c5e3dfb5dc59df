"""Images in memory: chosen by a fixed rule, decoded once, resized in batches."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor
from torchvision.datasets.folder import IMG_EXTENSIONS


def evenly(files: Sequence[Path], count: int) -> list[Path]:
    """``count`` files at even distances in the given order; ``ValueError`` if there are fewer."""
    if len(files) < count:
        raise ValueError(f'images: {count} are needed, got {len(files)}')
    return [files[index * len(files) // count] for index in range(count)]


def files_in(folder: Path) -> list[Path]:
    """Image files at any depth, sorted by path; ``ValueError`` if there are none."""
    found = sorted(file for file in folder.rglob('*') if file.suffix.lower() in IMG_EXTENSIONS)
    if not found:
        raise ValueError(f'images: there are none in {str(folder)!r}')
    return found


def choose_by_class(folder: Path, count: int) -> list[tuple[Path, int]]:
    """``count`` images, and their classes, of each class folder in ``folder``, at even distances in
    sorted order.
    """
    classes = sorted(path for path in folder.iterdir() if path.is_dir())
    return [
        (file, label)
        for label, path in enumerate(classes)
        for file in evenly(files_in(path), count)
    ]


def both(size: int | tuple[int, int]) -> tuple[int, int]:
    """Height and width, of a side or of both."""
    return (size, size) if isinstance(size, int) else size


def decode(files: Sequence[Path], size: int | tuple[int, int]) -> Tensor:
    """Images as uint8 (N, 3, H, W), resized bicubically where they have another size.

    An integer is H and W.
    """
    height, width = both(size)
    pixels = torch.empty(len(files), 3, height, width, dtype=torch.uint8)
    for index, file in enumerate(files):
        with Image.open(file) as opened:
            image = opened.convert('RGB')
        if image.size != (width, height):
            image = image.resize((width, height), Image.Resampling.BICUBIC)
        pixels[index] = torch.from_numpy(np.array(image)).permute(2, 0, 1)
    return pixels


def prepare(
    pixels: Tensor, size: int | tuple[int, int], mean: Sequence[float], std: Sequence[float]
) -> Tensor:
    """uint8 images of any size to normalised (B, 3, H, W), resized bicubically with a low-pass
    filter.

    Args:
        pixels: The images.
        size: Height and width of the result, or the side of a square, px.
        mean, std: Of the three channels, of values from 0 to 1.
    """
    images = pixels.float()
    if both(size) != tuple(pixels.shape[-2:]):
        images = F.interpolate(images, size=both(size), mode='bicubic', antialias=True).clamp(
            0, 255
        )
    return (images / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
