"""Handwritten digits on photographs: a small detection and segmentation data set that needs no
download.

The digits are scikit-learn's (``load_digits``: 1,797 scans of 8 x 8 pixels), the photographs those
inside the scikit-image and scikit-learn wheels. Training and held-out scenes share neither a digit
nor a photograph.

A larger scene is a larger canvas, not a magnified one: digits keep their sizes in pixels and their
number grows with the area. Training at one size and testing at another therefore measures the
effect of the image size alone. Scene ``index`` of a set depends on the set's parameters and
``index`` only, not on how many scenes are written or in which order.

A set is one folder that the stock data sets read: mmdet's ``CocoDataset`` (``instances.json``,
``images/``) and mmseg's ``BaseSegDataset`` (``images/*.jpg``, ``labels/*.png``). A set that exists
already is kept.

    python demo/digit_scenes.py                         # the data of configs/demo
    python demo/digit_scenes.py --heldout 640x1024:8    # HEIGHTxWIDTH:COUNT
"""

import json
import os
import shutil
from collections.abc import Callable, Iterable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

from cpvt.command_line import make_parser, parse_counted_size, run
from cpvt_backbones.checks import check_choice, check_int

SPLITS = ('train', 'heldout')
DIGITS = tuple('0123456789')
# Class of a pixel: 0 is background, digit d is d + 1, as are the COCO categories. The ignore value
# (255) is not used.
CLASSES = ('background',) + DIGITS
MIN_SIDE = 16
# (package, file). None shows a written digit; both splits have textures, portraits and open scenes.
PHOTOS = {
    'train': [
        ('skimage.data', f'{name}.png')
        for name in ('astronaut', 'brick', 'coffee', 'coins', 'grass', 'ihc')
    ]
    + [
        ('skimage.data', name)
        for name in ('moon.png', 'motorcycle_left.png', 'retina.jpg', 'rocket.jpg')
    ]
    + [('sklearn.datasets.images', 'china.jpg')],
    'heldout': [('skimage.data', f'{name}.png') for name in ('camera', 'chelsea', 'gravel')]
    + [('skimage.data', 'hubble_deep_field.jpg'), ('sklearn.datasets.images', 'flower.jpg')],
}
# load_digits is ordered by writer: this cut keeps most writers of the held-out digits unseen.
FIRST_HELDOUT_DIGIT = 1347
# Photographs are darkened to at most this brightness; ink is lighter in every channel.
LIGHTEST_BACKGROUND = 130
# Fewest and most digits on a canvas of TILE_AREA px; other canvases get a proportional number, at
# least one.
DIGITS_PER_TILE = (1, 5)
TILE_AREA = 128 * 128
# Smallest and largest height in px of a digit's square cell, most of which is ink.
DIGIT_SIZE = (24, 56)
# Raise it when the same parameters give other scenes, so that sets written before are replaced.
FORMAT = 3
RECORD = 'scenes.json'


class Digit(NamedTuple):
    """One digit of a scene."""

    label: int  # the digit, 0 to 9
    box: tuple[int, int, int, int]  # tight box of its ink, (x, y, width, height) in px
    mask: np.ndarray  # its ink, bool (H, W) of the whole scene; masks of one scene are disjoint
    source: int  # row of load_digits


class Scene(NamedTuple):
    """An image and its labels."""

    image: np.ndarray  # RGB, uint8 (H, W, 3)
    # Class of every pixel, uint8 (H, W): 0 background, 1 to 10 the digits 0 to 9.
    seg_map: np.ndarray
    digits: list[Digit]  # at least one
    photo: str  # file name of the photograph behind them


def compose_scene(*, split: str, height: int, width: int, index: int, seed: int = 0) -> Scene:
    """Compose scene number ``index`` (from 0) of a set: ``split`` is ``'train'`` or ``'heldout'``,
    sides are in px.
    """
    _check(split, height, width)
    check_int(minimum=0, index=index)
    rng = np.random.default_rng([seed, SPLITS.index(split), height, width, index])
    photo, image = _background(split, height, width, rng)
    seg_map = np.zeros((height, width), np.uint8)
    # The number is drawn per tile, so that scenes of every size range from sparse to crowded alike.
    wanted = rng.integers(*DIGITS_PER_TILE, endpoint=True) * (height * width / TILE_AREA)
    count = max(1, int(wanted + rng.random()))
    digits: list[Digit] = []
    while len(digits) < count and (digit := _place(split, image, seg_map, rng)):
        digits.append(digit)
    return Scene(image.round().astype(np.uint8), seg_map, digits, photo)


