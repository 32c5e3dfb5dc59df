"""Step ``report``: what was loaded, dropped and added, and whether the outputs are the source's."""

import math
import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn

from cpvt_backbones.layers.peg import PEGPosition
from cpvt_backbones.layers.position import PositionEncoding

from ..report import CheckpointError, ConversionReport, Reason, shorten
from .families import Recognised
from .fitting import PEG, Fitted
from .renaming import Parts, hidden_rotation, is_eva02

# These three tables sort keys that the model lacks, in this order. A key in none of them is refused
# because its effect on the outputs is unknown.
# Parts after the trunk, or for pretraining only; dropping them changes no output.
_HARMLESS = {
    r'(head|head_dist|fc|fc_norm|pre_logits|classifier|classifier_head)\.': Reason.HEAD,
    r'(attn_pool|pooler)\.': Reason.POOLING,
    r'(decoder|decoder_\w+)(\.|$)': Reason.DECODER,
    r'(predictor|projector)\.': Reason.PROJECTION,
    r'neck\.': Reason.NECK,
    r'mask_token$': Reason.PRETRAINING,
    r'rope(_embed)?\.periods$': Reason.COMPUTED,
    r'pyramid\.': Reason.PYRAMID,
    r'blocks\.\d+\.attn\.relative_position_index$': Reason.COMPUTED,
}
_REFUSED = {
    r'norm_pre\.': (
        'it normalises the tokens before the first block, as CLIP does: build a CPVT with'
        ' pre_norm=True'
    ),
    r'norm_list\.[0-3]\.': (
        'it normalises what goes from stage to stage: build the model with norm_after_stage=True'
    ),
    r'norm_after_stage[0-3]\.': (
        'it normalises what goes from stage to stage, and no PyramidCPVT has these norms'
    ),
    r'rel_pos_hw\.': (
        "relative positions of ViTDet and SAM: the model needs dict(type='DecomposedRelative') in"
        ' position'
    ),
    r'rel_pos_bias\.\d+$': (
        "a relative position bias of BEiT and Swin: the model needs dict(type='RelativeBias') in"
        ' position'
    ),
    r'blocks\.\d+\.residual\.': (
        'a convolutional block after the MLP (ViTDet), which CPVT does not have'
    ),
    r'.*(relative_position|rel_pos\.(?!\d+\.(row|column)$))': (
        'a relative position bias that all blocks share, or of another model: none of position='
    ),
    r'.*\.ls[12]\.gamma$': 'layer scale: build the model with layer_scale_init=1.0',
    r'.*\.[qk]_norm\.': 'it normalises queries and keys, and CPVT does not',
    r'.*\.(qkv|q|kv)\.bias$': 'build the model with qkv_bias=True',
    r'.*\.dwconv\.': 'a convolution in the MLP: build the model with mlp_kernel_size in its arch',
    r'patch_embed.*\.norm\.': 'a norm after the patch embedding, which CPVT does not have',
    r'(blocks\.\d+|patch_embed|patch_embeds\.\d+)\.': (
        'a part of a block that this package does not know'
    ),
}
# Parts that the model's arguments leave out.
_CHOSEN = {
    r'dist_token$': Reason.NO_DIST_TOKEN,
    r'reg_token$': Reason.NO_REGISTERS,
    r'cls_token$': Reason.NO_CLS_TOKEN,
    PEG: Reason.NO_PEG,
    r'rope\.freqs': Reason.NO_FREQUENCIES,
    r'rel_pos\.\d+\.(row|column)$': Reason.NO_RELATIVE,
    r'norm\.': Reason.NO_LAST_NORM,
}
# Buffers that a model computes.
_COMPUTED = re.compile(r'\.num_batches_tracked$|^pos_embed\.grid_\d$')
_UNKNOWN = 'not a part that this package knows, so it may change the outputs'
# Notes on encodings that have no key, by mode.
_HIDDEN_ROTATIONS = {
    'pe': (
        'the keys are those of a CLIP without its last norm, and of PE-Spatial and PE-Lang,'
        ' whose rotary encoding has no key: weights of these two need'
        " dict(type='RoPE', mode='pe') beside the position embedding"
    ),
    'axial': (
        "the keys are those of Meta's DeiT-III, and of timm's rope_ape models, whose rotary"
        " encoding has no key: weights of these need dict(type='RoPE', mode='axial') beside the"
        ' position embedding'
    ),
}
# Keys that `allow_missing` may cover besides position encodings: new parts that are added to
# pretrained weights and then trained. All other keys affect the outputs of the weights.
_NEW_PARTS = (
    r'(cls|dist|reg)_token$',
    r'blocks\.(\d+\.)?\d+\.ls[12]\.gamma$',
    r'(.+\.)?\w*(adapter|lora)\w*\.',
)
_MAY_BE_NEW = 'position encodings, class, distillation and register tokens, layer scales, adapters'
# Arguments with which the model leaves out parts that a source lacks.
_WITHOUT = {
    r'norm\.': 'final_norm=False',
    r'norm_pre\.': 'pre_norm=False',
    r'norm_list\.': 'norm_after_stage=False',
    r'blocks\..*\.(qkv|q|kv)\.bias$': 'qkv_bias=False',
    r'blocks\..*\.ls[12]\.gamma$': 'layer_scale_init=None',
    r'cls_token$': 'with_cls_token=False',
    r'dist_token$': 'with_dist_token=False',
    r'reg_token$': 'num_registers=0',
}


