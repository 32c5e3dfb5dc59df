"""Loading a file into a model; ``init_cfg=dict(type='Pretrained', ...)`` and ``load_from`` of mmengine."""

from collections.abc import Iterable
from os import PathLike
from typing import Any

from mmengine.logging import print_log
from mmengine.model import PretrainedInit, update_init_info
from mmengine.registry import WEIGHT_INITIALIZERS
from mmengine.runner import CheckpointLoader
from torch import nn

from .convert import convert_state_dict
from .reading import read_checkpoint
from .report import ConversionReport


def load_checkpoint(
    model: nn.Module,
    checkpoint: str | PathLike[str],
    *,
    prefix: str | None = None,
    allow_missing: str | Iterable[str] = (),
    ema: bool = False,
) -> ConversionReport:
    """Read a checkpoint, convert it, load it into a backbone of this package and log what became of its keys.

    Args:
        model: The backbone.
        checkpoint: See :func:`read_checkpoint`.
        prefix, allow_missing, ema: See :func:`convert_state_dict`.

    Returns:
        The report.

    Raises:
        FileNotFoundError, CheckpointError: See :func:`read_checkpoint` and :func:`convert_state_dict`.
    """
    state_dict, report = convert_state_dict(
        read_checkpoint(checkpoint), model, prefix=prefix, allow_missing=allow_missing, ema=ema
    )
    model.load_state_dict(state_dict, strict=False)
    print_log(f'load {checkpoint}: {report}', logger='current')
    return report


@CheckpointLoader.register_scheme(prefixes=r'.*\.safetensors$')
def load_from_safetensors(filename: str, map_location: Any = None) -> dict[str, Any]:
    """mmengine's ``load_checkpoint`` for files that it does not know, so that ``load_from`` takes them."""
    return dict(state_dict=read_checkpoint(filename), meta={})


@WEIGHT_INITIALIZERS.register_module()
class RecognisedPretrained(PretrainedInit):
    """mmengine's ``Pretrained`` for the backbones of this package, which put it in the other's place by themselves.

    Args:
        checkpoint: See :func:`read_checkpoint`.
        map_location: Accepted because mmengine's has it. The file is read on the CPU, and its values are copied to
            where the model is.
        prefix, allow_missing, ema: See :func:`convert_state_dict`.

    Raises:
        FileNotFoundError, CheckpointError: On use; see :func:`read_checkpoint` and :func:`convert_state_dict`.
    """

    def __init__(
        self,
        checkpoint: str,
        prefix: str | None = None,
        map_location: Any = 'cpu',
        *,
        allow_missing: str | Iterable[str] = (),
        ema: bool = False,
    ) -> None:
        super().__init__(checkpoint, prefix, map_location)
        self.options: dict[str, Any] = dict(prefix=prefix, allow_missing=allow_missing, ema=ema)

    def __call__(self, module: nn.Module) -> None:
        load_checkpoint(module, self.checkpoint, **self.options)
        if hasattr(module, '_params_init_info'):
            update_init_info(module, init_info=self._get_init_info())
