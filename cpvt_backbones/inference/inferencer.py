"""Inferencer for detectors, segmentors and classifiers on images of any size.

Reading, forward calls on images of the same size, and post-processing run in parallel in bounded
memory.
"""

import logging
import os
import secrets
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from math import prod
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import numpy as np
from mmengine.logging import print_log

from cpvt_backbones.checks import check_choice, check_fraction
from cpvt_backbones.errors import InputError, InputTypeError
from cpvt_backbones.images.finding import each_image, file_stamp, find_images, is_group
from cpvt_backbones.images.reading import (
    DECODING_BYTES,
    ImageError,
    ImageInput,
    image_size,
    keeps_to_twelve_bits,
    local_path,
)
from cpvt_backbones.images.value_range import ValueRange
from cpvt_backbones.images.windows import ImageFile, open_image, open_scene
from cpvt_backbones.plain import MAX_PIXELS, OVERLAP, READ_LIMIT, TILE_SIZE
from cpvt_backbones.text import printable
from cpvt_backbones.toolboxes import TOOLBOXES, ConfigInput

from .drawing import draw_prediction, make_preview
from .predictions import LoadedImage, OnTiles, Prediction, finish_prediction, run_batch
from .predictors import FromCheckpoint, Predictor, ToolboxPredictor
from .sizes import Scale, Sizing, check_scale
from .tiles import Bounds

THREADS = min(8, os.cpu_count() or 1)
WAITING_BYTES = 200_000_000  # maximum size of waiting results or images


@dataclass(frozen=True)
class Result:
    """Result for one image: a prediction, or the error that prevented it.

    Attributes:
        name: Path of the image, or, for an array, its index among the inputs: ``'array 3'``.
        size: (width, height) of the image in px, after the EXIF rotation; ``None`` if it could not
            be read.
        prediction: The prediction as plain data; see :class:`Inferencer`. ``None`` after an error.
        picture: The image with the prediction drawn on it, (h, w, 3) uint8, RGB. Its sides are at
            most 2048 px, not counting the legend of a class map. ``None`` unless ``vis``.
        error: An :class:`ImageError`, or the model's exception; ``None`` if there is a prediction.
        stamp: [size in bytes, modification time in ns] of the file before it was read; ``None`` for
            an array.
        best: Highest score of a box, in [0, 1], boxes below ``score_thr`` included; ``None``
            without a box and for other tasks.
    """

    name: str
    size: tuple[int, int] | None = None
    prediction: Prediction | None = None
    picture: np.ndarray | None = None
    error: Exception | None = None
    stamp: list[int] | None = None
    best: float | None = None


Run = Callable[[list[LoadedImage]], list[Any]]
Then = Callable[[int, Result], Any]


