"""A checkpoint hook that loses no training: atomic saves, preemption, exact resume, one run a work
directory.
"""

import glob
import secrets
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from mmengine.dist import all_gather_object, all_reduce, broadcast_object_list, is_main_process
from mmengine.fileio import LocalBackend
from mmengine.hooks import CheckpointHook
from mmengine.registry import HOOKS
from mmengine.runner import BaseLoop, EpochBasedTrainLoop, Runner

from cpvt_backbones.checkpoints import (
    INTERRUPTED,
    POINTER,
    atomic_write,
    flush_to_disk,
    lock_file,
    newest_checkpoint,
)
from cpvt_backbones.errors import InputError

from .resuming import (
    PROGRESS,
    Schedule,
    note_gradients,
    resume_data,
    resume_gradients,
    resume_random_state,
    samples_per_iteration,
    shown_rates,
    validation_is_due,
)
from .seeding import (
    SeededBatches,
    make_repeatable,
    random_state,
    set_random_state,
    shield_workers,
    skip_iterations,
)
from .training_checks import TrainingCheckHook, check_weights

EXIT_PREEMPTED = 75
"""Exit code of a training that SIGTERM or SIGINT ended: EX_TEMPFAIL of sysexits.h, "try
again later".
"""

_CHECK_EVERY = 10  # iterations; the ranks of a distributed training agree on preemption this often


