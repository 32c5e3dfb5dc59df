"""One inferencer for detectors, segmentors and classifiers, for images of any size."""

import logging
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from math import prod
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import numpy as np
from mmengine.config import Config
from mmengine.logging import print_log

from cpvt_backbones.layers.checks import check_choice, check_fraction
from cpvt_backbones.options import MAX_PIXELS, OVERLAP, READ_LIMIT, TILE_SIZE

from .drawing import draw_prediction
from .images import (
    DECODING_BYTES,
    ImageInput,
    LoadedImage,
    file_stamp,
    find_images,
    image_size,
    make_preview,
)
from .pipeline import OrderedCalls, ShapeBuckets
from .predictors import TASKS, Predictor, ToolboxPredictor
from .sizes import Scale, Sizing, check_scale
from .tasks import OnTiles, Prediction, finish_prediction, run_batch
from .tiles import Bounds
from .windows import open_image


@dataclass(frozen=True)
class Result:
    """Outcome for one image: a prediction or an error."""

    name: str  # its path, or 'array 3' for the input of that index
    size: tuple[int, int] | None = None  # width and height in px, upright
    prediction: Prediction | None = None  # see Inferencer
    picture: np.ndarray | None = None  # (h, w, 3), RGB, if requested
    error: Exception | None = None  # an ImageError, or what the model raised
    stamp: list[int] | None = None  # of its file, before reading


Run = Callable[[list[LoadedImage]], list[Any]]


