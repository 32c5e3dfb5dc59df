"""The image size of a config's test pipeline."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mmengine.config import Config

# Size arguments of the pipeline steps of the three toolboxes.
_SIZES = {
    'Resize': ('scale', 'scale_factor'),
    'FixScaleResize': ('scale', 'scale_factor'),
    'FixShapeResize': ('width', 'height'),
    'ResizeEdge': ('scale',),
    'ResizeShortestEdge': ('scale', 'max_size'),
    'CenterCrop': ('crop_size',),
    'EfficientNetCenterCrop': ('crop_size', 'crop_padding'),
    'Pad': ('size',),
}
_RELATIVE = 'scale_factor'
# Other steps with these names change the size in an unknown way. Rounding up to a multiple sets no size.
_GEOMETRY = re.compile(r'Resize|Crop|Pad|Aug|Scale|Broadcaster|Apply|Rotat|Affine|Shear|Translat|Distort|Mosaic')
_HARMLESS = ('ResizeToMultiple', 'PhotoMetricDistortion')
_LONG = 1_000_000


@dataclass(frozen=True)
class TestSize:
    """An image size for testing, by one of two attributes.

    Attributes:
        factor: Factor of the config's test scale.
        side: Shorter side of the model's input in px.
    """

    __test__ = False  # not a test class of pytest

    factor: float | None = None
    side: int | None = None

    def __post_init__(self) -> None:
        value = self.side if self.factor is None else self.factor
        if (self.factor is None) == (self.side is None) or value is None or value <= 0:
            raise ValueError(f'size must be a factor > 0 or a side > 0 in px, got {self.factor!r}, {self.side!r}')

    @classmethod
    def parse(cls, text: str) -> 'TestSize':
        """Parse ``'1.5'`` (a factor) or ``'640px'`` (a side).

        Raises:
            ValueError: Any other text.
        """
        match = re.fullmatch(r'(?:(?P<side>\d+)px|(?P<factor>\d+(?:\.\d*)?|\.\d+))', text)
        if not match:
            raise ValueError(f"size must be a factor of the test scale ('1.5') or a side ('640px'), got {text!r}")
        return cls(side=int(match['side'])) if match['side'] else cls(factor=float(match['factor']))

    def __str__(self) -> str:
        return f'{self.factor:g}' if self.side is None else f'{self.side}px'


def scale_test_images(cfg: Config, size: TestSize) -> None:
    """Change the size of a config's test images, in place.

    Every step that resizes, crops or pads to a size is scaled by one factor, so that aspect ratio and crop stay the
    same. A pipeline without such a step gets a Resize after the image loading. Ground truth keeps the original size,
    at which the toolboxes evaluate.

    Args:
        cfg: A config with ``test_dataloader``.
        size: The size.

    Raises:
        ValueError: A pipeline that cannot be scaled: no image loading; a step that changes the size in another way;
            annotations loaded before the resizing, which would resize them; or a side in px with a ``scale_factor``.
    """
    pipelines = list(_pipelines(cfg.test_dataloader.dataset))
    if not pipelines:
        raise ValueError('test_dataloader: its dataset has no pipeline')
    for pipeline in pipelines:
        _scale(pipeline, size)


def _pipelines(node: Any) -> Iterator[list[dict[str, Any]]]:
    """The pipelines of a data set and of the data sets it wraps."""
    if isinstance(node, dict):
        if 'pipeline' in node:
            yield node['pipeline']
        for name in ('dataset', 'datasets'):
            yield from _pipelines(node.get(name))
    elif isinstance(node, (list, tuple)):
        for value in node:
            yield from _pipelines(value)


def _name(step: dict[str, Any]) -> str:
    return str(step['type']).split('.')[-1]


def _scale(pipeline: list[dict[str, Any]], size: TestSize) -> None:
    names = [_name(step) for step in pipeline]
    load = next((i for i, name in enumerate(names) if name.startswith('Load') and 'Image' in name), None)
    if load is None:
        raise ValueError(f'test_dataloader: its pipeline loads no image, got {names}')
    for name in names:
        if name not in _SIZES and name not in _HARMLESS and _GEOMETRY.search(name):
            raise ValueError(
                f'test_dataloader: its pipeline has the step {name!r}, which cannot be scaled; '
                f'these can: {", ".join(_SIZES)}'
            )
    sized = [
        (i, [key for key in _SIZES[name] if pipeline[i].get(key) is not None])
        for i, name in enumerate(names)
        if name in _SIZES
    ]
    sized = [(i, keys) for i, keys in sized if keys]  # a Pad with size_divisor sets no size
    if not sized:
        if size.factor != 1:
            how = dict(scale=(_LONG, size.side)) if size.factor is None else dict(scale_factor=float(size.factor))
            pipeline.insert(load + 1, dict(type='mmcv.Resize', keep_ratio=size.factor is None, **how))
        return
    labels = [i for i, name in enumerate(names) if name.startswith('Load') and 'Annotation' in name]
    if labels and labels[0] < sized[0][0]:
        raise ValueError(
            f'test_dataloader: its pipeline must load annotations after {names[sized[0][0]]!r}, which would resize '
            f'them too, got {names}'
        )
    factor = size.factor
    if factor is None:
        last, keys = sized[-1]
        if _RELATIVE in keys:
            raise ValueError(f'size must be a factor where the pipeline has a {_RELATIVE}, got {size}')
        factor = size.side / min(side for key in keys for side in _sides(pipeline[last][key]))
    for i, keys in sized:
        for key in keys:
            pipeline[i][key] = _times(pipeline[i][key], factor, whole=key != _RELATIVE)


def _sides(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


def _times(value: Any, factor: float, *, whole: bool) -> Any:
    scaled = tuple(max(round(side * factor), 1) if whole else side * factor for side in _sides(value))
    return scaled if isinstance(value, (list, tuple)) else scaled[0]
