"""Dense transfer: position encodings in a segmentor and a detector, from scratch and from a study's classifiers.

A folder of runs, each with its log, weights, ``sizes.csv`` and ``record.json`` (config, seed, commit, machine,
results). Any number of processes may work on one folder. A run that was interrupted begins again: it takes minutes, and
a training that loops over iterations cannot repeat its random numbers from the middle.
"""

import copy
import json
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from mmengine.config import Config
from mmengine.runner import Runner

from cpvt_backbones.engine.launch import read_config

from .files import claim, write_whole
from .image_size import Size
from .machine import describe_machine
from .plots import panels, plain_axis
from .provenance import commit
from .resolution import Candidate, main_metric, sweep
from .study_report import difference, spread
from .tables import read_table, write_table

STARTS = ('scratch', 'pretrained')


@dataclass(frozen=True)
class TransferRun:
    """One training.

    Attributes:
        task: Name of the task.
        encoding: Name of the position encoding.
        start: ``'scratch'`` or ``'pretrained'``.
        seed: Of weights, order and augmentations.
    """

    task: str
    encoding: str
    start: str
    seed: int

    @property
    def name(self) -> str:
        """Name of the run's folder."""
        return f'{self.task}_{self.encoding}_{self.start}_seed-{self.seed}'


@dataclass(frozen=True)
class TransferRow:
    """A run tested at one size.

    Attributes:
        size: Factor of the config's test scale.
        metric: What is told: ``mIoU`` (percent) or ``coco/bbox_mAP``.
    """

    task: str
    encoding: str
    start: str
    seed: int
    size: float
    metric: str
    value: float


class Transfer:
    """A folder of runs.

    Args:
        folder: Where they live.
        configs: The config file of each (task, encoding).
        pretrained: The classifier's weights (``backbone.*``) of each (encoding, seed). Every seed has a classifier of
            its own: what seeds differ by holds the pretraining too.
        sizes: Factors of the test scale that each run is tested at.
        images: Test images, evenly spaced in the test set; ``None`` for all.
        cfg_options: Values to override in every config.

    Raises:
        FileNotFoundError: Pretrained weights that are not there.
    """

    def __init__(
        self,
        *,
        folder: Path,
        configs: Mapping[tuple[str, str], Path],
        pretrained: Mapping[tuple[str, int], Path],
        sizes: Sequence[float] = (0.5, 1.0, 1.5, 2.0),
        images: int | None = None,
        cfg_options: Mapping[str, Any] | None = None,
    ) -> None:
        for path in pretrained.values():
            if not path.is_file():
                raise FileNotFoundError(f'pretrained: there is no file {str(path)!r}')
        self.folder, self.configs, self.pretrained = folder, dict(configs), dict(pretrained)
        self.sizes, self.images, self.cfg_options = tuple(sizes), images, dict(cfg_options or {})

    def runs(self, seeds: Iterable[int]) -> list[TransferRun]:
        """All that there is to do, seed by seed."""
        return [
            TransferRun(task, encoding, start, seed)
            for seed in seeds
            for task, encoding in self.configs
            for start in STARTS
            if start == 'scratch' or (encoding, seed) in self.pretrained
        ]

    def left(self, seeds: Iterable[int]) -> list[TransferRun]:
        """What of that is not done."""
        return [run for run in self.runs(seeds) if not (self.folder / run.name / 'record.json').exists()]

    def records(self) -> list[dict[str, Any]]:
        """What is known of the finished runs, by name."""
        return [json.loads(file.read_text()) for file in sorted(self.folder.glob('*/record.json'))]

    def config(self, run: TransferRun) -> Config:
        """The config of a run."""
        cfg = read_config(
            self.configs[run.task, run.encoding], cfg_options=self.cfg_options, work_dir=self.folder / run.name
        )
        cfg.val_cfg = cfg.val_dataloader = cfg.val_evaluator = None  # tested afterwards, at every size
        cfg.randomness = dict(seed=run.seed)
        if run.start == 'pretrained':
            cfg.model.backbone.init_cfg = dict(
                type='Pretrained', checkpoint=str(self.pretrained[run.encoding, run.seed]), prefix='backbone.'
            )
        return cfg

    def work(self, seeds: Sequence[int], *, done: Callable[[dict[str, Any]], None] = lambda record: None) -> None:
        """Do what is left and nobody else is doing.

        Args:
            seeds: Of each task, encoding and start.
            done: Told of every finished run.

        Raises:
            ValueError: The folder was begun with other sizes, images or options.
        """
        plan = dict(sizes=list(self.sizes), images=self.images, cfg_options=self.cfg_options)
        file = self.folder / 'plan.json'
        if not file.exists():
            with write_whole(file) as unfinished:
                unfinished.write_text(json.dumps(plan, indent=1))
        elif (begun := json.loads(file.read_text())) != plan:
            raise ValueError(f'folder: {self.folder} was begun with {begun}, got {plan}; use another folder')
        for run in self.left(seeds):
            with claim(self.folder / f'.{run.name}.lock') as mine:
                if mine and run in self.left(seeds):
                    done(self._do(run))

    def _do(self, run: TransferRun) -> dict[str, Any]:
        folder = self.folder / run.name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        cfg = self.config(run)
        trained = copy.deepcopy(cfg)
        trained.experiment_name = f'{run.name}_{time.time_ns()}'
        with (folder / 'console.log').open('a') as log, redirect_stdout(log):
            runner = Runner.from_cfg(trained)
            runner.train()
            torch.save({'state_dict': runner.model.state_dict()}, folder / 'weights.pth')
            device = next(runner.model.parameters()).device.type
            cfg.model.backbone.pop('init_cfg', None)  # the weights hold it all
            sizes = [Size(factor=size) for size in self.sizes]
            found = sweep(
                [Candidate(run.name, cfg, folder / 'weights.pth')],
                sizes,
                table=folder / 'sizes.csv',
                limit=self.images,
            )
            for handler in list(runner.logger.handlers):  # who logs later must not write into a closed file
                if getattr(handler, 'stream', None) is log:
                    runner.logger.removeHandler(handler)
        metric = main_metric(found)
        rows = [
            TransferRow(**asdict(run), size=float(row.size), metric=metric, value=row.metrics[metric]) for row in found
        ]
        told = {key: value for key, value in trained.to_dict().items() if key not in ('experiment_name', 'work_dir')}
        record = dict(
            **asdict(run),
            rows=[asdict(row) for row in rows],
            images=found[0].images,
            commit=commit(),
            machine=describe_machine(device),
            config=Config(told).pretty_text,
        )
        for checkpoint in folder.glob('iter_*.pth'):  # with the optimizer, four times the weights
            checkpoint.unlink()
        with write_whole(folder / 'record.json') as unfinished:
            unfinished.write_text(json.dumps(record, indent=1))
        return record


