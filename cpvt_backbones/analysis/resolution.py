"""Accuracy, time and memory of checkpoints at several image sizes, without fine-tuning."""

import copy
import hashlib
import math
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.hooks import Hook
from mmengine.registry import DATASETS, HOOKS, init_default_scope
from mmengine.runner import Runner
from rich.progress import Progress, TimeElapsedColumn
from torch import nn

from cpvt_backbones.checkpoints import locate_checkpoint
from cpvt_backbones.engine.launch import test
from cpvt_backbones.errors import InputError
from cpvt_backbones.inference.sizes import GoodSizes
from cpvt_backbones.toolboxes import find_toolbox
from cpvt_backbones.weights import sha256_of

from .image_size import TestSize, scale_test_images
from .memory import peak_memory, synchronize
from .tables import read_table, write_table

MAIN_METRICS = ('coco/bbox_mAP', 'coco/segm_mAP', 'pascal_voc/mAP', 'mIoU', 'accuracy/top1')
_OWN = 'forward/'
GOOD = 0.9  # of the best metric


@dataclass(frozen=True)
class SweepModel:
    """A trained model for :func:`sweep`.

    Attributes:
        name: Name of the model in the table.
        cfg: Config of the model, from :func:`read_config`.
        checkpoint: File with the weights, or name of shipped weights.
    """

    name: str
    cfg: Config
    checkpoint: str | os.PathLike[str]


