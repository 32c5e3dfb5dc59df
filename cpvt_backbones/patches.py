"""All uses and changes of other packages' internals.

:data:`CONTACTS` lists what is changed, and which undocumented names are used. :func:`apply` makes
the changes when the package is imported. All other code uses documented interfaces.
"""

import importlib.util
import logging
import os
import sys
import warnings
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

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


class Contact(NamedTuple):
    """Internals of another package that this one changes or uses.

    Attributes:
        package: The other package.
        changed: What is changed for the whole process; empty for no change.
        used: Undocumented names that are used.
        why: What they are needed for.
        without: What breaks without them.
        until: Version or event that makes the contact unnecessary.
    """

    package: str
    changed: str
    used: tuple[str, ...]
    why: str
    without: str
    until: str


CONTACTS = (
    Contact(
        'mmcv',
        'a finder at the end of sys.meta_path',
        ('_ext', '_roi_align_backward', '_deform_conv2d_backward'),
        "operators such as NMS and RoIAlign by torchvision's kernels, if mmcv has none compiled",
        'mmdet and mmseg do not import',
        'mmcv has wheels for current versions of torch',
    ),
    Contact(
        'mmengine',
        'CheckpointLoader (by register_scheme), load_state_dict of mmengine.runner.checkpoint',
        ('_get_mmengine_home',),
        'mmengine and the toolboxes open checkpoints through this package',
        'a refused checkpoint is reopened and may run code; init_model leaves a trunk random',
        'mmengine loads with weights_only=True, and refuses missing weights',
    ),
    Contact(
        'mmengine',
        'Config._get_cfg_path, MODULE2PACKAGE, the handler of YAML files (by register_handler)',
        ('_get_cfg_path', '_cfg_dict'),
        "_base_ = 'cpvt_backbones::...' and 'mmseg::...'; YAML is read as plain data",
        'bases are not found, or read 102 metafiles; a tag in a YAML file runs any function',
        'mmengine lets a package name its folder of configs, and reads YAML by a safe loader',
    ),
    Contact(
        'mmpretrain',
        'a finder at the start of sys.meta_path, beside transformers 5',
        ('_get_loss',),
        'mmpretrain without its multimodal models; the loss of a student by its head',
        'no toolbox imports beside transformers 5; distillation has no loss of the labels',
        'mmpretrain supports transformers 5, and offers the loss of given scores',
    ),
    Contact(
        'Pillow',
        'a filter of its TIFF logger',
        (),
        'TIFFs of more than six bands, which rasterio reads',
        'an error is logged for each header of such a file',
        'Pillow raises without logging',
    ),
    Contact(
        'mmengine',
        '',
        (
            '_resume',
            '_load_from',
            '_has_loaded',
            '_train_loop',
            '_epoch',
            '_iter',
            '_decide_current_val_interval',
            '_accumulative_counts',
            '_global_step',
            '_save_checkpoint_with_step',
            '_save_best_checkpoint',
            '_init_rule',
            '_strategy',
            '_ParamScheduler',
        ),
        'runners, loops, the checkpoint hook and FSDP go on where a checkpoint ends; a schedule',
        'a resumed training ends with other weights; EoMT has no schedule by part',
        'mmengine resumes exactly, and documents a base of schedules',
    ),
    Contact(
        'mmengine',
        '',
        ('_params_init_info', '_log_history', '_count_history'),
        'the record of initialised parameters; histories of a checkpoint without pickle',
        'the log calls loaded weights random; a training has no history after a resume',
        'mmengine offers setters',
    ),
    Contact(
        'mmdet',
        '',
        ('_get_targets_single',),
        'heads with queries leave ignored objects out of the loss',
        'ignored objects are trained as background',
        'mmdet hands ignored objects to the targets of these heads',
    ),
    Contact(
        'mmengine, mmdet',
        '',
        ('_indices', '_enable_normalize', '_fully_initialized', '_coco_api'),
        'data sets that are cut, annotations of a metric, whether a preprocessor normalises',
        'classes of annotations and mean of images are not compared; images are decoded twice',
        'data sets, metrics and data preprocessors offer these values',
    ),
    Contact(
        'torch',
        '',
        ('_metadata', '_register_load_state_dict_pre_hook', '_NormBase', '_pytree'),
        'state dicts that know their file; tables that are resized on loading; precision by layer',
        'messages do not name the file; old checkpoints do not load',
        'torch 2.5 for the hook',
    ),
    Contact(
        'torch',
        '',
        (
            '_symbolic_trace',
            '_is_fx_tracing_flag',
            '_C',
            '_get_tracing_state',
            '_inductor',
            '_sympy',
            '_assert_scalar',
        ),
        'tracing is noticed; exported graphs take any size',
        'a traced or exported model has the size of its example',
        'torch.compiler tells of every kind of tracing, and AOTInductor leaves torch._inductor',
    ),
    Contact(
        'timm',
        '',
        ('_features',),
        'feature_take_indices, the rule for negative indices of features',
        'features_only takes other layers than for models of timm',
        'timm.models exports it',
    ),
)
"""All contacts; a test finds undocumented names in the code and counts them."""

