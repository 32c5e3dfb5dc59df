"""Prediction on many files into a folder, resumable at every image."""

import json
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from mmengine.logging import print_log
from PIL import Image
from rich.progress import MofNCompleteColumn, Progress

from cpvt_backbones.checkpoints import atomic_write
from cpvt_backbones.layers.checks import renamed_arguments

from .images import ImageError, file_stamp
from .inferencer import Inferencer, Result, check_score_thr
from .predictors import Predictor

RUN_FILE, RECORDS_FILE, LOCK_FILE = 'run.json', 'records.jsonl', '.lock'
RESULT_FILES = ('predictions.json', 'images.json', 'failed.json')
IMAGE_FOLDERS = ('pred', 'vis')

_Record = dict[str, Any]
# stamp: of the image file before reading; files: size in bytes of each output by its path in the folder.
_RECORD_TYPES = dict(key=str, stamp=list, name=str, files=dict, width=int, height=int, prediction=dict)


@dataclass(frozen=True)
class Summary:
    """Outcome of a run.

    Attributes:
        predicted: Number of images predicted now.
        found: Number of images that earlier runs had predicted.
        failed: Reason for each image without a prediction.
        orphaned: Output files of earlier runs that ``predictions.json`` does not list, because their images are no
            longer among the inputs, or failed now.
    """

    predicted: int
    found: int
    failed: dict[str, str]
    orphaned: list[str]


@renamed_arguments(score_threshold='score_thr', pictures='vis', fresh='overwrite')
def predict_to_folder(
    inferencer: Inferencer,
    images: Sequence[Path],
    *,
    out_dir: str | os.PathLike[str],
    score_thr: float = 0.3,
    vis: bool = True,
    overwrite: bool = False,
    progress: bool = True,
) -> Summary:
    """Predict on image files and write everything to a folder.

    Each prediction is written as soon as it is made. The same call on the same folder continues with what is left:
    images without a prediction, or changed since.

    ``images.json`` lists the images and the classes in COCO's format; ``predictions.json`` is a list: of a detector in
    the COCO results format, otherwise one entry an image; ``failed.json`` lists the images without a prediction, and
    why. ``pred/`` has a segmentor's maps, ``vis/`` the pictures. ``records.jsonl`` and ``run.json`` are for continuing.

    Args:
        inferencer: The model.
        images: Image files, see :func:`find_images`. Those in ``pred/`` and ``vis/`` of ``out_dir``, which a pattern
            may match, are skipped.
        out_dir: The folder, created if missing.
        score_thr: Minimum score of a box.
        vis: Draw each prediction on its image.
        overwrite: Delete what earlier runs left in the folder.
        progress: Show a progress bar.

    Raises:
        TypeError: An image is an array, which has no name for its outputs.
        ValueError: The folder has predictions of another model or other settings, or another process writes to it.
        OSError: The folder cannot be written to.
    """
    check_score_thr(score_thr)
    folder = Path(out_dir)
    settings = dict(inferencer.settings, score_thr=score_thr, vis=vis)
    # One file is one image, under whatever names it is given.
    named = {Path(os.path.abspath(image)): Path(image) for image in reversed(images)}
    outputs = [Path(os.path.abspath(folder / name)) for name in IMAGE_FOLDERS]
    images = [image for path, image in named.items() if not any(path.is_relative_to(own) for own in outputs)][::-1]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / LOCK_FILE, blocking=False):
            _prepare(folder, settings, overwrite)
            return _predict(inferencer, images, folder, score_thr, vis, progress)
    except Timeout:
        raise ValueError(f'out_dir: another process is writing to {str(folder)!r}; choose another folder') from None
    except OSError as error:
        raise OSError(f'out_dir: {str(folder)!r} cannot be written to: {error.strerror or error}') from error


