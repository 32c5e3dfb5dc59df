"""Prediction on many files into a folder, resumable at every image."""

import errno
import io
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from heapq import heapreplace
from math import prod
from pathlib import Path
from typing import Any

from filelock import Timeout
from mmengine.logging import print_log
from PIL import Image
from rich.progress import MofNCompleteColumn, Progress

from cpvt_backbones.checkpoints.json_files import parse_json, read_json
from cpvt_backbones.checkpoints.writing import atomic_write, flush_to_disk, lock_file
from cpvt_backbones.layers.checks import check_fraction, is_int, is_number

from .images import ImageError, file_stamp, image_size
from .inferencer import Inferencer, Result
from .predictions import Prediction

RUN_FILE, RECORDS_FILE, LOCK_FILE = 'run.json', 'records.jsonl', '.lock'
RESULT_FILES = ('predictions.json', 'images.json', 'failed.json')
IMAGE_FOLDERS = ('pred', 'vis')
_PARTS = f'.*.{"[0-9a-f]" * 8}.part'  # atomic_write's, of a run that was killed

Shard = tuple[int, int]  # its number, from 0, and their count


@dataclass(frozen=True)
class Summary:
    """Outcome of a run."""

    predicted: int  # images predicted now
    found: int  # images that earlier runs had predicted
    failed: dict[str, str]  # reason for each image without a prediction
    # outputs of earlier runs, of images that failed now or are no longer among the inputs
    orphaned: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)  # inputs that lie among the folder's outputs
    boxes: int | None = None  # of a detector: in all images
    best: float | None = None  # highest score of a box, below score_thr too


@dataclass(frozen=True)
class Ids:
    """Numbers of images and classes in the JSON files."""

    images: dict[Path, Any]
    categories: dict[int, Any]  # by label


def predict_to_folder(
    inferencer: Inferencer,
    images: Sequence[Path],
    *,
    out_dir: str | os.PathLike[str],
    score_thr: float = 0.3,
    vis: bool = True,
    overwrite: bool = False,
    progress: bool = True,
    ann: str | os.PathLike[str] | None = None,
    shard: Shard | None = None,
) -> Summary:
    """Predict on image files and write everything to a folder.

    Each prediction is written as soon as it is made. The same call on the same folder continues
    with the images that have no prediction or have changed. docs/inference.md lists the files.

    Args:
        inferencer: The model.
        images: Image files, see :func:`find_images`. Those in ``pred/`` and ``vis/`` of ``out_dir``
            and of its shards are skipped, and listed in the summary.
        out_dir: The folder, created if missing.
        score_thr, vis: See :meth:`Inferencer.__call__`.
        overwrite: Delete the output of earlier runs, and no other file.
        progress: Show a progress bar.
        ann: COCO JSON whose ids of images, by file name, and categories, by name, the output takes;
            else they count.
        shard: (i, n): predict a part of the images, shard i, from 0, of n, in a folder of its own
            in ``out_dir``; other processes do the others at the same time. :func:`merge_shards`
            makes one of their results.

    Raises:
        TypeError: An image is an array.
        FileNotFoundError, ValueError: ``ann`` cannot be read, or lacks an image or a class of the
            model.
        ValueError: The folder has predictions of another model or other settings, or files in
            ``pred`` or ``vis`` that no run wrote; another process writes to it; all images are
            skipped; ``out_dir`` or ``shard`` is not accepted.
        OSError: The folder cannot be written to.
    """
    check_fraction(score_thr=score_thr)
    folder = _output_folder(out_dir)
    settings = dict(inferencer.settings, score_thr=score_thr, vis=vis)
    classes = inferencer.predictor.classes or []
    images, skipped = _inputs(images, folder)
    ids = _read_ids(Path(ann), images, classes) if ann is not None else None
    if ids is None:
        numbers = {image: number for number, image in enumerate(images, start=1)}
        ids = Ids(numbers, {label: label for label in range(len(classes))})
    if shard is not None:
        folder = shard_folder(folder, shard)
        settings['images'] = _describe(images)
        images = [images[i] for i in _divide(images, *shard)]

    def run() -> Summary:
        _prepare(folder, settings, overwrite)
        return _predict(inferencer, images, folder, ids, progress, score_thr=score_thr, vis=vis)

    return replace(_write_to(folder, run), skipped=skipped)