class Inferencer(FromCheckpoint):
    """Runs a trained detector, segmentor or classifier on images of any size.

    Call it for one image: ``prediction, picture = inferencer(image, score_thr=0.3, vis=False)``.
    Boxes have a score of at least ``score_thr``. With ``vis=True``, ``picture`` is the image with
    the prediction drawn on it, (h, w, 3) uint8, RGB; otherwise it is ``None``. An unusable image
    raises :class:`ImageError`.

    Use :meth:`Inferencer.predict` for a list or a folder of images. :meth:`Inferencer.stream` takes
    any number of images in bounded memory. :func:`predict_to_folder` writes the predictions to
    files.

    By default, images are resized as in the config's test pipeline, at whose scale the model was
    trained. Only images that then have the same size share a batch. So no image is padded to the
    size of another, and a prediction does not depend on other images. No forward call exceeds
    ``max_pixels``: larger images are cut into overlapping tiles of ``tile_size``. Classifiers and
    panoptic segmentors refuse such images.

    A prediction is a dict. All values are plain data, except that ``seg_map`` and ``panoptic`` are
    arrays:

    - Detection: ``boxes``, [[x1, y1, x2, y2], ...] in px of the image, and for each box ``scores``
      (in [0, 1]), ``labels`` (index of the class) and ``classes`` (its name). As an array:
      ``np.array(prediction['boxes']).reshape(-1, 4)``. An instance segmentor adds ``masks`` as
      COCO's run lengths: ``pycocotools.mask.decode(mask)`` is (H, W), 0 or 1.
    - Segmentation: ``seg_map``, the class index of each pixel: (H, W) uint8, or uint16 for more
      than 255 classes. For images of more than ``read_limit`` pixels, it is the path of a tiled
      TIFF. In TIFF and JPEG 2000 files, pixels without data have the largest value, 255 or 65535.
    - Panoptic segmentation: ``panoptic``, the segment id of each pixel, (H, W) uint32, 0 for none;
      and ``segments``, dicts with ``id``, ``label``, ``class``, ``area`` in px and ``bbox`` (left,
      top, width, height). ``score_thr`` has no effect.
    - Classification: ``label``, ``class`` and ``score`` of the most probable class.

    | ``scale`` | size at which the model sees an image |
    | --- | --- |
    | ``None`` | test scale of the config or exported file; without one, the image's own size |
    | ``'config'`` | like ``None``, but also for images of more than ``max_pixels`` |
    | ``'native'`` | the image's own size |
    | a float | the image's own size times this factor |
    | (width, height) | the largest size within these px that keeps the shape of the image |

    The larger number of (width, height) applies to the longer side, as in the toolboxes' Resize.
    ``None`` has an exception for images of more than ``max_pixels``, if a detector or segmentor has
    a test scale and known :class:`GoodSizes`. Such an image is scaled so that its objects have the
    size that objects of the test images have at the test scale. It is never enlarged, and it is cut
    into tiles if it still has more than ``max_pixels``.

    Args:
        cfg: Config of the model: path of its file, or result of :func:`read_config`; not modified.
            ``None`` for the config of shipped weights.
        checkpoint: The weights: a file, an address, or the name of shipped weights.
        device: ``'cpu'``, ``'cuda'`` or ``'cuda:1'``; ``None`` takes a GPU if there is one.
        dtype: Type of the computation: ``'float32'``, ``'bfloat16'``, ``'float16'``, or ``'auto'``
            for bfloat16 on devices that are faster in it. Some layers stay in float32; see
            :func:`reduce_precision`.
        scale: Size at which the model sees an image; the table above lists the values.
        long_side: Longer side in px at which the model sees an image, instead of ``scale``.
        batch_size: Maximum number of images in one forward call.
        max_pixels: Maximum number of pixels in one forward call, all images together.
        tile_size: Side of a tile in px.
        overlap: Minimum number of px that neighbouring tiles share. It should exceed the size of
            the objects.
        read_limit: Maximum number of pixels of a file that is decoded as a whole; ``None`` for no
            limit. Larger TIFF files are read by windows.
        predictor: A :class:`Predictor` that runs the batches, such as an :class:`ExportedModel`,
            instead of ``cfg``, ``checkpoint`` and ``device``.

    Raises:
        FileNotFoundError: The checkpoint does not exist.
        ValueError: An argument is not accepted, or the config's ``default_scope`` is not a toolbox.
            Or no ``scale`` is given and the test pipeline sets the size in an unknown way.

    Attributes:
        predictor: The :class:`Predictor` that runs the batches; it has the names of the classes.
        sizing: Resizes images; ``str(sizing)`` gives the scale and its source.
        value_range: :class:`ValueRange` for reading files if the model was trained with
            :class:`LoadRange`, else ``None``. Arrays then need the type of the training files, and
            all their bands if bands were chosen.
        outside: Number of images so far outside the model's good sizes; a warning is logged for
            the first one.

    Examples:
        >>> import numpy as np
        >>> from cpvt_backbones.inference import Inferencer
        >>> inferencer = Inferencer(checkpoint='cpvt_tiny_gap-imagenette')
        >>> photo = np.zeros((120, 160, 3), np.uint8)  # BGR; or the path of a file
        >>> prediction, picture = inferencer(photo, vis=True)
        >>> sorted(prediction)
        ['class', 'label', 'score']
        >>> [result.name for result in inferencer.predict([photo, photo])]
        ['array 0', 'array 1']

        A model of yours: ``Inferencer(cfg='config.py', checkpoint='iter_400.pth')``.
    """

    def __init__(
        self,
        *,
        cfg: ConfigInput | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        device: str | None = None,
        dtype: str = 'float32',
        scale: Scale = None,
        long_side: int | None = None,
        batch_size: int = 1,
        max_pixels: int = MAX_PIXELS,
        tile_size: int = TILE_SIZE,
        overlap: int = OVERLAP,
        read_limit: int | None = READ_LIMIT,
        predictor: Predictor | None = None,
    ) -> None:
        scale = check_scale(scale, long_side)
        self.bounds = Bounds(
            batch_size=batch_size, max_pixels=max_pixels, tile_size=tile_size, overlap=overlap
        )
        self.read_limit = read_limit
        if predictor is None:
            if checkpoint is None:
                raise InputError('checkpoint is needed, or a predictor')
            predictor = ToolboxPredictor(cfg=cfg, checkpoint=checkpoint, device=device, dtype=dtype)
        elif cfg is not None or checkpoint is not None:
            raise InputError('predictor excludes cfg and checkpoint')
        elif dtype not in ('auto', 'float32'):
            accepted = "'auto' or 'float32' with an exported file or a predictor"
            raise InputError(f'dtype must be {accepted}, got {dtype!r}', argument='dtype')
        tasks = [*(one.task for one in TOOLBOXES.values()), 'panoptic']
        check_choice(tasks, **{'predictor.task': predictor.task})
        self.predictor: Predictor = predictor
        self.value_range: ValueRange | None = getattr(predictor, 'value_range', None)
        self.outside: int = 0
        self._saw_dark = False
        self.sizing: Sizing = Sizing(scale, predictor, max_pixels)
        if predictor.task == 'detection' and not find_spec('shapely'):
            need = "a detector's tiles need shapely: pip install shapely"
            _warn(f'images of more than {max_pixels} pixels will fail: {need}')

    @property
    def settings(self) -> dict[str, Any]:
        """All settings that affect predictions, as plain data: model, scale, tiles."""
        settings = dict(
            model=self.predictor.fingerprint,
            scale=self.sizing.settings,
            max_pixels=self.bounds.max_pixels,
            tile_size=self.bounds.tile_size,
            overlap=self.bounds.overlap,
        )
        dtype = getattr(self.predictor, 'dtype', 'float32')
        return settings if dtype == 'float32' else dict(settings, dtype=dtype)

    def __call__(
        self, image: ImageInput, *, score_thr: float = 0.3, vis: bool = False
    ) -> tuple[Prediction, np.ndarray | None]:
        """Predict on one image: ``prediction, picture = inferencer('photo.jpg', vis=True)``.

        Args:
            image: Path of an image file, or an array (H, W, 3), uint8, in BGR; see
                :func:`read_image`. Convert a PIL image by
                ``np.asarray(image.convert('RGB'))[..., ::-1]``.
            score_thr: Minimum score of a box, in [0, 1].
            vis: Draw the prediction on the image.

        Returns:
            The prediction as plain data (see :class:`Inferencer`) and the picture, (h, w, 3) uint8,
            RGB; the picture is ``None`` unless ``vis``.

        Raises:
            ImageError: The image cannot be read, or is too large for a classifier.
            ValueError: ``score_thr`` is outside [0, 1].
            Exception: Any exception of the model on this image.
        """
        if isinstance(image, (list, tuple)):
            raise InputTypeError(
                f'image must be one image, got a {type(image).__name__}; Inferencer.predict takes'
                ' several'
            )
        if isinstance(image, (str, os.PathLike)) and is_group(local_path(image)):
            raise ImageError(
                str(image), 'a folder or a pattern, not one image; Inferencer.predict takes them'
            )
        ((_, result),) = self.stream([image], score_thr=score_thr, vis=vis)
        if result.error is not None:
            raise result.error
        assert result.prediction is not None
        return result.prediction, result.picture

    def predict(
        self,
        inputs: ImageInput | Sequence[ImageInput],
        *,
        score_thr: float = 0.3,
        vis: bool = False,
    ) -> list[Result]:
        """Predict on several images and return all results at once.

        If an image cannot be read or fails in the model, its :class:`Result` has the error, and the
        other images are predicted.

        Args:
            inputs: Image files, folders, patterns or arrays, one or a list; see
                :func:`find_images`.
            score_thr: Minimum score of a box, in [0, 1].
            vis: Draw each prediction on its image.

        Returns:
            One result for each image, in the order of the images.
        """
        results = self.stream(find_images(inputs), score_thr=score_thr, vis=vis)
        return [result for _, result in sorted(results, key=lambda pair: pair[0])]

    def stream(
        self,
        images: ImageInput | Sequence[ImageInput],
        *,
        score_thr: float = 0.3,
        vis: bool = False,
        on_tiles: OnTiles | None = None,
        map_dir: str | os.PathLike[str] | None = None,
        then: Then = lambda _, result: result,
    ) -> Iterator[tuple[int, Any]]:
        """Predict on any number of images in bounded memory; yield each result when finished.

        Reading, forward calls, post-processing and drawing run in parallel. Results and their order
        are the same as without threads. The order differs from that of the images, because images
        of the same size are collected for a batch. After an interruption, results of finished
        forward calls are still yielded.

        Args:
            images: Image files, folders, patterns or arrays, one or a list, as for
                :func:`find_images`. If a file in a list is missing, its result has the error.
            score_thr: Minimum score of a box, in [0, 1].
            vis: Draw each prediction on its image.
            on_tiles: Function that is called after each batch of tiles with the number of finished
                tiles and their total.
            map_dir: Folder for class maps written as TIFF: those of images read by windows and of
                georeferenced files. With ``None``, only the former are written, to the folder of
                temporary files.
            then: Function that is called in a thread with the index and the :class:`Result` of each
                image. Its return value is yielded instead of the result.

        Yields:
            The index among ``images`` and the :class:`Result` of each image, batch by batch.
        """
        check_fraction(score_thr=score_thr)
        run = partial(
            run_batch,
            self.predictor,
            score_thr=score_thr,
            bounds=self.bounds,
            on_tiles=on_tiles,
        )
        load = partial(self._load, vis=vis, map_dir=None if map_dir is None else Path(map_dir))
        with OrderedCalls() as reading, OrderedCalls() as finishing:
            try:
                for loaded, output in self._outputs(_read_ahead(reading, load, images), run):
                    nbytes = loaded.nbytes + bytes_of(output)
                    arguments = loaded, output, score_thr, then
                    yield from finishing.add(self._finish, *arguments, nbytes=nbytes)
                    yield from finishing.results(wait=False)
                yield from finishing.results()
            except (Exception, KeyboardInterrupt, SystemExit):
                yield from finishing.results()
                raise

    def _load(
        self, index: int, source: ImageInput, *, vis: bool, map_dir: Path | None
    ) -> LoadedImage:
        """Read and scale an image, in a thread."""
        name = str(source) if isinstance(source, (str, os.PathLike)) else f'array {index}'
        try:
            stamp = file_stamp(source)  # before reading, so that a later change is noticed
            image = open_image(
                source, name=name, read_limit=self.read_limit, value_range=self.value_range
            )
            height, width = image.shape[:2]
            scaled = self.sizing(image)
            if prod(scaled.shape[:2]) <= self.bounds.max_pixels:
                scaled = scaled[: scaled.shape[0], : scaled.shape[1]]  # of windows, an array
            by_windows = isinstance(image, ImageFile)
            file = image if isinstance(image, ImageFile) else open_scene(source, self.value_range)
            is_georeferenced = file is not None and file.is_georeferenced
            is_written = by_windows or (is_georeferenced and map_dir is not None)
            map_name = f'{Path(name).stem[:40]}.{secrets.token_hex(4)}.tif'
            return LoadedImage(
                index,
                name,
                (width, height),
                scaled,
                preview=make_preview(image) if vis else None,
                stamp=stamp,
                file=file,
                map_path=Path(map_dir or gettempdir()) / map_name if is_written else None,
                dark=isinstance(image, np.ndarray)
                and self.value_range is None
                and keeps_to_twelve_bits(source, image),
            )
        except Exception as error:
            nothing = np.empty((0, 0, 3))
            return LoadedImage(index, name, (0, 0), nothing, error=_without_frames(error))

    def _outputs(
        self, images: Iterator[LoadedImage], run: Run
    ) -> Iterator[tuple[LoadedImage, Any]]:
        """Run the model on a batch; return each image with its output or its error."""
        buckets = ShapeBuckets(self.bounds)
        for loaded in images:
            if loaded.error:
                yield loaded, loaded.error
                continue
            self._warn_if_outside(loaded)
            self._warn_if_dark(loaded)
            for batch in buckets.add(loaded):
                yield from _run_or_split(run, batch)
        for batch in buckets.flush():
            yield from _run_or_split(run, batch)

    def _warn_if_outside(self, loaded: LoadedImage) -> None:
        warning = self.sizing.warning(loaded.size, loaded.image.shape[1::-1])
        if warning is None:
            return
        self.outside += 1
        if self.outside == 1:
            _warn(f'{loaded.name}: {warning}; further images are counted only')

    def _warn_if_dark(self, loaded: LoadedImage) -> None:
        if loaded.dark and not self._saw_dark:
            self._saw_dark = True
            _warn(
                f'{loaded.name}: its 16 bits have no value above 4095, and the model sees it nearly'
                ' black: scale its values to 0 to 65535, or train with cpvt make-config --range;'
                ' further images are not reported'
            )

    def _finish(
        self, loaded: LoadedImage, output: Any, score_thr: float, then: Then
    ) -> tuple[int, Any]:
        """Make the prediction and its picture, in a thread."""
        size = None if loaded.error else loaded.size
        try:
            if isinstance(output, Exception):
                raise output
            prediction, best = finish_prediction(
                self.predictor, output, loaded, score_thr, self.bounds
            )
            if loaded.file is not None and loaded.map_path is not None:
                prediction |= loaded.file.georeference
            picture = None
            if loaded.preview is not None:
                picture = draw_prediction(
                    loaded.preview, prediction, self.predictor, size=loaded.size
                )
            result = Result(loaded.name, size, prediction, picture, stamp=loaded.stamp, best=best)
        except Exception as error:
            result = Result(loaded.name, size, error=_without_frames(error))
        return loaded.index, then(loaded.index, result)


