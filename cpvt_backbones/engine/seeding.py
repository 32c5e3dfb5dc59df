"""Random numbers that a training draws again after it was interrupted.

Two things decide them:

- The images of a batch (crops, flips, noise): the seed of the run, the rank and the number of the
  iteration. The number of data loader workers has no part in it.
- The model (dropout, stochastic depth): the random state, which a checkpoint holds.
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


class SeededBatch(Sequence[Any]):
    """Indices of a batch; while they are gone through, the random generators have its seed.

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
    """Batch sampler of :class:`SeededBatch`, which can pass over the first batches.

    Args:
        sampler: Sampler of the data loader.
        batch_size: Images per batch.
        batches: Config of another batch sampler, which makes the batches.
        drop_last: Whether to leave out a smaller last batch, without ``batches``.
    """

    runner: Runner
    """The training, whose ``seed``, ``rank`` and ``iter`` decide the seeds. Set by the runner."""

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
        """Batches that the next iterator passes over without reading their images."""
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
        """Let the sampler shuffle for another pass over the data."""
        self._passes += 1
        if hasattr(self.sampler, 'set_epoch'):
            self.sampler.set_epoch(self._passes)

    def __len__(self) -> int:
        return len(self.batches)


def with_seeded_batches(dataloader: Any) -> dict[str, Any] | None:
    """Config of a data loader whose batches are :class:`SeededBatches`.

    Args:
        dataloader: Config of mmengine's data loader, or a data loader.

    Returns:
        The new config; ``None`` if torch reads its images without a batch sampler
        (``batch_size=None``, no ``sampler``), or if loader or batch sampler is already built.
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
    """mmengine's loop by iterations, which passes over the data of a resumed training unread.

    The arguments are those of ``IterBasedTrainLoop``. :class:`ResumableRunner` takes this loop in
    its place.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if isinstance(self.dataloader.batch_sampler, SeededBatches):
            self.dataloader_iterator = EndlessBatches(self.dataloader)


class EndlessBatches:
    """Iterator over the batches of one pass over the data after another.

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
        """Do nothing: ``to_skip`` of the batch sampler says what a resumed training has read."""


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
