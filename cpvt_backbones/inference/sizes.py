"""The size at which a model sees an image: the test scale of its config, the image's own, or a
given one.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import ceil, prod
from os import PathLike
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from mmengine.config import Config
from mmengine.logging import print_log
from PIL import Image

from cpvt_backbones.checkpoints import atomic_write, find_checkpoint, read_json
from cpvt_backbones.layers.checks import check_int, is_number
from cpvt_backbones.toolboxes import SIZE_ARGUMENTS, step_name
from cpvt_backbones.weights import sha256_of, shipped_weights

Scale = tuple[int, int] | float | str | None
Steps = Sequence[Mapping[str, Any]]
_CV2 = dict(nearest=0, bilinear=1, bicubic=2, area=3, lanczos=4)  # cv2.INTER_*


@dataclass(frozen=True)
class GoodSizes:
    """Range of sizes at which a model was measured to be good, kept in
    ``CHECKPOINT.sizes.json``.
    """

    low: float  # smallest and largest factor of the test scale with a good metric
    high: float
    side: (
        float  # square root of the pixels of the model's input at factor 1, mean of the test images
    )
    zoom: float  # px of the model's input a px of the image, at factor 1
    metric: str

    @classmethod
    def of(cls, checkpoint: str | PathLike[str]) -> 'GoodSizes | None':
        """The range of a checkpoint or of shipped weights, if it is stored.

        Raise ``ValueError`` for a damaged one.
        """
        if shipped := shipped_weights().get(str(checkpoint)):
            return cls(**shipped.sizes) if shipped.sizes else None
        weights = find_checkpoint(checkpoint)
        if not (file := Path(f'{weights}.sizes.json')).is_file():
            return None
        try:
            stored = read_json(file)
            sha256, sizes = stored.pop('sha256', None), cls(**stored)
            for key in ('low', 'high', 'side', 'zoom'):
                if not is_number(stored[key]):
                    raise TypeError(f'{key} must be a number, got {stored[key]!r:.60}')
        except (TypeError, ValueError) as error:
            fault = error
            if isinstance(error, TypeError):
                fault = ValueError(f'{str(file)!r} is damaged: {error}')
            raise ValueError(f'checkpoint: {fault}; delete it or write it again') from error
        if sha256 == sha256_of(weights):
            return sizes
        print_log(
            f'{str(file)!r} is of another checkpoint and not used; write it again',
            'current',
            logging.WARNING,
        )
        return None

    def write(self, checkpoint: str | PathLike[str]) -> Path:
        """Store the range beside a checkpoint."""
        weights = find_checkpoint(checkpoint)
        file = Path(f'{weights}.sizes.json')
        with atomic_write(file) as stream:
            stream.write(
                json.dumps(dict(asdict(self), sha256=sha256_of(weights)), indent=1).encode()
            )
        return file

    def __str__(self) -> str:
        sides = (
            f'{self.low * self.side:.0f} to {self.high * self.side:.0f} px, the root of width x'
            ' height'
        )
        return f'{self.low:g} to {self.high:g} times the test scale ({sides})'


def size_steps(cfg: Config) -> list[dict[str, Any]]:
    """The steps of a config's test pipeline that set the size, as plain data."""
    steps = [
        {**step, 'type': step_name(step)}
        for step in cfg.test_dataloader.dataset.get('pipeline', ())
    ]
    # As in an exported file: tuples become lists.
    return json.loads(
        json.dumps([step for step in steps if step['type'] in SIZE_ARGUMENTS], default=str)
    )


def check_scale(scale: Scale, long_side: int | None) -> Scale:
    """Combine ``scale`` and ``long_side`` of ``Inferencer`` into a scale, or raise
    ``ValueError``.
    """
    if long_side is not None:
        if scale is not None:
            raise ValueError(
                f'scale and long_side exclude each other, got scale={scale!r},'
                f' long_side={long_side}'
            )
        check_int(long_side=long_side)
        return long_side, long_side
    if scale in (None, 'config', 'native') or (
        isinstance(scale, float) and is_number(scale) and scale > 0
    ):
        return scale
    if (
        not isinstance(scale, (tuple, list))
        or len(scale) != 2
        or not all(isinstance(s, int) and s >= 1 for s in scale)
    ):
        accepted = "None, 'config', 'native', a factor > 0 (a float) or (width, height) in px"
        raise ValueError(f'scale must be {accepted}, got {scale!r}')
    return scale[0], scale[1]


