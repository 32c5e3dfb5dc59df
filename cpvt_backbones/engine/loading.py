"""Loading images that are not RGB of 8 bits, in a training or test pipeline."""

from collections.abc import Sequence
from typing import Any

from mmengine.registry import TRANSFORMS

from cpvt_backbones.value_range import ValueRange, ValueRangeError


@TRANSFORMS.register_module()
class LoadRange:
    """Reads chosen bands of a file, whose values from ``low`` to ``high`` become 0 to 255.

    It stands in place of ``LoadImageFromFile``. ``Inferencer`` and exported files read by the same
    numbers. With ``bands`` other than three, the backbone needs ``in_channels``, and the data
    preprocessor a mean and std for each band and no ``bgr_to_rgb`` or ``to_rgb``.

    Args:
        low: See :class:`cpvt_backbones.value_range.ValueRange`.
        high: See ``low``.
        dtype: See ``low``.
        bands: See ``low``.
    """

    def __init__(
        self, *, low: float, high: float, dtype: str, bands: Sequence[int] | None = None
    ) -> None:
        chosen = None if bands is None else tuple(bands)
        self.value_range = ValueRange(low=low, high=high, dtype=dtype, bands=chosen)

    def __call__(self, results: dict[str, Any]) -> dict[str, Any]:
        """Add ``img``, (H, W, channels), uint8; ``ValueError`` names a file that is not read."""
        try:
            image = self.value_range.read(results['img_path'])
        except (OSError, ValueRangeError) as error:
            raise ValueError(f'{results["img_path"]}: {error}') from error
        shape = image.shape[:2]
        return dict(results, img=image, img_shape=shape, ori_shape=shape)

    def __repr__(self) -> str:
        return f'LoadRange({self.value_range})'
