"""Pairs images with masks, and reads the pixels of masks as numbers."""

import re
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
from PIL import Image, ImageOps
from rich.progress import track

from cpvt_backbones.errors import InputError
from cpvt_backbones.images.raster import DRIVERS, ValueRangeError, open_raster
from cpvt_backbones.images.reading import file_problem
from cpvt_backbones.text import Spellings, stems

from ..dataset import Fault, Report, Split
from .files import OTHER_SPELLING, Size, count_frames, files_in, read_lines, too_large

NUMBER = r'(\d{1,3})'
NAME_FIRST = re.compile(rf'(.*\S)[\s,:]+{NUMBER}[\s,]+{NUMBER}[\s,]+{NUMBER}(?::.*)?')
NUMBERED = re.compile(r'(\d+)[\s,:]+(.*\S)')
COLOUR_FIRST = re.compile(rf'{NUMBER}[\s,]+{NUMBER}[\s,]+{NUMBER}[\s,]+(.*\S)')
IGNORE = 255  # class index of pixels without class
COLOUR = 0x1000000  # added to a colour to distinguish it from a class index
GREY = 0x10101  # step between grey colours
WITHOUT_MASK = 'images without a mask (a.png or a_mask.png for a.jpg)'
INDICES = 1 << 16  # class indices are smaller
NODATA = INDICES  # code of pixels without data, whose value is not a class index
# Pillow's modes with one number per pixel.
INDEX_MODES = ('1', 'L', 'P', 'I', 'I;16', 'I;16B', 'I;16L', 'F')
COLOUR_MODES = ('RGB', 'RGBA', 'PA')
BITS_TAG, FORMAT_TAG = 258, 339  # of TIFF
NODATA_TAG = 42113  # GDAL's, a number as text


@dataclass(frozen=True)
class MaskFacts:
    """Facts of a mask file.

    Args:
        size: Width and height in px; ``None`` if it cannot be read.
        values: Number of pixels by value.
        nodata: Value that the file declares as ``nodata``, if it may be a class index.
        missing: Number of pixels without data, whose value is not a class index.
        colours: RGB colours of the indices in a file with a palette.
    """

    size: Size | None
    values: Mapping[int, int]
    nodata: int | None = None
    missing: int = 0
    colours: Sequence[tuple[int, ...]] = ()


@dataclass(frozen=True)
class ClassNames:
    """Class names in a file, with the RGB colour of each, or without colours."""

    file: Path
    names: list[str]
    colours: list[tuple[int, int, int]]


def read_classes(file: Path) -> ClassNames:
    """Read class names, one per line, with colours if each line has three numbers up to 255.

    A line is ``NAME``, ``NAME RED GREEN BLUE`` or ``RED GREEN BLUE NAME``. Separators are spaces,
    commas, or the colons of CVAT's labelmap.txt. Names may be numbered from 0. ``# `` begins a
    comment.
    """
    lines = [line for line in read_lines(file) if not line.startswith('# ')]
    names, colours = [], []
    for line in lines:
        first, last = NAME_FIRST.fullmatch(line), COLOUR_FIRST.fullmatch(line)
        if first:
            name, numbers = first[1], (first[2], first[3], first[4])
        elif last:
            name, numbers = last[4], (last[1], last[2], last[3])
        else:
            continue
        red, green, blue = (int(number) for number in numbers)
        if max(red, green, blue) <= 255:
            names.append(name.rstrip(',:'))
            colours.append((red, green, blue))
    if colours and len(colours) < len(lines):
        raise InputError(
            f'classes: {file} must have a colour in all lines or in none, got {lines[:3]}'
        )
    names = names or _unnumbered(lines)
    entries: dict[str, list[Any]] = dict(name=names, colour=colours)
    for kind, found in entries.items():
        if len({*found}) < len(found):
            twice = next(one for one in found if found.count(one) > 1)
            raise InputError(f'classes: {file} must have each {kind} once, got {twice!r} twice')
    if not names:
        raise InputError(f'classes: {file} must have one class name per line, got none')
    return ClassNames(file, names, colours)


def _unnumbered(lines: list[str]) -> list[str]:
    """Remove numbers from names, and the heading of such a table.

    Roboflow writes ``Pixel Value, Class``, ``0, background``, ``1, cat``.
    """
    for rows in (lines, lines[1:]):
        found = [match for line in rows if (match := NUMBERED.fullmatch(line))]
        if found and [match[1] for match in found] == [str(i) for i in range(len(rows))]:
            return [match[2] for match in found]
    return lines


