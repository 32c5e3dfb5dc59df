"""Differences between mmdet, mmsegmentation and mmpretrain, and reading of configs.

Training, prediction and analysis share this module.
"""

import inspect
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from mmengine.config import Config
from mmengine.fileio import list_from_file
from mmengine.runner import FlexibleRunner, Runner
from torch import nn

from cpvt_backbones.checkpoints import classes_of, published_of, unwrap
from cpvt_backbones.checks import check_path
from cpvt_backbones.errors import InputError, InputTypeError
from cpvt_backbones.plain import did_you_mean

ConfigInput: TypeAlias = Config | str | os.PathLike[str]
"""A config: the path of its file, or the result of :func:`read_config`."""


class Toolbox(NamedTuple):
    """Properties in which the toolboxes differ."""

    package: str  # import name and registry scope
    extra: str  # extra of this package that installs it
    task: str  # of its models, as a Predictor says it
    visualization: dict[str, Any]  # hook that draws test results
    show_dir: str  # dotted config key of the hook's output folder
    # Metric that writes predictions to a pickle file; None: the toolbox's metric writes a folder.
    dump: str | None


DRAWING_HOOK = 'default_hooks.visualization'
TOOLBOXES = {
    'mmdet': Toolbox(
        package='mmdet',
        extra='det',
        task='detection',
        visualization=dict(type='DetVisualizationHook', draw=True),
        show_dir=f'{DRAWING_HOOK}.test_out_dir',
        dump='DumpDetResults',
    ),
    'mmseg': Toolbox(
        package='mmseg',
        extra='seg',
        task='segmentation',
        visualization=dict(type='SegVisualizationHook', draw=True, interval=1),
        show_dir='visualizer.save_dir',
        dump=None,
    ),
    'mmpretrain': Toolbox(
        package='mmpretrain',
        extra='cls',
        task='classification',
        visualization=dict(type='VisualizationHook', enable=True, interval=1),
        show_dir=f'{DRAWING_HOOK}.out_dir',
        dump='DumpResults',
    ),
}

SIZE_ARGUMENTS = {
    'Resize': ('scale', 'scale_factor'),
    'FixScaleResize': ('scale', 'scale_factor'),
    'FixShapeResize': ('width', 'height'),
    'ResizeEdge': ('scale',),
    'ResizeShortestEdge': ('scale', 'max_size'),
    'ResizeToMultiple': (),
    'CenterCrop': ('crop_size',),
    'EfficientNetCenterCrop': ('crop_size', 'crop_padding'),
    'Pad': ('size',),
}
"""Step names of test pipelines, and the arguments of each that are sizes in px or factors."""

_READ_FROM_CFG = (
    'activation_checkpointing',
    'compile',
    'custom_imports',
    'efficient_conv_bn_eval',
    'find_unused_parameters',
    'init_weights_for_test_or_val',
    'model_wrapper_cfg',
    'runner_type',
    'sync_bn',
    'tta_model',
    'tta_pipeline',
)


def _arguments(runner: type) -> set[str]:
    return {*inspect.signature(runner).parameters} - {'cfg'}


# Arguments of mmengine's runners, and further keys that these, mmengine's Config and
# tools/test.py --tta read.
READ_KEYS = frozenset(_arguments(Runner) | _arguments(FlexibleRunner) | {*_READ_FROM_CFG})


def read_config(
    path: str | os.PathLike[str],
    *,
    cfg_options: dict[str, Any] | None = None,
    work_dir: str | os.PathLike[str] | None = None,
    launcher: str = 'none',
) -> Config:
    """Read a config file of mmdet, mmsegmentation or mmpretrain, and import the toolbox.

    Args:
        path: The config file.
        cfg_options: Values to override, by dotted name, such as ``{'train_cfg.max_epochs': 5}``.
        work_dir: Folder of logs and checkpoints. ``None`` takes the config's own or else
            ``work_dirs/<name of the config>``.
        launcher: mmengine's launcher: ``'none'``, ``'pytorch'``, ``'slurm'`` or ``'mpi'``.

    Returns:
        mmengine's config, for :class:`Inferencer` and other functions.

    Raises:
        FileNotFoundError: The file does not exist.
        ImportError: The toolbox is not installed, or its import fails.
        ValueError: The file is not a valid config, its ``default_scope`` is not a toolbox, or an
            option has no effect.

    Examples:
        >>> from cpvt_backbones.inference import read_config
        >>> from cpvt_backbones.weights import find_shipped
        >>> shipped = find_shipped('cpvt_tiny_gap-imagenette')
        >>> cfg = read_config(
        ...     shipped.config_file,  # or 'config.py'
        ...     cfg_options={'train_dataloader.batch_size': 8},
        ... )
        >>> cfg.model.backbone.type, cfg.train_dataloader.batch_size
        ('CPVT', 8)
    """
    check_path(path=path)
    if not Path(path).is_file():
        raise FileNotFoundError(f'there is no config file {str(path)!r}')
    options = cfg_options or {}
    try:
        cfg = Config.fromfile(str(path))
    except Exception as error:  # a config is Python code, which may raise anything
        raise InputError(
            f'the config file {str(path)!r} cannot be read: {type(error).__name__}: {error}'
        ) from error
    check_options(options)
    try:
        cfg.merge_from_dict(options)
    except (KeyError, TypeError) as error:
        raise InputError(
            f'cfg_options: {type(error).__name__}: {error}', argument='cfg_options'
        ) from error
    cfg.launcher = launcher
    cfg.work_dir = str(work_dir or cfg.get('work_dir') or Path('work_dirs', Path(path).stem))
    find_toolbox(cfg)
    return cfg


