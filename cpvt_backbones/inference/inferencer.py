"""One inferencer for detectors, segmentors and classifiers, for images of any size."""

import functools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from mmengine.config import Config

from .batching import Bounds, Loaded, SizeGroups
from .drawing import draw_prediction, make_preview, require_drawing
from .predictors import TASKS, Predictor, ToolboxPredictor
from .reading import READ_LIMIT, Source, read_image
from .records import file_stamp
from .sizing import Scale, check_scale, fit
from .sources import find_images
from .tasks import OnTiles, Prediction, predict_batch, predict_tiled

MAX_PIXELS, TILE_SIZE, OVERLAP = 2048 * 2048, 1024, 256


@dataclass(frozen=True)
class Result:
    """What came of one image.

    Attributes:
        name: Its path, or ``'array 3'`` if it was the input of that index.
        size: Width and height in px, upright; ``None`` if it could not be read.
        prediction: As :class:`Inferencer` describes; ``None`` if there is none.
        picture: (h, w, 3) RGB if it was asked for.
        error: Why there is no prediction: an :class:`ImageError`, or what the model raised.
        stamp: Size and time of its file from before it was read; ``None`` for an array.
    """

    name: str
    size: tuple[int, int] | None = None
    prediction: Prediction | None = None
    picture: np.ndarray | None = None
    error: Exception | None = None
    stamp: list[int] | None = None


def check_score_threshold(score_threshold: float) -> None:
    """Raise ``ValueError`` unless it is a number in [0, 1]."""
    if (
        isinstance(score_threshold, bool)
        or not isinstance(score_threshold, (int, float))
        or not 0 <= score_threshold <= 1
    ):
        raise ValueError(f'score_threshold must be a number in [0, 1], got {score_threshold!r}')