def write_transfer(records: Sequence[dict[str, Any]], table: Path, runs: Path) -> None:
    """Write the results, and where, when and from what code each run was trained, as two CSV files."""
    write_table(table, [row for record in records for row in record['rows']])
    names = ('task', 'encoding', 'start', 'seed', 'images', 'commit')
    write_table(runs, [{**{name: r[name] for name in names}, **r['machine']} for r in records])


def read_transfer(table: Path) -> list[TransferRow]:
    """The results that :func:`write_transfer` wrote."""
    kinds: dict[str, Callable[[str], Any]] = dict(seed=int, size=float, value=float)
    return [
        TransferRow(**{field.name: kinds.get(field.name, str)(line[field.name]) for field in fields(TransferRow)})
        for line in read_table(table)
    ]


def values(rows: Sequence[TransferRow], task: str, encoding: str, start: str, size: float) -> list[float]:
    """One number a seed."""
    wanted = (task, encoding, start, size)
    return [row.value for row in rows if (row.task, row.encoding, row.start, row.size) == wanted]


def _encodings(rows: Sequence[TransferRow]) -> list[str]:
    """PEG first: the others are what it is compared with."""
    return sorted({row.encoding for row in rows}, key=lambda name: (name != 'peg', name))


def transfer_report(rows: Sequence[TransferRow], *, pictures: str = '.') -> str:
    """Tables of every task as Markdown: each encoding and start at each size, and the differences between them."""
    parts = ['Mean ± standard deviation over seeds; differences with their 95 % confidence interval (Welch).']
    encodings = _encodings(rows)
    for task in dict.fromkeys(row.task for row in rows):
        mine = [row for row in rows if row.task == task]
        sizes = sorted({row.size for row in mine})
        digits = 1 if mine[0].metric == 'mIoU' else 3
        starts = [start for start in STARTS if any(row.start == start for row in mine)]
        lines = [
            f'**{task}, {mine[0].metric}**',
            '',
            '| start | encoding | seeds | ' + ' | '.join(f'{size:g} x' for size in sizes) + ' |',
            '| --- | --- | ---: |' + ' ---: |' * len(sizes),
        ]
        for start in starts:
            for encoding in encodings:
                cells = [values(mine, task, encoding, start, size) for size in sizes]
                shown = ' | '.join(spread(cell, digits) for cell in cells)
                lines.append(f'| {start} | {encoding} | {len(cells[0])} | {shown} |')
        compared = [
            (f'{start}: {a} minus {b}', [(a, start), (b, start)])
            for start in starts
            for a, b in zip(encodings[:1] * (len(encodings) - 1), encodings[1:], strict=True)
        ]
        if len(starts) == 2:
            compared += [(f'{e}: pretrained minus scratch', [(e, 'pretrained'), (e, 'scratch')]) for e in encodings]
        for what, (one, other) in compared:
            found = [difference(values(mine, task, *one, size), values(mine, task, *other, size)) for size in sizes]
            lines.append(f'| {what} | | | ' + ' | '.join(each.text(digits) for each in found) + ' |')
        parts.append('\n'.join(lines))
    parts.append(f'![Accuracy against test size]({pictures}/dense_transfer.png)')
    return '\n\n'.join(parts)


def draw_transfer(rows: Sequence[TransferRow], path: Path) -> None:
    """Accuracy against test size, a panel a task: colour for the encoding, dashed from scratch, bands over seeds."""
    tasks = list(dict.fromkeys(row.task for row in rows))
    encodings = _encodings(rows)
    with panels(path, 1, len(tasks), size=(4.6, 3.6)) as (_, axes):
        for axis, task in zip(axes[0], tasks, strict=True):
            mine = [row for row in rows if row.task == task]
            sizes = sorted({row.size for row in mine})
            for start in STARTS:
                for index, encoding in enumerate(encodings):
                    cells = {size: values(mine, task, encoding, start, size) for size in sizes}
                    cells = {size: cell for size, cell in cells.items() if cell}
                    line, color = '--' if start == 'scratch' else '-', f'C{index}'
                    means, low, high = ([f(cell) for cell in cells.values()] for f in (mean, min, max))
                    axis.plot(list(cells), means, line, color=color, marker='o', ms=4, label=f'{encoding}, {start}')
                    axis.fill_between(list(cells), low, high, color=color, alpha=0.15)
            plain_axis(axis, task, 'size, relative to the test scale of the config')
            axis.set_ylabel(mine[0].metric, fontsize=8)
            axis.set_ylim(bottom=0)
        axes[0][0].legend(frameon=False, fontsize=8)
