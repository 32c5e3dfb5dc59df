"""Prediction on many files into a folder, resumable after every image."""

import errno
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256
from heapq import heapreplace
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from filelock import Timeout
from rich.progress import MofNCompleteColumn, Progress

from cpvt_backbones.checkpoints import atomic_write, lock_file, read_json
from cpvt_backbones.checks import check_fraction, check_path
from cpvt_backbones.errors import InputError, InputTypeError
from cpvt_backbones.images import ImageError, ImageInput
from cpvt_backbones.images.finding import each_image
from cpvt_backbones.images.reading import image_size

from .inferencer import Inferencer, Result
from .outputs import (
    IMAGE_FOLDERS,
    RECORDS_FILE,
    RESULT_FILES,
    RUN_FILE,
    Ids,
    Records,
    delete_outputs,
    delete_results,
    read_ids,
    warn,
    write_json_files,
    write_outputs,
    write_results,
)

LOCK_FILE = '.lock'

Shard = tuple[int, int]  # number of the shard, from 0, and count of shards


@dataclass(frozen=True)
class Summary:
    """Result of :func:`predict_to_folder` or :func:`merge_shards`.

    Attributes:
        predicted: Number of images that this call predicted.
        found: Number of images that earlier calls had predicted.
        failed: Path of each image without a prediction, and the reason.
        orphaned: Outputs of earlier calls whose image now failed or is no longer among the inputs.
        skipped: Inputs that were left out because they are outputs in the folder.
        boxes: Number of boxes in all images; ``None`` for other tasks and for merged shards.
        best: Highest score of a box in all images, in [0, 1], boxes below ``score_thr`` included;
            ``None`` without a box, for other tasks and for merged shards.
        classes: Number of boxes, panoptic segments or classified images of each class, the largest
            first. Empty for class maps.
    """

    predicted: int
    found: int
    failed: dict[str, str]
    orphaned: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    boxes: int | None = None
    best: float | None = None
    classes: dict[str, int] = field(default_factory=dict)


def predict_to_folder(
    inferencer: Inferencer,
    images: ImageInput | Sequence[ImageInput],
    out_dir: str | os.PathLike[str],
    *,
    score_thr: float = 0.3,
    vis: bool = True,
    overwrite: bool = False,
    progress: bool = True,
    ann: str | os.PathLike[str] | None = None,
    shard: Shard | None = None,
) -> Summary:
    """Predict on image files and write predictions and pictures to a folder.

    Each prediction is written to ``records.jsonl`` as soon as it is made, and ``predictions.json``
    when the call ends. So the same call on the same folder resumes: it continues with images that
    have no prediction or have changed. docs/inference.md lists the files.

    Args:
        inferencer: The model.
        images: Image files, folders or patterns, one or a list, as for :func:`find_images`. A
            missing file in a list becomes a failed image in the summary. Images in ``pred/`` and
            ``vis/`` of ``out_dir`` and of its shards are skipped and listed in the summary.
        out_dir: The folder, which is created if missing.
        score_thr: Minimum score of a box, in [0, 1].
        vis: Draw each prediction on its image.
        overwrite: Delete the outputs of earlier calls, and no other file.
        progress: Show a progress bar.
        ann: COCO JSON with the ids of images, by file name, and of categories, by name, for the
            output; ``None`` numbers them.
        shard: (i, n) predicts part i, counted from 0, of n parts of the images, in a subfolder of
            ``out_dir``. Other processes can predict the other shards at the same time.
            :func:`merge_shards` merges their results.

    Returns:
        Numbers of predicted and found images, skipped inputs, and failed images with reasons.

    Raises:
        TypeError: An image is an array, which :meth:`Inferencer.predict` takes; ``inferencer`` is
            not an :class:`Inferencer`; or ``out_dir`` or ``ann`` is not a path.
        FileNotFoundError: ``ann`` does not exist, or a folder or pattern has no image.
        ValueError: ``ann`` cannot be read, or lacks an image or a class of the model. The folder
            has predictions of another model, or of other or unknown settings, or files in ``pred``
            or ``vis`` that no call wrote. Another process writes to the folder. All images are
            skipped. ``out_dir`` or ``shard`` is not accepted.
        OSError: The folder cannot be written to.

    Examples:
        >>> from PIL import Image
        >>> from cpvt_backbones.inference import Inferencer, predict_to_folder
        >>> inferencer = Inferencer(checkpoint='cpvt_tiny_gap-imagenette')
        >>> Image.new('RGB', (90, 60)).save('photo.png')
        >>> summary = predict_to_folder(
        ...     inferencer, 'photo.png', out_dir='out', progress=False
        ... )
        >>> summary.predicted, summary.failed
        (1, {})
    """
    given: Any = inferencer
    if not isinstance(given, Inferencer):
        advice = "such as Inferencer(checkpoint='NAME')"
        raise InputTypeError(f'inferencer must be an Inferencer, {advice}, got {given!r:.100}')
    check_fraction(score_thr=score_thr)
    if ann is not None:
        check_path(ann=ann)
    folder = _output_folder(out_dir)
    settings = dict(inferencer.settings, score_thr=score_thr, vis=vis)
    classes = inferencer.predictor.classes or []
    paths, skipped = _inputs(images, folder)
    ids = read_ids(Path(ann), paths, classes) if ann is not None else None
    if ids is None:
        numbers = dict(zip(paths, range(1, len(paths) + 1), strict=True))
        ids = Ids(numbers, {label: label for label in range(len(classes))})
    if shard is not None:
        folder = shard_folder(folder, shard)
        settings['images'] = _describe(paths)
        paths = [paths[i] for i in _divide(paths, *shard)]
    with _writing_to(folder):
        _prepare(folder, settings, overwrite)
        records = Records(folder, _digest(json.dumps(settings, sort_keys=True)))
        summary = _predict_images(
            inferencer, paths, folder, records, ids, progress, score_thr=score_thr, vis=vis
        )
    return replace(summary, skipped=skipped)


