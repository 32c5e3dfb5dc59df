"""Tiles: coverage, blending weights, and equality with whole images for pixelwise models."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from local_models import BlockDetector, BlockInstances, LocalSegmentor
from pycocotools import mask as coco_mask

from cpvt_backbones.inference import ImageError, Inferencer
from cpvt_backbones.inference.predictions import (
    LoadedImage,
    decode_mask,
    encode_mask,
    predict_tiled,
)
from cpvt_backbones.inference.tiles import (
    Bounds,
    blend_tiles,
    make_grid,
    make_panels,
    merge_groups,
    ramp_weights,
    tile_order,
)

pytest.importorskip('shapely')
sides = st.integers(1, 150)


def tiles_of(smallest, largest):
    """A size in px, and an overlap below it."""
    sizes = st.integers(smallest, largest)
    return sizes.flatmap(lambda tile: st.tuples(st.just(tile), st.integers(0, tile - 1)))


tiles = tiles_of(1, 40)


@given(height=sides, width=sides, tile=tiles)
def test_tiles_cover_the_image_and_overlap_as_asked(height, width, tile):
    size, overlap = tile
    grid = make_grid(height, width, tile_size=size, overlap=overlap)
    for spans, length in ((grid.rows, height), (grid.columns, width)):
        assert spans[0][0] == 0 and spans[-1][1] == length
        assert all(stop - start == min(size, length) for start, stop in spans)
        shared = [before[1] - after[0] for before, after in zip(spans, spans[1:], strict=False)]
        assert all(share == overlap for share in shared[:-1])
        assert all(overlap <= share < size for share in shared[-1:])


@given(length=st.integers(1, 300), tile=tiles)
def test_weights_sum_to_one_at_every_pixel(length, tile):
    size, overlap = tile
    spans = make_grid(1, length, tile_size=size, overlap=overlap).columns
    total = np.zeros(length)
    for (start, stop), weight in zip(spans, ramp_weights(spans), strict=True):
        assert weight.min() > 0 and len(weight) == stop - start
        total[start:stop] += weight
    np.testing.assert_allclose(total, 1, atol=1e-6)


def blend(tiles, grid, to_classes, limit=1 << 30):
    """Blended map; ``tiles`` has the logits of each tile by its spans."""
    panels = make_panels(grid, channels=3, limit=limit)
    blended = np.full((grid.rows[-1][1], grid.columns[-1][1]), np.nan)
    ordered = (tiles[spans] for spans in tile_order(grid, panels))
    for rows, columns, block in blend_tiles(ordered, grid, panels, to_classes=to_classes):
        part = blended[slice(*rows), slice(*columns)]
        assert np.isnan(part).all(), 'a pixel is decided once'
        part[:] = block
    return blended, panels


@given(
    height=st.integers(1, 30),
    width=st.integers(1, 100),
    tile=tiles_of(6, 16),
    seed=st.integers(0, 9),
)
def test_blended_logits_are_the_weighted_mean(height, width, tile, seed):
    """Compared with all logits of the image, summed in one array.

    Panels of columns change nothing.
    """
    size, overlap = tile
    grid = make_grid(height, width, tile_size=size, overlap=overlap)
    rng = np.random.default_rng(seed)
    summed = np.zeros((3, height, width))
    logits = {}
    rows = zip(grid.rows, ramp_weights(grid.rows), strict=True)
    columns = zip(grid.columns, ramp_weights(grid.columns), strict=True)
    for (row, row_weight), (column, column_weight) in itertools.product(rows, columns):
        # Tiles differ in the pixels that they share.
        one = rng.normal(size=(3, row[1] - row[0], column[1] - column[0])).astype(np.float32)
        summed[:, slice(*row), slice(*column)] += one * row_weight[:, None] * column_weight
        logits[row, column] = torch.from_numpy(one)
    class_map, panels = blend(logits, grid, lambda x: x.argmax(0).numpy())
    assert len(panels) == 1
    in_panels, panels = blend(logits, grid, lambda x: x.argmax(0).numpy(), limit=1)
    assert len(panels) == -(-len(grid.columns) // 4)
    np.testing.assert_array_equal(in_panels, class_map)
    ordered = np.sort(summed, axis=0)
    clear = ordered[-1] - ordered[-2] > 1e-4
    np.testing.assert_array_equal(class_map[clear], summed.argmax(0)[clear])


def test_blending_is_linear_across_an_overlap():
    """Of two tiles that differ by a constant, the mean changes in equal steps."""
    grid = make_grid(4, 24, tile_size=16, overlap=8)
    tiles = {((0, 4), columns): torch.full((1, 4, 16), i) for i, columns in enumerate(grid.columns)}
    blended, _ = blend(tiles, grid, lambda x: x[0].numpy())
    np.testing.assert_allclose(blended[0, 8:16], (np.arange(8) + 0.5) / 8, atol=1e-6)
    assert not blended[:, :8].any() and (blended[:, 16:] == 1).all()


@pytest.mark.parametrize('size', [(100, 130), (1, 500), (500, 1), (33, 33), (64, 32)])
@pytest.mark.parametrize('overlap', [0, 5, 28])
def test_a_local_segmentor_is_tiled_exactly(size, overlap):
    image = np.random.default_rng(0).integers(0, 255, (*size, 3), np.uint8)
    whole, _ = Inferencer(predictor=LocalSegmentor())(image)
    predictor = LocalSegmentor()
    bounds = dict(max_pixels=1024, tile_size=32, overlap=overlap)
    tiled, _ = Inferencer(predictor=predictor, **bounds)(image)
    if size[0] * size[1] > 1024:
        assert len(predictor.forwards) > 1
    assert max(h * w * len(batch) for batch in predictor.forwards for h, w in batch[:1]) <= 1024
    np.testing.assert_array_equal(tiled['seg_map'], whole['seg_map'])
    assert tiled['seg_map'].dtype == np.uint8


def blocks(size=(180, 260)):
    """An image and its rectangles: (x1, y1, x2, y2, label)."""
    image = np.zeros((*size, 3), np.uint8)
    boxes = []
    places = itertools.product(range(5, size[0] - 20, 30), range(5, size[1] - 20, 30))
    for i, (y, x) in enumerate(places):
        channel, w, h = i % 3, 8 + i % 7, 6 + i % 9
        image[y : y + h, x : x + w, channel] = 255
        boxes.append((x, y, x + w, y + h, channel))
    return image, sorted(boxes)


@pytest.mark.parametrize('predictor', [BlockDetector(), BlockInstances()], ids=['boxes', 'masks'])
def test_objects_smaller_than_the_overlap_are_found_once(predictor):
    image, boxes = blocks()
    inferencer = Inferencer(predictor=predictor, max_pixels=64 * 64, tile_size=64, overlap=20)
    prediction, _ = inferencer(image)
    found = zip(prediction['boxes'], prediction['labels'], strict=True)
    assert sorted((*box, label) for box, label in found) == boxes
    if 'masks' in prediction:
        from pycocotools import mask as coco_mask

        for mask, box in zip(prediction['masks'], prediction['boxes'], strict=True):
            x1, y1, x2, y2 = map(int, box)
            expected = np.zeros(image.shape[:2], np.uint8)
            expected[y1:y2, x1:x2] = 1
            np.testing.assert_array_equal(coco_mask.decode(mask), expected)


def test_merge_groups():
    boxes = np.array(
        [
            [0, 0, 10, 10],  # whole in two tiles
            [1, 0, 11, 10],
            [0, 0, 10, 10],  # the same place, another class
            [50, 0, 60, 10],  # whole, and in two parts, one of a better score
            [50, 0, 56, 10],
            [57, 0, 60, 10],
            [80, 0, 90, 10],  # only in parts
            [84, 0, 96, 10],
            [200, 0, 210, 10],  # two objects of one tile
            [204, 0, 214, 10],
        ],
        np.float32,
    )
    scores = np.array([0.5, 0.9, 0.8, 0.7, 0.99, 0.3, 0.6, 0.65, 0.55, 0.54])
    labels = np.array([0, 0, 1, 0, 0, 0, 0, 0, 0, 0])
    cut = np.isin(np.arange(10), (4, 5, 6, 7))
    left, right = boxes[:, 0] < 84, boxes[:, 0] >= 84
    tiles = np.zeros((10, 4))
    tiles[left], tiles[right] = (0, 0, 90, 60), (84, 0, 240, 60)
    tiles[4:6] = (0, 0, 56, 60), (57, 0, 147, 60)
    tiles[1] = (0, 0, 48, 60)
    assert merge_groups(boxes, scores, labels, cut, tiles) == [[1], [2], [3], [7, 6], [8], [9]]
    none = np.zeros(0)
    assert merge_groups(boxes[:0], none, none.astype(int), none.astype(bool), tiles[:0]) == []


def test_parts_of_parts_are_one_object():
    """Also if the first and the last do not overlap; but two parts of one tile are two objects."""
    boxes = np.array(
        [[0, 0, 4, 10], [0, 0, 30, 10], [14, 0, 40, 10], [36, 0, 40, 10], [60, 0, 64, 10]],
        np.float32,
    )
    scores = np.array([0.9, 0.5, 0.6, 0.8, 0.7])
    lefts = np.array([-36, -10, 14, 36, 36])
    tiles = np.column_stack((lefts, np.zeros(5), lefts + 40, np.full(5, 40)))
    assert merge_groups(boxes, scores, np.zeros(5, int), np.ones(5, bool), tiles) == [
        [0, 3, 2, 1],
        [4],
    ]
    boxes[4] = 37, 0, 40, 10  # beside another part of the joined box, in one tile
    assert merge_groups(boxes, scores, np.zeros(5, int), np.ones(5, bool), tiles) == [
        [0, 3, 2, 1],
        [4],
    ]
    tiles[4] = 37, 0, 77, 40  # whose tile has no other part of it
    assert merge_groups(boxes, scores, np.zeros(5, int), np.ones(5, bool), tiles) == [
        [0, 3, 4, 2, 1]
    ]


def merged(boxes, scores, tiles, *, cut=None, labels=None, threshold=0.5):
    count = len(boxes)
    return merge_groups(
        np.array(boxes, np.float32),
        np.array(scores, float),
        np.zeros(count, int) if labels is None else np.array(labels),
        np.zeros(count, bool) if cut is None else np.array(cut),
        np.array(tiles),
        threshold=threshold,
    )


LEFT, RIGHT = (0, 0, 640, 640), (500, 0, 1140, 640)
PAIR = [10, 10, 60, 60], [20, 10, 70, 60]  # IoU 0.67


def test_boxes_of_one_tile_do_not_compete():
    """The detector kept both: two objects that overlap."""
    assert merged(PAIR, [0.9, 0.8], [LEFT, LEFT]) == [[0], [1]]
    assert merged(PAIR, [0.9, 0.8], [LEFT, RIGHT]) == [[0]]
    assert merged(PAIR, [0.9, 0.8], [LEFT, RIGHT], labels=[0, 1]) == [[0], [1]]
    # One of them ends at the edge of the tile, inside the other.
    boxes = [500, 10, 640, 60], [600, 10, 640, 60]
    cut = [False, True]
    assert merged(boxes, [0.9, 0.8], [LEFT, LEFT], cut=cut) == [[0], [1]]
    assert merged(boxes, [0.9, 0.8], [RIGHT, LEFT], cut=cut) == [[0]]
    # Both tiles see the larger: the smaller is beside it in the first.
    boxes = [*boxes, [501, 10, 641, 60]]
    cut = [False, True, False]
    assert merged(boxes, [0.9, 0.8, 0.95], [LEFT, LEFT, RIGHT], cut=cut) == [[2], [1]]


@pytest.mark.parametrize('scores', [*itertools.permutations([0.9, 0.8, 0.7, 0.6])])
def test_overlapping_objects_of_two_tiles_stay_two(scores):
    """Each tile has both, a px apart; a box stands for one box of another tile, the nearest."""
    boxes = np.array([*PAIR, *np.array(PAIR) + 1]) + [500, 0, 500, 0]
    found = merged(boxes, scores, [LEFT, LEFT, RIGHT, RIGHT])
    best = {max(pair, key=lambda i: scores[i]) for pair in ((0, 2), (1, 3))}
    assert {i for group in found for i in group} == best
    # The second tile has one of them.
    found = merged(boxes[:3], scores[:3], [LEFT, LEFT, RIGHT])
    assert sorted(i for (i,) in found) == sorted([max((0, 2), key=lambda i: scores[i]), 1])


def test_the_threshold_is_that_of_the_detector():
    for threshold, count in ((0.5, 1), (0.66, 1), (0.67, 2), (0.9, 2)):
        assert len(merged(PAIR, [0.9, 0.8], [LEFT, RIGHT], threshold=threshold)) == count


def test_one_object_in_four_tiles():
    box = np.array([50, 50, 60, 60])
    tiles = [(x, y, x + 64, y + 64) for x in (0, 40) for y in (0, 40)]
    boxes = [box + shift for shift in (0, 1, -1, 0)]
    assert merged(boxes, [0.6, 0.9, 0.7, 0.8], tiles) == [[1]]


class Overlapping(BlockDetector):
    """Finds each rectangle twice, shifted: as a detector of crowds, which removes no overlaps."""

    nms_threshold = None

    def predict(self, images):
        predictions = super().predict(images)
        for one in predictions:
            one['boxes'] = np.concatenate([one['boxes'], one['boxes'] + [0, 0, 3, 3]])
            one['labels'] = np.tile(one['labels'], 2)
            one['scores'] = np.concatenate([one['scores'], one['scores'] - 0.1])
        return predictions


def test_objects_that_a_tile_shows_are_all_kept():
    """All content in the first of two tiles: as many boxes as untiled."""
    image, _ = blocks((64, 60))
    image = np.pad(image, ((0, 0), (0, 60), (0, 0)))
    untiled = Inferencer(predictor=Overlapping())(image)[0]
    options = dict(max_pixels=64 * 64, tile_size=64, overlap=8)
    tiled = Inferencer(predictor=Overlapping(), **options)(image)[0]
    assert sorted(tiled['boxes']) == sorted(untiled['boxes']) and len(tiled['boxes']) >= 4


def test_a_small_object_does_not_hide_a_large_one():
    boxes = np.array([[100, 100, 500, 700], [200, 300, 260, 360], [240, 100, 640, 700]], np.float32)
    scores, labels = np.array([0.95, 0.4, 0.9]), np.zeros(3, int)
    cut = np.array([True, False, True])
    tiles = np.array([[0, 0, 500, 800], [0, 0, 500, 800], [240, 0, 740, 800]])
    assert merge_groups(boxes, scores, labels, cut, tiles) == [[0, 2], [1]]
    assert merge_groups(boxes[:2], scores[:2], labels[:2], cut[:2], tiles[:2]) == [[0], [1]]
    assert merge_groups(boxes, scores, np.array([0, 0, 1]), cut, tiles) == [[0], [2], [1]]


def test_masks_beyond_run_lengths_are_refused_at_the_first_tile():
    """pycocotools counts pixels in 32 bits."""
    for height, width in ((65536, 65536), (1, 2**32)):
        with pytest.raises(ValueError, match='has 4,294,967,296: cut it into parts') as caught:
            encode_mask(np.ones((1, 4), bool), height=height, width=width)
        assert '\n' not in str(caught.value)
    edge = encode_mask(np.ones((1, 4), bool), height=1, width=2**32 - 1, left=2**32 - 5)
    assert sum(coco_mask.toBbox(edge)) == 2**32 - 5 + 4 + 1
    tiny = np.zeros((1, 1, 3), np.uint8)
    scene = np.broadcast_to(tiny, (66_000, 66_000, 3))
    bounds = Bounds(batch_size=1, max_pixels=64 * 64, tile_size=64, overlap=0)
    loaded = LoadedImage(0, 'scene.tif', (66_000, 66_000), scene)
    predictor = BlockInstances()
    with pytest.raises(ImageError, match=r'scene\.tif: .*66000 x 66000 px'):
        predict_tiled(predictor, loaded, 0.3, bounds, None)
    assert len(predictor.forwards) == 1


@pytest.mark.parametrize('span', [(30, 130), (41, 101), (3, 197)])
@pytest.mark.parametrize('predictor', [BlockDetector(), BlockInstances()], ids=['boxes', 'masks'])
def test_objects_much_longer_than_the_overlap_are_found_once(predictor, span):
    image = np.zeros((70, 200, 3), np.uint8)
    image[12:60, span[0] : span[1], 1] = 255
    prediction, _ = Inferencer(predictor=predictor, max_pixels=1600, tile_size=40, overlap=4)(image)
    assert prediction['boxes'] == [[span[0], 12, span[1], 60]]
    for mask in prediction.get('masks', ()):
        assert np.array_equal(decode_mask(mask, height=70, width=200), image[..., 1] > 0)


def test_a_size_policy_comes_before_tiling():
    image, boxes = blocks((180, 260))
    predictor = BlockDetector()
    bounds = dict(max_pixels=128 * 128, tile_size=128, overlap=40)
    prediction, _ = Inferencer(predictor=predictor, long_side=520, **bounds)(image)
    assert max(len(batch) for batch in predictor.forwards) == 1
    assert len(predictor.forwards) > 6
    found = np.round(prediction['boxes']).astype(int).tolist()
    assert sorted(found) == sorted([list(box[:4]) for box in boxes])


@pytest.mark.parametrize('long_side', [61, 150])
def test_resized_maps_and_masks_are_not_shifted(long_side):
    """A mirrored image has the mirrored class map and masks."""
    image = np.zeros((97, 97, 3), np.uint8)
    image[20:34, 30:46] = 255
    options = dict(long_side=long_side, max_pixels=40 * 40, tile_size=40, overlap=30)
    segmentor = Inferencer(predictor=LocalSegmentor(), **options)
    instances = Inferencer(predictor=BlockInstances(), **options)

    def maps_and_masks(picture):
        masks = instances(picture)[0]['masks']
        decoded = [decode_mask(mask, height=97, width=97) for mask in masks]
        return segmentor(picture)[0]['seg_map'], np.array(decoded)

    seg_map, masks = maps_and_masks(image)
    mirrored_map, mirrored_masks = maps_and_masks(image[:, ::-1].copy())
    assert np.array_equal(seg_map, mirrored_map[:, ::-1]) and len(np.unique(seg_map)) > 1
    assert np.array_equal(masks, mirrored_masks[..., ::-1]) and len(masks) == 3
