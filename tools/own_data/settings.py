"""Choose scale, anchors and schedule from checked data."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .coco import Coco, Part
from .files import write_json, write_list
from .folders import classes_of
from .masks import MaskedImages, write_class_maps
from .templates import AT_OWN_SIZE, AT_SCALE
from .thinness import find_thinnest
from .tiles import TILE, cut_maps, cut_tiles, overlap_of

if TYPE_CHECKING:
    from cpvt_backbones.value_range import ValueRange

OBJECT = 16  # px that the smallest class gets at the scale of training
TOO_SMALL = 12  # px of the smallest class, below which tiles are cut
SIDES = 320, 640  # px, the least and most of an image's longer side
CLASS_MAP_SIDE = 480  # px, the most of a segmentor's longer side, and of its crops of tiles
# px of a segmentor's thinnest class, below which tiles are cut: the finest stride of its features
TOO_THIN = 4
VANISHING = 4  # px of an object in training, half the finest stride, below which it is named
SHRUNK = 0.8  # of the px in the images: a class that keeps more gains little by tiles
CROPS = (112, 160, 224)  # px, sides that a classifier is trained at


@dataclass
class Settings:
    """What a config is written from.

    Args:
        fields: Numbers and sources of the template, without text of the data.
        texts: Names and paths of the data, for the JSON file of the config.
        about: The training images in a line.
        remarks: Lines to print.
        infer: Options of tools/infer.py beside config, checkpoint and images.
    """

    fields: dict[str, Any]
    texts: dict[str, Any]
    about: str
    remarks: list[str] = field(default_factory=list)
    infer: str = ''

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes."""
        return self.texts['classes']


def median_size(part: Part) -> np.ndarray:
    """Width and height of the images, px."""
    return np.median([(image['width'], image['height']) for image in part.coco['images']], axis=0)


def describe(part: Part) -> str:
    """Number and size of the images."""
    width, height = median_size(part)
    return f'{len(part.coco["images"])} training images, median {width:.0f} x {height:.0f} px'


def passes(images: int) -> float:
    """Times that a training sees its images: few through many images, at most 40."""
    return float(np.clip(8000 / images, 12, 40))


def iterations(part: Part) -> int:
    """Iterations of four images."""
    count = len(part.coco['images'])
    return round(count * passes(count) / 4)


def scaled(size: np.ndarray, factor: float) -> tuple[int, ...]:
    """Width and height at a scale, at least 32 px."""
    return tuple(max(32, round(side * factor)) for side in size.tolist())


def factor_of(image: Coco, scale: Sequence[int]) -> float:
    """Factor by which the toolboxes resize an image to the largest size within a scale."""
    sides = image['width'], image['height']
    return min(max(scale) / max(sides), min(scale) / min(sides))


def enlarged(factor: float) -> list[str]:
    """How to predict on larger images, if those of the training are enlarged."""
    if factor <= 1:
        return []
    return [
        f'small images are enlarged {factor:.2f} times; if objects have as many px in larger'
        f' photos, add --scale {factor:.2f} to the command of tools/infer.py'
    ]


def vanishing(parts: Sequence[Part], scale: Sequence[int]) -> list[str]:
    """The images, such as long ones, whose objects are shrunk to less than ``VANISHING`` px."""
    found: list[str] = []
    for coco in (part.coco for part in parts):
        images = {image['id']: image for image in coco['images']}
        for one in coco['annotations']:
            side, image = math.prod(one['bbox'][2:]) ** 0.5, images[one['image_id']]
            if factor_of(image, scale) * side < VANISHING <= side:
                found.append(image['file_name'])
    if not found:
        return []
    names = [*dict.fromkeys(found)]
    more = ', ...' if len(names) > 3 else ''
    return [
        f'objects shrunk to less than {VANISHING} px: {len(found)}; cut these images'
        f' into parts: {", ".join(names[:3])}{more}'
    ]


def about_tiles(part: Part) -> str:
    """How a config trains on tiles."""
    count = len(part.coco['images'])
    return f'the config trains on {count} tiles of {TILE} px, at the scale of the images'


def options_of_tiles(side: int, overlap: int) -> str:
    """Options of tools/infer.py by which it predicts in tiles, at the scale of the training."""
    return f' --scale native --tile-size {side} --overlap {overlap} --max-pixels {side**2}'


