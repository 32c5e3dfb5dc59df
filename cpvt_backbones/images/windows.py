"""TIFF and JPEG 2000 files by rasterio: windows, georeference, missing data and class maps."""

import os
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from cpvt_backbones.plain import READ_LIMIT

from .raster import (
    ARRAY_SUFFIX,
    DRIVERS,
    ValueRangeError,
    file_mask,
    open_tiff,
    orientation_of,
    other_colours,
    size_of,
)
from .reading import (
    DECODING_BYTES,
    ImageError,
    ImageInput,
    blend_on_white,
    file_problem,
    local_path,
    read_header,
    read_image,
    to_8_bits,
)
from .value_range import ValueRange

Span = tuple[int, int]  # start and stop in px
Block = tuple[Span, Span, np.ndarray]  # rows and columns of an image, and their classes

BLOCK_BYTES = 1 << 26  # maximum size of a file's block, which is decoded as a whole


def open_image(
    source: ImageInput,
    *,
    name: str,
    read_limit: int | None = READ_LIMIT,
    value_range: ValueRange | None = None,
) -> 'np.ndarray | ImageFile':
    """Read an image by :func:`read_image`, or open it as :class:`ImageFile`; see ``by_windows``.

    Args:
        source: Image file or array.
        name: Name of the image in error messages.
        read_limit: Maximum number of pixels of a file that is decoded as a whole.
        value_range: Range and bands of the training, if any.

    Raises:
        ImageError: The image cannot be used.
    """
    if value_range is not None:
        return _open_range(source, name, read_limit, value_range)
    if isinstance(source, (str, os.PathLike)) and Path(source).suffix.lower() == ARRAY_SUFFIX:
        raise ImageError(name, 'a NumPy file is read by a model that was trained with LoadRange')
    if isinstance(source, (str, os.PathLike)) and by_windows(local_path(source), read_limit):
        return ImageFile(local_path(source), name)
    return read_image(source, name=name, read_limit=read_limit)


def _open_range(
    source: ImageInput, name: str, read_limit: int | None, value_range: ValueRange
) -> 'np.ndarray | ImageFile':
    try:
        if isinstance(source, np.ndarray):
            return value_range.read_array(source)
        path = local_path(source)
        if reason := file_problem(path):
            raise ImageError(name, reason)
        width, height = size_of(path)
        if read_limit is None or width * height <= read_limit:
            return value_range.read(path)
        if path.suffix.lower() in DRIVERS and orientation_of(path) == 1:
            return ImageFile(path, name, value_range)
        limit = f'{width * height} pixels, more than read_limit={read_limit}'
        memory = f'decoding takes {width * height * DECODING_BYTES / 1e9:.2g} GB of memory'
        raise ImageError(name, f'{width} x {height} is {limit}; {memory}')
    except (OSError, ImportError, ValueRangeError) as error:
        raise ImageError(name, str(error)) from error


def by_windows(path: Path, read_limit: int | None) -> bool:
    """``True`` for a TIFF or JPEG 2000 file that is too large to decode or that Pillow misreads.

    A file with an EXIF orientation is never read by windows, because only Pillow applies it.
    """
    if path.suffix.lower() not in DRIVERS or file_problem(path):
        return False
    header = read_header(path)
    if header is None:
        return True
    too_large = read_limit is not None and header.width * header.height > read_limit
    return (too_large or header.misread is not None) and not header.turned


def open_scene(source: ImageInput, value_range: ValueRange | None = None) -> 'Scene | None':
    """Open the file of an image that is read as a whole.

    The result is ``None`` without rasterio, for arrays, for other formats than TIFF and JPEG 2000,
    and for files with an EXIF orientation.
    """
    if not isinstance(source, (str, os.PathLike)):
        return None
    path = local_path(source)
    if path.suffix.lower() not in DRIVERS or find_spec('rasterio') is None:
        return None
    if orientation_of(path) != 1:
        return None
    try:
        return Scene(path, str(source), value_range)
    except ImageError:  # another reader may support it
        return None


