"""Pipeline steps that load images other than 8-bit RGB, and 16-bit class maps."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from mmengine.registry import TRANSFORMS
from PIL import Image

from cpvt_backbones.errors import InputError
from cpvt_backbones.images.raster import ValueRangeError
from cpvt_backbones.images.value_range import ValueRange


@TRANSFORMS.register_module()
class LoadRange:
    """Reads images of more than 8 bits, or chosen bands of a file, in a data pipeline.

    It replaces ``LoadImageFromFile`` in the training pipeline and in the test pipeline.
    ``Inferencer`` and exported files use the same values. Models with another number of channels
    than three need three settings: ``in_channels`` of the backbone, a ``mean`` and a ``std`` per
    band in the data preprocessor, and no ``bgr_to_rgb`` or ``to_rgb``.

    Args:
        low: Value that becomes 0. Smaller values and pixels without data become 0 too.
        high: Value that becomes 255. Larger values become 255 too.
        dtype: Type of the values, such as ``'uint16'``; see :class:`ValueRange`. Files of another
            type are refused.
        bands: Bands of the file, counted from 1, that become the channels of the image. Three bands
            are red, green and blue. ``None``: a file is grey or RGB, and the image has three
            channels.

    Examples:
        Grey or RGB files of 12 bits:

        ```python
        load = dict(type='LoadRange', low=0, high=4095, dtype='uint16')
        train_pipeline = [load, dict(type='LoadAnnotations', with_bbox=True)]
        ```
    """

    def __init__(
        self, *, low: float, high: float, dtype: str, bands: Sequence[int] | None = None
    ) -> None:
        chosen = None if bands is None else tuple(bands)
        self.value_range = ValueRange(low=low, high=high, dtype=dtype, bands=chosen)

    def __call__(self, results: dict[str, Any]) -> dict[str, Any]:
        """Read the image of ``results['img_path']``.

        Args:
            results: The dict of the pipeline, with ``img_path``.

        Returns:
            A copy of the dict with ``img``, (H, W, channels) uint8, ``img_shape`` and
            ``ori_shape``.

        Raises:
            ValueError: The file cannot be read with these values; the message names it.
        """
        try:
            image = self.value_range.read(results['img_path'])
        except (OSError, ValueRangeError) as error:
            raise InputError(f'{results["img_path"]}: {error}') from error
        shape = image.shape[:2]
        return dict(results, img=image, img_shape=shape, ori_shape=shape)

    def __repr__(self) -> str:
        return f'LoadRange({self.value_range})'


@TRANSFORMS.register_module()
class LoadClassMap:
    """Reads 16-bit class maps, for more than 255 classes, in a data pipeline of mmseg.

    It replaces ``LoadAnnotations``, which reads 8 bits. The model's ``ignore_index`` and
    ``seg_pad_val`` are then 65535, outside of the classes.

    Examples:
        ```python
        load_map = dict(type='LoadClassMap')
        train_pipeline = [dict(type='LoadImageFromFile'), load_map]
        ```
    """

    def __call__(self, results: dict[str, Any]) -> dict[str, Any]:
        """Read the map of ``results['seg_map_path']``.

        Args:
            results: The dict of the pipeline, with ``seg_map_path`` and ``seg_fields``. Images in
                prediction have no map.

        Returns:
            A copy of the dict with ``gt_seg_map``, (H, W) uint16, listed in ``seg_fields``.

        Raises:
            InputError: The file is not an image with one number per pixel.
        """
        path = results.get('seg_map_path')
        if path is None:
            return results
        try:
            with Image.open(path) as file:
                classes = np.asarray(file)
        except (OSError, SyntaxError) as error:
            raise InputError(f'{path}: {error}') from error
        if classes.ndim != 2:
            raise InputError(f'{path}: one number per pixel is accepted, got {classes.shape}')
        fields = [*results.get('seg_fields', ()), 'gt_seg_map']
        return dict(results, gt_seg_map=classes.astype(np.uint16), seg_fields=fields)

    def __repr__(self) -> str:
        return 'LoadClassMap()'
