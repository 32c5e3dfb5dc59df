"""Input size of a model for an image, and resizing like the toolboxes.

The size is the test scale of the config, the image's own size or a given size.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import ceil, prod
from os import PathLike
from pathlib import Path
from typing import Any, cast

import cv2
import numpy as np
from mmengine.config import Config
from mmengine.logging import print_log
from PIL import Image

from cpvt_backbones.checkpoints import atomic_write, locate_checkpoint, read_json
from cpvt_backbones.checks import check_int, is_int, is_number
from cpvt_backbones.errors import InputError
from cpvt_backbones.toolboxes import SIZE_ARGUMENTS, step_name
from cpvt_backbones.weights import ShippedWeights, named_models, sha256_of

Scale = tuple[int, int] | float | str | None
"""Size at which the model sees an image; :class:`.Inferencer` lists the values."""
Steps = Sequence[Mapping[str, Any]]

WINDOW_PIXELS = 1 << 23  # pixels read at a time to make a smaller image
_CV2 = dict(
    nearest=cv2.INTER_NEAREST,
    bilinear=cv2.INTER_LINEAR,
    bicubic=cv2.INTER_CUBIC,
    area=cv2.INTER_AREA,
    lanczos=cv2.INTER_LANCZOS4,
)


@dataclass(frozen=True)
class GoodSizes:
    """Range of image sizes at which a model was measured to be good.

    The file ``CHECKPOINT.sizes.json`` beside the checkpoint holds it. :class:`Inferencer` warns of
    images outside the range.

    Attributes:
        low: Smallest factor of the test scale with a good metric.
        high: Largest factor of the test scale with a good metric.
        side: Square root of the pixel count of the model's input at factor 1, in px; the mean over
            the test images.
        zoom: Side of the model's input divided by the side of the image, at factor 1.
        metric: Name of the measured metric.

    Examples:
        >>> from cpvt_backbones.inference import GoodSizes
        >>> print(GoodSizes.of('cpvt_tiny_gap-imagenette'))
        0.857 to 2 times the test scale (96 to 224 px, the root of width x height)
    """

    low: float
    high: float
    side: float
    zoom: float
    metric: str

    @classmethod
    def of(cls, checkpoint: str | PathLike[str]) -> 'GoodSizes | None':
        """Read the range of a checkpoint.

        Args:
            checkpoint: File, or name of shipped weights.

        Returns:
            The range; ``None`` if none is stored, or if it belongs to another checkpoint.

        Raises:
            ValueError: The file with the range is damaged.
        """
        named = named_models().get(str(checkpoint))
        if isinstance(named, ShippedWeights):
            return cls(**named.sizes) if named.sizes else None
        weights = locate_checkpoint(checkpoint)
        file = Path(f'{weights}.sizes.json')
        if not file.is_file():
            return None
        try:
            stored = read_json(file)
        except ValueError as error:
            raise InputError(f'checkpoint: {error}; delete it or write it again') from error
        sha256 = stored.pop('sha256', None)
        numbers = [value for key, value in stored.items() if key != 'metric']
        if stored.keys() != cls.__annotations__.keys() or not all(map(is_number, numbers)):
            accepted = 'it must have metric, and the numbers low, high, side and zoom'
            raise InputError(
                f'checkpoint: {str(file)!r} is damaged: {accepted}; delete it or write it again'
            )
        if sha256 == sha256_of(weights):
            return cls(**stored)
        print_log(
            f'{str(file)!r} is of another checkpoint and not used; write it again',
            'current',
            logging.WARNING,
        )
        return None

    def write(self, checkpoint: str | PathLike[str]) -> Path:
        """Store the range beside a checkpoint, and return the file."""
        weights = locate_checkpoint(checkpoint)
        file = Path(f'{weights}.sizes.json')
        content = dict(asdict(self), sha256=sha256_of(weights))
        with atomic_write(file) as stream:
            stream.write(json.dumps(content, indent=1).encode())
        return file

    def __str__(self) -> str:
        sides = f'{self.low * self.side:.0f} to {self.high * self.side:.0f} px'
        factors = f'{self.low:g} to {self.high:g} times the test scale'
        return f'{factors} ({sides}, the root of width x height)'


def size_steps(cfg: Config) -> list[dict[str, Any]]:
    """Steps of a config's test pipeline that set the size, as plain data."""
    steps = []
    for step in cfg.test_dataloader.dataset.get('pipeline', ()):
        if step_name(step) in SIZE_ARGUMENTS:
            steps.append({**step, 'type': step_name(step)})
    return json.loads(json.dumps(steps, default=str))  # tuples become lists, as in a file