@dataclass
class MaskedImages:
    """Images with masks whose values are not checked yet.

    Args:
        split: The images.
        masks: File of each image's mask, by the image's ``file_name``.
        facts: Size and values of each mask.
        named: Class names from a file of the user.
        palette: Masks with a palette are read by its colours.
    """

    split: Split
    masks: Mapping[str, Path]
    facts: Mapping[Path, MaskFacts]
    named: ClassNames | None = None
    palette: bool = False


def read_masks(
    images: Path, masks: Path, report: Report, *, classes: Path | None = None
) -> MaskedImages:
    """Pair images with masks of class indices or colours, and count the values.

    Args:
        images: Folder of images.
        masks: Folder of masks.
        report: Receives files that are skipped or refused.
        classes: File of names; see :func:`read_classes`.
    """
    named = read_classes(classes) if classes else None
    pairs = pair_masks(files_in(images, report), files_in(masks, report), report, str(images))
    found = {name: masks / mask for name, mask in pairs.items()}
    # Grey colours in the list of names are values.
    palette = named is not None and any(len({*colour}) > 1 for colour in named.colours)
    facts = inspect_masks([*found.values()], report, palette=palette)
    entries = []
    for number, (name, mask) in enumerate(found.items(), 1):
        entries.append(dict(id=number, file_name=name, mask=str(mask), mask_size=facts[mask].size))
    split = Split(dict(images=entries), images, str(images))
    return MaskedImages(split, found, facts, named, palette)


def pair_masks(
    images: Collection[str],
    masks: Collection[str],
    report: Report,
    folder: str,
    *,
    required: bool = True,
) -> dict[str, str]:
    """Find the mask of each image by its path.

    The mask has the path of the image, maybe followed by a separator and text (``a.jpg``,
    ``a_mask.png``). The longest image name decides (``img_1``, ``img_1_2``). The suffix of the
    image may be part of the mask's name (``a.jpg.png``). Images with several masks are refused, and
    also those without a mask if masks are ``required``.
    """
    bare = stems([*images, *masks])
    owners: dict[str, list[str]] = {}
    for image in images:
        owners.setdefault(bare[image], []).append(image)
        owners.setdefault(image, []).append(image)
    pairs = {}
    for image, found in _candidates(owners, bare, images, masks, report).items():
        exact = [mask for mask in found if bare[mask] in (image, bare[image])]
        chosen = exact or found
        where = f'{folder}/{image}'
        if len(owners[bare[image]]) > 1 and not any(bare[mask] == image for mask in exact):
            report.add('refused', 'images of one name, whose masks cannot be told apart', where)
        elif not chosen and not required:
            continue
        elif not chosen:
            report.add('refused', WITHOUT_MASK, where)
        elif len(chosen) > 1:
            report.add(
                'refused', 'images with several masks', f'{where} ({", ".join(sorted(chosen))})'
            )
        else:
            pairs[image] = chosen[0]
            for other in found:
                if other not in chosen:
                    report.add('skipped', 'masks beside one of the name of the image', other)
    return pairs


def _candidates(
    owners: Mapping[str, Sequence[str]],
    bare: Mapping[str, str],
    images: Collection[str],
    masks: Collection[str],
    report: Report,
) -> dict[str, list[str]]:
    """List the masks of each image.

    Args:
        owners: Images by name, with and without suffix.
        bare: Names without suffix, by name.
        images: Names of all images.
        masks: Names of all masks.
        report: Receives masks that are skipped, or spelt differently from their image.
    """
    candidates: dict[str, list[str]] = {image: [] for image in images}
    spellings = Spellings(owners)
    for mask in masks:
        owner = _owner(bare[mask], owners, spellings)
        if owner is None:
            report.add('skipped', 'masks without an image', mask)
            continue
        if not bare[mask].startswith(owner):
            report.add('altered', OTHER_SPELLING, f'{mask} ({owners[owner][0]})')
        for image in owners[owner]:
            candidates[image].append(mask)
    return candidates


