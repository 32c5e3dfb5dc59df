"""Chooses scale, anchors, tiles, schedule and weights from checked data, without files."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import numpy as np

from cpvt_backbones.errors import InputError
from cpvt_backbones.weights import shipped_weights

from ..check.labels import classes_of
from ..dataset import Coco, Split
from ..read.masks import IGNORE, no_class_of
from .tiles import TILE, Tiles, overlap_of, tile_maps, tile_objects
from .weights import STRIDE, Pretrained, WholeModel

OBJECT = 16  # px of the smallest class at the training scale
TOO_SMALL = 12  # px of the smallest class, below which tiles are cut
SIDES = 320, 640  # px, minimum and maximum of an image's longer side
CLASS_MAP_SIDE = 480  # px, maximum of a segmentor's longer side, and of its crops from tiles
# px of a segmentor's thinnest class, below which tiles are cut: the finest stride
TOO_THIN = 4
# Share of the pixels: classes with less stayed at an IoU of 0 in the short trainings on streets of
# docs/example_masks.md.
RARE = 0.015
SHOWN = 10  # classes
VANISHING = 4  # px of an object in training, below which a remark names it: half the finest stride
DETECTIONS = 100  # of an image, in mmdet's configs
SHRUNK = 0.8  # share of the width in the images: tiles gain little for classes that keep more
CROPS = (112, 160, 224)  # px, sides at which classifiers are trained


# Models of the tasks, with their optimizer and hooks.
RECIPES = {
    'detector': 'configs/bccd/retinanet_cpvt-tiny-gap_bccd.py',
    'instance segmentor': 'configs/_base_/own_data/mask_rcnn.py',
    'segmentor': 'configs/camvid/semantic-fpn_cpvt-tiny-gap_camvid.py',
    'classifier': 'configs/imagenette/cpvt-6-blocks_imagenette.py',
}
Values = dict[str, Any]


@dataclass
class Settings:
    """Data to write, and settings of the config.

    Args:
        splits: Training and validation data as used in training; with tiles, those of the tiles.
        classes: Names of the classes.
        fields: Numbers of the config, without text from the data.
        about: One line about the training images.
        remarks: Lines to print.
        infer: Options of ``cpvt infer`` besides config, checkpoint and images.
        tiles: Tiles of both splits, if any.
    """

    splits: Sequence[Split]
    classes: Sequence[str]
    fields: dict[str, Any]
    about: str
    remarks: list[str] = field(default_factory=list)
    infer: str = ''
    tiles: Sequence[Tiles] = ()


def median_size(split: Split) -> np.ndarray:
    """Return the median width and height of the images in px."""
    return np.median([(image['width'], image['height']) for image in split.coco['images']], axis=0)


def describe(split: Split) -> str:
    """Describe number and size of the images."""
    sizes = [(image['width'], image['height']) for image in split.coco['images']]
    sizes.sort(key=lambda size: (math.prod(size), size))
    about = f'{len(sizes)} training images, '
    if sizes[0] != sizes[-1]:
        about += '{} x {} to {} x {} px, '.format(*sizes[0], *sizes[-1])
    width, height = median_size(split)
    return f'{about}median {width:.0f} x {height:.0f} px'


def passes(images: int) -> float:
    """Return how often a training sees each image: less for more images, at most 40 times."""
    return float(np.clip(8000 / images, 12, 40))


def iterations(split: Split) -> int:
    """Return the number of iterations with four images each."""
    count = len(split.coco['images'])
    return round(count * passes(count) / 4)


def scaled(size: np.ndarray, factor: float) -> tuple[int, ...]:
    """Return width and height at a scale, at least 32 px."""
    return tuple(max(32, round(side * factor)) for side in size.tolist())


def factor_of(image: Coco, scale: Sequence[int]) -> float:
    """Return the factor by which the toolboxes resize an image to fit a scale."""
    sides = image['width'], image['height']
    return min(max(scale) / max(sides), min(scale) / min(sides))


def enlarged(factor: float) -> list[str]:
    """Explain how to predict on larger images if training images are enlarged."""
    if factor <= 1:
        return []
    return [
        f'small images are enlarged {factor:.2f} times; if objects have the same size in px in'
        f' larger photos, add --scale {factor:.2f} to cpvt infer'
    ]


def vanishing(splits: Sequence[Split], scale: Sequence[int]) -> list[str]:
    """Describe images, such as long ones, whose objects shrink below ``VANISHING`` px."""
    found: list[str] = []
    for coco in (split.coco for split in splits):
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


def about_tiles(split: Split) -> str:
    """Describe training on tiles."""
    count = len(split.coco['images'])
    return f'the config trains on {count} tiles of {TILE} px, at the scale of the images'


def options_of_tiles(side: int, overlap: int) -> str:
    """Return options of ``cpvt infer`` for tiles at the training scale."""
    return f' --scale native --tile-size {side} --overlap {overlap} --max-pixels {side**2}'


def _tiled_splits(tiles: Sequence[Tiles]) -> list[Split]:
    """Return the splits of tiles on which a config trains."""
    return [Split(one.coco, one.split.root, one.split.source) for one in tiles]


def object_settings(
    task: str, splits: Sequence[Split], *, suffix: str = '.jpg', side: int | None = None
) -> Settings:
    """Choose the settings of a detector or instance segmentor.

    The class with the smallest objects gets ``OBJECT`` px, and the longer side of the image is
    within ``SIDES``. Smaller images are enlarged. If objects would be smaller than ``TOO_SMALL``
    px, but are larger in the images, these are cut into tiles, files with ``suffix``. A given
    longer ``side``, in px, is used without tiles.
    """
    about = describe(splits[0])
    size = median_size(splits[0])
    small, label = smallest_class(splits[0].coco)
    longest = float(size.max())
    factor = min(max(min(1.0, OBJECT / small), SIDES[0] / longest), SIDES[1] / longest)
    if side:
        factor = side / longest
    scale = scaled(size, factor)
    seen, _ = smallest_class(splits[0].coco, scale)
    names = {category['id']: category['name'] for category in splits[0].coco['categories']}
    remark = f'smallest objects, {names[label]}: side of {small:.0f} px in the images'
    infer = ''
    tiles: list[Tiles] = []
    if not side and seen < min(TOO_SMALL, SHRUNK * small):
        overlap = overlap_of(splits)
        tiles = [tile_objects(split, overlap=overlap, suffix=suffix) for split in splits]
        splits = _tiled_splits(tiles)
        remark += f', {seen:.0f} px if shrunk to {max(scale)} px: {about_tiles(splits[0])}'
        infer = options_of_tiles(TILE, overlap)
        scale, factor = (TILE, TILE), 1.0
    else:
        remark += f', {seen:.0f} px in training (images of {max(scale)} px)'
    remarks = [remark, *vanishing(splits, scale), *enlarged(factor)]
    fields: dict[str, Any] = dict(scale=scale, length=iterations(splits[0]))
    if task == 'detector':
        # Times the stride of 8. Coarser strides are for objects of more than 32 px.
        fields['anchor'] = float(np.clip(small * factor / 8, 0.5, 4))
        fields['ratios'] = anchor_ratios(splits[0].coco)
    else:
        fields['anchor'] = float(np.clip(small * factor / 4, 2, 8))  # times the stride of 4
    most = most_objects(splits)
    # None for mmdet's 100.
    fields['detections'] = None if 2 * most <= DETECTIONS else math.ceil(2 * most / 100) * 100
    if fields['detections']:
        remarks.append(
            f'{most} objects in an image: the config predicts up to'
            f' {fields["detections"]}, and keeps the checkpoint of the best mAP_50, because'
            " COCO's mAP counts 100 per image"
        )
    classes = [category['name'] for category in splits[0].coco['categories']]
    return Settings(splits, classes, fields, about, remarks, infer, tiles)


def most_objects(splits: Sequence[Split]) -> int:
    """Return the maximum number of objects in an image."""
    counts = Counter[tuple[int, int]]()
    for number, split in enumerate(splits):
        for one in split.coco['annotations']:
            counts[number, one['image_id']] += not one['iscrowd']
    return max(counts.values(), default=0)


def _trained(coco: Coco, scale: Sequence[int] | None = None) -> np.ndarray:
    """Return category index, width and height of the objects that a detector learns, (N, 3).

    With ``scale``, sizes are those in resized images.
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
        raise InputError('data: the training images have no objects to learn')
    return np.array(rows, float)