def set_name(*, split: str, height: int, width: int) -> str:
    """Name of a set's folder, height first: ``heldout_640x1024``."""
    return f'{split}_{height}x{width}'


def write_scenes(
    *,
    root: str | os.PathLike[str],
    split: str,
    height: int,
    width: int,
    count: int,
    seed: int = 0,
    progress: Callable[[range], Iterable[int]] = iter,
) -> Path:
    """Write a set of ``count`` scenes, unless it exists already.

    The folder holds ``images/000000.jpg``, ``labels/000000.png`` (class of every pixel),
    ``instances.json`` (COCO: tight boxes, run-length masks, the source of each digit and
    photograph) and ``scenes.json`` (the parameters). It is renamed to its final name when complete,
    so an interrupted call leaves no unfinished set.

    Args:
        root: Folder that holds the sets; the set is ``root / set_name(...)``.
        progress: Wraps the loop over the scenes' numbers, such as ``rich.progress.track``.

    Returns:
        pathlib.Path: The set's folder.

    Raises:
        ValueError: A wrong argument.
        FileExistsError: The folder exists and was not written by this function.
    """
    _check(split, height, width)
    check_int(count=count)
    parameters: dict[str, Any] = dict(split=split, height=height, width=width, seed=seed)
    style = dict(digits_per_tile=list(DIGITS_PER_TILE), digit_size=list(DIGIT_SIZE))
    record = dict(**parameters, **style, count=count, format=FORMAT)
    folder = Path(root) / set_name(split=split, height=height, width=width)
    if folder.exists():
        if not (folder / RECORD).is_file():
            raise FileExistsError(
                f'root: {folder} has no {RECORD}, so it is no set of digit scenes; remove it'
            )
        if json.loads((folder / RECORD).read_text()) == record:
            return folder
    partial = folder.with_name(f'.{folder.name}.partial')
    shutil.rmtree(partial, ignore_errors=True)
    (partial / 'images').mkdir(parents=True)
    (partial / 'labels').mkdir()
    categories = [dict(id=i + 1, name=name) for i, name in enumerate(DIGITS)]
    info = dict(description='Handwritten digits on photographs', **record)
    coco: dict[str, Any] = dict(info=info, images=[], annotations=[], categories=categories)
    for index in progress(range(count)):
        _write_scene(compose_scene(index=index, **parameters), index, partial, coco)
    (partial / 'instances.json').write_text(json.dumps(coco))
    (partial / RECORD).write_text(json.dumps(record, indent=2))
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)
    return folder


def _check(split: str, height: int, width: int) -> None:
    check_choice(SPLITS, split=split)
    check_int(minimum=MIN_SIDE, height=height, width=width)


@cache
def open_photo(package: str, name: str) -> Image.Image:
    """A photograph of an installed package, in RGB."""
    # Read from the installed package: scikit-image's own loader may download.
    return Image.open(Path(next(iter(import_module(package).__path__)), name)).convert('RGB')


@cache
def _handwriting() -> tuple[np.ndarray, np.ndarray]:
    """Ink (1797, 8, 8) in [0, 1] and labels (1797,)."""
    data = load_digits()
    return (data.images / 16).astype(np.float32), data.target


def _background(
    split: str, height: int, width: int, rng: np.random.Generator
) -> tuple[str, np.ndarray]:
    """A random part of a random photograph, darkened, magnified 0.5 to 1.5 times or more if the
    canvas needs it.
    """
    package, name = PHOTOS[split][rng.integers(len(PHOTOS[split]))]
    photo = open_photo(package, name)
    zoom = max(rng.uniform(0.5, 1.5), width / photo.width, height / photo.height)
    crop_width, crop_height = min(width / zoom, photo.width), min(height / zoom, photo.height)
    left, top = rng.uniform(0, photo.width - crop_width), rng.uniform(0, photo.height - crop_height)
    box = (left, top, left + crop_width, top + crop_height)
    image = np.asarray(photo.resize((width, height), Image.Resampling.BICUBIC, box=box), np.float32)
    if rng.random() < 0.5:
        image = image[:, ::-1]
    return name, np.clip(image, 0, 255) * (LIGHTEST_BACKGROUND / 255)