def _predict(
    inferencer: Inferencer, images: list[Path], folder: Path, score_thr: float, vis: bool, progress: bool
) -> Summary:
    records = Records(folder)
    names = [records.take_name(image) for image in images]
    left = [(image, name) for image, name in zip(images, names, strict=True) if not records.is_done(image)]
    failed = {}
    with _progress_bar(len(images), len(images) - len(left), show=progress) as (advance, on_tiles):
        todo = [image for image, _ in left]
        for index, result in inferencer.stream(todo, score_thr=score_thr, vis=vis, on_tiles=on_tiles):
            image, name = left[index]
            if result.error is None:
                _write(folder, records, image, name, result)
            else:
                failed[str(image)] = _reason(result.error)
            advance()
    done = [image for image in images if str(image) not in failed]
    _assemble(folder, records, done, inferencer.predictor)
    _write_lines(folder / 'failed.json', (dict(file_name=name, reason=reason) for name, reason in failed.items()))
    return Summary(len(left) - len(failed), len(images) - len(left), failed, records.orphaned(done))


def _prepare(folder: Path, settings: dict[str, Any], overwrite: bool) -> None:
    """Dedicate the folder to runs of these settings, or refuse it."""
    own = [folder / name for name in (RUN_FILE, RECORDS_FILE) if os.path.lexists(folder / name)]
    if overwrite and own:  # else ``pred`` and ``vis`` are somebody else's
        for name in (RECORDS_FILE, *RESULT_FILES, *IMAGE_FOLDERS, RUN_FILE):
            _remove(folder / name)
    elif own:
        try:
            before = dict(json.loads((folder / RUN_FILE).read_bytes()))
        except (FileNotFoundError, TypeError, ValueError) as error:
            for path in own:
                os.replace(path, _damaged(path))
            _warn(f'{str(folder / RUN_FILE)!r} is damaged ({error}); all images are predicted again')
        else:
            changed = sorted(key for key in {*before, *settings} if before.get(key) != settings.get(key))
            if changed:
                changes = ', '.join(f'{key} was {before.get(key)!r}, is {settings.get(key)!r}' for key in changed)
                raise ValueError(
                    f'out_dir: {str(folder)!r} has predictions of other settings ({changes}); '
                    'choose another folder, or delete them with overwrite=True (--overwrite)'
                )
    with atomic_write(folder / RUN_FILE) as file:
        file.write(json.dumps(settings, indent=1).encode())


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _damaged(path: Path) -> Path:
    return path.with_name(f'{path.name}.damaged')


def _warn(message: str) -> None:
    print_log(f'out_dir: {message}; the old file is kept with the ending .damaged', 'current', logging.WARNING)


