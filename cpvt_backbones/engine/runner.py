"""mmengine's runners for trainings that may be killed at any moment.

A config names one of them: ``runner_type = 'ResumableRunner'``. ``tools/train.py`` of each toolbox
builds it. ``cpvt train`` also uses it for configs without ``runner_type``.
"""

from typing import Any

from mmengine.dist import master_only
from mmengine.hooks import CheckpointHook
from mmengine.optim import OptimWrapper
from mmengine.registry import LOOPS, RUNNERS
from mmengine.runner import (
    BaseLoop,
    EpochBasedTrainLoop,
    FlexibleRunner,
    IterBasedTrainLoop,
    Runner,
    TestLoop,
    ValLoop,
)
from torch import Generator
from torch.utils.data import DataLoader

from cpvt_backbones.checkpoints import CheckpointError

from .prediction_by_size import TestLoopBySize, ValLoopBySize
from .resuming import PROGRESS, Schedule, resume_data, samples_per_iteration, shown_rates
from .saving import save_durably
from .seeding import SeededBatches, SeededIterLoop, with_seeded_batches
from .training_checks import TrainingCheckHook, check_options
from .workers import fit_to_workers, named_shared_memory, share_batches, shield_workers

_LOOPS = {
    IterBasedTrainLoop: SeededIterLoop,
    ValLoop: ValLoopBySize,
    TestLoop: TestLoopBySize,
}

_Runner: Any = object  # either of mmengine's, to which ``super()`` leads


class ResumableRun(_Runner):
    """Common part of both runners, in the order of a training.

    | method | what it adds to mmengine's |
    | --- | --- |
    | ``register_hooks`` | puts :class:`TrainingCheckHook` first |
    | ``register_hooks`` | refuses unknown options of a checkpoint hook |
    | ``train``, ``val``, ``test`` | explain errors of workers without shared memory |
    | ``train`` | releases the hooks if the training fails |
    | ``build_dataloader`` | random numbers of an image depend on seed, rank and iteration only |
    | ``build_dataloader`` | a worker without shared memory ends the run |
    | ``build_train_loop``, ... | loops that skip read data, and predict by image size |
    | ``load_or_resume`` | keeps the schedule of the config |
    | ``resume`` | continues data and schedule where the checkpoint ends |
    | ``save_checkpoint`` | renames a file once it is on the disk |

    :class:`DurableCheckpointHook` adds further state to the checkpoints, and restores it.
    """

    read_before = (0, 0)
    """Iterations of a resumed training, and the samples read in the current pass."""

    _schedule: Schedule | None = None
    _in_training = False
    _in_train_loop = False  # while it is built
    _seeded_by_run: list[Any] = []

    def register_hooks(self, default_hooks: Any = None, custom_hooks: Any = None) -> None:
        """Register the hooks of a config after the checks, which see a checkpoint first.

        Raises:
            TypeError: A checkpoint hook has an unknown option.
        """
        self.register_hook(TrainingCheckHook())
        super().register_hooks(default_hooks, custom_hooks)
        for hook in self.hooks:
            if isinstance(hook, CheckpointHook):
                check_options(hook)

    def train(self) -> Any:
        """Train; call ``release`` of the hooks at the end, also after an error."""
        self._in_training = True
        try:
            with named_shared_memory():
                return super().train()
        finally:
            self._in_training = False
            self.call_hook('release')

    def val(self) -> Any:
        """Validate."""
        with named_shared_memory():
            return super().val()

    def test(self) -> Any:
        """Test."""
        with named_shared_memory():
            return super().test()

    def build_dataloader(
        self, dataloader: Any, seed: int | None = None, diff_rank_seed: bool = False
    ) -> DataLoader:
        """Build a data loader; that of the training seeds its images.

        With ``num_workers=0``, options of workers such as ``persistent_workers`` have no effect.

        The training's ``batch_sampler`` is :class:`SeededBatches`. So its ``batch_size`` is
        ``None``, as with any batch sampler.
        """
        seeded = with_seeded_batches(dataloader) if self._in_train_loop else None
        loader = super().build_dataloader(
            fit_to_workers(seeded or dataloader), seed=seed, diff_rank_seed=diff_rank_seed
        )
        share_batches(loader)
        if self._in_training or self._in_train_loop:  # a progress bar builds it earlier
            shield_workers(loader)
        if seeded is not None:
            batches = loader.batch_sampler
            batches.runner = self
            # Starting the workers draws a random number, which must not be one of the model's.
            loader.generator = Generator().manual_seed(self.seed)
            parts = (batches.sampler, batches.batches)
            self._seeded_by_run = [
                part for part in parts if getattr(part, 'seed', None) == self.seed
            ]
        return loader

    def build_train_loop(self, loop: Any) -> BaseLoop:
        """Build the training loop; :class:`SeededIterLoop` for trainings by iterations."""
        if isinstance(loop, dict) and 'type' not in loop and not loop.get('by_epoch', True):
            loop = {key: value for key, value in loop.items() if key != 'by_epoch'}
            loop['type'] = SeededIterLoop
        self._in_train_loop = True
        try:
            return super().build_train_loop(_own_loop(loop))
        finally:
            self._in_train_loop = False

    def build_val_loop(self, loop: Any) -> BaseLoop:
        """Build the validation loop; :class:`ValLoopBySize` replaces ``ValLoop``."""
        return super().build_val_loop(_own_loop(loop, ValLoop))

    def build_test_loop(self, loop: Any) -> BaseLoop:
        """Build the test loop; :class:`TestLoopBySize` replaces ``TestLoop``."""
        return super().build_test_loop(_own_loop(loop, TestLoop))

    def load_or_resume(self) -> None:
        """Load the initial weights, or resume."""
        if self._in_training:
            self._schedule = Schedule(self)
        super().load_or_resume()

    def resume(self, filename: str, *args: Any, **options: Any) -> None:
        """Resume from a checkpoint.

        Raises:
            CheckpointError: The checkpoint does not fit this training.
        """
        try:
            super().resume(filename, *args, **options)
        except (OSError, ValueError):  # these name the file
            raise
        except Exception as error:
            problem = ' '.join(f'{type(error).__name__}: {error}'.split())
            raise CheckpointError(
                f'resume: {filename!r} does not fit this training: {problem}'
            ) from error
        if self._schedule is not None:
            self._go_on(self._schedule)

    def _go_on(self, schedule: Schedule) -> None:
        """Set the iteration, the data and the schedule of a resumed training.

        mmengine then counts updates and times from the new iteration.
        """
        runner: Any = self
        # FlexibleRunner counts one more when it saves a checkpoint again with the best score.
        saved = runner.message_hub.runtime_info.get(PROGRESS) or {}
        before, batch = saved.get('iter', runner.iter), samples_per_iteration(runner)
        to_skip = resume_data(runner, batch=batch)
        self.read_before = (runner.iter, to_skip * batch)
        if schedule.follow(runner, moved=runner.iter != before):
            runner.logger.warning(
                'resume: the learning rate schedule is not the one of the checkpoint; it is the '
                f"config's, at iteration {runner.iter}: {shown_rates(runner)}"
            )
        loader = runner.train_dataloader
        if isinstance(loader.batch_sampler, SeededBatches):
            loader.generator.manual_seed(runner.seed)
            loader.batch_sampler.to_skip = to_skip
            for sampler in self._seeded_by_run:  # a resumed training has its checkpoint's seed
                sampler.seed = runner.seed
        elif to_skip and isinstance(runner.train_loop, EpochBasedTrainLoop):
            runner.logger.warning(f'resume: epoch {runner.epoch + 1} starts again')