def report_conversion(
    fitted: Fitted, model: nn.Module, *, allow_missing: str | Iterable[str]
) -> ConversionReport:
    """Return what each step did, and what is left of the model or the checkpoint.

    Args:
        fitted: The result of the previous step.
        model: The model.
        allow_missing: See :func:`convert_state_dict`.
    """
    renamed = fitted.renamed
    source, parts = renamed.source, renamed.parts
    wanted = model.state_dict()
    patterns = [allow_missing] if isinstance(allow_missing, str) else list(allow_missing)
    report = ConversionReport(
        source=source.family.name,
        target=type(model).__name__,
        prefix=source.prefix,
        renamed=renamed.pairs,
        dropped=source.dropped | renamed.dropped | fitted.dropped,
        added=fitted.added,
        refused=_other_windows(parts, wanted) | _other_rotation(parts, model),
        notes=renamed.notes + _notes(source, parts, model) + fitted.notes,
    )
    for key, part in fitted.parts.items():
        if key not in wanted:
            why = _left_over(key, wanted, model)
            if isinstance(why, Reason):
                report.dropped[part.keys[0]] = why
            else:
                report.refused[part.keys[0]] = why
        elif part.value.shape != wanted[key].shape:
            report.mismatched[key] = tuple(part.value.shape), tuple(wanted[key].shape)
        elif part.keys:
            report.loaded.append(key)
    for key in wanted:
        if key not in fitted.parts and not _COMPUTED.search(key):
            report.missing[key] = _reason_to_lack(key, model, patterns)
    return report


def _reason_to_lack(key: str, model: nn.Module, patterns: Iterable[str]) -> str:
    """Return why the source may lack a weight of the model; ``''`` if it may not."""
    if key.startswith('pyramid.'):
        return 'part of MultiScaleCPVT only: it keeps its initial weights'
    allowed = any(fnmatchcase(key, pattern) for pattern in patterns)
    if allowed and _is_new_part(key, model):
        return 'allowed by allow_missing: it keeps its initial weights'
    return ''


