"""Comparison of data sets' classes with their annotations, their metrics and each other.

A label is an index, and each toolbox numbers labels by its own rule: mmdet in the order of
``categories`` in a JSON file, mmpretrain in the order of the sorted folders. Names in another order
are refused, not permuted, so that the config defines the meaning of its labels.
"""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mmengine.fileio import get
from mmengine.runner import BaseLoop, Runner

from cpvt_backbones.checkpoints import classes_of
from cpvt_backbones.errors import InputError
from cpvt_backbones.label_files import CLASSES, read_classes

_SHOWN = 20


def check_runner_classes(runner: Runner) -> None:
    """Compare the classes of a runner's data sets.

    Each data set is compared with its annotations and with those of its metrics, and the validation
    set with the training set.

    Raises:
        ValueError: Two of them differ by a name or by the order.
    """
    first: tuple[str, dict[str, Any]] | None = None
    for name in ('train', 'val', 'test'):
        loop = getattr(runner, f'_{name}_loop', None)
        if not isinstance(loop, BaseLoop):  # not built, or none
            continue
        whole = loop.dataloader.dataset
        key = f'{name}_dataloader.dataset'
        for dataset in parts_of(whole):
            check_annotations(dataset, key)
        for metric in getattr(getattr(loop, 'evaluator', None), 'metrics', ()):
            check_metric(metric, whole, f'{name}_evaluator')
        meta = getattr(whole, 'metainfo', None) or {}
        if first is None:
            first = key, meta
        else:
            _compare_data_sets(*first, key, meta)


def parts_of(dataset: Any) -> Iterator[Any]:
    """Return the data sets inside wrappers such as ``RepeatDataset`` and ``ConcatDataset``."""
    inner = getattr(dataset, 'dataset', None)
    many = getattr(dataset, 'datasets', None)
    if inner is not None:
        yield from parts_of(inner)
    elif isinstance(many, (list, tuple)):
        for one in many:
            yield from parts_of(one)
    else:
        yield dataset


def check_annotations(dataset: Any, key: str) -> None:
    """Compare ``metainfo.classes`` with the label names in the annotations.

    Args:
        dataset: Data set of a toolbox, not a wrapper. Annotations without names pass.
        key: Key of the data set in the config, for the error.

    Raises:
        ValueError: They differ. Folders and classes without any common name pass, because such
            folders are named by codes. Lists and class maps with ``classes.json`` need the same
            names.
    """
    classes = classes_of(getattr(dataset, 'metainfo', None))
    if classes is None:
        return
    twice = next((name for name in classes if classes.count(name) > 1), None)
    if twice is not None:
        raise InputError(f'{key}: metainfo.classes has {twice!r} twice, in {_shown(classes)}')
    for source, labelled in _labelled_names(dataset):
        if not _same(labelled, classes):
            raise InputError(_difference(key, classes, source, labelled))
    for labels in _label_files(dataset):
        stored = read_classes(labels)
        if stored is not None and stored != classes:
            source = f'{str(labels)!r}, by its {CLASSES},'
            raise InputError(_difference(key, classes, source, stored))


def _label_files(dataset: Any) -> Iterator[Path]:
    """Return the list and the folder of class maps of a data set."""
    prefix = getattr(dataset, 'data_prefix', None)
    maps = prefix.get('seg_map_path') if isinstance(prefix, dict) else None
    for path in (getattr(dataset, 'ann_file', None), maps):
        if isinstance(path, str) and path:
            yield Path(path)


def check_folders(options: Any, key: str) -> None:
    """Compare the number of classes of a data set with the number of its class folders.

    mmpretrain ends with an assertion if they differ.

    Args:
        options: Config of the data set.
        key: Its key in the config, for the error.

    Raises:
        ValueError: There are more or fewer folders than classes.
    """
    if str(options.get('type')).rpartition('.')[2] != 'CustomDataset' or options.get('ann_file'):
        return
    classes = options.get('classes') or (options.get('metainfo') or {}).get('classes')
    folder = Path(str(options.get('data_root') or ''), str(options.get('data_prefix') or ''))
    if not isinstance(classes, (list, tuple)) or not folder.is_dir():
        return
    found = sorted(path.name for path in folder.iterdir() if path.is_dir())
    if len(found) != len(classes):
        raise InputError(
            f'{key}: classes has {len(classes)} names {_shown(classes)}, but {str(folder)!r} has'
            f' {len(found)} folders {_shown(found)}; name each of them, in their order'
        )