def loads_floats(cfg: Config) -> bool:
    """``True`` if a config's test pipeline loads images as float32, so that it resizes floats."""
    pipeline = cfg.test_dataloader.dataset.get('pipeline', ())
    return any(
        step.get('to_float32') for step in pipeline if step_name(step) == 'LoadImageFromFile'
    )


def check_scale(scale: Scale, long_side: int | None) -> Scale:
    """Combine ``scale`` and ``long_side`` of ``Inferencer`` into one scale.

    Raises:
        ValueError: The values are not among those that :class:`Inferencer` lists.
    """
    if long_side is not None:
        if scale is not None:
            raise InputError(
                f'scale and long_side exclude each other, got scale={scale!r},'
                f' long_side={long_side}',
                argument='scale',
            )
        check_int(long_side=long_side)
        return long_side, long_side
    if scale in (None, 'config', 'native'):
        return scale
    if isinstance(scale, float) and is_number(scale) and scale > 0:
        return scale
    if isinstance(scale, (tuple, list)) and len(scale) == 2:
        if all(isinstance(side, int) and side >= 1 for side in scale):
            return scale[0], scale[1]
    accepted = "None, 'config', 'native', a factor > 0 (a float) or (width, height) in px"
    advice, given = '', cast(Any, scale)
    if is_int(given) and given >= 1:
        advice = f'; long_side={scale} is a side in px, scale={scale}.0 a factor'
    raise InputError(f'scale must be {accepted}, got {scale!r}{advice}', argument='scale')


class Sizing:
    """Resizes images (H, W, channels) to the size at which a model sees them.

    ``str()`` gives the size and its source.

    Args:
        scale: From :func:`check_scale`.
        predictor: The model; its ``size_steps``, ``sizes`` and ``to_float32`` are optional.
        max_pixels: Pixel count above which an image is cut into tiles.

    Raises:
        ValueError: ``scale`` means the test scale, and a step of the test pipeline is unknown.
    """

    def __init__(self, scale: Scale, predictor: Any, max_pixels: int) -> None:
        self.scale, self.max_pixels = scale, max_pixels
        self.sizes: GoodSizes | None = getattr(predictor, 'sizes', None)
        self._floats: bool = getattr(predictor, 'to_float32', False)
        steps, task = getattr(predictor, 'size_steps', None), predictor.task
        self._known = steps is not None
        # A detector's padding stays in its pipeline, because it does not move boxes.
        detects = task in ('detection', 'panoptic')
        self.steps = [step for step in steps or () if not (detects and step['type'] == 'Pad')]
        wants_test_scale = scale in (None, 'config')
        if not _are_known(self.steps, task):
            if wants_test_scale:
                raise InputError(
                    "scale must be 'native', a factor or a size: the test pipeline sets it by"
                    f' {self.steps}, and known for {task} are {", ".join(_known_steps(task))}',
                    argument='scale',
                )
            self.steps = []
        # Factor for large images at which their objects have the size of the test objects.
        tiled = bool(self.steps) and scale is None and task in ('detection', 'segmentation')
        self._zoom = min(self.sizes.zoom, 1.0) if self.sizes and tiled else None
        self._used: Steps = self.steps if wants_test_scale else _steps_to(scale)

    @property
    def settings(self) -> Any:
        """Settings that determine the size, as plain data; ``None`` for the image's own size."""
        if self.scale in (None, 'config', 'native'):
            return [*self.steps, self._zoom] if self.steps and self.scale != 'native' else None
        return list(self.scale) if isinstance(self.scale, tuple) else self.scale

    def size_of(self, width: int, height: int) -> tuple[int, int]:
        """Return width and height in px of the model's input for an image."""
        return size_after(self._steps_of(width, height), width, height)

    def __call__(self, image: Any) -> Any:
        if self._floats and isinstance(image, np.ndarray):
            image = image.astype(np.float32)
        return apply_steps(image, self._steps_of(*image.shape[1::-1]))

    def _steps_of(self, width: int, height: int) -> Steps:
        if self._zoom and width * height > self.max_pixels:
            return [dict(type='Resize', scale_factor=self._zoom)]
        return self._used

    def __str__(self) -> str:
        own = "scale: the image's own size"
        if isinstance(self.scale, tuple):
            long, short = max(self.scale), min(self.scale)
            return f'scale: the largest size within {long} x {short} px, as given'
        if isinstance(self.scale, float):
            return f'{own} times {self.scale:g}, as given'
        if self.scale == 'native':
            return f'{own}, as given'
        if not self.steps:
            known = 'as in its test pipeline'
            return f'{own}, {known if self._known else "because the model has no test scale"}'
        shown = []
        for step in self.steps:
            size = step.get('scale') or step.get('crop_size') or step.get('scale_factor')
            shown.append(f'{step["type"]} {size}')
        text = f'scale: {", ".join(shown)}, as in its test pipeline'
        if self._zoom:
            own = f'{self._zoom:g} times its own size, tiled if needed'
            text += f'; above {self.max_pixels} px {own}'
        return text

    def warning(self, own: tuple[int, int], seen: tuple[int, int]) -> str | None:
        """Return a warning for an image outside the model's good sizes, else ``None``.

        ``own`` is the (width, height) of the image, and ``seen`` that of the model's input.
        """
        if self.sizes is None:
            return None
        factor = self.factor(own, seen, self.sizes)
        if self.sizes.low * 0.98 <= factor <= self.sizes.high * 1.02:  # sides are whole pixels
            return None
        size = f'{seen[0]} x {seen[1]} px is {factor:.2g} times the test scale'
        return f'{size}; the model is good at {self.sizes}'

    def factor(self, own: tuple[int, int], seen: tuple[int, int], sizes: GoodSizes) -> float:
        """Return the size of the model's input as a factor of the test scale, as in ``sizes``."""
        if prod(seen) > self.max_pixels or (self._zoom and prod(own) > self.max_pixels):
            # For a tiled image, the size of its objects counts.
            wanted = min(sizes.zoom, 1.0) ** 2 * prod(own)
        elif self.steps:
            wanted = prod(size_after(self.steps, *own))
        else:
            wanted = sizes.side**2
        return (prod(seen) / wanted) ** 0.5