def merge_shards(
    images: ImageInput | Sequence[ImageInput], out_dir: str | os.PathLike[str]
) -> Summary:
    """Merge the results of all shards of :func:`predict_to_folder` after all have ended.

    The JSON files are then those of one call on ``images``. Pictures and class maps stay in the
    folders of the shards.

    Args:
        images: The images that each shard got.
        out_dir: The folder that each shard got.

    Returns:
        The summary of all shards; ``predicted`` is 0, and ``found`` counts their images.

    Raises:
        ValueError: A shard has not ended, or used other settings or other images; see also
            :func:`predict_to_folder`.
        OSError: The folder cannot be written to.
    """
    folder = _output_folder(out_dir)
    paths, skipped = _inputs(images, folder)
    shards = _find_shards(folder)
    with _writing_to(folder), ExitStack() as locks:
        for shard in shards:
            locks.enter_context(_locked(shard))
        summary = _merge(folder, shards, paths)
    return replace(summary, skipped=skipped)


def shard_folder(folder: Path, shard: Shard) -> Path:
    """Return the output folder of a shard; ``ValueError`` for a wrong shard."""
    if not 0 <= shard[0] < shard[1]:
        raise InputError(f'shard must be (i, n) with 0 <= i < n, got {shard!r}', argument='shard')
    return folder / f'shard-{shard[0]}-of-{shard[1]}'


def _output_folder(out_dir: str | os.PathLike[str]) -> Path:
    check_path(out_dir=out_dir)
    if not os.fspath(out_dir) or '\0' in os.fspath(out_dir):
        raise InputError(
            f'out_dir must be the path of a folder, got {os.fspath(out_dir)!r}', argument='out_dir'
        )
    return Path(out_dir)