class Inferencer:
    """A trained model that takes images of any size.

    Whatever the config's test pipeline does to the size is left out, unless ``scale`` says otherwise: the image
    goes in as it is. Only images of equal size share a batch, so nothing is padded and no prediction depends on what
    else is predicted. An image of more than ``max_pixels`` is cut into overlapping tiles; so no forward ever gets more
    than ``max_pixels`` pixels, whatever is in the folder.

    A prediction is plain data. Of a detector: ``boxes`` ([[x1, y1, x2, y2]] in px of the image), ``scores``,
    ``labels``, ``classes``, and of an instance segmentor ``masks`` (COCO run lengths). Of a segmentor: ``index_map``,
    (H, W), uint8, or uint16 with more than 255 classes. Of a classifier: ``label``, ``class``, ``score``.

    Args:
        cfg: Config of a detector, segmentor or classifier; it is not changed.
        checkpoint: The weights.
        device: ``'cpu'``, ``'cuda:1'``; ``None`` for a GPU if there is one.
        scale: ``None``: the image's own size. (width, height) in px: as large as fits in there, its shape kept; the
            larger number is for the longer side, as in the toolboxes' Resize. ``'config'``: as the config's test
            pipeline has it; such images are never tiled.
        long_side: The longer side in px, instead of ``scale``.
        batch_size: Most images of one forward.
        max_pixels: Most pixels of one forward, all images together.
        tile_size: Side of a tile in px.
        overlap: px that neighbouring tiles share at least. Objects should be smaller.
        read_limit: Most pixels of an image file, before any change of size; ``None`` for no limit.
        predictor: What runs the batches, instead of ``cfg``, ``checkpoint`` and ``device``.

    Raises:
        FileNotFoundError: No such checkpoint.
        ValueError: An argument is not accepted, or the config's ``default_scope`` names no toolbox.
    """

    def __init__(
        self,
        *,
        cfg: Config | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        device: str | None = None,
        scale: Scale = None,
        long_side: int | None = None,
        batch_size: int = 1,
        max_pixels: int = MAX_PIXELS,
        tile_size: int = TILE_SIZE,
        overlap: int = OVERLAP,
        read_limit: int | None = READ_LIMIT,
        predictor: Predictor | None = None,
    ) -> None:
        self.scale = check_scale(scale, long_side)
        self.bounds = Bounds(batch_size=batch_size, max_pixels=max_pixels, tile_size=tile_size, overlap=overlap)
        self.read_limit = read_limit
        if predictor is None:
            if cfg is None or checkpoint is None:
                raise ValueError('cfg and checkpoint are needed, or a predictor')
            predictor = ToolboxPredictor(
                cfg=cfg, checkpoint=checkpoint, device=device, keep_geometry=self.scale == 'config'
            )
        elif cfg is not None or checkpoint is not None or self.scale == 'config':
            raise ValueError("predictor: it takes the place of cfg and checkpoint, and knows no scale='config'")
        if predictor.task not in TASKS.values():
            raise ValueError(f'predictor.task must be one of {list(TASKS.values())}, got {predictor.task!r}')
        self.predictor = predictor

    @property
    def settings(self) -> dict[str, Any]:
        """All that predictions depend on, as plain data."""
        return dict(
            model=self.predictor.fingerprint,
            scale=list(self.scale) if isinstance(self.scale, tuple) else self.scale,
            max_pixels=self.bounds.max_pixels,
            tile_size=self.bounds.tile_size,
            overlap=self.bounds.overlap,
        )

    def __call__(
        self, image: Source, *, score_threshold: float = 0.3, draw: bool = False
    ) -> tuple[Prediction, np.ndarray | None]:
        """Predict on one image.

        Args:
            image: Image file or array.
            score_threshold: Boxes that score less are left out.
            draw: Draw the prediction on the image.

        Returns:
            tuple: The prediction, and the picture (RGB, uint8) or ``None``.

        Raises:
            ImageError: The image cannot be used.
        """
        ((_, result),) = self.stream([image], score_threshold=score_threshold, draw=draw)
        if result.error is not None:
            raise result.error
        assert result.prediction is not None
        return result.prediction, result.picture

    def predict(
        self, inputs: Source | Sequence[Source], *, score_threshold: float = 0.3, draw: bool = False
    ) -> list[Result]:
        """Predict on many images.

        Args:
            inputs: Image files, folders, patterns, arrays, or a list of these; see :func:`find_images`.
            score_threshold: Boxes that score less are left out.
            draw: Draw the predictions on the images.

        Returns:
            list[Result]: For each image in the order of the inputs its prediction, or why there is none.

        Raises:
            FileNotFoundError: An input does not exist, or a folder or pattern has no image.
            ImageError: An input is a URL.
        """
        results = self.stream(find_images(inputs), score_threshold=score_threshold, draw=draw)
        return [result for _, result in sorted(results, key=lambda pair: pair[0])]

    def stream(
        self,
        images: Sequence[Source],
        *,
        score_threshold: float = 0.3,
        draw: bool = False,
        on_tiles: OnTiles | None = None,
    ) -> Iterator[tuple[int, Result]]:
        """Predict on many images, each handed out as soon as it is done.

        Args:
            images: Image files and arrays.
            score_threshold: Boxes that score less are left out.
            draw: Draw the predictions on the images.
            on_tiles: Called with the number of tiles done and their total while an image is tiled.

        Yields:
            tuple: Index of the image, and its :class:`Result`. Images of a size come together, others in between.
        """
        check_score_threshold(score_threshold)
        if draw:
            require_drawing(self.predictor.task)
        groups = SizeGroups(self.bounds)
        run = functools.partial(self._run, score_threshold=score_threshold, on_tiles=on_tiles)
        for index, source in enumerate(images):
            name = str(source) if isinstance(source, (str, os.PathLike)) else f'array {index}'
            try:
                stamp = None if isinstance(source, np.ndarray) else file_stamp(Path(source))
            except (OSError, TypeError, ValueError):
                stamp = None  # reading it will say why
            try:
                image = read_image(source, name=name, read_limit=self.read_limit)
                size = image.shape[1], image.shape[0]
                preview = make_preview(image) if draw else None
                loaded = Loaded(index, name, size, fit(image, self.scale), preview, stamp)
            except Exception as error:
                yield index, Result(name, error=_bare(error))
                continue
            for batch in groups.add(loaded):
                yield from run(batch)
        for batch in groups.rest():
            yield from run(batch)

    def _run(
        self, batch: list[Loaded], *, score_threshold: float, on_tiles: OnTiles | None
    ) -> Iterator[tuple[int, Result]]:
        failure: Exception | None = None
        try:
            predictions = self._predict(batch, score_threshold, on_tiles)
            pictures = [self._draw(loaded, one) for loaded, one in zip(batch, predictions, strict=True)]
        # A model may fail on one image, by its size for example; the others of the folder are none the worse.
        except Exception as error:
            failure = _bare(error)
        if failure is None:
            for loaded, prediction, picture in zip(batch, predictions, pictures, strict=True):
                yield loaded.index, Result(loaded.name, loaded.size, prediction, picture, stamp=loaded.stamp)
        elif len(batch) == 1:
            yield batch[0].index, Result(batch[0].name, batch[0].size, error=failure)
        else:
            for loaded in batch:
                yield from self._run([loaded], score_threshold=score_threshold, on_tiles=on_tiles)

    def _draw(self, loaded: Loaded, prediction: Prediction) -> np.ndarray | None:
        if loaded.preview is None:
            return None
        return draw_prediction(loaded.preview, prediction, self.predictor, size=loaded.size)

    def _predict(self, batch: list[Loaded], score_threshold: float, on_tiles: OnTiles | None) -> list[Prediction]:
        options: dict[str, Any] = dict(score_threshold=score_threshold, bounds=self.bounds)
        if self.scale != 'config' and batch[0].pixels > self.bounds.max_pixels:
            (loaded,) = batch
            return [predict_tiled(self.predictor, loaded, on_tiles=on_tiles, **options)]
        return predict_batch(self.predictor, batch, **options)


def _bare(error: Exception) -> Exception:
    """The error without the frames that it came through, which hold images and tensors."""
    error.__context__ = error.__cause__ = None
    return error.with_traceback(None)
