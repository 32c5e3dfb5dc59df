"""All that this package changes in other packages, and what breaks without it.

| changed | without it |
| --- | --- |
| ``sys.meta_path``: a finder, last | mmdet and mmseg do not import without mmcv's operators |
| ``CheckpointLoader._schemes`` | mmengine reopens refused checkpoints; loading may run code |
| ``load_state_dict`` of mmengine | ``init_model`` leaves a trunk random, with a warning |
| ``Config._get_cfg_path`` | ``_base_ = 'cpvt_backbones::...'`` finds no detector or no file, |
| | and each ``_base_ = 'mmdet::...'`` reads 102 metafiles |
| ``sys.meta_path``: a finder, first | beside transformers 5, no toolbox imports |
| ``MODULE2PACKAGE['mmseg']`` | ``_base_ = 'mmseg::...'`` fails with the maintained fork |
| ``file_handlers`` of mmengine: YAML | a tag in a YAML config or metafile runs any function |

The last finder serves mmcv's operators, such as NMS and RoIAlign, where mmcv has none of its own.
mmengine retries a refused checkpoint with ``weights_only=False``. Without the fourth change, types
of our configs resolve in a registry ``cpvt_backbones``, which knows no detector, and a clone that
is not installed has no configs. The first finder is there beside transformers 5 only: mmpretrain
fails with "NoneType takes no arguments", and with it mmdet and mmseg.

The second and the last two changes are mmengine's own means: ``register_scheme(force=True)``, a
table and ``register_handler``.
"""

import importlib.util
import os
import sys
import warnings
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml
from mmengine.config import Config
from mmengine.config.utils import MODULE2PACKAGE
from mmengine.fileio import YamlHandler, register_handler
from mmengine.runner import CheckpointLoader
from mmengine.runner import checkpoint as mmengine_checkpoint
from mmengine.utils import is_installed

from cpvt_backbones.errors import InputError

from .checkpoints.mmengine_loader import SCHEMES, load_from_cpvt_backbones, load_state_dict_whole
from .weights import repository_file

OPERATORS_VARIABLE = 'CPVT_MMCV_OPERATORS'
_OPERATORS = Path(__file__).with_name('engine') / 'mmcv_operators.py'


def apply() -> None:
    """Make all the changes; ``import cpvt_backbones`` calls it once."""
    provide_operators()
    replace_loader()
    refuse_random_parts()
    find_own_configs()
    leave_out_multimodal()
    find_mmseg(MODULE2PACKAGE)
    read_yaml_as_data()


class OperatorFinder(MetaPathFinder):
    """Finds ``mmcv._ext`` in ``engine/mmcv_operators.py``.

    It is asked only where mmcv has no compiled one, and imports neither mmcv nor torchvision before
    that.
    """

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """A spec of ``mmcv._ext``, unless the environment variable refuses it."""
        if fullname != 'mmcv._ext':
            return None
        if os.environ.get(OPERATORS_VARIABLE) == 'compiled':
            # Not an exception: mmengine asks for this module to learn whether the operators are
            # there.
            warnings.warn(
                f'{OPERATORS_VARIABLE}=compiled, and mmcv has no compiled operators',
                RuntimeWarning,
                stacklevel=2,
            )
            return None
        return importlib.util.spec_from_file_location(fullname, _OPERATORS)


def provide_operators() -> None:
    """Append an :class:`OperatorFinder` to ``sys.meta_path``.

    Raises:
        ValueError: The environment's ``CPVT_MMCV_OPERATORS`` is neither 'auto' nor 'compiled'.
    """
    choice = os.environ.get(OPERATORS_VARIABLE, 'auto')
    if choice not in ('auto', 'compiled'):
        accepted = "must be 'auto' or 'compiled'"
        raise InputError(f'environment variable {OPERATORS_VARIABLE} {accepted}, got {choice!r}')
    if not any(isinstance(finder, OperatorFinder) for finder in sys.meta_path):
        sys.meta_path.append(OperatorFinder())
    for toolbox in ('mmdet', 'mmseg'):
        if f'{toolbox}.models' in sys.modules and 'mmcv.ops' not in sys.modules:
            advice = (
                f'{toolbox} was imported before mmcv had operators and lacks them: import'
                ' cpvt_backbones first'
            )
            warnings.warn(advice, RuntimeWarning, stacklevel=2)


def replace_loader() -> None:
    """Let mmengine open checkpoints by :func:`load_from_cpvt_backbones`, which runs nothing."""
    CheckpointLoader.register_scheme(SCHEMES, load_from_cpvt_backbones, force=True)