def _notes(source: Recognised, parts: Parts, model: nn.Module) -> list[str]:
    """List what the keys leave open, and what this model computes differently from the source."""
    notes = []
    encoded = rf'{PEG}|pos_embed\.|rel_pos(_hw|_bias)?\.|rope\.freqs'
    if not any(re.match(encoded, key) or _is_of_encoding(key, model) for key in parts):
        notes.append(
            'the source has no parameters of position: it encodes none, or encodes it by a formula'
        )
    windowed: Any = getattr(model, 'window_size', None)
    masks_padding = windowed and getattr(model, 'mask_window_padding', False)
    if source.family.attends_to_padding and masks_padding:
        notes.append(
            'the source attends to the padding of windows, the model does not:'
            ' mask_window_padding=False gives the same outputs at every size'
        )
    if _is_deit3_of_mmpretrain(source):
        notes.append(
            "the keys are those of mmpretrain's DeiT-III, which normalises by ln1 where its authors"
            ' and this package normalise by ln2: weights trained in mmpretrain have other outputs'
            ' here, until norm2 of each block is a copy of norm1'
        )
    hidden = hidden_rotation(parts)
    if hidden and 'pos_embed.grid_0' not in parts and hidden not in _rotations(model):
        notes.append(_HIDDEN_ROTATIONS[hidden])
    return notes


def _is_deit3_of_mmpretrain(source: Recognised) -> bool:
    """``True`` for mmpretrain's DeiT-III, whose blocks apply ``ln1`` twice and never ``ln2``.

    Its keys are those of a ViT with layer scale, but its embedding lacks the class token's entry.
    """
    weights = source.weights
    parts = ('pos_embed', 'cls_token', 'layers.0.attn.gamma1.weight', 'layers.0.ln2.weight')
    if source.family.table is None or not all(part in weights for part in parts):
        return False
    entries = weights['pos_embed'][1].shape[1]
    return math.isqrt(entries) ** 2 == entries


def _other_windows(parts: Parts, wanted: Mapping[str, Tensor]) -> dict[str, str]:
    """List relative positions for other windows or another grid, with the reason."""
    refused = {}
    for key, part in parts.items():
        if key.startswith('rel_pos_bias.') and key in wanted:
            shapes = tuple(part.value.shape), tuple(wanted[key].shape)
            if shapes[0] != shapes[1]:
                refused[part.keys[0]] = (
                    f'the table is {shapes[0]}, offsets and heads, that of the model {shapes[1]}:'
                    ' the grid of RelativeBias is that of the weights, at any img_size'
                )
        if not key.startswith('rel_pos_hw.') or key not in wanted or part.value.dim() != 2:
            continue
        theirs = (len(part.value) + 1) // 2
        mine = (len(wanted[key]) + 1) // 2
        if theirs != mine:
            refused[part.keys[0]] = (
                f'the table is for a side of {theirs} tokens, that of the model for {mine}:'
                ' window_size, global_blocks and the grid of DecomposedRelative are those of the'
                ' weights'
            )
    return refused


def _rotations(model: nn.Module) -> list[str]:
    """Return the modes of the model's rotary encodings."""
    encodings: Any = getattr(model, 'position_encodings', ())
    return [getattr(encoding, 'mode', '') for encoding in encodings]


def _other_rotation(parts: Parts, model: nn.Module) -> dict[str, str]:
    """Find keys of EVA-02 or Perception Encoder if the model lacks their rotary encoding.

    These encodings have no key. PE-Core (arXiv 2504.13181) has CLIP's norm before the blocks and
    attention pooling, in timm's and Meta's names. PE-Spatial and PE-Lang have CLIP's keys without
    the last norm, like a part of a CLIP.

    Returns:
        The keys, and the reason to refuse them.
    """
    modes = _rotations(model)
    refused = {}
    if is_eva02(parts) and 'eva' not in modes:
        refused[parts['blocks.0.attn.qkv.bias'].keys[0]] = (
            'with a gate in fc1 the keys are those of EVA-02, whose rotary encoding has no key: the'
            " model needs dict(type='RoPE', mode='eva') beside its position embedding"
        )
    for pool in ('attn_pool.latent', 'attn_pool.probe'):
        if pool in parts and 'norm_pre.weight' in parts and 'pe' not in modes:
            refused[parts[pool].keys[0]] = (
                'with norm_pre the keys are those of Perception Encoder, whose rotary encoding'
                " has no key: the model needs dict(type='RoPE', mode='pe') beside its position"
                ' embedding'
            )
    return refused