def check_metric(metric: Any, dataset: Any, key: str) -> None:
    """Compare a metric that reads its own COCO JSON with the data set that it evaluates.

    Raises:
        ValueError: The file numbers the classes differently, or gives an image's id to another
            image.
    """
    api = getattr(metric, '_coco_api', None)
    classes = classes_of(getattr(dataset, 'metainfo', None))
    if api is None or classes is None:
        return
    listed = [category['name'] for category in api.dataset['categories']]
    labelled = [name for name in listed if name in classes]
    if not _same(labelled, classes):
        raise InputError(_difference(key, classes, 'its ann_file', labelled))
    for index in range(len(dataset)):
        info = dataset.get_data_info(index)
        theirs = api.imgs.get(info.get('img_id'), {}).get('file_name')
        ours = info.get('img_path')
        if theirs and ours and Path(theirs).name != Path(ours).name:
            raise InputError(
                f'{key}: its ann_file gives the id {info["img_id"]!r} to {theirs!r}, the data set'
                f' to {ours!r}; give both the same JSON'
            )


def _labelled_names(dataset: Any) -> Iterator[tuple[str, list[str]]]:
    """Return the source of the label names, and the names in the order of the labels."""
    folders = getattr(dataset, 'folder_to_idx', None)
    if folders and not dataset.ann_file:
        yield f'the folders of {dataset.img_prefix!r}', sorted(folders, key=folders.__getitem__)
    file = getattr(dataset, 'ann_file', None)
    if not isinstance(file, str) or not file.endswith('.json'):
        return
    content = _names_in(get(file, backend_args=getattr(dataset, 'backend_args', None)))
    ids = getattr(dataset, 'cat_ids', None)
    if isinstance(ids, Sequence) and 'categories' in content:
        names = {category['id']: category['name'] for category in content['categories']}
        yield f'the categories of {file!r}', [names[number] for number in ids]
    stored = classes_of(content.get('metainfo'))
    if stored is not None:
        yield f'metainfo.classes of {file!r}', stored


def _names_in(content: bytes) -> dict[str, Any]:
    """Parse the object in a JSON file; for a COCO file, only its categories.

    Images and boxes take seconds to parse, and mmdet has already parsed them. The categories are
    those of the file if no other entry has their key.
    """
    text = content.decode(json.detect_encoding(content), 'surrogatepass')
    keys = [*re.finditer(r'"(categories|metainfo)"(\s*:\s*)?', text)]
    if len(keys) == 1 and keys[0][1] == 'categories' and keys[0][2]:
        return {'categories': json.JSONDecoder().raw_decode(text, keys[0].end())[0]}
    parsed = json.loads(text)
    return parsed if isinstance(parsed, dict) else {}


def _same(labelled: Sequence[str], classes: Sequence[str]) -> bool:
    """``True`` if all labels have the same name in both, or if they share no name."""
    theirs, ours = list(map(_plain, labelled)), list(map(_plain, classes))
    if theirs and not set(theirs) & set(ours):  # codes, such as n01440764 for a tench
        return len(theirs) == len(ours)
    return theirs == ours


def _plain(name: str) -> str:
    """Reduce a name to the parts that people write in the same way."""
    return re.sub(r'[\s_-]+', ' ', str(name)).strip().casefold()


def _difference(key: str, classes: list[str], source: str, labelled: list[str]) -> str:
    known = set(map(_plain, labelled))
    lacking = [name for name in classes if _plain(name) not in known]
    start = f'{key}: metainfo.classes is {_shown(classes)}, but '
    if lacking:
        return f'{start}{source} lack {_shown(lacking)}: they give the labels {_shown(labelled)}'
    return (
        f'{start}{source} number them as {_shown(labelled)}; give both the same order, which for a'
        ' trained model is the order of its classes'
    )


def _compare_data_sets(
    key: str, meta: dict[str, Any], other_key: str, other_meta: dict[str, Any]
) -> None:
    """Raise ``ValueError`` if labels of two data sets have different meanings."""
    ours, theirs = classes_of(meta), classes_of(other_meta)
    if ours is not None and theirs is not None and ours != theirs:
        raise InputError(
            f'{other_key}: metainfo.classes is {_shown(theirs)}, in {key} it is {_shown(ours)};'
            ' give both the same names in the same order'
        )
    setting = 'reduce_zero_label'
    if (
        setting in meta
        and setting in other_meta
        and bool(meta[setting]) != bool(other_meta[setting])
    ):
        raise InputError(
            f'{other_key}: {setting} is {other_meta[setting]}, in {key} it is {meta[setting]}; the'
            ' same value of a mask would have two labels'
        )


def _shown(names: Sequence[str]) -> str:
    more = f', ... ({len(names)} in all)' if len(names) > _SHOWN else ''
    return f'({", ".join(map(str, names[:_SHOWN]))}{more})'
