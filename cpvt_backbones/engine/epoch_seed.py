"""Seeds of epochs, so that a resumed training repeats its random numbers."""

from functools import partial
from typing import Any

from mmengine.hooks import CheckpointHook, Hook
from mmengine.registry import HOOKS
from mmengine.runner import EpochBasedTrainLoop, Runner, set_random_seed


@HOOKS.register_module()
class EpochSeedHook(Hook):
    """Seed every random generator at the start of each epoch from the run's seed, the epoch and the rank.

    mmengine restores weights, optimizer and schedule, but not the generators. With this hook an interrupted training
    ends with the weights of an uninterrupted one. Workers of the data loader get a new seed each epoch, too; mmengine
    alone gives them the same one every time.
    """

    priority = 'VERY_HIGH'

    def before_train(self, runner: Runner) -> None:
        """Refuse what the hook cannot repeat: training or checkpoints by iterations, workers out of its reach."""
        if not isinstance(runner.train_loop, EpochBasedTrainLoop):
            raise ValueError(f'train_cfg must be by_epoch with EpochSeedHook, got {type(runner.train_loop).__name__}')
        loader = runner.train_dataloader
        if loader.persistent_workers:
            raise ValueError('train_dataloader.persistent_workers must be False with EpochSeedHook, got True')
        if any(isinstance(hook, CheckpointHook) and not hook.by_epoch for hook in runner.hooks):
            raise ValueError('default_hooks.checkpoint.by_epoch must be True with EpochSeedHook, got False')
        self._worker_init: Any = loader.worker_init_fn
        if loader.num_workers and 'seed' not in getattr(self._worker_init, 'keywords', {}):
            name = 'train_dataloader.worker_init_fn'
            raise ValueError(f"{name} must be mmengine's with EpochSeedHook, got {self._worker_init!r}")

    def before_train_epoch(self, runner: Runner) -> None:
        """Seed Python's, NumPy's and torch's generators."""
        seed = (runner.seed * 1_000_003 + runner.epoch * 1_009 + runner.rank) % 2**32
        set_random_seed(seed)
        if runner.train_dataloader.num_workers:  # NumPy takes 32 bits, and mmengine adds the worker's number
            runner.train_dataloader.worker_init_fn = partial(self._worker_init, seed=seed % 2**31)