class Sizing:
    """Resizes images (H, W, 3) to the size at which a model sees them.

    ``str()`` says which it is and why.

    Args:
        scale: From :func:`check_scale`.
        predictor: The model; its ``size_steps`` and ``sizes`` may be missing.
        max_pixels: Larger images are cut into tiles.

    ``ValueError`` if the test scale is wanted, but steps of the test pipeline set it in a way not
    known here.
    """

    def __init__(self, scale: Scale, predictor: Any, max_pixels: int) -> None:
        self.scale, self.max_pixels = scale, max_pixels
        self.sizes: GoodSizes | None = getattr(predictor, 'sizes', None)
        steps, task = getattr(predictor, 'size_steps', None), predictor.task
        self._known = steps is not None
        # A detector's padding stays in its pipeline: it moves no box.
        self.steps = [step for step in steps or () if (step['type'], task) != ('Pad', 'detection')]
        known = ('Resize', 'ResizeEdge', 'ResizeToMultiple', 'CenterCrop')[
            : None if task == 'classification' else -1
        ]
        try:
            if any(step['type'] not in known or step.get('auto_pad') for step in self.steps):
                raise KeyError
            size_after(self.steps, 64, 64)
        except KeyError:  # a step, or an argument of another kind of step
            if scale in (None, 'config'):
                given = (
                    f'the test pipeline sets it by {self.steps}, and known for {task} are'
                    f' {", ".join(known)}'
                )
                raise ValueError(f"scale must be 'native', a factor or a size: {given}") from None
            self.steps = []
        # Of large images: the factor of their own size at which objects have the size that the
        # model was tested at.
        tiled = self.steps and scale is None and task != 'classification'
        self._zoom = min(self.sizes.zoom, 1.0) if self.sizes and tiled else None
        kind = (
            dict(scale_factor=scale)
            if isinstance(scale, float)
            else dict(scale=scale, keep_ratio=True)
        )
        wanted: Steps = [] if scale == 'native' else [dict(type='Resize', **kind)]
        self._used = self.steps if scale in (None, 'config') else wanted

    @property
    def settings(self) -> Any:
        """What determines the size, as plain data; ``None`` for the image's own."""
        if self.scale in (None, 'config', 'native'):
            return [*self.steps, self._zoom] if self.steps and self.scale != 'native' else None
        return list(self.scale) if isinstance(self.scale, tuple) else self.scale

    def size_of(self, width: int, height: int) -> tuple[int, int]:
        """Width and height in px at which the model sees an image."""
        return size_after(self._steps_of(width, height), width, height)

    def __call__(self, image: np.ndarray) -> np.ndarray:
        return apply_steps(image, self._steps_of(*image.shape[1::-1]))

    def _steps_of(self, width: int, height: int) -> Steps:
        zoomed = self._zoom and width * height > self.max_pixels
        return [dict(type='Resize', scale_factor=self._zoom)] if zoomed else self._used

    def __str__(self) -> str:
        own = "scale: the image's own size"
        if isinstance(self.scale, tuple):
            return (
                f'scale: the largest size within {max(self.scale)} x {min(self.scale)} px, as given'
            )
        if isinstance(self.scale, float):
            return f'{own} times {self.scale:g}, as given'
        if self.scale == 'native' or not self.steps:
            why = (
                'as in its test pipeline' if self._known else 'because the model has no test scale'
            )
            return f'{own}, {"as given" if self.scale else why}'
        shown = (
            f'{s["type"]} {s.get("scale") or s.get("crop_size") or s.get("scale_factor")}'
            for s in self.steps
        )
        large = (
            f'; above {self.max_pixels} px {self._zoom:g} times its own size, tiled if needed'
            if self._zoom
            else ''
        )
        return f'scale: {", ".join(shown)}, as in its test pipeline{large}'

    def warning(self, own: tuple[int, int], seen: tuple[int, int]) -> str | None:
        """Why an image of ``own`` (width, height), seen as ``seen``, is outside the model's good
        sizes, if it is.
        """
        if self.sizes is None:
            return None
        wanted: float = prod(size_after(self.steps, *own)) if self.steps else self.sizes.side**2
        if prod(seen) > self.max_pixels or (
            self._zoom and prod(own) > self.max_pixels
        ):  # the size of objects counts
            wanted = min(self.sizes.zoom, 1.0) ** 2 * prod(own)
        factor = (prod(seen) / wanted) ** 0.5
        if self.sizes.low * 0.98 <= factor <= self.sizes.high * 1.02:  # sides are whole pixels
            return None
        return (
            f'{seen[0]} x {seen[1]} px is {factor:.2g} times the test scale; the model is good at'
            f' {self.sizes}'
        )