OPERATORS_VARIABLE = 'CPVT_MMCV_OPERATORS'
_OPERATORS = Path(__file__).with_name('engine') / 'mmcv_operators.py'


def apply() -> None:
    """Make all changes; ``import cpvt_backbones`` calls this function once."""
    provide_operators()
    replace_loader()
    refuse_random_parts()
    find_own_configs()
    leave_out_multimodal()
    find_mmseg(MODULE2PACKAGE)
    read_yaml_as_data()
    silence_tiff_headers()


class OperatorFinder(MetaPathFinder):
    """Import finder that provides ``engine/mmcv_operators.py`` as ``mmcv._ext``.

    Python asks it only if mmcv has no compiled module. It imports neither mmcv nor torchvision
    before that.
    """

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """Return a spec for ``mmcv._ext``, unless the environment variable forbids it."""
        if fullname != 'mmcv._ext':
            return None
        if os.environ.get(OPERATORS_VARIABLE) == 'compiled':
            # No exception, because mmengine looks for this module to find out if operators exist.
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
        ValueError: ``CPVT_MMCV_OPERATORS`` in the environment is neither 'auto' nor 'compiled'.
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
    """Make mmengine open checkpoints by :func:`load_from_cpvt_backbones`, which runs nothing."""
    CheckpointLoader.register_scheme(SCHEMES, load_from_cpvt_backbones, force=True)


def refuse_random_parts() -> None:
    """Make mmengine load whole models by :func:`load_state_dict_whole`.

    mmengine's loader looks the function up in its module, also for the toolboxes' inferencers.
    """
    load = mmengine_checkpoint.load_state_dict
    if not isinstance(load, partial):  # not called before
        mmengine_checkpoint.load_state_dict = partial(load_state_dict_whole, load)


def find_own_configs() -> None:
    """Make ``_base_ = 'cpvt_backbones::NAME'`` refer to a file in ``configs/``.

    With an entry in ``MODULE2PACKAGE``, mmengine would find only installed files and give their
    dicts ``_scope_='cpvt_backbones'``. Without a scope, types resolve in the config's
    ``default_scope``. ``'mmdet::NAME'`` stays the file that mmengine finds, without its metafiles.
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
    """Return a config of a toolbox if it exists."""
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
    """Import finder whose ``mmpretrain.utils.dependency`` reports no multimodal packages.

    mmpretrain then registers placeholders for multimodal models, as without transformers.
    """

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """Return a spec for that module, and ``None`` for others."""
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
    """Make mmengine find ``mmseg::`` by the module if the original package is not installed.

    The maintained fork is the distribution onedl-mmsegmentation.

    Args:
        packages: mmengine's ``MODULE2PACKAGE``, distributions by module; changed in place.
    """
    if not is_installed('mmsegmentation') and importlib.util.find_spec('mmseg') is not None:
        packages['mmseg'] = 'mmseg'


# The C loader is ten times as fast, and mmdet has 90 metafiles.
_SafeLoader: Any = getattr(yaml, 'CSafeLoader', yaml.SafeLoader)


class _DataLoader(_SafeLoader):
    """YAML loader for plain data, and for tuples, which mmengine writes with a Python tag."""

    def construct_tuple(self, node: yaml.SequenceNode) -> tuple[Any, ...]:
        return tuple(self.construct_sequence(node, deep=True))


_DataLoader.add_constructor('tag:yaml.org,2002:python/tuple', _DataLoader.construct_tuple)


class DataYamlHandler(YamlHandler):
    """mmengine's YAML handler without Python tags such as ``!!python/object/apply``."""

    def load_from_fileobj(self, file: Any, **options: Any) -> Any:
        """Read plain data and tuples; raise ``yaml.YAMLError`` for other tags."""
        return super().load_from_fileobj(file, **{'Loader': _DataLoader, **options})


def read_yaml_as_data() -> None:
    """Make mmengine read YAML files, including configs, by :class:`DataYamlHandler`."""
    register_handler(['yaml', 'yml'])(DataYamlHandler)


def silence_tiff_headers() -> None:
    """Drop an error that Pillow logs for each TIFF with more than six bands."""
    logging.getLogger('PIL.TiffImagePlugin').addFilter(_is_no_header)


def _is_no_header(record: logging.LogRecord) -> bool:
    return 'More samples per pixel' not in record.getMessage()
