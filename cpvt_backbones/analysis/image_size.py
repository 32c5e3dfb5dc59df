"""Image size of a config's test pipeline."""

import re
from dataclasses import dataclass
from typing import Any

from mmengine.config import Config

from cpvt_backbones.errors import InputError
from cpvt_backbones.toolboxes import SIZE_ARGUMENTS, dicts_of, step_name

_RELATIVE = 'scale_factor'
# Steps with such names that are not in SIZE_ARGUMENTS change the size in an unknown way.
_GEOMETRY = re.compile(
    r'Resize|Crop|Pad|Aug|Scale|Broadcaster|Apply|Rotat|Affine|Shear|Translat|(?<!PhotoMetric)Distort|Mosaic'
)
_LONG = 1_000_000
_LARGEST_FACTOR = 16  # a larger number must be a side


@dataclass(frozen=True)
class TestSize:
    """Image size for testing: a factor of the config's test scale, or a side in px.

    Args:
        factor: Factor of the test scale of the config.
        side: Shorter side of the model's input in px, instead of ``factor``.

    Raises:
        ValueError: Both or neither are given, or the value is not above 0.

    Examples:
        >>> from cpvt_backbones.analysis.image_size import TestSize
        >>> TestSize(factor=1.5) == TestSize.parse('1.5')
        True
        >>> TestSize.parse('640px').side
        640
    """

    __test__ = False  # not a test class of pytest

    factor: float | None = None
    side: int | None = None

    def __post_init__(self) -> None:
        value = self.side if self.factor is None else self.factor
        if (self.factor is None) == (self.side is None) or value is None or value <= 0:
            raise InputError(
                f'size must be a factor > 0 or a side > 0 in px, got {self.factor!r}, {self.side!r}'
            )

    @classmethod
    def parse(cls, text: str) -> 'TestSize':
        """Parse ``'1.5'`` (a factor) or ``'640px'`` (a side).

        Raises:
            ValueError: The text is neither, or a factor is above 16.
        """
        match = re.fullmatch(r'(?:(?P<side>\d+)px|(?P<factor>\d+(?:\.\d*)?|\.\d+))', text)
        if not match:
            raise InputError(
                f"size must be a factor of the test scale ('1.5') or a side ('640px'), got {text!r}"
            )
        if match['side']:
            return cls(side=int(match['side']))
        factor = float(match['factor'])
        if factor > _LARGEST_FACTOR:
            raise InputError(
                f'size must be a factor of the test scale, at most {_LARGEST_FACTOR}, got {text!r};'
                f" '{factor:g}px' is a side of {factor:g} px"
            )
        return cls(factor=factor)

    def __str__(self) -> str:
        return f'{self.factor:g}' if self.side is None else f'{self.side}px'


def scale_test_images(cfg: Config, size: TestSize) -> None:
    """Change the size of a config's test images, in place.

    All steps that resize, crop or pad to a size are scaled by one factor, so aspect ratio and crop
    stay the same. If no step does so, a Resize is added after the step that loads the image. The
    toolboxes evaluate at the original size of the image, which the annotations keep.

    Args:
        cfg: The config.
        size: The size.

    Raises:
        ValueError: The test pipeline cannot be scaled. It loads no image, has a step that changes
            the size in another way, or loads annotations before resizing, which would resize them.
            Or ``size`` is a side in px and a step has a ``scale_factor``.

    Examples:
        >>> from cpvt_backbones.analysis.image_size import TestSize
        >>> from cpvt_backbones.analysis.image_size import scale_test_images
        >>> from cpvt_backbones.inference import read_config
        >>> from cpvt_backbones.weights import find_shipped
        >>> shipped = find_shipped('cpvt_tiny_gap-imagenette')
        >>> cfg = read_config(shipped.config_file)  # of a test scale of 112 px
        >>> scale_test_images(cfg, TestSize(factor=1.5))
        >>> cfg.test_dataloader.dataset.pipeline[1].scale
        (168, 168)
    """
    # Pipelines of the data set and of the data sets that it wraps.
    pipelines = [
        node['pipeline'] for node in dicts_of(cfg.test_dataloader.dataset) if 'pipeline' in node
    ]
    if not pipelines:
        raise InputError('test_dataloader: its dataset has no pipeline')
    for pipeline in pipelines:
        _scale(pipeline, size)


def _scale(pipeline: list[dict[str, Any]], size: TestSize) -> None:
    names = [step_name(step) for step in pipeline]
    load = next(
        (i for i, name in enumerate(names) if name.startswith('Load') and 'Image' in name), None
    )
    if other := next(
        (name for name in names if name not in SIZE_ARGUMENTS and _GEOMETRY.search(name)), None
    ):
        known = ', '.join(SIZE_ARGUMENTS)
        raise InputError(
            f'test_dataloader: its pipeline step {other!r} cannot be scaled; these can: {known}'
        )
    # A Pad with size_divisor, or a ResizeToMultiple, sets no size.
    arguments = [(i, key) for i, name in enumerate(names) for key in SIZE_ARGUMENTS.get(name, ())]
    sized = [(i, key) for i, key in arguments if pipeline[i].get(key) is not None]
    if not sized:
        if load is None:
            raise InputError(
                f'test_dataloader: its pipeline loads no image and has no size, got {names}'
            )
        if size.factor != 1:
            if size.factor is None:
                resize = dict(scale=(_LONG, size.side), keep_ratio=True)
            else:
                resize = dict(scale_factor=float(size.factor), keep_ratio=False)
            pipeline.insert(load + 1, dict(type='mmcv.Resize', **resize))
        return
    first, last = sized[0][0], sized[-1][0]
    if any(name.startswith('Load') and 'Annotation' in name for name in names[:first]):
        rule = f'load annotations after {names[first]!r}, which would resize them too'
        raise InputError(f'test_dataloader: its pipeline must {rule}, got {names}')
    factor = size.factor
    if factor is None:
        if (last, _RELATIVE) in sized:
            raise InputError(
                f'size must be a factor where the pipeline has a {_RELATIVE}, got {size}'
            )
        factor = size.side / min(
            side for i, key in sized if i == last for side in _sides(pipeline[i][key])
        )
    for i, key in sized:
        sides = [side * factor for side in _sides(pipeline[i][key])]
        scaled = sides if key == _RELATIVE else [max(round(side), 1) for side in sides]
        pipeline[i][key] = (
            tuple(scaled) if isinstance(pipeline[i][key], (list, tuple)) else scaled[0]
        )


def _sides(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)
