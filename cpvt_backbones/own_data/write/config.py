"""Writes a config: a few lines that inherit bases, and a JSON file with their values.

mmengine substitutes ``{{...}}`` in the source of a config before Python parses it, so a class name
or path in the source could run as code. So all text of the data is in a JSON file, as ``own_data``,
which the bases read.
"""

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from pprint import pformat
from typing import Any

from filelock import Timeout

from cpvt_backbones import __version__
from cpvt_backbones.checkpoints import Normalisation, atomic_write, flush_to_disk, lock_file
from cpvt_backbones.errors import InputError
from cpvt_backbones.images.value_range import ValueRange
from cpvt_backbones.label_files import CLASSES
from cpvt_backbones.toolboxes import READ_KEYS
from cpvt_backbones.weights import repository_file

from ..decide.settings import RECIPES, Start, Values
from ..decide.weights import (
    ORIGIN,
    STRIDE,
    Pretrained,
    WholeModel,
    anchors_of,
    without_classes,
)
from ..read.files import RECIPE
from ..read.masks import IGNORE, no_class_of
from .data import write_json

VALUES = 'data.json'  # beside the recipe
SAFE_STEM = re.compile(r'\w[\w .+=@,-]*')
BASES = 'configs/_base_/own_data'
PART, LOCK = '.part', '.lock'
REPORT = 'check.csv'
# Names that a call writes to the folder of its config; other files belong to the user.
WRITTEN = (
    RECIPE,
    'iterations.py',
    'objects.py',
    'segmentor.py',
    'classifier.py',
    'data.json',
    CLASSES,
    'train.json',
    'val.json',
    'train.txt',
    'val.txt',
    'masks',
    'tiles',
    'sheet.jpg',
)
# Files of BASES by task; the last one inherits the others.
BASES_OF = {
    'detector': ('iterations.py', 'objects.py'),
    'instance segmentor': ('iterations.py', 'objects.py'),
    'segmentor': ('iterations.py', 'segmentor.py'),
    'classifier': ('classifier.py',),
}
# Parts of a recipe that belong to its data and not to the task.
OF_ITS_DATA = (
    'data_root',
    'ann_file',
    'data_prefix',
    'metainfo',
    'img_suffix',
    'pipeline',
    'class_weight',
)
CONFIG = """\
# {about}. Written by cpvt make-config {version}.
# The numbers that the data suggest, such as scale and length, are in {folder}/{values}, beside the
# names and paths of the data: change them there. {folder}/{base} makes a config of them, with
# the model and optimizer of {folder}/{recipe}. What is set here replaces theirs.
_base_ = './{folder}/{base}'
work_dir = '{work_dir}'
load_from = _base_.own_data.load_from
train_dataloader = dict(batch_size={batch_size})
"""


def values_of(
    task: str,
    texts: Mapping[str, Any],
    fields: Mapping[str, Any],
    start: Start,
    *,
    value_range: ValueRange | None = None,
    normalisation: Normalisation | None = None,
) -> Values:
    """Return the values of a config: numbers, which users change, and then names and paths.

    Args:
        task: A key of ``RECIPES``.
        texts: Names and paths of the data.
        fields: Numbers of :class:`.settings.Settings`.
        start: Weights from which the model starts.
        value_range: Conversion of images of more than 8 bits.
        normalisation: Mean and standard deviation of each channel; ``None`` for the recipe's.
    """
    count = len(texts['classes'])
    channels = 3 if value_range is None else value_range.channels
    load = dict(type='LoadImageFromFile')
    if value_range is not None:
        load = dict(type='LoadRange', **value_range.settings)
    preprocessor = _preprocessor(task, channels, normalisation)
    values: Values = dict(
        scale=fields['scale'],
        least_rate=start.least_rate,
        optim_wrapper=start.rates,
        load_from=start.load_from,
        load=load,
        is_rgb=normalisation is None or channels == 3,
    )
    model = dict(start.model)
    if task == 'classifier':
        values |= dict(max_epochs=fields['length'], batch_size=fields['batch'])
        # Pillow resizes RGB.
        values['backend'] = 'pillow' if values['is_rgb'] else 'cv2'
        values['data_preprocessor'] = dict(preprocessor, num_classes=count)
        model['head'] = dict(model.get('head', {}), num_classes=count)
    elif task == 'segmentor':
        values |= _of_segmentor(count, fields)
        model['data_preprocessor'] = dict(preprocessor, seg_pad_val=values['void'])
        model['decode_head'] = dict(num_classes=count, ignore_index=values['void'])
    else:
        values |= _of_objects(task, fields)
        if preprocessor:
            model['data_preprocessor'] = preprocessor
        if start.has_queries:
            model |= _queries_of_objects(count, fields)
        else:
            model |= _heads_of_objects(task, count, fields)
    return values | dict(model=model) | dict(texts)