def smallest_class(coco: Coco, scale: Sequence[int] | None = None) -> tuple[float, int]:
    """Find the class with the smallest objects, by their lower quartile.

    With ``scale``, sizes are those in resized images.

    Returns:
        The side of these objects in px, and the id of the class.
    """
    kinds, widths, heights = _trained(coco, scale).T
    sides = np.sqrt(widths * heights)
    side, kind = min(
        (float(np.quantile(sides[kinds == kind], 0.25)), int(kind)) for kind in np.unique(kinds)
    )
    return side, coco['categories'][kind]['id']


def anchor_ratios(coco: Coco) -> list[float]:
    """Choose two ratios of anchors, height / width, that differ by at least a quarter.

    The shipped detector has two, so its weights need two. Equal ratios would duplicate each anchor.
    """
    _, widths, heights = _trained(coco).T
    low, high = np.quantile(heights / widths, (0.25, 0.75)).tolist()
    if high < 1.25 * low:
        centre = (low * high) ** 0.5
        low, high = centre / 1.25**0.5, centre * 1.25**0.5
    return [round(low, 2), round(high, 2)]


def measure(classes: np.ndarray, count: int = IGNORE) -> np.ndarray:
    """Count pixels of each class in a map (H, W), and pixel edges to other classes.

    The border of the map is not an edge, but the border to pixels without class is one.

    Returns:
        (2, count + 1): areas and edges; the last column is that of pixels without class.
    """
    classes = np.minimum(classes, count)  # "no class" is a larger number
    counts = np.zeros((2, count + 1), np.int64)
    counts[0] = np.bincount(classes.ravel(), minlength=count + 1)
    for one, other in ((classes[:, 1:], classes[:, :-1]), (classes[1:], classes[:-1])):
        differ = one != other
        for side in (one, other):
            counts[1] += np.bincount(side[differ], minlength=count + 1)
    return counts


