"""From what a file holds to the keys and tensors of one backbone."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from .families import PREFIXES, SOURCES, Source, recognise
from .report import CheckpointError, ConversionReport, shorten

CONTAINERS = ('state_dict', 'model', 'model_state_dict', 'module')
EMA_CONTAINERS = ('model_ema', 'ema_state_dict', 'state_dict_ema')


def find_weights(checkpoint: Any, *, ema: bool) -> Mapping[str, Any]:
    """The mapping with the tensors, however deep a training script wrapped it.

    Raises:
        CheckpointError: There is none, or no averaged one where ``ema`` asks for it.
    """
    if not isinstance(checkpoint, Mapping):
        raise CheckpointError(f'checkpoint must be a dict of weights, got a {type(checkpoint).__name__}')
    averaged = [key for key in EMA_CONTAINERS if isinstance(checkpoint.get(key), Mapping)]
    if ema:
        # mmengine's EMAHook swaps the two when it saves: the average lies in state_dict.
        if isinstance(checkpoint.get('state_dict'), Mapping) and 'steps' in (checkpoint.get('ema_state_dict') or ()):
            return find_weights(checkpoint['state_dict'], ema=False)
        if not averaged:
            raise CheckpointError(
                f'ema=True: the checkpoint has none of {", ".join(EMA_CONTAINERS)}; '
                f'it has {shorten([str(key) for key in checkpoint])}'
            )
        return find_weights(checkpoint[averaged[0]], ema=False)
    # First, because a script may store a tensor or two beside them.
    for key in CONTAINERS:
        if isinstance(checkpoint.get(key), Mapping):
            return find_weights(checkpoint[key], ema=False)
    if any(isinstance(value, Tensor) for value in checkpoint.values()):
        return checkpoint
    if averaged:
        raise CheckpointError(
            f'the checkpoint holds averaged weights alone ({averaged[0]!r}): ask for them by ema=True'
        )
    if not checkpoint:
        raise CheckpointError('the checkpoint is empty: a dict without a key')
    raise CheckpointError(
        f'the checkpoint has no weights: no tensors, and none of {", ".join(CONTAINERS)}; '
        f'it has {shorten([str(key) for key in checkpoint])}'
    )


def find_backbone(
    weights: Mapping[str, Any], *, prefix: str | None, report: ConversionReport
) -> tuple[Source, dict[str, tuple[str, Tensor]]]:
    """The backbone's own keys, each with its key in the checkpoint and its tensor, and whose names they are.

    Raises:
        CheckpointError: No key starts with ``prefix``, or nobody's names are recognised.
    """
    found: dict[str, tuple[str, Tensor]] = {}
    for key, value in weights.items():
        if isinstance(value, Tensor):
            # torch.compile wraps a whole model, or any module in it.
            found[str(key).replace('_orig_mod.', '')] = (str(key), value)
        else:
            report.dropped[str(key)] = 'no tensor'
    if prefix is not None:
        prefix = prefix.rstrip('.') + '.'
        if not any(key.startswith(prefix) for key in found):
            first = sorted({key.split('.')[0] + '.' for key in found if '.' in key})
            raise CheckpointError(f'prefix={prefix!r}: no key starts with it; the keys start with {shorten(first)}')
        found = _under(prefix, found, report)
    while (source := recognise(found)) is None:
        wrapper = next((p for p in PREFIXES if any(key.startswith(p) for key in found)), None)
        if wrapper is None:
            raise CheckpointError(
                f'the checkpoint is none of those recognised: its keys are {shorten(list(found))}; recognised are '
                + '; '.join(known.name for known in SOURCES)
            )
        found = _under(wrapper, found, report)
    report.source = source.name
    return source, found


def _under(
    prefix: str, found: dict[str, tuple[str, Tensor]], report: ConversionReport
) -> dict[str, tuple[str, Tensor]]:
    report.prefix += prefix
    report.dropped |= {
        old: f"not under '{report.prefix}'" for key, (old, _) in found.items() if not key.startswith(prefix)
    }
    return {key[len(prefix) :]: pair for key, pair in found.items() if key.startswith(prefix)}