def _preprocessor(task: str, channels: int, normalisation: Normalisation | None) -> Values:
    """Return values of the data preprocessor that differ from the recipe's."""
    if normalisation is None:
        return {}
    values: Values = dict(mean=[*normalisation.mean], std=[*normalisation.std])
    if channels != 3 or not normalisation.rgb:
        values['to_rgb' if task == 'classifier' else 'bgr_to_rgb'] = False
    if task == 'segmentor' and channels not in (1, 3):  # mmseg's own takes these
        values['type'] = 'ValidSizesSegDataPreProcessor'
    return values


def _of_segmentor(count: int, fields: Mapping[str, Any]) -> Values:
    void = no_class_of(count)
    reader = 'LoadAnnotations' if void == IGNORE else 'LoadClassMap'  # mmseg's reads 8 bits
    return dict(
        crop=fields['crop'],
        max_iters=fields['length'],
        is_tiled=fields['is_tiled'],
        void=void,
        load_map=dict(type=reader),
        checkpoint={},
    )


def _of_objects(task: str, fields: Mapping[str, Any]) -> Values:
    values: Values = dict(max_iters=fields['length'], checkpoint={}, proposals=None)
    values['outlines'] = task == 'instance segmentor'
    if fields['detections']:
        metric = 'segm' if values['outlines'] else 'bbox'
        values['checkpoint'] = dict(save_best=f'coco/{metric}_mAP_50')
        values['proposals'] = (100, 300, max(1000, fields['detections']))
    return values


def _heads_of_objects(task: str, count: int, fields: Mapping[str, Any]) -> Values:
    """Return anchors, classes, and the number of predictions for images with many objects."""
    anchor = float(f'{fields["anchor"]:.3g}')
    most = fields['detections']
    kept = dict(nms_pre=max(1000, 5 * (most or 0)))
    if task == 'detector':
        # Anchors at this scale: the size of the smallest boxes, and the shapes (height / width).
        anchors = dict(octave_base_scale=anchor, ratios=fields['ratios'])
        model: Values = dict(bbox_head=dict(num_classes=count, anchor_generator=anchors))
        return model | (dict(test_cfg=dict(kept, max_per_img=most)) if most else {})
    heads = {head: dict(num_classes=count) for head in ('bbox_head', 'mask_head')}
    model = dict(rpn_head=dict(anchor_generator=dict(scales=[anchor])), roi_head=heads)
    if most:
        kept['max_per_img'] = 2 * most
        model['train_cfg'] = dict(rpn_proposal=kept)
        model['test_cfg'] = dict(rpn=kept, rcnn=dict(max_per_img=most))
    return model


def _queries_of_objects(count: int, fields: Mapping[str, Any]) -> Values:
    """Return classes, and the number of predictions for images with many objects."""
    model: Values = dict(panoptic_head=dict(num_things_classes=count))
    if fields['detections']:
        model['test_cfg'] = dict(max_per_image=fields['detections'])
    return model


def write_config(
    task: str,
    values: Mapping[str, Any],
    file: Path,
    *,
    about: str,
    whole: WholeModel | None = None,
) -> None:
    """Write a config, and its bases and JSON file to the folder of its name.

    Args:
        task: A key of ``BASES_OF``.
        values: Content of the JSON file, from :func:`values_of`.
        file: The config, with a name that :func:`check_out` accepts.
        about: One line about the training images, without text from the data.
        whole: The model, instead of the recipe's.

    Raises:
        InputError: A text has ``{{`` or is not Unicode, or the config, loaded again, has other
            values.
    """
    own_data = json.loads(json.dumps(values))  # tuples become lists
    for where, text in _texts_of(own_data, ''):
        check_text(text, where)
    folder = file.with_suffix('')
    recipe = read_recipe(task, whole)
    about_recipe = (
        f'# The {task} of {RECIPES[task]}, cpvt_backbones {__version__}, without its data.\n'
    )
    with atomic_write(folder / RECIPE) as target:
        lines = [assignment(key, value) for key, value in recipe.items()]
        target.write((about_recipe + ''.join(lines)).encode())
    for name in BASES_OF[task]:
        with atomic_write(folder / name) as target:
            target.write(repository_file(f'{BASES}/{name}').read_bytes())
    write_json(dict(own_data=own_data), folder / VALUES, indent=2)
    source = CONFIG.format(
        version=__version__,
        about=f'{task.capitalize()}, {about}',
        folder=folder.name,
        values=VALUES,
        base=BASES_OF[task][-1],
        recipe=RECIPE,
        work_dir=work_dir(file),
        batch_size=own_data.get('batch_size', recipe['train_dataloader']['batch_size']),
    )
    with atomic_write(file) as target:
        target.write(source.encode())
    _compare(file, own_data)


