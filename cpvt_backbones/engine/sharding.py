"""Fully sharded training (FSDP) of detectors and segmentors: a wrap policy, and resuming."""

from typing import Any

from mmengine._strategy import FSDPStrategy
from mmengine.registry import FUNCTIONS, STRATEGIES
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

from cpvt_backbones.layers import Block


@FUNCTIONS.register_module()
def wrap_blocks(module: nn.Module, recurse: bool, nonwrapped_numel: int) -> bool:
    """FSDP's ``auto_wrap_policy`` that makes a unit of each transformer block, and one of the rest
    of the model.

    A policy by size would also wrap the heads. mmdet calls their ``loss`` and ``predict``, and FSDP
    gathers a unit's parameters for ``forward`` alone.
    """
    return recurse or isinstance(module, Block)


@STRATEGIES.register_module()
class ResumableFSDPStrategy(FSDPStrategy):
    """mmengine's strategy with a working ``--resume``: mmengine passes arguments in the order of
    torch 2.0.
    """

    def load_optim_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict of :meth:`optim_state_dict`."""
        options = dict(
            model=self.model, optim=self.optim_wrapper.optimizer, optim_state_dict=state_dict
        )
        self.optim_wrapper.load_state_dict(
            FullyShardedDataParallel.optim_state_dict_to_load(**options)
        )
