"""Fully sharded training (FSDP) of detectors and segmentors, where mmengine's own stops short."""

from typing import Any

from mmengine._strategy import FSDPStrategy
from mmengine.registry import FUNCTIONS, STRATEGIES
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

from cpvt_backbones.layers import Block


@FUNCTIONS.register_module()
def wrap_blocks(module: nn.Module, recurse: bool, nonwrapped_numel: int) -> bool:
    """An ``auto_wrap_policy`` that makes every transformer block a unit, and the rest of the model one more.

    A policy by size would also wrap the heads. mmdet calls their ``loss`` and ``predict``, and FSDP gathers a unit's
    parameters for ``forward`` alone.

    Args:
        module: What FSDP asks about.
        recurse: Whether it asks about going into the module, or about making it a unit.
        nonwrapped_numel: Its parameters that are in no unit yet; not looked at.

    Returns:
        Yes or no.
    """
    return recurse or isinstance(module, Block)


@STRATEGIES.register_module()
class ResumableFSDPStrategy(FSDPStrategy):
    """mmengine's strategy, whose ``--resume`` calls torch with the arguments in the order of torch 2.0."""

    def load_optim_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what :meth:`optim_state_dict` gave."""
        optimizer = self.optim_wrapper.optimizer
        self.optim_wrapper.load_state_dict(
            FullyShardedDataParallel.optim_state_dict_to_load(
                model=self.model, optim=optimizer, optim_state_dict=state_dict
            )
        )