def merge_shards(images: Sequence[Path], out_dir: str | os.PathLike[str]) -> Summary:
    """Make one of the results of all shards of ``out_dir``, when they have ended.

    The JSON files are those of one run on ``images``, whose pictures and class maps are in the
    folders of the shards.

    ``ValueError`` if a shard has not ended, or predicted with other settings or on other images;
    ``OSError`` as of :func:`predict_to_folder`.
    """
    folder = _output_folder(out_dir)
    images, skipped = _inputs(images, folder)
    shards = _find_shards(folder)

    def run() -> Summary:
        with ExitStack() as locks:
            for shard in shards:
                locks.enter_context(_locked(shard))
            return _merge(folder, shards, images)

    return replace(_write_to(folder, run), skipped=skipped)


def shard_folder(folder: Path, shard: Shard) -> Path:
    """Where a shard's output is; ``ValueError`` for a wrong shard."""
    if not 0 <= shard[0] < shard[1]:
        raise ValueError(f'shard must be (i, n) with 0 <= i < n, got {shard!r}')
    return folder / f'shard-{shard[0]}-of-{shard[1]}'


def _output_folder(out_dir: str | os.PathLike[str]) -> Path:
    if not os.fspath(out_dir) or '\0' in os.fspath(out_dir):
        raise ValueError(f'out_dir must be the path of a folder, got {os.fspath(out_dir)!r}')
    return Path(out_dir)


def _inputs(images: Sequence[Path], folder: Path) -> tuple[list[Path], list[str]]:
    """The images to predict, and those that are outputs, wherever links lead.

    Different paths of one file are one image.
    """
    folders = [folder, *folder.glob('shard-*-of-*')]
    outputs = [Path(os.path.realpath(own / name)) for own in folders for name in IMAGE_FOLDERS]
    kept: dict[str, Path] = {}
    skipped = []
    for image in images:
        real = Path(os.path.realpath(image))
        if any(real.is_relative_to(own) for own in outputs):
            skipped.append(str(image))
        else:
            kept.setdefault(os.path.abspath(image), Path(image))
    if skipped and not kept:
        raise ValueError(
            f'inputs: all {len(skipped)} images, such as {skipped[0]!r}, lie in the output folder'
            f' {str(folder)!r}; choose another --out-dir'
        )
    return list(kept.values()), skipped


def _describe(images: Sequence[Path]) -> str:
    """A text that differs for other images."""
    names = '\n'.join(map(os.path.abspath, images)).encode(errors='surrogateescape')
    return f'{len(images)} images, {sha256(names).hexdigest()[:16]}'