@HOOKS.register_module()
class DurableCheckpointHook(TrainingCheckHook, CheckpointHook):
    """mmengine's ``CheckpointHook`` with atomic files, exact resume and a save on SIGTERM.

    **Files.** A checkpoint is written under another name, flushed to the disk and renamed. Older
    checkpoints are deleted after that. The file ``last_checkpoint`` is replaced in the same way.
    Weights that are NaN or infinite are not written.

    **Resume.** With ``resume=True`` the newest readable checkpoint is taken; an unreadable one is
    named in the log. A resumed training ends with the weights of an uninterrupted one. To this end
    a checkpoint holds the random states and the gradients that are being accumulated. The random
    numbers of an image depend on the seed, the rank and the iteration only. Validation does not
    change the training's random state. A validation that was due at the checkpoint is repeated
    after a resume, so the best checkpoint is the same too.

    **Preemption.** SIGTERM or SIGINT saves ``interrupted.pth`` after the current iteration (unless
    that iteration saves a checkpoint anyway), with
    accumulated gradients after the step, and with several processes after at most ten iterations.
    The process then exits with code 75 (``EXIT_PREEMPTED``): the script of a job can start it again
    (Slurm: ``scontrol requeue``). Such a training resumes within its epoch. A second SIGINT stops
    at once.

    **Checks.** Two trainings cannot share a work directory. The hook also runs the checks of
    :class:`TrainingCheckHook`.

    Args:
        options: Arguments of ``CheckpointHook``: ``interval``, ``by_epoch``, ``max_keep_ckpts``,
            ``save_best`` and others.

    Raises:
        ValueError: Before the training: another process uses the work directory, or no checkpoint
            in it can be read (with ``resume=True``).

    Examples:
        ```python
        default_hooks = dict(
            checkpoint=dict(
                type='DurableCheckpointHook',
                interval=1,
                max_keep_ckpts=2,
                save_best='auto',
            )
        )
        ```
    """

    keep_ckpt_ids: deque[int]
    file_backend: Any

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._signal: int | None = None
        self._handlers: dict[int, Any] = {}
        self._lock: FileLock | None = None
        self._saved_iter = -1
        self._resumed = False
        self._batches: SeededBatches | None = None
        self._to_skip = 0  # batches of the current pass over the data
        self._read_before = (0, 0)  # iterations, and samples read in them
        self._state_before_val: dict[str, Any] | None = None

    def before_run(self, runner: Runner) -> None:
        """Lock the work directory and choose the checkpoint to resume from."""
        TrainingCheckHook.before_run(self, runner)
        choose = runner._resume and runner._load_from is None
        problem = checkpoint = None
        if is_main_process():
            warn = runner.logger.warning
            try:
                # A singleton: a process whose training failed may start another one.
                self._lock = lock_file(Path(runner.work_dir, '.lock'), warn=warn, singleton=True)
                if choose:
                    checkpoint = newest_checkpoint(runner.work_dir, warn=warn)
            except Timeout:
                problem = (
                    f'work_dir: another training runs in {runner.work_dir!r}; wait for it, or'
                    ' choose another folder'
                )
            except ValueError as error:
                problem = str(error)
        outcome: list[Any] = [problem, checkpoint]
        broadcast_object_list(outcome)
        problem, checkpoint = outcome
        if problem is not None:
            raise InputError(problem)
        if checkpoint is not None:
            runner._load_from = str(checkpoint)
        elif choose:
            runner.logger.info(
                f'No checkpoint in {runner.work_dir}: training starts from iteration 0.'
            )
        self._resumed = bool(runner._resume and runner._load_from)
        if isinstance(runner._train_loop, BaseLoop):
            runner._train_loop.run = self._releasing()(runner._train_loop.run)
            self._prepare_data(runner)

    def _prepare_data(self, runner: Runner) -> None:
        """Make the data repeatable, before a checkpoint is loaded."""
        loader = runner.train_dataloader
        self._schedule = Schedule(runner)
        if isinstance(runner, Runner):
            # At once, because mmengine counts updates and times from the iteration it then has.
            resume = runner.resume

            def resume_and_place(*args: Any, **options: Any) -> None:
                resume(*args, **options)
                self._place(runner)

            runner.resume = resume_and_place
        elif self._resumed:  # FlexibleRunner has loaded the checkpoint
            self._place(runner)
        self._seeded_by_run = [one for one in _samplers(loader) if one.seed == runner.seed]
        shield_workers(loader)
        if runner._val_loop is not None and runner.val_dataloader is not loader:
            shield_workers(runner.val_dataloader)

    def before_train(self, runner: Runner) -> None:
        """Make saving atomic and install the signal handlers.

        After a resume, restore the random states.
        """
        TrainingCheckHook.before_train(self, runner)
        # A checkpoint that is resumed names files to delete: only numbers are taken from it.
        kept, obsolete = runner.message_hub.runtime_info.get('keep_ckpt_ids'), list[int]()
        if kept is not None and self.max_keep_ckpts > 0:
            numbers = [step for step in kept if type(step) is int] if isinstance(kept, list) else []
            obsolete = numbers[: -self.max_keep_ckpts]
            runner.message_hub.update_info('keep_ckpt_ids', numbers[-self.max_keep_ckpts :])
        CheckpointHook.before_train(self, runner)
        self._delete_files(self.filename_tmpl.format(step) for step in obsolete)
        if self.save_best is not None and self._resumed:
            self._find_best_checkpoints()
        if isinstance(self.file_backend, LocalBackend):  # an object store writes atomically
            runner.save_checkpoint = _make_atomic(runner.save_checkpoint, self.file_backend)
        for sampler in self._seeded_by_run:  # a resumed training has the seed of its checkpoint
            sampler.seed = runner.seed
        self._batches = make_repeatable(runner.train_dataloader, runner)
        if self._resumed:
            self._resume(runner)
        for number in (signal.SIGTERM, signal.SIGINT):
            try:
                self._handlers[number] = signal.signal(number, self._on_signal)
            except ValueError:  # not the main thread
                break
        if self._resumed and validation_is_due(runner):
            runner.logger.info(
                'resume: the validation that was due at this checkpoint is made first'
            )
            runner.val_loop.run()

    def _place(self, runner: Runner) -> None:
        """Set the iteration and the schedule of a resumed training, which may have other
        batches.
        """
        before = runner.iter
        batch = samples_per_iteration(runner)
        self._to_skip = resume_data(runner, batch=batch)
        self._read_before = (runner.iter, self._to_skip * batch)
        if self._schedule.follow(runner, moved=runner.iter != before):
            runner.logger.warning(
                'resume: the learning rate schedule is not the one of the checkpoint; it is the '
                f"config's, at iteration {runner.iter}: {shown_rates(runner)}"
            )

    def _resume(self, runner: Runner) -> None:
        """Go on with data, gradients and random numbers where the checkpoint ends."""
        loop, to_skip = runner.train_loop, self._to_skip
        if self._batches is None and to_skip and isinstance(loop, EpochBasedTrainLoop):
            runner.logger.warning(f'resume: epoch {runner.epoch + 1} starts again')
        elif self._batches is not None and isinstance(loop, EpochBasedTrainLoop):
            self._batches.to_skip = to_skip
        elif self._batches is not None and hasattr(loop, 'dataloader_iterator'):
            iterator = loop.dataloader_iterator
            iterator.skip_iter = lambda _: skip_iterations(iterator, self._batches, to_skip)
        resume_gradients(runner)
        resume_random_state(runner)

    def before_val(self, runner: Runner) -> None:
        """Keep the random state, which the validation shall not change."""
        self._state_before_val = random_state()

    def after_val(self, runner: Runner) -> None:
        """Restore the random state."""
        if self._state_before_val is not None:
            set_random_state(self._state_before_val)
            self._state_before_val = None

    def after_run(self, runner: Runner) -> None:
        """Restore the signal handlers and release the work directory."""
        while self._handlers:
            signal.signal(*self._handlers.popitem())
        if self._lock is not None:
            self._lock.release()

    @contextmanager
    def _releasing(self) -> Iterator[None]:
        """Decorator of a training: mmengine does not call ``after_run`` where it raises."""
        try:
            yield
        finally:
            self.after_run(None)

    def _on_signal(self, number: int, _: Any) -> None:
        if number == signal.SIGINT and self._signal == signal.SIGINT:
            raise KeyboardInterrupt
        self._signal = number

    def after_train_epoch(self, runner: Runner) -> None:
        """Save the checkpoint of the epoch."""
        CheckpointHook.after_train_epoch(self, runner)

    def after_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        """Save the checkpoint of the iteration; after a signal, save and exit."""
        TrainingCheckHook.after_train_iter(self, runner, batch_idx, data_batch, outputs)
        CheckpointHook.after_train_iter(self, runner, batch_idx, data_batch, outputs)
        iteration = runner.iter + 1
        if not self._preempted(runner, iteration):
            return
        if self._saved_iter != iteration:
            self._save(runner, INTERRUPTED, dict(epoch=runner.epoch, iter=iteration))
        saved = f'saved iteration {iteration} in {self.out_dir}'
        runner.logger.warning(f'Interrupted: {saved}; start it again with --resume to go on.')
        raise SystemExit(EXIT_PREEMPTED)

    def _preempted(self, runner: Runner, iteration: int) -> bool:
        """True if a rank got a signal, and no gradients are being accumulated.

        The same on every rank.
        """
        if iteration % getattr(runner.optim_wrapper, '_accumulative_counts', 1):
            return False
        if runner.world_size == 1:
            return self._signal is not None
        if iteration % _CHECK_EVERY:
            return False
        flag = torch.tensor(
            int(self._signal is not None), device=next(runner.model.parameters()).device
        )
        all_reduce(flag, 'max')
        return bool(flag)

    def _save_checkpoint_with_step(self, runner: Runner, step: int, meta: dict[str, Any]) -> None:
        name = self.filename_tmpl.format(step)
        obsolete = []
        if self.max_keep_ckpts > 0:
            steps = [*(kept for kept in self.keep_ckpt_ids if kept != step), step]
            obsolete = [self.filename_tmpl.format(old) for old in steps[: -self.max_keep_ckpts]]
            # With the obsolete ones: a run that is killed before their deletion deletes them on
            # resume.
            runner.message_hub.update_info('keep_ckpt_ids', steps)
            self.keep_ckpt_ids = deque(steps[-self.max_keep_ckpts :])
        self._save(runner, name, meta, by_epoch=self.by_epoch, **self.args)
        self._saved_iter = meta['iter']
        self._delete_files((*obsolete, INTERRUPTED))

    def _save(
        self,
        runner: Runner,
        name: str,
        meta: dict[str, Any],
        *,
        by_epoch: bool = False,
        **options: Any,
    ) -> None:
        """Save a checkpoint with the random states, then point ``last_checkpoint`` to it."""
        self.last_ckpt = self.file_backend.join_path(self.out_dir, name)
        runner.message_hub.update_info('last_ckpt', self.last_ckpt)
        self._note_state(runner, meta)
        options |= dict(
            save_optimizer=self.save_optimizer, save_param_scheduler=self.save_param_scheduler
        )
        options |= dict(meta=meta, by_epoch=by_epoch, backend_args=self.backend_args)
        runner.save_checkpoint(self.out_dir, name, self.file_client_args, **options)
        if is_main_process():
            with atomic_write(Path(runner.work_dir, POINTER)) as file:
                file.write(self.last_ckpt.encode())

    def _note_state(self, runner: Runner, meta: dict[str, Any]) -> None:
        """Put into the message hub, and so into the checkpoint, what a resume needs besides."""
        check_weights(runner, meta['iter'])
        hub = runner.message_hub
        hub.update_info(
            'random_states', all_gather_object(self._state_before_val or random_state())
        )
        batch = samples_per_iteration(runner)
        if isinstance(runner.train_loop, EpochBasedTrainLoop):
            samples = (meta['iter'] - meta['epoch'] * len(runner.train_dataloader)) * batch
        else:
            iterations, read = self._read_before
            samples = read + (meta['iter'] - iterations) * batch
        hub.update_info(PROGRESS, dict(samples=samples, batch=batch))
        note_gradients(runner, meta['iter'])

    def _delete_files(self, names: Iterable[str]) -> None:
        """Delete checkpoints of this run.

        A folder only where this run writes folders, as with DeepSpeed.
        """
        if not is_main_process():
            return
        for name in names:
            path = self.file_backend.join_path(self.out_dir, name)
            if self.file_backend.isfile(path) or (
                self.last_ckpt and self.file_backend.isdir(self.last_ckpt)
            ):
                _delete(path, self.file_backend)

    def _find_best_checkpoints(self) -> None:
        """Find the best checkpoints of a resumed training in its own folder.

        The path that a checkpoint stores may be another training's, whose file would be deleted.
        """
        if len(self.key_indicators) == 1:
            self.best_ckpt_path = self._newest_best(self.key_indicators[0])
        else:
            self.best_ckpt_path_dict = {key: self._newest_best(key) for key in self.key_indicators}

    def _newest_best(self, key: str) -> str | None:
        name = '*' if key == 'auto' else glob.escape(key.replace('/', '_'))
        pattern = f'best_{name}_{self.filename_tmpl.format("*")}'
        files = (
            Path(self.out_dir).glob(pattern) if isinstance(self.file_backend, LocalBackend) else ()
        )
        found = (path for path in files if path.stem.rpartition('_')[2].isdecimal())
        newest = max(found, key=lambda path: (path.stat().st_mtime_ns, path.name), default=None)
        return None if newest is None else self.file_backend.join_path(self.out_dir, newest.name)

    def _save_best_checkpoint(self, runner: Runner, metrics: dict[str, float]) -> None:
        """Save as mmengine does, but delete the previous best checkpoint last."""
        if isinstance(runner._train_loop, BaseLoop) and self._state_before_val is not None:
            self._note_state(runner, dict(epoch=runner.epoch, iter=runner.iter))
        backend, obsolete = self.file_backend, list[str]()
        self.file_backend = copy(backend)
        self.file_backend.remove = self.file_backend.rmtree = obsolete.append
        super()._save_best_checkpoint(runner, metrics)
        self.file_backend = backend
        best = {
            getattr(self, 'best_ckpt_path', None),
            *getattr(self, 'best_ckpt_path_dict', {}).values(),
        }
        self._delete_files(Path(path).name for path in {*obsolete} - best)


