"""Prediction on many files into a folder, resumable at every image."""

import errno
import io
import json
import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from heapq import heapreplace
from math import prod
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from mmengine.logging import print_log
from PIL import Image
from rich.progress import MofNCompleteColumn, Progress

from cpvt_backbones.checkpoints.json_files import parse_json, read_json
from cpvt_backbones.checkpoints.writing import atomic_write, flush_to_disk, lock_file
from cpvt_backbones.layers.checks import check_fraction

from .images import ImageError, file_stamp, image_size
from .inferencer import Inferencer, Result
from .predictions import Prediction

RUN_FILE, RECORDS_FILE, LOCK_FILE = 'run.json', 'records.jsonl', '.lock'
RESULT_FILES = ('predictions.json', 'images.json', 'failed.json')
IMAGE_FOLDERS = ('pred', 'vis')
START_SECONDS = 30.0  # a shard waits so long for another one that is starting
_PARTS = f'.*.{"[0-9a-f]" * 8}.part'  # atomic_write's, of a run that was killed

# stamp: of the image file before reading; files: size in bytes of each output, by path.
_RECORD_TYPES = dict(
    key=str, stamp=list, name=str, files=dict, width=int, height=int, prediction=dict
)

Ids = (
    tuple[dict[Path, Any], Sequence[Any]] | None
)  # of each image, and of the category of each label
Shard = tuple[int, int] | None  # its number and their count