@dataclass(frozen=True)
class SweepRow:
    """Results of one model at one image size, from :func:`sweep`.

    Attributes:
        model: Name of the model.
        size: The requested size: a factor, such as ``'0.5'``, or a side, such as ``'640px'``.
        images: Number of test images.
        height: Mean height of the images in px, resized and without padding.
        width: Mean width of the images in px, resized and without padding.
        seconds: Time per image in the model, with post-processing and without data loading; median
            over the batches.
        peak_mib: Memory in MiB that the forward call of the largest batch allocates.
        device: ``'cpu'`` or ``'cuda'``.
        source: Hash of model, weights, test data, device and number of images, equal in all rows
            of a model.
        metrics: Metrics of the config's evaluator, at the original image size.
        zoom: Mean ratio of a side of the model's input to that of the test image; NaN if unknown.
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
    zoom: float = math.nan


_COLUMNS: dict[str, Any] = {
    column.name: column.type for column in fields(SweepRow) if column.name != 'metrics'
}


def sweep(
    models: Sequence[SweepModel],
    sizes: Sequence[TestSize],
    *,
    table: Path,
    limit: int | None = None,
) -> list[SweepRow]:
    """Measure accuracy, time and memory of models at several image sizes.

    Each model is evaluated at each size like in ``tools/test.py``. The same call continues after an
    interruption: rows in the table are not measured again.

    Args:
        models: Trained models; see :class:`SweepModel`.
        sizes: The image sizes; see :class:`TestSize`.
        table: CSV to which one row is added for each missing model and size.
        limit: Number of test images, evenly spaced in the test set; ``None`` for all.

    Returns:
        All rows of the table.

    Raises:
        ValueError: Two models have the same name; a test pipeline cannot be scaled (see
            :func:`~cpvt_backbones.analysis.image_size.scale_test_images`); or the table has rows of
            another config, checkpoint or number of images. These errors come before any model runs.
            Or, later, the data set does not support ``limit``.
        FileNotFoundError: A checkpoint does not exist.

    Examples:
        ```python
        from pathlib import Path

        from cpvt_backbones.analysis.image_size import TestSize
        from cpvt_backbones.analysis.resolution import SweepModel, sweep
        from cpvt_backbones.inference import read_config
        from cpvt_backbones.weights import find_shipped

        shipped = find_shipped('cpvt_tiny_gap-imagenette')
        cfg = read_config(
            shipped.config_file,
            cfg_options={
                # with a folder of images for each class, in their order
                'test_dataloader.dataset.data_root': 'photos',
                'test_dataloader.dataset.data_prefix': '',
            },
        )
        rows = sweep(
            [SweepModel('tiny', cfg, shipped.name)],
            [TestSize(factor=0.5), TestSize(side=128)],
            table=Path('sizes.csv'),
        )
        for row in rows:
            print(row.size, row.metrics, row.seconds)
        ```
    """
    names = [model.name for model in models]
    if len(set(names)) != len(names):
        raise InputError(f'models must have different names, got {names}')
    rows = read_rows(table) if table.exists() else []
    jobs = []
    for model in models:
        source = fingerprint(model, limit)
        done = {row.size: row.source for row in rows if row.model == model.name}
        if set(done.values()) - {source}:
            other = 'another config, checkpoint, device or number of images'
            advice = 'give the model another name, or use another table'
            raise InputError(
                f'table: {str(table)!r} has rows of {model.name!r} from {other}; {advice}'
            )
        for size in sizes:
            scaled = replace(model, cfg=copy.deepcopy(model.cfg))
            scale_test_images(scaled.cfg, size)
            scaled.cfg.work_dir = str(table.parent / 'logs' / model.name)
            if str(size) not in done:
                jobs.append((scaled, str(size), source))
    for number, (model, label, source) in enumerate(jobs, 1):
        if limit is not None:
            _limit_images(model.cfg, limit)
        metrics = _evaluate(model, f'{model.name} at {label} ({number}/{len(jobs)})')
        own = {
            name.removeprefix(_OWN): metrics.pop(name)
            for name in list(metrics)
            if name.startswith(_OWN)
        }
        # Without the scores of each class, which mmpretrain gives as a list.
        metrics = {
            name: float(value) for name, value in metrics.items() if not isinstance(value, list)
        }
        rows.append(
            SweepRow(
                model=model.name,
                size=label,
                source=source,
                device=get_device(),
                metrics=metrics,
                **own,
            )
        )
        write_rows(table, rows)
    return rows


def fingerprint(model: SweepModel, limit: int | None = None) -> str:
    """Hash weights, model, test data, device and number of images to 12 hexadecimal digits."""
    weights = locate_checkpoint(model.checkpoint)
    options = model.cfg.to_dict()
    keys = ('model', 'data_preprocessor', 'test_dataloader', 'test_evaluator', 'test_cfg')
    settings = [options.get(key) for key in keys], limit, torch.cuda.is_available()
    return hashlib.sha256(f'{sha256_of(weights)} {settings!r}'.encode()).hexdigest()[:12]


def read_rows(table: Path) -> list[SweepRow]:
    """Read the rows of a CSV of :func:`write_rows`."""
    rows = []
    for record in read_table(table):
        metrics = {
            name: float(text) for name, text in record.items() if name not in _COLUMNS and text
        }
        known = {name: kind(record[name]) for name, kind in _COLUMNS.items() if name in record}
        rows.append(SweepRow(**known, metrics=metrics))
    return rows


def write_rows(table: Path, rows: Sequence[SweepRow]) -> None:
    """Write rows as CSV, with one column per metric."""
    write_table(
        table, [{**{name: getattr(row, name) for name in _COLUMNS}, **row.metrics} for row in rows]
    )


def main_metric(rows: Sequence[SweepRow]) -> str:
    """Return the main metric of rows: box AP, mask AP, VOC's mAP, mIoU or top-1 accuracy.

    The first of these is taken; if there is none, it is the rows' first metric.

    Raises:
        ValueError: The rows have no metric.
    """
    found = list(dict.fromkeys(name for row in rows for name in row.metrics))
    if not found:
        raise InputError('rows must have a metric, got none: a detector without any box has none')
    return next((name for name in MAIN_METRICS if name in found), found[0])


def good_sizes(rows: Sequence[SweepRow]) -> GoodSizes:
    """Find the range of sizes around the best one at which a model is good.

    A size is good if the main metric is at least 0.9 of its best value.

    Args:
        rows: Rows of one model from :func:`sweep`, including the test scale, factor 1.

    Raises:
        ValueError: No row has factor 1, or its zoom is unknown.

    Examples:
        >>> from cpvt_backbones.analysis.resolution import SweepRow, good_sizes
        >>> rows = [
        ...     SweepRow(
        ...         model='tiny', size=size, images=100, height=side, width=side,
        ...         seconds=0.1, peak_mib=50, device='cpu', source='',
        ...         metrics={'accuracy/top1': top1}, zoom=1.0,
        ...     )
        ...     for size, side, top1 in
        ...     [('0.5', 112, 60), ('1', 224, 80), ('1.5', 336, 76)]
        ... ]
        >>> found = good_sizes(rows)  # at least 0.9 * 80
        >>> found.low, found.high
        (1.0, 1.5)
    """
    metric = main_metric(rows)
    base = next((row for row in rows if row.size == '1' and math.isfinite(row.zoom)), None)
    if base is None:
        sizes = [row.size for row in rows]
        raise InputError(
            f"rows must have size '1' with a zoom, got sizes {sizes}; measure it again"
        )
    side = math.sqrt(base.height * base.width)
    ordered = sorted(
        (math.sqrt(row.height * row.width) / side, row.metrics[metric]) for row in rows
    )
    best = max(range(len(ordered)), key=lambda i: ordered[i][1])
    least = GOOD * ordered[best][1]
    first = last = best
    while first > 0 and ordered[first - 1][1] >= least:
        first -= 1
    while last < len(ordered) - 1 and ordered[last + 1][1] >= least:
        last += 1
    return GoodSizes(
        low=round(ordered[first][0], 3),
        high=round(ordered[last][0], 3),
        side=round(side, 1),
        zoom=round(base.zoom, 4),
        metric=metric,
    )


def _evaluate(model: SweepModel, label: str) -> dict[str, Any]:
    cfg = model.cfg
    cfg.custom_hooks = [*cfg.get('custom_hooks', []), dict(type='ForwardMeter', label=label)]
    cfg.log_level = 'ERROR'
    cfg.experiment_name = (
        f'{model.name}_{time.time_ns()}'  # mmengine reuses loggers and visualizers by name
    )
    if 'visualizer' in cfg:
        cfg.visualizer.name = cfg.experiment_name
    return test(cfg, checkpoint=model.checkpoint)


def _limit_images(cfg: Config, limit: int) -> None:
    """Keep ``limit`` images of the test set, evenly spaced because classes may be sorted."""
    options = cfg.test_dataloader.dataset
    if limit < 1:
        raise InputError(f'limit must be at least 1, got {limit}', argument='limit')
    if 'dataset' in options or 'datasets' in options or 'indices' in options:
        raise InputError(
            f'limit must be None with a data set that wraps others or has indices, got {limit}',
            argument='limit',
        )
    find_toolbox(cfg)
    init_default_scope(cfg.default_scope)
    count = len(DATASETS.build(options))
    if limit < count:
        options.indices = [i * count // limit for i in range(limit)]


@HOOKS.register_module()
class ForwardMeter(Hook):
    """Hook of :func:`sweep` that adds size, time and memory of forward calls to the metrics.

    Every call is timed. At the end, the largest batch runs again to measure its memory.

    Args:
        label: Text of the progress bar.

    Examples:
        ```python
        custom_hooks = [dict(type='ForwardMeter', label='my model')]
        ```
    """

    def __init__(self, label: str) -> None:
        self.label = label
        self.times: list[float] = []
        self.pixels = 0
        self.shapes: list[tuple[int, int]] = []
        self.zooms: list[float] = []

    def before_test(self, runner: Runner) -> None:
        """Start measuring forward calls."""
        loader = runner.test_dataloader
        _keep_to_images(runner)
        # Warm-up: the first call allocates and selects kernels.
        with torch.no_grad():
            runner.model.eval()
            runner.model.test_step(next(iter(loader)))
        self.handles = [runner.model.register_forward_pre_hook(self._start, with_kwargs=True)]
        self.handles.append(runner.model.register_forward_hook(self._stop))
        self.bar = Progress(*Progress.get_default_columns(), TimeElapsedColumn())
        self.task = self.bar.add_task(self.label, total=len(loader))
        self.bar.start()

    def _start(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        inputs = kwargs['inputs'] if 'inputs' in kwargs else args[0]
        self.batch, _, *self.padded = inputs.shape
        if inputs.numel() > self.pixels:
            self.pixels, self.largest = inputs.numel(), (args, kwargs)
        synchronize(get_device())
        self.begun = time.perf_counter()

    def _stop(self, *_: Any) -> None:
        synchronize(get_device())
        self.times.append((time.perf_counter() - self.begun) / self.batch)

    def after_test_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        """Advance the bar, and record by how much the images were resized."""
        self.bar.advance(self.task)
        metas = [sample.metainfo for sample in outputs or ()]
        self.shapes += [meta.get('img_shape', self.padded)[:2] for meta in metas]
        sides = [
            (meta['img_shape'], meta['ori_shape'])
            for meta in metas
            if {'img_shape', 'ori_shape'} <= meta.keys()
        ]
        # Ratio of sides, as the root of the ratio of areas.
        self.zooms += [math.sqrt(math.prod(seen[:2]) / math.prod(own[:2])) for seen, own in sides]

    def after_test_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        """Stop measuring; add the measurements to the metrics."""
        self.bar.stop()
        for handle in self.handles:
            handle.remove()
        heights, widths = np.array(self.shapes).T
        args, kwargs = self.largest
        with torch.no_grad():
            peak = peak_memory(lambda: runner.model(*args, **kwargs), get_device())
        assert metrics is not None
        own = dict(
            images=len(self.shapes),
            height=float(heights.mean()),
            width=float(widths.mean()),
            seconds=statistics.median(self.times),
            peak_mib=peak,
            zoom=statistics.fmean(self.zooms) if self.zooms else math.nan,
        )
        metrics |= {f'{_OWN}{name}': value for name, value in own.items()}


def _keep_to_images(runner: Runner) -> None:
    """Restrict metrics that read their own annotations to the tested images."""
    dataset = runner.test_dataloader.dataset
    if not getattr(dataset, '_indices', None):
        return
    for metric in runner.test_loop.evaluator.metrics:
        if hasattr(metric, 'img_ids'):
            metric.img_ids = [
                dataset.get_data_info(index)['img_id'] for index in range(len(dataset))
            ]
        elif getattr(metric, '_coco_api', None) is not None:
            raise InputError(
                f'limit must be None with the metric {type(metric).__name__}', argument='limit'
            )