def _write_to(folder: Path, run: Callable[[], Summary]) -> Summary:
    """Call a function that writes to a folder, which no other process does meanwhile."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder):
            return run()
    except Timeout as error:
        busy = str(Path(error.lock_file).parent)
        raise ValueError(
            f'out_dir: another process is writing to {busy!r}; choose another folder'
        ) from None
    except OSError as error:
        if not _is_of(error, folder):
            raise
        raise OSError(
            f'out_dir: {str(folder)!r} cannot be written to: {error.strerror or error}'
        ) from error


def _is_of(error: OSError, folder: Path) -> bool:
    """True if an error is about the output folder: a full disk, or a file in it."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) or error.filename is None:
        return True
    file = Path(os.path.abspath(os.fsdecode(error.filename)))
    whole = Path(os.path.abspath(folder))
    return file.is_relative_to(whole) or whole.is_relative_to(file)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Let no other run write to a folder."""
    lock = lock_file(folder / LOCK_FILE, warn=_warn)
    try:
        yield
    finally:
        if lock is not None:
            lock.release()


def _warn(message: str) -> None:
    print_log(f'out_dir: {message}', 'current', logging.WARNING)


def _predict(
    inferencer: Inferencer,
    images: list[Path],
    folder: Path,
    ids: Ids,
    progress: bool,
    **given: Any,
) -> Summary:
    records = Records(folder)
    names = {image: records.take_name(image) for image in images}
    left = [image for image in images if not records.is_done(image)]
    found, failed = len(images) - len(left), {}
    columns = *Progress.get_default_columns(), MofNCompleteColumn()
    with Progress(*columns, disable=not progress) as bar:
        all_images = bar.add_task('images', total=len(images), completed=found)
        tiles = bar.add_task('tiles', visible=False)

        def on_tiles(done: int, total: int) -> None:
            bar.update(tiles, completed=done, total=total, visible=done < total)

        def write(index: int, result: Result) -> Result | dict[str, Any]:
            return result if result.error else _write(folder, names[left[index]], result)

        options = dict(given, on_tiles=on_tiles, map_dir=folder / 'pred', then=write)
        for index, outcome in inferencer.stream(left, **options):
            if isinstance(outcome, Result):
                failed[left[index]] = _reason(outcome.error)
            else:
                records.add(left[index], **outcome)
            bar.advance(all_images)
    done = [image for image in images if image not in failed]
    _assemble(folder, records, done, inferencer.predictor.classes or [], ids)
    # In the order of the images.
    reasons = {str(image): failed[image] for image in images if image in failed}
    _write_failed(folder, reasons)
    boxes = best = None
    if inferencer.predictor.task == 'detection':
        predictions = [records[image]['prediction'] for image in done]
        boxes = sum(len(prediction['boxes']) for prediction in predictions)
        scores = [records[image]['best'] for image in done]
        best = max((score for score in scores if score is not None), default=None)
    return Summary(
        len(left) - len(failed), found, reasons, records.orphaned(done), boxes=boxes, best=best
    )


def _reason(error: Exception | None) -> str:
    if isinstance(error, ImageError):
        return error.reason
    return f'the model failed: {type(error).__name__}: {error}'


# -- shards


def _divide(images: Sequence[Path], shard: int, count: int) -> list[int]:
    """Indices of the images of a shard.

    The largest come first, each to the shard with the fewest pixels so far.
    """
    with ThreadPoolExecutor() as pool:
        pixels = [prod(size or (1, 1)) for size in pool.map(image_size, images)]
    loads, mine = [(0, i) for i in range(count)], []
    for index in sorted(range(len(images)), key=lambda index: -pixels[index]):
        if loads[0][1] == shard:
            mine.append(index)
        heapreplace(loads, (loads[0][0] + pixels[index], loads[0][1]))
    return sorted(mine)


def _find_shards(folder: Path) -> list[Path]:
    """The folders of all shards; ``ValueError`` for shards of two numbers, or if one is missing."""
    counts = {path.name.rpartition('-')[2] for path in folder.glob('shard-*-of-*')}
    if len(counts) != 1 or not (number := counts.pop()).isdecimal():
        found = f'of {" and ".join(sorted(counts))} shards' if counts else 'of no shard'
        raise ValueError(f'out_dir: {str(folder)!r} has predictions {found}; --shard makes them')
    shards = [shard_folder(folder, (i, int(number))) for i in range(int(number))]
    for i, shard in enumerate(shards):
        if not all((shard / name).is_file() for name in (RUN_FILE, *RESULT_FILES)):
            raise ValueError(
                f'out_dir: shard {i} of {number} in {str(folder)!r} has not ended; start it again:'
                f' --shard {i}/{number}'
            )
    return shards


def _merge(folder: Path, shards: list[Path], images: list[Path]) -> Summary:
    settings = read_json(shards[0] / RUN_FILE)
    for shard in shards:
        _compare(shard, read_json(shard / RUN_FILE), settings)
    _compare(folder, settings, dict(settings, images=_describe(images)))
    _prepare(folder, dict(settings, shards=len(shards)), overwrite=False)
    listed, entries, failed = [], [], {}
    categories: Any = []
    for shard in shards:
        content = read_json(shard / 'images.json')
        listed += content['images']
        categories = content['categories']
        for entry in json.loads((shard / 'predictions.json').read_bytes()):
            if 'seg_map' in entry:
                entry['seg_map'] = f'{shard.name}/{entry["seg_map"]}'
            entries.append(entry)
        for entry in json.loads((shard / 'failed.json').read_bytes()):
            failed[entry['file_name']] = entry['reason']
    places = {str(image): place for place, image in enumerate(images)}
    listed.sort(key=lambda image: places[image['file_name']])
    order = {image['id']: place for place, image in enumerate(listed)}
    entries.sort(key=lambda entry: order[entry['image_id']])
    _write_images(folder, listed, categories)
    _write_list(folder / 'predictions.json', entries)
    reasons = {name: failed[name] for name in places if name in failed}
    _write_failed(folder, reasons)
    return Summary(0, len(listed), reasons)


# -- the folder before a run


def _prepare(folder: Path, settings: dict[str, Any], overwrite: bool) -> None:
    """Write the settings to the folder; raise ``ValueError`` if it has others."""
    own = [folder / name for name in (RUN_FILE, RECORDS_FILE) if os.path.lexists(folder / name)]
    if not own:
        _refuse_foreign(folder)
    elif overwrite:
        _delete_output(folder)
    else:
        before = _read_settings(folder, own)
        if before is not None:
            _compare(folder, before, settings)
    with atomic_write(folder / RUN_FILE) as file:
        file.write(json.dumps(settings, indent=1).encode())


def _read_settings(folder: Path, own: list[Path]) -> dict[str, Any] | None:
    """Settings of the earlier run. Its files are set aside if these are damaged or missing."""
    try:
        return read_json(folder / RUN_FILE)
    except (FileNotFoundError, ValueError) as error:
        fault = str(error)
        if isinstance(error, FileNotFoundError):
            fault = f'{str(folder / RUN_FILE)!r} is damaged: it is missing'
    for path in own:
        os.replace(path, f'{path}.damaged')
    _warn(f'{fault}; all images are predicted again; {_KEPT}')
    return None


_KEPT = 'the old file is kept with the ending .damaged'


def _compare(folder: Path, before: dict[str, Any], settings: dict[str, Any]) -> None:
    changes = [
        f'{key} was {before.get(key)!r}, is {settings.get(key)!r}'
        for key in sorted({*before, *settings})
        if before.get(key) != settings.get(key)
    ]
    if changes:
        raise ValueError(
            f'out_dir: {str(folder)!r} has predictions of other settings ({", ".join(changes)});'
            ' choose another folder, or replace them with --overwrite'
        )


def _refuse_foreign(folder: Path) -> None:
    """Refuse a folder that is not of an earlier run and whose files this run could replace."""
    files = [file for name in IMAGE_FOLDERS for file in sorted(folder.glob(f'{name}/*'))]
    files += [folder / name for name in RESULT_FILES if os.path.lexists(folder / name)]
    if files:
        raise ValueError(
            f'out_dir: {str(folder)!r} has files that no earlier run wrote, such as'
            f' {str(files[0])!r}; choose another folder, or move them'
        )


def _delete_output(folder: Path) -> None:
    """Delete what earlier runs wrote, and no other file."""
    records = folder / RECORDS_FILE
    lines = records.read_bytes().splitlines() if records.is_file() else []
    for record in filter(None, map(_parse_record, lines)):
        for output in record['files']:
            # Only a file of the two folders, whatever the record says.
            place, _, name = output.partition('/')
            if place in IMAGE_FOLDERS and name and Path(name).name == name:
                _unlink(folder / place / name)
    for name in IMAGE_FOLDERS:
        for part in (folder / name).glob(_PARTS):
            _unlink(part)
        with suppress(OSError):  # it holds other files
            (folder / name).rmdir()
    for name in (RECORDS_FILE, *RESULT_FILES, RUN_FILE):
        _unlink(folder / name)


def _unlink(path: Path) -> None:
    """Delete a file or a link; a folder of this name stays."""
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)


# -- records


class Records:
    """Finished images: one line of JSON each, written after their outputs.

    An incomplete last line is dropped. A damaged file is copied to ``records.jsonl.damaged`` and
    its readable lines are used.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = folder / RECORDS_FILE
        lines = self._file.read_bytes().splitlines(keepends=True) if self._file.exists() else []
        cut_short = bool(lines) and not lines[-1].endswith(b'\n')
        if cut_short:
            lines.pop()
        parsed = {line: _parse_record(line) for line in lines}
        readable = [line for line in lines if parsed[line]]
        damaged = len(lines) - len(readable)
        if damaged:
            shutil.copyfile(self._file, f'{self._file}.damaged')
            lost = f'the images of {damaged} lines are predicted again'
            _warn(f'{str(self._file)!r} is damaged; {lost}; {_KEPT}')
        if cut_short or damaged:
            with atomic_write(self._file) as file:
                file.writelines(readable)
        records = [record for record in parsed.values() if record]
        self._records: dict[str, dict[str, Any]] = {record['key']: record for record in records}
        # Lower case, since some file systems ignore case.
        self._taken = {record['name'].lower() for record in self._records.values()}
        self._numbers: dict[str, int] = {}

    def is_done(self, image: Path) -> bool:
        """True if an image file has a record and is unchanged, and its outputs are complete."""
        record = self._records.get(os.path.abspath(image))
        if record is None or record['stamp'] != file_stamp(image):
            return False
        files = [(self._folder / file, size) for file, size in record['files'].items()]
        return all(file.is_file() and file.stat().st_size == size for file, size in files)

    def __getitem__(self, image: Path) -> dict[str, Any]:
        return self._records[os.path.abspath(image)]

    def orphaned(self, images: list[Path]) -> list[str]:
        """List the existing outputs of other images."""
        keys = {os.path.abspath(image) for image in images}
        others = [record for key, record in self._records.items() if key not in keys]
        files = [file for record in others for file in record['files']]
        return [file for file in files if (self._folder / file).exists()]

    def take_name(self, image: Path) -> str:
        """Return the name of an image's outputs.

        It is that of its record, else its stem, numbered if taken.
        """
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
        """Record an image as done; ``values`` are those of ``_RECORD`` except ``key``."""
        record = dict(key=os.path.abspath(image), **values)
        with self._file.open('a') as file:
            file.write(f'{json.dumps(record)}\n')
        self._records[record['key']] = record


