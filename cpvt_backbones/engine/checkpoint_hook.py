"""Checkpoint hook with atomic saves, preemption, exact resume and one run per work directory."""

import glob
import signal
from collections import deque
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

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
    classes_of,
    lock_file,
    newest_checkpoint,
)
from cpvt_backbones.errors import InputError

from .resuming import (
    PROGRESS,
    note_gradients,
    resume_gradients,
    resume_random_state,
    samples_per_iteration,
    validation_is_due,
)
from .runner import ResumableRun
from .saving import delete_checkpoint, save_durably
from .seeding import random_state, set_random_state
from .training_checks import check_options, check_weights

EXIT_PREEMPTED = 75
"""Exit code of a training that SIGTERM or SIGINT ended: EX_TEMPFAIL of sysexits.h."""

_CHECK_EVERY = 10  # iterations; the ranks of a distributed training agree on preemption this often


@HOOKS.register_module()
class DurableCheckpointHook(CheckpointHook):
    """mmengine's ``CheckpointHook`` with atomic files, exact resume and a save on SIGTERM.

    **Files.** A checkpoint is written under another name, flushed to the disk and renamed. Only
    then are older checkpoints deleted. The file ``last_checkpoint`` is replaced in the same way.
    Weights that are NaN or infinite are not written.

    **Resume.** ``resume=True`` takes the newest readable checkpoint; the log names unreadable ones.
    A checkpoint holds the random states and the gradients that are being accumulated. Validation
    does not change the training's random state. A validation that was due at the checkpoint is
    repeated after a resume, so that the best checkpoint is the same too. With
    :class:`ResumableRunner`, a resumed training ends with the weights of an uninterrupted one. With
    mmengine's ``Runner``, mmengine continues data and schedule, and the weights differ.

    **Preemption.** SIGTERM or SIGINT saves ``interrupted.pth`` after the current iteration, unless
    that iteration saves a checkpoint anyway. With accumulated gradients, it is saved after the
    step; with several processes, after at most ten iterations. The process then exits with code 75
    (``EXIT_PREEMPTED``), so that a job script can start it again (Slurm: ``scontrol requeue``).
    Such a training resumes within its epoch. A validation ends at once if its iteration is saved;
    otherwise, and with several processes, it is finished first. A second SIGINT stops at once.

    Two trainings cannot share a work directory.

    Args:
        interval (int): Epochs, or iterations with ``by_epoch=False``, from one checkpoint to the
            next; -1 saves only the last one. Default: ``-1``.
        by_epoch (bool): Count epochs; ``False`` counts iterations. If the training counts
            iterations, ``True`` saves only the last one. Default: ``True``.
        max_keep_ckpts (int): Number of newest checkpoints that are kept besides the best ones; -1
            keeps all. Default: ``-1``.
        save_last (bool): Save at the end, whatever ``interval`` is. Default: ``True``.
        save_best (str | list[str] | None): Metric of the validation whose best checkpoint is kept
            as ``best_*.pth``, such as ``'coco/bbox_mAP'`` or ``'mIoU'``; ``'auto'`` takes the first
            metric, and a list keeps one file for each. Default: ``None``.
        rule (str | list[str] | None): ``'greater'`` or ``'less'`` says which value of ``save_best``
            is better; ``None`` infers it from the metric's name. Default: ``None``.
        options: Other arguments of ``CheckpointHook``.

    Raises:
        ValueError: Raised before the training if another process uses the work directory, or if no
            checkpoint in it can be read (with ``resume=True``).
        TypeError: ``CheckpointHook`` has no argument of this name.

    Examples:
        ```python
        runner_type = 'ResumableRunner'
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
        check_options(self)
        self._signal: int | None = None
        self._handlers: dict[int, Any] = {}
        self._lock: FileLock | None = None
        self._saved_iter = -1
        self._resumed = False
        self._state_before_val: dict[str, Any] | None = None

    def before_run(self, runner: Runner) -> None:
        """Lock the work directory and choose the checkpoint to resume from.

        Raises:
            ValueError: See :class:`DurableCheckpointHook`.
        """
        loaded = runner._has_loaded  # FlexibleRunner loads before its hooks run
        choose = runner._resume and runner._load_from is None and not loaded
        problem = checkpoint = None
        if is_main_process():
            warn = runner.logger.warning
            try:
                # A singleton, because a process whose training failed may start another one.
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
        self._resumed = bool(runner._resume and (runner._load_from or loaded))

    def before_train(self, runner: Runner) -> None:
        """Install the signal handlers. After a resume, restore gradients and random states."""
        # A checkpoint names files to delete, so only numbers are taken from it.
        kept, obsolete = runner.message_hub.runtime_info.get('keep_ckpt_ids'), list[int]()
        if kept is not None and self.max_keep_ckpts > 0:
            numbers = [step for step in kept if type(step) is int] if isinstance(kept, list) else []
            obsolete = numbers[: -self.max_keep_ckpts]
            runner.message_hub.update_info('keep_ckpt_ids', numbers[-self.max_keep_ckpts :])
        super().before_train(runner)
        self._delete_files(self.filename_tmpl.format(step) for step in obsolete)
        if self.save_best is not None and self._resumed:
            self._find_best_checkpoints()
        for number in (signal.SIGTERM, signal.SIGINT):
            try:
                self._handlers[number] = signal.signal(number, self._on_signal)
            except ValueError:  # not the main thread
                break
        if self._resumed:
            self._resume(runner)

    def _resume(self, runner: Runner) -> None:
        if not isinstance(runner, ResumableRun):
            runner.logger.warning(
                "resume: mmengine continues data and schedule; runner_type='ResumableRunner'"
                ' ends with the weights of an uninterrupted training'
            )
        resume_gradients(runner)
        resume_random_state(runner)
        if validation_is_due(runner):
            runner.logger.info(
                'resume: the validation that was due at this checkpoint is made first'
            )
            runner.val_loop.run()

    def before_val(self, runner: Runner) -> None:
        """Keep the random state, which the validation must not change."""
        self._state_before_val = random_state()

    def after_val(self, runner: Runner) -> None:
        """Restore the random state."""
        if self._state_before_val is not None:
            set_random_state(self._state_before_val)
            self._state_before_val = None

    def release(self, runner: Runner) -> None:
        """Restore the signal handlers and release the work directory.

        :class:`ResumableRun` calls it after a training, even if the training failed.
        """
        while self._handlers:
            signal.signal(*self._handlers.popitem())
        if self._lock is not None:
            self._lock.release()

    after_run = release

    def _on_signal(self, number: int, _: Any) -> None:
        if number == signal.SIGINT and self._signal == signal.SIGINT:
            raise KeyboardInterrupt
        self._signal = number

    def after_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        """Save the checkpoint of the iteration; after a signal, save and raise ``SystemExit``."""
        super().after_train_iter(runner, batch_idx, data_batch, outputs)
        iteration = runner.iter + 1
        if not self._preempted(runner, iteration):
            return
        if self._saved_iter != iteration:
            self._save(runner, INTERRUPTED, dict(epoch=runner.epoch, iter=iteration))
        self._exit(runner, iteration)

    def after_val_iter(self, runner: Runner, *args: Any, **kwargs: Any) -> None:
        """After a signal, raise ``SystemExit`` if the training's iteration is saved.

        A resume repeats the validation. Nothing is saved here, where averaged weights stand in for
        those of the model.
        """
        if self._signal is not None and runner.world_size == 1 and self._saved_iter == runner.iter:
            self._exit(runner, runner.iter)

    def _exit(self, runner: Runner, iteration: int) -> NoReturn:
        saved = f'saved iteration {iteration} in {self.out_dir}'
        runner.logger.warning(f'Interrupted: {saved}; start it again with --resume to go on.')
        raise SystemExit(EXIT_PREEMPTED)

    def _preempted(self, runner: Runner, iteration: int) -> bool:
        """Return ``True`` on all ranks if one got a signal and no gradients are accumulated."""
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
            # With the obsolete ones: a run that is killed before deleting them does so on resume.
            runner.message_hub.update_info('keep_ckpt_ids', steps)
            self.keep_ckpt_ids = deque(steps[-self.max_keep_ckpts :])
        self._save(runner, name, meta, by_epoch=self.by_epoch)
        self._saved_iter = meta['iter']
        self._delete_files((*obsolete, INTERRUPTED))

    def _save(
        self,
        runner: Runner,
        name: str,
        meta: dict[str, Any],
        *,
        by_epoch: bool = False,
    ) -> None:
        """Save a checkpoint with the random states, then point ``last_checkpoint`` to it."""
        self.last_ckpt = self.file_backend.join_path(self.out_dir, name)
        runner.message_hub.update_info('last_ckpt', self.last_ckpt)
        self._note_state(runner, meta)
        options = dict(
            save_optimizer=self.save_optimizer,
            save_param_scheduler=self.save_param_scheduler,
            meta=meta,
            by_epoch=by_epoch,
            backend_args=self.backend_args,
        )
        save = runner.save_checkpoint
        if not isinstance(runner, ResumableRun):
            save = partial(save_durably, save, together=True)
        save(self.out_dir, name, self.file_client_args, **options)
        if is_main_process():
            with atomic_write(Path(runner.work_dir, POINTER)) as file:
                file.write(self.last_ckpt.encode())

    def _note_state(self, runner: Runner, meta: dict[str, Any]) -> None:
        """Add what a resume needs to the message hub, which the checkpoint stores."""
        check_weights(runner, meta['iter'])
        hub = runner.message_hub
        hub.update_info(
            'random_states', all_gather_object(self._state_before_val or random_state())
        )
        batch = samples_per_iteration(runner)
        if isinstance(runner.train_loop, EpochBasedTrainLoop):
            samples = (meta['iter'] - meta['epoch'] * len(runner.train_dataloader)) * batch
        else:
            iterations, read = getattr(runner, 'read_before', (0, 0))
            samples = read + (meta['iter'] - iterations) * batch
        classes = classes_of(getattr(runner.train_dataloader.dataset, 'metainfo', None))
        hub.update_info(PROGRESS, dict(meta, samples=samples, batch=batch, classes=classes))
        note_gradients(runner, meta['iter'])

    def _delete_files(self, names: Iterable[str]) -> None:
        """Delete checkpoints of this run; folders only if this run writes folders (DeepSpeed)."""
        if not is_main_process():
            return
        for name in names:
            path = self.file_backend.join_path(self.out_dir, name)
            if self.file_backend.isfile(path) or (
                self.last_ckpt and self.file_backend.isdir(self.last_ckpt)
            ):
                delete_checkpoint(path, self.file_backend)

    def _find_best_checkpoints(self) -> None:
        """Find the best checkpoints of a resumed training in its own folder; delete older ones.

        The path stored in a checkpoint may belong to another training, whose file would be deleted.
        A kill after the best checkpoint was written leaves the previous one.
        """
        found = {}
        for key in self._best_paths():
            names = self._best_files(key or self.key_indicators[0])
            newest = names[-1] if names else None
            found[key] = newest and self.file_backend.join_path(self.out_dir, newest)
            same_metric = [name for name in names if _metric_of(name) == _metric_of(names[-1])]
            self._delete_files(same_metric[:-1])
        self._set_best_paths(found)

    def _best_paths(self) -> dict[str, str | None]:
        """Return the path of the best checkpoint by metric; ``''`` is the only metric."""
        if len(self.key_indicators) == 1:
            return {'': self.best_ckpt_path}
        return dict(self.best_ckpt_path_dict)

    def _set_best_paths(self, paths: dict[str, str | None]) -> None:
        if len(self.key_indicators) == 1:
            self.best_ckpt_path = paths['']
        else:
            self.best_ckpt_path_dict = dict(paths)

    def _best_files(self, key: str) -> list[str]:
        """List the best checkpoints of a metric, the newest last."""
        if not isinstance(self.file_backend, LocalBackend):
            return []
        name = '*' if key == 'auto' else glob.escape(key.replace('/', '_'))
        files = Path(self.out_dir).glob(f'best_{name}_{self.filename_tmpl.format("*")}')
        found = [path for path in files if path.stem.rpartition('_')[2].isdecimal()]
        found.sort(key=lambda path: (path.stat().st_mtime_ns, path.name))
        return [path.name for path in found]

    def _save_best_checkpoint(self, runner: Runner, metrics: dict[str, float]) -> None:
        """Save like mmengine, but delete the previous best checkpoint afterwards."""
        if self.save_best is None:
            return
        if isinstance(runner._train_loop, BaseLoop) and self._state_before_val is not None:
            self._note_state(runner, dict(epoch=runner.epoch, iter=runner.iter))
        previous = self._best_paths()
        self._set_best_paths(dict.fromkeys(previous))  # mmengine would delete these before it saves
        super()._save_best_checkpoint(runner, metrics)
        best = {key: path or previous[key] for key, path in self._best_paths().items()}
        self._set_best_paths(best)
        obsolete = {*previous.values()} - {*best.values()}
        self._delete_files(Path(path).name for path in obsolete if path)


def _metric_of(name: str) -> str:
    """Return the file name of a best checkpoint without its number."""
    return name.rpartition('_')[0]