def _own_loop(loop: Any, default: type[BaseLoop] | None = None) -> Any:
    """Replace mmengine's loop in a config by that of this package."""
    if not isinstance(loop, dict):
        return loop
    kind = loop.get('type', default)
    kind = LOOPS.get(kind) if isinstance(kind, str) else kind
    return {**loop, 'type': _LOOPS[kind]} if kind in _LOOPS else loop


@RUNNERS.register_module()
class ResumableRunner(ResumableRun, Runner):
    """mmengine's ``Runner`` for exact resume: a killed training ends like an uninterrupted one.

    On one machine, a training resumed from a checkpoint of :class:`DurableCheckpointHook` ends with
    the weights of an uninterrupted one, bit for bit. Checkpoints are written atomically. Validation
    and test predict the images of one size at a time. :class:`TrainingCheckHook` is included.

    The arguments are those of ``Runner``: the top level of a config. A training needs
    ``train_dataloader``, ``train_cfg`` and ``optim_wrapper`` together; a validation and a test each
    need their data loader, ``val_cfg`` or ``test_cfg``, and evaluator. A config with a ``strategy``
    gives :class:`ResumableFlexibleRunner`.

    Args:
        model (dict): Config of the detector, segmentor or classifier.
        work_dir (str): Folder of checkpoints and logs; ``cpvt train`` has
            ``work_dirs/<name of the config>`` as its default.
        train_dataloader (dict | None): ``batch_size`` in images per process, ``num_workers``,
            ``dataset``, ``sampler``. Default: ``None``.
        val_dataloader (dict | None): The same for validation. Default: ``None``.
        test_dataloader (dict | None): The same for a test. Default: ``None``.
        train_cfg (dict | None): Length of the training, in epochs
            (``dict(by_epoch=True, max_epochs=12, val_interval=1)``) or in iterations
            (``dict(by_epoch=False, max_iters=8000, val_interval=500)``). Default: ``None``.
        val_cfg (dict | None): ``dict()`` for a config that validates. Default: ``None``.
        test_cfg (dict | None): ``dict()`` for a config that tests. Default: ``None``.
        val_evaluator (dict | list[dict] | None): Metrics of the validation. Default: ``None``.
        test_evaluator (dict | list[dict] | None): Metrics of a test. Default: ``None``.
        optim_wrapper (dict | None): ``optimizer``, and options such as ``clip_grad``,
            ``accumulative_counts`` (iterations per update) and ``paramwise_cfg``.
            Default: ``None``.
        param_scheduler (dict | list[dict] | None): Schedules of the learning rate.
            Default: ``None``.
        default_hooks (dict | None): Hooks by name that replace mmengine's: ``checkpoint``,
            ``logger``, ``timer``, ``param_scheduler`` and others. Default: ``None``.
        custom_hooks (list[dict] | None): Further hooks. Default: ``None``.
        load_from (str | None): Weights to start from: a file or an address; ``cpvt train`` also
            takes a name. With ``resume``, the checkpoint to continue. Default: ``None``.
        resume (bool): Continue a training. Without ``load_from``, it takes the newest readable
            checkpoint of the work directory. Default: ``False``.
        randomness (dict): ``seed``, and ``deterministic=True`` for deterministic operators.
            Without a seed, a random one is drawn. Default: ``dict(seed=None)``.
        default_scope (str): Toolbox in which names are looked up: ``'mmdet'``, ``'mmseg'`` or
            ``'mmpretrain'``. Default: ``'mmengine'``.
        env_cfg (dict): ``cudnn_benchmark``, ``mp_cfg`` and ``dist_cfg``.
            Default: ``dict(dist_cfg=dict(backend='nccl'))``.

    Raises:
        CheckpointError: With ``resume``, the checkpoint does not fit this training.
        ValueError: The parts of the training do not fit; see :class:`TrainingCheckHook`.

    Examples:
        ```python
        custom_imports = dict(imports=['cpvt_backbones'])
        runner_type = 'ResumableRunner'
        default_hooks = dict(checkpoint=dict(type='DurableCheckpointHook'))
        ```
    """

    @classmethod
    def from_cfg(cls, cfg: Any) -> Any:
        """Build the runner of a config.

        Options such as ``_base_/options/fsdp.py`` add only the ``strategy``, because mmengine
        refuses two bases with a ``runner_type``.
        """
        if cfg.get('strategy'):
            return ResumableFlexibleRunner.from_cfg(cfg)
        return super().from_cfg(cfg)

    @master_only
    def save_checkpoint(self, out_dir: str, filename: str, *args: Any, **options: Any) -> None:
        """Save a checkpoint by :func:`save_durably`."""
        save_durably(super().save_checkpoint, out_dir, filename, *args, **options)