def _owner(mask: str, owners: Collection[str], spellings: Spellings) -> str | None:
    """Return the longest image name with which a mask's name begins, up to a separator."""
    ends = [match.start() for match in re.finditer(r'[_\-. ]', mask)]
    starts = [mask, *(mask[:end] for end in reversed(ends))]
    found = next((start for start in starts if start in owners), None)
    if found is None:
        alike = map(spellings.find, starts)
        found = next((start for start in alike if start in owners), None)
    return found


def inspect_masks(
    paths: Sequence[Path], report: Report, *, palette: bool = False
) -> dict[Path, MaskFacts]:
    """Read size and values of masks in threads; see :func:`read_mask`."""

    def inspect(path: Path) -> MaskFacts | Fault:
        try:
            codes, nodata, colours = read_mask(path, palette=palette)
        except Fault as fault:
            return fault
        height, width = codes.shape
        counts = count_codes(codes)
        missing = counts.pop(NODATA, 0)
        return MaskFacts((width, height), counts, nodata, missing, colours)

    facts = {}
    with ThreadPoolExecutor() as pool:
        results = track(pool.map(inspect, paths), description='masks', total=len(paths))
        for path, found in zip(paths, results, strict=True):
            if isinstance(found, Fault):
                report.add_fault(found, str(path))
                found = MaskFacts(None, {})
            facts[path] = found
    return facts


class Mask(NamedTuple):
    """A mask as stored.

    Args:
        codes: (H, W) int32, class indices, or ``COLOUR`` plus the colour as one number.
        nodata: Index that the file declares as ``nodata``, if any.
        colours: RGB colours of the indices in a file with a palette whose indices are read.
    """

    codes: np.ndarray
    nodata: int | None
    colours: list[tuple[int, ...]]


def read_mask(path: Path, *, palette: bool = False) -> Mask:
    """Read a mask, upright.

    For a file with a palette, indices are read, or colours with ``palette``. Whole floats are
    indices. NaN, and ``nodata`` that is not an index, become ``NODATA``.

    Raises:
        Fault: The file is not a mask.
    """
    if problem := file_problem(path):
        raise Fault('refused', 'masks that cannot be read (PNG and TIFF are accepted)', problem)
    try:
        with Image.open(path) as file:
            _check_file(file)
            mask = ImageOps.exif_transpose(file)
            if mask.mode == 'LA':
                mask = mask.convert('L')
            if palette and mask.mode == 'P':
                mask = mask.convert('RGB')
            if mask.mode in INDEX_MODES:
                found = _as_codes(_values_of(mask, file), _nodata_of(file))
                return Mask(*found, _colours_of(mask))
            if mask.mode not in COLOUR_MODES:
                reason = 'masks that are neither class indices nor colours of 8 bits'
                raise Fault('refused', reason, f'mode {mask.mode}')
            red, green, blue = np.asarray(mask.convert('RGB')).astype(np.int32).transpose(2, 0, 1)
    except Fault:
        raise
    except Exception as error:  # Pillow raises OSError, SyntaxError, struct.error and others
        other = _read_other_tiff(path)
        if other is None:
            reason = 'masks that cannot be read (PNG and TIFF are accepted)'
            raise Fault('refused', reason, str(error)) from None
        return Mask(*_as_codes(*other), [])
    return Mask(COLOUR + (red << 16) + (green << 8) + blue, None, [])


def _check_file(file: Image.Image) -> None:
    """Raise ``Fault`` for an open file that is not a mask, or too large to decode."""
    if problem := too_large(file.size):
        raise Fault('refused', 'masks too large to decode', problem)
    if file.format in ('JPEG', 'MPO'):
        raise Fault('refused', 'masks as JPEG, which changes their values: use PNG')
    pages = count_frames(file)
    if pages > 1:
        raise Fault('refused', 'masks of several pages: one is accepted', f'{pages} pages')


def _colours_of(mask: Image.Image) -> list[tuple[int, ...]]:
    palette = mask.getpalette() if mask.mode == 'P' else None
    return [*zip(*[iter(palette or ())] * 3, strict=True)]


def _read_other_tiff(path: Path) -> tuple[np.ndarray, float | None] | None:
    """Read values and ``nodata`` of a TIFF that Pillow does not support, such as float64."""
    if path.suffix.lower() in DRIVERS:
        with suppress(ImportError, OSError, ValueRangeError), open_raster(path) as raster:
            if raster.count == 1:
                return raster.read([1])[..., 0], raster.nodata
    return None