# key: absolute path; stamp: of the image file before reading; files: size in bytes of each output,
# by path; best: highest score of a box.
_RECORD: dict[str, type | tuple[type, ...]] = dict(
    key=str,
    stamp=list,
    name=str,
    files=dict,
    width=int,
    height=int,
    prediction=dict,
    best=(float, int, type(None)),
)


def _parse_record(line: bytes) -> dict[str, Any] | None:
    try:
        record = parse_json(line, 'record')
    except ValueError:
        return None
    if not all(key in record and isinstance(record[key], kind) for key, kind in _RECORD.items()):
        return None
    if not all(is_int(size) for size in record['files'].values()):
        return None
    return record if _is_prediction(record['prediction']) else None


def _is_prediction(prediction: Prediction) -> bool:
    """True for the prediction of a record, of any task."""
    if 'seg_map' in prediction:
        return isinstance(prediction['seg_map'], str)
    if 'boxes' not in prediction:
        return is_int(prediction.get('label')) and is_number(prediction.get('score'))
    keys = ('boxes', 'scores', 'labels', 'classes')
    columns: list[Any] = [prediction.get(key) for key in keys]
    if 'masks' in prediction:
        columns.append(prediction['masks'])
    if not all(isinstance(column, list) for column in columns):
        return False
    boxes, scores, labels = columns[:3]
    if not all(len(column) == len(boxes) for column in columns):
        return False
    corners = [corner for box in boxes for corner in (box if isinstance(box, list) else [None])]
    numbers = all(map(is_number, [*corners, *scores])) and all(map(is_int, labels))
    return numbers and len(corners) == 4 * len(boxes)