def resolve_config(cfg: ConfigInput) -> Config:
    """Return a config unchanged, or read its file by :func:`read_config`.

    Raises:
        TypeError: The value is neither a config nor a path.
    """
    if isinstance(cfg, (str, os.PathLike)):
        return read_config(cfg)
    if not isinstance(cfg, Config):
        accepted = 'the path of a config file, or what read_config returns'
        raise InputTypeError(f'cfg must be {accepted}, got {type(cfg).__name__}')
    return cfg


def find_toolbox(cfg: Config) -> Toolbox:
    """Import the toolbox of a config's ``default_scope``; :func:`read_config` lists the errors."""
    scope = cfg.get('default_scope')
    if scope not in TOOLBOXES:
        found = 'is missing from the config' if scope is None else f'is {scope!r}'
        accepted = ', '.join(map(repr, TOOLBOXES))
        raise InputError(
            f'default_scope {found}: it names the toolbox that runs the config; accepted are'
            f' {accepted}'
        )
    toolbox = TOOLBOXES[scope]
    try:
        import_module(toolbox.package)
    except Exception as error:  # of a toolbox whose own dependencies do not fit
        install = f"pip install '.[{toolbox.extra}]' in a clone of this package"
        raise ImportError(
            f'default_scope is {scope!r}, and {scope} cannot be imported'
            f' ({type(error).__name__}: {error}): {install}'
        ) from error
    return toolbox


def check_model(cfg: Config) -> None:
    """Raise ``ValueError`` for a config without a model."""
    if not isinstance(cfg.get('model'), dict):
        raise InputError(f'the config {str(cfg.filename)!r} has no model: model = dict(type=...)')


def check_options(options: Collection[str]) -> None:
    """Refuse options (dotted names) that no runner reads, because they would have no effect.

    The top level of a config also holds variables of its file. Their values were copied when the
    file was read, so a later change does not affect the copies.

    Raises:
        ValueError: The first part of an option is not a setting of a runner, or is ``launcher``.
    """
    for option in options:
        name = option.partition('.')[0]
        fault = None
        if name == 'launcher':
            fault = 'launcher is a separate argument'
        elif name not in READ_KEYS:
            used_in = _copy_of_pipeline(option)
            advice = f'; set {used_in}' if used_in else did_you_mean(name, READ_KEYS)
            advice = advice or '; set the keys that take its value, such as train_cfg.max_epochs'
            fault = f'{option} has no effect: a runner reads no {name}{advice}'
        if fault:
            raise InputError(f'cfg_options: {fault}', argument='cfg_options')


def _copy_of_pipeline(option: str) -> str | None:
    """Return the option that changes the pipeline which a file has named, as ``train_pipeline``."""
    name, *rest = option.split('.')
    loader = f'{name.removesuffix("_pipeline")}_dataloader'
    return '.'.join([loader, 'dataset.pipeline', *rest]) if loader in READ_KEYS else None


def dicts_of(node: Any) -> Iterator[dict[str, Any]]:
    """Yield all dicts of a config, outer ones first."""
    node = getattr(node, '_cfg_dict', node)
    children: Any = node if isinstance(node, (list, tuple)) else ()
    if isinstance(node, dict):
        yield node
        children = dict.values(node)  # the nodes; ConfigDict.values() builds lazy objects
    for child in children:
        yield from dicts_of(child)


