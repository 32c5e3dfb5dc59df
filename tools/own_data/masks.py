"""Read masks of class indices or colours, and write class maps."""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image
from rich.progress import track

IGNORE = 255  # class index of pixels without class
COLOUR = 0x1000000


def named_files(folder: Path, suffixes: Collection[str] | None = None) -> dict[str, Path]:
    """Images (or files with ``suffixes``) in a folder, in order, by their path in it without suffix."""
    from cpvt_backbones.inference import IMAGE_SUFFIXES

    suffixes = suffixes or IMAGE_SUFFIXES
    found = sorted(path for path in folder.rglob('*') if path.suffix.lower() in suffixes)
    if not found:
        raise FileNotFoundError(f'data: no {" or ".join(suffixes)} in the folder {str(folder)!r}')
    return {path.relative_to(folder).with_suffix('').as_posix(): path for path in found}


def read_classes(file: Path) -> tuple[list[str], list[tuple[int, ...]]]:
    """Names of classes, one a line, and their colours if each line has three numbers too."""
    lines = [line.replace(',', ' ').split() for line in file.read_text(encoding='utf-8').splitlines() if line.strip()]
    colours = [tuple(int(word) for word in line if word.isdecimal()) for line in lines]
    names = [' '.join(word for word in line if not word.isdecimal()) for line in lines]
    if {*map(len, colours)} - {0} not in (set(), {3}) or (any(colours) and not all(colours)) or not all(names):
        raise ValueError(f'--classes: lines of {file} must be NAME, or NAME RED GREEN BLUE each, got {lines[:3]}')
    return names, colours if all(colours) else []


def pair_masks(pictures: Collection[str], masks: Mapping[str, Path]) -> dict[str, Path]:
    """The mask of each image: of the same path, or of the path and a separator (``a.jpg``, ``a_mask.png``).

    A mask of the longer image name is not that of the shorter (``img_1``, ``img_1_2``). ``ValueError`` unless each
    image has exactly one mask.
    """
    owners: dict[str, list[str]] = {name: [] for name in pictures}
    for mask in masks:
        starts = [mask[: match.start()] for match in re.finditer(r'[_\-. ]', mask)]
        owner = next((name for name in (mask, *reversed(starts)) if name in owners), None)
        if owner is not None:
            owners[owner].append(mask)
    pairs = {}
    for name, found in owners.items():
        exact = [mask for mask in found if mask == name]
        if len(exact or found) > 1:
            raise ValueError(f'data: image {name!r} must have one mask, got {sorted(found)}')
        if found:
            pairs[name] = masks[(exact or found)[0]]
    if lacking := [name for name in pictures if name not in pairs]:
        fault = f'{len(lacking)} of {len(owners)} images have no mask, the first is {lacking[0]!r}'
        raise FileNotFoundError(f'data: {fault}')
    return pairs


def write_masks(
    images: Path, masks: Path, target: Path, *, classes: Path | None, ignore: Sequence[int]
) -> tuple[dict[str, Path], list[str]]:
    """Write class maps (PNG, 255 for no class) from masks of class indices or colours.

    :func:`pair_masks` says which mask belongs to which image.

    Returns:
        The images by name, and the names of the classes.
    """
    from cpvt_backbones.checkpoints import atomic_write

    pictures, found = named_files(images), named_files(masks)
    pairs = pair_masks(pictures, found)
    names, colours = read_classes(classes) if classes else ([], [])
    values = Counter[int]()
    for path in track([*pairs.values()], description='masks'):
        values.update(np.unique(_codes(path)).tolist())
    coded = max(values) >= COLOUR and (bool(colours) or any(v % 0x10101 for v in map(_rgb, values)))
    own = (lambda code: code) if coded else (lambda code: code & 0xFF)  # a grey mask stored as RGB
    seen = {own(value) for value in values}
    if coded:
        order = [COLOUR + (r << 16) + (g << 8) + b for r, g, b in colours] or sorted(seen)
    elif seen == {0, IGNORE} and not ignore:
        order = [0, IGNORE]
    else:
        order = [*range(max([len(names) - 1, *(seen - {IGNORE})]) + 1)]
    unknown = seen - {*order, IGNORE}
    if unknown or len(order) > 255 or (names and {*range(len(names), len(order))} - {*ignore}):
        what = f'{len(seen)} values, {len(unknown)} of them unknown, for {len(names)} names'
        raise ValueError(f'data: the masks in {str(masks)!r} have {what}: see --classes and --ignore')
    kept = [i for i in range(len(order)) if i not in ignore]
    table = {order[i]: new for new, i in enumerate(kept)}
    names = [names[i] if names else f'class_{_rgb(order[i]):06x}' if coded else f'class_{i}' for i in kept]
    for name, path in track(pairs.items(), description='class maps'):
        codes, inverse = np.unique(mask := _codes(path), return_inverse=True)
        if mask.shape != (shape := Image.open(pictures[name]).size[::-1]):
            raise ValueError(f'data: {path} must have the size of its image, {shape}, got {mask.shape}')
        new = np.array([table.get(own(code), IGNORE) for code in codes.tolist()], np.uint8)
        with atomic_write(target / f'{name}.png') as file:
            Image.fromarray(new[inverse].reshape(mask.shape)).save(file, format='PNG')
    return pictures, names


def _codes(path: Path) -> np.ndarray:
    """(H, W): class indices, or COLOUR plus the colour as one number."""
    with Image.open(path) as mask:
        if mask.mode in ('1', 'L', 'P', 'I', 'I;16'):
            return np.asarray(mask).astype(np.int64)
        red, green, blue = np.asarray(mask.convert('RGB')).astype(np.int64).transpose(2, 0, 1)
    return COLOUR + (red << 16) + (green << 8) + blue


def _rgb(code: int) -> int:
    return code & 0xFFFFFF
