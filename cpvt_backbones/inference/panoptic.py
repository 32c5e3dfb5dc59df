"""Panoptic segments as plain data, as a PNG of ids and as COCO's panoptic JSON."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

OFFSET = 1000  # mmdet's: class + OFFSET * instance


def segments_of(found: np.ndarray, classes: Sequence[str] | None) -> dict[str, Any]:
    """Convert a panoptic prediction to plain data.

    Args:
        found: mmdet's ids (H, W): class + 1000 * instance, or -1 for no segment.
        classes: Names of the classes.

    Returns:
        ``panoptic`` (H, W; uint32) is the segment id of each pixel, 0 for none. ``segments`` are
        dicts with ``id``, ``label``, ``class``, ``area`` in px and ``bbox`` (left, top, width,
        height).
    """
    values, inverse = np.unique(found, return_inverse=True)
    ids = np.cumsum(values >= 0) * (values >= 0)  # 1, 2, ... in the order of mmdet's ids
    panoptic = ids[inverse].reshape(found.shape).astype(np.uint32)
    segments = []
    for value, number in zip(values.tolist(), ids.tolist(), strict=True):
        if not number:
            continue
        inside = panoptic == number
        rows, columns = (np.flatnonzero(inside.any(axis=axis)) for axis in (1, 0))
        left, top = int(columns[0]), int(rows[0])
        label = value % OFFSET
        segments.append(
            {
                'id': number,
                'label': label,
                'class': classes[label] if classes else None,
                'area': int(inside.sum()),
                'bbox': [left, top, int(columns[-1]) - left + 1, int(rows[-1]) - top + 1],
            }
        )
    return dict(panoptic=panoptic, segments=segments)


def encode_ids(panoptic: np.ndarray) -> np.ndarray:
    """Encode ids (H, W) as COCO's colours (H, W, 3) uint8 RGB: id = R + 256 G + 256^2 B."""
    return np.stack([panoptic >> shift & 255 for shift in (0, 8, 16)], axis=-1).astype(np.uint8)


def annotation_of(
    image_id: Any, prediction: Mapping[str, Any], kinds: Mapping[int, Any] | None = None
) -> dict[str, Any]:
    """Build the entry of an image in COCO's panoptic format.

    Args:
        image_id: Id of the image.
        prediction: Prediction with ``segments``, and with the PNG's path in ``panoptic``.
        kinds: Category id of each label; the label itself by default.
    """
    segments = [
        dict(
            id=one['id'],
            category_id=(kinds or {}).get(one['label'], one['label']),
            area=one['area'],
            bbox=one['bbox'],
            iscrowd=0,
        )
        for one in prediction['segments']
    ]
    return dict(image_id=image_id, file_name=prediction['panoptic'], segments_info=segments)
