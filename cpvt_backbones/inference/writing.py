"""Predictions of many files, written to a folder as they are made."""

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from PIL import Image
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from .inferencer import Inferencer, Result, check_score_threshold
from .predictors import Predictor
from .reading import ImageError
from .records import Records, write_atomically, write_json

RUN_FILE = 'run.json'
LOCK_FILE = '.lock'
PICTURE_FOLDERS = ('pred', 'vis')


@dataclass(frozen=True)
class Summary:
    """What a run has done.

    Attributes:
        predicted: Images predicted now.
        found: Images that an earlier run had predicted.
        failed: For each image without a prediction the reason.
    """

    predicted: int
    found: int
    failed: dict[str, str]


def predict_to_folder(
    inferencer: Inferencer,
    images: Sequence[Path],
    *,
    out_dir: str | os.PathLike[str],
    score_threshold: float = 0.3,
    pictures: bool = True,
    fresh: bool = False,
    progress: bool = True,
) -> Summary:
    """Predict on image files and write everything to a folder.

    Each image's prediction is written when it is made. The same call on the same folder goes on with what is left:
    images that have no prediction yet, or that have changed since.

    ``images.json`` lists the images and the classes, as COCO does; ``predictions.json`` is a list: of a detector in the
    COCO results format, otherwise one entry for each image; ``failed.json`` lists what could not be predicted, and why.
    ``pred/`` has a segmentor's class maps, ``vis/`` the pictures. ``records.jsonl`` and ``run.json`` are for going on.

    Args:
        inferencer: The model.
        images: Image files, as :func:`find_images` gives them; without those in ``pred/`` and ``vis/`` of ``out_dir``,
            which a pattern may find.
        out_dir: The folder, made if it is not there.
        score_threshold: Boxes that score less are left out.
        pictures: Draw each prediction on its image.
        fresh: Throw away what an earlier run has left in the folder.
        progress: Show a progress bar.

    Returns:
        Summary: What was done, and what could not be.

    Raises:
        TypeError: An image is an array, which has no name to be written under.
        ValueError: The folder has predictions of another model or with other settings, or another process writes to it.
    """
    check_score_threshold(score_threshold)
    folder = Path(out_dir)
    # One file is one image, however often it is named.
    named = {Path(os.path.abspath(image)): Path(image) for image in reversed(images)}
    outputs = [Path(os.path.abspath(folder / name)) for name in PICTURE_FOLDERS]
    images = [image for path, image in named.items() if not any(path.is_relative_to(own) for own in outputs)][::-1]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / LOCK_FILE, blocking=False):
            return _predict_to(folder, inferencer, images, score_threshold, pictures, fresh, progress)
    except Timeout:
        raise ValueError(f'out_dir: another process is writing to {str(folder)!r}; take another folder') from None


def _predict_to(
    folder: Path,
    inferencer: Inferencer,
    images: list[Path],
    score_threshold: float,
    pictures: bool,
    fresh: bool,
    progress: bool,
) -> Summary:
    _prepare(folder, dict(inferencer.settings, score_threshold=score_threshold, pictures=pictures), fresh)
    records = Records(folder)
    names = [records.take_name(image) for image in images]
    left = [(image, name) for image, name in zip(images, names, strict=True) if not _is_done(records, image)]
    failed = {}
    with _progress_bar(len(images), len(images) - len(left), show=progress) as (advance, on_tiles):
        todo = [image for image, _ in left]
        for index, result in inferencer.stream(todo, score_threshold=score_threshold, draw=pictures, on_tiles=on_tiles):
            image, name = left[index]
            if result.error is None:
                _write(folder, records, image, name, result)
            else:
                failed[str(image)] = _reason(result.error)
            advance()
    _assemble(folder, records, [image for image in images if str(image) not in failed], inferencer.predictor)
    write_json(folder / 'failed.json', (dict(file_name=name, reason=reason) for name, reason in failed.items()))
    return Summary(predicted=len(left) - len(failed), found=len(images) - len(left), failed=failed)


