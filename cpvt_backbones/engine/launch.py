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

from cpvt_backbones.checkpoints import load_weights
from cpvt_backbones.weights import shipped_file

from .config_scope import without_own_scope


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


AMP_DTYPES = ('float16', 'bfloat16')
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
    cfg = without_own_scope(Config.fromfile(str(path)))
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


def train(
    cfg: Config,
    *,
    resume: str | None = None,
    amp: bool = False,
    amp_dtype: str = 'float16',
    auto_scale_lr: bool = False,
) -> Runner:
    """Train what a config describes.

    Args:
        cfg: From :func:`read_config`; changed in place.
        resume: ``'auto'`` goes on from the newest checkpoint of the work dir, or starts when there is none; anything
            else is the checkpoint to go on from; ``None`` starts afresh.
        amp: Train in mixed precision.
        amp_dtype: The half precision that ``amp`` uses: ``'float16'`` (with loss scaling) or ``'bfloat16'``.
        auto_scale_lr: Scale the learning rate with the batch size, from ``auto_scale_lr.base_batch_size``.

    Returns:
        mmengine.runner.Runner: The runner, after training.

    Raises:
        FileNotFoundError: The checkpoint to resume from is not there.
        ValueError: ``auto_scale_lr`` without a base batch size in the config; an unknown ``amp_dtype``; ``amp`` with an
            optimizer wrapper that has its own precision.
    """
    if amp:
        use_amp(cfg, amp_dtype)
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
    elif cfg.get('load_from'):
        cfg.load_from = _existing('load_from', cfg.load_from)
    runner = _build_runner(cfg)
    runner.train()
    return runner


def test(
    cfg: Config,
    *,
    checkpoint: str | os.PathLike[str],
    out: str | None = None,
    show_dir: str | None = None,
    tta: bool = False,
) -> dict[str, float]:
    """Evaluate a checkpoint on a config's test set.

    Args:
        cfg: From :func:`read_config`; changed in place.
        checkpoint: The weights: a file, or the name of weights that come with the package.
        out: Where to write the predictions: a ``.pkl`` file for detection and classification, a folder of index maps
            (PNG) for segmentation.
        show_dir: Folder for pictures of the predictions, as the toolbox draws them.
        tta: Test-time augmentation, as the config's ``tta_model`` and ``tta_pipeline`` say.

    Returns:
        dict: The metrics.

    Raises:
        FileNotFoundError: No such checkpoint.
        ValueError: ``out`` has the wrong ending; the config has no ``tta_model`` or ``tta_pipeline``; the checkpoint
            lacks weights of the model, or has them in other shapes.
    """
    toolbox = find_toolbox(cfg)
    cfg.load_from = _existing('checkpoint', checkpoint)
    if show_dir is not None:
        hook = {**cfg.get('default_hooks', {}).get('visualization', {}), **toolbox.visualization}
        cfg.merge_from_dict({'default_hooks.visualization': hook, toolbox.show_dir: show_dir})
    if out is not None:
        _write_predictions(cfg, toolbox, out)
    if tta:
        _use_tta(cfg)
    runner = _build_runner(cfg)
    if isinstance(runner, Runner):
        load_weights(runner.model, cfg.load_from)
    return runner.test()


def use_amp(cfg: Config, dtype: str) -> None:
    """Make a config train in mixed precision.

    Args:
        cfg: From :func:`read_config`; changed in place.
        dtype: ``'float16'`` (with loss scaling) or ``'bfloat16'``.

    Raises:
        ValueError: An unknown ``dtype``; an optimizer wrapper that has its own precision.
    """
    if dtype not in AMP_DTYPES:
        raise ValueError(f'amp_dtype must be one of {AMP_DTYPES}, got {dtype!r}')
    kind = cfg.optim_wrapper.get('type', 'OptimWrapper')
    if kind not in ('OptimWrapper', 'AmpOptimWrapper'):
        raise ValueError(f"amp: optim_wrapper.type must be 'OptimWrapper', got {kind!r}, which has its own precision")
    cfg.optim_wrapper.type = 'AmpOptimWrapper'
    cfg.optim_wrapper.dtype = dtype
    # bfloat16 has float32's range: there is nothing to scale.
    cfg.optim_wrapper.setdefault('loss_scale', 'dynamic' if dtype == 'float16' else 1.0)


def _use_tta(cfg: Config) -> None:
    for key in ('tta_model', 'tta_pipeline'):
        if cfg.get(key) is None:
            raise ValueError(f'tta: the config has no {key}')
    cfg.model = {**cfg.tta_model, 'module': cfg.model}
    cfg.test_dataloader.dataset.pipeline = cfg.tta_pipeline


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
    if '://' in str(path):
        return str(path)
    file = shipped_file(path)
    if not file.is_file():
        raise FileNotFoundError(f'{argument}: there is no file {str(path)!r}')
    return str(file)


def _build_runner(cfg: Config) -> Runner:
    return RUNNERS.build(cfg) if 'runner_type' in cfg else Runner.from_cfg(cfg)
