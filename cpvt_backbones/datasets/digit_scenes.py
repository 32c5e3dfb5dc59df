"""Real handwritten digits on real photographs: a small detection and segmentation data set that needs no download.

The digits are scikit-learn's (``load_digits``: 1,797 scans of 8 x 8 pixels), the photographs those inside the
scikit-image and scikit-learn wheels. A held-out scene shares neither a digit nor a photograph with a training scene.

A larger scene is a larger canvas, not a magnified one: digits keep their sizes in pixels and their number grows with
the area, as when a camera sees more of the same world. Whoever trains at one size and tests at another therefore
measures the size of the image alone. Scene ``index`` of a set depends on the parameters and ``index`` only, never on
how many scenes are written or in which order.

A set is one folder that the stock data sets read: mmdet's ``CocoDataset`` (``instances.json``, ``images/``) and
mmseg's ``BaseSegDataset`` (``images/*.jpg``, ``labels/*.png``).
"""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

SPLITS = ('train', 'heldout')
DIGITS = tuple('0123456789')
# Index map and COCO category: 0 is background, digit d is d + 1. No pixel is ambiguous, so the ignore value (255 in
# mmseg) is never written.
CLASSES = ('background',) + DIGITS
MIN_SIDE = 16

# (package, file); none of them shows a written digit. Both halves hold texture, portraits and open scenes.
PHOTOS = {
    'train': (
        ('skimage.data', 'astronaut.png'),
        ('skimage.data', 'brick.png'),
        ('skimage.data', 'coffee.png'),
        ('skimage.data', 'coins.png'),
        ('skimage.data', 'grass.png'),
        ('skimage.data', 'ihc.png'),
        ('skimage.data', 'moon.png'),
        ('skimage.data', 'motorcycle_left.png'),
        ('skimage.data', 'retina.jpg'),
        ('skimage.data', 'rocket.jpg'),
        ('sklearn.datasets.images', 'china.jpg'),
    ),
    'heldout': (
        ('skimage.data', 'camera.png'),
        ('skimage.data', 'chelsea.png'),
        ('skimage.data', 'gravel.png'),
        ('skimage.data', 'hubble_deep_field.jpg'),
        ('sklearn.datasets.images', 'flower.jpg'),
    ),
}
# load_digits is ordered by writer: cutting it in two keeps most writers of the held-out digits unseen.
FIRST_HELDOUT_DIGIT = 1347
# Photographs are darkened to this brightness at most, and ink is lighter still in every channel.
LIGHTEST_BACKGROUND = 130
# The area that `digits_per_tile` counts in, px.
TILE_AREA = 128 * 128
# Raised whenever the same parameters give other scenes, so that sets written before are not taken for current ones.
FORMAT = 3
RECORD = 'scenes.json'


@dataclass(frozen=True)
class Digit:
    """One digit of a scene.

    Args:
        label: The digit, 0 to 9.
        box: Tight box of its ink, (x, y, width, height) in px.
        mask: Its ink, bool (H, W) of the whole scene. Masks of one scene are disjoint.
        source: Row of ``load_digits`` that it was drawn from.
    """

    label: int
    box: tuple[int, int, int, int]
    mask: np.ndarray
    source: int


@dataclass(frozen=True)
class Scene:
    """A picture with what is in it.

    Args:
        image: RGB, uint8 (H, W, 3).
        index_map: Class of every pixel, uint8 (H, W): 0 background, 1 to 10 the digits 0 to 9.
        digits: The digits, at least one.
        photo: File name of the photograph behind them.
    """

    image: np.ndarray
    index_map: np.ndarray
    digits: tuple[Digit, ...]
    photo: str


def compose_scene(
    *,
    split: str,
    height: int,
    width: int,
    index: int,
    seed: int = 0,
    digits_per_tile: tuple[int, int] = (1, 5),
    digit_size: tuple[int, int] = (24, 56),
) -> Scene:
    """Compose scene number ``index`` of a set.

    Args:
        split: ``'train'`` or ``'heldout'``; they share no digit and no photograph.
        height: Height in px, at least 16.
        width: Width in px, at least 16.
        index: Number of the scene in its set, from 0.
        seed: Seed of the set.
        digits_per_tile: Fewest and most digits for each 128 x 128 px of canvas. A canvas of that size gets exactly so
            many, a smaller or larger one in proportion, at least one; fewer where no room is left.
        digit_size: Smallest and largest height of a digit's square cell in px; the ink fills most of it. Cells that
            the canvas cannot hold are made smaller.

    Returns:
        Scene: The picture, its index map and its digits.

    Raises:
        ValueError: A wrong argument.
    """
    _check(split=split, height=height, width=width, digits_per_tile=digits_per_tile, digit_size=digit_size)
    if index < 0:
        raise ValueError(f'index must be 0 or more, got {index}')
    rng = np.random.default_rng([seed, SPLITS.index(split), height, width, index])
    photo, image = _background(split, height, width, rng)
    index_map = np.zeros((height, width), np.uint8)
    tiles = height * width / TILE_AREA
    # Drawn for the tile first, so that the spread between sparse and crowded scenes is the same at every size.
    wanted = rng.integers(digits_per_tile[0], digits_per_tile[1], endpoint=True) * tiles
    count = max(1, int(wanted + rng.random()))
    digits: list[Digit] = []
    while len(digits) < count:
        digit = _place(split, image, index_map, digit_size, rng)
        if digit is None:
            break
        digits.append(digit)
    return Scene(image.round().astype(np.uint8), index_map, tuple(digits), photo)