# -- outputs


def _write(folder: Path, name: str, result: Result) -> dict[str, Any]:
    """Write the class map and the picture of an image; return its record."""
    assert result.prediction is not None and result.size is not None
    prediction, outputs = dict(result.prediction), []
    seg_map = prediction.get('seg_map')
    if isinstance(seg_map, Path):  # written already, under another name
        outputs.append(f'pred/{name}.tif')
        flush_to_disk(seg_map)
        os.replace(seg_map, folder / outputs[-1])
    elif seg_map is not None:
        outputs.append(f'pred/{name}.png')
        _save(seg_map, folder / outputs[-1], 'PNG', compress_level=1)
    if seg_map is not None:
        prediction['seg_map'] = outputs[-1]
    if result.picture is not None:
        outputs.append(f'vis/{name}.jpg')
        _save(result.picture, folder / outputs[-1], 'JPEG', quality=95, subsampling=0)
    return dict(
        stamp=result.stamp,
        name=name,
        files={output: (folder / output).stat().st_size for output in outputs},
        width=result.size[0],
        height=result.size[1],
        prediction=prediction,
        best=result.best,
    )


def _save(pixels: Any, path: Path, kind: str, **options: Any) -> None:
    # Encoded in memory: a full disk would cut a JPEG short.
    encoded = io.BytesIO()
    Image.fromarray(pixels).save(encoded, kind, **options)
    with atomic_write(path) as file:
        file.write(encoded.getbuffer())


