"""Loads a file into a backbone: find, open, recognise, rename, fit, report.

Each step is a function in its own module and returns the input of the next step:

1. ``reading.finding.locate_checkpoint``: path of the file on this machine.
2. ``reading.opening.open_checkpoint``: its tensors and plain data.
3. ``conversion.families.recognise``: ``Recognised``, the weights of a backbone and their family.
4. ``conversion.renaming.rename``: ``Renamed``, the weights by this package's names.
5. ``conversion.fitting.fit``: ``Fitted``, the weights in the shapes of the model.
6. ``conversion.reporting.report_conversion``: a :class:`ConversionReport`.

:func:`describe` also reads what the name or ``config.json`` says about the model.
"""

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from typing import Any

from mmengine.logging import print_log
from torch import Tensor, nn

from cpvt_backbones.checks import list_of_dicts
from cpvt_backbones.errors import InputTypeError
from cpvt_backbones.layers import Attention
from cpvt_backbones.layers.rope import TEMPERATURES

from .conversion.families import known_to_differ, recognise
from .conversion.fitting import fit
from .conversion.renaming import rename
from .conversion.reporting import check_values, raise_if_unfit, report_conversion
from .normalisation import find_normalisation
from .reading.finding import read_checkpoint
from .report import CheckpointError, ConversionReport, naming_file
from .source_config import describe


def load_checkpoint(
    model: nn.Module,
    checkpoint: str | PathLike[str],
    *,
    prefix: str | None = None,
    allow_missing: str | Iterable[str] = (),
    ema: bool = False,
    table_grid: Sequence[Any] | None = None,
    content: Mapping[str, Any] | None = None,
) -> ConversionReport:
    """Load a checkpoint into a backbone of this package, and log the report.

    Args:
        model: :class:`CPVT`, :class:`MultiScaleCPVT` or :class:`PyramidCPVT`; changed in place.
        checkpoint: File, folder, address or name; see :func:`locate_checkpoint`.
        prefix: Load only keys with this prefix; ``None`` finds the prefix.
        allow_missing: Keys of new parts, such as PEGs, that the checkpoint may lack, or patterns.
        ema: Load the averaged weights that are stored beside the others.
        table_grid: Grid (height, width) of the checkpoint's position embedding in tokens, or one
            pair per stage. :func:`convert_state_dict` explains the last four in full.
        content: Result of :func:`read_checkpoint`, if it was called before.

    Returns:
        What was loaded, renamed, dropped and added.

    Raises:
        FileNotFoundError: There is no such file or folder.
        CheckpointError: The checkpoint cannot be read, is not recognised, or does not fit the
            model.

    Examples:
        >>> from cpvt_backbones import CPVT
        >>> from cpvt_backbones.checkpoints import load_checkpoint
        >>> position = dict(type='PEG', after_blocks='0-5')
        >>> model = CPVT(arch='tiny', position=position, with_cls_token=False)
        >>> report = load_checkpoint(model, 'cpvt_tiny_gap-imagenette')
        >>> len(report.loaded), report.missing
        (158, {})
    """
    with naming_file(checkpoint):
        if reason := known_to_differ(checkpoint):
            raise CheckpointError(
                f'no model of this package has the outputs of its source: {reason}'
            )
    if content is None:
        content = read_checkpoint(checkpoint)
    with naming_file(checkpoint):
        source = describe(checkpoint, content, prefix=prefix, ema=ema)
        state_dict, report = convert_state_dict(
            content,
            model,
            prefix=prefix,
            allow_missing=allow_missing,
            ema=ema,
            table_grid=table_grid or source.table_grid,
        )
    report.notes += [*source.notes, *_differences(model, source.arguments)]
    report.normalisation = find_normalisation(checkpoint)
    model.load_state_dict(state_dict, strict=False)
    model.normalisation = report.normalisation  # type: ignore[assignment]
    print_log(f'load {checkpoint}: {report}', logger='current')
    return report


