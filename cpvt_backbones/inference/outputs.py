"""Files of an output folder: records of finished images, class maps, pictures and JSON files."""

import json
import logging
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from typing import Any

import cv2
import numpy as np
from mmengine.logging import print_log

from cpvt_backbones.checkpoints import atomic_write, flush_to_disk, parse_json
from cpvt_backbones.errors import InputError
from cpvt_backbones.images.finding import file_stamp
from cpvt_backbones.images.windows import no_class
from cpvt_backbones.text import Spellings, csv_text, printable

from .inferencer import Result
from .panoptic import annotation_of, encode_ids
from .predictions import Prediction

RUN_FILE, RECORDS_FILE = 'run.json', 'records.jsonl'
# One unit. Only a complete one has the first.
RESULT_FILES = ('predictions.json', 'images.json', 'failed.json')
CSV_FILE, PANOPTIC_FILE = 'predictions.csv', 'panoptic.json'
DRAFT = '.results.part'  # folder of the JSON files while they are written
IMAGE_FOLDERS = ('pred', 'vis')
_PARTS = f'.*.{"[0-9a-f]" * 8}.part'  # temporary files of atomic_write after a kill


@dataclass(frozen=True)
class Ids:
    """Ids of images and classes in the JSON files."""

    images: dict[Path, Any]
    categories: dict[int, Any]  # by label


def warn(message: str) -> None:
    print_log(printable(f'out_dir: {message}'), 'current', logging.WARNING)