@dataclass(frozen=True)
class Summary:
    """Outcome of a run."""

    predicted: int  # images predicted now
    found: int  # images that earlier runs had predicted
    failed: dict[str, str]  # reason for each image without a prediction
    orphaned: list[
        str
    ]  # outputs of earlier runs, of images that failed now or are no longer among the inputs
    skipped: list[str]  # inputs that lie in `pred` or `vis` of the folder


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
    shard: Shard = None,
    merge: bool = False,
) -> Summary:
    """Predict on image files and write everything to a folder.

    Each prediction is written as soon as it is made. The same call on the same folder continues
    with the images that have no prediction or have changed. docs/inference.md lists the files.

    Args:
        inferencer: The model.
        images: Image files, see :func:`find_images`. Those in ``pred/`` and ``vis/`` of ``out_dir``
            are skipped, and listed in the summary.
        out_dir: The folder, created if missing.
        score_thr, vis: See :meth:`Inferencer.__call__`.
        overwrite: Delete the output of earlier runs, and no other file.
        progress: Show a progress bar.
        shard: (i, n): predict shard i, from 0, of n of the same images; other processes do the
            others at the same time. Only a run with ``merge`` writes the JSON files.
        merge: Continue with what shards have predicted, when they have ended: as one process that
            did it all.
        ann: COCO JSON whose ids of images, by file name, and categories, by name, the output takes;
            else they count.

    Raises:
        TypeError: An image is an array.
        FileNotFoundError, ValueError: ``ann`` cannot be read, or lacks an image or a class of the
            model.
        ValueError: The folder has predictions of another model, other settings or other shards, or
            files in ``pred`` or ``vis`` that no run wrote; another process writes to it; ``shard``
            with ``overwrite`` or ``merge``; all images are skipped.
        OSError: The folder cannot be written to.
    """
    check_fraction(score_thr=score_thr)
    if shard is not None and (overwrite or merge or not 0 <= shard[0] < shard[1]):
        raise ValueError(
            f'shard must be (i, n) with 0 <= i < n, without overwrite and merge, got {shard!r}'
        )
    folder = Path(out_dir)
    settings = dict(inferencer.settings, score_thr=score_thr, vis=vis)
    # Different paths of one file are one image.
    named = {os.path.abspath(image): Path(image) for image in reversed(images)}
    images, skipped = _without_outputs(list(named.values())[::-1], folder)
    ids = None if ann is None else _read_ids(Path(ann), images, inferencer.predictor.classes or [])
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder, shard):
            inputs = sha256(
                '\n'.join(map(os.path.abspath, images)).encode(errors='surrogateescape')
            ).hexdigest()
            _prepare(folder, settings, overwrite, shard and [shard[1], inputs], merge)
            if merge:
                _merge(folder)
            summary = _predict(
                inferencer, images, folder, ids, shard, progress, score_thr=score_thr, vis=vis
            )
            return replace(summary, skipped=skipped)
    except Timeout:
        raise ValueError(
            f'out_dir: another process is writing to {str(folder)!r}; choose another folder'
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


def _without_outputs(images: list[Path], folder: Path) -> tuple[list[Path], list[str]]:
    """Split images into those to predict and those in ``pred`` and ``vis``, wherever links lead."""
    outputs = [Path(os.path.realpath(folder / name)) for name in IMAGE_FOLDERS]
    kept, skipped = [], []
    for image in images:
        real = Path(os.path.realpath(image))
        if any(real.is_relative_to(own) for own in outputs):
            skipped.append(str(image))
        else:
            kept.append(image)
    if skipped and not kept:
        problem = (
            f'inputs: all {len(skipped)} images, such as {skipped[0]!r}, lie in the output folder'
        )
        raise ValueError(f'{problem} {str(folder)!r}; choose another --out-dir')
    return kept, skipped


@contextmanager
def _locked(folder: Path, shard: Shard) -> Iterator[None]:
    """Let no other run write to a folder, except other shards beside a shard.

    A plain run and a merge keep the lock of the folder. A shard takes it to start, and then keeps
    one of its own.
    """

    def warn(message: str) -> None:
        print_log(f'out_dir: {message}', 'current', logging.WARNING)

    with ExitStack() as locks:

        def lock(name: str, timeout: float = 0) -> FileLock | None:
            taken = lock_file(folder / name, warn=warn, timeout=timeout)
            if taken is not None:
                locks.callback(taken.release)
            return taken

        # Another shard may be starting, too.
        whole = lock(LOCK_FILE, timeout=0 if shard is None else START_SECONDS)
        if shard is not None:
            lock(_of_shard(LOCK_FILE, shard))
            if whole is not None:
                whole.release()
        elif whole is not None:
            for file in sorted(folder.glob(f'{LOCK_FILE}.*-of-*[0-9]')):
                lock(file.name)
        yield


def _predict(
    inferencer: Inferencer,
    images: list[Path],
    folder: Path,
    ids: Ids,
    shard: Shard,
    progress: bool,
    **given: Any,
) -> Summary:
    records = Records(folder, shard)
    names = [
        records.take_name(image) for image in images
    ]  # of all images, so that no two shards take the same
    if shard is not None:
        mine = _divide(images, *shard)
        images, names = [images[i] for i in mine], [names[i] for i in mine]
    left = [
        (image, name)
        for image, name in zip(images, names, strict=True)
        if not records.is_done(image)
    ]
    found, failed = len(images) - len(left), {}
    with Progress(
        *Progress.get_default_columns(), MofNCompleteColumn(), disable=not progress
    ) as bar:
        all_images = bar.add_task('images', total=len(images), completed=found)
        tiles = bar.add_task('tiles', visible=False)

        def on_tiles(done: int, total: int) -> None:
            bar.update(tiles, completed=done, total=total, visible=done < total)

        def write(index: int, result: Result) -> Result | dict[str, Any]:
            return result if result.error else _write(folder, left[index][1], result)

        options = dict(given, on_tiles=on_tiles, map_dir=folder / 'pred', then=write)
        for index, outcome in inferencer.stream([image for image, _ in left], **options):
            image, error = left[index][0], getattr(outcome, 'error', None)
            if error is None:
                records.add(image, **outcome)
            elif isinstance(error, ImageError):
                failed[str(image)] = error.reason
            else:
                failed[str(image)] = f'the model failed: {type(error).__name__}: {error}'
            bar.advance(all_images)
    done = [image for image in images if str(image) not in failed]
    if shard is not None:
        return Summary(len(left) - len(failed), found, failed, [], [])
    _assemble(folder, records, done, inferencer.predictor.classes or [], ids)
    failed = {
        str(image): failed[str(image)] for image in images if str(image) in failed
    }  # in their order
    _write_list(
        folder / 'failed.json',
        [dict(file_name=name, reason=reason) for name, reason in failed.items()],
    )
    return Summary(len(left) - len(failed), found, failed, records.orphaned(done), [])


def _of_shard(name: str, shard: Shard) -> str:
    return name if shard is None else f'{name}.{shard[0]}-of-{shard[1]}'


def _divide(images: Sequence[Path], shard: int, count: int) -> list[int]:
    """Indices of the images of a shard: the largest first, each to the shard with the fewest pixels
    so far.
    """
    with ThreadPoolExecutor() as pool:
        pixels = [prod(size or (1, 1)) for size in pool.map(image_size, images)]
    loads, mine = [(0, i) for i in range(count)], []
    for index in sorted(range(len(images)), key=lambda index: -pixels[index]):
        if loads[0][1] == shard:
            mine.append(index)
        heapreplace(loads, (loads[0][0] + pixels[index], loads[0][1]))
    return sorted(mine)


def _merge(folder: Path) -> None:
    """Move the records of all shards, which have ended, to those of the folder."""
    parts = sorted(folder.glob(f'{RECORDS_FILE}.*-of-*[0-9]'))
    (folder / RECORDS_FILE).touch()
    files = [
        part.read_bytes().splitlines(keepends=True) for part in (folder / RECORDS_FILE, *parts)
    ]
    with atomic_write(folder / RECORDS_FILE) as file:
        file.writelines(line for lines in files for line in lines if line.endswith(b'\n'))
    for part in parts:
        part.unlink()


def _prepare(
    folder: Path, settings: dict[str, Any], overwrite: bool, shards: list[Any] | None, merge: bool
) -> None:
    """Write the settings to the folder; raise ``ValueError`` if it has others."""
    own = [folder / name for name in (RUN_FILE, RECORDS_FILE) if os.path.lexists(folder / name)]
    if not own:
        _refuse_foreign(folder)
    elif overwrite:
        _delete_output(folder)
    elif own:
        try:
            before = read_json(folder / RUN_FILE)
        except (FileNotFoundError, ValueError) as error:
            for path in own:
                os.replace(path, f'{path}.damaged')
            fault: object = error
            if isinstance(error, FileNotFoundError):
                fault = f'{str(folder / RUN_FILE)!r} is damaged: it is missing'
            _warn(f'{fault}; all images are predicted again')
        else:
            found = before.pop('shards', None)
            if found not in (None, shards) and not merge:
                message = f'out_dir: {str(folder)!r} has predictions of {found[0]} shards'
                raise ValueError(
                    f'{message}, of these images or others; end these, then merge them with --merge'
                )
            changed = sorted(
                key for key in {*before, *settings} if before.get(key) != settings.get(key)
            )
            changes = ', '.join(
                f'{key} was {before.get(key)!r}, is {settings.get(key)!r}' for key in changed
            )
            if changes:
                message = f'out_dir: {str(folder)!r} has predictions of other settings ({changes})'
                raise ValueError(
                    f'{message}; choose another folder, or replace them with --overwrite'
                )
    with atomic_write(folder / RUN_FILE) as file:
        file.write(
            json.dumps(dict(settings, shards=shards) if shards else settings, indent=1).encode()
        )


def _refuse_foreign(folder: Path) -> None:
    """Refuse a folder that is not of an earlier run and whose files this run could replace."""
    files = [file for name in IMAGE_FOLDERS for file in sorted(folder.glob(f'{name}/*'))]
    files += [folder / name for name in RESULT_FILES if os.path.lexists(folder / name)]
    if files:
        problem = (
            f'out_dir: {str(folder)!r} has files that no earlier run wrote, such as'
            f' {str(files[0])!r}'
        )
        raise ValueError(f'{problem}; choose another folder, or move them')


def _delete_output(folder: Path) -> None:
    """Delete what earlier runs wrote, and no other file."""
    records = [folder / RECORDS_FILE, *folder.glob(f'{RECORDS_FILE}.*-of-*[0-9]')]
    for file in records:
        lines = file.read_bytes().splitlines() if file.is_file() else []
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
    for path in [*records, *(folder / name for name in (*RESULT_FILES, RUN_FILE))]:
        _unlink(path)


def _unlink(path: Path) -> None:
    """Delete a file or a link; a folder of this name stays."""
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)