def _known_steps(task: str) -> tuple[str, ...]:
    steps = ('Resize', 'ResizeEdge', 'ResizeToMultiple')
    return (*steps, 'CenterCrop') if task == 'classification' else steps


def _are_known(steps: Steps, task: str) -> bool:
    if any(step['type'] not in _known_steps(task) or step.get('auto_pad') for step in steps):
        return False
    try:
        size_after(steps, 64, 64)
    except KeyError:  # another step with this name, such as torchvision's
        return False
    return True


def _steps_to(scale: Scale) -> Steps:
    """Return steps that resize to a given scale instead of the config's scale."""
    if scale == 'native':
        return []
    if isinstance(scale, float):
        return [dict(type='Resize', scale_factor=scale)]
    return [dict(type='Resize', scale=scale, keep_ratio=True)]


def apply_steps(image: Any, steps: Steps) -> Any:
    """Resize and crop an image (H, W, channels) like the toolboxes."""
    for step in steps:
        height, width = image.shape[:2]
        size = size_after([step], width, height)
        if step['type'] == 'CenterCrop':
            left, top = round((width - size[0]) / 2), round((height - size[1]) / 2)
            image = image[top : top + size[1], left : left + size[0]]
        else:
            interpolation = step.get('interpolation') or 'bilinear'
            image = resize(image, size, interpolation, step.get('backend'))
    return image


def size_after(steps: Steps, width: int, height: int) -> tuple[int, int]:
    """Return width and height in px of an image after :func:`apply_steps`."""
    for step in steps:
        width, height = _SIZES.get(step['type'], _size_of_resize)(step, width, height)
    return width, height


def _size_of_resize(step: Mapping[str, Any], width: int, height: int) -> tuple[int, int]:
    if step.get('scale') is None:
        wanted = _times(width, height, *_pair(step['scale_factor']))
    else:
        wanted = _pair(step['scale'])
    return fitted_size(width, height, wanted) if step.get('keep_ratio') else wanted


def _size_of_edge(step: Mapping[str, Any], width: int, height: int) -> tuple[int, int]:
    scale, edge = step['scale'], step.get('edge', 'short')
    if edge == 'short':
        edge = 'width' if width < height else 'height'
    elif edge == 'long':
        edge = 'width' if width > height else 'height'
    if edge == 'width':
        return scale, max(1, int(scale * height / width))
    return max(1, int(scale * width / height)), scale


def _size_of_multiple(step: Mapping[str, Any], width: int, height: int) -> tuple[int, int]:
    x, y = _pair(step.get('size_divisor', 32))
    return ceil(width / x) * x, ceil(height / y) * y


def _size_of_crop(step: Mapping[str, Any], width: int, height: int) -> tuple[int, int]:
    crop = _pair(step['crop_size'])
    return min(crop[0], width), min(crop[1], height)


