"""Moving average of the weights with a warm-up, validated beside the trained weights."""

import math
from typing import Any

from mmengine.hooks import CheckpointHook, EMAHook
from mmengine.registry import HOOKS
from mmengine.runner import Runner, ValLoop


@HOOKS.register_module()
class WarmupEMAHook(EMAHook):
    """mmengine's ``EMAHook`` (moving average of the weights) for trainings of any length.

    The average warms up: after ``s`` updates, the share of the newest weights is
    ``max(momentum, gamma / (gamma + s))``, computed by mmengine's ``MomentumAnnealingEMA``. With
    ``gamma=10`` the average spans a tenth of the iterations so far, and at most ``1 / momentum``. A
    constant share would leave ``(1 - momentum) ** s`` of the first weights in the average.

    Checkpoints hold the average as ``state_dict`` and the trained ("raw") weights as
    ``ema_state_dict``. A training resumes with both.

    If the checkpoint hook has ``save_best``, each validation evaluates and logs both the averaged
    and the raw weights. The first metric of ``save_best`` decides which are better. The metrics and
    the best file are those of the better weights. If the raw weights score best, the best file
    stores only them.

    Args:
        momentum: Smallest share of the newest weights, in (0, 1).
        gamma: Length of the warm-up, above 0. The larger it is, the fewer iterations the average
            spans.
        strict_load: Refuse averaged weights that do not fit the model when a training is resumed.
        options: ``begin_iter``, ``begin_epoch``, ``interval`` and ``update_buffers`` of
            ``EMAHook``.

    Examples:
        ```python
        # a list replaces that of _base_: _base_.custom_hooks + [...] adds
        custom_hooks = [dict(type='WarmupEMAHook', momentum=1e-3)]
        ```
    """

    # Before RuntimeInfoHook, which records the metrics.
    priority = 'HIGHEST'

    def __init__(
        self,
        *,
        momentum: float = 1e-3,
        gamma: float = 10.0,
        strict_load: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(
            'MomentumAnnealingEMA',
            momentum=momentum,
            gamma=gamma,
            strict_load=strict_load,
            **options,
        )
        self._raw_is_best = False

    def before_train(self, runner: Runner) -> None:
        """Start the average from the model's weights."""
        super().before_train(runner)
        self._start_from_model()

    def before_val(self, runner: Runner) -> None:
        """Start the average from the model's weights if nothing was trained."""
        self._start_from_model()

    before_test = before_val

    def _start_from_model(self) -> None:
        """Copy the weights of the model, unless the average has updates.

        The average is created before the initial weights are loaded.
        """
        if self.ema_model.steps == 0:
            self.ema_model.module.load_state_dict(self.src_model.state_dict())

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict[str, Any]) -> None:
        """Load the average of a resumed training; otherwise it starts from the model."""
        if runner._resume:
            super().after_load_checkpoint(runner, checkpoint)

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        """Evaluate the raw weights too if ``save_best`` is set; ``metrics`` becomes the better."""
        super().after_val_epoch(runner, metrics)  # the model has its raw weights again
        loop = runner.val_loop
        saver = _best_saver(runner)
        if metrics is None or saver is None or not isinstance(loop, ValLoop):
            return
        if self.ema_model.steps < 2:  # both are the same
            return
        runner.logger.info('Validating the raw weights after the averaged ones.')
        raw_metrics = _evaluate(loop)
        found = [*metrics, *raw_metrics]
        if not found:  # such as a detector that finds nothing
            return
        if 'auto' in saver.key_indicators:  # as the checkpoint hook itself would
            saver._init_rule(saver.rules, found[:1])
        key = saver.key_indicators[0]
        averaged, raw = metrics.get(key), raw_metrics.get(key)
        if averaged is None or math.isnan(averaged):
            self._raw_is_best = raw is not None
        else:
            self._raw_is_best = raw is not None and saver.is_better_than[key](raw, averaged)
        if self._raw_is_best:
            metrics.update(raw_metrics)
        for name, score in (('averaged', averaged), ('raw', raw)):
            if score is not None:
                metrics[f'{key}_{name}'] = score
        better = 'raw' if self._raw_is_best else 'averaged'
        runner.logger.info(
            f'{key}: {_shown(averaged)} with the averaged weights, '
            f'{_shown(raw)} with the raw weights; the {better} ones count as its result.'
        )

    def after_val(self, runner: Runner) -> None:
        """Store the average as ``state_dict`` again in later checkpoints."""
        self._raw_is_best = False

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict[str, Any]) -> None:
        """Store the average as ``state_dict``, except in a best file of raw weights."""
        # A best file has no optimizer. The last checkpoint, which has one, may be saved again
        # during a validation, and stays complete.
        if not (self._raw_is_best and 'optimizer' not in checkpoint):
            super().before_save_checkpoint(runner, checkpoint)


def _best_saver(runner: Runner) -> CheckpointHook | None:
    """Return the checkpoint hook that saves the best weights."""
    for hook in runner.hooks:
        if isinstance(hook, CheckpointHook) and hook.save_best:
            return hook
    return None


def _evaluate(loop: ValLoop) -> dict[str, float]:
    """Evaluate the model with its current weights."""
    for index, batch in enumerate(loop.dataloader):
        loop.run_iter(index, batch)
    return loop.evaluator.evaluate(len(loop.dataloader.dataset))


def _shown(score: float | None) -> str:
    return 'no score' if score is None else f'{score:.4g}'