def _inputs(
    images: ImageInput | Sequence[ImageInput], folder: Path
) -> tuple[list[Path], list[str]]:
    """Split the inputs into images to predict and outputs of this folder, following links.

    Two spellings of one path count as one image.
    """
    folders = [folder, *folder.glob('shard-*-of-*')]
    outputs = [Path(os.path.realpath(own / name)) for own in folders for name in IMAGE_FOLDERS]
    kept: dict[str, Path] = {}
    skipped = []
    for image in each_image(images):
        if not isinstance(image, (str, os.PathLike)):
            advice = 'Inferencer.predict and Inferencer.stream take arrays'
            raise InputTypeError(f'images must be files, got {type(image).__name__}; {advice}')
        real = Path(os.path.realpath(image))
        if any(real.is_relative_to(own) for own in outputs):
            skipped.append(str(image))
        else:
            kept.setdefault(os.path.abspath(image), Path(image))
    if skipped and not kept:
        raise InputError(
            f'inputs: all {len(skipped)} images, such as {skipped[0]!r}, lie in the output folder'
            f' {str(folder)!r}; choose another folder'
        )
    return list(kept.values()), skipped


def _describe(images: Sequence[Path]) -> str:
    """Identify a list of images by its length and a digest of the paths."""
    names = '\n'.join(map(os.path.abspath, images))
    return f'{len(images)} images, {_digest(names)}'


def _digest(text: str) -> str:
    return sha256(text.encode(errors='surrogateescape')).hexdigest()[:16]


@contextmanager
def _writing_to(folder: Path) -> Iterator[None]:
    """Context in which no other process writes to a folder, which is created if it is missing.

    Its errors name the folder.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder):
            yield
    except Timeout as error:
        busy = str(Path(error.lock_file).parent)
        raise InputError(
            f'out_dir: another process is writing to {busy!r}; choose another folder',
            argument='out_dir',
        ) from None
    except OSError as error:
        if not _is_of(error, folder):
            raise
        raise OSError(
            f'out_dir: {str(folder)!r} cannot be written to: {error.strerror or error}'
        ) from error


def _is_of(error: OSError, folder: Path) -> bool:
    """``True`` if an error concerns the output folder: a full disk or a file in the folder."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) or error.filename is None:
        return True
    file = Path(os.path.abspath(os.fsdecode(error.filename)))
    whole = Path(os.path.abspath(folder))
    return file.is_relative_to(whole) or whole.is_relative_to(file)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock a folder against other runs."""
    lock = lock_file(folder / LOCK_FILE, warn=warn)
    try:
        yield
    finally:
        if lock is not None:
            lock.release()


def _predict_images(
    inferencer: Inferencer,
    images: list[Path],
    folder: Path,
    records: Records,
    ids: Ids,
    progress: bool,
    **given: Any,
) -> Summary:
    names = {image: records.take_name(image) for image in images}
    left = [image for image in images if not records.is_done(image)]
    if left:
        delete_results(folder)
    found, failed = len(images) - len(left), {}
    columns = *Progress.get_default_columns(), MofNCompleteColumn()
    with Progress(*columns, disable=not progress) as bar:
        all_images = bar.add_task('images', total=len(images), completed=found)
        tiles = bar.add_task('tiles', visible=False)

        def on_tiles(done: int, total: int) -> None:
            bar.update(tiles, completed=done, total=total, visible=done < total)

        def write(index: int, result: Result) -> Result | dict[str, Any]:
            return result if result.error else write_outputs(folder, names[left[index]], result)

        options = dict(given, on_tiles=on_tiles, map_dir=folder / 'pred', then=write)
        for index, outcome in inferencer.stream(left, **options):
            if isinstance(outcome, Result):  # the image failed; else its record
                failed[left[index]] = _reason(outcome.error)
            else:
                records.add(left[index], **outcome)
            bar.advance(all_images)
    done: list[Path] = []
    reasons: dict[str, str] = {}  # in the order of the images
    for image in images:
        if image in failed:
            reasons[str(image)] = failed[image]
        else:
            done.append(image)
    num_things = getattr(inferencer.predictor, 'num_things', None)
    names_of_classes = inferencer.predictor.classes or []
    write_json_files(folder, records, done, reasons, names_of_classes, ids, num_things=num_things)
    summary = Summary(len(left) - len(failed), found, reasons, records.orphaned(done))
    return _with_counts(summary, inferencer.predictor.task, map(records.__getitem__, done))


def _with_counts(summary: Summary, task: str, records: Iterable[dict[str, Any]]) -> Summary:
    """Add what the records of all images count: boxes, their highest score, and classes."""
    classes: Counter[str] = Counter()
    boxes, best = 0, None
    for record in records:
        prediction = record['prediction']
        if 'class' in prediction:
            classes[str(prediction['class'])] += 1
        elif 'segments' in prediction:
            classes.update(str(segment['class']) for segment in prediction['segments'])
        else:
            classes.update(map(str, prediction.get('classes', ())))
        boxes += len(prediction.get('boxes', ()))
        if record['best'] is not None:
            best = max(best or 0.0, record['best'])
    counted = dict(classes.most_common())
    if task != 'detection':
        return replace(summary, classes=counted)
    return replace(summary, classes=counted, boxes=boxes, best=best)


def _reason(error: Exception | None) -> str:
    if isinstance(error, ImageError):
        return error.reason
    return f'the model failed: {type(error).__name__}: {error}'


# -- shards


def _divide(images: Sequence[Path], shard: int, count: int) -> list[int]:
    """Return the indices of the images of a shard.

    Each image, by descending size, goes to the shard with the fewest pixels so far.
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
    """Return the folders of all shards; ``ValueError`` if one is missing or counts differ."""
    counts = {path.name.rpartition('-')[2] for path in folder.glob('shard-*-of-*')}
    if len(counts) != 1 or not (number := counts.pop()).isdecimal():
        found = f'of {" and ".join(sorted(counts))} shards' if counts else 'of no shard'
        raise InputError(
            f'out_dir: {str(folder)!r} has predictions {found}; predict them first',
            argument='out_dir',
        )
    shards = [shard_folder(folder, (i, int(number))) for i in range(int(number))]
    for i, shard in enumerate(shards):
        if not all((shard / name).is_file() for name in (RUN_FILE, *RESULT_FILES)):
            raise InputError(
                f'out_dir: shard {i} of {number} in {str(folder)!r} has not ended; start it again',
                argument='out_dir',
            )
    return shards


