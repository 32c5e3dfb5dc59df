"""Compute masks of red and white cells for the photographs in demo/cells.

    python demo/make_masks.py        # writes demo/cell_masks/{train,val}/*.png

No person drew them: they follow from the colours, and from the boxes of the white cells. A pixel
is 0 for background, 1 for a red cell or 2 for a white cell.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np

from cpvt import command_line as cli

DEMO = Path(__file__).parent
RED, WHITE = 1, 2
# Shares of the distance between the colours of background and red cells, in CIELAB.
FROM_RED = 0.5  # of a red cell, at most, without lightness
FROM_GROUND = 0.16  # of a white cell, at least
BLUER = 0.3  # than red cells, at least: the nucleus of a white cell
AXES = 1.06  # of the ellipse around a white cell, by the sides of its box
LEAST_WHITE = 0.2  # share of its box that a white cell fills; otherwise the box has a wrong name
LEAST_RED = 120  # px: a smaller red region is a platelet or part of a white cell
# px: the pale middle of a red cell is at most so large, and fills this share of its rectangle
# unless it is small. Gaps between cells fill less.
LARGEST_MIDDLE, SMALL_MIDDLE, ROUND = 600, 60, 0.6
DISK = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (5, 5))


def compute_mask(image: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """Class of each pixel.

    Args:
        image: Photograph in BGR, (height, width, 3), uint8.
        boxes: Corners x1, y1, x2, y2 of the white cells in px, (N, 4).
    """
    smooth = cv2.GaussianBlur(image.astype(np.float32) / 255, (0, 0), 1)
    colours = cv2.cvtColor(smooth, cv2.COLOR_BGR2LAB)
    near_white = ellipses(image.shape[:2], boxes)
    redness = np.round(colours[..., 1] + 128).astype(np.uint8)
    _, reddish = cv2.threshold(redness, 0, 1, cv2.THRESH_OTSU)
    ground, red = (np.median(colours[~near_white & (reddish == i)], axis=0) for i in (0, 1))
    contrast = np.linalg.norm(red - ground)

    from_red = np.linalg.norm((colours - red)[..., 1:], axis=2)
    is_red = from_red < FROM_RED * np.linalg.norm((red - ground)[1:])
    is_nucleus = colours[..., 2] < red[2] - BLUER * contrast
    is_red = np.where(near_white, opened(is_red & ~is_nucleus), is_red)
    is_red = red_cells(is_red, near_white)

    from_ground = np.linalg.norm(colours - ground, axis=2)
    is_white = near_white & ~is_red & (from_ground > FROM_GROUND * contrast)
    mask = RED * with_middles(is_red).astype(np.uint8)
    for x1, y1, x2, y2 in boxes.round().astype(int):
        span = slice(y1, y2), slice(x1, x2)
        mask[span][white_cell(is_white[span]) & ~is_red[span]] = WHITE
    return mask


def ellipses(shape: tuple[int, ...], boxes: np.ndarray) -> np.ndarray:
    """Pixels near a white cell, (height, width), bool."""
    near = np.zeros(shape, np.uint8)
    for x1, y1, x2, y2 in boxes:
        centre, axes = ((x1 + x2) / 2, (y1 + y2) / 2), (AXES * (x2 - x1), AXES * (y2 - y1))
        cv2.ellipse(near, (centre, axes, 0), 1, -1)
    return near > 0


def opened(mask: np.ndarray) -> np.ndarray:
    """Mask without its thin parts."""
    return cv2.morphologyEx(mask.astype(np.uint8), cv2.MORPH_OPEN, DISK) > 0


def regions_of(mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Number of each pixel's region, 0 outside, and (left, top, width, height, area) of each."""
    _, regions, rows, _ = cv2.connectedComponentsWithStats(mask.astype(np.uint8), connectivity=4)
    return regions, rows.T


def red_cells(mask: np.ndarray, near_white: np.ndarray) -> np.ndarray:
    """Regions of which enough is not near a white cell, or that the edge of the image cuts."""
    regions, boxes = regions_of(mask)
    apart = np.bincount(regions[~near_white], minlength=boxes.shape[1])
    is_cell = (apart >= LEAST_RED) | (is_cut(boxes, mask.shape) & (apart > 0))
    is_cell[0] = False
    return is_cell[regions]


def with_middles(mask: np.ndarray) -> np.ndarray:
    """Red cells with their pale middles."""
    regions, boxes = regions_of(~mask)
    _, _, width, height, area = boxes
    is_round = (area >= ROUND * width * height) & ~is_cut(boxes, mask.shape)
    is_middle = (area <= SMALL_MIDDLE) | (area <= LARGEST_MIDDLE) & is_round
    is_middle[0] = False
    return mask | is_middle[regions]


def is_cut(boxes: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """For each region, if it ends at the edge of an image of this shape."""
    left, top, width, height, _ = boxes
    rows, columns = shape
    return (left == 0) | (top == 0) | (left + width == columns) | (top + height == rows)


def white_cell(mask: np.ndarray) -> np.ndarray:
    """Convex hull of the largest region, if that is large enough."""
    cell = np.zeros(mask.shape, np.uint8)
    outlines, _ = cv2.findContours(
        opened(mask).astype(np.uint8), cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE
    )
    largest = max(outlines, key=cv2.contourArea, default=None)
    if largest is not None and cv2.contourArea(largest) >= LEAST_WHITE * mask.size:
        cv2.fillConvexPoly(cell, cv2.convexHull(largest), 1)
    return cell > 0


def white_boxes(part: str) -> dict[Path, np.ndarray]:
    """Corners of the white cells on each photograph of ``train`` or ``val``, (N, 4)."""
    file = DEMO / f'cells/annotations/instances_{part}.json'
    coco = json.loads(file.read_text(encoding='utf-8'))
    (white,) = (one['id'] for one in coco['categories'] if one['name'] == 'white cell')
    boxes: dict[int, list[list[float]]] = {image['id']: [] for image in coco['images']}
    for one in coco['annotations']:
        if one['category_id'] == white:
            left, top, width, height = one['bbox']
            boxes[one['image_id']].append([left, top, left + width, top + height])
    return {
        DEMO / 'cells' / part / image['file_name']: np.array(boxes[image['id']]).reshape(-1, 4)
        for image in coco['images']
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = cli.make_parser(__doc__)
    folder = DEMO / 'cell_masks'
    parser.add_argument('destination', type=Path, nargs='?', default=folder, help='of the masks')
    destination = parser.parse_args(argv).destination
    for part in ('train', 'val'):
        (destination / part).mkdir(parents=True, exist_ok=True)
        for path, boxes in white_boxes(part).items():
            mask = compute_mask(cv2.imread(str(path)), boxes)
            cv2.imwrite(str(destination / part / f'{path.stem}.png'), mask)


if __name__ == '__main__':
    cli.run(main)
