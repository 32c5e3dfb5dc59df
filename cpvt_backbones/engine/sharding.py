"""Fully sharded training (FSDP) of detectors and segmentors: a wrap policy, and resuming."""

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
        module: Candidate.
        recurse: ``True`` to decide on entering the module, ``False`` on making it a unit.
        nonwrapped_numel: Parameters that are in no unit yet; not used.

    Returns:
        The decision.
    """
    return recurse or isinstance(module, Block)


@STRATEGIES.register_module()
class ResumableFSDPStrategy(FSDPStrategy):
    """mmengine's strategy with a working ``--resume``: mmengine passes arguments in the order of torch 2.0."""

    def load_optim_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict of :meth:`optim_state_dict`."""
        optimizer = self.optim_wrapper.optimizer
        self.optim_wrapper.load_state_dict(
            FullyShardedDataParallel.optim_state_dict_to_load(
                model=self.model, optim=optimizer, optim_state_dict=state_dict
            )
        )