class Inferencer:
    """Runs a trained model on images of any size.

    By default images are resized as in the config's test pipeline, at whose scale the model was
    trained. Only images that then have equal size share a batch, so nothing is padded and
    predictions do not depend on other images. One of more than ``max_pixels`` is cut into
    overlapping tiles, so no forward call exceeds ``max_pixels``.

    A prediction is plain data. Detection: ``boxes`` ([[x1, y1, x2, y2]] in px of the image),
    ``scores``, ``labels``, ``classes``, and of an instance segmentor ``masks`` (COCO run lengths).
    Segmentation: ``seg_map``, (H, W), uint8, or uint16 with more than 255 classes; of an image
    larger than ``read_limit``, which is read by windows, the path of a tiled TIFF. Classification:
    ``label``, ``class``, ``score``.

    Args:
        cfg: Config of a detector, segmentor or classifier; not modified.
        checkpoint: The weights.
        device: ``'cpu'``, ``'cuda:1'``; ``None`` for a GPU if available.
        dtype: ``'float32'``, ``'bfloat16'`` or ``'float16'``: what the model computes in, but for
            what needs float32 (see :func:`~.precision.reduce_precision`); ``'auto'``: bfloat16
            where the device is faster in it.
        scale: ``'config'``: the test scale of the config or of the exported file; the image's own
            size if there is none. ``None``: the same; but where the model's good sizes are known
            (:class:`GoodSizes`), an image of more than ``max_pixels`` is seen in tiles in which its
            objects have the size that they have at the test scale in the images of the test set.
            ``'native'``: the image's own size. A float: a factor of it. (width, height) in px: the
            largest size within it, of the image's shape; the larger number is for the longer side,
            as in the toolboxes' Resize.
        long_side: The longer side in px, instead of ``scale``.
        batch_size: Maximum images of one forward call.
        max_pixels: Maximum pixels of one forward call, all images together.
        tile_size: Side of a tile in px.
        overlap: Minimum px shared by neighbouring tiles. Objects should be smaller.
        read_limit: Maximum pixels of a file decoded as a whole; ``None`` for none. A larger TIFF is
            read by windows.
        predictor: Runs the batches, instead of ``cfg``, ``checkpoint`` and ``device``.

    Raises:
        FileNotFoundError: The checkpoint does not exist.
        ValueError: An argument is not accepted, the config's ``default_scope`` is no toolbox, or
            its test pipeline sets the size in an unknown way and no ``scale`` is given.

    Attributes:
        sizing: Resizes an image; ``str(sizing)`` says which scale is used and why.
        outside: Number of images so far that were outside the model's good sizes; the first is
            logged as a warning.
    """

    def __init__(
        self,
        *,
        cfg: Config | None = None,
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
            if cfg is None or checkpoint is None:
                raise ValueError('cfg and checkpoint are needed, or a predictor')
            predictor = ToolboxPredictor(cfg=cfg, checkpoint=checkpoint, device=device, dtype=dtype)
        elif cfg is not None or checkpoint is not None:
            raise ValueError('predictor excludes cfg and checkpoint')
        elif dtype not in ('auto', 'float32'):
            raise ValueError(
                "dtype must be 'auto' or 'float32' with an exported file or a predictor, got"
                f' {dtype!r}'
            )
        check_choice(TASKS.values(), **{'predictor.task': predictor.task})
        self.predictor, self.outside = predictor, 0
        self.sizing = Sizing(scale, predictor, max_pixels)
        if predictor.task == 'detection' and not (find_spec('sahi') and find_spec('shapely')):
            need = "a detector's tiles need sahi and shapely: pip install '.[infer]'"
            print_log(
                f'images of more than {max_pixels} pixels will fail: {need}',
                'current',
                logging.WARNING,
            )

    @property
    def settings(self) -> dict[str, Any]:
        """Everything that determines predictions, as plain data."""
        bounds = {
            name: getattr(self.bounds, name) for name in ('max_pixels', 'tile_size', 'overlap')
        }
        dtype = getattr(self.predictor, 'dtype', 'float32')
        reduced = {} if dtype == 'float32' else dict(dtype=dtype)
        return dict(
            model=self.predictor.fingerprint, scale=self.sizing.settings, **bounds, **reduced
        )

    def __call__(
        self, image: ImageInput, *, score_thr: float = 0.3, vis: bool = False
    ) -> tuple[Prediction, np.ndarray | None]:
        """Predict on one image file or array; raise ``ImageError`` if it cannot be used.

        Args:
            image: Image file or array.
            score_thr: Minimum score of a box.
            vis: Draw the prediction on the image: also return the picture, (h, w, 3), RGB, uint8.
        """
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
        """Predict on the images of ``inputs``, see :func:`find_images`.

        One :class:`Result` each, in their order.
        """
        results = self.stream(find_images(inputs), score_thr=score_thr, vis=vis)
        return [result for _, result in sorted(results, key=lambda pair: pair[0])]

    def stream(
        self,
        images: Sequence[ImageInput],
        *,
        score_thr: float = 0.3,
        vis: bool = False,
        on_tiles: OnTiles | None = None,
        map_dir: str | os.PathLike[str] | None = None,
        then: Callable[[int, Result], Any] = lambda _, result: result,
    ) -> Iterator[tuple[int, Any]]:
        """Predict on image files and arrays.

        Yield the index and the :class:`Result` of each, batch by batch.

        Reading, forward calls, and post-processing and drawing run side by side, in bounded memory;
        results have the order of one after the other. After an interruption those of finished
        forward calls are still yielded.

        ``on_tiles`` is called after each batch of tiles with the number of tiles done and their
        total; ``then`` with the index and the result of each image, in threads, and its value is
        yielded in place of the result. Class maps of images read by windows are written to
        ``map_dir``, by default the folder of temporary files.
        """
        check_fraction(score_thr=score_thr)
        with OrderedCalls() as reading, OrderedCalls() as finishing:
            try:
                run = partial(
                    run_batch,
                    self.predictor,
                    score_thr=score_thr,
                    bounds=self.bounds,
                    on_tiles=on_tiles,
                )
                load = partial(self._load, vis=vis, map_dir=Path(map_dir or gettempdir()))
                for loaded, output in self._outputs(_read_ahead(reading, load, images), run):
                    arrays = output.values() if isinstance(output, dict) else [output]
                    nbytes = loaded.nbytes + sum(getattr(array, 'nbytes', 0) for array in arrays)
                    yield from finishing.add(
                        self._finish, loaded, output, score_thr, then, nbytes=nbytes
                    )
                    yield from finishing.results(wait=False)
                yield from finishing.results()
            except (Exception, KeyboardInterrupt, SystemExit):
                yield from finishing.results()
                raise

    def _load(self, index: int, source: ImageInput, *, vis: bool, map_dir: Path) -> LoadedImage:
        name = str(source) if isinstance(source, (str, os.PathLike)) else f'array {index}'
        try:
            stamp = file_stamp(
                source
            )  # before reading, so that a later change of the file is noticed
            image: Any = open_image(source, name=name, read_limit=self.read_limit)
            preview, scaled = make_preview(image) if vis else None, self.sizing(image)
            if prod(scaled.shape[:2]) <= self.bounds.max_pixels:
                scaled = scaled[: scaled.shape[0], : scaled.shape[1]]  # of windows, an array
            map_path = map_dir / f'{Path(name).stem[:40]}.{secrets.token_hex(4)}.tif'
            windows = {} if isinstance(image, np.ndarray) else dict(file=image, map_path=map_path)
            return LoadedImage(index, name, image.shape[1::-1], scaled, preview, stamp, **windows)
        except Exception as error:
            return LoadedImage(
                index, name, (0, 0), np.empty((0, 0, 3)), error=_without_frames(error)
            )

    def _outputs(
        self, images: Iterator[LoadedImage], run: Run
    ) -> Iterator[tuple[LoadedImage, Any]]:
        """Run the model: each image and its output, or the error."""
        buckets = ShapeBuckets(self.bounds)
        for loaded in images:
            if loaded.error:
                yield loaded, loaded.error
                continue
            if warning := self.sizing.warning(loaded.size, loaded.image.shape[1::-1]):
                self.outside += 1
                if self.outside == 1:
                    print_log(
                        f'{loaded.name}: {warning}; further images are counted only',
                        'current',
                        logging.WARNING,
                    )
            for batch in buckets.add(loaded):
                yield from _run(run, batch)
        for batch in buckets.flush():
            yield from _run(run, batch)

    def _finish(
        self, loaded: LoadedImage, output: Any, score_thr: float, then: Any
    ) -> tuple[int, Any]:
        size, picture = None if loaded.error else loaded.size, None
        try:
            if isinstance(output, Exception):
                raise output
            prediction = finish_prediction(self.predictor, output, loaded, score_thr, self.bounds)
            if loaded.file is not None:
                prediction |= loaded.file.georeference
            if loaded.preview is not None:
                picture = draw_prediction(
                    loaded.preview, prediction, self.predictor, size=loaded.size
                )
            result = Result(loaded.name, size, prediction, picture, stamp=loaded.stamp)
        except Exception as error:
            result = Result(loaded.name, size, error=_without_frames(error))
        return loaded.index, then(loaded.index, result)


def _read_ahead(
    reading: OrderedCalls, load: Any, images: Sequence[ImageInput]
) -> Iterator[LoadedImage]:
    for index, source in enumerate(images):
        yield from reading.add(
            load, index, source, nbytes=DECODING_BYTES * prod(image_size(source) or (0,))
        )
    yield from reading.results()


def _run(run: Run, batch: list[LoadedImage]) -> Iterator[tuple[LoadedImage, Any]]:
    try:
        outputs = run(batch)
    except (
        Exception
    ) as error:  # one failure, for example at one image's size, must not abort the rest
        outputs = [_without_frames(error)] if len(batch) == 1 else []
    if outputs:
        yield from zip(batch, outputs, strict=True)
    else:
        for loaded in batch:
            yield from _run(run, [loaded])


def _without_frames(error: Exception) -> Exception:
    """Detach an error from its frames, which hold images and tensors."""
    error.__context__ = error.__cause__ = None
    return error.with_traceback(None)
