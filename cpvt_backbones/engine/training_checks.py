"""What ends a training early: weights, classes and channels that do not fit, losses that are not
finite.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from itertools import chain
from typing import Any

import torch
from mmengine.hooks import Hook
from mmengine.runner import BaseLoop, Runner

from cpvt_backbones.checkpoints import CheckpointError
from cpvt_backbones.checkpoints.classes import classes_of
from cpvt_backbones.checkpoints.pretrained import check_loaded
from cpvt_backbones.toolboxes import check_neck

from .resuming import check_resumable, check_training_state


class NotFiniteError(ValueError):
    """A loss, a gradient norm or a weight of a training is NaN or infinite."""


class TrainingCheckHook(Hook):
    """Refuses what ``load_from`` and ``resume`` would load in vain, other classes in a head, other
    channels in a neck.

    A model may start from one of other classes, or of the same in another order: the layers that
    depend on them stay random, and are logged. Training is resumed with the same classes only.
    The first loss or gradient norm that is NaN or infinite ends the training.
    """

    def before_run(self, runner: Runner) -> None:
        """Compare the neck with the backbone.

        Let whatever fails in a resume name the checkpoint.
        """
        if isinstance(runner, Runner):  # FlexibleRunner builds its model later
            check_neck(runner.model, runner.cfg.get('model'))
            runner.resume = _naming_file(runner.resume)

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict[str, Any]) -> None:
        """Check the weights; drop those of other classes."""
        if not isinstance(runner, Runner):  # FlexibleRunner, whose model may be split
            return
        if runner._resume:
            check_training_state(checkpoint, runner._load_from)
        classes = None
        training = isinstance(runner._train_loop, BaseLoop)
        if training:
            classes = classes_of(getattr(runner.train_dataloader.dataset, 'metainfo', None))
        check_loaded(
            checkpoint,
            runner.model,
            runner._load_from,
            other_classes=training and not runner._resume,
            classes=classes,
        )
        if runner._resume:
            check_resumable(checkpoint, runner)

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
                wanted = (
                    f'{len(classes)}, the number of train_dataloader.dataset.metainfo.classes'
                    f' ({shown})'
                )
                raise ValueError(f'{key} must be {wanted}, got {count}')

    def after_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        """Stop at a loss or a gradient norm that is not finite."""
        found = next(_not_finite(runner, outputs), None)
        if found is None:
            return
        rates = runner.optim_wrapper.get_lr()
        rates = sorted(
            {rate for group in rates.values() for rate in group if isinstance(rate, float)}
        )
        shown = ', '.join(f'{rate:.4g}' for rate in rates)
        raise NotFiniteError(
            f'{found} in iteration {runner.iter + 1}, at learning rate {shown}, with the images '
            f'{_images(data_batch)}; the checkpoints in {runner.work_dir!r} are kept; '
            'lower the learning rate, or clip the gradients (optim_wrapper.clip_grad)'
        )


def check_weights(runner: Runner, iteration: int) -> None:
    """Raise :class:`NotFiniteError` if the weights after an iteration are NaN or infinite."""
    for name, value in chain(runner.model.named_parameters(), runner.model.named_buffers()):
        own = value.to_local() if hasattr(value, 'to_local') else value  # a part, with FSDP
        if own.is_floating_point() and not own.isfinite().all():
            raise NotFiniteError(
                f'{name} is NaN or infinite after iteration {iteration}; no checkpoint is written, '
                f'and the earlier ones in {runner.work_dir!r} are kept'
            )


def _not_finite(runner: Runner, outputs: Any) -> Iterator[str]:
    """Names and values of losses and gradient norms that are not finite."""
    for name, value in outputs.items() if isinstance(outputs, dict) else ():
        if 'loss' in name and isinstance(value, (float, torch.Tensor)) and not _is_finite(value):
            yield f'{name} is {float(torch.as_tensor(value).detach().sum())}'
    # With a loss scale an infinite norm is usual: the update is passed over, the scale lowered.
    norm = runner.message_hub.log_scalars.get('train/grad_norm')
    if norm is not None and not hasattr(runner.optim_wrapper, 'loss_scaler'):
        value = norm.current()
        if not math.isfinite(value):
            yield f'the gradient norm is {value}'


def _is_finite(value: float | torch.Tensor) -> bool:
    return bool(torch.as_tensor(value).isfinite().all())


def _images(batch: Any) -> str:
    """Files of a batch, as the toolboxes' samples name them."""
    samples = batch.get('data_samples') if isinstance(batch, dict) else None
    samples = samples if isinstance(samples, Iterable) else ()
    paths = [getattr(sample, 'img_path', None) for sample in samples]
    return ', '.join(repr(str(path)) for path in paths if path) or '(their files are not known)'


def _naming_file(resume: Callable[..., None]) -> Callable[..., None]:
    """Wrap ``Runner.resume``: an error names the checkpoint in one line."""

    @wraps(resume)
    def resume_or_name(filename: str, *args: Any, **options: Any) -> None:
        try:
            resume(filename, *args, **options)
        except (OSError, ValueError):  # these name the file
            raise
        except Exception as error:
            problem = f'{type(error).__name__}: {error}'
            raise CheckpointError(
                f'resume: {filename!r} does not fit this training: {problem}'
            ) from error

    return resume_or_name