def _warn(message: str) -> None:
    print_log(printable(message), 'current', logging.WARNING)


def _read_ahead(
    reading: 'OrderedCalls', load: Any, images: ImageInput | Sequence[ImageInput]
) -> Iterator[LoadedImage]:
    for index, source in enumerate(each_image(images)):
        nbytes = DECODING_BYTES * prod(image_size(source) or (0,))
        yield from reading.add(load, index, source, nbytes=nbytes)
    yield from reading.results()


def _run_or_split(run: Run, batch: list[LoadedImage]) -> Iterator[tuple[LoadedImage, Any]]:
    """Run a batch; after an error, run its images one by one, so that the others succeed."""
    try:
        outputs = run(batch)
    except Exception as error:
        outputs = [_without_frames(error)] if len(batch) == 1 else []
    if outputs:
        yield from zip(batch, outputs, strict=True)
    else:
        for loaded in batch:
            yield from _run_or_split(run, [loaded])


def _without_frames(error: Exception) -> Exception:
    """Detach an error from its frames, which hold images and tensors."""
    error.__context__ = error.__cause__ = None
    return error.with_traceback(None)


# -- bounded queues between the steps


class OrderedCalls(AbstractContextManager):
    """Runs calls in threads, and yields their results in order.

    An error of a call is returned as its result. At most ``2 * THREADS`` results and
    ``WAITING_BYTES`` are kept waiting. Leaving the context waits for running calls and drops the
    others.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS)
        self._waiting: deque[tuple[Future[Any], int]] = deque()
        self._bytes = 0

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def add(self, call: Callable[..., Any], *args: Any, nbytes: int) -> Iterator[Any]:
        """Start a call that holds ``nbytes``; yield the oldest results above the limits."""
        self._waiting.append((self._pool.submit(call, *args), nbytes))
        self._bytes += nbytes
        while len(self._waiting) > 2 * THREADS or self._bytes > WAITING_BYTES:
            yield self._take()

    def results(self, *, wait: bool = True) -> Iterator[Any]:
        """Yield all remaining results, or only the finished ones."""
        while self._waiting and (wait or self._waiting[0][0].done()):
            yield self._take()

    def _take(self) -> Any:
        future, nbytes = self._waiting.popleft()
        self._bytes -= nbytes
        return future.result()


class ShapeBuckets:
    """Collects images of the same shape until a batch is full."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._waiting: dict[tuple[int, ...], list[LoadedImage]] = {}
        self._bytes = 0

    def add(self, loaded: LoadedImage) -> Iterator[list[LoadedImage]]:
        """Add an image; yield its batch if full.

        While waiting images take too much memory, yield the oldest batches.
        """
        shape = loaded.image.shape[:2]
        self._waiting.setdefault(shape, []).append(loaded)
        self._bytes += loaded.nbytes
        if len(self._waiting[shape]) >= self._bounds.batch_of(loaded.pixels):
            yield self._take(shape)
        while self._bytes > WAITING_BYTES:
            yield self._take(next(iter(self._waiting)))

    def flush(self) -> Iterator[list[LoadedImage]]:
        """Yield the waiting batches."""
        while self._waiting:
            yield self._take(next(iter(self._waiting)))

    def _take(self, shape: tuple[int, ...]) -> list[LoadedImage]:
        batch = self._waiting.pop(shape)
        self._bytes -= sum(loaded.nbytes for loaded in batch)
        return batch


def bytes_of(output: Any) -> int:
    """Return the size in bytes of the arrays in a model's output."""
    if isinstance(output, tuple):  # prediction and best score of a tiled image
        output = output[0]
    arrays = output.values() if isinstance(output, dict) else [output]
    return sum(getattr(array, 'nbytes', 0) for array in arrays)
