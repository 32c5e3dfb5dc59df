"""Finds files, reads their text, and opens every image once, like training."""

import hashlib
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from PIL import ExifTags, Image
from PIL import TiffImagePlugin as TiffTags
from rich.progress import track

from cpvt_backbones.errors import InputError
from cpvt_backbones.images import ImageError, read_image
from cpvt_backbones.images.finding import FOUND_SUFFIXES, UNREAD_SUFFIXES
from cpvt_backbones.images.raster import ValueRangeError, open_raster, size_of
from cpvt_backbones.images.reading import DECODING_BYTES, IMAGE_FORMATS, file_problem, misread
from cpvt_backbones.images.value_range import DTYPES, ValueRange
from cpvt_backbones.text import Spellings

from ..dataset import Report, Split

# Folders of training and of validation images; the first existing ones are used.
TRAIN, *_ = TRAINING = 'train', 'training'
VALIDATION = 'val', 'valid', 'validation', 'test'
# Usual names of folders, in lower case.
IMAGE_FOLDERS = ('images', 'image', 'imgs', 'img', 'jpegimages', 'photos')
MASK_FOLDERS = (
    'masks',
    'mask',
    'labels',
    'label',
    'annotation',
    'annotations',
    'segmentationclass',
    'segmentation',
    'gt',
)
# Ends of these names, such as PNGImages and PedMasks.
IMAGE_ENDS, MASK_ENDS = ('images', 'photos'), ('masks', 'labels', 'annotations')
LEFT_OUT = 'images outside the training and validation sets, such as test'
LONGEST_PATH, LONGEST_PART = 4095, 255  # bytes
RECIPE = 'recipe.py'  # in each folder that cpvt make-config writes
OTHER_SPELLING = (
    'names in another case, or with accents in another Unicode form, than those of the files: the'
    ' one file that agrees is taken'
)
Size = tuple[int, int]  # width and height, px
WORKERS = min(8, os.cpu_count() or 1)  # images that are decoded at a time
SUBFILE_TAG = 254  # of TIFF: not 0 for overviews and masks
HOT = 1e-3  # share of an image's pixels that may be sensor faults
OF_8_BITS = (0, 255)
SAMPLE = 500  # training images for mean and standard deviation


def files_in(folder: Path, report: Report, suffixes: Collection[str] | None = None) -> list[str]:
    """List images (or files with ``suffixes``) in a folder and its subfolders, following links.

    Names that begin with a dot are skipped, and so are folders written by ``cpvt make-config`` and
    unsupported images (``UNREAD_SUFFIXES``). Without images, NumPy files count as images.

    Returns:
        Their sorted paths in the folder, with slashes.
    """
    found, arrays = [], []
    for path in _walk(folder, report, ()):
        suffix = path.suffix.lower()
        if suffix in (suffixes or FOUND_SUFFIXES):
            found.append(path.relative_to(folder).as_posix())
        elif suffixes is None and suffix == '.npy':
            arrays.append(path.relative_to(folder).as_posix())
        elif suffixes is None and suffix in UNREAD_SUFFIXES:
            report.add('skipped', f'images of an unsupported format ({suffix})', str(path))
    found = found or arrays  # arrays beside images may hold other data
    if not found:
        wanted = ' or '.join(suffixes or FOUND_SUFFIXES)
        raise FileNotFoundError(f'data: no {wanted} in the folder {str(folder)!r}')
    return sorted(found)


def _walk(folder: Path, report: Report, parents: Collection[str]) -> Iterator[Path]:
    """Yield files below a folder; links to parent folders are skipped."""
    real = os.path.realpath(folder)
    if real in parents:
        report.add('skipped', 'links to a folder that contains them', str(folder))
        return
    if not folder.is_dir():
        return
    for path in sorted(folder.iterdir()):
        if path.name.startswith('.'):
            report.add('skipped', 'names that begin with a dot', str(path))
        elif is_written(path):
            report.add('skipped', 'folders that cpvt make-config wrote', str(path))
        elif path.is_dir():
            yield from _walk(path, report, (*parents, real))
        else:
            yield path


def find_split(folders: Collection[str]) -> tuple[str, str] | None:
    """Return the folders of training and of validation images among names in lower case."""
    pairs = product(TRAINING, VALIDATION)
    return next((pair for pair in pairs if {*pair} <= {*folders}), None)


def is_image_folder(name: str) -> bool:
    """``True`` for usual names of image folders, such as ``PNGImages``."""
    return name.lower() in IMAGE_FOLDERS or name.lower().endswith(IMAGE_ENDS)


