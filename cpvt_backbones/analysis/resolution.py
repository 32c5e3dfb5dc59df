"""One checkpoint at many image sizes, without fine-tuning: what it scores, what it takes."""

import copy
import hashlib
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.registry import DATASETS, HOOKS, init_default_scope
from mmengine.runner import Runner
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import nn

from cpvt_backbones.engine.launch import find_toolbox, test
from cpvt_backbones.weights import shipped_file

from .image_size import Size, scale_test_images
from .machine import synchronize
from .memory import peak_memory
from .tables import read_table, write_table

MAIN_METRICS = ('coco/bbox_mAP', 'coco/segm_mAP', 'pascal_voc/mAP', 'mIoU', 'accuracy/top1')
_OWN = 'forward/'


@dataclass(frozen=True)
class Candidate:
    """A trained model of a sweep.

    Attributes:
        name: What to call it.
        cfg: Its config.
        checkpoint: Its weights: a file, or the name of weights that come with the package.
    """

    name: str
    cfg: Config
    checkpoint: str | os.PathLike[str]


@dataclass(frozen=True)
class Row:
    """One model at one size.

    Attributes:
        size: As asked for: a factor, or a side with ``px``.
        images: How many were tested.
        height, width: Mean px of what the model got, the config's padding included.
        seconds: An image in the model, post-processing included, data loading left out; median over the batches.
        peak_mib: Memory that the forward call of the largest batch takes on top of what was there.
        device: ``'cpu'`` or ``'cuda'``.
        source: Stands for config, checkpoint and number of images: rows of one model agree in it.
        metrics: What the config's evaluator reports, in the frame of the original images.
    """

    model: str
    size: str
    images: int
    height: float
    width: float
    seconds: float
    peak_mib: float
    device: str
    source: str
    metrics: dict[str, float] = field(default_factory=dict)


_COLUMNS = ('model', 'size', 'images', 'height', 'width', 'seconds', 'peak_mib', 'device', 'source')
_KINDS: dict[str, type] = dict(images=int, height=float, width=float, seconds=float, peak_mib=float)


def sweep(
    candidates: Sequence[Candidate], sizes: Sequence[Size], *, table: Path, limit: int | None = None
) -> list[Row]:
    """Evaluate models at several image sizes, as ``tools/test.py`` would at each.

    What the table holds is not done again.

    Args:
        candidates: The models.
        sizes: The sizes.
        table: CSV that grows by a row for each model and size.
        limit: Test on so many images, taken evenly from the test set; ``None`` for all.

    Returns:
        The rows of the table, those of other models included.

    Raises:
        ValueError: A name given twice; a test pipeline that cannot be scaled (see
            :func:`~cpvt_backbones.analysis.image_size.scale_test_images`), before anything is run; rows in the table
            that come from another config, checkpoint or number of images; a ``limit`` that the data set cannot keep.
        FileNotFoundError: No such checkpoint.
    """
    names = [candidate.name for candidate in candidates]
    if len(set(names)) != len(names):
        raise ValueError(f'models must have names of their own, got {names}')
    rows = read_rows(table) if table.exists() else []
    jobs = []
    for candidate in candidates:
        source = fingerprint(candidate, limit)
        done = {row.size for row in rows if row.model == candidate.name}
        if any(row.model == candidate.name and row.source != source for row in rows):
            raise ValueError(
                f'table: {str(table)!r} has rows of {candidate.name!r} from another config, checkpoint, device or '
                'number of images; give the model another name, or use another table'
            )
        for size in sizes:
            cfg = copy.deepcopy(candidate.cfg)
            scale_test_images(cfg, size)
            if str(size) not in done:
                jobs.append((candidate, size, cfg, source))
    for number, (candidate, size, cfg, source) in enumerate(jobs, 1):
        if limit is not None:
            _limit_images(cfg, limit)
        label = f'{candidate.name} at {size} ({number}/{len(jobs)})'
        rows.append(_evaluate(candidate, size, cfg, source, label, table.parent / 'logs'))
        write_rows(table, rows)
    return rows


def fingerprint(candidate: Candidate, limit: int | None = None) -> str:
    """Twelve digits that stand for all that a row depends on: weights, model, test data, device, number of images."""
    weights = shipped_file(candidate.checkpoint)
    if not weights.is_file():
        raise FileNotFoundError(f'checkpoint: there is no file {str(candidate.checkpoint)!r}')
    digest = hashlib.sha256()
    with weights.open('rb') as file:
        while part := file.read(1 << 20):
            digest.update(part)
    told = candidate.cfg.to_dict()
    keys = ('model', 'data_preprocessor', 'test_dataloader', 'test_evaluator', 'test_cfg')
    digest.update(repr(([told.get(key) for key in keys], limit, torch.cuda.is_available())).encode())
    return digest.hexdigest()[:12]


def read_rows(table: Path) -> list[Row]:
    """The rows of a CSV that :func:`write_rows` wrote."""
    return [
        Row(
            **{name: _KINDS.get(name, str)(record[name]) for name in _COLUMNS},
            metrics={name: float(text) for name, text in record.items() if name not in _COLUMNS and text},
        )
        for record in read_table(table)
    ]


