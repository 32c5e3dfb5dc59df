"""Overlapping tiles for images that exceed one forward call, and merging of their outputs."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cpvt_backbones.checks import check_int
from cpvt_backbones.errors import InputError
from cpvt_backbones.images.windows import Block, Span

# Minimum IoU of two boxes of one object for a detector without non-maximum suppression. The IoU of
# two parts counts the area that both tiles cover.
SAME_OBJECT = 0.5
PART_OF = 0.5  # minimum share of a part's area inside the box of its object
CUT_MARGIN = 8  # px; a box that ends closer to a cut may be part of an object

BLEND_BYTES = 1 << 29  # maximum size of logits shared by rows of tiles

Panel = tuple[range, int]  # columns of tiles, and the first one that is not in an earlier panel


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Limits of one forward call; see :class:`Inferencer`. Wrong values raise ``ValueError``."""

    batch_size: int
    max_pixels: int
    tile_size: int
    overlap: int

    def __post_init__(self) -> None:
        check_int(batch_size=self.batch_size, max_pixels=self.max_pixels, tile_size=self.tile_size)
        if not 0 <= self.overlap < self.tile_size:
            raise InputError(
                f'overlap must be at least 0 and below tile_size={self.tile_size}, got'
                f' {self.overlap}',
                argument='overlap',
            )
        if self.tile_size**2 > self.max_pixels:
            tile = f'{self.tile_size} x {self.tile_size}'
            raise InputError(
                f'tile_size: a tile of {tile} has more pixels than max_pixels={self.max_pixels}',
                argument='tile_size',
            )

    def batch_of(self, pixels: int) -> int:
        """Return the maximum batch size for images of ``pixels`` each, at least 1."""
        return max(1, min(self.batch_size, self.max_pixels // pixels))


class TileGrid(NamedTuple):
    """Tiles of one size that cover an image: every row span with every column span."""

    rows: tuple[Span, ...]  # (top, bottom) in px, from the top
    columns: tuple[Span, ...]  # (left, right) in px, from the left


def make_grid(height: int, width: int, *, tile_size: int, overlap: int) -> TileGrid:
    """Cover an image of (height, width) px by tiles with sides of ``tile_size`` px.

    A tile is smaller only if the image is smaller. Neighbours share ``overlap`` px. The last two of
    a row or column may share more, because the last tile ends at the image's edge.
    """

    def cover(length: int) -> tuple[Span, ...]:
        last = max(0, length - tile_size)
        starts = [*range(0, last, tile_size - overlap), last]
        return tuple((start, min(start + tile_size, length)) for start in starts)

    return TileGrid(rows=cover(height), columns=cover(width))


def ramp_weights(spans: Sequence[Span]) -> list[np.ndarray]:
    """Compute blending weights (float32) along one axis, for sorted tiles without gaps.

    Over pixels shared with a neighbour, a weight falls linearly to the tile's edge. The weights of
    a pixel sum to one.
    """
    previous_stops = [spans[0][0], *(stop for _, stop in spans[:-1])]
    next_starts = [*(start for start, _ in spans[1:]), spans[-1][1]]
    total = np.zeros(spans[-1][1])
    ramps = []
    for (start, stop), previous, following in zip(spans, previous_stops, next_starts, strict=True):
        at = np.arange(start, stop) + 0.5
        rise = (at - start) / max(previous - start, 1e-9)
        fall = (stop - at) / max(stop - following, 1e-9)
        ramp = np.minimum(1, np.minimum(rise, fall))
        ramps.append(ramp)
        total[start:stop] += ramp
    weights = []
    for ramp, (start, stop) in zip(ramps, spans, strict=True):
        weights.append((ramp / total[start:stop]).astype(np.float32))
    return weights


def make_panels(grid: TileGrid, *, channels: int, limit: int = BLEND_BYTES) -> list[Panel]:
    """Divide the columns of a grid so that :func:`blend_tiles` keeps about ``limit`` bytes.

    These are for logits of ``channels``. Columns that share pixels with the first new column of a
    panel run again. To limit this, a panel has at least four new columns.
    """
    shared = max((end - top for (_, end), (top, _) in pairwise(grid.rows)), default=0)
    most = limit // (2 * 4 * channels * max(1, shared))  # px; above and below, float32
    panels = []
    new = 0
    while new < len(grid.columns):
        left_of_new = grid.columns[new][0]
        first = new
        while first > 0 and grid.columns[first - 1][1] > left_of_new:
            first -= 1
        limit_right = grid.columns[first][0] + most
        fitting = sum(right <= limit_right for _, right in grid.columns)
        stop = min(max(new + 4, fitting), len(grid.columns))
        panels.append((range(first, stop), new))
        new = stop
    return panels


def tile_order(grid: TileGrid, panels: Sequence[Panel]) -> list[tuple[Span, Span]]:
    """List rows and columns of each tile, by panel, then by row, then from left to right."""
    order = []
    for columns, _ in panels:
        for rows in grid.rows:
            order += [(rows, grid.columns[i]) for i in columns]
    return order


def blend_tiles(
    tiles: Iterator[Tensor],
    grid: TileGrid,
    panels: Sequence[Panel],
    *,
    to_classes: Callable[[Tensor], np.ndarray],
) -> Iterator[Block]:
    """Yield blocks of classes from the weighted mean logits of overlapping tiles.

    Weights are those of :func:`ramp_weights`. When no later tile covers a pixel, its class is
    computed and its logits are dropped. The memory holds the logits of one tile, and of the pixels
    that two rows of tiles share in a panel.

    Args:
        tiles: Iterator over the logits (C, h, w) of each tile in :func:`tile_order`.
        grid: The tiles.
        panels: Panels of the grid, from :func:`make_panels`.
        to_classes: Function from logits (C, h, w) to classes (h, w).
    """
    row_weights, column_weights = ramp_weights(grid.rows), ramp_weights(grid.columns)
    next_tops = [*(top for top, _ in grid.rows[1:]), grid.rows[-1][1]]
    next_lefts = [*(left for left, _ in grid.columns[1:]), grid.columns[-1][1]]
    for columns, new in panels:
        start, stop = grid.columns[columns[0]][0], next_lefts[columns[-1]]
        # Weighted sums shared with the previous row of tiles: (C, rows, stop - start).
        above: Tensor | None = None
        for (top, bottom), row_weight, next_top in zip(
            grid.rows, row_weights, next_tops, strict=True
        ):
            below: Tensor | None = None  # shared with the next row of tiles
            # Shared with the previous tile of the row: (C, h, columns).
            before: Tensor | None = None
            for i in columns:
                left, next_left = grid.columns[i][0], next_lefts[i]
                logits = next(tiles)
                weights = torch.from_numpy(row_weight[:, None] * column_weights[i])
                summed = logits * weights.to(logits.device)
                if before is not None:
                    summed[..., : before.shape[-1]] += before
                before = summed[..., next_left - left :]
                summed = summed[..., : next_left - left]
                if above is not None:
                    summed[:, : above.shape[1]] += above[..., left - start : next_left - start]
                if i >= new:
                    classes = to_classes(summed[:, : next_top - top])
                    yield (top, next_top), (left, next_left), classes
                if next_top < bottom:
                    if below is None:
                        below = summed.new_empty((len(summed), bottom - next_top, stop - start))
                    below[..., left - start : next_left - start] = summed[:, next_top - top :]
            above = below


def is_cut(boxes: np.ndarray, tiles: np.ndarray, *, height: int, width: int) -> np.ndarray:
    """Mark boxes that end at an inner edge of their tiles; return (N,) bool.

    ``boxes`` and ``tiles`` are (N, 4), in px of the image.
    """
    at_edge = np.abs(boxes - tiles) < CUT_MARGIN
    is_inner = tiles != [0, 0, width, height]
    return (at_edge & is_inner).any(axis=1)


def merge_groups(
    boxes: np.ndarray,
    scores: np.ndarray,
    labels: np.ndarray,
    cut: np.ndarray,
    tiles: np.ndarray,
    *,
    threshold: float = SAME_OBJECT,
) -> list[list[int]]:
    """Group the boxes of overlapping tiles by object.

    Groups, and the indices in a group, are sorted by descending score. Only boxes of different
    tiles compete, because two boxes of one tile are different objects if the detector kept both. An
    object may have one uncut box in each tile that shows it; the best one is kept, and parts inside
    it are dropped. Parts of an object without an uncut box are joined. Boxes of different classes
    are different objects.

    Args:
        boxes: (N, 4), x1, y1, x2, y2 in px of the image.
        scores: (N,).
        labels: (N,).
        cut: (N,) bool, from :func:`is_cut`.
        tiles: (N, 4), the tile of each box.
        threshold: Minimum IoU of two boxes of one object. The threshold of the detector's own
            non-maximum suppression gives the boxes that it would keep in the whole image.
    """
    whole, parts = np.flatnonzero(~cut), np.flatnonzero(cut)
    objects = _group(whole, _same_boxes(boxes, whole, threshold), labels, tiles)
    groups = [[max(group, key=lambda i: scores[i])] for group in objects]
    parts = parts[~_are_inside(parts, objects, boxes, labels, tiles)]
    joined = _group(parts, _same_parts(boxes, tiles, parts), labels, tiles)
    alone = np.array([group[0] for group in joined if len(group) == 1], int)
    joined = [group for group in joined if len(group) > 1]
    alone = alone[~_are_inside(alone, joined, boxes, labels, tiles, as_one=True)]
    groups += [sorted(group, key=lambda i: -scores[i]) for group in joined]
    groups += [[int(i)] for i in alone]
    return sorted(groups, key=lambda group: -scores[group[0]])


def bounding_boxes(boxes: np.ndarray, groups: list[list[int]]) -> np.ndarray:
    """Enclose each group of boxes (N, 4) in one box; return (groups, 4) float32."""
    corners = [(*boxes[group, :2].min(0), *boxes[group, 2:].max(0)) for group in groups]
    return np.array(corners, np.float32).reshape(-1, 4)


def _same_boxes(
    boxes: np.ndarray, members: np.ndarray, threshold: float
) -> Iterator[tuple[int, int]]:
    """List pairs of uncut boxes that may be one object, by descending IoU."""
    a, b = members[_touching_pairs(boxes[members], boxes[members])]
    return _best_first(a, b, boxes[a], boxes[b], threshold)


def _same_parts(
    boxes: np.ndarray, tiles: np.ndarray, members: np.ndarray
) -> Iterator[tuple[int, int]]:
    """List pairs of parts that may be one object, by descending IoU in the area of both tiles."""
    a, b = members[_touching_pairs(boxes[members], boxes[members])]
    covered = _intersect(tiles[a], tiles[b])
    seen_a, seen_b = _intersect(boxes[a], covered), _intersect(boxes[b], covered)
    return _best_first(a, b, seen_a, seen_b, SAME_OBJECT)


def _best_first(
    a: np.ndarray, b: np.ndarray, boxes_a: np.ndarray, boxes_b: np.ndarray, threshold: float
) -> Iterator[tuple[int, int]]:
    """List pairs of boxes with an IoU of at least ``threshold``, by descending IoU."""
    shared = _area(_intersect(boxes_a, boxes_b))
    agreement = shared / np.maximum(_area(boxes_a) + _area(boxes_b) - shared, 1e-9)
    for pair in np.argsort(-agreement, kind='stable'):
        if agreement[pair] < threshold:
            return
        if a[pair] < b[pair]:  # each pair comes twice
            yield int(a[pair]), int(b[pair])


def _group(
    members: np.ndarray,
    pairs: Iterable[tuple[int, int]],
    labels: np.ndarray,
    tiles: np.ndarray,
) -> list[list[int]]:
    """Group boxes by object, with at most one box per tile."""
    groups = {int(i): [int(i)] for i in members}
    for i, j in pairs:
        if labels[i] != labels[j] or groups[i] is groups[j]:
            continue
        seen_by = [tuple(tiles[k]) for k in groups[i] + groups[j]]
        if len(set(seen_by)) == len(seen_by):
            groups[i] += groups[j]
            groups.update(dict.fromkeys(groups[j], groups[i]))
    return list({id(group): group for group in groups.values()}.values())


def _are_inside(
    parts: np.ndarray,
    objects: list[list[int]],
    boxes: np.ndarray,
    labels: np.ndarray,
    tiles: np.ndarray,
    *,
    as_one: bool = False,
) -> np.ndarray:
    """Mark parts that are inside an object of their class; return (N,) bool.

    A part does not count as inside if its tile has another box of the object. With ``as_one``, the
    box that encloses an object's boxes replaces each box.
    """
    if as_one:
        owners = np.arange(len(objects))
        outer, outer_labels = bounding_boxes(boxes, objects), labels[[one[0] for one in objects]]
    else:
        owners = np.repeat(np.arange(len(objects)), [len(one) for one in objects])
        every = np.array([i for one in objects for i in one], int)
        outer, outer_labels = boxes[every], labels[every]
    part, box = _touching_pairs(boxes[parts], outer)
    shared = _area(_intersect(boxes[parts][part], outer[box]))
    hits = shared >= PART_OF * _area(boxes[parts][part])
    hits &= labels[parts][part] == outer_labels[box]
    seen_by = [{tuple(tiles[i]) for i in one} for one in objects]
    inside = np.zeros(len(parts), bool)
    for i, owner in zip(part[hits], owners[box[hits]], strict=True):
        inside[i] |= tuple(tiles[parts[i]]) not in seen_by[owner]
    return inside


def _intersect(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    # corners of the intersections
    return np.hstack([np.maximum(a[:, :2], b[:, :2]), np.minimum(a[:, 2:], b[:, 2:])])


def _area(boxes: np.ndarray) -> np.ndarray:
    return np.clip(boxes[:, 2:] - boxes[:, :2], 0, None).prod(1)


def _touching_pairs(boxes: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the indices of touching boxes, (2, pairs)."""
    import shapely  # type: ignore[import-untyped]

    # An R-tree, because a large image has too many boxes to compare all pairs.
    tree = shapely.STRtree(shapely.box(*others.T))
    return tree.query(shapely.box(*boxes.T), predicate='intersects')