def _is_done(records: Records, image: Path) -> bool:
    try:
        return records.find(image) is not None
    except OSError:  # cannot even be looked at; it will be named when it is read
        return False


def _prepare(folder: Path, settings: dict[str, Any], fresh: bool) -> None:
    """Make the folder one of a run with these settings, or refuse."""
    run_file = folder / RUN_FILE
    if run_file.is_file():
        before = json.loads(run_file.read_text())
        changed = sorted(key for key in {*before, *settings} if before.get(key) != settings.get(key))
        if not fresh and not changed:
            return
        if not fresh:
            differences = ', '.join(f'{key} was {before.get(key)!r}, is {settings.get(key)!r}' for key in changed)
            raise ValueError(
                f'out_dir: {str(folder)!r} has predictions made otherwise ({differences}); '
                'take another folder, or throw them away with fresh=True'
            )
        for name in ('records.jsonl', 'predictions.json', 'images.json', 'failed.json'):
            (folder / name).unlink(missing_ok=True)
        for name in PICTURE_FOLDERS:
            shutil.rmtree(folder / name, ignore_errors=True)
    write_json(run_file, settings)


def _write(folder: Path, records: Records, image: Path, name: str, result: Result) -> None:
    assert result.prediction is not None and result.size is not None
    prediction = dict(result.prediction)
    files = {}
    if 'index_map' in prediction:
        files[f'pred/{name}.png'] = prediction['index_map']
        prediction['index_map'] = f'pred/{name}.png'
    if result.picture is not None:
        files[f'vis/{name}.png'] = result.picture
    for file_name, pixels in files.items():
        _write_png(folder / file_name, pixels)
    width, height = result.size
    # Last: what has a record is done.
    records.add(
        image, stamp=result.stamp, name=name, files=list(files), width=width, height=height, prediction=prediction
    )


def _write_png(path: Path, pixels: np.ndarray) -> None:
    write_atomically(path, lambda file: Image.fromarray(pixels).save(file, format='PNG'))


def _reason(error: Exception) -> str:
    return error.reason if isinstance(error, ImageError) else f'the model failed: {type(error).__name__}: {error}'


def _assemble(folder: Path, records: Records, images: list[Path], predictor: Predictor) -> None:
    done = [(i, str(image), records.get(image)) for i, image in enumerate(images, start=1)]
    listed = [dict(id=i, file_name=name, width=one['width'], height=one['height']) for i, name, one in done]
    categories = [dict(id=label, name=name) for label, name in enumerate(predictor.classes or [])]
    write_json(folder / 'images.json', dict(images=listed, categories=categories))
    entries = (entry for i, _, record in done for entry in _entries(i, record['prediction']))
    write_json(folder / 'predictions.json', entries)


def _entries(image_id: int, prediction: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The prediction of one image as ``predictions.json`` has it."""
    if 'boxes' not in prediction:
        yield dict(image_id=image_id, **prediction)
        return
    for i, (x1, y1, x2, y2) in enumerate(prediction['boxes']):
        entry = dict(
            image_id=image_id,
            category_id=prediction['labels'][i],
            bbox=[x1, y1, x2 - x1, y2 - y1],
            score=prediction['scores'][i],
        )
        if 'masks' in prediction:
            entry['segmentation'] = prediction['masks'][i]
        yield entry


@contextmanager
def _progress_bar(total: int, done: int, *, show: bool) -> Iterator[tuple[Any, Any]]:
    """Two bars, of images and, while one is tiled, of its tiles; gives what advances each."""
    columns = (
        TextColumn('{task.description}'),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn('left:'),
        TimeRemainingColumn(),
    )
    with Progress(*columns, disable=not show) as bar:
        images = bar.add_task('images', total=total, completed=done)
        tiles = bar.add_task('tiles', visible=False)

        def on_tiles(now: int, of: int) -> None:
            bar.update(tiles, completed=now, total=of, visible=now < of)

        yield lambda: bar.advance(images), on_tiles