def is_mask_folder(name: str) -> bool:
    """``True`` for usual names of mask folders: ``PedMasks``, VOC's ``SegmentationClassPNG``."""
    lower = name.lower()
    return lower in MASK_FOLDERS or lower.startswith('segmentation') or lower.endswith(MASK_ENDS)


def is_written(folder: Path) -> bool:
    """``True`` for a folder with a config's name, which holds converted labels and pictures."""
    return (folder / RECIPE).is_file()


class Listings:
    """Files of folders that can be found regardless of case and Unicode form."""

    def __init__(self) -> None:
        self._known: dict[Path, Spellings] = {}

    def find(self, path: Path) -> Path:
        """Return the stored spelling of a path if it is unambiguous; otherwise the path itself."""
        if path.exists() or path.parent == path:
            return path
        folder = self.find(path.parent)
        if not folder.is_dir():
            return path
        if folder not in self._known:
            self._known[folder] = Spellings(os.listdir(folder))
        found = folder / self._known[folder].find(path.name)
        return found if found.exists() else path


def path_problem(name: str) -> str:
    """Return why a name cannot be a path, such as one of megabytes, or ``''``."""
    try:
        encoded = os.fsencode(name)
    except UnicodeEncodeError:
        return 'invalid Unicode'
    if b'\0' in encoded:
        return 'has a zero byte'
    if len(encoded) > LONGEST_PATH or max(map(len, encoded.split(b'/'))) > LONGEST_PART:
        return f'{len(encoded)} bytes long'
    return ''


def read_lines(file: Path) -> list[str]:
    """Read the non-blank lines of a text file, stripped, without a byte order mark."""
    lines = [line.strip() for line in read_text(file).splitlines()]
    return [line for line in lines if line]


def read_text(file: Path) -> str:
    """Read the text of a file without byte order mark; ``InputError`` if it is not UTF-8."""
    try:
        return read_bytes(file).decode('utf-8-sig')
    except UnicodeDecodeError as error:
        raise InputError(f'data: {file} is not UTF-8 text: {error}') from None


def read_bytes(file: Path) -> bytes:
    """Read a regular file; ``InputError`` for others, such as an endless pipe."""
    if file.exists() and not file.is_file():
        raise InputError(f'data: {file} cannot be read ({file_problem(file)})')
    return file.read_bytes()


def equal_files(paths: Iterable[Path]) -> list[list[Path]]:
    """Return groups of identical files; only files of equal size are read."""
    by_size: dict[int, list[Path]] = {}
    for path in paths:
        by_size.setdefault(path.stat().st_size, []).append(path)
    found: list[list[Path]] = []
    for group in by_size.values():
        by_content: dict[bytes, list[Path]] = {}
        for path in group if len(group) > 1 else ():
            by_content.setdefault(hashlib.sha256(path.read_bytes()).digest(), []).append(path)
        found += [same for same in by_content.values() if len(same) > 1]
    return found


@dataclass(frozen=True)
class ImageFacts:
    """Facts of an image file.

    Args:
        size: Size of the upright image, as in training.
        stored: Size before the EXIF rotation.
        orientation: EXIF orientation, 1 to 8; 1 is upright.
        fault: Reason why training cannot read it.
        range: Minimum and maximum of an image of more than 8 bits.
        bright: Value that all but the share ``HOT`` of its pixels do not exceed.
        alpha: The image has transparent pixels, or a fourth band that counts as transparency.
        frames: Number of images in the file, of which the first is read.
    """

    size: Size = (0, 0)
    stored: Size = (0, 0)
    orientation: int = 1
    fault: str = ''
    range: tuple[float, float] | None = None
    bright: float = 0.0
    alpha: bool = False
    frames: int = 1


def inspect_images(
    paths: Sequence[Path], *, decode: bool = True, value_range: ValueRange | None = None
) -> dict[Path, ImageFacts]:
    """Read the facts of images in threads; with ``decode=False``, from their headers only.

    With ``value_range``, images are read like in training.
    """

    inspect = partial(inspect_image, decode=decode)
    if value_range:
        inspect = partial(inspect_range, value_range=value_range)
    with any_size(), ThreadPoolExecutor(WORKERS) as pool:
        results = track(pool.map(inspect, paths), description='images', total=len(paths))
        return dict(zip(paths, results, strict=True))


@contextmanager
def any_size() -> Iterator[None]:
    """Context in which Pillow opens images of any size, because they are the user's files."""
    limit = Image.MAX_IMAGE_PIXELS
    Image.MAX_IMAGE_PIXELS = None
    try:
        yield
    finally:
        Image.MAX_IMAGE_PIXELS = limit


