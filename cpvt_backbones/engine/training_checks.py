"""What is refused before a training starts: weights that do not fit, classes that differ."""

from typing import Any

from mmengine.hooks import Hook
from mmengine.runner import BaseLoop, Runner

from cpvt_backbones.checkpoints import CheckpointError
from cpvt_backbones.checkpoints.pretrained import check_loaded


class TrainingCheckHook(Hook):
    """Refuses what ``load_from`` and ``resume`` would load in vain, and heads with another number of classes.

    A model may start from one of other classes: the layers that depend on their number stay random, and are logged.
    """

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict[str, Any]) -> None:
        """Check the weights; drop those of other classes."""
        if not isinstance(runner, Runner):  # FlexibleRunner, whose model may be split
            return
        if runner._resume and 'iter' not in checkpoint.get('meta', {}):
            raise CheckpointError(f'resume: {runner._load_from!r} holds no training to resume (no meta.iter)')
        other_classes = isinstance(runner._train_loop, BaseLoop) and not runner._resume
        check_loaded(checkpoint, runner.model, runner._load_from, other_classes=other_classes)

    def before_train(self, runner: Runner) -> None:
        """Compare each head's ``num_classes`` with the classes of the training data."""
        classes: Any = getattr(runner.train_dataloader.dataset, 'metainfo', {}).get('classes') or ()
        for name, module in runner.model.named_modules() if classes else ():
            count = getattr(module, 'num_classes', None)
            parts = name.removeprefix('module.').split('.')
            # A proposal or a semantic head has classes of its own.
            if 'head' not in parts[0] or any('rpn' in part or 'semantic' in part for part in parts):
                continue
            if isinstance(count, int) and count != len(classes):
                key = f'model.{".".join(parts)}.num_classes'
                shown = ', '.join(map(str, classes[:5])) + (', ...' if len(classes) > 5 else '')
                wanted = f'{len(classes)}, the number of train_dataloader.dataset.metainfo.classes ({shown})'
                raise ValueError(f'{key} must be {wanted}, got {count}')
