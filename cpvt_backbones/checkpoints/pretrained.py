"""Loading a file into a model; ``init_cfg=dict(type='Pretrained', ...)`` and ``load_from`` of mmengine."""

from collections.abc import Iterable
from os import PathLike
from typing import Any

from mmengine.logging import print_log
from mmengine.model import BaseTTAModel, PretrainedInit, is_model_wrapper, update_init_info
from mmengine.registry import WEIGHT_INITIALIZERS
from mmengine.runner import CheckpointLoader
from torch import nn

from .convert import convert_state_dict
from .errors import CheckpointError
from .files import read_checkpoint
from .report import ConversionReport, shorten
from .unwrap import find_weights


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


def load_weights(model: nn.Module, checkpoint: str | PathLike[str], *, strict: bool = False) -> dict[str, Any]:
    """Load a checkpoint into the whole model that it was saved from, and raise unless every weight fits.

    mmengine's own loader only warns and leaves the rest random.

    Args:
        model: Detector, segmentor or classifier; wrappers of mmengine (data parallel, test-time augmentation) are
            looked through.
        checkpoint: See :func:`read_checkpoint`.
        strict: Refuse weights that the model has not, too.

    Returns:
        dict: The checkpoint's ``meta``, or an empty dict.

    Raises:
        FileNotFoundError, CheckpointError: See :func:`read_checkpoint`; or the checkpoint lacks weights of the model,
            or has them in other shapes.
    """
    while is_model_wrapper(model) or isinstance(model, BaseTTAModel):
        model = model.get_submodule('module')
    content = read_checkpoint(checkpoint)
    try:
        found = find_weights(content, ema=False)
    except CheckpointError as error:
        raise CheckpointError(f'checkpoint {str(checkpoint)!r}: {error}') from error
    weights = {key.removeprefix('module.'): value for key, value in found.items()}
    try:
        missing, unexpected = model.load_state_dict(weights, strict=False)
    except RuntimeError as error:  # torch lists the shapes that differ, one a line
        shapes = ' '.join(str(error).split())
        raise CheckpointError(f'checkpoint {str(checkpoint)!r} does not fit the model: {shapes}') from error
    if missing:
        raise CheckpointError(
            f'checkpoint {str(checkpoint)!r} does not fit the model: it lacks {len(missing)} of '
            f'{len(model.state_dict())} weights: {shorten(missing)}'
        )
    if strict and unexpected:
        raise CheckpointError(
            f'checkpoint {str(checkpoint)!r} does not fit the model, which lacks {len(unexpected)} of '
            f'{len(weights)} weights: {shorten(unexpected)}'
        )
    meta = content.get('meta')
    return meta if isinstance(meta, dict) else {}
