"""Batches of images of one size, so that none is padded."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cpvt_backbones.layers.checks import check_int

# Decoded images, and what pictures are drawn on, that wait for others of their size: at most so many bytes.
_WAITING_BYTES = 200_000_000


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
            check_int(name, getattr(self, name))
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
        stamp: Of its file, from before it was read.
    """

    index: int
    name: str
    size: tuple[int, int]
    image: np.ndarray
    preview: np.ndarray | None
    stamp: list[int] | None = None

    @property
    def memory(self) -> int:
        """Bytes that it holds."""
        return self.image.nbytes + (0 if self.preview is None else self.preview.nbytes)

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
        self._bytes = 0

    def add(self, loaded: Loaded) -> Iterator[list[Loaded]]:
        """Let an image wait.

        Yields:
            list[Loaded]: A batch that is full; those that have waited longest, while too much is waiting.
        """
        size = loaded.image.shape[:2]
        self._waiting.setdefault(size, []).append(loaded)
        self._bytes += loaded.memory
        if len(self._waiting[size]) >= self._bounds.images_of(loaded.pixels):
            yield self._take(size)
        while self._bytes > _WAITING_BYTES:
            yield self._take(next(iter(self._waiting)))

    def rest(self) -> Iterator[list[Loaded]]:
        """What still waits, in batches."""
        while self._waiting:
            yield self._take(next(iter(self._waiting)))

    def _take(self, size: tuple[int, ...]) -> list[Loaded]:
        batch = self._waiting.pop(size)
        self._bytes -= sum(loaded.memory for loaded in batch)
        return batch
