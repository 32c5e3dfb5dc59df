"""A checkpoint hook that loses no training: atomic saves, preemption, exact resume, one run a work directory."""

import random
import shutil
import signal
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock, Timeout
from mmengine.dist import all_gather_object, all_reduce, broadcast_object_list, is_main_process
from mmengine.fileio import LocalBackend
from mmengine.hooks import CheckpointHook
from mmengine.registry import HOOKS
from mmengine.runner import EpochBasedTrainLoop, Runner

from cpvt_backbones.checkpoints import atomic_write, newest_checkpoint
from cpvt_backbones.checkpoints.files import INTERRUPTED, POINTER, flush_to_disk

EXIT_PREEMPTED = 75
"""Exit code of a training that SIGTERM or SIGINT ended: EX_TEMPFAIL of sysexits.h, "try again later"."""

_CHECK_EVERY = 10  # iterations between two agreements on preemption of a distributed training


@HOOKS.register_module()
class DurableCheckpointHook(CheckpointHook):
    """mmengine's ``CheckpointHook`` with guarantees; in a config ``default_hooks.checkpoint.type``.

    A checkpoint is written under another name, flushed to the disk and renamed; older ones are deleted only after
    that, and ``last_checkpoint`` is replaced in the same way. A checkpoint also holds the states of the random
    generators. With ``resume=True`` the newest readable checkpoint is taken, and an unreadable one is named.

    SIGTERM or SIGINT saves ``interrupted.pth`` after the current iteration and exits with :data:`EXIT_PREEMPTED`; a
    second SIGINT stops at once. Such a training resumes within its epoch. Two trainings cannot share a work directory.

    Args:
        **options: Arguments of ``CheckpointHook``.

    Raises:
        ValueError: The work directory is in use; or ``resume=True``, and no checkpoint in it can be read.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._signal: int | None = None
        self._handlers: dict[int, Any] = {}
        self._lock: FileLock | None = None
        self._saved_iter = -1
        self._resumed = False
        self._random_state: dict[str, Any] | None = None

    # -- start and end of a run --------------------------------------------------------------------------------------

    def before_run(self, runner: Runner) -> None:
        """Lock the work directory and choose the checkpoint to resume from."""
        outcome: list[Any] = [None, None]  # error, checkpoint
        if is_main_process():
            try:
                self._lock = _lock(Path(runner.work_dir))
                if runner._resume and runner._load_from is None:
                    outcome[1] = newest_checkpoint(runner.work_dir, warn=runner.logger.warning)
            except ValueError as error:
                outcome[0] = str(error)
        broadcast_object_list(outcome)
        if outcome[0] is not None:
            raise ValueError(outcome[0])
        if runner._resume and runner._load_from is None:
            if outcome[1] is None:
                runner.logger.info(f'No checkpoint in {runner.work_dir}: training starts from iteration 0.')
            else:
                runner._load_from = str(outcome[1])
        self._resumed = bool(runner._resume and runner._load_from)

    def before_train(self, runner: Runner) -> None:
        """Install the signal handlers; after a resume, restore the random states."""
        super().before_train(runner)
        states = runner.message_hub.runtime_info.get('random_states') if self._resumed else None
        if states is not None and len(states) == runner.world_size:
            self._random_state = states[runner.rank]
            self.restore_random_state()
        if hasattr(runner.train_loop, 'dataloader_iterator'):
            runner.train_loop.dataloader_iterator = _Rewound(runner.train_loop.dataloader_iterator, self)
        for number in (signal.SIGTERM, signal.SIGINT):
            try:
                self._handlers[number] = signal.signal(number, self._on_signal)
            except ValueError:  # not the main thread
                break

    def after_run(self, runner: Runner) -> None:
        """Restore the signal handlers and release the work directory."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        if self._lock is not None:
            self._lock.release()

    def _on_signal(self, number: int, _: Any) -> None:
        if number == signal.SIGINT and self._signal == signal.SIGINT:
            raise KeyboardInterrupt
        self._signal = number

    # -- resume ------------------------------------------------------------------------------------------------------

    def restore_random_state(self) -> None:
        """Restore the random state of the checkpoint until the first iteration has begun."""
        if self._random_state is not None:
            _set_random_state(self._random_state)

    def before_train_epoch(self, runner: Runner) -> None:
        """Skip the batches of this epoch that the training saw before it was preempted."""
        if self._resumed and isinstance(runner.train_loop, EpochBasedTrainLoop):
            loader = runner.train_loop.dataloader
            done = runner.iter - runner.epoch * len(loader)
            if done > 0:
                runner.train_loop.dataloader = _Rewound(loader, self, skip=done)
        self._resumed = False

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:
        """End the resume: from here on the random numbers go on by themselves."""
        self._random_state = None

    def after_train_epoch(self, runner: Runner) -> None:
        """Save the checkpoint of the epoch."""
        if isinstance(runner.train_loop.dataloader, _Rewound):
            runner.train_loop.dataloader = runner.train_loop.dataloader.wrapped
        super().after_train_epoch(runner)

    # -- save --------------------------------------------------------------------------------------------------------

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        """Save the checkpoint of the iteration; after a signal, save and exit."""
        super().after_train_iter(runner, batch_idx, data_batch, outputs)
        iteration = runner.iter + 1
        if not self._preempted(runner, iteration):
            return
        if self._saved_iter != iteration:
            with self._aside(runner):
                self._put(runner, INTERRUPTED, dict(epoch=runner.epoch, iter=iteration))
        runner.logger.warning(
            f'Preempted: saved iteration {iteration} in {self.out_dir}; start again with --resume to go on.'
        )
        raise SystemExit(EXIT_PREEMPTED)

    def _preempted(self, runner: Runner, iteration: int) -> bool:
        """True if a rank got a signal, and no gradients are being accumulated; the same on every rank."""
        if iteration % getattr(runner.optim_wrapper, '_accumulative_counts', 1):
            return False
        if runner.world_size == 1:
            return self._signal is not None
        if iteration % _CHECK_EVERY:
            return False
        flag = torch.tensor(int(self._signal is not None), device=next(runner.model.parameters()).device)
        all_reduce(flag, 'max')
        return bool(flag)

    def _save_checkpoint_with_step(self, runner: Runner, step: int, meta: dict[str, Any]) -> None:
        name = self.filename_tmpl.format(step)
        obsolete = []
        if self.max_keep_ckpts > 0:
            steps = [*(kept for kept in self.keep_ckpt_ids if kept != step), step]
            obsolete = [self.filename_tmpl.format(old) for old in steps[: -self.max_keep_ckpts]]
            # The saved list names the obsolete ones too: a run killed before their deletion deletes them on resume.
            runner.message_hub.update_info('keep_ckpt_ids', steps)
            self.keep_ckpt_ids = deque(steps[-self.max_keep_ckpts :])
        with self._aside(runner):
            self._put(runner, name, meta, by_epoch=self.by_epoch, **self.args)
        self._saved_iter = meta['iter']
        if is_main_process():
            for old in (*obsolete, INTERRUPTED):
                self._delete(self.file_backend.join_path(self.out_dir, old))

    def _put(self, runner: Runner, name: str, meta: dict[str, Any], *, by_epoch: bool = False, **options: Any) -> None:
        """Save the training under a name in the output folder, and point to it."""
        self.last_ckpt = self.file_backend.join_path(self.out_dir, name)
        runner.message_hub.update_info('last_ckpt', self.last_ckpt)
        states = all_gather_object(_random_state())
        runner.message_hub.update_info('random_states', states)
        runner.save_checkpoint(
            self.out_dir,
            name,
            self.file_client_args,
            save_optimizer=self.save_optimizer,
            save_param_scheduler=self.save_param_scheduler,
            meta=meta,
            by_epoch=by_epoch,
            backend_args=self.backend_args,
            **options,
        )
        if is_main_process():
            with atomic_write(Path(runner.work_dir, POINTER)) as file:
                file.write(self.last_ckpt.encode())

    def _save_best_checkpoint(self, runner: Runner, metrics: dict[str, float]) -> None:
        with self._aside(runner):
            super()._save_best_checkpoint(runner, metrics)

    @contextmanager
    def _aside(self, runner: Runner) -> Iterator[None]:
        """Within this context checkpoints replace others only when they are complete; deletions come last."""
        if 'save_checkpoint' in vars(runner) or not isinstance(self.file_backend, LocalBackend):
            yield  # nested; or an object store, whose writes are atomic
            return
        save, backend = runner.save_checkpoint, self.file_backend
        deferred = _DeferredDeletion(backend)
        written = set()

        def save_aside(out_dir: str, filename: str, *args: Any, **options: Any) -> None:
            part, target = Path(out_dir, f'.{filename}.part'), Path(out_dir, filename)
            try:
                save(out_dir, part.name, *args, **options)
                if is_main_process():
                    _commit(part, target)
            except BaseException:
                _remove(part)
                raise
            written.add(str(target))

        runner.save_checkpoint, self.file_backend = save_aside, deferred
        try:
            yield
        finally:
            del runner.save_checkpoint
            self.file_backend = backend
        for path in deferred.paths:
            if path not in written:
                _remove(Path(path))

    def _delete(self, path: str) -> None:
        if self.file_backend.isdir(path):  # DeepSpeed
            self.file_backend.rmtree(path)
        elif self.file_backend.isfile(path):
            self.file_backend.remove(path)


