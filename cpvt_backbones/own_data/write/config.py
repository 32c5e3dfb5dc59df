"""Writes a config: a few lines that inherit bases, and a JSON file with their values.

mmengine substitutes ``{{...}}`` in the source of a config before Python parses it, so a class name
or path in the source could run as code. So all text of the data is in a JSON file, as ``own_data``,
which the bases read.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from pprint import pformat
from typing import Any

from cpvt_backbones import __version__
from cpvt_backbones.checkpoints import atomic_write
from cpvt_backbones.errors import InputError
from cpvt_backbones.toolboxes import READ_KEYS, dicts_of
from cpvt_backbones.weights import repository_file

from ..decide.values import RECIPES
from ..decide.weights import Pretrained
from ..decide.whole_model import ORIGIN, WholeModel, anchors_of, without_classes
from ..files import RECIPE
from .data import write_json

VALUES = 'data.json'  # beside the recipe
SAFE_STEM = re.compile(r'\w[\w .+=@,-]*')
BASES = 'configs/_base_/own_data'
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
        values: Content of the JSON file, from :func:`..decide.values.values_of`.
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


def check_out(file: Path) -> None:
    """Raise ``InputError`` for a file name that would change inside a config."""
    if file.suffix != '.py':
        raise InputError(f'--out: must be FILE.py, got {str(file)!r:.200}')
    if not SAFE_STEM.fullmatch(file.stem):
        raise InputError(
            '--out: the name of the file may have letters, digits and . _ + = @ , - and spaces,'
            f' got {file.name!r:.200}'
        )
    check_text(str(file.absolute()), '--out')


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
    kept = {key: value for key, value in recipe.items() if key in READ_KEYS}
    for part in dicts_of([*kept.values()]):
        for key in OF_ITS_DATA:
            part.pop(key, None)
    if whole is not None:
        kept[ORIGIN] = whole.name
        kept['model'] = whole.model
        if whole.data_preprocessor is not None:
            kept['data_preprocessor'] = whole.data_preprocessor
    return kept


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
