"""Instance masks as COCO's run lengths."""

from typing import Any

import numpy as np

from .sizing import resize_classes

Rle = dict[str, Any]


def encode_mask(mask: np.ndarray, *, left: int, top: int, height: int, width: int) -> Rle:
    """A mask that lies at (left, top) of an image, as run lengths of that image.

    Args:
        mask: (h, w), bool.
        left, top: px.
        height, width: Of the image, px.

    Returns:
        dict: ``size`` and ``counts``, both plain data.
    """
    from pycocotools import mask as coco_mask  # type: ignore[import-untyped]

    # Run lengths go down the columns: those beside the mask are one run, and need not be there.
    columns = np.zeros((height, mask.shape[1]), bool, order='F')
    columns[top : top + mask.shape[0]] = mask
    changes = np.flatnonzero(np.diff(columns.ravel(order='F'), prepend=False, append=False))
    counts = np.diff(np.concatenate(([0], changes + left * height, [height * width])))
    return _plain(coco_mask.frPyObjects(dict(size=[height, width], counts=counts.tolist()), height, width))


def merge_masks(masks: list[Rle]) -> Rle:
    """Their union."""
    from pycocotools import mask as coco_mask

    return _plain(coco_mask.merge(masks))


def resize_mask(mask: Rle, *, height: int, width: int) -> Rle:
    """The mask at another size; itself, at its own."""
    if mask['size'] == [height, width]:
        return mask
    return encode_mask(decode_mask(mask, height=height, width=width), left=0, top=0, height=height, width=width)


def decode_mask(mask: Rle, *, height: int, width: int) -> np.ndarray:
    """(height, width), bool: the mask, at that size."""
    from pycocotools import mask as coco_mask

    pixels = coco_mask.decode(mask)
    return resize_classes(pixels, height=height, width=width).astype(bool)


def _plain(mask: Rle) -> Rle:
    # pycocotools takes letters and gives bytes, which JSON does not know.
    return dict(size=[int(side) for side in mask['size']], counts=mask['counts'].decode())