def set_name(*, split: str, height: int, width: int) -> str:
    """Name of a set's folder, width first as image sizes are usually written: ``heldout_1024x640``."""
    return f'{split}_{width}x{height}'


def write_scenes(
    *,
    root: str | os.PathLike[str],
    split: str,
    height: int,
    width: int,
    count: int,
    seed: int = 0,
    digits_per_tile: tuple[int, int] = (1, 5),
    digit_size: tuple[int, int] = (24, 56),
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Write a set, unless it is there already.

    The folder holds ``images/000000.jpg``, ``labels/000000.png`` (index maps), ``instances.json`` (COCO: tight boxes,
    run-length masks, and for each digit and picture where it came from) and ``scenes.json`` (the parameters). It
    appears under its name only when complete: an interrupted call leaves nothing that could be taken for a set.

    Args:
        root: Folder that holds the sets; the set is ``root / set_name(...)``.
        split, height, width, seed, digits_per_tile, digit_size: As in :func:`compose_scene`.
        count: Number of scenes, at least 1.
        progress: Called with (scenes written, scenes in all) after every scene.

    Returns:
        pathlib.Path: The set's folder.

    Raises:
        ValueError: A wrong argument.
        FileExistsError: The folder exists and was not written by this function.
    """
    _check(split=split, height=height, width=width, digits_per_tile=digits_per_tile, digit_size=digit_size)
    if count < 1:
        raise ValueError(f'count must be 1 or more, got {count}')
    parameters: dict[str, Any] = dict(
        split=split,
        height=height,
        width=width,
        seed=seed,
        digits_per_tile=tuple(digits_per_tile),
        digit_size=tuple(digit_size),
    )
    record = {**parameters, 'count': count, 'format': FORMAT}
    folder = Path(root) / set_name(split=split, height=height, width=width)
    if folder.exists():
        if not (folder / RECORD).is_file():
            raise FileExistsError(
                f'{folder} exists and holds no {RECORD}: it is no set of digit scenes; remove it or give another root'
            )
        if json.loads((folder / RECORD).read_text()) == json.loads(json.dumps(record)):
            return folder
    partial = folder.with_name(f'.{folder.name}.partial')
    shutil.rmtree(partial, ignore_errors=True)
    (partial / 'images').mkdir(parents=True)
    (partial / 'labels').mkdir()
    coco: dict[str, Any] = dict(
        info=dict(description='Handwritten digits on photographs', **record),
        images=[],
        annotations=[],
        categories=[dict(id=i + 1, name=name) for i, name in enumerate(DIGITS)],
    )
    for index in range(count):
        _write_scene(compose_scene(index=index, **parameters), index, partial, coco)
        if progress:
            progress(index + 1, count)
    (partial / 'instances.json').write_text(json.dumps(coco))
    (partial / RECORD).write_text(json.dumps(record, indent=2))
    if folder.exists():
        shutil.rmtree(folder)
    partial.rename(folder)
    return folder


def _check(
    *, split: str, height: int, width: int, digits_per_tile: tuple[int, int], digit_size: tuple[int, int]
) -> None:
    if split not in SPLITS:
        raise ValueError(f'split must be one of {SPLITS}, got {split!r}')
    for name, side in (('height', height), ('width', width)):
        if side < MIN_SIDE:
            raise ValueError(f'{name} must be at least {MIN_SIDE} px, room for one readable digit; got {side}')
    for name, pair, least in (('digits_per_tile', digits_per_tile, 1), ('digit_size', digit_size, MIN_SIDE)):
        if len(pair) != 2 or not least <= pair[0] <= pair[1]:
            raise ValueError(f'{name} must be (least, most) with {least} <= least <= most, got {pair}')


@cache
def _photo(package: str, name: str) -> Any:
    from PIL import Image

    # Asked of the installed package, never of its downloader.
    path = Path(next(iter(import_module(package).__path__)), name)
    return Image.open(path).convert('RGB')


@lru_cache(maxsize=1)
def _handwriting() -> tuple[np.ndarray, np.ndarray]:
    """Ink (1797, 8, 8) in [0, 1] and labels (1797, )."""
    from sklearn.datasets import load_digits

    data = load_digits()
    return (data.images / 16).astype(np.float32), data.target


def _background(split: str, height: int, width: int, rng: np.random.Generator) -> tuple[str, np.ndarray]:
    """A random part of a random photograph, magnified 0.5 to 1.5 times, or as much as it takes to fill the canvas.

    Darkened, so that light ink stands out from any of it.
    """
    from PIL import Image

    package, name = PHOTOS[split][rng.integers(len(PHOTOS[split]))]
    photo = _photo(package, name)
    zoom = max(rng.uniform(0.5, 1.5), width / photo.width, height / photo.height)
    crop_width, crop_height = min(width / zoom, photo.width), min(height / zoom, photo.height)
    left, top = rng.uniform(0, photo.width - crop_width), rng.uniform(0, photo.height - crop_height)
    box = (left, top, left + crop_width, top + crop_height)
    image = np.asarray(photo.resize((width, height), Image.Resampling.BICUBIC, box=box), np.float32)
    if rng.random() < 0.5:
        image = image[:, ::-1]
    return name, np.clip(image, 0, 255) * (LIGHTEST_BACKGROUND / 255)


def _place(
    split: str, image: np.ndarray, index_map: np.ndarray, digit_size: tuple[int, int], rng: np.random.Generator
) -> Digit | None:
    """Draw one digit where it touches no other; ``None`` when no free spot was found, never on an empty canvas."""
    height, width = index_map.shape
    ink, labels = _handwriting()
    row = int(rng.integers(FIRST_HELDOUT_DIGIT) if split == 'train' else rng.integers(FIRST_HELDOUT_DIGIT, len(ink)))
    largest = min(digit_size[1], height, width)
    size = int(rng.integers(min(digit_size[0], largest), largest, endpoint=True))
    opacity = _render(ink[row], size)
    h, w = opacity.shape
    for _ in range(50):
        y, x = int(rng.integers(height - h, endpoint=True)), int(rng.integers(width - w, endpoint=True))
        # One pixel of margin: two digits that touch would be one object to the eye.
        if not index_map[max(y - 1, 0) : y + h + 1, max(x - 1, 0) : x + w + 1].any():
            break
    else:
        return None
    patch = image[y : y + h, x : x + w]
    colour = _ink_colour(rng)
    patch += opacity[..., None] * (colour - patch)
    label = int(labels[row])
    mask = np.zeros((height, width), bool)
    mask[y : y + h, x : x + w] = opacity >= 0.5
    index_map[mask] = label + 1
    return Digit(label, (x, y, w, h), mask, row)


def _render(ink: np.ndarray, size: int) -> np.ndarray:
    """Opacity (h, w) in [0, 1] of an 8 x 8 scan enlarged to ``size`` px, cut to the pixels that count as ink."""
    from PIL import Image

    # A margin of blank paper, or strokes at the scan's edge would end in a straight cut.
    scale = size / ink.shape[0]
    padded = np.pad(ink, 1)
    side = round(padded.shape[0] * scale)
    enlarged = np.asarray(Image.fromarray(padded).resize((side, side), Image.Resampling.BICUBIC))
    # Half opacity, the mask's threshold, at two fifths of full ink; the rim is about a pixel and a half wide.
    steepness = scale / 1.5
    opacity = np.clip((enlarged - 0.4) * steepness + 0.5, 0, 1)
    # The blurred rim can make the ink larger than its cell; the caller has room for a cell.
    return _tight(_tight(opacity)[:size, :size])


def _tight(opacity: np.ndarray) -> np.ndarray:
    rows, columns = (np.flatnonzero((opacity >= 0.5).any(axis)) for axis in (1, 0))
    return opacity[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


def _ink_colour(rng: np.random.Generator) -> np.ndarray:
    """A light colour: chalk on a darkened photograph."""
    return rng.uniform(LIGHTEST_BACKGROUND + 40, 255, 3).astype(np.float32)


def _write_scene(scene: Scene, index: int, folder: Path, coco: dict[str, Any]) -> None:
    from PIL import Image

    height, width = scene.index_map.shape
    name = f'{index:06d}'
    # Full chroma resolution: coloured ink would otherwise bleed over the mask's edge.
    Image.fromarray(scene.image).save(folder / 'images' / f'{name}.jpg', quality=95, subsampling=0)
    Image.fromarray(scene.index_map).save(folder / 'labels' / f'{name}.png')
    coco['images'].append(dict(id=index, file_name=f'{name}.jpg', height=height, width=width, photo=scene.photo))
    for digit in scene.digits:
        coco['annotations'].append(
            dict(
                id=len(coco['annotations']) + 1,
                image_id=index,
                category_id=digit.label + 1,
                bbox=list(digit.box),
                area=int(digit.mask.sum()),
                segmentation=_run_lengths(digit.mask),
                iscrowd=0,
                source=digit.source,
            )
        )


def _run_lengths(mask: np.ndarray) -> dict[str, Any]:
    """COCO's uncompressed run lengths: column by column, a run of zeros first."""
    flat = mask.ravel(order='F')
    edges = np.flatnonzero(np.diff(flat)) + 1
    bounds = np.concatenate([[0], edges, [flat.size]])
    counts = np.diff(bounds).tolist()
    return dict(size=list(mask.shape), counts=[0, *counts] if flat[0] else counts)