def too_large(size: Size) -> str:
    """Return why an image of this width and height is not decoded, or ``''``.

    Training would need the memory, too. As many images are decoded at a time as there are
    processors.
    """
    memory = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
    needed = size[0] * size[1] * DECODING_BYTES
    if needed * WORKERS <= memory / 2:
        return ''
    return (
        f'{size[0]} x {size[1]} px take {needed / 1e9:.2g} GB of memory to decode; this machine'
        f' has {memory / 1e9:.2g} GB for {WORKERS} images at a time: cut it into parts'
    )


def inspect_image(path: Path, *, decode: bool = True) -> ImageFacts:
    """Read the facts of an image; errors of the file go to ``fault``."""
    if problem := file_problem(path):
        return ImageFacts(fault=problem)
    if path.suffix.lower() == '.npy':
        return ImageFacts(fault=_why_not_read(path))
    try:
        with path.open('rb') as file, Image.open(file, formats=IMAGE_FORMATS) as image:
            stored = image.size
            if problem := too_large(stored):
                return ImageFacts(fault=problem)
            orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
            fault = _other_bands(image) or misread(image)
            alpha = decode and not fault and _is_transparent(image)
            frames = count_frames(image) if decode else 1
    except Exception:  # Pillow raises OSError, SyntaxError, struct.error and others
        return ImageFacts(fault=_why_not_read(path))
    if fault:
        return ImageFacts(fault=fault)
    size = stored[::-1] if orientation in (5, 6, 7, 8) else stored
    facts = ImageFacts(size, stored, orientation, alpha=alpha, frames=frames)
    return _decode(path, facts) if decode else facts


def _other_bands(image: Image.Image) -> str:
    """Return how to read a TIFF whose bands or values training would not use, or ``''``."""
    if image.format != 'TIFF':
        return ''
    if image.mode in ('F', 'I'):
        return (
            f'values of another type than 8 or 16 bits (mode {image.mode}): give --range LOW HIGH'
        )
    tags: Any = image.tag_v2  # type: ignore[attr-defined]
    count = tags.get(TiffTags.SAMPLESPERPIXEL, 1)
    is_colour = image.mode in ('RGBA', 'CMYK') or count in (1, 3)
    if is_colour and 0 not in tags.get(TiffTags.EXTRASAMPLES, ()):
        return ''
    return _advice(count, f'uint{tags.get(TiffTags.BITSPERSAMPLE, (8,))[0]}')


def count_frames(image: Image.Image) -> int:
    """Count the images in an open file of Pillow.

    Overviews and masks of a TIFF do not count, nor does the preview of a photograph.
    """
    if image.format == 'MPO':
        return 1
    pages = 0
    try:
        count = getattr(image, 'n_frames', 1)
        if image.format != 'TIFF' or count == 1:
            return count
        for index in range(count):
            image.seek(index)
            pages += not image.tag_v2.get(SUBFILE_TAG, 0)  # type: ignore[attr-defined]
        image.seek(0)
    except Exception:  # a damaged file; decoding says so
        return 1
    return pages


def _is_transparent(image: Image.Image) -> bool:
    if not image.has_transparency_data:
        return False
    try:
        return image.convert('RGBA').getchannel('A').getextrema()[0] < 255  # type: ignore[operator]
    except Exception:  # a damaged file; decoding says so
        return False


def upright_size(path: Path) -> Size:
    """Return width and height from the header, also for files read by bands, else (0, 0)."""
    size = inspect_image(path, decode=False).size
    if size == (0, 0):
        with suppress(ImportError, OSError, ValueRangeError):
            return size_of(path)
    return size


def _decode(path: Path, facts: ImageFacts) -> ImageFacts:
    """Decode with OpenCV, like the toolboxes in training."""
    try:
        # Like IMREAD_COLOR in training, but with 16 bits.
        content = np.fromfile(path, np.uint8)
        pixels = cv2.imdecode(content, cv2.IMREAD_COLOR | cv2.IMREAD_ANYDEPTH)
    except (OSError, cv2.error) as error:
        return ImageFacts(fault=f'damaged: {error}')
    if pixels is None:
        return ImageFacts(fault=_why_not_read(path))
    if pixels.dtype not in (np.uint8, np.uint16):
        return ImageFacts(
            fault=f'values of type {pixels.dtype}; 8 and 16 bits are accepted, others by'
            ' --range LOW HIGH'
        )
    if pixels.shape[1::-1] != facts.size:
        shape = f'{pixels.shape[1]} x {pixels.shape[0]}'
        return ImageFacts(
            fault=f'OpenCV reads {shape} px, Pillow {facts.size[0]} x {facts.size[1]}'
        )
    if pixels.dtype == np.uint16:
        found = int(pixels.min()), int(pixels.max())
        return replace(facts, range=found, bright=float(np.quantile(pixels, 1 - HOT)))
    return facts