def object_settings(
    task: str, parts: Sequence[Part], folder: Path, *, value_range: 'ValueRange | None' = None
) -> Settings:
    """Settings of a detector or instance segmentor; the data are written to the folder.

    The class of the smallest objects gets ``OBJECT`` px, the longer side of the image ``SIDES``.
    Smaller images are enlarged. Where objects would be smaller than ``TOO_SMALL`` px, and are
    larger in the images, these are cut into tiles, with ``value_range`` as NumPy files.
    """
    about = describe(parts[0])
    size = median_size(parts[0])
    small, label = smallest_class(parts[0].coco)
    longest = float(size.max())
    factor = min(max(min(1.0, OBJECT / small), SIDES[0] / longest), SIDES[1] / longest)
    scale = scaled(size, factor)
    seen, _ = smallest_class(parts[0].coco, scale)
    names = {category['id']: category['name'] for category in parts[0].coco['categories']}
    remark = f'smallest objects, {names[label]}: side of {small:.0f} px in the images'
    infer = ''
    if seen < min(TOO_SMALL, SHRUNK * small):
        overlap = overlap_of(parts)
        parts = cut_tiles(parts, folder / 'tiles', overlap=overlap, value_range=value_range)
        remark += f', {seen:.0f} px if shrunk to {max(scale)} px: {about_tiles(parts[0])}'
        infer = options_of_tiles(TILE, overlap)
        scale, factor = (TILE, TILE), 1.0
    else:
        remark += f', {seen:.0f} px in training (images of {max(scale)} px)'
    remarks = [remark, *vanishing(parts, scale), *enlarged(factor)]
    fields: dict[str, Any] = dict(scale=scale, length=iterations(parts[0]))
    names_of_classes = tuple(category['name'] for category in parts[0].coco['categories'])
    texts: dict[str, Any] = dict(classes=names_of_classes)
    if task == 'detector':
        # Times the stride of 8. Objects of more than 32 px are for the coarser strides.
        fields['anchor'] = float(np.clip(small * factor / 8, 0.5, 4))
        fields['ratios'] = anchor_ratios(parts[0].coco)
    else:
        fields['anchor'] = float(np.clip(small * factor / 4, 2, 8))  # times the stride of 4
    for key, part in zip(('train', 'val'), parts, strict=True):
        texts[key] = str(write_json(part.coco, folder / f'{key}.json'))
        texts[f'{key}_images'] = str(part.root.resolve())
    return Settings(fields, texts, about, remarks, infer)


def _trained(coco: Coco, scale: Sequence[int] | None = None) -> np.ndarray:
    """Index of the category, width and height of the objects that a detector learns, (N, 3).

    With ``scale``, in images that are resized to it.
    """
    order = {category['id']: index for index, category in enumerate(coco['categories'])}
    factors = {}
    for image in coco['images']:
        factors[image['id']] = factor_of(image, scale) if scale else 1.0
    rows = []
    for one in coco['annotations']:
        if not one['iscrowd']:
            factor = factors[one['image_id']]
            rows.append((order[one['category_id']], *(factor * side for side in one['bbox'][2:])))
    if not rows:
        raise ValueError('data: the training images have no objects to learn')
    return np.array(rows, float)


def smallest_class(coco: Coco, scale: Sequence[int] | None = None) -> tuple[float, int]:
    """Side of the smaller objects (a quarter is smaller) of the class with the smallest, px; and
    the id of that class.

    With ``scale``, in images that are resized to it.
    """
    kinds, widths, heights = _trained(coco, scale).T
    sides = np.sqrt(widths * heights)
    side, kind = min(
        (float(np.quantile(sides[kinds == kind], 0.25)), int(kind)) for kind in np.unique(kinds)
    )
    return side, coco['categories'][kind]['id']


def anchor_ratios(coco: Coco) -> list[float]:
    """Two ratios of anchors, height / width, which differ by at least a quarter.

    The shipped detector has two: with one, its weights would not fit. Two equal ones would double
    each anchor.
    """
    _, widths, heights = _trained(coco).T
    low, high = np.quantile(heights / widths, (0.25, 0.75)).tolist()
    if high < 1.25 * low:
        centre = (low * high) ** 0.5
        low, high = centre / 1.25**0.5, centre * 1.25**0.5
    return [round(low, 2), round(high, 2)]