@RUNNERS.register_module()
class ResumableFlexibleRunner(ResumableRun, FlexibleRunner):
    """:class:`ResumableRunner` for a ``strategy``, such as FSDP or DeepSpeed.

    The arguments are those of mmengine's ``FlexibleRunner``.

    Examples:
        ```python
        runner_type = 'ResumableRunner'
        strategy = dict(
            type='ResumableFSDPStrategy',
            model_wrapper=dict(
                use_orig_params=True,
                auto_wrap_policy='wrap_blocks',
            ),
            state_dict_cfg='full',
        )
        ```
    """

    _before_run_called = False
    _resume: bool | str
    _load_from: str | None

    def load_or_resume(self) -> None:
        """Load or resume after the hooks' ``before_run``, like ``Runner``."""
        if isinstance(self._resume, str):  # a checkpoint, which Runner has in load_from
            self._load_from = self._resume
            self._resume = True
        self.call_hook('before_run')
        self._before_run_called = True
        super().load_or_resume()
        if self._in_training and isinstance(self.optim_wrapper, OptimWrapper):
            self.optim_wrapper.initialize_count_status(self.model, self.iter, self.max_iters)

    def call_hook(self, fn_name: str, **options: Any) -> None:
        """Call a method of all hooks; ``before_run`` only once, before a checkpoint is loaded."""
        if fn_name == 'before_run' and self._before_run_called:
            self._before_run_called = False
            return
        super().call_hook(fn_name, **options)

    def save_checkpoint(
        self,
        out_dir: str,
        filename: str,
        *args: Any,
        meta: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """Save a checkpoint by :func:`save_durably`; all processes call it."""
        options['meta'] = dict(meta or {})  # FlexibleRunner writes its own counts into it
        save_durably(super().save_checkpoint, out_dir, filename, *args, together=True, **options)
