"""A comparison of configs over seeds: every one trained alike, then tested at several image sizes.

A study is a folder: ``plan.json``, one folder a run under ``runs/`` with its log, weights and ``record.json`` (config,
seed, commit, machine, results), and ``results.csv``, which is nothing but the records side by side. Any number of
processes may work on one folder; each takes the next run that nobody has, and an interrupted run goes on from its last
epoch.
"""

import copy
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.registry import MODELS, init_default_scope
from mmengine.runner import Runner, TestLoop

from cpvt_backbones.engine.launch import find_toolbox, read_config, use_amp

from .backbone_of import FeatureMaps, load_picture
from .equivariance import measure_equivariance
from .files import claim, write_whole
from .machine import describe_machine
from .provenance import note_commit
from .study_rows import Row, write_rows

Wanted = Sequence[tuple[str, Sequence[int]]]
"""Variants and the seeds of each, the most important first."""

TRAINING_PASSES = 3
"""Forward passes that a training iteration takes as long as."""


@dataclass(frozen=True)
class Plan:
    """What all runs of a study share.

    Attributes:
        epochs: Length of each training.
        batch_size: Images a training iteration.
        train_size: Side in pixels that the configs train at.
        sizes: Sides in pixels that each run is tested at, without fine-tuning.
        rate_factors: What the learning rate of the ``tuned`` variants is tried at, relative to the config's, on the
            first seed; the best at ``train_size`` serves all their seeds.
        tuned: The variants that get this chance.
        data_root: Folder of the images.
        amp_dtype: ``'bfloat16'`` or ``'float16'`` for mixed precision, else ``None``.
    """

    epochs: int
    batch_size: int
    train_size: int
    sizes: tuple[int, ...]
    rate_factors: tuple[float, ...]
    tuned: tuple[str, ...]
    data_root: str
    amp_dtype: str | None = None

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise ValueError(f'epochs must be at least 1, got {self.epochs!r}')
        if self.train_size not in self.sizes:
            raise ValueError(f'sizes must hold the training size, {self.train_size}, got {self.sizes}')
        if 1.0 not in self.rate_factors:
            raise ValueError(f"rate_factors must hold 1.0, the config's own rate, got {self.rate_factors}")

    def training_steps(self, images: int) -> int:
        """Iterations of a training on so many images."""
        return self.epochs * (images // self.batch_size)

    def test_steps(self, images: int) -> float:
        """Cost of testing so many images at every size, in training iterations."""
        return sum(self.test_step(images, size) for size in self.sizes)

    def test_step(self, images: int, size: int) -> float:
        """Cost of testing so many images at one size, in training iterations."""
        return images * (size / self.train_size) ** 2 / self.batch_size / TRAINING_PASSES


@dataclass(frozen=True)
class Run:
    """One training.

    Attributes:
        variant: Name of the config.
        seed: Of weights, order and crops.
        rate_factor: What the config's learning rate is multiplied by.
    """

    variant: str
    seed: int
    rate_factor: float = 1.0

    @property
    def name(self) -> str:
        """Name of the run's folder."""
        rate = '' if self.rate_factor == 1 else f'_rate-x{self.rate_factor:g}'
        return f'{self.variant}{rate}_seed-{self.seed}'


class Study:
    """A folder of runs.

    Args:
        folder: Where the study lives.
        configs: The config file of each variant.
        plan: What the runs share; ``None`` goes on with the folder's.

    Raises:
        FileNotFoundError: No ``plan``, and the folder has none.
        ValueError: The folder was begun with another plan.
    """

    def __init__(self, *, folder: Path, configs: Mapping[str, Path], plan: Plan | None = None) -> None:
        self.folder, self.configs = folder, dict(configs)
        file = folder / 'plan.json'
        if file.exists():
            told: Any = json.loads(file.read_text())
            told = {key: tuple(value) if isinstance(value, list) else value for key, value in told.items()}
            begun = Plan(**told)
            if plan not in (None, begun):
                raise ValueError(f'plan: {folder} was begun with {begun}, got {plan}; use another folder')
            plan = begun
        if plan is None:
            raise FileNotFoundError(f'folder: no study was begun in {str(folder)!r}')
        self.plan = plan
        if not file.exists():
            folder.mkdir(parents=True, exist_ok=True)
            with write_whole(file) as unfinished:
                unfinished.write_text(json.dumps(asdict(plan), indent=1))

    # -- what there is to do -----------------------------------------------------------------------------------------

    def record(self, run: Run) -> dict[str, Any] | None:
        """What is known of a finished run."""
        file = self.folder / 'runs' / run.name / 'record.json'
        return json.loads(file.read_text()) if file.exists() else None

    def records(self) -> list[dict[str, Any]]:
        """Those of all finished runs, by name."""
        return [json.loads(file.read_text()) for file in sorted((self.folder / 'runs').glob('*/record.json'))]

    def check_configs(self) -> None:
        """All seeds of a variant must have been trained with one config.

        Raises:
            ValueError: Two were not.
        """
        first: dict[tuple[str, float], tuple[str, str]] = {}
        for record in self.records():
            run = Run(**{field.name: record[field.name] for field in fields(Run)})
            config = re.sub(r'seed=\d+', 'seed=...', record['config'])
            name, other = first.setdefault((run.variant, run.rate_factor), (run.name, config))
            if config != other:
                raise ValueError(f'folder: {self.folder} holds {name} and {run.name}, trained with different configs')

    def rows(self) -> list[Row]:
        """The results of all finished runs."""
        return [Row(**row) for record in self.records() for row in record['rows']]

    def trials(self, variant: str, seeds: Sequence[int]) -> list[Run]:
        """The runs that choose a tuned variant's rate; none for the others."""
        if variant not in self.plan.tuned:
            return []
        return [Run(variant, seeds[0], factor) for factor in self.plan.rate_factors]

    def best_rate(self, variant: str, seeds: Sequence[int]) -> float | None:
        """The factor that a variant runs at; ``None`` while that is open."""
        trials = self.trials(variant, seeds)
        if not trials:
            return 1.0
        scores = {}
        for run in trials:
            record = self.record(run)
            if record is None:
                return None
            scores[run.rate_factor] = top1_at(record, self.plan.train_size)
        return max(scores, key=scores.__getitem__)

    def pending(self, wanted: Wanted) -> tuple[list[Run], int]:
        """What is left of (variant, seeds): the runs that can start, in order, and how many wait for a rate."""
        ready: list[Run] = []
        waiting = 0
        # Seed by seed, so that a study that is cut short has every variant.
        for turn in range(max((len(seeds) for _, seeds in wanted), default=0)):
            for variant, seeds in wanted:
                if turn == 0:
                    ready += self.trials(variant, seeds)
                if turn < len(seeds):
                    rate = self.best_rate(variant, seeds)
                    if rate is None:
                        waiting += turn > 0  # of the first seed, one of the trials is the run
                    else:
                        ready.append(Run(variant, seeds[turn], rate))
        return [run for run in dict.fromkeys(ready) if self.record(run) is None], waiting

    def left(self, wanted: Wanted) -> int:
        """How many runs are not done."""
        ready, waiting = self.pending(wanted)
        return len(ready) + waiting

    # -- doing it ----------------------------------------------------------------------------------------------------

    def work(
        self,
        wanted: Wanted,
        *,
        progress: Callable[[Run, float], None] = lambda run, steps: None,
        done: Callable[[Run, dict[str, Any]], None] = lambda run, record: None,
        patience: float = 10.0,
    ) -> None:
        """Do what is left and nobody else is doing, until nothing is.

        Args:
            wanted: Variants and their seeds, the most important first.
            progress: Told of every step, as training iterations (a test batch counts by its cost).
            done: Told of every finished run.
            patience: Seconds between two looks, while another process has what this one waits for.
        """
        while True:
            ready, waiting = self.pending(wanted)
            if not ready and not waiting:
                return
            for run in ready:
                with claim(self.folder / 'runs' / run.name / '.lock') as mine:
                    if mine and self.record(run) is None:
                        done(run, self._do(run, partial(progress, run)))
                        break
            else:
                time.sleep(patience)

    def add_shift_errors(self, *, images: int = 200) -> None:
        """Measure ``shift_error`` of the finished runs that lack it, on some images of the test set."""
        for record in self.records():
            (row,) = (row for row in record['rows'] if row['size'] == self.plan.train_size)
            if row['shift_error'] is not None:
                continue
            run = Run(**{field.name: record[field.name] for field in fields(Run)})
            cfg = self.config(run)
            model = FeatureMaps(cfg, self.folder / 'runs' / run.name / 'weights.pth')
            stride = int(model.backbone.out_strides[-1])  # type: ignore[index]
            paths = image_paths(cfg.test_dataloader.dataset)
            side = self.plan.train_size + stride  # things as large as in the test
            count = min(images, len(paths))
            pictures = [load_picture(paths[i * len(paths) // count], size=(side, side)) for i in range(count)]
            (found,) = measure_equivariance(
                model, model.normalise(pictures), size=self.plan.train_size, shifts=[stride]
            )
            row['shift_error'] = round(found.error, 5)
            self._keep(run, record)

    def _keep(self, run: Run, record: dict[str, Any]) -> None:
        with write_whole(self.folder / 'runs' / run.name / 'record.json') as unfinished:
            unfinished.write_text(json.dumps(record, indent=1))
        write_rows(self.rows(), self.folder / 'results.csv')

    def config(self, run: Run) -> Config:
        """The config of a run."""
        cfg = read_config(self.configs[run.variant], work_dir=self.folder / 'runs' / run.name)
        plan = self.plan
        cfg.train_cfg = dict(by_epoch=True, max_epochs=plan.epochs)
        cfg.param_scheduler[-1].end = plan.epochs
        if plan.epochs <= cfg.param_scheduler[-1].begin:  # a smoke test: no room for a warm-up
            cfg.param_scheduler = [dict(cfg.param_scheduler[-1], begin=0)]
        cfg.optim_wrapper.optimizer.lr *= run.rate_factor
        cfg.randomness = dict(seed=run.seed)
        cfg.train_dataloader.batch_size = plan.batch_size
        for loader in (cfg.train_dataloader, cfg.test_dataloader):
            loader.dataset.data_root = plan.data_root
        cfg.val_cfg = cfg.val_dataloader = cfg.val_evaluator = None  # tested below, at every size
        cfg.default_hooks.checkpoint = dict(type='CheckpointHook', interval=1, max_keep_ckpts=1)
        cfg.resume = True
        cfg.experiment_name = f'{run.name}_{time.time_ns()}'
        if plan.amp_dtype:
            use_amp(cfg, plan.amp_dtype)
        return cfg

    def _do(self, run: Run, progress: Callable[[float], None]) -> dict[str, Any]:
        cfg = self.config(run)
        folder = Path(cfg.work_dir)
        commits = note_commit(folder / 'commits.txt')
        with (folder / 'console.log').open('a') as log, redirect_stdout(log):
            runner = Runner.from_cfg(copy.deepcopy(cfg))
            runner.register_hook(_Steps(progress, self.plan))
            runner.train()
            rows = [
                Row(
                    variant=run.variant,
                    seed=run.seed,
                    rate_factor=run.rate_factor,
                    epochs=self.plan.epochs,
                    size=size,
                    top1=test_at(runner, cfg, size),
                )
                for size in self.plan.sizes
            ]
            torch.save(runner.model.state_dict(), folder / 'weights.pth')
            for handler in list(runner.logger.handlers):  # who logs later must not write into a closed file
                if getattr(handler, 'stream', None) is log:
                    runner.logger.removeHandler(handler)
        device = next(runner.model.parameters()).device.type
        told = {
            key: value for key, value in cfg.to_dict().items() if key not in ('experiment_name', 'work_dir', 'resume')
        }
        record = dict(
            **asdict(run),
            rows=[asdict(row) for row in rows],
            commits=commits,
            machine=describe_machine(device),
            config=Config(told).pretty_text,
        )
        self._keep(run, record)
        for checkpoint in folder.glob('epoch_*.pth'):  # with the optimizer, four times the weights
            checkpoint.unlink()
        return record


class _Steps(Hook):
    """Counts iterations, those of a test by their share of a training iteration."""

    def __init__(self, progress: Callable[[float], None], plan: Plan) -> None:
        self.progress, self.plan = progress, plan

    def before_train(self, runner: Runner) -> None:
        self.progress(runner.iter)  # what an interrupted run had done

    def after_train_iter(self, runner: Runner, *args: Any, **kwargs: Any) -> None:
        self.progress(1.0)

    def after_test_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        images = data_batch['inputs']
        self.progress(self.plan.test_step(len(images), images[0].shape[-1]))


def test_at(runner: Runner, cfg: Config, size: int) -> float:
    """Top-1 accuracy in percent of a runner's model on the config's test set, resized to squares of ``size`` px."""
    loader = copy.deepcopy(cfg.test_dataloader)
    resizes = [step for step in loader.dataset.pipeline if step['type'] == 'Resize']
    if len(resizes) != 1:
        raise ValueError(f'test_dataloader: its pipeline must have one Resize, got {len(resizes)}')
    resizes[0]['scale'] = (size, size)
    runner._test_loop = TestLoop(runner, loader, cfg.test_evaluator)
    return round(float(runner._test_loop.run()['accuracy/top1']), 3)


def top1_at(record: dict[str, Any], size: int) -> float:
    """Top-1 accuracy of a record at one size."""
    return next(row['top1'] for row in record['rows'] if row['size'] == size)


def image_paths(dataset: Any) -> list[str]:
    """Files of a config's classification data set, in its order."""
    from mmpretrain.datasets import CustomDataset

    options = {key: dataset[key] for key in ('data_root', 'data_prefix', 'extensions') if key in dataset}
    listed = CustomDataset(**options)
    return [listed.get_data_info(index)['img_path'] for index in range(len(listed))]


def seconds_per_iteration(config: Path, plan: Plan, *, device: str, repeats: int = 6) -> float:
    """Time of a training iteration of a config's model on random images: the fastest of a few."""
    cfg = read_config(config)
    find_toolbox(cfg)
    init_default_scope(cfg.default_scope)
    backbone = MODELS.build(cfg.model.backbone).to(device)
    images = torch.randn(plan.batch_size, 3, plan.train_size, plan.train_size, device=device)
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        backbone(images)[-1].square().mean().backward()
        if device == 'cuda':
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begun)
    return min(times)
