"""Read masks that number the objects of an image."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import track

from ..dataset import Coco, Part
from ..files import files_in, read_lines
from ..report import Fault, Report
from ..shapes import box_of_outline, rle_of
from .masks import COLOUR, GREY, IGNORE, NODATA, in_one_piece, pair_masks, read_mask

NO_OBJECT = (0, IGNORE, COLOUR, COLOUR + GREY * IGNORE)  # black and white, as index and as colour
Outlines = list[tuple[str, Any]]  # class and RLE of each object


def read_instances(
    images: Path, masks: Path, report: Report, *, classes: Path | None = None
) -> Part:
    """Objects of masks in which each object has a value or colour of its own, as COCO JSON.

    0 and 255, black and white are no objects.

    Args:
        images: Folder of images.
        masks: Folder of masks of the only class; of several classes, has a folder for each class.
        report: Gets files that are skipped or refused.
        classes: File with the name of a class a line; by default the class is called ``object``.
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
    for picture, (size, outlines) in _read_all(found, report).items():
        paths = found[picture]
        if not paths:
            if len(folders) > 1:
                report.add('refused', 'images without a mask', f'{images}/{picture}')
            continue
        mask = str(next(iter(paths.values())))
        entries.append(dict(id=len(entries) + 1, file_name=picture, mask=mask, mask_size=size))
        for name, outline in outlines:
            one: Coco = dict(category_id=names.index(name) + 1, image_id=len(entries))
            one |= dict(segmentation=outline, bbox=box_of_outline(outline))
            objects.append(dict(one, id=len(objects) + 1))
    categories = [dict(id=number, name=name) for number, name in enumerate(names, 1)]
    coco = dict(images=entries, annotations=objects, categories=categories)
    return Part(coco, images, str(masks))


def _folders(masks: Path, names: Sequence[str]) -> dict[str, Path]:
    """The folder of each class."""
    folders = {name: masks / name for name in names}
    missing = [str(folder) for folder in folders.values() if not folder.is_dir()]
    if not missing:
        return folders
    if len(names) == 1:
        return {names[0]: masks}
    raise FileNotFoundError(
        f'data: {masks} must have a folder of masks for each class, there is no {missing[0]!r}'
    )


def _read_all(
    found: Mapping[str, Mapping[str, Path]], report: Report
) -> dict[str, tuple[tuple[int, int] | None, Outlines]]:
    """Size of the masks (``None`` if they cannot be read) and objects of each image."""
    results: dict[str, tuple[tuple[int, int] | None, Outlines]] = {}
    single: list[tuple[str, bool]] = []  # masks of one object, and whether it is in one piece

    def read(masks: Mapping[str, Path]) -> Any:
        try:
            return _read_masks(masks)
        except Fault as fault:
            return fault

    with ThreadPoolExecutor() as pool:
        answers = track(pool.map(read, found.values()), description='masks', total=len(found))
        for (name, masks), answer in zip(found.items(), answers, strict=True):
            where = ', '.join(map(str, masks.values()))
            if isinstance(answer, Fault):
                report.add_fault(answer, where)
                answer = None, [], None
            size, outlines, whole = answer
            results[name] = size, outlines
            if len(outlines) == 1 and whole is not None:
                single.append((where, whole))
    if all(len(outlines) < 2 for _, outlines in results.values()):
        pieces = [where for where, whole in single if not whole]
        if len(pieces) > len(single) / 5:
            reason = 'masks of one value in several pieces: these are class maps, form masks'
            for where in pieces:
                report.add('refused', reason, where)
    return results


def _read_masks(masks: Mapping[str, Path]) -> tuple[tuple[int, int] | None, Outlines, bool | None]:
    """Size of the masks of an image, its objects, and whether the last is in one piece."""
    size = None
    outlines: Outlines = []
    whole = None
    for name, path in masks.items():
        codes, nodata, _ = read_mask(path)
        if size not in (None, codes.shape[::-1]):
            raise Fault('refused', 'masks of one image that differ in size', f'{path}')
        size = codes.shape[::-1]
        values = np.unique(codes)
        if {*values.tolist()} & {IGNORE, NO_OBJECT[3]} and len(values) <= 2:
            reason = 'masks of 0 and 255 only: these are class maps, form masks'
            raise Fault('refused', reason, f'{path}')
        no_object = [*NO_OBJECT, NODATA]
        if nodata is not None:
            no_object.append(nodata)
        for value in values[~np.isin(values, no_object)]:
            where = codes == value
            outlines.append((name, rle_of(where)))
            whole = in_one_piece(where)
    return size, outlines, whole
