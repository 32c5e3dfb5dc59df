"""Reproducible random numbers of a resumed training.

- For the images of a batch (crops, flips, noise), they depend on seed, rank and iteration, but not
  on the number of workers.
- For the model (dropout, stochastic depth), they depend on the random state in the checkpoint.
"""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

import numpy as np
import torch
from mmengine.registry import DATA_SAMPLERS, LOOPS
from mmengine.runner import IterBasedTrainLoop, Runner
from torch.utils.data import BatchSampler, DataLoader, get_worker_info


def random_state() -> dict[str, Any]:
    """Return the states of this process's random generators: Python's, NumPy's and torch's."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return dict(
        python=random.getstate(),
        numpy=np.random.get_state(),
        torch=torch.get_rng_state(),
        cuda=cuda,
    )


def set_random_state(state: dict[str, Any]) -> None:
    """Restore the random generators from the result of :func:`random_state`."""
    random.setstate(state['python'])
    np.random.set_state(state['numpy'])
    torch.set_rng_state(state['torch'].cpu())
    if state['cuda'] and torch.cuda.device_count() == len(state['cuda']):
        torch.cuda.set_rng_state_all([one.cpu() for one in state['cuda']])


class SeededBatch(Sequence[Any]):
    """Indices of a batch; iterating over them seeds the random generators.

    torch reads a batch by ``[dataset[index] for index in batch]``, in a worker or in this process.

    Args:
        indices: Indices of the images.
        seed: Numbers that seed the generators of Python, NumPy and torch (CPU).
    """

    def __init__(self, indices: Sequence[Any], seed: Sequence[int]) -> None:
        self.indices, self.seed = indices, seed

    def __getitem__(self, number: Any) -> Any:
        return self.indices[number]

    def __len__(self) -> int:
        return len(self.indices)

    def __iter__(self) -> Iterator[Any]:
        with _seeded(self.seed):
            yield from self.indices


class SeededBatches:
    """Batch sampler that yields :class:`SeededBatch` and can skip the first batches.

    Args:
        sampler: Sampler of the data loader.
        batch_size: Images per batch.
        batches: Config of another batch sampler that makes the batches.
        drop_last: Without ``batches``, leave out a smaller last batch.
    """

    runner: Runner
    """The training, whose ``seed``, ``rank`` and ``iter`` give the seeds; set by the runner."""

    def __init__(
        self,
        sampler: Any,
        batch_size: int,
        batches: dict[str, Any] | None = None,
        drop_last: bool = False,
    ) -> None:
        self.sampler, self.batch_size, self.drop_last = sampler, batch_size, drop_last
        self.batches: Any
        if batches is None:
            self.batches = BatchSampler(sampler, batch_size, drop_last)
        else:
            options = dict(sampler=sampler, batch_size=batch_size)
            self.batches = DATA_SAMPLERS.build(batches, default_args=options)
        self.to_skip = 0
        """Number of batches that the next iterator skips without reading their images."""
        self._passes = 0

    def __iter__(self) -> Iterator[SeededBatch]:
        runner = self.runner
        for iteration, indices in enumerate(self._unseen(), runner.iter):
            yield SeededBatch(indices, (runner.seed, runner.rank, iteration))

    def _unseen(self) -> Iterator[Sequence[Any]]:
        to_skip, self.to_skip = self.to_skip, 0
        batches = iter(self.batches)
        while to_skip > 0:
            passed = sum(1 for _ in islice(batches, to_skip))
            to_skip -= passed
            if to_skip and not passed:  # no data
                return
            if to_skip:
                self.start_pass()
                batches = iter(self.batches)
        yield from batches

    def start_pass(self) -> None:
        """Let the sampler shuffle for the next pass over the data."""
        self._passes += 1
        if hasattr(self.sampler, 'set_epoch'):
            self.sampler.set_epoch(self._passes)

    def __len__(self) -> int:
        return len(self.batches)


def with_seeded_batches(dataloader: Any) -> dict[str, Any] | None:
    """Make a data loader's config use :class:`SeededBatches`.

    Args:
        dataloader: Config of mmengine's data loader, or a data loader.

    Returns:
        The new config; ``None`` if torch reads images without a batch sampler (``batch_size=None``,
        no ``sampler``), or if the loader or batch sampler is already built.
    """
    if not isinstance(dataloader, dict):
        return None
    options = dict(dataloader)
    batches = options.get('batch_sampler')
    if options.get('sampler') is None or not options.get('batch_size'):
        return None
    if not (batches is None or isinstance(batches, dict)):
        return None
    seeded = dict(type=SeededBatches, batches=batches)
    if batches is None:
        seeded['drop_last'] = options.pop('drop_last', False)
    return {**options, 'batch_sampler': seeded}


@LOOPS.register_module()
class SeededIterLoop(IterBasedTrainLoop):
    """mmengine's ``IterBasedTrainLoop``, which skips the data of a resumed training unread.

    The arguments are those of ``IterBasedTrainLoop``, which :class:`ResumableRunner` replaces by
    this loop.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if isinstance(self.dataloader.batch_sampler, SeededBatches):
            self.dataloader_iterator = EndlessBatches(self.dataloader)


class EndlessBatches:
    """Endless iterator over batches, pass after pass over the data.

    Args:
        loader: Data loader with :class:`SeededBatches`.
    """

    def __init__(self, loader: DataLoader) -> None:
        self._loader = loader
        self._batches: Iterator[Any] | None = None

    def __iter__(self) -> 'EndlessBatches':
        return self

    def __next__(self) -> Any:
        if self._batches is None:
            self._batches = iter(self._loader)
        for batch in self._batches:
            return batch
        self._loader.batch_sampler.start_pass()  # type: ignore[union-attr]
        self._batches = iter(self._loader)
        return next(self._batches)

    def skip_iter(self, num_iters: int) -> None:
        """Do nothing, because ``to_skip`` of the batch sampler skips what was read."""


@contextmanager
def _seeded(seed: Sequence[int]) -> Iterator[None]:
    """Seed the CPU's generators; in the model's process, restore them at the end."""
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
