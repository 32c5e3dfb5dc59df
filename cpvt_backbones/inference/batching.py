"""Batches of images of one size, so that none is padded."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

# Decoded images that wait for others of their size: at most this many pixels, 200 MB.
_WAITING_PIXELS = 1 << 26


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What one forward may take.

    Args:
        batch_size: Most images, or tiles, of one forward.
        max_pixels: Most pixels of one forward, all images together; a larger image is tiled.
        tile_size: Side of a tile in px.
        overlap: px that neighbouring tiles share at least.

    Raises:
        ValueError: A bound is not accepted, or they contradict each other.
    """

    batch_size: int
    max_pixels: int
    tile_size: int
    overlap: int

    def __post_init__(self) -> None:
        for name in ('batch_size', 'max_pixels', 'tile_size'):
            if getattr(self, name) < 1:
                raise ValueError(f'{name} must be at least 1, got {getattr(self, name)}')
        if not 0 <= self.overlap < self.tile_size:
            raise ValueError(f'overlap must be at least 0 and below tile_size={self.tile_size}, got {self.overlap}')
        if self.tile_size**2 > self.max_pixels:
            raise ValueError(
                f'tile_size: a tile of {self.tile_size} x {self.tile_size} has more than max_pixels={self.max_pixels}'
            )

    def images_of(self, pixels: int) -> int:
        """How many images of ``pixels`` one forward may take; one at least."""
        return max(1, min(self.batch_size, self.max_pixels // pixels))


@dataclass(frozen=True)
class Loaded:
    """An image on its way to the model.

    Args:
        index: Its place among the inputs.
        name: What it is called.
        size: Width and height in px, as it was read.
        image: (h, w, 3), as the model sees it.
        preview: What a picture is drawn on, if one is wanted.
    """

    index: int
    name: str
    size: tuple[int, int]
    image: np.ndarray
    preview: np.ndarray | None

    @property
    def pixels(self) -> int:
        """Pixels that the model sees."""
        return self.image.shape[0] * self.image.shape[1]


class SizeGroups:
    """Images that wait until a batch of their size is full.

    Args:
        bounds: How large a batch may be.
    """

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._waiting: dict[tuple[int, ...], list[Loaded]] = {}
        self._pixels = 0

    def add(self, loaded: Loaded) -> list[Loaded]:
        """Let an image wait.

        Returns:
            list[Loaded]: A batch that is full, or that has waited longest when too much is waiting; empty otherwise.
        """
        size = loaded.image.shape[:2]
        self._waiting.setdefault(size, []).append(loaded)
        self._pixels += loaded.pixels
        if len(self._waiting[size]) < self._bounds.images_of(loaded.pixels):
            if self._pixels <= _WAITING_PIXELS:
                return []
            size = next(iter(self._waiting))
        batch = self._waiting.pop(size)
        self._pixels -= sum(other.pixels for other in batch)
        return batch

    def rest(self) -> Iterator[list[Loaded]]:
        """What still waits, in batches."""
        yield from self._waiting.values()
        self._waiting.clear()