def _values_of(mask: Image.Image, file: Image.Image) -> np.ndarray:
    """Read the stored numbers of a mask."""
    values = np.asarray(mask)
    tags = getattr(file, 'tag_v2', {})
    bits, is_signed = tags.get(BITS_TAG, (8,))[0], tags.get(FORMAT_TAG, (1,))[0] == 2
    if mask.mode == 'L' and bits in (2, 4):  # which Pillow scales to 0 to 255
        return values.astype(np.int32) // (255 // (2**bits - 1))
    if mask.mode == 'L' and is_signed:
        return values.view(np.int8).astype(np.int32)
    if mask.mode == 'I' and tags and bits == 32 and not is_signed:
        return values.view(np.uint32).astype(np.int64)
    return values if mask.mode == 'F' else values.astype(np.int32)


def _nodata_of(file: Image.Image) -> float | None:
    """Return the ``nodata`` value that a GeoTIFF declares."""
    text = getattr(file, 'tag_v2', {}).get(NODATA_TAG)
    try:
        return None if text is None else float(str(text).strip('\0 '))
    except ValueError:
        return None


def _is_index(value: float) -> bool:
    return 0 <= value < INDICES and value == int(value)


def _as_codes(values: np.ndarray, nodata: float | None) -> tuple[np.ndarray, int | None]:
    """Convert values to class indices, and NaN or ``nodata`` that is not an index to ``NODATA``.

    Returns:
        The indices, and ``nodata`` if it is an index.
    """
    missing = np.isnan(values)
    if nodata is not None and not _is_index(nodata):
        missing |= values == nodata
    found = values[~missing]
    if found.dtype.kind == 'f' and not (found == np.round(found)).all():
        fraction = found[found != np.round(found)][0]
        raise Fault('refused', 'masks with values that are not whole numbers', f'{fraction:g}')
    if found.size and not (found.min() >= 0 and found.max() < INDICES):
        raise Fault(
            'refused',
            f'masks with values outside 0 to {INDICES - 1}, which they do not declare as nodata',
            f'{found.min():g} to {found.max():g}',
        )
    codes = np.full(values.shape, NODATA, np.int32)
    codes[~missing] = found
    return codes, int(nodata) if nodata is not None and _is_index(nodata) else None


def count_codes(codes: np.ndarray) -> dict[int, int]:
    """Count the pixels by value."""
    if codes.max() <= NODATA:
        counts = np.bincount(codes.ravel())
        return {value: int(counts[value]) for value in np.flatnonzero(counts).tolist()}
    values, counts = np.unique(codes, return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))


def no_class_of(count: int) -> int:
    """Return the index of pixels without class in maps of ``count`` classes: 255 or 65535."""
    return IGNORE if count <= IGNORE else INDICES - 1


def translate(codes: np.ndarray, table: Mapping[int, int], no_class: int = IGNORE) -> np.ndarray:
    """Map values to classes, uint8 or uint16; values outside the table become ``no_class``."""
    kind = np.uint8 if no_class == IGNORE else np.uint16
    if codes.max() <= NODATA:
        classes = np.full(NODATA + 1, no_class, kind)
        for value, index in table.items():
            if value < INDICES:
                classes[value] = index
        return classes[codes]
    values, inverse = np.unique(codes, return_inverse=True)
    classes = np.array([table.get(value, no_class) for value in values.tolist()], kind)
    return classes[inverse].reshape(codes.shape)


def rgb_of(code: int) -> tuple[int, int, int]:
    """Return red, green and blue of a colour code."""
    return code >> 16 & 0xFF, code >> 8 & 0xFF, code & 0xFF


def in_one_piece(where: np.ndarray) -> bool:
    """``True`` if nine tenths of the pixels of a mask, bool (H, W), are connected."""
    _, _, stats, _ = cv2.connectedComponentsWithStats(where.astype(np.uint8))
    return bool(stats[1:, cv2.CC_STAT_AREA].max() >= 0.9 * where.sum())


def read_map(file: Path) -> np.ndarray:
    """Read a written class map (H, W): uint8, or uint16 for more than 255 classes."""
    classes = np.asarray(Image.open(file))
    return classes if classes.dtype == np.uint8 else classes.astype(np.uint16)