def _merge(folder: Path, shards: list[Path], images: list[Path]) -> Summary:
    settings = read_json(shards[0] / RUN_FILE)
    for shard in shards:
        _compare(shard, read_json(shard / RUN_FILE), settings)
    _compare(folder, settings, dict(settings, images=_describe(images)))
    _prepare(folder, dict(settings, shards=len(shards)), overwrite=False)
    # Shards may have got other spellings of the same paths.
    rank = {os.path.abspath(image): index for index, image in enumerate(images)}
    listed: list[dict[str, Any]] = []
    entries: list[dict[str, Any]] = []
    failed: dict[str, str] = {}
    categories: dict[Any, str] | None = None
    for shard in shards:
        results = _read_shard(shard, rank)
        if categories not in (None, results.categories):
            raise InputError(
                f'out_dir: {str(shard)!r} numbers the classes differently from {str(shards[0])!r};'
                ' predict all shards with the same ann'
            )
        categories = results.categories
        listed += results.images
        entries += results.entries
        failed.update(results.failed)
    if len({image['id'] for image in listed}) < len(listed):
        raise InputError(
            f'out_dir: shards in {str(folder)!r} give two images the same id; predict all shards'
            ' with the same ann'
        )
    listed.sort(key=lambda image: rank[os.path.abspath(image['file_name'])])
    names = categories or {}
    order = {image['id']: index for index, image in enumerate(listed)}
    entries.sort(key=lambda entry: order[entry['image_id']])
    kinds = read_json(shards[0] / 'images.json')['categories']
    reasons = dict(sorted(failed.items(), key=lambda pair: rank[os.path.abspath(pair[0])]))
    panoptic = any('segments_info' in entry for entry in entries)
    write_results(folder, listed, kinds, entries, reasons, panoptic=panoptic)
    parts = (entry.get('segments_info', [entry]) for entry in entries if 'seg_map' not in entry)
    classes = Counter(
        str(part.get('class') or names.get(part.get('category_id')))
        for one in parts
        for part in one
    )
    return Summary(0, len(listed), reasons, classes=dict(classes.most_common()))


