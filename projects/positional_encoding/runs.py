"""Resumable trainings in a folder that any number of processes work on."""

import copy
import json
import shutil
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from filelock import FileLock, Timeout
from mmengine.config import Config
from mmengine.runner import Runner
from mmengine.utils.dl_utils import collect_env

from benchmarks import processor
from cpvt_backbones.analysis.image_size import TestSize
from cpvt_backbones.analysis.resolution import SweepModel, SweepRow, sweep
from cpvt_backbones.checkpoints import atomic_write

Record = dict[str, Any]


def fix_plan(folder: Path, plan: Any) -> Any:
    """Write a plan into a folder's ``plan.json``, or read it for ``None``.

    Errors: those of :class:`RunFolder`.
    """
    file, plan = folder / 'plan.json', json.loads(json.dumps(plan))  # a tuple is a list there
    begun = json.loads(file.read_text()) if file.exists() else None
    if not (plan or begun):
        raise FileNotFoundError(f'folder: no study was begun in {str(folder)!r}')
    if plan and begun and plan != begun:
        raise ValueError(f'plan: {folder} was begun with {begun}, got {plan}; use another folder')
    write_json(file, begun or plan)
    return begun or plan


@dataclass
class RunFolder(ABC):
    """A folder of runs that share a plan.

    ``plan.json`` holds the plan. Every run has a folder of its own with ``record.json`` once it is
    finished: the run, its results, commits, environment, and config. A run is a named tuple with a
    ``seed`` and a unique ``name``.

    Args:
        folder: Folder of the runs.
        plan: Settings that all runs share, as JSON has them; ``None`` continues with the folder's.

    Raises:
        FileNotFoundError: No ``plan``, and the folder has none.
        ValueError: The folder was begun with another plan.
    """

    folder: Path
    plan: Any

    def __post_init__(self) -> None:
        self.plan = fix_plan(self.folder, self.plan)

    @abstractmethod
    def pending(self) -> tuple[list[Any], int]:
        """Runs that can start, most important first, and the number of those that wait for the
        result of others.
        """

    @abstractmethod
    def _train(self, run: Any) -> Record:
        """Train and test, and write the record."""

    def left(self) -> int:
        """Number of runs that are not finished."""
        ready, waiting = self.pending()
        return len(ready) + waiting

    def record(self, run: Any) -> Record | None:
        """Record of a finished run."""
        file = self.folder / run.name / 'record.json'
        return json.loads(file.read_text()) if file.exists() else None

    def work(
        self,
        *,
        done: Callable[[Any, Record], None] = lambda run, record: None,
        patience: float = 10.0,
    ) -> None:
        """Train until all runs are finished; skip those that other processes have begun.

        Args:
            done: Called after every run of this process.
            patience: Seconds to wait before looking again when other processes hold all remaining
                runs.
        """
        while self.left():
            for run in self.pending()[0]:
                try:  # the lock ends with the process, however that ends
                    lock = FileLock(self.folder / f'.{run.name}.lock').acquire(blocking=False)
                except Timeout:
                    continue
                with lock:
                    if self.record(run) is None:
                        done(run, self._train(run))
                break
            else:
                time.sleep(patience)


