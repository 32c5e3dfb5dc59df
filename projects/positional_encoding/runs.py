"""Resumable trainings in a folder that any number of processes work on."""

import copy
import json
import os
import platform
import re
import shutil
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from mmengine.config import Config
from mmengine.runner import Runner
from mmengine.utils.dl_utils import collect_env

from cpvt_backbones.checkpoints import atomic_write

Record = dict[str, Any]


class RunFolder(ABC):
    """A folder of trainings that share a plan.

    ``plan.json`` holds the plan. Every run has a folder of its own with ``console.log``, ``weights.pth``, and, once it
    is finished, ``record.json``: the run, its results, commits, environment, and config. Plans and runs are data
    classes; a run has a ``seed`` and a unique ``name``.

    Args:
        folder: Where the runs live.
        plan: Settings that all runs share; ``None`` continues with the folder's.

    Raises:
        FileNotFoundError: No ``plan``, and the folder has none.
        ValueError: The folder was begun with another plan.
    """

    plan_type: type
    resumable: bool
    """Continue an interrupted run from its last checkpoint; otherwise start it again."""

    def __init__(self, folder: Path, plan: Any | None) -> None:
        self.folder = folder
        file = folder / 'plan.json'
        if file.exists():
            values = json.loads(file.read_text())
            begun = self.plan_type(**{key: tuple(v) if isinstance(v, list) else v for key, v in values.items()})
            if plan not in (None, begun):
                raise ValueError(f'plan: {folder} was begun with {begun}, got {plan}; use another folder')
            plan = begun
        elif plan is None:
            raise FileNotFoundError(f'folder: no study was begun in {str(folder)!r}')
        else:
            _write_json(file, asdict(plan))
        self.plan = plan

    @abstractmethod
    def pending(self) -> tuple[list[Any], int]:
        """Runs that can start, most important first, and the number of those that wait for the result of others."""

    @abstractmethod
    def config(self, run: Any) -> Config:
        """Config of a run."""

    @abstractmethod
    def evaluate(self, runner: Runner, cfg: Config, weights: Path) -> list[dict[str, Any]]:
        """Test a trained model: one row of results for each image size."""

    def left(self) -> int:
        """Number of runs that are not finished."""
        ready, waiting = self.pending()
        return len(ready) + waiting

    def record(self, run: Any) -> Record | None:
        """Record of a finished run."""
        file = self.folder / run.name / 'record.json'
        return json.loads(file.read_text()) if file.exists() else None

    def work(self, *, done: Callable[[Any, Record], None] = lambda run, record: None, patience: float = 10.0) -> None:
        """Train until all runs are finished, leaving to other processes what they have begun.

        Args:
            done: Called after every run of this process.
            patience: Seconds to wait before looking again when other processes hold all remaining runs.
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

    def _train(self, run: Any) -> Record:
        folder = self.folder / run.name
        if not self.resumable:
            shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        commits = _add_commit(folder / 'commits.txt')
        cfg = self.config(run)
        cfg.val_cfg = cfg.val_dataloader = cfg.val_evaluator = None  # tested after training, at every size
        # Equal for all seeds of a variant; `read_records` relies on it.
        text = Config({k: v for k, v in cfg.to_dict().items() if k not in ('work_dir', 'randomness')}).pretty_text
        cfg.randomness, cfg.work_dir, cfg.resume = dict(seed=run.seed), str(folder), self.resumable
        cfg.experiment_name = f'{run.name}_{time.time_ns()}'  # mmengine keeps loggers by name
        with (folder / 'console.log').open('a') as log, redirect_stdout(log):
            runner = Runner.from_cfg(copy.deepcopy(cfg))
            runner.train()
            torch.save({'state_dict': runner.model.state_dict()}, folder / 'weights.pth')
            rows = self.evaluate(runner, cfg, folder / 'weights.pth')
            for handler in list(runner.logger.handlers):  # the next run must not log to a closed file
                if getattr(handler, 'stream', None) is log:
                    runner.logger.removeHandler(handler)
        record = dict(run=asdict(run), rows=rows, commits=commits, environment=environment(), config=text)
        _write_json(folder / 'record.json', record)
        for checkpoint in (*folder.glob('epoch_*.pth'), *folder.glob('iter_*.pth')):  # four times the weights' size
            checkpoint.unlink()
        return record


def read_records(folder: Path) -> list[Record]:
    """Records of a folder's finished runs, sorted by name.

    Raises:
        ValueError: Two runs that differ only in the seed were trained with different configs.
    """
    records = [json.loads(file.read_text()) for file in sorted(folder.glob('*/record.json'))]
    configs: dict[Any, tuple[str, int]] = {}
    for record in records:
        run = {name: value for name, value in record['run'].items() if name != 'seed'}
        config, seed = record['config'], record['run']['seed']
        first_config, first_seed = configs.setdefault(tuple(run.values()), (config, seed))
        if config != first_config:
            raise ValueError(f'{folder}: seeds {first_seed} and {seed} of {run} were trained with different configs')
    return records


def environment() -> dict[str, str]:
    """Processor, threads, and mmengine's ``collect_env``."""
    cpuinfo = Path('/proc/cpuinfo')
    name = re.search(r'model name\s*:\s*(.+)', cpuinfo.read_text()) if cpuinfo.exists() else None
    processor = name[1] if name else platform.processor() or platform.machine()
    found = {key: str(value) for key, value in collect_env().items() if key != 'PyTorch compiling details'}
    return dict(processor=f'{processor}, {os.cpu_count()} cores', threads=str(torch.get_num_threads()), **found)


def current_commit(folder: Path = Path(__file__).parent) -> str:
    """Commit of the repository around ``folder``, with ``+`` if tracked files have been changed since.

    mmengine's ``get_git_hash`` describes the working directory instead, and ignores changes.
    """
    command = ['git', 'describe', '--always', '--abbrev=40', '--exclude=*', '--dirty=+']
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False).stdout.strip()


def _add_commit(file: Path) -> str:
    """Append the current commit to a run's file, and return all commits that the run was trained with."""
    commits = file.read_text().split() if file.exists() else []
    if current_commit() not in commits[-1:]:
        commits.append(current_commit())
        file.write_text(' '.join(commits) + '\n')
    return ' '.join(commits)


def _write_json(file: Path, content: Any) -> None:
    with atomic_write(file) as stream:
        stream.write(json.dumps(content, indent=1).encode())
