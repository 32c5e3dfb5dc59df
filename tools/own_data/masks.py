"""Pair images with masks, read masks, and write class maps."""

import re
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image
from rich.progress import track

from .class_names import read_classes
from .coco import Part
from .files import files_in, stem
from .mask_classes import find_classes
from .mask_codes import IGNORE, NODATA, count_codes, read_codes, read_mask, translate
from .mask_values import MaskFacts
from .report import Fault, Report

if TYPE_CHECKING:
    from cpvt_backbones.value_range import ValueRange


@dataclass
class MaskedImages:
    """Images with masks, on their way to class maps.

    Args:
        part: The images.
        masks: File of the mask of each image, by the image's ``file_name``.
        classes: Names of the classes.
        table: Index of the class of each value of the masks.
        palette: Masks with a palette are read by its colours.
    """

    part: Part
    masks: Mapping[str, Path]
    classes: Sequence[str]
    table: Mapping[int, int]
    palette: bool = False


def read_masks(
    images: Path,
    masks: Path,
    report: Report,
    *,
    classes: Path | None = None,
    ignore: Collection[int] = (),
) -> MaskedImages:
    """Pair images with masks of class indices or colours, and find the classes.

    Args:
        images: Folder of images.
        masks: Folder of masks.
        report: Gets files and values that are skipped or refused.
        classes: File of names, see :func:`.class_names.read_classes`.
        ignore: Values that become 255, no class; of classes with colours, their numbers from 0.
    """
    pairs = pair_masks(files_in(images, report), files_in(masks, report), report, str(images))
    found = {name: masks / mask for name, mask in pairs.items()}
    named = read_classes(classes) if classes else None
    # Grey colours of names are values.
    palette = named is not None and any(len({*colour}) > 1 for colour in named.colours)
    facts = inspect_masks([*found.values()], report, palette=palette)
    kinds = find_classes(facts, report, named=named, ignore=ignore)
    entries = []
    for number, (name, mask) in enumerate(found.items(), 1):
        entries.append(dict(id=number, file_name=name, mask=str(mask), mask_size=facts[mask].size))
    part = Part(dict(images=entries), images, str(images))
    return MaskedImages(part, found, kinds.names, kinds.table, palette)


def pair_masks(
    images: Collection[str],
    masks: Collection[str],
    report: Report,
    folder: str,
    *,
    required: bool = True,
) -> dict[str, str]:
    """The mask of each image: of the same path, or of the path and a separator (``a.jpg``,
    ``a_mask.png``).

    A mask of the longer image name is not that of the shorter (``img_1``, ``img_1_2``). The suffix
    of the image may be part of the mask's name (``a.jpg.png``). Images with several masks are
    refused, and images without mask if masks are ``required``.
    """
    owners: dict[str, list[str]] = {}
    for image in images:
        owners.setdefault(stem(image), []).append(image)
        owners.setdefault(image, []).append(image)
    pairs = {}
    for image, candidates in _candidates(owners, images, masks, report).items():
        exact = [mask for mask in candidates if stem(mask) in (image, stem(image))]
        chosen = exact or candidates
        where = f'{folder}/{image}'
        if len(owners[stem(image)]) > 1 and not any(stem(mask) == image for mask in exact):
            report.add('refused', 'images of one name, whose masks cannot be told apart', where)
        elif not chosen and not required:
            continue
        elif not chosen:
            report.add('refused', 'images without a mask', where)
        elif len(chosen) > 1:
            report.add(
                'refused', 'images with several masks', f'{where} ({", ".join(sorted(chosen))})'
            )
        else:
            pairs[image] = chosen[0]
            for other in candidates:
                if other not in chosen:
                    report.add('skipped', 'masks beside one of the name of the image', other)
    return pairs


def _candidates(
    owners: Mapping[str, Sequence[str]],
    images: Collection[str],
    masks: Collection[str],
    report: Report,
) -> dict[str, list[str]]:
    """Masks of each image. ``owners`` are the images of each name, with and without suffix."""
    found: dict[str, list[str]] = {image: [] for image in images}
    for mask in masks:
        name = stem(mask)
        starts = [name[: match.start()] for match in re.finditer(r'[_\-. ]', name)]
        owner = next((start for start in (name, *reversed(starts)) if start in owners), None)
        if owner is None:
            report.add('skipped', 'masks without an image', mask)
            continue
        for image in owners[owner]:
            found[image].append(mask)
    return found


def inspect_masks(
    paths: Sequence[Path], report: Report, *, palette: bool = False
) -> dict[Path, MaskFacts]:
    """Size and values of each mask, read in threads; see :func:`.mask_codes.read_codes`."""

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


def write_class_maps(
    images: MaskedImages,
    parts: Sequence[Part],
    target: Path,
    *,
    value_range: 'ValueRange | None' = None,
) -> float:
    """Write ``<file name of the image>.png`` for each image of the parts: class indices, 255 for no
    class.

    Pixels of which a TIFF or JPEG 2000 image has no data are of no class.

    Returns:
        The share of these in all pixels.
    """
    from cpvt_backbones.checkpoints import atomic_write
    from cpvt_backbones.inference.windows import open_scene

    def write(name: str) -> np.ndarray:
        """Number of pixels without data, and of all."""
        codes = read_codes(images.masks[name], palette=images.palette)
        classes = translate(codes, images.table)
        height, width = classes.shape
        scene = open_scene(images.part.root / name, value_range)
        missing = scene.missing((0, height), (0, width)) if scene else None
        if missing is not None:
            classes[missing] = IGNORE
        with atomic_write(target / f'{name}.png') as file:
            Image.fromarray(classes).save(file, format='PNG')
        return np.array([0 if missing is None else missing.sum(), classes.size])

    names = [image['file_name'] for part in parts for image in part.coco['images']]
    with ThreadPoolExecutor() as pool:
        counts = track(pool.map(write, names), description='class maps', total=len(names))
        missing, pixels = sum(counts, start=np.zeros(2))
    return float(missing / pixels)