def _read_ids(ann: Path, images: Sequence[Path], classes: Sequence[str]) -> Ids:
    try:
        content = json.loads(ann.read_bytes())
        names = {image['file_name']: image['id'] for image in content['images']}
        categories = {category['name']: category['id'] for category in content['categories']}
    except (KeyError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(
            f'ann: {str(ann)!r} is no COCO JSON ({type(error).__name__}: {error})'
        ) from error
    found = {}
    for image in images:
        # A file name may have folders: the longest end of the path that is one.
        ends = ['/'.join(image.parts[i:]) for i in range(len(image.parts))]
        known = [end for end in ends if end in names]
        found[image] = names[known[0]] if known else None
    lost = [str(image) for image, number in found.items() if number is None]
    unknown = [name for name in classes if name not in categories]
    for kind, lacking in (('image', lost), ('category', unknown)):
        if lacking:
            missing = f'{lacking[0]!r} ({len(lacking)} are missing)'
            raise ValueError(f'ann: {str(ann)!r} has no {kind} {missing}')
    return Ids(found, {label: categories[name] for label, name in enumerate(classes)})


def _assemble(
    folder: Path, records: Records, images: list[Path], classes: Sequence[str], ids: Ids
) -> None:
    """Write the JSON files of all predictions; delete what a killed run has left unfinished."""
    listed, entries = [], []
    for image in images:
        record, number = records[image], ids.images[image]
        prediction = record['prediction']
        place = {key: prediction[key] for key in ('crs', 'transform') if key in prediction}
        size = dict(width=record['width'], height=record['height'])
        listed.append(dict(id=number, file_name=str(image), **size, **place))
        entries += coco_entries(number, prediction, ids.categories)
    categories = [dict(id=ids.categories[i], name=name) for i, name in enumerate(classes)]
    _write_images(folder, listed, categories)
    _write_list(folder / 'predictions.json', entries)
    for own in (folder, *(folder / name for name in IMAGE_FOLDERS)):
        for part in own.glob(_PARTS):
            part.unlink(missing_ok=True)


def coco_entries(
    image_id: Any, prediction: Prediction, kinds: Mapping[int, Any] | None = None
) -> list[dict[str, Any]]:
    """Convert the prediction of one image to entries of ``predictions.json``.

    ``kinds`` has the id of each label; by default it is the label.
    """
    if 'boxes' not in prediction:
        return [dict(image_id=image_id, **prediction)]
    entries = []
    for i, (x1, y1, x2, y2) in enumerate(prediction['boxes']):
        label = prediction['labels'][i]
        entry = dict(
            image_id=image_id,
            category_id=(kinds or {}).get(label, label),
            bbox=[x1, y1, x2 - x1, y2 - y1],
            score=prediction['scores'][i],
        )
        if 'masks' in prediction:
            entry['segmentation'] = prediction['masks'][i]
        entries.append(entry)
    return entries


def _write_images(folder: Path, images: list[Any], categories: list[Any]) -> None:
    content = dict(images=images, categories=categories)
    with atomic_write(folder / 'images.json') as file:
        file.write(json.dumps(content, indent=1).encode())


def _write_failed(folder: Path, reasons: dict[str, str]) -> None:
    entries = [dict(file_name=name, reason=reason) for name, reason in reasons.items()]
    _write_list(folder / 'failed.json', entries)


def _write_list(path: Path, entries: list[dict[str, Any]]) -> None:
    with atomic_write(path) as file:
        file.write(('[\n' + ',\n'.join(map(json.dumps, entries)) + '\n]\n').encode())
