"""Training and testing any mm config: one path for detection, segmentation and classification.

What differs between the toolboxes is the table ``TOOLBOXES``; everything else is mmengine's Runner.
"""

import os
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.registry import RUNNERS
from mmengine.runner import Runner


@dataclass(frozen=True)
class Toolbox:
    """How one mm toolbox differs from the others.

    Args:
        package: What to import; also the registry scope.
        extra: The extra of this package that installs it.
        task: What its configs do.
        visualization: Its hook that draws test results, switched on.
        show_dir: Where that hook's output folder is set, dotted, from the config's root.
        out: How it writes test results: the entry added to the evaluator, or the option set in it, with ``{out}``
            for the path.
        out_suffixes: Endings that the path may have; none for a folder.
    """

    package: str
    extra: str
    task: str
    visualization: dict[str, Any]
    show_dir: str
    out: dict[str, Any]
    out_suffixes: tuple[str, ...]


_PICKLE = ('.pkl', '.pickle')
TOOLBOXES = {
    toolbox.package: toolbox
    for toolbox in (
        Toolbox(
            package='mmdet',
            extra='det',
            task='detection',
            visualization=dict(type='DetVisualizationHook', draw=True),
            show_dir='default_hooks.visualization.test_out_dir',
            out=dict(type='DumpDetResults', out_file_path='{out}'),
            out_suffixes=_PICKLE,
        ),
        Toolbox(
            package='mmseg',
            extra='seg',
            task='segmentation',
            visualization=dict(type='SegVisualizationHook', draw=True, interval=1),
            show_dir='visualizer.save_dir',
            out=dict(output_dir='{out}'),
            out_suffixes=(),
        ),
        Toolbox(
            package='mmpretrain',
            extra='cls',
            task='classification',
            visualization=dict(type='VisualizationHook', enable=True, interval=1),
            show_dir='default_hooks.visualization.out_dir',
            out=dict(type='DumpResults', out_file_path='{out}'),
            out_suffixes=_PICKLE,
        ),
    )
}