_SIZES = {
    'Resize': _size_of_resize,
    'ResizeEdge': _size_of_edge,
    'ResizeToMultiple': _size_of_multiple,
    'CenterCrop': _size_of_crop,
}


def _pair(value: Any) -> tuple[Any, Any]:
    return (value[0], value[1]) if isinstance(value, (list, tuple)) else (value, value)


def _times(width: int, height: int, x: float, y: float) -> tuple[int, int]:
    return max(1, int(width * x + 0.5)), max(1, int(height * y + 0.5))


def fitted_size(width: int, height: int, scale: tuple[int, int]) -> tuple[int, int]:
    """Return the largest (width, height) in px with this aspect ratio within ``scale``.

    The larger number of ``scale`` applies to the longer side.
    """
    factor = min(max(scale) / max(height, width), min(scale) / min(height, width))
    return _times(width, height, factor, factor)


def fit(image: Any, scale: tuple[int, int]) -> Any:
    """Resize an image (H, W, channels) to :func:`fitted_size`."""
    return resize(image, fitted_size(image.shape[1], image.shape[0], scale))


def resize(
    image: Any, size: tuple[int, int], interpolation: str = 'bilinear', backend: Any = None
) -> Any:
    """Resize (H, W, channels) to (width, height) px by OpenCV, or by ``'pillow'``.

    An image that is read by windows becomes :class:`Resized`. An image that already has this size
    is returned unchanged.

    Raises:
        ValueError: An image read by windows is to be resized by another method than bilinear.
    """
    if image.shape[1::-1] == size:
        return image
    if not isinstance(image, np.ndarray):
        if interpolation != 'bilinear' or backend == 'pillow':
            raise InputError(
                'scale must be given: an image read by windows is resized by bilinear (cv2), the'
                f' test pipeline resizes by {interpolation} ({backend or "cv2"})',
                argument='scale',
            )
        return Resized(image, size)
    if backend == 'pillow':
        method = Image.Resampling[interpolation.upper()]
        return np.asarray(Image.fromarray(image).resize(size, method))
    # OpenCV drops the axis of a single channel.
    return np.atleast_3d(cv2.resize(image, size, interpolation=_CV2[interpolation]))


class Resized:
    """An image that is read by windows, resized to (width, height) px.

    ``resized[top:bottom, left:right]`` reads and computes a part, uint8. Interpolation is bilinear
    as in ``cv2.resize``; values differ by at most 1, because OpenCV rounds differently.

    Reading into rasterio's ``out_shape`` gives other values, because GDAL averages when it reduces.
    At a quarter of the size, noise differs from OpenCV's by up to 124 grey levels, blobs by 6.
    """

    def __init__(self, source: Any, size: tuple[int, int]) -> None:
        self.source, self.shape = source, (size[1], size[0], source.shape[2])

    def __getitem__(self, spans: tuple[slice, slice]) -> np.ndarray:
        columns = _Taps(self.source.shape[1], self.shape[1], spans[1])
        read = columns.stop - columns.start
        step = max(1, WINDOW_PIXELS * self.shape[0] // (self.source.shape[0] * (read + 1)))
        start, stop = spans[0].start or 0, spans[0].stop
        parts = []
        for top in range(start, stop, step):
            rows = _Taps(self.source.shape[0], self.shape[0], slice(top, min(top + step, stop)))
            parts.append(self._part(rows, columns))
        return np.concatenate(parts)

    def _part(self, rows: '_Taps', columns: '_Taps') -> np.ndarray:
        pixels = self.source[rows.start : rows.stop, columns.start : columns.stop]
        right = columns.share[:, None]
        lines = pixels[:, columns.near] * (1 - right) + pixels[:, columns.far] * right
        below = rows.share[:, None, None]
        blended = lines[rows.near] * (1 - below) + lines[rows.far] * below
        return np.rint(blended).astype(np.uint8)


class _Taps:
    """Two source pixels for each resized pixel of ``span`` along one axis.

    ``near`` and ``far`` count from ``start``; ``share`` is the weight of ``far``, float32.
    """

    def __init__(self, length: int, resized: int, span: slice) -> None:
        centres = np.arange(span.start or 0, span.stop) + 0.5
        at = (centres * (length / resized) - 0.5).clip(0, length - 1)
        near = at.astype(np.int64)
        far = (near + 1).clip(max=length - 1)
        self.start, self.stop = int(near[0]), int(far[-1]) + 1
        self.near, self.far = near - self.start, far - self.start
        self.share = (at - near).astype(np.float32)