def _warn(message: str) -> None:
    print_log(
        f'out_dir: {message}; the old file is kept with the ending .damaged',
        'current',
        logging.WARNING,
    )


class Records:
    """Finished images: one line of JSON each, written after their outputs.

    An incomplete last line is dropped. A damaged file is copied to ``records.jsonl.damaged`` and
    its readable lines are used. A shard adds to a file of its own.
    """

    def __init__(self, folder: Path, shard: Shard) -> None:
        self._folder = folder
        self._file = folder / _of_shard(RECORDS_FILE, shard)
        lines = self._file.read_bytes().splitlines(keepends=True) if self._file.exists() else []
        if cut_short := bool(lines) and not lines[-1].endswith(b'\n'):
            lines.pop()
        parsed = [_parse_record(line) for line in lines]
        readable = [line for line, record in zip(lines, parsed, strict=True) if record]
        if damaged := len(lines) - len(readable):
            shutil.copyfile(self._file, f'{self._file}.damaged')
            _warn(
                f'{str(self._file)!r} is damaged; the images of {damaged} lines are predicted again'
            )
        if cut_short or damaged:
            with atomic_write(self._file) as file:
                file.writelines(readable)
        if shard is not None and (folder / RECORDS_FILE).exists():
            parsed = [
                *map(_parse_record, (folder / RECORDS_FILE).read_bytes().splitlines()),
                *parsed,
            ]
        self._records: dict[str, dict[str, Any]] = {
            record['key']: record for record in parsed if record
        }
        # Lower case, since some file systems ignore case.
        self._taken = {record['name'].lower() for record in self._records.values()}
        self._numbers: dict[str, int] = {}

    def is_done(self, image: Path) -> bool:
        """``True`` if an image file has a record and is unchanged, and all its outputs are
        complete.
        """
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
        files = [
            file
            for key, record in self._records.items()
            if key not in keys
            for file in record['files']
        ]
        return [file for file in files if (self._folder / file).exists()]

    def take_name(self, image: Path) -> str:
        """Return the name of an image's outputs: of its record, else its stem, numbered if
        taken.
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
        """Record an image as done; ``values`` are those of ``_RECORD_TYPES`` except ``key``."""
        record = dict(key=os.path.abspath(image), **values)
        with self._file.open('a') as file:
            file.write(f'{json.dumps(record)}\n')
        self._records[record['key']] = record


def _parse_record(line: bytes) -> dict[str, Any] | None:
    try:
        record = parse_json(line, 'record')
        return (
            record
            if all(isinstance(record[key], kind) for key, kind in _RECORD_TYPES.items())
            else None
        )
    except (KeyError, ValueError):
        return None


def _write(folder: Path, name: str, result: Result) -> dict[str, Any]:
    """Write the class map and the picture of an image; return its record."""
    assert result.prediction is not None and result.size is not None
    prediction, files = dict(result.prediction), {}
    for key, pixels, path, kind, options in (
        ('seg_map', prediction.get('seg_map'), f'pred/{name}.png', 'PNG', dict(compress_level=1)),
        ('', result.picture, f'vis/{name}.jpg', 'JPEG', dict(quality=95, subsampling=0)),
    ):
        if isinstance(pixels, Path):  # written already, under another name
            path = f'pred/{name}.tif'
            flush_to_disk(pixels)
            os.replace(pixels, folder / path)
        elif pixels is not None:
            Image.fromarray(pixels).save(
                encoded := io.BytesIO(), kind, **options
            )  # a full disk would cut a JPEG short
            with atomic_write(folder / path) as file:
                file.write(encoded.getbuffer())
        else:
            continue
        files[path] = (folder / path).stat().st_size
        if key:
            prediction[key] = path
    width, height = result.size
    return dict(
        stamp=result.stamp,
        name=name,
        files=files,
        width=width,
        height=height,
        prediction=prediction,
    )


def _read_ids(ann: Path, images: Sequence[Path], classes: Sequence[str]) -> Ids:
    try:
        content = json.loads(ann.read_bytes())
        names = {image['file_name']: image['id'] for image in content['images']}
        categories = {category['name']: category['id'] for category in content['categories']}
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f'ann: {str(ann)!r} is no COCO JSON ({type(error).__name__}: {error})'
        ) from error
    # A file name may have folders: the longest end of the path that is one.
    ends = {image: ['/'.join(image.parts[i:]) for i in range(len(image.parts))] for image in images}
    found = {
        image: next((names[end] for end in ends[image] if end in names), None) for image in images
    }
    for kind, lacking in (
        ('image', [str(image) for image in images if found[image] is None]),
        ('category', [name for name in classes if name not in categories]),
    ):
        if lacking:
            raise ValueError(
                f'ann: {str(ann)!r} has no {kind} {lacking[0]!r} ({len(lacking)} are missing)'
            )
    return found, [categories[name] for name in classes]


def _assemble(
    folder: Path, records: Records, images: list[Path], classes: Sequence[str], ids: Ids
) -> None:
    numbers, kinds = ids or (
        {image: i for i, image in enumerate(images, start=1)},
        range(len(classes)),
    )
    listed, entries = [], []
    for image in images:
        record = records[image]
        place = {
            key: record['prediction'][key]
            for key in ('crs', 'transform')
            if key in record['prediction']
        }
        size = dict(width=record['width'], height=record['height'])
        listed.append(dict(id=numbers[image], file_name=str(image), **size, **place))
        entries += coco_entries(numbers[image], record['prediction'], kinds if ids else None)
    categories = [dict(id=kind, name=name) for kind, name in zip(kinds, classes, strict=True)]
    with atomic_write(folder / 'images.json') as file:
        file.write(json.dumps(dict(images=listed, categories=categories), indent=1).encode())
    _write_list(folder / 'predictions.json', entries)
    for own in (folder, *(folder / name for name in IMAGE_FOLDERS)):
        for part in own.glob(_PARTS):
            part.unlink(missing_ok=True)


def coco_entries(
    image_id: Any, prediction: Prediction, kinds: Sequence[Any] | None = None
) -> list[dict[str, Any]]:
    """Convert the prediction of one image to entries of ``predictions.json``.

    ``kinds`` has the id of each label.
    """
    if 'boxes' not in prediction:
        return [dict(image_id=image_id, **prediction)]
    names = dict(labels='category_id', boxes='bbox', scores='score', masks='segmentation')
    columns = {name: prediction[key] for key, name in names.items() if key in prediction}
    columns['bbox'] = [[x1, y1, x2 - x1, y2 - y1] for x1, y1, x2, y2 in prediction['boxes']]
    if kinds is not None:
        columns['category_id'] = [kinds[label] for label in prediction['labels']]
    rows = zip(*columns.values(), strict=True)
    return [dict(image_id=image_id, **dict(zip(columns, row, strict=True))) for row in rows]


def _write_list(path: Path, entries: list[dict[str, Any]]) -> None:
    with atomic_write(path) as file:
        file.write(('[\n' + ',\n'.join(map(json.dumps, entries)) + '\n]\n').encode())
