"""Fully sharded training (FSDP) of detectors and segmentors: a wrap policy, and resuming."""

from typing import Any

import torch
from mmengine._strategy import FSDPStrategy
from mmengine.registry import FUNCTIONS, STRATEGIES
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

from cpvt_backbones.layers import Block


@FUNCTIONS.register_module()
def wrap_blocks(module: nn.Module, recurse: bool, nonwrapped_numel: int) -> bool:
    """Wrap policy of FSDP: each transformer block is a unit, and so is the rest of the model.

    A policy by size would also wrap the heads. mmdet calls ``loss`` and ``predict`` of a head, but
    FSDP gathers the parameters of a unit for ``forward`` only. See :class:`ResumableFSDPStrategy`
    for a config.

    Args:
        module: The module that may be wrapped.
        recurse: ``True`` if FSDP asks whether to look into the module.
        nonwrapped_numel: Number of parameters that are not yet wrapped; not used.

    Returns:
        ``True`` for transformer blocks, and for all modules if ``recurse``.
    """
    return recurse or isinstance(module, Block)


@STRATEGIES.register_module()
class ResumableFSDPStrategy(FSDPStrategy):
    """mmengine's ``FSDPStrategy`` (fully sharded data parallel), with a working ``--resume``.

    mmengine passes the arguments of the optimizer's state in the order of torch 2.0, so its own
    strategy cannot resume with later versions. A checkpoint is compared with the model before it is
    loaded. The arguments are those of ``FSDPStrategy``.

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

    shapes: dict[str, torch.Size]
    """Shapes of the weights by name, as in a checkpoint."""

    def build_model(self, model: nn.Module | dict[str, Any]) -> nn.Module:
        """Build the model, and store the shapes of its weights before they are sharded."""
        built = super().build_model(model)
        self.shapes = {name: value.shape for name, value in built.state_dict().items()}
        return built

    def load_optim_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the state of the optimizer, as ``optim_state_dict()`` returned it."""
        options = dict(
            model=self.model, optim=self.optim_wrapper.optimizer, optim_state_dict=state_dict
        )
        self.optim_wrapper.load_state_dict(
            FullyShardedDataParallel.optim_state_dict_to_load(**options)
        )