def _lock(work_dir: Path) -> FileLock:
    work_dir.mkdir(parents=True, exist_ok=True)
    lock = FileLock(work_dir / '.lock')
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise ValueError(
            f'work_dir: another training runs in {str(work_dir)!r}; wait for it, or choose another with --work-dir'
        ) from None
    return lock


class _Rewound:
    """A data loader, or its iterator, of a resumed training.

    Batches that were seen are drawn again, so that the generators of workers advance. Before each draw the random state
    of the checkpoint is restored, as it was before the first new batch.
    """

    def __init__(self, wrapped: Any, hook: DurableCheckpointHook, *, skip: int = 0) -> None:
        self.wrapped, self.hook, self.skip = wrapped, hook, skip

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self.wrapped)
        for _ in range(self.skip):
            next(batches)
        self.hook.restore_random_state()
        yield from batches

    def __next__(self) -> Any:
        # The fork of mmengine creates the iterator here, which draws a random number.
        getattr(self.wrapped, '_ensure_iterator', lambda: None)()
        self.hook.restore_random_state()
        return next(self.wrapped)

    def __len__(self) -> int:
        return len(self.wrapped)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.wrapped, name)


class _DeferredDeletion:
    """A file backend that collects the paths to delete."""

    def __init__(self, backend: Any) -> None:
        self.backend, self.paths = backend, list[str]()
        self.remove = self.rmtree = self.paths.append

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)


def _commit(part: Path, target: Path) -> None:
    """Flush a written file or folder to the disk and give it its name."""
    for path in (part, *part.rglob('*')):
        flush_to_disk(path)
    if target.is_dir():
        shutil.rmtree(target)
    part.replace(target)
    flush_to_disk(target.parent)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _random_state() -> dict[str, Any]:
    """States of the random generators of this process as plain data and tensors."""
    kind, keys, *rest = np.random.get_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return dict(
        python=random.getstate(),
        numpy=(kind, torch.from_numpy(keys.astype(np.int64)), *rest),
        torch=torch.get_rng_state(),
        cuda=cuda,
    )


def _set_random_state(state: dict[str, Any]) -> None:
    version, words, gauss = state['python']
    random.setstate((version, tuple(words), gauss))
    kind, keys, *rest = state['numpy']
    np.random.set_state((kind, keys.cpu().numpy().astype(np.uint32), *rest))
    torch.set_rng_state(state['torch'].cpu())
    if state['cuda'] and torch.cuda.device_count() == len(state['cuda']):
        torch.cuda.set_rng_state_all([one.cpu() for one in state['cuda']])
