"""Images larger than memory: read by windows, their class maps written by blocks.

Needs rasterio.
"""

import os
import warnings
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from .images import ImageError, ImageInput, NotDecodedError, read_image, to_8_bits
from .tiles import Block

# GDAL has other drivers, some of which open further files or addresses.
DRIVERS = {'.tif': 'GTiff', '.tiff': 'GTiff', '.jp2': 'JP2OpenJPEG'}
BLOCK_BYTES = 1 << 26  # maximum of one block of a file, which is decoded as a whole
WINDOW_PIXELS = 1 << 23  # read at a time to make a smaller image


def open_image(
    source: ImageInput, *, name: str, read_limit: int | None
) -> 'np.ndarray | ImageFile':
    """Read an image by :func:`read_image`, or open one that is too large for it.

    Raise ``ImageError``.
    """
    try:
        return read_image(source, name=name, read_limit=read_limit)
    except NotDecodedError as error:
        try:
            return ImageFile(Path(source), name)  # type: ignore[arg-type]
        except ImageError as reason:
            raise ImageError(name, f'{error.reason}; {reason.reason}') from None


class ImageFile:
    """A file of which ``image[top:bottom, left:right]`` reads a part, or ``ImageError``."""

    def __init__(self, path: Path, name: str) -> None:
        os.environ.setdefault(
            'GDAL_CACHEMAX', '256'
        )  # MB of decoded blocks; by default 5 % of the memory
        try:
            import rasterio
        except ImportError:
            raise ImageError(
                name, "reading by windows needs rasterio: pip install '.[large]'"
            ) from None
        warnings.filterwarnings('ignore', category=rasterio.errors.NotGeoreferencedWarning)
        try:
            self.file = rasterio.open(path.absolute(), driver=DRIVERS[path.suffix.lower()])
        except (KeyError, rasterio.errors.RasterioIOError):
            accepted = f'{", ".join(DRIVERS)} are read by windows'
            raise ImageError(name, f'{accepted}; this is none of them, or damaged') from None
        self.name, self.shape = name, (self.file.height, self.file.width, 3)
        dtype, kinds = (
            np.dtype(self.file.dtypes[0]),
            {self.file.photometric, self.file.colorinterp[0]},
        )
        odd = {kind.name for kind in kinds if kind} & {
            'palette',
            'white',
            'cmyk',
            'cyan',
            'cielab',
            'icclab',
            'itulab',
        }
        if dtype not in (np.uint8, np.uint16) or self.file.count > 4 or odd:
            found = (
                f'{self.file.count} bands of {dtype}{"".join(f", {kind}" for kind in sorted(odd))}'
            )
            raise ImageError(
                name, f'1 to 4 bands of uint8 or uint16 are accepted, grey or RGB, got {found}'
            )
        rows, columns = self.file.block_shapes[0]
        if rows * columns * self.file.count * dtype.itemsize > BLOCK_BYTES:
            todo = (
                'write it in tiles: gdal_translate -co TILED=YES -co COMPRESS=DEFLATE -co'
                ' BIGTIFF=IF_SAFER'
            )
            stored = (
                f'it is stored in blocks of {columns} x {rows} px, too large to read one by one'
            )
            raise ImageError(name, f'{stored}; {todo}')

    def __getitem__(self, spans: tuple[slice, slice]) -> np.ndarray:
        bands = [3, 2, 1] if self.file.count > 2 else [1, 1, 1]
        window = tuple((span.start or 0, span.stop) for span in spans)
        try:
            pixels = np.moveaxis(self.file.read(bands, window=window), 0, 2)
        except Exception as error:
            raise ImageError(self.name, f'damaged: {error}') from error
        if (
            pixels.dtype == np.uint16
        ):  # as read_image: grey is rounded, of colours Pillow takes the upper byte
            pixels = to_8_bits(pixels) if len(set(bands)) == 1 else (pixels >> 8).astype(np.uint8)
        return np.ascontiguousarray(pixels)

    @property
    def georeference(self) -> dict[str, Any]:
        """``crs`` and ``transform``, (a, b, c, d, e, f) of x = a column + b row + c and y = d
        column + e row + f.
        """
        return (
            dict(crs=self.file.crs.to_string(), transform=self.file.transform[:6])
            if self.file.crs
            else {}
        )

    def write_map(self, blocks: Iterator[Block], path: Path) -> Path:
        """Write classes of this image as a tiled TIFF with its georeference."""
        import rasterio

        path.parent.mkdir(parents=True, exist_ok=True)
        first = next(blocks)
        layout = dict(
            tiled=True, blockxsize=256, blockysize=256, compress='deflate', bigtiff='if_safer'
        )
        crs = self.file.crs or self.file.gcps[1]
        place = dict(
            crs=crs, transform=self.file.transform, gcps=self.file.gcps[0], rpcs=self.file.rpcs
        )
        size = dict(height=self.shape[0], width=self.shape[1], count=1, dtype=first[2].dtype)
        try:
            with rasterio.open(path, 'w', driver='GTiff', **layout, **size, **place) as file:
                for rows, columns, classes in chain([first], blocks):
                    if classes.size:
                        file.write(classes, 1, window=(rows, columns))
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return path