class Scene:
    """A TIFF or JPEG 2000 file with its georeference, its missing data and its class map.

    Args:
        path: The file.
        name: Name of the image in error messages.
        value_range: Range and bands of the model's images.

    Raises:
        ImageError: rasterio cannot open the file.
    """

    def __init__(self, path: Path, name: str, value_range: ValueRange | None = None) -> None:
        try:
            self.file = open_tiff(path)
        except (ImportError, ValueRangeError) as error:
            raise ImageError(name, str(error)) from None
        self.name, self.value_range = name, value_range
        self.size = self.file.width, self.file.height
        if value_range is not None:
            self._bands = value_range.numbers(self.file.count)
        else:
            self._bands = [3, 2, 1] if self.file.count > 2 else [1, 1, 1]
        kinds = {kind.name for kind in self.file.mask_flag_enums[0]}
        # GDAL takes any fourth 8-bit band for alpha. If the user chose bands, there is no alpha.
        self._is_complete = 'all_valid' in kinds or ('alpha' in kinds and value_range is not None)

    def missing(self, rows: Span, columns: Span) -> np.ndarray | None:
        """Return a mask (bool) of pixels without data in all bands of the model, or ``None``.

        A pixel has no data if it is ``nodata`` or outside the mask of the file. Transparent pixels
        have no data either if the file is read without a range or bands. ``None`` means that all
        pixels have data. A damaged file raises ``ImageError``.
        """
        if self._is_complete:
            return None
        bands = sorted({band for band in self._bands if band <= self.file.count})
        try:
            return ~self.file.read_masks(bands, window=(rows, columns)).any(axis=0)
        except Exception as error:
            raise ImageError(self.name, f'damaged: {error}') from error

    @property
    def is_georeferenced(self) -> bool:
        """``True`` if the file has a coordinate system or a transform of any kind."""
        file = self.file
        is_moved = not file.transform.is_identity
        return bool(file.crs or is_moved or file.gcps[0] or file.rpcs)

    @property
    def georeference(self) -> dict[str, Any]:
        """``crs`` and ``transform`` of the file; empty without them.

        ``transform`` is (a, b, c, d, e, f) of x = a column + b row + c and y = d column + e row
        + f.
        """
        if not self.file.crs:
            return {}
        return dict(crs=self.file.crs.to_string(), transform=self.file.transform[:6])

    def write_map(self, blocks: Iterator[Block], path: Path) -> Path:
        """Write classes of this image as a tiled TIFF with its georeference.

        The largest value, 255 or 65535, is the file's ``nodata``.
        """
        import rasterio

        path.parent.mkdir(parents=True, exist_ok=True)
        first = next(blocks)
        options = dict(
            driver='GTiff',
            tiled=True,
            blockxsize=256,
            blockysize=256,
            compress='deflate',
            bigtiff='if_safer',
            height=self.size[1],
            width=self.size[0],
            count=1,
            dtype=first[2].dtype,
            nodata=no_class(first[2].dtype),
            crs=self.file.crs or self.file.gcps[1],
            transform=self.file.transform,
            gcps=self.file.gcps[0],
            rpcs=self.file.rpcs,
        )
        try:
            with rasterio.open(path, 'w', **options) as file:
                for rows, columns, classes in chain([first], blocks):
                    if classes.size:
                        file.write(classes, 1, window=(rows, columns))
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return path


def no_class(dtype: Any) -> int:
    """Return the value of pixels without data in a class map, the maximum of its type."""
    return int(np.iinfo(dtype).max)


class ImageFile(Scene):
    """A file that is read in parts by ``image[top:bottom, left:right]``; raises ``ImageError``."""

    def __init__(self, path: Path, name: str, value_range: ValueRange | None = None) -> None:
        super().__init__(path, name, value_range)
        channels = value_range.channels if value_range else 3
        self.shape = self.file.height, self.file.width, channels
        last = self.file.colorinterp[-1]
        has_alpha = self.file.count in (2, 4) and last is not None and last.name == 'alpha'
        self._has_alpha = has_alpha and value_range is None
        self._check_bands()
        self._check_blocks()

    def _check_bands(self) -> None:
        dtype, count = np.dtype(self.file.dtypes[0]), self.file.count
        odd = other_colours(self.file)
        if self.value_range is not None and not odd:
            try:
                self.value_range.check(count, dtype.name)
            except ValueRangeError as error:
                raise ImageError(self.name, str(error)) from error
            return
        if dtype not in (np.uint8, np.uint16) or count > 4 or odd:
            accepted = '1 to 4 bands of uint8 or uint16 are accepted, grey or RGB'
            found = ', '.join([f'{count} bands of {dtype}', *odd])
            raise ImageError(self.name, f'read by windows: {accepted}, got {found}')

    def _check_blocks(self) -> None:
        rows, columns = self.file.block_shapes[0]
        size = np.dtype(self.file.dtypes[0]).itemsize
        if rows * columns * self.file.count * size > BLOCK_BYTES:
            options = '-co TILED=YES -co COMPRESS=DEFLATE -co BIGTIFF=IF_SAFER'
            raise ImageError(
                self.name,
                f'it is stored in blocks of {columns} x {rows} px, too large to read one by one;'
                f' write it in tiles: gdal_translate {options}',
            )

    def __getitem__(self, spans: tuple[slice, slice]) -> np.ndarray:
        window = tuple((span.start or 0, span.stop) for span in spans)
        bands = [*self._bands, self.file.count] if self._has_alpha else self._bands
        try:
            pixels = np.moveaxis(self.file.read(bands, window=window), 0, 2)
        except Exception as error:
            raise ImageError(self.name, f'damaged: {error}') from error
        if self.value_range is not None:
            try:
                masked = file_mask(self.file, window)
                return self.value_range.convert(pixels, self.file.nodata, masked)
            except ValueRangeError as error:
                raise ImageError(self.name, str(error)) from error
        if pixels.dtype == np.uint16:
            # As in read_image: grey is rounded, and colours keep the upper byte, as in Pillow.
            grey = self._bands == [1, 1, 1]
            pixels = to_8_bits(pixels) if grey else (pixels >> 8).astype(np.uint8)
        if self._has_alpha:
            return blend_on_white(pixels[..., :3], pixels[..., 3:])
        return np.ascontiguousarray(pixels)


def read_map(path: Path, *, height: int, width: int) -> np.ndarray:
    """Read a class map, reduced to (height, width) px."""
    import rasterio

    with rasterio.open(path) as file:
        return file.read(1, out_shape=(height, width))


def resize_classes(seg_map: np.ndarray, *, height: int, width: int) -> np.ndarray:
    """Resize a map of classes or ids; each pixel takes the value with the nearest centre."""
    if seg_map.shape == (height, width):
        return seg_map
    return seg_map[nearest(seg_map.shape[0], height)][:, nearest(seg_map.shape[1], width)]


def nearest(length: int, resized: int) -> np.ndarray:
    """Return the index of the nearest centre for each of ``resized`` values on a side."""
    # In integers, because OpenCV's INTER_NEAREST_EXACT overflows above 32,767 px.
    return (2 * np.arange(resized) + 1) * length // (2 * resized)