def check_out(file: Path, data: Sequence[Path]) -> None:
    """Raise ``InputError`` if a config cannot have a name, or its folder has files of the user.

    Args:
        file: The config, whose name must not change inside a config.
        data: Paths of the user's data, which must be outside its folder.
    """
    if file.suffix != '.py':
        raise InputError(f'--out: must be FILE.py, got {str(file)!r:.200}')
    if not SAFE_STEM.fullmatch(file.stem):
        raise InputError(
            '--out: the name of the file may have letters, digits and . _ + = @ , - and spaces,'
            f' got {file.name!r:.200}'
        )
    check_text(str(file.absolute()), '--out')
    folder = file.with_suffix('')
    for path in data:
        if path.resolve().is_relative_to(folder.resolve()):
            raise InputError(
                f'--out: the data {path} are in {folder}/, to which the config writes its files;'
                ' choose another name for the config'
            )
    for path in folder.rglob('*'):
        if path.is_symlink():
            target = os.path.realpath(path)
            raise InputError(f'--out: {path} is a link to {target}; nothing is written through it')
    if not folder.exists() or (folder / RECIPE).is_file():
        return
    for path in sorted(folder.iterdir()):
        if path.name not in (PART, LOCK, REPORT):
            raise InputError(
                f'--out: the config writes its files to {folder}/, which has others, such as'
                f' {path.name}; choose another name for the config'
            )


def check_text(text: str, where: str) -> None:
    """Raise ``InputError`` for text that would change inside a config.

    mmengine writes config values as Python source to the work directory and to checkpoints, and
    substitutes ``{{...}}`` when it reads them.
    """
    if '{{' in text:
        raise InputError(
            f"{where}: {text!r:.200} has '{{{{', which mmengine substitutes in configs: rename it"
        )
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(f'{where}: {text!r:.200} is not valid Unicode: rename it') from None


def _texts_of(value: Any, where: str) -> Iterator[tuple[str, str]]:
    """Yield all texts in plain data, with the keys that lead to them."""
    if isinstance(value, str):
        yield where, value
    elif isinstance(value, dict):
        for key, one in value.items():
            yield where, key
            yield from _texts_of(one, f'{where}.{key}' if where else key)
    elif isinstance(value, list):
        for one in value:
            yield from _texts_of(one, where)


def _compare(file: Path, own_data: Mapping[str, Any]) -> None:
    """Raise ``InputError`` if a config, loaded again, has other names and paths."""
    from mmengine.config import Config

    config = Config.fromfile(file, import_custom_modules=False)
    train, val = (config[f'{split}_dataloader'].dataset for split in ('train', 'val'))
    classes = tuple(own_data['classes'])
    pairs = [
        (config.own_data.to_dict(), own_data),
        (config.load_from, own_data['load_from']),
        (train.ann_file, own_data['train']),
        (val.ann_file, own_data['val']),
        (train.metainfo.classes, classes),
        (val.metainfo.classes, classes),
    ]
    for got, meant in pairs:
        if got != meant:
            raise InputError(f'--out: {file} would have {got!r:.200} for {meant!r:.200}')


def work_dir(config: Path) -> str:
    """Return the folder of the checkpoints, relative to where the training is started."""
    return f'work_dirs/{config.stem}'


def read_recipe(task: str, whole: WholeModel | None = None) -> dict[str, Any]:
    """Read the resolved recipe of a task, without its data and the variables of its files.

    ``whole`` replaces its model.
    """
    from mmengine.config import Config

    # Without its custom_imports, which import the toolbox.
    recipe = Config.fromfile(repository_file(RECIPES[task]), import_custom_modules=False).to_dict()
    kept = {key: _without_data(value) for key, value in recipe.items() if key in READ_KEYS}
    if whole is not None:
        kept[ORIGIN] = whole.name
        kept['model'] = whole.model
        if whole.data_preprocessor is not None:
            kept['data_preprocessor'] = whole.data_preprocessor
    if task == 'segmentor' and kept['model']['test_cfg']['mode'] == 'whole':
        # mmseg resizes the last maps to the image. Cells that reach beyond it would shift the rest.
        kept['model']['data_preprocessor']['test_cfg'] = dict(size_divisor=STRIDE)
    return kept