def apply_steps(image: np.ndarray, steps: Steps) -> np.ndarray:
    """Resize and crop (H, W, 3) as the toolboxes do."""
    for step in steps:
        height, width = image.shape[:2]
        size = size_after([step], width, height)
        if step['type'] == 'CenterCrop':
            left, top = round((width - size[0]) / 2), round((height - size[1]) / 2)
            image = image[top : top + size[1], left : left + size[0]]
        else:
            image = resize(
                image, size, step.get('interpolation') or 'bilinear', step.get('backend')
            )
    return image


def size_after(steps: Steps, width: int, height: int) -> tuple[int, int]:
    """Width and height in px of an image after :func:`apply_steps`."""
    for step in steps:
        kind, scale = step['type'], step.get('scale')
        if kind == 'CenterCrop':
            width, height = (
                min(pair) for pair in zip(_pair(step['crop_size']), (width, height), strict=True)
            )
        elif kind == 'ResizeToMultiple':
            x, y = _pair(step.get('size_divisor', 32))
            width, height = ceil(width / x) * x, ceil(height / y) * y
        elif kind == 'ResizeEdge':
            edge, scale = step.get('edge', 'short'), step['scale']
            by_width = (
                edge == 'width'
                or (edge == 'short' and width < height)
                or (edge == 'long' and width > height)
            )
            across, along = (width, height) if by_width else (height, width)
            other = max(1, int(scale * along / across))
            width, height = (scale, other) if by_width else (other, scale)
        else:
            wanted = (
                _times(width, height, *_pair(step['scale_factor']))
                if scale is None
                else _pair(scale)
            )
            width, height = fitted_size(width, height, wanted) if step.get('keep_ratio') else wanted
    return width, height


def _pair(value: Any) -> tuple[Any, Any]:
    return (value[0], value[1]) if isinstance(value, (list, tuple)) else (value, value)


def _times(width: int, height: int, x: float, y: float) -> tuple[int, int]:
    return max(1, int(width * x + 0.5)), max(1, int(height * y + 0.5))


def fitted_size(width: int, height: int, scale: tuple[int, int]) -> tuple[int, int]:
    """The largest (width, height) px of this shape within ``scale``, whose larger number is for the
    longer side.
    """
    factor = min(max(scale) / max(height, width), min(scale) / min(height, width))
    return _times(width, height, factor, factor)


def fit(image: np.ndarray, scale: tuple[int, int]) -> np.ndarray:
    """Resize (H, W, 3) to :func:`fitted_size`."""
    return resize(image, fitted_size(image.shape[1], image.shape[0], scale))


def resize(
    image: Any, size: tuple[int, int], interpolation: str = 'bilinear', backend: Any = None
) -> Any:
    """Resize (H, W, 3), an array or windows of a file, to (width, height) px by OpenCV, or by
    ``'pillow'``.

    It is returned unchanged if it has this size.
    """
    if image.shape[1::-1] == size:
        return image
    if not isinstance(image, np.ndarray):  # read by windows
        from .windows import Resized

        if interpolation != 'bilinear' or backend == 'pillow':
            given = f'the test pipeline resizes by {interpolation} ({backend or "cv2"})'
            raise ValueError(
                'scale must be given: an image read by windows is resized by bilinear (cv2),'
                f' {given}'
            )
        return Resized(image, size)
    if backend == 'pillow':
        return np.asarray(
            Image.fromarray(image).resize(size, Image.Resampling[interpolation.upper()])
        )
    return cv2.resize(image, size, interpolation=_CV2[interpolation])