def convert_state_dict(
    state_dict: Mapping[str, Any],
    model: nn.Module,
    *,
    prefix: str | None = None,
    allow_missing: str | Iterable[str] = (),
    ema: bool = False,
    table_grid: Sequence[Any] | None = None,
) -> tuple[dict[str, Tensor], ConversionReport]:
    """Convert weights of a ViT, DeiT, PVT, Twins or CPVT to a state dict of this package.

    **Names.** The names of the authors, timm, transformers, mmdet, mmseg, mmpretrain and this
    package are recognised. They may be in wrappers (``model``, ``state_dict``) and under prefixes
    (``module.``, ``backbone.``, ``_orig_mod.``). Any other prefix is found if it is the only one.

    **Shapes.** A position embedding of another grid is resized. A patch embedding for RGB is fitted
    to other numbers of channels and, for :class:`CPVT` and :class:`MultiScaleCPVT`, to the patch
    size.

    **PEGs.** PEGs that the source lacks start as the identity. Before training, the model's outputs
    are then those of the source without its position embedding.

    Args:
        state_dict: A state dict, or a whole checkpoint that holds one; not changed.
        model: :class:`CPVT`, :class:`MultiScaleCPVT` or :class:`PyramidCPVT`.
        prefix: Convert only keys with this prefix, such as ``'teacher'`` in a checkpoint with
            weights under ``teacher`` and ``student``; ``None`` finds the prefix.
        allow_missing: Keys of new parts of the model that the source may lack, or patterns such as
            ``'pos_block.*'``. New parts are position encodings, class, distillation and register
            tokens, layer scales, and adapters (``adapter`` or ``lora`` in the name). No other key
            may be missing.
        ema: Convert the averaged weights that are stored beside the others. mmengine's ``EMAHook``
            stores them instead of the others, so there they are always converted.
        table_grid: Grid (height, width) of the source's position embedding in tokens, or one pair
            per stage. Needed if the source does not contain it and a square would be a guess: 16
            entries may be a grid of 4 x 4 or of 2 x 8 tokens.

    Returns:
        The state dict, to be loaded with ``strict=False``, and the :class:`ConversionReport`.

    Raises:
        CheckpointError: There are no weights, the names are unknown, the architecture or a shape
            differs, the trunk is incomplete, or values are NaN, infinite or integers.
        TypeError: ``model`` is not a backbone of this package.

    Examples:
        >>> from cpvt_backbones import CPVT, convert_state_dict
        >>> source, model = CPVT(arch='tiny'), CPVT(arch='tiny')
        >>> lightning = {f'net.{k}': v for k, v in source.state_dict().items()}
        >>> weights, report = convert_state_dict(lightning, model)
        >>> report.prefix
        'net.'
        >>> model.load_state_dict(weights)
        <All keys matched successfully>
    """
    if not hasattr(model, 'position_encodings') or getattr(model, 'depths', None) is None:
        accepted = (
            'a CPVT, MultiScaleCPVT or PyramidCPVT (of a detector, segmentor or classifier its'
            ' backbone)'
        )
        raise InputTypeError(f'model must be {accepted}, got {type(model).__name__}')
    recognised = recognise(state_dict, prefix=prefix, ema=ema)
    renamed = rename(recognised)
    fitted = fit(renamed, model, table_grid=table_grid)
    report = report_conversion(fitted, model, allow_missing=allow_missing)
    raise_if_unfit(report, model)
    wanted = model.state_dict()
    result = {key: part.value for key, part in fitted.parts.items() if key in wanted}
    check_values(result, wanted)
    return result, report


def _differences(model: nn.Module, source: Mapping[str, Any]) -> list[str]:
    """List known settings of the source that no key shows and that this model does not match."""
    wanted: dict[str, Any] = {}
    found: dict[str, Any] = {}
    for key in ('norm_eps', 'activation'):
        if key in source and hasattr(model, key):
            wanted[key], found[key] = source[key], getattr(model, key)
    arch = source.get('arch')
    if isinstance(arch, Mapping) and isinstance(arch.get('num_heads'), int):
        for module in model.modules():
            if isinstance(module, Attention):
                wanted['num_heads'], found['num_heads'] = arch['num_heads'], module.num_heads
                break
    if source.get('window_size') is not None and hasattr(model, 'window_size'):
        for key in ('window_size', 'mask_window_padding'):
            wanted[key], found[key] = source.get(key, True), getattr(model, key)
    if 'position' in source:
        encodings = list_of_dicts('position', source['position'])
        wanted['rope'] = [_rotation(**e) for e in encodings if e.get('type') == 'RoPE']
        found['rope'] = [
            _rotation(encoding.mode, encoding.temperature)
            for encoding in getattr(model, 'position_encodings', ())
            if encoding.has_rotation
        ]
    return [
        f'the weights were trained with {key}={value!r}, the model has {found[key]!r}'
        for key, value in wanted.items()
        if found[key] != value
    ]


def _rotation(
    mode: str = 'axial', temperature: float | None = None, **_: Any
) -> tuple[str, float | None]:
    """Return mode and temperature of a rotary encoding from its arguments."""
    return mode, TEMPERATURES.get(str(mode)) if temperature is None else temperature
