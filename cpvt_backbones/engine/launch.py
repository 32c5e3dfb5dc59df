"""Training and testing of configs of all toolboxes by mmengine's Runner."""

import copy
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.dist import all_gather_object, is_main_process
from mmengine.hooks import Hook
from mmengine.logging import MMLogger, print_log
from mmengine.optim import OptimWrapper
from mmengine.registry import MODELS, OPTIM_WRAPPERS, RUNNERS
from mmengine.runner import EpochBasedTrainLoop, FlexibleRunner, Runner
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn
from torch import distributed, nn

from cpvt_backbones.checkpoints import (
    INTERRUPTED,
    FetchError,
    classes_of,
    load_weights,
    locate_checkpoint,
    newest_checkpoint,
    published_of,
    unwrap,
    warn_of_other_normalisation,
)
from cpvt_backbones.checks import check_choice
from cpvt_backbones.errors import InputError
from cpvt_backbones.plain import AMP_DTYPES, SHOWN_CLASSES
from cpvt_backbones.text import printable
from cpvt_backbones.toolboxes import DRAWING_HOOK, Toolbox, check_model, dicts_of, find_toolbox

from .class_names import check_folders, check_runner_classes
from .curves import LossCurveHook
from .runner import ResumableRunner
from .time_left import TimeLeftHook
from .training_checks import TrainingCheckHook, check_heads

REMOTE = ('timm://', 'hf://', 'mmpretrain://', 'https://', 'http://')


def train(
    cfg: Config,
    *,
    resume: str | None = None,
    amp: bool = False,
    amp_dtype: str | None = None,
    auto_scale_lr: bool = False,
    progress: bool = False,
) -> Runner:
    """Train the model of a config; return the runner.

    Args:
        cfg: Config from :func:`read_config`; changed in place.
        resume: Checkpoint to resume from; ``'auto'`` takes the newest one of the work directory. If
            there is none, the training starts anew, from the config's ``load_from``.
        amp: Train in mixed precision.
        amp_dtype: See :func:`use_amp`.
        auto_scale_lr: Scale the learning rate with the batch size, relative to
            ``auto_scale_lr.base_batch_size``.
        progress: Show a bar with the remaining time if stdout is a terminal.

    Raises:
        FileNotFoundError: The checkpoint to resume from does not exist.
        ValueError: ``auto_scale_lr`` finds no base batch size in the config, or weights, head,
            data sets or ``amp`` do not fit. :class:`TrainingCheckHook`,
            :class:`DurableCheckpointHook` and :func:`use_amp` list these errors.
    """
    check_model(cfg)
    if amp:
        use_amp(cfg, amp_dtype)
    elif get_device() == 'cpu':
        _fall_back_from_amp(cfg)
    if auto_scale_lr:
        _scale_rate(cfg)
    _check_packages(cfg, 'train_dataloader', 'val_dataloader', 'val_evaluator')
    _check_data(cfg, 'train_dataloader', 'val_dataloader')
    _find_weights(cfg, resume)
    runner = _build_runner(cfg)
    if isinstance(runner, Runner):
        if not any(isinstance(hook, TrainingCheckHook) for hook in runner.hooks):
            runner.register_hook(TrainingCheckHook())
        runner.register_hook(SummaryHook())
        runner.register_hook(LossCurveHook())
    if isinstance(runner, (Runner, FlexibleRunner)):
        runner.register_hook(TimeLeftHook())
    with _progress_bar(runner) if progress else nullcontext():
        runner.train()
    return runner


def _scale_rate(cfg: Config) -> None:
    if 'base_batch_size' not in cfg.get('auto_scale_lr', {}):
        raise InputError(
            'auto_scale_lr: the config has no auto_scale_lr.base_batch_size, the batch size of its'
            ' lr',
            argument='auto_scale_lr',
        )
    cfg.auto_scale_lr.enable = True
    # mmengine compares the images of one iteration on all processes with the base. An optimizer
    # step uses the images of all accumulated iterations.
    steps = cfg.optim_wrapper.get('accumulative_counts', 1)
    steps *= (cfg.get('strategy') or {}).get('gradient_accumulation_steps') or 1  # DeepSpeed's
    cfg.auto_scale_lr.base_batch_size /= steps


def _check_data(cfg: Config, *loaders: str) -> None:
    """Refuse missing data before weights are fetched and data sets are built."""
    for loader in loaders:
        for options in dicts_of(cfg.get(loader) or {}):
            root = options.get('data_root')
            backend = (options.get('backend_args') or {}).get('backend', 'local')
            if not root or backend != 'local' or '://' in str(root) or _is_unused(options):
                continue
            if not Path(root).is_dir():
                _check_build(cfg)
                raise InputError(f'{loader}.dataset.data_root: there is no folder {str(root)!r}')
            check_folders(options, f'{loader}.dataset')