def read_config(
    path: str | os.PathLike[str],
    *,
    cfg_options: dict[str, Any] | None = None,
    work_dir: str | os.PathLike[str] | None = None,
    launcher: str = 'none',
) -> Config:
    """Read a config as the command line tools do.

    Args:
        path: The config file.
        cfg_options: Values to override, keyed by dotted name.
        work_dir: Where logs and checkpoints go. Without it: the config's own ``work_dir``, else
            ``work_dirs/<name of the config>``.
        launcher: mmengine's launcher: none, pytorch, slurm or mpi.

    Returns:
        mmengine.config.Config: The config, its toolbox checked.

    Raises:
        FileNotFoundError: No such file.
        ValueError: ``default_scope`` names no toolbox.
        ImportError: The toolbox is not installed.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f'config: there is no file {str(path)!r}')
    cfg = Config.fromfile(str(path))
    cfg.merge_from_dict(cfg_options or {})
    cfg.launcher = launcher
    if work_dir is not None:
        cfg.work_dir = str(work_dir)
    elif cfg.get('work_dir') is None:
        cfg.work_dir = str(Path('work_dirs', Path(path).stem))
    find_toolbox(cfg)
    return cfg


def find_toolbox(cfg: Config) -> Toolbox:
    """The toolbox that a config is written for, imported.

    Args:
        cfg: A config with ``default_scope``.

    Returns:
        Toolbox: Its entry of ``TOOLBOXES``.

    Raises:
        ValueError: ``default_scope`` is missing or names no toolbox.
        ImportError: The toolbox is not installed.
    """
    scope = cfg.get('default_scope')
    if scope not in TOOLBOXES:
        found = 'is missing from the config' if scope is None else f'is {scope!r}'
        accepted = ', '.join(f'{name!r} ({toolbox.task})' for name, toolbox in TOOLBOXES.items())
        raise ValueError(f'default_scope {found}: it says which toolbox runs the config; accepted are {accepted}')
    toolbox = TOOLBOXES[scope]
    try:
        import_module(toolbox.package)
    except ImportError as error:
        raise ImportError(
            f'default_scope is {scope!r}, and {scope} does not import ({error}): '
            f"pip install 'cpvt_backbones[{toolbox.extra}]'"
        ) from error
    return toolbox


def train(cfg: Config, *, resume: str | None = None, amp: bool = False, auto_scale_lr: bool = False) -> Runner:
    """Train what a config describes.

    Args:
        cfg: From :func:`read_config`; changed in place.
        resume: ``'auto'`` goes on from the newest checkpoint of the work dir, or starts when there is none; anything
            else is the checkpoint to go on from; ``None`` starts afresh.
        amp: Train in mixed precision.
        auto_scale_lr: Scale the learning rate with the batch size, from ``auto_scale_lr.base_batch_size``.

    Returns:
        mmengine.runner.Runner: The runner, after training.

    Raises:
        FileNotFoundError: The checkpoint to resume from is not there.
        ValueError: ``auto_scale_lr`` without a base batch size in the config.
    """
    if amp:
        cfg.optim_wrapper.type = 'AmpOptimWrapper'
        cfg.optim_wrapper.setdefault('loss_scale', 'dynamic')
    if auto_scale_lr:
        if 'base_batch_size' not in cfg.get('auto_scale_lr', {}):
            raise ValueError(
                'auto_scale_lr: the config has no auto_scale_lr.base_batch_size, the batch size (all GPUs together) '
                "that optim_wrapper's learning rate belongs to"
            )
        cfg.auto_scale_lr.enable = True
    if resume == 'auto':
        cfg.resume, cfg.load_from = True, None
    elif resume is not None:
        cfg.resume, cfg.load_from = True, _existing('resume', resume)
    runner = _build_runner(cfg)
    runner.train()
    return runner


def test(
    cfg: Config,
    *,
    checkpoint: str | os.PathLike[str],
    out: str | None = None,
    show_dir: str | None = None,
) -> dict[str, float]:
    """Evaluate a checkpoint on a config's test set.

    Args:
        cfg: From :func:`read_config`; changed in place.
        checkpoint: The weights.
        out: Where to write the predictions: a ``.pkl`` file for detection and classification, a folder of index maps
            (PNG) for segmentation.
        show_dir: Folder for pictures of the predictions, as the toolbox draws them.

    Returns:
        dict: The metrics.

    Raises:
        FileNotFoundError: No such checkpoint.
        ValueError: ``out`` has the wrong ending.
    """
    toolbox = find_toolbox(cfg)
    cfg.load_from = _existing('checkpoint', checkpoint)
    if show_dir is not None:
        hook = {**cfg.get('default_hooks', {}).get('visualization', {}), **toolbox.visualization}
        cfg.merge_from_dict({'default_hooks.visualization': hook, toolbox.show_dir: show_dir})
    if out is not None:
        _write_predictions(cfg, toolbox, out)
    return _build_runner(cfg).test()


def _write_predictions(cfg: Config, toolbox: Toolbox, out: str) -> None:
    if Path(out).suffix not in (toolbox.out_suffixes or ('',)):
        accepted = ' or '.join(toolbox.out_suffixes) + ' file' if toolbox.out_suffixes else 'folder'
        raise ValueError(f'out: {toolbox.package} writes predictions to a {accepted}, got {out!r}')
    options = {key: value.format(out=out) for key, value in toolbox.out.items()}
    if 'type' not in options:
        cfg.merge_from_dict({f'test_evaluator.{key}': value for key, value in options.items()})
        return
    evaluators = cfg.test_evaluator if isinstance(cfg.test_evaluator, (list, tuple)) else [cfg.test_evaluator]
    cfg.test_evaluator = [*evaluators, options]


def _existing(argument: str, path: str | os.PathLike[str]) -> str:
    # Addresses (https://, s3://) are mmengine's to fetch.
    if '://' not in str(path) and not Path(path).is_file():
        raise FileNotFoundError(f'{argument}: there is no file {str(path)!r}')
    return str(path)


def _build_runner(cfg: Config) -> Runner:
    return RUNNERS.build(cfg) if 'runner_type' in cfg else Runner.from_cfg(cfg)