def map_settings(
    found: MaskedImages,
    parts: Sequence[Part],
    folder: Path,
    *,
    value_range: 'ValueRange | None' = None,
) -> Settings:
    """Settings of a segmentor; class maps and lists of images are written to the folder.

    The longer side of an image has ``SIDES[0]`` to ``CLASS_MAP_SIDE`` px; images with a place on
    the ground are not enlarged. Where the thinnest class would be thinner than ``TOO_THIN`` px, and
    is less thin in the images, these are cut into tiles, with ``value_range`` as NumPy files. So
    are larger images that have a place on the ground: all are seen at their own scale.
    """
    about = describe(parts[0])
    maps = folder / 'masks'
    missing = write_class_maps(found, parts, maps, value_range=value_range)
    size = median_size(parts[0])
    placed = _is_placed(parts[0], value_range)
    least = 0.0 if placed else SIDES[0]
    factor = float(np.clip(1.0, least / size.max(), CLASS_MAP_SIDE / size.max()))
    scale = scaled(size, factor)
    crop = scale[1] * 2 // 3, scale[0] * 2 // 3
    fields: dict[str, Any] = dict(AT_SCALE, scale=scale, crop=crop)
    remarks = [f'scale of training: {scale[0]} x {scale[1]} px, {factor:.0%} of the images']
    remarks += enlarged(factor)
    infer = ''
    if placed:
        infer = options_of_tiles(max(scale), max(scale) // 4)
    why = ''
    if placed and _largest_side(parts) > CLASS_MAP_SIDE:
        why = f'georeferenced images of more than {CLASS_MAP_SIDE} px'
    images = parts[0].coco['images']
    files = [maps / f'{image["file_name"]}.png' for image in images]
    thin = find_thinnest(files, [factor_of(image, scale) for image in images])
    if thin is not None:
        widths = f'thinnest class, {found.classes[thin.label]}: {thin.own:.1f} px in the images'
        widths += f', {thin.seen:.1f} px'
        if thin.seen < min(TOO_THIN, SHRUNK * thin.own):
            why = f'{widths} if shrunk to {max(scale)} px'
        remarks.append(f'{widths} in training (images of {max(scale)} px)')
    if why:
        parts = cut_for_crops(parts, maps, folder / 'tiles', value_range)
        maps = folder / 'tiles/masks'
        fields = dict(AT_OWN_SIZE, scale=(CLASS_MAP_SIDE, CLASS_MAP_SIDE), crop='scale')
        remarks = [f'{why}: {about_tiles(parts[0])}, in crops of {CLASS_MAP_SIDE} px']
        infer = options_of_tiles(CLASS_MAP_SIDE, CLASS_MAP_SIDE // 4)
    if missing:
        remarks.append(f'pixels without data in the images: {missing:.2%}; they are of no class')
    fields['length'] = iterations(parts[0])
    texts: dict[str, Any] = dict(
        classes=tuple(found.classes),
        images=str(parts[0].root.resolve()),
        masks=str(maps.resolve()),
    )
    for key, part in zip(('train', 'val'), parts, strict=True):
        names = [image['file_name'] for image in part.coco['images']]
        texts[key] = write_list(names, folder / f'{key}.txt')
    return Settings(fields, texts, about, remarks, infer)


def _is_placed(part: Part, value_range: 'ValueRange | None') -> bool:
    """True if the first image has a place on the ground."""
    from cpvt_backbones.inference.windows import open_scene

    scene = open_scene(part.root / part.coco['images'][0]['file_name'], value_range)
    return scene is not None and scene.is_placed


def _largest_side(parts: Sequence[Part]) -> int:
    images = [image for part in parts for image in part.coco['images']]
    return max(max(image['width'], image['height']) for image in images)


def cut_for_crops(
    parts: Sequence[Part], maps: Path, folder: Path, value_range: 'ValueRange | None'
) -> list[Part]:
    """Cut images and class maps: for training, larger than the crops; for validation, as large."""
    training, validation = parts
    larger: dict[str, int] = dict(side=TILE, overlap=TILE // 4)
    return [
        cut_maps(training, maps, folder, **larger, value_range=value_range),
        cut_maps(validation, maps, folder, side=CLASS_MAP_SIDE, value_range=value_range),
    ]


def class_settings(parts: Sequence[Part], folder: Path) -> Settings:
    """Settings of a classifier; lists of images and labels are written to the folder."""
    classes = classes_of(parts)
    side = max((side for side in CROPS if side <= median_size(parts[0]).min()), default=CROPS[0])
    count = len(parts[0].coco['images'])
    fields: dict[str, Any] = dict(
        scale=side,
        batch=min(64, max(1, count // 2)),  # an epoch has whole batches only: at least two
        length=round(passes(count)),
    )
    texts: dict[str, Any] = dict(classes=tuple(classes), images=str(parts[0].root.resolve()))
    for key, part in zip(('train', 'val'), parts, strict=True):
        lines = []
        for image in part.coco['images']:
            lines.append(f'{image["file_name"]} {classes.index(image["label"])}')
        texts[key] = write_list(lines, folder / f'{key}.txt')
    remarks = [f'scale of training: {side} x {side} px']
    return Settings(fields, texts, describe(parts[0]), remarks)