class ThinnestClass(NamedTuple):
    """Label of the thinnest class, and its width in px in the images and in training."""

    label: int
    own: float
    seen: float


def find_thinnest(counts: Sequence[np.ndarray], factors: Sequence[float]) -> ThinnestClass | None:
    """Find the class that is thinnest after resizing each image by its factor.

    The width is 2 * area / edges over all images. This is the width of a line, half of a square's
    side, or 0.4 of a disc's diameter. The result is ``None`` if no class has an edge.

    Args:
        counts: Counts of each image, from :func:`..read.masks.measure`.
        factors: Factor of each image.
    """
    areas, edges = np.moveaxis(np.asarray(counts, float), 1, 0)  # (images, 256) each
    factor = np.asarray(factors)[:, None]
    own = _widths(areas, edges)
    seen = _widths(areas * factor**2, edges * factor)
    label = int(np.argmin(seen))
    if not np.isfinite(seen[label]):
        return None
    return ThinnestClass(label, float(own[label]), float(seen[label]))


def _widths(areas: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Compute the width of each class in px; infinite without edges, and without a class."""
    total = edges.sum(axis=0)
    widths = np.full(len(total), np.inf)
    np.divide(2 * areas.sum(axis=0), total, out=widths, where=total > 0)
    widths[-1] = np.inf
    return widths


@dataclass
class ClassMaps:
    """Facts of class maps.

    Args:
        classes: Names of the classes.
        counts: Counts of each training image's map, from :func:`..read.masks.measure`.
        read: Function that returns the map of an image by its ``file_name``.
        missing: Share of pixels without data in the images.
        georeferenced: The images are georeferenced.
    """

    classes: Sequence[str]
    counts: Sequence[np.ndarray]
    read: Callable[[str], np.ndarray]
    missing: float = 0.0
    georeferenced: bool = False


def map_settings(
    splits: Sequence[Split], maps: ClassMaps, *, suffix: str = '.jpg', side: int | None = None
) -> Settings:
    """Choose the settings of a segmentor.

    The longer side of an image has ``SIDES[0]`` to ``CLASS_MAP_SIDE`` px; georeferenced images are
    not enlarged. If the thinnest class would be thinner than ``TOO_THIN`` px, but is wider in the
    images, these are cut into tiles, files with ``suffix``. Larger georeferenced images are cut
    too, so that all are seen at their own scale. ``side`` is that of :func:`object_settings`.
    """
    about = describe(splits[0])
    size = median_size(splits[0])
    least = 0.0 if maps.georeferenced else SIDES[0]
    factor = float(np.clip(1.0, least / size.max(), CLASS_MAP_SIDE / size.max()))
    if side:
        factor = float(side / size.max())
    scale = scaled(size, factor)
    crop = _crop_side(scale[1]), _crop_side(scale[0])
    fields: dict[str, Any] = dict(is_tiled=False, scale=scale, crop=crop)
    remarks = [f'scale of training: {scale[0]} x {scale[1]} px, {factor:.0%} of the images']
    remarks += enlarged(factor)
    infer = options_of_tiles(max(scale), max(scale) // 4) if maps.georeferenced else ''
    why = ''
    if not side and maps.georeferenced and _largest_side(splits) > CLASS_MAP_SIDE:
        why = f'georeferenced images of more than {CLASS_MAP_SIDE} px'
    images = splits[0].coco['images']
    thin = find_thinnest(maps.counts, [factor_of(image, scale) for image in images])
    if thin is not None:
        widths = f'thinnest class, {maps.classes[thin.label]}: {thin.own:.1f} px in the images'
        widths += f', {thin.seen:.1f} px'
        if not side and thin.seen < min(TOO_THIN, SHRUNK * thin.own):
            why = f'{widths} if shrunk to {max(scale)} px'
        widths += f' in training (images of {max(scale)} px)'
        if thin.seen < TOO_THIN:
            widths += f', less than the finest stride of the backbone, {TOO_THIN} px'
        remarks.append(widths)
    tiles: list[Tiles] = []
    if why:
        tiles = _tiles_for_crops(splits, maps, suffix)
        splits = _tiled_splits(tiles)
        side_of_crop = (CLASS_MAP_SIDE, CLASS_MAP_SIDE)
        fields = dict(is_tiled=True, scale=side_of_crop, crop=side_of_crop)
        remarks = [f'{why}: {about_tiles(splits[0])}, in crops of {CLASS_MAP_SIDE} px']
        infer = options_of_tiles(CLASS_MAP_SIDE, CLASS_MAP_SIDE // 4)
    remarks += note_rare(maps)
    if maps.missing:
        share = f'{maps.missing:.2%}'
        remarks.append(f'pixels without data in the images: {share}; they have no class')
    fields['length'] = iterations(splits[0])
    return Settings(splits, maps.classes, fields, about, remarks, infer, tiles)


def note_rare(maps: ClassMaps) -> list[str]:
    """Name classes that a short training may not learn, because they have few pixels."""
    areas = np.sum([areas for areas, _ in maps.counts], axis=0)
    shares = areas[: len(maps.classes)] / areas.sum()
    rare = [name for name, share in zip(maps.classes, shares, strict=True) if 0 < share < RARE]
    if not rare:
        return []
    more = ', ...' if len(rare) > SHOWN else ''
    return [
        f'note: less than {RARE:.1%} of the pixels each: {", ".join(rare[:SHOWN])}{more}; such'
        ' classes stayed at an IoU of 0 in our short training on streets:'
        ' docs/example_masks.md#if-a-class-stays-at-0'
    ]


def _crop_side(side: int) -> int:
    """About two thirds of a side in px, a multiple of the coarsest stride.

    mmseg resizes the class scores to the crop. A last row of cells that reaches beyond it would
    shift them: trained on crops of 213 px, a model predicted objects 2 px too far down and right.
    """
    return max(1, round(side * 2 / 3 / STRIDE)) * STRIDE


def _largest_side(splits: Sequence[Split]) -> int:
    images = [image for split in splits for image in split.coco['images']]
    return max(max(image['width'], image['height']) for image in images)


def _tiles_for_crops(splits: Sequence[Split], maps: ClassMaps, suffix: str) -> list[Tiles]:
    """Make tiles that are larger than the crops for training, and as large for validation."""
    training, validation = splits
    no_class = no_class_of(len(maps.classes))
    overlap, crop = TILE // 4, CLASS_MAP_SIDE
    return [
        tile_maps(
            training, maps.read, side=TILE, overlap=overlap, suffix=suffix, no_class=no_class
        ),
        tile_maps(validation, maps.read, side=crop, suffix=suffix, no_class=no_class),
    ]


def class_settings(splits: Sequence[Split], *, side: int | None = None) -> Settings:
    """Choose the settings of a classifier; a given ``side`` in px is used."""
    if not side:
        smallest = median_size(splits[0]).min()
        side = max((one for one in CROPS if one <= smallest), default=CROPS[0])
    count = len(splits[0].coco['images'])
    fields: dict[str, Any] = dict(
        scale=side,
        batch=min(64, max(1, count // 2)),  # an epoch has only whole batches, at least two
        length=round(passes(count)),
    )
    remarks = [f'scale of training: {side} x {side} px']
    return Settings(splits, classes_of(splits), fields, describe(splits[0]), remarks)


@dataclass(frozen=True)
class Start:
    """Weights from which a model starts, with their settings.

    Args:
        load_from: Name or file of weights of a whole model; ``None`` for random heads.
        model: Values of ``model`` that differ from the recipe's.
        rates: Values of ``optim_wrapper`` that differ from the recipe's.
        least_rate: Learning rate at the end.
        has_queries: The model has queries instead of anchors.
    """

    load_from: str | None
    model: Values
    rates: Values
    least_rate: float
    has_queries: bool = False


def default_weights(task: str) -> str | None:
    """Return the name of shipped weights for a task; ``None`` if none are shipped."""
    folder = PurePosixPath(RECIPES[task]).parent
    for name, weights in shipped_weights().items():
        if PurePosixPath(weights.config).parent == folder:
            return name
    return None


def start_from(
    task: str,
    weights: str | None,
    *,
    scale: Any,
    channels: int = 3,
    pretrained: Pretrained | None = None,
    published: WholeModel | None = None,
) -> Start:
    """Choose the weights from which the model of a task starts.

    Args:
        task: A key of ``RECIPES``.
        weights: Shipped weights, ``'none'``, or ``None`` for the default. Weights of the same task
            are loaded as a whole, and others for the backbone only.
        scale: Training scale, for which a classifier's position embedding is made.
        channels: Channels of the images. Only backbone weights fit other numbers than 3.
        pretrained: The backbone of other weights than these.
        published: The published model of these weights.
    """
    if published is not None:
        rates, has_queries = _rates(published), published.has_queries
        return Start(published.weights, {}, rates, 0, has_queries)
    if pretrained is not None:
        return start_elsewhere(task, pretrained)
    whole = default_weights(task)
    if weights is None:
        weights = default_weights('classifier') if channels != 3 or whole is None else whole
    backbone: Values = {} if channels == 3 else dict(in_channels=channels)
    load_from = None
    if weights == whole and channels == 3:
        load_from = weights
    # A whole model includes the weights of the backbone.
    backbone['init_cfg'] = None if load_from or weights == 'none' else weights
    if task == 'classifier':
        backbone |= dict(arch='tiny', img_size=scale)
    return Start(load_from, dict(backbone=backbone) if backbone else {}, {}, 1e-5)


def start_elsewhere(task: str, pretrained: Pretrained, *, load_from: str | None = None) -> Start:
    """Return start and learning rates of a model with the backbone of other weights.

    Args:
        task: A key of ``RECIPES``.
        pretrained: The backbone.
        load_from: The checkpoint, if the whole model is loaded from it.
    """
    arguments = dict(pretrained.arguments)
    if load_from is not None:
        arguments['init_cfg'] = None
    channels: Sequence[int] = pretrained.out_channels
    model: Values = dict(backbone=dict(_delete_=True, **arguments))
    if task == 'classifier':
        model['head'] = dict(in_channels=channels[-1])
    else:
        model['neck'] = dict(in_channels=[*channels])
    return Start(load_from, model, _rates(pretrained), 0)


def _rates(model: Pretrained | WholeModel) -> Values:
    """Return learning rates of another model than the recipe's, whose rate is for 192 channels."""
    rate = float(f'{1e-3 * min(1.0, 192 / model.out_channels[-1]):.2g}')
    rates: Values = dict(optimizer=dict(lr=rate))
    if model.is_plain:
        # The rate of the head; rates of the backbone fall towards its first blocks.
        rates['constructor'] = 'LayerDecayOptimWrapperConstructor'
        rates['paramwise_cfg'] = dict(layer_decay_rate=0.75)
    return rates
