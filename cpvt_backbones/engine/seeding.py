"""Random numbers that a training draws again after it was interrupted.

Two things decide them:

- The images of a batch (crops, flips, noise): the seed of the run, the rank and the number of the
  iteration. The number of data loader workers has no part in it.
- The model (dropout, stochastic depth): the random state, which a checkpoint holds.
"""

import atexit
import multiprocessing
import os
import random
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from mmengine.runner import Runner
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


def random_state() -> dict[str, Any]:
    """States of the random generators of this process: Python's, NumPy's and torch's."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return dict(
        python=random.getstate(),
        numpy=np.random.get_state(),
        torch=torch.get_rng_state(),
        cuda=cuda,
    )


def set_random_state(state: dict[str, Any]) -> None:
    """Set the random generators to what :func:`random_state` returned."""
    random.setstate(state['python'])
    np.random.set_state(state['numpy'])
    torch.set_rng_state(state['torch'].cpu())
    if state['cuda'] and torch.cuda.device_count() == len(state['cuda']):
        torch.cuda.set_rng_state_all([one.cpu() for one in state['cuda']])


class SeededBatch(list):
    """Indices of the images of a batch, with the seed of their random numbers."""

    seed: Sequence[int] = ()


class SeededBatches:
    """A batch sampler whose batches carry seeds, for :class:`SeededImages`.

    Args:
        batch_sampler: The batch sampler of the data loader.
        runner: The training, whose ``seed``, ``rank`` and ``iter`` decide the seeds.
    """

    def __init__(self, batch_sampler: Any, runner: Runner) -> None:
        self.batch_sampler, self.runner = batch_sampler, runner
        self.to_skip = 0
        """Batches that the next iterator passes over without reading their images."""
        self.start_pass: Callable[[], None] | None = None
        """What starts another pass over the data, where ``to_skip`` spans more than one."""

    def __iter__(self) -> Iterator[SeededBatch]:
        iteration = self.runner.iter
        for indices in self._unseen():
            batch = SeededBatch(indices)
            batch.seed = (self.runner.seed, self.runner.rank, iteration)
            yield batch
            iteration += 1

    def _unseen(self) -> Iterator[Sequence[int]]:
        to_skip, self.to_skip = self.to_skip, 0
        batches = iter(self.batch_sampler)
        drawn = 0
        while to_skip > 0:
            if next(batches, None) is not None:
                to_skip -= 1
                drawn += 1
            elif drawn == 0 or self.start_pass is None:
                return
            else:
                self.start_pass()
                batches, drawn = iter(self.batch_sampler), 0
        yield from batches

    def __len__(self) -> int:
        return len(self.batch_sampler)

    def __getattr__(self, name: str) -> Any:
        if name == 'batch_sampler':  # not yet set, as in a copy
            raise AttributeError(name)
        return getattr(self.batch_sampler, name)


class SeededImages:
    """``__getitems__`` of a dataset, by which torch reads a batch: seeds the generators first."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self.read_batch = getattr(dataset, '__getitems__', None)

    def __call__(self, batch: Sequence[int]) -> list[Any]:
        """Read the images of a batch."""
        seed = getattr(batch, 'seed', None)
        if seed is None:
            return self._read(batch)
        with _seeded(seed):
            return self._read(batch)

    def _read(self, batch: Sequence[int]) -> list[Any]:
        if self.read_batch is not None:
            return self.read_batch(batch)
        return [self.dataset[index] for index in batch]


@contextmanager
def _seeded(seed: Sequence[int]) -> Iterator[None]:
    """Seed the CPU's generators; in the process of the model, restore them at the end."""
    in_worker = get_worker_info() is not None
    before = (
        None if in_worker else (random.getstate(), np.random.get_state(), torch.get_rng_state())
    )
    number = int(np.random.SeedSequence(seed).generate_state(1)[0])
    random.seed(number)
    np.random.seed(number)
    torch.default_generator.manual_seed(number)
    try:
        yield
    finally:
        if before is not None:
            random.setstate(before[0])
            np.random.set_state(before[1])
            torch.set_rng_state(before[2])


def make_repeatable(loader: DataLoader, runner: Runner) -> SeededBatches | None:
    """Let the random numbers of a training's images depend on seed, rank and iteration only.

    Returns:
        The batch sampler that ``loader`` has now; ``None`` where torch reads no batches by index
        (an ``IterableDataset``, ``batch_size=None``) or the dataset takes no attributes (a list).
    """
    # Starting the workers draws a number. It shall not be one of the model's.
    loader.generator = torch.Generator().manual_seed(runner.seed)
    if isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None:
        return None
    dataset: Any = loader.dataset
    if not isinstance(getattr(dataset, '__getitems__', None), SeededImages):
        try:
            dataset.__getitems__ = SeededImages(dataset)
        except AttributeError:
            return None
    batches = SeededBatches(loader.batch_sampler, runner)
    object.__setattr__(loader, 'batch_sampler', batches)  # DataLoader forbids the plain assignment
    return batches


def skip_iterations(iterator: Any, batches: SeededBatches, count: int) -> None:
    """Let mmengine's endless iterator pass over ``count`` batches without reading their images."""

    def start_pass() -> None:
        iterator._epoch += 1
        sampler = batches.runner.train_dataloader.sampler
        if not hasattr(sampler, 'set_epoch'):
            sampler = getattr(batches.batch_sampler, 'sampler', None)
        if hasattr(sampler, 'set_epoch'):
            sampler.set_epoch(iterator._epoch)

    batches.to_skip, batches.start_pass = count, start_pass


def shield_workers(loader: DataLoader) -> None:
    """Let the workers of a data loader outlive a signal to the whole process group.

    A scheduler sends SIGTERM, a terminal SIGINT, to each process of the group. The training still
    needs its workers, until it has saved. When the main process exits, its SIGTERM ends them.
    """
    if loader.num_workers:
        start = loader.worker_init_fn
        loader.worker_init_fn = partial(_start_worker, start=start, ending=_main_process_ends())


@cache
def _main_process_ends() -> Any:
    """A byte of shared memory that is 1 when this process exits.

    multiprocessing then sends SIGTERM once to each worker, and waits for it without a limit.
    """
    ending = multiprocessing.get_context().RawValue('b', 0)

    def end() -> None:
        ending.value = 1

    atexit.register(end)
    return ending


def _start_worker(worker_id: int, *, start: Callable[[int], None] | None, ending: Any) -> None:
    if start is not None:
        start(worker_id)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, partial(_on_sigterm, ending=ending))


def _on_sigterm(number: int, _: Any, *, ending: Any) -> None:
    """Ignore the first SIGTERM while the main process needs the worker."""
    signal.signal(number, signal.SIG_DFL)
    if ending.value:
        os._exit(0)  # as torch's own workers: a death by SIGTERM would be reported as an error