def _check_build(cfg: Config) -> None:
    """Raise the error of a model that cannot be built, without allocating it.

    Users learn of a mistyped argument before they fetch the data, which may take hours.
    """
    # Weights that constructors fetch.
    if any(
        part.get(key) for part in dicts_of(cfg.model) for key in ('pretrained', 'language_model')
    ):
        return
    try:
        with torch.device('meta'), MODELS.switch_scope_and_registry(cfg.get('default_scope')):
            MODELS.build(copy.deepcopy(cfg.model))
    except Exception as error:
        if 'meta' not in str(error):  # else its constructor computes with values
            raise


def _check_packages(cfg: Config, *keys: str) -> None:
    """Raise ImportError if panoptic data or their metric lack the package that both need."""
    for key in keys:
        for part in dicts_of(cfg.get(key) or {}):
            kind = str(part.get('type')).rpartition('.')[2]
            if kind not in ('LoadPanopticAnnotations', 'CocoPanopticMetric'):
                continue
            try:
                import_module('panopticapi')
            except ImportError as error:
                raise ImportError(
                    f'{key}: {kind} needs panopticapi, which no package index has:'
                    ' pip install git+https://github.com/cocodataset/panopticapi.git',
                    name='panopticapi',
                ) from error


def _is_unused(options: dict[str, Any]) -> bool:
    """``True`` if all paths of a data set are absolute, so that ``data_root`` is unused."""
    prefix = options.get('data_prefix') or {}
    paths = [options.get('ann_file'), *(prefix.values() if isinstance(prefix, dict) else [prefix])]
    given = [path for path in paths if isinstance(path, str) and path]
    return bool(given) and all(os.path.isabs(path) for path in given)


def _find_weights(cfg: Config, resume: str | None) -> None:
    """Find the checkpoint to start from, and fetch the weights that the model names.

    A failure ends the training before it reads data.
    """
    if resume == 'auto':
        newest = newest_checkpoint(cfg.work_dir)
        cfg.resume = newest is not None
        if newest is not None:
            cfg.load_from = str(newest)
        else:  # from which the interrupted training started
            start = cfg.get('load_from')
            print_log(
                f'No checkpoint in {cfg.work_dir}: training starts from iteration 0, from'
                f' {start or "the weights that the model names"}.',
                'current',
            )
            cfg.load_from = _to_load(start, 'load_from') if start else None
    elif resume is not None:
        cfg.resume = True
        # The best checkpoint of a work directory has no optimizer state.
        newest = newest_checkpoint(resume) if os.path.isdir(resume) else None
        cfg.load_from = str(newest) if newest else _to_load(resume, 'resume')
    elif cfg.get('load_from'):
        cfg.load_from = _to_load(cfg.load_from, 'load_from')
    for part in dicts_of(cfg.get('model')):
        is_init_cfg = part.get('type') == 'Pretrained'  # otherwise, checkpoint may be a teacher's
        long_form = 'init_cfg.checkpoint' if is_init_cfg else 'checkpoint'
        for argument, name in (
            (long_form, part.get('checkpoint')),
            ('init_cfg', part.get('init_cfg')),
        ):
            if not isinstance(name, str):
                continue
            is_file = '://' not in name and argument != 'checkpoint'
            if is_file or name.startswith(REMOTE) or published_of(name):
                _locate(name, argument)


def _locate(checkpoint: str | os.PathLike[str], argument: str) -> Path:
    """Find or fetch weights; if that fails, say what else the argument of a config accepts."""
    try:
        return locate_checkpoint(checkpoint, argument=argument)
    except FetchError as error:
        if argument not in ('init_cfg', 'init_cfg.checkpoint', 'load_from'):
            raise
        name = argument.rpartition('.')[2]
        advice = f", or write {name}='path/to/file.pth' for a file that you have"
        if argument != 'load_from':
            advice += ', or init_cfg=None for random weights'
        raise FetchError(f'{error}{advice}') from error


def _terminals(logger: logging.Logger) -> list[logging.StreamHandler]:
    """Return the handlers of a logger that write to the terminal."""
    # A FileHandler is also a StreamHandler.
    return [one for one in logger.handlers if type(one) is logging.StreamHandler]