def refuse_random_parts() -> None:
    """Let mmengine load whole models by :func:`load_state_dict_whole`.

    mmengine's loader calls the function by its name in its module, and so do the toolboxes'
    inferencers through it.
    """
    load = mmengine_checkpoint.load_state_dict
    if not isinstance(load, partial):  # not called before
        mmengine_checkpoint.load_state_dict = partial(load_state_dict_whole, load)


def find_own_configs() -> None:
    """Let ``_base_ = 'cpvt_backbones::NAME'`` name a file in ``configs/``.

    An entry of ``MODULE2PACKAGE`` would find the files of an installed package, and give their
    dicts ``_scope_='cpvt_backbones'``. This gives none: their types are those of the config's
    ``default_scope``. ``'mmdet::NAME'`` is the file that mmengine finds, without its metafiles.
    """
    get_path = Config._get_cfg_path
    if get_path.__module__ == __name__:  # called before
        return

    def get_cfg_path(cfg_path: str, filename: str) -> tuple[str, str | None]:
        scope, _, name = cfg_path.partition('::')
        if scope == 'cpvt_backbones':
            return str(repository_file(f'configs/{name}')), None
        file = _toolbox_file(scope, name) if scope in MODULE2PACKAGE and name else None
        return get_path(cfg_path, filename) if file is None else (str(file), scope)

    Config._get_cfg_path = staticmethod(get_cfg_path)


def _toolbox_file(scope: str, name: str) -> Path | None:
    """A config of a toolbox, if it is there."""
    spec = importlib.util.find_spec(scope)
    for folder in (spec and spec.submodule_search_locations) or ():
        file = Path(folder, '.mim', 'configs', name)
        if file.is_file():
            return file
    return None


class _WithoutMultimodal(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        module.WITH_MULTIMODAL = False  # type: ignore[attr-defined]


class MultimodalFinder(MetaPathFinder):
    """Finds ``mmpretrain.utils.dependency``, with a loader that says that nothing is there for
    multimodal models.

    mmpretrain then registers placeholders for them, as without transformers.
    """

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """A spec of that module, or ``None`` for all others."""
        if fullname != 'mmpretrain.utils.dependency':
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _WithoutMultimodal(spec.loader.name, spec.loader.path)
        return spec


def leave_out_multimodal() -> None:
    """Insert a :class:`MultimodalFinder` into ``sys.meta_path`` beside transformers 5.

    mmpretrain's multimodal models need transformers 4.
    """
    try:
        release = str(version('transformers')).partition('.')[0]  # None if half installed
    except PackageNotFoundError:
        return
    if not release.isdigit() or int(release) < 5:
        return
    if not any(isinstance(one, MultimodalFinder) for one in sys.meta_path):
        sys.meta_path.insert(0, MultimodalFinder())


def find_mmseg(packages: dict[str, str]) -> None:
    """Let mmengine find ``mmseg::`` by the module where the original is not installed.

    The maintained fork is the distribution onedl-mmsegmentation.

    Args:
        packages: mmengine's ``MODULE2PACKAGE``, the distribution of each module; changed in place.
    """
    if not is_installed('mmsegmentation') and importlib.util.find_spec('mmseg') is not None:
        packages['mmseg'] = 'mmseg'


# The loader in C is ten times as fast, and mmdet has 90 metafiles.
_SafeLoader: Any = getattr(yaml, 'CSafeLoader', yaml.SafeLoader)


class _DataLoader(_SafeLoader):
    """YAML's plain data, and tuples, which mmengine writes with a tag of Python."""

    def construct_tuple(self, node: yaml.SequenceNode) -> tuple[Any, ...]:
        return tuple(self.construct_sequence(node, deep=True))


_DataLoader.add_constructor('tag:yaml.org,2002:python/tuple', _DataLoader.construct_tuple)


class DataYamlHandler(YamlHandler):
    """mmengine's handler of YAML, without tags of Python such as ``!!python/object/apply``."""

    def load_from_fileobj(self, file: Any, **options: Any) -> Any:
        """Plain data and tuples; raises ``yaml.YAMLError`` for other tags."""
        return super().load_from_fileobj(file, **{'Loader': _DataLoader, **options})


def read_yaml_as_data() -> None:
    """Let mmengine read YAML files, configs among them, by :class:`DataYamlHandler`."""
    register_handler(['yaml', 'yml'])(DataYamlHandler)
