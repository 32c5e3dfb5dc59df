"""Images larger than one forward may take: overlapping tiles, and one prediction of theirs."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

# Two boxes are one object if they overlap so much (intersection over union), two parts of one if they do so where both
# their tiles look; a part is of what is whole if so much of it lies in there.
SAME_OBJECT, PART_OF = 0.5, 0.5
# A box that ends so near (px) to where its tile was cut may be a part.
CUT_MARGIN = 8

Span = tuple[int, int]


@dataclass(frozen=True)
class Grid:
    """Tiles that cover an image, all of one size: every row span with every column span.

    Args:
        rows: (top, bottom) in px of each band of tiles, from the top.
        columns: (left, right) in px of each tile in a band, from the left.
    """

    rows: tuple[Span, ...]
    columns: tuple[Span, ...]

    def __len__(self) -> int:
        return len(self.rows) * len(self.columns)

    @property
    def tile_pixels(self) -> int:
        """Pixels of one tile."""
        (top, bottom), (left, right) = self.rows[0], self.columns[0]
        return (bottom - top) * (right - left)


def make_grid(height: int, width: int, *, tile_size: int, overlap: int) -> Grid:
    """Cover (height, width) px.

    Args:
        height, width: Of the image.
        tile_size: Side of a tile; a tile is smaller only where the image is.
        overlap: px that neighbours share at least; the last of a row or column ends with the image and shares more.
    """
    from sahi.slicing import get_slice_bboxes

    # The library takes a share of the tile and rounds down.
    ratio = (overlap + 0.5) / tile_size
    boxes = get_slice_bboxes(
        image_height=height,
        image_width=width,
        slice_height=tile_size,
        slice_width=tile_size,
        overlap_height_ratio=ratio,
        overlap_width_ratio=ratio,
    )
    return Grid(
        rows=tuple(sorted({(top, bottom) for _, top, _, bottom in boxes})),
        columns=tuple(sorted({(left, right) for left, _, right, _ in boxes})),
    )


def ramp_weights(spans: Sequence[Span]) -> list[np.ndarray]:
    """Along one axis, the weight of each tile at each of its pixels.

    It falls linearly to the tile's edge over what it shares with its neighbour; at every pixel of the image the weights
    of all tiles sum to one.

    Args:
        spans: (start, stop) of each tile, in order, without gaps.

    Returns:
        list[numpy.ndarray]: float32, as long as each tile.
    """
    total = np.zeros(spans[-1][1])
    weights = []
    for i, (start, stop) in enumerate(spans):
        at = np.arange(start, stop) + 0.5
        weight = np.ones(stop - start)
        if i > 0 and spans[i - 1][1] > start:
            weight = np.minimum(weight, (at - start) / (spans[i - 1][1] - start))
        if i + 1 < len(spans) and spans[i + 1][0] < stop:
            weight = np.minimum(weight, (stop - at) / (stop - spans[i + 1][0]))
        total[start:stop] += weight
        weights.append(weight)
    return [
        (weight / total[start:stop]).astype(np.float32) for weight, (start, stop) in zip(weights, spans, strict=True)
    ]


def blend_class_map(tiles: Iterator[Tensor], grid: Grid, *, to_classes: Callable[[Tensor], np.ndarray]) -> np.ndarray:
    """The class map of an image from the logits of its tiles, averaged with :func:`ramp_weights` where they overlap.

    Classes are decided, and logits dropped, as soon as no later tile has a say: at any moment logits are held of one
    tile and of the rows that the band of tiles shares with the next.

    Args:
        tiles: Logits (C, h, w) of each tile of ``grid``, band by band from the top, each from the left.
        grid: The tiles.
        to_classes: Logits (C, h, w) to classes (h, w).

    Returns:
        numpy.ndarray: (H, W), of the type that ``to_classes`` gives.
    """
    height, width = grid.rows[-1][1], grid.columns[-1][1]
    class_map: np.ndarray | None = None
    column_weights = ramp_weights(grid.columns)
    next_tops = [*(top for top, _ in grid.rows[1:]), height]
    next_lefts = [*(left for left, _ in grid.columns[1:]), width]
    above: Tensor | None = None  # weighted sums of the rows that the bands so far share with this one: (C, rows, W)
    for (top, bottom), row_weight, next_top in zip(grid.rows, ramp_weights(grid.rows), next_tops, strict=True):
        below: Tensor | None = None
        before: Tensor | None = None  # likewise, of the columns that tiles to the left share with this one
        for (left, _), column_weight, next_left in zip(grid.columns, column_weights, next_lefts, strict=True):
            logits = next(tiles)
            summed = logits * torch.from_numpy(row_weight[:, None] * column_weight).to(logits.device)
            if before is not None:
                summed[..., : before.shape[-1]] += before
            summed, before = summed[..., : next_left - left], summed[..., next_left - left :]
            if above is not None:
                summed[:, : above.shape[1]] += above[..., left:next_left]
            decided = to_classes(summed[:, : next_top - top])
            if class_map is None:
                class_map = np.empty((height, width), decided.dtype)
            class_map[top:next_top, left:next_left] = decided
            if next_top < bottom:
                if below is None:
                    below = summed.new_empty((len(summed), bottom - next_top, width))
                below[..., left:next_left] = summed[:, next_top - top :]
        above = below
    assert class_map is not None
    return class_map


def is_cut(boxes: np.ndarray, *, rows: Span, columns: Span, height: int, width: int) -> np.ndarray:
    """Which boxes of a tile end where the tile was cut out of the image, and may be parts of something.

    Args:
        boxes: (N, 4), x1, y1, x2, y2 in px of the image.
        rows, columns: Of the tile.
        height, width: Of the image.

    Returns:
        numpy.ndarray: (N,), bool.
    """
    (top, bottom), (left, right) = rows, columns
    cut = np.zeros(len(boxes), bool)
    for side, edge, at_border in (
        (0, left, left == 0),
        (1, top, top == 0),
        (2, right, right == width),
        (3, bottom, bottom == height),
    ):
        if not at_border:
            cut |= np.abs(boxes[:, side] - edge) < CUT_MARGIN
    return cut


def merge_groups(
    boxes: np.ndarray, scores: np.ndarray, labels: np.ndarray, cut: np.ndarray, tiles: np.ndarray
) -> list[list[int]]:
    """Which boxes of overlapping tiles are one object.

    Of boxes that some tile has seen whole the best stays as it is; parts of one are dropped; parts of what no tile has
    seen whole are put together.

    Args:
        boxes: (N, 4), x1, y1, x2, y2 in px of the image.
        scores: (N,)
        labels: (N,); boxes of different classes are never one.
        cut: (N,), bool; may be a part.
        tiles: (N, 4), x1, y1, x2, y2 of the tile that each is of.

    Returns:
        list[list[int]]: Indices of the boxes that make each object, the best box first; best object first.
    """
    from sahi.postprocess.combine import batched_nms

    whole, parts = np.flatnonzero(~cut), np.flatnonzero(cut)
    candidates = np.column_stack((boxes, scores, labels)).astype(np.float64)
    whole = whole[batched_nms(candidates[whole], 'IOU', SAME_OBJECT)]
    parts = parts[~_lie_in(boxes[parts], labels[parts], boxes[whole], labels[whole])]
    joined = [parts[group].tolist() for group in _join(boxes[parts], labels[parts], tiles[parts])]
    made = [group for group in joined if len(group) > 1]
    alone = np.array([group[0] for group in joined if len(group) == 1], int)
    unions = np.array([(*boxes[group, :2].min(0), *boxes[group, 2:].max(0)) for group in made]).reshape(-1, 4)
    alone = alone[~_lie_in(boxes[alone], labels[alone], unions, labels[[group[0] for group in made]])]
    groups = [sorted(group, key=lambda i: -scores[i]) for group in made]
    groups += [[int(i)] for i in (*whole, *alone)]
    return sorted(groups, key=lambda group: -scores[group[0]])


def _join(boxes: np.ndarray, labels: np.ndarray, tiles: np.ndarray) -> list[list[int]]:
    """Parts of one object: they agree where both their tiles look. Of one tile, no object has two parts."""
    a, b = _meeting(boxes, boxes)
    views = [np.maximum(tiles[a, :2], tiles[b, :2]), np.minimum(tiles[a, 2:], tiles[b, 2:])]
    sides = [
        np.clip(np.minimum(boxes[i, 2:], views[1]) - np.maximum(boxes[i, :2], views[0]), 0, None).prod(1)
        for i in (a, b)
    ]
    low, high = np.maximum(boxes[a, :2], boxes[b, :2]), np.minimum(boxes[a, 2:], boxes[b, 2:])
    shared = np.clip(np.minimum(high, views[1]) - np.maximum(low, views[0]), 0, None).prod(1)
    agreement = shared / np.maximum(sides[0] + sides[1] - shared, 1e-9)
    groups = {i: [i] for i in range(len(boxes))}
    for pair in np.argsort(-agreement, kind='stable'):
        i, j = int(a[pair]), int(b[pair])
        if agreement[pair] < SAME_OBJECT or labels[i] != labels[j] or groups[i] is groups[j]:
            continue
        seen_by = [tuple(tiles[k]) for k in groups[i] + groups[j]]
        if len(set(seen_by)) == len(seen_by):
            groups[i] += groups[j]
            groups.update(dict.fromkeys(groups[j], groups[i]))
    return list({id(group): group for group in groups.values()}.values())


def _lie_in(parts: np.ndarray, part_labels: np.ndarray, wholes: np.ndarray, whole_labels: np.ndarray) -> np.ndarray:
    """Which of ``parts`` lie in one of ``wholes`` of their class."""
    part, whole = _meeting(parts, wholes)
    a, b = parts[part], wholes[whole]
    shared = np.clip(np.minimum(a[:, 2:], b[:, 2:]) - np.maximum(a[:, :2], b[:, :2]), 0, None).prod(1)
    lies = np.zeros(len(parts), bool)
    inside = shared >= PART_OF * (a[:, 2:] - a[:, :2]).prod(1)
    lies[part[inside & (part_labels[part] == whole_labels[whole])]] = True
    return lies


def _meeting(boxes: np.ndarray, others: np.ndarray) -> np.ndarray:
    """(2, pairs): each box with each of the others that it touches."""
    import shapely  # type: ignore[import-untyped]

    # A tree: on a large image the boxes are too many to compare each with each.
    return shapely.STRtree(shapely.box(*others.T)).query(shapely.box(*boxes.T), predicate='intersects')
