"""Masked attention, annealed to none during a training (EoMT, arXiv 2503.19108, section 3.3)."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from torch import nn

from cpvt_backbones.checks import check_positive, is_int, is_sequence
from cpvt_backbones.errors import InputError

from .eomt import MaskLayers


def annealed(step: int, start: int, end: int, power: float = 0.9) -> float:
    """Return the probability that a query is limited to its mask.

    It is 1 until ``start`` and 0 from ``end``.

    Examples:
        >>> from cpvt_backbones.heads.annealing import annealed
        >>> [round(annealed(step, 100, 200), 3) for step in (0, 100, 150, 200)]
        [1.0, 1.0, 0.536, 0.0]
    """
    if step < start:
        return 1.0
    return 0.0 if step >= end else (1 - (step - start) / (end - start)) ** power


def default_steps(total: int, blocks: int) -> tuple[list[int], list[int]]:
    """Return the first and last steps of each block's annealing, as shares of a training.

    As in the paper, each block takes a sixth of the training. The first starts after a sixth of
    it, the last after two thirds. The last sixth has no masks.

    Examples:
        The authors' steps for ViT-L on COCO:

        >>> from cpvt_backbones.heads.annealing import default_steps
        >>> default_steps(88692, 4)
        ([14782, 29564, 44346, 59128], [29564, 44346, 59128, 73910])
    """
    gap = total / 2 / max(blocks - 1, 1)
    starts = [total / 6 + gap * k for k in range(blocks)]
    return [round(start) for start in starts], [round(start + total / 6) for start in starts]


@HOOKS.register_module()
class MaskAnnealingHook(Hook):
    """Lower the probability of masked attention in EoMT's last blocks from 1 to 0, block by block.

    The trained model then needs no masks: it is a plain ViT. A training that starts from weights
    of EoMT does without this hook.

    Args:
        start_steps: Iteration at which each block's annealing starts; ``None`` for the paper's
            share of the training, see :func:`default_steps`.
        end_steps: Iteration from which each block has no masks.
        power: Exponent of the polynomial.

    Examples:
        ```python
        custom_hooks = [dict(type='MaskAnnealingHook')]
        ```
    """

    def __init__(
        self,
        *,
        start_steps: Sequence[int] | None = None,
        end_steps: Sequence[int] | None = None,
        power: float = 0.9,
    ) -> None:
        check_positive(power=power)
        if (start_steps is None) != (end_steps is None):
            raise InputError(
                f'start_steps and end_steps must both be given or both be None, got {start_steps!r}'
                f' and {end_steps!r}'
            )
        if start_steps is not None and end_steps is not None:
            _check_steps(start_steps, end_steps)
        self.start_steps, self.end_steps, self.power = start_steps, end_steps, power

    def before_train(self, runner: Any) -> None:
        """Refuse a model without EoMT's layers, or with another number of last blocks."""
        layers = list(_mask_layers(runner.model))
        if not layers:
            raise InputError(
                'MaskAnnealingHook needs a model with EoMTHead or EoMTSegHead, got'
                f' {type(runner.model).__name__}'
            )
        for one in layers:
            if self.start_steps is not None and len(self.start_steps) != one.num_blocks:
                raise InputError(
                    f'start_steps must have a step for each of {one.num_blocks} blocks, got'
                    f' {self.start_steps!r}'
                )

    def before_train_iter(self, runner: Any, batch_idx: int, data_batch: Any = None) -> None:
        """Set the probabilities of this iteration."""
        for layers in _mask_layers(runner.model):
            if self.start_steps is None or self.end_steps is None:
                starts, ends = default_steps(runner.max_iters, layers.num_blocks)
            else:
                starts, ends = list(self.start_steps), list(self.end_steps)
            values = [
                annealed(runner.iter, start, end, self.power)
                for start, end in zip(starts, ends, strict=True)
            ]
            layers.attn_mask_probs.copy_(torch.tensor(values))


def _mask_layers(model: nn.Module) -> Iterator[MaskLayers]:
    for module in model.modules():
        if isinstance(module, MaskLayers):
            yield module


def _check_steps(starts: Sequence[int], ends: Sequence[int]) -> None:
    if not all(is_sequence(steps) and all(map(is_int, steps)) for steps in (starts, ends)):
        raise InputError(f'start_steps and end_steps must be integers, got {starts!r} and {ends!r}')
    pairs_fit = len(starts) == len(ends) and all(a < b for a, b in zip(starts, ends, strict=True))
    if not pairs_fit:
        raise InputError(
            f'each of end_steps must be above its start_steps, got {starts!r} and {ends!r}'
        )