def config_classes(cfg: Config) -> list[str] | None:
    """Return the class names that a config gives its test data set; ``None`` without names.

    Default names of the data set's type do not count, because they do not describe the model.
    """
    dataset = (cfg.get('test_dataloader') or {}).get('dataset') or {}
    while dataset.get('dataset') and not dataset.get('metainfo'):  # RepeatDataset and the like
        dataset = dataset['dataset']
    metainfo = dataset.get('metainfo') or {}
    names = dataset.get('classes') or metainfo.get('classes')
    if isinstance(names, str):  # a file with a name in each line, which mmengine reads
        return list_from_file(names) if Path(names).is_file() else None
    return classes_of(dict(classes=names))


def dataset_metainfo(cfg: Config) -> Mapping[str, Any]:
    """Return the default classes and palette of the test data set's type."""
    registry = import_module(f'{find_toolbox(cfg).package}.registry').DATASETS
    kind = registry.get(cfg.test_dataloader.dataset.type)
    metainfo: Mapping[str, Any] = getattr(kind, 'METAINFO', {})
    return metainfo


def published_classes(checkpoint: str) -> list[str] | None:
    """Return the class of each row in a published model's last layer.

    Args:
        checkpoint: Name of the model, or its cached file, which may not contain names. The result
            is ``None`` for other checkpoints.
    """
    published = published_of(checkpoint)
    if published is None:
        return None
    config = read_config(published.config_file)
    names = classes_of(dataset_metainfo(config))
    order = (config.model.get('panoptic_head') or {}).get('class_order')
    if names is None or order is None:
        return names
    rows = dict(zip(order, names, strict=True))
    return [rows[index] for index in range(len(names))]


def check_neck(model: nn.Module, settings: Any = None) -> None:
    """Compare the input channels of the neck, or of heads without a neck, with the backbone's maps.

    Args:
        model: The whole model. It passes if its backbone has no ``out_channels``.
        settings: The config of the model, for heads, and for necks that do not keep their
            ``in_channels``.

    Raises:
        ValueError: They differ; the message has both.
    """
    model = unwrap(model)
    given = getattr(getattr(model, 'backbone', None), 'out_channels', None)
    if not isinstance(given, Sequence):
        return
    settings = settings or {}
    neck = getattr(model, 'neck', None)
    if neck is None:
        for name in ('decode_head', 'auxiliary_head', 'panoptic_head'):
            heads = settings.get(name)
            if isinstance(heads, (list, tuple)):
                for number, head in enumerate(heads):
                    _check_head(f'{name}.{number}', head, list(given))
            else:
                _check_head(name, heads, list(given))
        return
    of_neck = settings.get('neck') or {}
    if isinstance(neck, nn.Sequential):  # a list of necks
        neck, of_neck = next(iter(neck), None), of_neck[0] if of_neck else {}
    taken = getattr(neck, 'in_channels', None) or of_neck.get('in_channels')
    if not isinstance(taken, Sequence):
        return
    # This neck takes the coarsest map first.
    wanted = list(given)[::-1] if type(neck).__name__ == 'YOLOV3Neck' else list(given)
    if wanted != list(taken):
        raise InputError(_channels_error('neck', wanted, list(taken)))


def _check_head(name: str, head: Any, given: list[int]) -> None:
    """Compare a head of mmseg, or of mmdet if it takes all maps, with the backbone's maps."""
    taken = head.get('in_channels') if isinstance(head, dict) else None
    if isinstance(taken, Sequence):
        indices = head.get('in_index') or range(len(given))
        fits = isinstance(indices, Sequence) and all(-len(given) <= i < len(given) for i in indices)
        wanted = [given[i] for i in indices] if fits else []
        if wanted and wanted != list(taken):
            raise InputError(_channels_error(name, wanted, list(taken)))
    elif isinstance(taken, int):
        index = head.get('in_index', -1)
        fits = isinstance(index, int) and -len(given) <= index < len(given)
        if fits and taken != given[index]:
            raise InputError(_channels_error(name, f'{given[index]} of {given}', taken))


def _channels_error(part: str, wanted: Any, taken: Any) -> str:
    of_maps = 'the channels of the maps of model.backbone'
    return f'model.{part}.in_channels must be {wanted}, {of_maps}, got {taken}'


def step_name(step: dict[str, Any]) -> str:
    """Return the name of a step without its scope: ``'Resize'`` for ``'mmcv.Resize'``."""
    kind = step['type']
    return kind.__name__ if isinstance(kind, type) else re.split(r'[./]', str(kind))[-1]