def _without_data(node: Any) -> Any:
    """Copy plain data without the keys ``OF_ITS_DATA``."""
    if isinstance(node, dict):
        return {key: _without_data(one) for key, one in node.items() if key not in OF_ITS_DATA}
    return [*map(_without_data, node)] if isinstance(node, list) else node


def assignment(name: str, value: Any) -> str:
    """Format an assignment of a plain value in Python, wrapped at 100 columns."""
    indent = ' ' * len(f'{name} = ')
    text = pformat(value, width=100 - len(indent), sort_dicts=False)
    return f'{name} = {text}\n'.replace('\n', f'\n{indent}').rstrip(' ')


def anchors_to_keep(
    task: str, pretrained: Pretrained | None, config: Path
) -> dict[str, Any] | None:
    """Return the anchor fields of a training whose whole model the config can load.

    The anchors must not change, because the layers of the boxes depend on them.

    Args:
        task: A key of ``BASES_OF``.
        pretrained: Backbone of weights that are not shipped, from a training's checkpoint.
        config: The config, written for this backbone.

    Returns:
        The fields, which are empty for segmentors and classifiers; ``None`` if the models of config
        and training differ in more than classes and anchors.
    """
    from mmengine.config import Config

    if pretrained is None or pretrained.trained is None:
        return None
    trained: Any = pretrained.trained
    cfg = Config.fromfile(config, import_custom_modules=False)
    if without_classes(cfg.model.to_dict()) != without_classes(trained):
        return None
    try:
        return anchors_of(task, trained)
    except (KeyError, TypeError, ValueError):
        return None


@dataclass(frozen=True)
class Draft:
    """A config and its folder while they are written.

    Args:
        out: Final path of the config.
        config: The config being written; it has its final name and inherits from ``folder``.
        folder: Folder in which the files are written.
    """

    out: Path
    config: Path
    folder: Path

    def final(self, texts: dict[str, Any]) -> dict[str, Any]:
        """Return names and paths, with paths in ``folder`` as they are after the renaming."""
        old = str(self.folder.resolve())
        new = str(self.out.with_suffix('').resolve())
        changed = {}
        for key, value in texts.items():
            inside = isinstance(value, str) and f'{value}/'.startswith(f'{old}/')
            changed[key] = new + value.removeprefix(old) if inside else value
        return changed


@contextmanager
def replacing(out: Path) -> Iterator[Draft]:
    """Context with a :class:`Draft` whose files replace those of an earlier call at the end.

    A config, its lists of labels and its class maps belong together, because numbers of one and
    names of another would mislabel everything. So all files are first written to ``.part`` in the
    folder of the config. At the end, the earlier config is removed, the files are renamed, and the
    new config is written last. If the block raises, the earlier config and its files do not change.
    Files of a killed call are removed.

    Raises:
        InputError: Another call writes this config.
    """
    folder = out.with_suffix('')
    config = folder / PART / out.name
    draft = Draft(out, config, config.with_suffix(''))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        lock = lock_file(folder / LOCK, warn=print)
    except Timeout:
        raise InputError(f'--out: another cpvt make-config writes {out}') from None
    try:
        shutil.rmtree(folder / PART, ignore_errors=True)
        draft.folder.mkdir(parents=True)
        yield draft
        _move(draft, folder)
    finally:
        shutil.rmtree(folder / PART, ignore_errors=True)
        if lock is not None:
            lock.release()


def _move(draft: Draft, folder: Path) -> None:
    """Replace the files of an earlier call while no config refers to them."""
    draft.out.unlink(missing_ok=True)
    flush_to_disk(draft.out.parent)
    earlier = folder / PART / 'earlier'
    earlier.mkdir()
    for name in WRITTEN:
        if (folder / name).exists() and name != RECIPE:  # which marks the folder as ours
            (folder / name).rename(earlier / name)
    for path in sorted(draft.folder.iterdir(), key=lambda path: path.name != RECIPE):
        path.replace(folder / path.name)
    flush_to_disk(folder)
    with atomic_write(draft.out) as file:
        file.write(draft.config.read_bytes())