@dataclass
class TrainingFolder(RunFolder):
    """Trainings by mmengine's Runner; a run's folder has ``console.log`` and ``weights.pth``, too.

    Args:
        folder, plan: See :class:`RunFolder`.
        configs: Config files.
    """

    configs: Mapping[Any, Path]
    resumable: ClassVar[bool]
    """Continue an interrupted run from its last checkpoint; otherwise start it again."""

    @abstractmethod
    def config(self, run: Any) -> Config:
        """Config of a run."""

    @abstractmethod
    def evaluate(self, cfg: Config, weights: Path) -> list[dict[str, Any]]:
        """Test a trained model: one row of results for each image size."""

    def _train(self, run: Any) -> Record:
        folder = self.folder / run.name
        if not self.resumable:
            shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        commits = add_commit(folder / 'commits.txt')
        cfg = self.config(run)
        cfg.val_cfg = cfg.val_dataloader = cfg.val_evaluator = (
            None  # tested after training, at every size
        )
        # Equal for all seeds of a variant; `read_records` relies on it.
        text = Config(
            {k: v for k, v in cfg.to_dict().items() if k not in ('work_dir', 'randomness')}
        ).pretty_text
        cfg.randomness, cfg.work_dir, cfg.resume = dict(seed=run.seed), str(folder), self.resumable
        cfg.experiment_name = f'{run.name}_{time.time_ns()}'  # mmengine keeps loggers by name
        with (folder / 'console.log').open('a') as log, redirect_stdout(log):
            runner = Runner.from_cfg(copy.deepcopy(cfg))
            runner.train()
            torch.save({'state_dict': runner.model.state_dict()}, folder / 'weights.pth')
            cfg.resume = False
            rows = self.evaluate(cfg, folder / 'weights.pth')
            for handler in list(
                runner.logger.handlers
            ):  # the next run must not log to a closed file
                if getattr(handler, 'stream', None) is log:
                    runner.logger.removeHandler(handler)
        record = dict(
            run=run._asdict(), rows=rows, commits=commits, environment=environment(), config=text
        )
        write_json(folder / 'record.json', record)
        for checkpoint in (
            *folder.glob('epoch_*.pth'),
            *folder.glob('iter_*.pth'),
        ):  # four times the weights' size
            checkpoint.unlink()
        return record


def test_sizes(
    cfg: Config, weights: Path, sizes: Sequence[TestSize], images: int | None = None
) -> list[SweepRow]:
    """Test a run's weights at several image sizes, on ``images`` evenly spaced images, or all."""
    table = weights.with_name('sizes.csv')
    table.unlink(missing_ok=True)  # left by an interruption
    return sweep([SweepModel(weights.parent.name, cfg, weights)], sizes, table=table, limit=images)


def read_records(folder: Path) -> list[Record]:
    """Records of a folder's finished runs, sorted by name.

    Raises:
        ValueError: Two runs that differ only in the seed were trained with different configs.
    """
    records = [json.loads(file.read_text()) for file in sorted(folder.glob('*/record.json'))]
    first: dict[str, Record] = {}
    for record in records:
        run = {name: value for name, value in record['run'].items() if name != 'seed'}
        other = first.setdefault(str(run), record)
        if record['config'] != other['config']:
            seeds = f'{other["run"]["seed"]} and {record["run"]["seed"]}'
            raise ValueError(
                f'{folder}: seeds {seeds} of {run} were trained with different configs'
            )
    return records


def current_commit(folder: Path = Path(__file__).parent) -> str:
    """Commit of the repository around ``folder``, with ``+`` if tracked files have been changed
    since.

    mmengine's ``get_git_hash`` describes the working directory instead, and ignores changes.
    """
    command = ['git', 'describe', '--always', '--abbrev=40', '--exclude=*', '--dirty=+']
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False
    ).stdout.strip()


def environment() -> dict[str, str]:
    """Versions, processor and threads, for a record."""
    found = {k: str(v) for k, v in collect_env().items() if k != 'PyTorch compiling details'}
    return found | dict(processor=processor(), threads=str(torch.get_num_threads()))


def origin() -> dict[str, str]:
    """Commit and processor of a measurement, for its row."""
    return dict(commit=current_commit(), processor=processor())


def add_commit(file: Path) -> str:
    """Append the current commit to a run's file, and return all commits that the run was trained
    with.
    """
    commits = file.read_text().split() if file.exists() else []
    if current_commit() not in commits[-1:]:
        commits.append(current_commit())
        file.write_text(' '.join(commits) + '\n')
    return ' '.join(commits)


def write_json(file: Path, content: Any) -> None:
    """Write JSON, atomically."""
    with atomic_write(file) as stream:
        stream.write(json.dumps(content, indent=1).encode())