class Records:
    """Images that are done: one line of JSON each, written after their outputs.

    Args:
        folder: Of the run. A last line cut short by a kill is dropped; a damaged file is set aside and its readable
            lines are used.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = folder / RECORDS_FILE
        lines = self._file.read_bytes().splitlines(keepends=True) if self._file.exists() else []
        if cut_short := bool(lines) and not lines[-1].endswith(b'\n'):
            lines.pop()
        parsed = [_parse_record(line) for line in lines]
        readable = [line for line, record in zip(lines, parsed, strict=True) if record]
        if damaged := len(lines) - len(readable):
            shutil.copyfile(self._file, _damaged(self._file))
            _warn(f'{str(self._file)!r} is damaged; the images of {damaged} lines are predicted again')
        if cut_short or damaged:
            with atomic_write(self._file) as file:
                file.writelines(readable)
        self._records: dict[str, _Record] = {record['key']: record for record in parsed if record}
        # Lower case, since some file systems ignore case.
        self._taken = {record['name'].lower() for record in self._records.values()}
        self._numbers: dict[str, int] = {}

    def is_done(self, image: Path) -> bool:
        """Whether an image file has a record, is unchanged since, and all its outputs are complete."""
        record = self._records.get(os.path.abspath(image))
        if record is None or record['stamp'] != file_stamp(image):
            return False
        return all(_size(self._folder / file) == size for file, size in record['files'].items())

    def __getitem__(self, image: Path) -> _Record:
        return self._records[os.path.abspath(image)]

    def orphaned(self, images: Iterable[Path]) -> list[str]:
        """List the existing outputs of images other than these."""
        keys = {os.path.abspath(image) for image in images}
        files = [file for key, record in self._records.items() if key not in keys for file in record['files']]
        return [file for file in files if _size(self._folder / file) is not None]

    def take_name(self, image: Path) -> str:
        """Name the outputs of an image file: its stem, numbered if taken; an existing record keeps its name."""
        if known := self._records.get(os.path.abspath(image)):
            return known['name']
        # File systems allow 255 bytes, including suffix and number.
        name = stem = image.stem.encode(errors='surrogateescape')[:200].decode(errors='ignore')
        while name.lower() in self._taken:
            number = self._numbers[stem] = self._numbers.get(stem, 1) + 1
            name = f'{stem}_{number}'
        self._taken.add(name.lower())
        return name

    def add(self, image: Path, **values: Any) -> None:
        """Record an image as done; ``values`` are those of ``_RECORD_TYPES`` except ``key``."""
        record = dict(key=os.path.abspath(image), **values)
        with self._file.open('a') as file:
            file.write(f'{json.dumps(record)}\n')
        self._records[record['key']] = record


def _parse_record(line: bytes) -> _Record | None:
    try:
        record = json.loads(line)
        valid = all(isinstance(record[key], kind) for key, kind in _RECORD_TYPES.items())
    except (KeyError, RecursionError, TypeError, ValueError):
        return None
    return record if valid else None


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def _write(folder: Path, records: Records, image: Path, name: str, result: Result) -> None:
    assert result.prediction is not None and result.size is not None
    prediction = dict(result.prediction)
    outputs = {}
    if 'seg_map' in prediction:
        outputs[f'pred/{name}.png'] = prediction['seg_map']
        prediction['seg_map'] = f'pred/{name}.png'
    if result.picture is not None:
        outputs[f'vis/{name}.png'] = result.picture
    files = {}
    for path, pixels in outputs.items():
        with atomic_write(folder / path) as file:
            Image.fromarray(pixels).save(file, format='PNG')
        files[path] = (folder / path).stat().st_size
    width, height = result.size
    # After the outputs, because an image with a record is done.
    records.add(image, stamp=result.stamp, name=name, files=files, width=width, height=height, prediction=prediction)


def _reason(error: Exception) -> str:
    return error.reason if isinstance(error, ImageError) else f'the model failed: {type(error).__name__}: {error}'


def _assemble(folder: Path, records: Records, images: list[Path], predictor: Predictor) -> None:
    done = [(i, str(image), records[image]) for i, image in enumerate(images, start=1)]
    listed = [dict(id=i, file_name=name, width=one['width'], height=one['height']) for i, name, one in done]
    categories = [dict(id=label, name=name) for label, name in enumerate(predictor.classes or [])]
    with atomic_write(folder / 'images.json') as file:
        file.write(json.dumps(dict(images=listed, categories=categories), indent=1).encode())
    entries = (entry for i, _, record in done for entry in _entries(i, record['prediction']))
    _write_lines(folder / 'predictions.json', entries)


def _entries(image_id: int, prediction: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Convert the prediction of one image to entries of ``predictions.json``."""
    if 'boxes' not in prediction:
        yield dict(image_id=image_id, **prediction)
        return
    for i, (label, (x1, y1, x2, y2)) in enumerate(zip(prediction['labels'], prediction['boxes'], strict=True)):
        entry = dict(image_id=image_id, category_id=label, bbox=[x1, y1, x2 - x1, y2 - y1])
        entry['score'] = prediction['scores'][i]
        if 'masks' in prediction:
            entry['segmentation'] = prediction['masks'][i]
        yield entry


def _write_lines(path: Path, entries: Iterable[Any]) -> None:
    """Write a JSON list, one entry a line, without holding it."""
    separator = b'[\n'
    with atomic_write(path) as file:
        for entry in entries:
            file.write(separator + json.dumps(entry).encode())
            separator = b',\n'
        file.write(b'[]\n' if separator == b'[\n' else b'\n]\n')


@contextmanager
def _progress_bar(total: int, done: int, *, show: bool) -> Iterator[tuple[Callable[[], None], Callable[..., None]]]:
    """Show a bar of images and, while one is tiled, of its tiles; yields a function to advance each."""
    with Progress(*Progress.get_default_columns(), MofNCompleteColumn(), disable=not show) as bar:
        images = bar.add_task('images', total=total, completed=done)
        tiles = bar.add_task('tiles', visible=False)

        def on_tiles(now: int, of: int) -> None:
            bar.update(tiles, completed=now, total=of, visible=now < of)

        yield lambda: bar.advance(images), on_tiles