def inspect_range(path: Path, value_range: ValueRange) -> ImageFacts:
    """Read the facts of an image that is read by bands and range of values."""
    try:
        if problem := file_problem(path) or too_large(size_of(path)):
            return ImageFacts(fault=problem)
        with open_raster(path) as raster:
            pixels = value_range.select(raster)
        image = value_range.convert(pixels, raster.nodata, raster.masked)
    except (OSError, ValueRangeError) as error:
        return ImageFacts(fault=str(error))
    values = pixels[~raster.missing(pixels)]
    found = (float(values.min()), float(values.max())) if values.size else None
    size = image.shape[1::-1]
    return ImageFacts(size, size, range=found)


def _why_not_read(path: Path) -> str:
    """Return what is wrong with a file, or how to read it by bands and range."""
    with suppress(ImportError, OSError, ValueRangeError), open_raster(path) as raster:
        return _advice(raster.count, raster.dtype)
    try:
        read_image(path, read_limit=None)
    except ImageError as error:
        return error.reason
    return 'OpenCV, which training reads with, cannot decode it'


def _advice(count: int, dtype: str) -> str:
    """Return the options with which a file can be read."""
    is_deep, is_rgb = dtype != 'uint8', count in (1, 3)
    options = ['--range LOW HIGH'] if is_deep else []
    if not is_rgb or not is_deep:
        options.append(f'--bands with numbers from 1 to {count}')
    return f'{count} {"band" if count == 1 else "bands"} of {dtype}: give {" and ".join(options)}'


def choose_range(
    split: Split, limits: Sequence[float] | None, bands: Sequence[int] | None
) -> ValueRange:
    """Make a value range from ``--range`` and ``--bands``, for files like the first image.

    Args:
        split: The training data.
        limits: Option ``--range``; by default 0 and 255, for 8-bit images.
        bands: Option ``--bands``.

    Raises:
        InputError: An option is not accepted or missing, or the first image cannot be read.
    """
    low, high = limits or OF_8_BITS
    chosen = tuple(bands) if bands else None
    # Check the options before the file.
    ValueRange(low=low, high=high, dtype=DTYPES[0], bands=chosen)
    names = [image['file_name'] for image in split.coco['images'] if image.get('file_name')]
    if not names:
        raise InputError(f'data: {split.source} has no images')
    path = split.root / names[0]
    try:
        with open_raster(path) as raster:
            dtype = raster.dtype
    except (OSError, ValueRangeError) as error:
        raise InputError(f'data: {path}: {error}') from error
    if dtype not in DTYPES:
        raise InputError(f'data: {path} has values of {dtype}; accepted are {", ".join(DTYPES)}')
    if limits is None and dtype != 'uint8':
        raise InputError(f'--bands: {path} has values of {dtype}: give --range LOW HIGH, too')
    return ValueRange(low=low, high=high, dtype=dtype, bands=chosen)


def mean_and_std(split: Split, value_range: ValueRange) -> tuple[list[float], list[float]]:
    """Compute mean and standard deviation of each band, over at most ``SAMPLE`` images.

    The order is that of ``value_range.bands``, which must not be ``None``. Values are scaled to 0
    to 255, and pixels without data do not count.

    Raises:
        InputError: A band has only one value.
    """

    def counts(path: Path) -> np.ndarray:
        """Count the pixels of each value in each band, (bands, 256)."""
        with open_raster(path) as raster:
            values = value_range.select(raster)
            image = value_range.convert(values, raster.nodata, raster.masked)
            valid = ~raster.missing(values)
        bands = range(value_range.channels)
        levels = [image[..., band][valid[..., band]] for band in bands]
        return np.stack([np.bincount(level, minlength=256) for level in levels])

    images = split.coco['images']
    sample = images[:: -(-len(images) // SAMPLE)]
    paths = [split.root / image['file_name'] for image in sample]
    with ThreadPoolExecutor(2) as pool:
        parts = track(pool.map(counts, paths), description='mean and std', total=len(paths))
        total = np.sum([*parts], axis=0)
    if value_range.channels == 3:  # BGR
        total = total[::-1]
    levels = np.arange(256)
    share = total / np.maximum(total.sum(axis=1, keepdims=True), 1)
    mean = share @ levels
    std = np.sqrt(np.maximum(share @ levels**2 - mean**2, 0))
    for band, deviation in zip(value_range.bands or (), std, strict=True):
        if deviation < 1e-3:
            raise InputError(
                f'--bands: band {band} has one value in the training images; leave it out'
            )
    return np.round(mean, 3).tolist(), np.round(std, 3).tolist()