def write_rows(table: Path, rows: Sequence[Row]) -> None:
    """Write rows as CSV, a column for each metric."""
    write_table(table, [{**{name: getattr(row, name) for name in _COLUMNS}, **row.metrics} for row in rows])


def main_metric(rows: Sequence[Row]) -> str:
    """The metric that stands for a model: the first of :data:`MAIN_METRICS` that is there, else the first there is."""
    found = list(dict.fromkeys(name for row in rows for name in row.metrics))
    if not found:
        raise ValueError('there is no metric in any row')
    return next((name for name in MAIN_METRICS if name in found), found[0])


def _evaluate(candidate: Candidate, size: Size, cfg: Config, source: str, label: str, logs: Path) -> Row:
    cfg.custom_hooks = [*cfg.get('custom_hooks', []), dict(type='ForwardMeter', label=label)]
    cfg.log_level = 'ERROR'
    cfg.work_dir = str(logs / candidate.name)
    cfg.experiment_name = f'{candidate.name}_{time.time_ns()}'  # mmengine keeps loggers and visualizers by name
    if 'visualizer' in cfg:
        cfg.visualizer.name = cfg.experiment_name
    found = test(cfg, checkpoint=candidate.checkpoint)
    own = {name.removeprefix(_OWN): found.pop(name) for name in list(found) if name.startswith(_OWN)}
    return Row(
        model=candidate.name,
        size=str(size),
        source=source,
        device='cuda' if own.pop('cuda') else 'cpu',
        metrics={name: float(value) for name, value in found.items()},
        **own,  # type: ignore[arg-type]
    )


def _limit_images(cfg: Config, limit: int) -> None:
    """Keep ``limit`` images of the test set: evenly spaced, as a classifier's are sorted by class."""
    options = cfg.test_dataloader.dataset
    if limit < 1:
        raise ValueError(f'limit must be at least 1, got {limit}')
    if 'dataset' in options or 'datasets' in options or 'indices' in options:
        raise ValueError(f'limit must be None with a data set that wraps others or has indices, got {limit}')
    find_toolbox(cfg)
    init_default_scope(cfg.default_scope)
    count = len(DATASETS.build(options))
    if limit < count:
        options.indices = [i * count // limit for i in range(limit)]


@HOOKS.register_module()
class ForwardMeter(Hook):
    """Adds to the metrics of a test what the model's forward calls took, and shows a progress bar.

    Every call is timed; the largest batch is run again at the end for its memory.

    Args:
        label: What the progress bar says.
    """

    def __init__(self, label: str) -> None:
        self.label = label
        self.times: list[float] = []
        self.shapes: list[tuple[int, int, int]] = []
        self.pixels = 0
        self.largest: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})

    def before_test(self, runner: Runner) -> None:
        loader = runner.test_dataloader
        _keep_to_images(runner)
        # A first call allocates and chooses kernels: it counts for nothing.
        with torch.no_grad():
            runner.model.eval()
            runner.model.test_step(next(iter(loader)))
        self.device = next(runner.model.parameters()).device.type
        self.handles = [
            runner.model.register_forward_pre_hook(self._start, with_kwargs=True),
            runner.model.register_forward_hook(self._stop),
        ]
        columns = (
            TextColumn('{task.description}'),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self.bar = Progress(*columns)
        self.task = self.bar.add_task(self.label, total=len(loader))
        self.bar.start()

    def _start(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        inputs = kwargs['inputs'] if 'inputs' in kwargs else args[0]
        batch, _, height, width = inputs.shape
        self.shapes.append((batch, height, width))
        if inputs.numel() > self.pixels:
            self.pixels, self.largest = inputs.numel(), (args, kwargs)
        synchronize(self.device)
        self.begun = time.perf_counter()

    def _stop(self, *_: Any) -> None:
        synchronize(self.device)
        self.times.append((time.perf_counter() - self.begun) / self.shapes[-1][0])

    def after_test_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        self.bar.advance(self.task)

    def after_test_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        self.bar.stop()
        for handle in self.handles:
            handle.remove()
        images = sum(batch for batch, _, _ in self.shapes)
        assert metrics is not None
        figures = {
            f'{_OWN}images': images,
            f'{_OWN}height': sum(batch * height for batch, height, _ in self.shapes) / images,
            f'{_OWN}width': sum(batch * width for batch, _, width in self.shapes) / images,
            f'{_OWN}seconds': statistics.median(self.times),
            f'{_OWN}peak_mib': self._peak(runner.model),
            f'{_OWN}cuda': self.device == 'cuda',
        }
        metrics.update(figures)

    def _peak(self, model: nn.Module) -> float:
        args, kwargs = self.largest
        with torch.no_grad():
            return peak_memory(lambda: model(*args, **kwargs), self.device)


def _keep_to_images(runner: Runner) -> None:
    """Where only some images are tested, a metric that reads annotations by itself must not count the others."""
    dataset = runner.test_dataloader.dataset
    if not getattr(dataset, '_indices', None):
        return
    for metric in runner.test_loop.evaluator.metrics:
        if hasattr(metric, 'img_ids'):
            metric.img_ids = [dataset.get_data_info(index)['img_id'] for index in range(len(dataset))]
        elif getattr(metric, '_coco_api', None) is not None:
            raise ValueError(f'limit must be None with the metric {type(metric).__name__}')
