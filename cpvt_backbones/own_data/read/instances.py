"""Reads masks that number the objects of an image."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import track

from ..dataset import Coco, Fault, Report, Split, box_of_outline, rle_of
from .files import files_in, read_lines
from .masks import COLOUR, GREY, IGNORE, NODATA, WITHOUT_MASK, in_one_piece, pair_masks, read_mask

NO_OBJECT = (0, COLOUR)  # black, as index and as colour
# Index and colour of borders between objects, and of unlabelled pixels.
BORDERS = (IGNORE, COLOUR + GREY * IGNORE)
Outlines = list[tuple[str, Any]]  # class and RLE of each object


@dataclass
class InstanceMasks:
    """Objects in the masks of an image.

    Args:
        size: Width and height of its masks in px; ``None`` if they cannot be read.
        outlines: The objects.
        borders: Number of pixels of 255 or white, which may be objects.
        whole: ``True`` if the last object is in one piece; ``None`` without objects.
        binary: A mask with only 0 and 255, if any.
        deep: A mask has values above 255.
    """

    size: tuple[int, int] | None = None
    outlines: Outlines = field(default_factory=list)
    borders: Outlines = field(default_factory=list)
    whole: bool | None = None
    binary: Path | None = None
    deep: bool = False


def read_instances(
    images: Path, masks: Path, report: Report, *, classes: Path | None = None
) -> Split:
    """Read objects, each with its own value or colour in a mask, as COCO JSON.

    0 and black are not objects. Neither are 255 and white, which is reported; but 255 is an object
    if a mask of the data has larger values.

    Args:
        images: Folder of images.
        masks: Folder of masks of a single class, or a folder with one subfolder per class.
        report: Receives files that are skipped or refused.
        classes: File with one class name per line; by default, the class is called ``object``.
    """
    names = read_lines(classes) if classes else ['object']
    folders = _folders(masks, names)
    pictures = files_in(images, report)
    found: dict[str, dict[str, Path]] = {name: {} for name in pictures}
    for name, folder in folders.items():
        pairs = pair_masks(
            pictures, files_in(folder, report), report, str(images), required=len(folders) == 1
        )
        for picture, mask in pairs.items():
            found[picture][name] = folder / mask
    entries: list[Coco] = []
    objects: list[Coco] = []
    for picture, numbered in _read_all(found, report).items():
        paths = found[picture]
        if not paths:
            if len(folders) > 1:
                report.add('refused', WITHOUT_MASK, f'{images}/{picture}')
            continue
        mask = str(next(iter(paths.values())))
        entries.append(
            dict(id=len(entries) + 1, file_name=picture, mask=mask, mask_size=numbered.size)
        )
        for name, outline in numbered.outlines:
            one: Coco = dict(category_id=names.index(name) + 1, image_id=len(entries))
            one |= dict(segmentation=outline, bbox=box_of_outline(outline))
            objects.append(dict(one, id=len(objects) + 1))
    categories = [dict(id=number, name=name) for number, name in enumerate(names, 1)]
    coco = dict(images=entries, annotations=objects, categories=categories)
    return Split(coco, images, str(masks))


def _folders(masks: Path, names: Sequence[str]) -> dict[str, Path]:
    """Return the folder of each class."""
    folders = {name: masks / name for name in names}
    missing = [str(folder) for folder in folders.values() if not folder.is_dir()]
    if not missing:
        return folders
    if len(names) == 1:
        return {names[0]: masks}
    raise FileNotFoundError(
        f'data: {masks} must have a folder of masks for each class, there is no {missing[0]!r}'
    )


def _read_all(found: Mapping[str, Mapping[str, Path]], report: Report) -> dict[str, InstanceMasks]:
    """Read the objects of each image; 255 is an object if masks have larger values."""
    results: dict[str, InstanceMasks] = {}

    def read(masks: Mapping[str, Path]) -> InstanceMasks | Fault:
        try:
            return _read_masks(masks)
        except Fault as fault:
            return fault

    with ThreadPoolExecutor() as pool:
        answers = track(pool.map(read, found.values()), description='masks', total=len(found))
        for (name, masks), answer in zip(found.items(), answers, strict=True):
            if isinstance(answer, Fault):
                report.add_fault(answer, ', '.join(map(str, masks.values())))
                answer = InstanceMasks()
            results[name] = answer
    deep = any(one.deep for one in results.values())
    for name, one in results.items():
        where = ', '.join(map(str, found[name].values()))
        if deep:
            one.outlines += one.borders
        elif one.binary:
            reason = 'masks of 0 and 255 only: these are class maps: use the format masks'
            report.add('refused', reason, str(one.binary))
        elif one.borders:
            reason = (
                'masks with pixels of 255 or white, which are borders, not objects: number'
                ' objects otherwise'
            )
            report.add('note', reason, where)
    _refuse_class_maps(results, found, report)
    return results


def _refuse_class_maps(
    results: Mapping[str, InstanceMasks], found: Mapping[str, Mapping[str, Path]], report: Report
) -> None:
    """Refuse masks with one value in several pieces if no image has two objects."""
    if any(len(one.outlines) > 1 for one in results.values()):
        return
    single = {name: one for name, one in results.items() if one.outlines and one.whole is not None}
    pieces = [name for name, one in single.items() if not one.whole]
    if len(pieces) > len(single) / 5:
        reason = 'masks of one value in several pieces: these are class maps: use the format masks'
        for name in pieces:
            report.add('refused', reason, ', '.join(map(str, found[name].values())))


def _read_masks(masks: Mapping[str, Path]) -> InstanceMasks:
    """Read the objects in the masks of an image."""
    found = InstanceMasks()
    for name, path in masks.items():
        codes, nodata, _ = read_mask(path)
        if found.size not in (None, codes.shape[::-1]):
            raise Fault('refused', 'masks of one image that differ in size', f'{path}')
        height, width = codes.shape
        found.size = width, height
        values = np.unique(codes)
        if {*values.tolist()} & {*BORDERS} and len(values) <= 2:
            found.binary = path
        indices = values[(values < NODATA) & (values != nodata)]
        found.deep |= bool((indices > IGNORE).any())
        no_object = [*NO_OBJECT, NODATA]
        if nodata is not None:
            no_object.append(nodata)
        for value in values[~np.isin(values, no_object)].tolist():
            where = codes == value
            if value in BORDERS:
                found.borders.append((name, rle_of(where)))
                continue
            found.outlines.append((name, rle_of(where)))
            found.whole = in_one_piece(where)
    return found