class Records:
    """Records of finished images: one line of JSON per image, written after its outputs.

    A line that does not parse, such as the last one of a killed run, is dropped, and its image is
    predicted again.

    Args:
        folder: The output folder.
        run: Digest of the settings of this run, which each record contains.

    Raises:
        ValueError: A record belongs to another run.
    """

    def __init__(self, folder: Path, run: str) -> None:
        self._folder, self._run = folder, run
        self._file = folder / RECORDS_FILE
        self._records: dict[str, dict[str, Any]] = {}
        self._taken: set[str] = set()  # names in lower case, since some file systems ignore case
        self._numbers: dict[str, int] = {}
        lines = _lines_of(self._file)
        kept = []
        for line in lines:
            record = _parse_record(line)
            if record is None:
                continue
            if record['run'] != run:
                raise InputError(
                    f'out_dir: {str(self._file)!r} has records of another run; choose another'
                    ' folder, or overwrite this one (--overwrite)',
                    argument='out_dir',
                )
            kept.append(line)
            self._records[record['key']] = record
            self._taken.add(record['name'].lower())
        if len(kept) < len(lines):
            with atomic_write(self._file) as file:
                file.writelines(kept)

    def is_done(self, image: Path) -> bool:
        """``True`` if an image has a record and did not change, and its outputs are complete."""
        record = self._records.get(os.path.abspath(image))
        if record is None or record['stamp'] != file_stamp(image):
            return False
        files = [(self._folder / file, size) for file, size in record['files'].items()]
        return all(file.is_file() and file.stat().st_size == size for file, size in files)

    def __getitem__(self, image: Path) -> dict[str, Any]:
        return self._records[os.path.abspath(image)]

    def orphaned(self, images: list[Path]) -> list[str]:
        """List the existing outputs of other images."""
        keys = {*map(os.path.abspath, images)}
        left = []
        for key, record in self._records.items():
            if key not in keys:
                left += [file for file in record['files'] if (self._folder / file).exists()]
        return left

    def take_name(self, image: Path) -> str:
        """Return the name of an image's outputs.

        It is the name in the image's record, or its stem, with a number if that is taken.
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
        """Record an image as done; ``values`` are those of :func:`write_outputs`."""
        record = dict(key=os.path.abspath(image), run=self._run, **values)
        with self._file.open('a') as file:
            file.write(f'{json.dumps(record)}\n')
        self._records[record['key']] = record


# key: absolute path of the image; stamp: of its file before reading; files: size in bytes of each
# output, by path; best: highest score of a box.
_KEYS = frozenset('key run stamp name files width height prediction best'.split())


def _lines_of(file: Path) -> list[bytes]:
    return file.read_bytes().splitlines(keepends=True) if file.is_file() else []


def _parse_record(line: bytes) -> dict[str, Any] | None:
    """Return the record in a line; ``None`` if it cannot be parsed."""
    try:
        record = parse_json(line, 'record')
    except ValueError:
        return None
    if not line.endswith(b'\n') or not _KEYS <= record.keys():
        return None
    name = str(record['name'])  # with folders, its outputs would be outside of the output folder
    return record if Path(name).name == record['name'] else None


# -- class maps, pictures, JSON files


def write_outputs(folder: Path, name: str, result: Result) -> dict[str, Any]:
    """Write the class map and the picture of an image; return values for :meth:`Records.add`."""
    assert result.prediction is not None and result.size is not None
    prediction, outputs = dict(result.prediction), []
    seg_map = prediction.get('seg_map')
    if isinstance(seg_map, Path):  # already written under another name
        outputs.append(f'pred/{name}.tif')
        flush_to_disk(seg_map)
        os.replace(seg_map, folder / outputs[-1])
    elif seg_map is not None:
        outputs.append(f'pred/{name}.png')
        _save(seg_map, folder / outputs[-1], cv2.IMWRITE_PNG_COMPRESSION, 1)
    if seg_map is not None:
        prediction['seg_map'] = outputs[-1]
    if 'panoptic' in prediction:
        outputs.append(f'pred/{name}.png')
        bgr = encode_ids(prediction['panoptic'])[..., ::-1]
        _save(bgr, folder / outputs[-1], cv2.IMWRITE_PNG_COMPRESSION, 1)
        prediction['panoptic'] = outputs[-1]
    if result.picture is not None:
        outputs.append(f'vis/{name}.jpg')
        bgr = cv2.cvtColor(result.picture, cv2.COLOR_RGB2BGR)
        sampling = cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444
        _save(bgr, folder / outputs[-1], cv2.IMWRITE_JPEG_QUALITY, 95, *sampling)
    return dict(
        stamp=result.stamp,
        name=name,
        files={output: (folder / output).stat().st_size for output in outputs},
        width=result.size[0],
        height=result.size[1],
        prediction=prediction,
        best=result.best,
    )


def _save(pixels: np.ndarray, path: Path, *options: int) -> None:
    """Write an image in the format of the path's suffix; ``options`` are OpenCV's."""
    # By OpenCV, because Pillow blocks Python's other threads, such as the model's, while encoding.
    # In memory, because a full disk would cut a JPEG short.
    _, encoded = cv2.imencode(path.suffix, pixels, options)
    with atomic_write(path) as file:
        file.write(encoded.data)


def read_ids(ann: Path, images: Sequence[Path], classes: Sequence[str]) -> Ids:
    """Read ids of images, by file name, and of classes, by name, from a COCO JSON.

    A file name may differ in case or in the Unicode form of accents if only one entry matches.

    Raises:
        ValueError: The file cannot be read, lacks an image or a class, or has a name or an id
            twice. Or two images have the same entry, or two classes the same name.
    """
    try:
        content = json.loads(ann.read_bytes())
        listed = [(image['file_name'], image['id']) for image in content['images']]
        kinds = [(category['name'], category['id']) for category in content['categories']]
        _refuse_twice(ann, 'images', listed)
        _refuse_twice(ann, 'categories', kinds)
    except InputError:
        raise
    except (KeyError, RecursionError, TypeError, ValueError) as error:
        raise InputError(
            f'ann: {str(ann)!r} is not COCO JSON ({type(error).__name__}: {error})', argument='ann'
        ) from error
    _refuse_twice('the model', 'classes', [(name, label) for label, name in enumerate(classes)])
    names, categories = dict(listed), dict(kinds)
    spellings = Spellings(name for name in names if isinstance(name, str))
    found: dict[Path, Any] = {}
    owners: dict[str | None, Path] = {}
    for image in images:
        # A file name may include folders, so the longest matching end of the path is taken.
        ends = ['/'.join(image.parts[i:]) for i in range(len(image.parts))]
        alike = [spellings.find(end) for end in ends]
        known = next((end for end in (*ends, *alike) if end in names), None)
        found[image] = None if known is None else names[known]
        if known is not None and known in owners:
            raise InputError(
                f'ann: {str(owners[known])!r} and {str(image)!r} are both the entry {known!r} of'
                f' {str(ann)!r}; its file_name must have the folders that tell them apart'
            )
        owners[known] = image
    lost = [str(image) for image, number in found.items() if number is None]
    unknown = [name for name in classes if name not in categories]
    for kind, lacking in (('image', lost), ('category', unknown)):
        if lacking:
            missing = f'{lacking[0]!r} ({len(lacking)} are missing)'
            raise InputError(f'ann: {str(ann)!r} has no {kind} {missing}', argument='ann')
    return Ids(found, {label: categories[name] for label, name in enumerate(classes)})


def _refuse_twice(source: Path | str, part: str, pairs: list[tuple[str, Any]]) -> None:
    """Raise ``ValueError`` for a name with two ids, or an id with two names."""
    for position, what in enumerate(('name', 'id')):
        counts = Counter(pair[position] for pair in pairs)
        twice = next((value for value, count in counts.items() if count > 1), None)
        if twice is not None:
            raise InputError(f'ann: the {part} of {str(source)!r} have the {what} {twice!r} twice')


def write_json_files(
    folder: Path,
    records: Records,
    images: list[Path],
    failed: Mapping[str, str],
    classes: Sequence[str],
    ids: Ids,
    *,
    num_things: int | None = None,
) -> None:
    """Write the JSON files of all predictions; delete unfinished files of killed runs.

    Args:
        folder: The output folder.
        records: Records of the finished images.
        images: All predicted images, in the order of the files.
        failed: The reason of each image without a prediction, by its path.
        classes: Names of the classes.
        ids: Ids of images and classes.
        num_things: Number of object classes of a panoptic segmentor.
    """
    listed, entries = [], []
    for image in images:
        record, number = records[image], ids.images[image]
        prediction = record['prediction']
        reference = {key: prediction[key] for key in ('crs', 'transform') if key in prediction}
        size = dict(width=record['width'], height=record['height'])
        listed.append(dict(id=number, file_name=str(image), **size, **reference))
        entries += coco_entries(number, prediction, ids.categories)
    categories = [dict(id=ids.categories[i], name=name) for i, name in enumerate(classes)]
    if num_things is not None:
        for label, category in enumerate(categories):
            category['isthing'] = int(label < num_things)
    write_results(folder, listed, categories, entries, failed, panoptic=num_things is not None)
    for name in ('', *IMAGE_FOLDERS):
        for part in (folder / name).glob(_PARTS):
            part.unlink(missing_ok=True)


def write_results(
    folder: Path,
    images: list[dict[str, Any]],
    categories: list[dict[str, Any]],
    entries: list[dict[str, Any]],
    failed: Mapping[str, str],
    *,
    panoptic: bool,
) -> None:
    """Write the JSON files, which replace those of an earlier run together.

    All are written to a folder of their own. Then the earlier ones are deleted, and the new ones
    are moved, ``predictions.json`` last. Wherever a run is killed, the files of one run are there,
    or ``predictions.json`` is missing. Ids of one run are never beside predictions of another.

    Args:
        folder: The output folder.
        images: COCO's ``images``.
        categories: COCO's ``categories``.
        entries: As of :func:`coco_entries`, of all images.
        failed: The reason of each image without a prediction, by its path.
        panoptic: Whether to write ``panoptic.json``, COCO's panoptic format, too. Its paths are
            relative to ``folder``.
    """
    draft = folder / DRAFT
    rmtree(draft, ignore_errors=True)  # of a killed run
    listing = dict(images=images, categories=categories)
    texts = {'images.json': json.dumps(listing, indent=1)}
    if panoptic:
        texts[PANOPTIC_FILE] = json.dumps(dict(listing, annotations=entries))
    reasons = [dict(file_name=name, reason=reason) for name, reason in failed.items()]
    for name, values in (('failed.json', reasons), ('predictions.json', entries)):
        texts[name] = '[\n' + ',\n'.join(map(json.dumps, values)) + '\n]\n'
    for name, text in texts.items():
        with atomic_write(draft / name) as file:
            file.write(text.encode())
    delete_results(folder)
    flush_to_disk(folder)
    for path in draft.iterdir():
        if path.name != 'predictions.json':
            path.replace(folder / path.name)
    flush_to_disk(folder)
    (draft / 'predictions.json').replace(folder / 'predictions.json')
    flush_to_disk(folder)
    draft.rmdir()


def coco_entries(
    image_id: Any, prediction: Prediction, kinds: Mapping[int, Any] | None = None
) -> list[dict[str, Any]]:
    """Convert the prediction of one image to entries of ``predictions.json``.

    ``kinds`` maps labels to category ids; by default an id is the label.
    """
    if 'segments' in prediction:
        return [annotation_of(image_id, prediction, kinds)]
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


def write_csv(folder: Path) -> Path:
    """Write ``predictions.csv`` from the JSON files of a folder; return its path.

    A row is a box in px, the class of an image, or a panoptic segment or class of a class map with
    its pixel count. An image without boxes has no row.
    """
    listing = json.loads((folder / 'images.json').read_bytes())
    files = {image['id']: image['file_name'] for image in listing['images']}
    names = {category['id']: category['name'] for category in listing['categories']}
    entries = json.loads((folder / 'predictions.json').read_bytes())
    columns: tuple[str, ...] = ('image', 'class', 'score')
    rows: list[tuple[Any, ...]] = []
    for entry in entries:
        file = files[entry['image_id']]
        if 'bbox' in entry:
            columns = ('image', 'class', 'score', 'left', 'top', 'width', 'height')
            name = names.get(entry['category_id'], entry['category_id'])
            rows.append((file, name, entry['score'], *entry['bbox']))
        elif 'segments_info' in entry:
            columns = ('image', 'class', 'pixels')
            for one in entry['segments_info']:
                name = names.get(one['category_id'], one['category_id'])
                rows.append((file, name, one['area']))
        elif 'seg_map' in entry:
            columns = ('image', 'class', 'pixels')
            counts = _count_pixels(folder / entry['seg_map'])
            rows += [(file, names.get(label, label), count) for label, count in counts]
        else:
            rows.append((file, entry['class'] or entry['label'], entry['score']))
    with atomic_write(folder / CSV_FILE) as target:
        target.write(csv_text([columns, *rows]).encode(errors='surrogateescape'))
    return folder / CSV_FILE


def _count_pixels(file: Path) -> list[tuple[int, int]]:
    """Count the pixels of each class in a class map; pixels without a class are left out."""
    counts: Counter[int] = Counter()
    for classes in _blocks_of(file):
        own = np.bincount(classes[classes != no_class(classes.dtype)])
        counts.update({label: int(own[label]) for label in np.flatnonzero(own).tolist()})
    return sorted(counts.items())


def _blocks_of(file: Path) -> Iterator[np.ndarray]:
    """Read a class map; a TIFF is read in blocks, because it may exceed the memory."""
    if file.suffix != '.tif':
        classes = cv2.imread(str(file), cv2.IMREAD_UNCHANGED)
        if classes is None:
            raise InputError(f'out_dir: the class map {str(file)!r} cannot be read')
        yield classes
        return
    import rasterio

    with rasterio.open(file) as scene:
        for _, window in scene.block_windows(1):
            yield scene.read(1, window=window)


# -- deletion


def delete_outputs(folder: Path) -> None:
    """Delete the files of earlier runs and no others."""
    for line in _lines_of(folder / RECORDS_FILE):
        record = _parse_record(line) or dict(files=())
        for output in record['files']:
            # A record may name any path; only files of the two folders are deleted.
            subfolder, _, name = output.partition('/')
            if subfolder in IMAGE_FOLDERS and name and Path(name).name == name:
                _unlink(folder / subfolder / name)
    for name in IMAGE_FOLDERS:
        for part in (folder / name).glob(_PARTS):
            _unlink(part)
        with suppress(OSError):  # it holds other files
            (folder / name).rmdir()
    _unlink(folder / RECORDS_FILE)
    rmtree(folder / DRAFT, ignore_errors=True)
    delete_results(folder)
    _unlink(folder / RUN_FILE)


def delete_results(folder: Path) -> None:
    """Delete the JSON files and tables, which only finished runs write."""
    for name in (*RESULT_FILES, CSV_FILE, PANOPTIC_FILE):
        _unlink(folder / name)


def _unlink(path: Path) -> None:
    """Delete a file or a link, but not a folder."""
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