@contextmanager
def _in_file_only(logger: logging.Logger) -> Iterator[None]:
    """Hide a log below WARNING in the terminal, unless ``CPVT_DEBUG=1`` is set."""
    debugging = os.environ.get('CPVT_DEBUG', '0') not in ('', '0')
    handlers = [] if debugging else _terminals(logger)
    levels = [handler.level for handler in handlers]  # mmengine sets the level of the handlers
    for handler in handlers:
        handler.setLevel(max(handler.level, logging.WARNING))
    try:
        yield
    finally:
        for handler, level in zip(handlers, levels, strict=True):
            handler.setLevel(level)


class QuietRunner(ResumableRunner):
    """Runner for commands.

    Environment, config, hooks and the options of each parameter go to the log file only.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        with ExitStack() as self._construction:
            super().__init__(*args, **options)

    def build_logger(self, *args: Any, **kwargs: Any) -> MMLogger:
        """Build mmengine's logger, which is quiet until the runner is built."""
        logger = super().build_logger(*args, **kwargs)
        self._construction.enter_context(_in_file_only(logger))
        return logger

    def build_optim_wrapper(self, optim_wrapper: Any) -> Any:
        """Build the optimizer, for which mmengine logs one line per parameter."""
        with _in_file_only(self.logger):
            return super().build_optim_wrapper(optim_wrapper)


class SummaryHook(Hook):
    """Logs before the first iteration what is trained, on which data, how long and where."""

    def before_train(self, runner: Any) -> None:
        """Log the summary."""
        model = getattr(runner.model, 'module', runner.model)
        count = sum(parameter.numel() for parameter in model.parameters())
        backbone = getattr(model, 'backbone', None)
        kind = type(model).__name__
        if backbone is not None:
            kind += f' with {type(backbone).__name__}'
        dataset = runner.train_dataloader.dataset
        classes = (getattr(dataset, 'metainfo', None) or {}).get('classes') or ()
        more = ', ...' if len(classes) > SHOWN_CLASSES else ''
        named = ', '.join(map(str, classes[:SHOWN_CLASSES])) + more
        starts = [str(runner._load_from)] if runner._load_from else []
        for part in dicts_of(runner.cfg.get('model')):
            weights = part.get('checkpoint') or part.get('init_cfg')  # which may be a name itself
            starts += [weights] if isinstance(weights, str) else []
        lines = [
            f'model: {kind}, {count:,} parameters',
            f'weights: {", ".join(starts) or "none, random initialisation"}',
            f'data: {_about(dataset)}',
            f'classes: {len(classes)} ({named})' if classes else 'classes: not named by the data',
            f'length: {_length(runner)}',
            f'work directory: {runner.work_dir}',
            f'log file: {runner.log_dir}/{runner.timestamp}.log',
        ]
        runner.logger.info('\n'.join(['Training', *map(printable, lines)]))
        folder = Path(runner.work_dir)
        earlier = [
            path
            for pattern in ('iter_*.pth', 'epoch_*.pth', INTERRUPTED)
            for path in folder.glob(pattern)
        ]
        if earlier and not runner._resume:
            newest = max(earlier, key=os.path.getmtime).name
            runner.logger.warning(
                f'work_dir: {runner.work_dir} has {newest} of an earlier training; checkpoints of'
                f' the same name will be overwritten, {INTERRUPTED} deleted; --resume continues it'
            )


