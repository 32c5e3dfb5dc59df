"""Learning rates of EoMT: the head warms up first, then the trunk; polynomial decay of both."""

import math
from typing import Any

from mmengine.optim.scheduler.param_scheduler import _ParamScheduler
from mmengine.registry import PARAM_SCHEDULERS

from cpvt_backbones.checks import check_int, check_positive
from cpvt_backbones.errors import InputError


def warmed(step: int, *, start: int, warmup: int, end: int, power: float) -> float:
    """Return the factor on a learning rate.

    It is 0 until ``start``, rises linearly to 1 in ``warmup`` steps, and falls by a polynomial to 0
    at ``end``.

    Examples:
        >>> from cpvt_backbones.heads.schedule import warmed
        >>> steps = dict(start=500, warmup=1000, end=11500, power=0.9)
        >>> [round(warmed(step, **steps), 3) for step in (500, 1000, 1500, 6500)]
        [0.0, 0.5, 1.0, 0.536]
    """
    if step < start:
        return 0.0
    if step < start + warmup:
        return (step - start) / warmup
    left = 1 - (step - start - warmup) / max(1, end - start - warmup)
    return max(left, 0.0) ** power


@PARAM_SCHEDULERS.register_module()
class HeadFirstPolyLR(_ParamScheduler):
    """Learning rates by iteration, as EoMT (arXiv 2503.19108) is trained.

    The head's rates rise linearly for ``head_steps``, while the trunk's are 0. The trunk's then
    rise for ``trunk_steps``. Both decay to 0 at ``end``. It needs the parameter groups of
    :class:`LayerDecayOptimWrapperConstructor`, which know their parameters' names.

    Args:
        optimizer: Optimizer, or mmengine's wrapper of one.
        end: Last iteration.
        begin: First iteration.
        head_steps: Iterations in which the head's rates rise.
        trunk_steps: Iterations in which the trunk's rates rise, after that.
        power: Exponent of the decay.
        trunk: Start of the names of the trunk's parameters.
        by_epoch: ``False``: this schedule counts iterations.
        param_name: The entry of a parameter group that is set.
        last_step: mmengine's; the last step of a resumed training.
        verbose: mmengine's.

    Raises:
        ValueError: An argument is wrong, or a parameter group has no name.

    Examples:
        ```python
        param_scheduler = [dict(type='HeadFirstPolyLR', by_epoch=False, end=80000)]
        ```
    """

    def __init__(
        self,
        optimizer: Any,
        *,
        end: int,
        begin: int = 0,
        head_steps: int = 500,
        trunk_steps: int = 1000,
        power: float = 0.9,
        trunk: str = 'backbone.',
        by_epoch: bool = False,
        param_name: str = 'lr',
        last_step: int = -1,
        verbose: bool = False,
    ) -> None:
        check_int(minimum=0, head_steps=head_steps, trunk_steps=trunk_steps)
        check_positive(power=power)
        if by_epoch or end in (None, math.inf):
            raise InputError(
                'HeadFirstPolyLR counts iterations: by_epoch must be False and end an integer, got'
                f' by_epoch={by_epoch!r} and end={end!r}'
            )
        # mmengine's wrapper adds a group without parameters, which holds the head's rate.
        base = getattr(optimizer, 'base_param_settings', None)
        groups = optimizer.param_groups
        if not all('param_name' in group or group is base for group in groups):
            raise InputError(
                'HeadFirstPolyLR needs optim_wrapper.constructor='
                "'LayerDecayOptimWrapperConstructor', whose groups have names"
            )
        self.head_steps, self.trunk_steps, self.power = head_steps, trunk_steps, power
        self.is_trunk = [group.get('param_name', '').startswith(trunk) for group in groups]
        super().__init__(
            optimizer,
            param_name=param_name,
            begin=begin,
            end=end,
            last_step=last_step,
            by_epoch=False,
            verbose=verbose,
        )

    def _get_value(self) -> list[float]:
        length = self.end - self.begin
        options = dict(end=length, power=self.power)
        head = warmed(self.last_step, start=0, warmup=self.head_steps, **options)
        trunk = warmed(self.last_step, start=self.head_steps, warmup=self.trunk_steps, **options)
        return [
            base * (trunk if is_trunk else head)
            for base, is_trunk in zip(self.base_values, self.is_trunk, strict=True)
        ]