class _ShardResults(NamedTuple):
    """Contents of the JSON files of a shard."""

    images: list[dict[str, Any]]
    categories: dict[Any, str]  # name by id
    entries: list[dict[str, Any]]
    failed: dict[str, str]  # reason by file name


def _read_shard(shard: Path, rank: Mapping[str, int]) -> _ShardResults:
    """Read the results of a shard.

    Args:
        shard: Its folder.
        rank: Index of each image of all shards, by absolute path.

    Raises:
        ValueError: A file is damaged, or names another image.
    """
    try:
        content = json.loads((shard / 'images.json').read_bytes())
        entries = json.loads((shard / 'predictions.json').read_bytes())
        failed = json.loads((shard / 'failed.json').read_bytes())
        rank_of = {one['id']: rank[os.path.abspath(one['file_name'])] for one in content['images']}
        for entry in entries:
            rank_of[entry['image_id']]
            if 'seg_map' in entry:
                entry['seg_map'] = str(Path(shard.name, entry['seg_map']))
            elif 'segments_info' in entry:
                entry['file_name'] = str(Path(shard.name, entry['file_name']))
        for one in failed:
            rank[os.path.abspath(one['file_name'])]
        return _ShardResults(
            content['images'],
            {one['id']: one['name'] for one in content['categories']},
            entries,
            {one['file_name']: str(one['reason']) for one in failed},
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f'out_dir: the results in {str(shard)!r} are damaged ({type(error).__name__}: {error});'
            ' delete this folder and predict the shard again'
        ) from error


# -- the folder before a run


def _prepare(folder: Path, settings: dict[str, Any], overwrite: bool) -> None:
    """Write the settings to the folder; ``ValueError`` if it has other settings."""
    if not any(map(os.path.lexists, (folder / RUN_FILE, folder / RECORDS_FILE))):
        _refuse_foreign(folder)
    elif overwrite:
        delete_outputs(folder)
    else:
        _compare(folder, _read_settings(folder), settings)
    with atomic_write(folder / RUN_FILE) as file:
        file.write(json.dumps(settings, indent=1).encode())


def _read_settings(folder: Path) -> dict[str, Any]:
    """Read the settings of the earlier run; ``ValueError`` if the file is missing or damaged."""
    file = folder / RUN_FILE
    try:
        return read_json(file)
    except (FileNotFoundError, ValueError) as error:
        fault = f'{str(file)!r} is missing' if isinstance(error, FileNotFoundError) else error
        raise InputError(
            f'out_dir: the settings of its predictions are not known: {fault}; choose another'
            ' folder, or overwrite this one (--overwrite)',
            argument='out_dir',
        ) from error


def _compare(folder: Path, before: dict[str, Any], settings: dict[str, Any]) -> None:
    changes = []
    for key in sorted({*before, *settings}):
        old, new = before.get(key), settings.get(key)
        if old != new:
            change = f'{key} was {old!r}, is {new!r}'
            changes.append(change if len(change) < 80 else f'another {key}')
    if changes:
        raise InputError(
            f'out_dir: {str(folder)!r} has predictions of other settings ({", ".join(changes)});'
            ' choose another folder, or overwrite this one (--overwrite)',
            argument='out_dir',
        )


def _refuse_foreign(folder: Path) -> None:
    """Refuse a folder without an earlier run if this run could overwrite its files."""
    files = []
    for name in IMAGE_FOLDERS:
        files += sorted(folder.glob(f'{name}/*'))
    for name in RESULT_FILES:
        if os.path.lexists(folder / name):
            files.append(folder / name)
    if files:
        raise InputError(
            f'out_dir: {str(folder)!r} has files that no earlier run wrote, such as'
            f' {str(files[0])!r}; choose another folder, or move them',
            argument='out_dir',
        )