def _place(
    split: str, image: np.ndarray, seg_map: np.ndarray, rng: np.random.Generator
) -> Digit | None:
    """Draw one digit where it touches no other.

    ``None`` when no free spot was found, never on an empty canvas.
    """
    height, width = seg_map.shape
    ink, labels = _handwriting()
    row = int(
        rng.integers(FIRST_HELDOUT_DIGIT)
        if split == 'train'
        else rng.integers(FIRST_HELDOUT_DIGIT, len(ink))
    )
    largest = min(DIGIT_SIZE[1], height, width)
    size = int(rng.integers(min(DIGIT_SIZE[0], largest), largest, endpoint=True))
    opacity = _render(ink[row], size)
    h, w = opacity.shape
    for _ in range(50):
        y, x = (
            int(rng.integers(height - h, endpoint=True)),
            int(rng.integers(width - w, endpoint=True)),
        )
        # One pixel of margin: digits that touch would look like one object.
        if not seg_map[max(y - 1, 0) : y + h + 1, max(x - 1, 0) : x + w + 1].any():
            break
    else:
        return None
    patch = image[y : y + h, x : x + w]
    colour = rng.uniform(LIGHTEST_BACKGROUND + 40, 255, 3).astype(np.float32)
    patch += opacity[..., None] * (colour - patch)
    mask = np.zeros((height, width), bool)
    mask[y : y + h, x : x + w] = opacity >= 0.5
    label = int(labels[row])
    seg_map[mask] = label + 1
    return Digit(label, (x, y, w, h), mask, row)


def _render(ink: np.ndarray, size: int) -> np.ndarray:
    """Opacity (h, w) in [0, 1] of an 8 x 8 scan enlarged to ``size`` px, cropped to its ink."""
    # Strokes at the scan's edge would end in a straight cut without a blank margin.
    scale = size / ink.shape[0]
    padded = np.pad(ink, 1)
    side = round(padded.shape[0] * scale)
    enlarged = np.asarray(Image.fromarray(padded).resize((side, side), Image.Resampling.BICUBIC))
    # Half opacity, the threshold of the mask, at 0.4 of full ink; the rim is about 1.5 px wide.
    opacity = np.clip((enlarged - 0.4) * (scale / 1.5) + 0.5, 0, 1)
    # The blurred rim can exceed the cell, and the caller has room for a cell.
    return _tight(_tight(opacity)[:size, :size])


def _tight(opacity: np.ndarray) -> np.ndarray:
    rows, columns = (np.flatnonzero((opacity >= 0.5).any(axis)) for axis in (1, 0))
    return opacity[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


def _write_scene(scene: Scene, index: int, folder: Path, coco: dict[str, Any]) -> None:
    height, width = scene.seg_map.shape
    # Full chroma resolution, or coloured ink would bleed over the edge of the mask.
    Image.fromarray(scene.image).save(folder / f'images/{index:06d}.jpg', quality=95, subsampling=0)
    Image.fromarray(scene.seg_map).save(folder / f'labels/{index:06d}.png')
    coco['images'].append(
        dict(id=index, file_name=f'{index:06d}.jpg', height=height, width=width, photo=scene.photo)
    )
    for digit in scene.digits:
        ids = dict(id=len(coco['annotations']) + 1, image_id=index, category_id=digit.label + 1)
        shape = dict(
            bbox=list(digit.box), area=int(digit.mask.sum()), segmentation=_run_lengths(digit.mask)
        )
        coco['annotations'].append(dict(**ids, **shape, iscrowd=0, source=digit.source))


def _run_lengths(mask: np.ndarray) -> dict[str, Any]:
    """COCO's uncompressed run lengths: column by column, a run of zeros first."""
    bounds = [0, *np.flatnonzero(np.diff(mask.ravel(order='F'), prepend=False)), mask.size]
    return dict(size=list(mask.shape), counts=np.diff(bounds).tolist())


def main() -> None:
    parser = make_parser(__doc__)
    form: dict[str, Any] = dict(type=parse_counted_size, nargs='*', metavar='HEIGHTxWIDTH:COUNT')
    parser.add_argument(
        '--root', type=Path, default=Path('data/digit_scenes'), help='default: %(default)s'
    )
    parser.add_argument(
        '--train', default=[(128, 128, 4000)], help='training sets; default: 128x128:4000', **form
    )
    parser.add_argument(
        '--heldout', default=[(128, 128, 300)], help='held-out sets; default: 128x128:300', **form
    )
    parser.add_argument('--seed', type=int, default=0)
    args = parser.parse_args()
    for split in SPLITS:
        for height, width, count in getattr(args, split):
            size = dict(height=height, width=width, count=count)
            print(write_scenes(root=args.root, split=split, seed=args.seed, **size))


if __name__ == '__main__':
    run(main)