class NoBoxHook(Hook):
    """Logs after a test that a detector found nothing, for which mmdet logs an error."""

    def before_test(self, runner: Any) -> None:
        """Reset the count."""
        self._counts: list[int] = []

    def after_test_iter(
        self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        """Count the boxes of a batch."""
        found = [one.pred_instances for one in outputs or () if 'pred_instances' in one]
        self._counts += map(len, found)

    def after_test_epoch(self, runner: Any, metrics: dict[str, float] | None = None) -> None:
        """Log the line if no process has a box."""
        counts = [count for counts in all_gather_object(self._counts) for count in counts]
        if counts and not any(counts):
            runner.logger.warning(
                'nothing was found: the model has no box in any image, so that there is no score'
            )


def _about(dataset: Any) -> str:
    """Describe a data set by kind and number of images, also through ``RepeatDataset`` and such."""
    inner = dataset
    while hasattr(inner, 'dataset'):
        inner = inner.dataset
    images = _counted(len(inner), 'image') if hasattr(inner, '__len__') else 'a stream of images'
    text = f'{type(inner).__name__}, {images}'
    if inner is not dataset and hasattr(dataset, '__len__'):
        text += f'; {type(dataset).__name__}, {_counted(len(dataset), "sample")}'
    return text


def _length(runner: Any) -> str:
    """Describe the length of a training: iterations, and epochs if the config counts them."""
    text = _counted(runner.max_iters, 'iteration')
    if isinstance(runner.train_loop, EpochBasedTrainLoop):
        text = f'{_counted(runner.max_epochs, "epoch")}, {text}'
    return text


def _counted(number: int, noun: str) -> str:
    """Return a number with its noun, such as ``1,200 images``."""
    return f'{number:,} {noun}' if number == 1 else f'{number:,} {noun}s'


def test(
    cfg: Config,
    *,
    checkpoint: str | os.PathLike[str],
    out: str | None = None,
    show_dir: str | None = None,
    tta: bool = False,
) -> dict[str, float]:
    """Evaluate a checkpoint on the test set of a config; return the metrics.

    Args:
        cfg: Config from :func:`read_config`; changed in place.
        checkpoint: File with the weights, or the name of shipped weights.
        out: File (``.pkl``) for the predictions; for a segmentor, folder for class maps (PNG).
        show_dir: Folder for pictures of the predictions, drawn by the toolbox.
        tta: Use test-time augmentation with the config's ``tta_model`` and ``tta_pipeline``.

    Raises:
        FileNotFoundError: The checkpoint does not exist.
        ValueError: ``out`` has a wrong suffix, ``tta_model`` or ``tta_pipeline`` is missing, or the
            checkpoint does not fit. Or the test set's classes differ, by name or order, from those
            of the checkpoint, the annotations, the metric or a head.
    """
    toolbox = find_toolbox(cfg)
    check_model(cfg)
    if show_dir is not None:
        hook = {**cfg.get('default_hooks', {}).get('visualization', {}), **toolbox.visualization}
        cfg.merge_from_dict({DRAWING_HOOK: hook, toolbox.show_dir: show_dir})
    if out is not None:
        _write_predictions(cfg, toolbox, out)
    if tta:
        for key in ('tta_model', 'tta_pipeline'):
            if cfg.get(key) is None:
                raise InputError(f'tta: the config has no {key}', argument='tta')
        cfg.model = {**cfg.tta_model, 'module': cfg.model}
        cfg.test_dataloader.dataset.pipeline = cfg.tta_pipeline
    _check_packages(cfg, 'test_dataloader', 'test_evaluator')
    _check_data(cfg, 'test_dataloader')
    cfg.load_from = _to_load(checkpoint, 'checkpoint')
    runner = _build_runner(cfg)
    if isinstance(runner, Runner):
        dataset = runner.test_dataloader.dataset  # which the runner builds here
        check_runner_classes(runner)
        classes = classes_of(getattr(dataset, 'metainfo', None))
        if classes is not None:
            check_heads(runner.model, classes, 'test_dataloader.dataset')
        load_weights(runner.model, cfg.load_from, classes=classes)
        warn_of_other_normalisation(unwrap(runner.model), checkpoint)
        runner.register_hook(NoBoxHook())
    return runner.test()


@OPTIM_WRAPPERS.register_module()
class CPUAmpOptimWrapper(OptimWrapper):
    """mmengine's ``AmpOptimWrapper`` for a CPU: mixed precision in bfloat16.

    ``tools/train.py --amp`` uses it if no GPU is found. Its arguments are those of mmengine's
    ``OptimWrapper``.

    Examples:
        ```python
        optim_wrapper = dict(
            type='CPUAmpOptimWrapper',
            optimizer=dict(type='AdamW', lr=1e-4, weight_decay=0.05),
        )
        ```
    """

    @contextmanager
    def optim_context(self, model: nn.Module) -> Iterator[None]:
        """Run the forward pass of ``model`` under the CPU's autocast to bfloat16."""
        with super().optim_context(model), torch.autocast('cpu', torch.bfloat16):
            yield


def use_amp(cfg: Config, dtype: str | None = None) -> None:
    """Switch a config to mixed precision, in place.

    Args:
        cfg: Config whose optimizer wrapper sets no precision.
        dtype: ``'float16'`` (with loss scaling; the default on a GPU) or ``'bfloat16'`` (the only
            one on a CPU).

    Raises:
        ValueError: The optimizer wrapper sets a precision, or the device lacks ``dtype``.
    """
    on_cpu = get_device() == 'cpu'
    dtype = dtype or ('bfloat16' if on_cpu else 'float16')
    check_choice(AMP_DTYPES, amp_dtype=dtype)
    if on_cpu and dtype == 'float16':
        raise InputError(
            "amp_dtype must be 'bfloat16' on a CPU, got 'float16'; a GPU was not found",
            argument='amp_dtype',
        )
    kind = cfg.optim_wrapper.get('type', 'OptimWrapper')
    if kind not in ('OptimWrapper', 'AmpOptimWrapper'):
        raise InputError(
            f"amp: optim_wrapper.type must be 'OptimWrapper', got {kind!r}, which has its own"
            ' precision'
        )
    if on_cpu:
        _use_cpu_wrapper(cfg)
        return
    cfg.optim_wrapper.update(type='AmpOptimWrapper', dtype=dtype)
    # bfloat16 has the range of float32 and needs no loss scaling.
    cfg.optim_wrapper.setdefault('loss_scale', 'dynamic' if dtype == 'float16' else 1.0)


def _fall_back_from_amp(cfg: Config) -> None:
    """Replace mmengine's wrapper for mixed precision, which needs a GPU, by one for a CPU."""
    if cfg.get('optim_wrapper', {}).get('type') == 'AmpOptimWrapper':
        _use_cpu_wrapper(cfg)
        message = 'optim_wrapper: no GPU was found; mixed precision is in bfloat16, on the CPU'
        print_log(message, 'current')


def _use_cpu_wrapper(cfg: Config) -> None:
    for name in ('dtype', 'loss_scale', 'use_fsdp'):
        cfg.optim_wrapper.pop(name, None)
    cfg.optim_wrapper.type = 'CPUAmpOptimWrapper'


def _write_predictions(cfg: Config, toolbox: Toolbox, out: str) -> None:
    suffixes = ('.pkl', '.pickle') if toolbox.dump else ('',)
    if Path(out).suffix not in suffixes:
        accepted = f'{" or ".join(suffixes)} file' if toolbox.dump else 'folder'
        raise InputError(
            f'out: {toolbox.package} writes predictions to a {accepted}, got {out!r}',
            argument='out',
        )
    if toolbox.dump is None:
        cfg.merge_from_dict({'test_evaluator.output_dir': out})
        return
    evaluators = cfg.test_evaluator
    if not isinstance(evaluators, (list, tuple)):
        evaluators = [evaluators]
    cfg.test_evaluator = [*evaluators, dict(type=toolbox.dump, out_file_path=out)]


def _to_load(checkpoint: str | os.PathLike[str], argument: str) -> str:
    """Return the value of ``load_from``: a file, or an address or name with ``://`` unchanged.

    mmengine loads the latter by :func:`read_checkpoint`, from the cache.
    """
    name = str(checkpoint)
    if '://' not in name:
        return str(_locate(checkpoint, argument))
    if name.startswith(REMOTE):
        _locate(name, argument)
    return name


def _build_runner(cfg: Config) -> Runner:
    cfg.setdefault('runner_type', 'ResumableRunner')
    kind = RUNNERS.get(cfg.runner_type) or object  # an unknown one is refused below
    plain = issubclass(kind, Runner) and not cfg.get('strategy')
    if cfg.get('launcher') == 'pytorch' and plain and get_device() == 'cpu':
        _use_gloo(cfg)
    if kind is ResumableRunner and plain:
        return QuietRunner.from_cfg(cfg)
    return RUNNERS.build(cfg)


def _use_gloo(cfg: Config) -> None:
    """Prepare for several processes on CPUs; mmengine's launch expects a GPU for each."""
    if not distributed.is_initialized():
        distributed.init_process_group('gloo')
    chosen = cfg.get('model_wrapper_cfg') or dict(
        find_unused_parameters=cfg.get('find_unused_parameters', False)
    )
    wrapper = dict(type='MMDistributedDataParallel', broadcast_buffers=False, device_ids=None)
    cfg.model_wrapper_cfg = {**wrapper, **chosen}
    for node in dicts_of(cfg.model):
        if node.get('type') == 'SyncBN':  # computes on GPUs only
            node['type'] = 'BN'
            print_log('launcher: no GPU was found; SyncBN becomes BN', 'current')


@contextmanager
def _progress_bar(runner: Any) -> Iterator[None]:
    """Show finished iterations and remaining time below mmengine's log, in a terminal only."""
    if not (sys.stdout.isatty() and is_main_process()):
        yield
        return
    handlers = _terminals(runner.logger)
    streams = [handler.stream for handler in handlers]
    with Progress(
        'training', BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), 'left'
    ) as bar:
        task = bar.add_task('training', total=runner.max_iters, completed=runner.iter)

        class Advance(Hook):
            def after_train_iter(self, runner: Any, *args: Any, **kwargs: Any) -> None:
                bar.update(task, total=runner.max_iters, completed=runner.iter + 1)

        runner.register_hook(Advance())
        for handler in handlers:
            handler.setStream(sys.stdout)  # rich's, which prints above the bar
        try:
            yield
        finally:
            for handler, stream in zip(handlers, streams, strict=True):
                handler.setStream(stream)