class Resized:
    """An :class:`ImageFile`, or whatever gives parts as uint8, resized to (width, height) px as by
    ``cv2.resize``.

    Parts are computed when they are read.
    """

    def __init__(self, source: Any, size: tuple[int, int]) -> None:
        self.source, self.shape = source, (size[1], size[0], 3)

    def __getitem__(self, spans: tuple[slice, slice]) -> np.ndarray:
        columns = _taps(self.source.shape[1], self.shape[1], spans[1])
        step = (
            WINDOW_PIXELS * self.shape[0] // (self.source.shape[0] * (int(np.ptp(columns[0])) + 2))
        )
        starts = range(spans[0].start or 0, spans[0].stop, max(1, step))
        return np.concatenate(
            [self._rows(slice(i, min(i + starts.step, spans[0].stop)), columns) for i in starts]
        )

    def _rows(self, rows: slice, columns: tuple[np.ndarray, ...]) -> np.ndarray:
        (near_y, far_y, by_y), (near_x, far_x, by_x) = (
            _taps(self.source.shape[0], self.shape[0], rows),
            columns,
        )
        top, left = int(near_y[0]), int(near_x[0])
        pixels = self.source[top : int(far_y[-1]) + 1, left : int(far_x[-1]) + 1]

        # The fixed point arithmetic of OpenCV: 11 bits for each weight, of which 4 are dropped
        # between the two passes.
        def along_x(pixels: np.ndarray) -> np.ndarray:
            return (
                pixels[:, near_x - left] * (2048 - by_x)[:, None]
                + pixels[:, far_x - left] * by_x[:, None]
                >> 4
            )

        near, far, by_y = (
            along_x(pixels[near_y - top]),
            along_x(pixels[far_y - top]),
            by_y[:, None, None],
        )
        return ((near * (2048 - by_y) >> 16) + (far * by_y >> 16) + 2 >> 2).astype(np.uint8)


def _taps(length: int, resized: int, span: slice) -> tuple[np.ndarray, ...]:
    """The pixel at or before each resized pixel of ``span``, the one after it, and the weight of
    this in 2048ths.
    """
    at = ((np.arange(span.start or 0, span.stop) + 0.5) * (length / resized) - 0.5).astype(
        np.float32
    )
    near = np.floor(at).astype(np.int64)
    return (
        near.clip(0),
        (near + 1).clip(0, length - 1),
        np.rint((at - near) * 2048).astype(np.int32),
    )


def read_map(path: Path, *, height: int, width: int) -> np.ndarray:
    """Read a class map, reduced to (height, width) px."""
    import rasterio

    with rasterio.open(path) as file:
        return file.read(1, out_shape=(height, width))