def _left_over(key: str, wanted: Iterable[str], model: nn.Module) -> Reason | str:
    """Return a ``Reason`` to drop a key that the model lacks, or text to refuse the checkpoint."""
    part = re.match(r'(blocks\.\d+(\.\d+)?|patch_embed|patch_embeds\.\d+)\.', key)
    start = part[0] if part else ''
    table = re.match(r'rel_pos_(?:hw|bias)\.(\d+)', key)
    if table and 'patch_embed.proj.weight' in wanted:  # a plain ViT
        start = f'blocks.{table[1]}.'
    if start and not any(name.startswith(start) for name in wanted):
        return Reason.NOT_BUILT
    if re.match(PEG, key) and _has_other_pegs(key, wanted, model):
        return 'the model has other PEGs: build it with the position of the checkpoint'
    for pattern, reason in (*_HARMLESS.items(), *_REFUSED.items(), *_CHOSEN.items()):
        if re.match(pattern, key):
            return reason
    return _UNKNOWN


def _has_other_pegs(key: str, wanted: Iterable[str], model: nn.Module) -> bool:
    """``True`` if a model with PEGs has no PEG for a key, or a different one.

    PEGs that no output needs are not built, but count.
    """
    pegs = {name: one for name, one in model.named_children() if isinstance(one, PEGPosition)}
    parts = re.match(r'(\w+)\.(\d+)\.', key)  # name of the encoding and index of the PEG
    if not pegs or not parts:
        return False
    depths: Any = model.depths
    encoding = pegs.get(parts[1])
    count = sum(len(encoding.blocks_of(depth)) for depth in depths) if encoding else 0
    return int(parts[2]) >= count or any(name.startswith(parts[0]) for name in wanted)


def _is_of_encoding(key: str, model: nn.Module) -> bool:
    return isinstance(getattr(model, key.partition('.')[0], None), PositionEncoding)


def _is_new_part(key: str, model: nn.Module) -> bool:
    return _is_of_encoding(key, model) or any(re.match(new, key) for new in _NEW_PARTS)


def _advice_on_missing(missing: list[str], model: nn.Module) -> str:
    """Advise on missing keys: leave the part out of the model, or allow it as a new part."""
    arguments = []
    for pattern, argument in _WITHOUT.items():
        if any(re.match(pattern, key) for key in missing):
            arguments.append(argument)
    advice = []
    if arguments:
        advice.append(f'a model without them is built with {", ".join(arguments)}')
    if all(_is_new_part(key, model) for key in missing):
        advice.append('allow_missing names those that are new and keep their initial weights')
    else:
        advice.append(f'allow_missing is for new parts only ({_MAY_BE_NEW})')
    return '; '.join(advice)


def raise_if_unfit(report: ConversionReport, model: nn.Module) -> None:
    """Raise CheckpointError if weights are missing or refused, or have other shapes."""
    faults = [f'wrong architecture: {key}: {reason}' for key, reason in report.refused.items()]
    faults = faults or report.mismatches()
    missing = [key for key, reason in report.missing.items() if not reason]
    if faults:
        message = faults[0] + (f' (and {len(faults) - 1} more keys)' if len(faults) > 1 else '')
    elif missing:
        lacking = f'the checkpoint lacks {len(missing)} keys of the model: {shorten(missing)}'
        message = f'{lacking}; {_advice_on_missing(missing, model)}'
    else:
        return
    kind = f'its weights (recognised as {report.source})'
    raise CheckpointError(f'{kind} do not fit {report.target}: {message}', report=report)


def check_values(weights: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    """Raise CheckpointError if weights of floating-point parameters have NaN, infinity or integers.

    Infinity is accepted if the model's own values, in ``wanted``, have it (a mask).
    """
    for key, value in weights.items():
        own = wanted.get(key)
        if own is None or not own.is_floating_point():
            continue
        if not value.is_floating_point():
            raise CheckpointError(f'{key} is of type {value.dtype}, the model has {own.dtype}')
        if not value.isfinite().all() and own.isfinite().all():
            raise CheckpointError(f'{key} has values that are NaN or infinite')