def _samplers(loader: Any) -> list[Any]:
    """Samplers of a data loader that have a seed."""
    batch_sampler = loader.batch_sampler
    found = (loader.sampler, batch_sampler, getattr(batch_sampler, 'sampler', None))
    return [one for one in found if type(getattr(one, 'seed', None)) is int]


def _make_atomic(save: Callable[..., None], backend: Any) -> Callable[..., None]:
    """Wrap ``runner.save_checkpoint``: a file or folder gets its name once it is complete and on
    the disk.
    """

    def save_atomically(out_dir: str, filename: str, *args: Any, **options: Any) -> None:
        target = Path(out_dir, filename)
        token = [secrets.token_hex(4)]  # a name that nobody has put a link under
        broadcast_object_list(token)
        part = target.with_name(f'.{filename}.{token[0]}.part')
        try:
            if is_main_process():
                stale = {*target.parent.glob(f'.{glob.escape(filename)}.*.part')} - {part}
                for left in stale:  # of a run that was killed
                    _delete(left, backend)
            save(out_dir, part.name, *args, **options)
            if is_main_process():
                for path in (part, *part.rglob('*')):
                    flush_to_disk(path)
                if target.is_dir():
                    if not part.is_dir():
                        raise FileExistsError(
                            f'work_dir: {str(target)!r} is a folder, a checkpoint gets this name'
                        )
                    _delete(target, backend)
                part.replace(target)
                flush_to_disk(target.parent)
        except BaseException as error:
            if isinstance(error, OSError) and error.errno and error.filename is None:  # a full disk
                error.filename = str(target)
            _delete(part, backend)
            raise

    return save_atomically


def _delete(path: str | Path, backend: Any) -> None:
    if backend.isdir(path):  # DeepSpeed
        backend.rmtree(path)
    elif backend.isfile(path):
        backend.remove(path)
