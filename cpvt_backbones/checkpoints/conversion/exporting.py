"""Export of a model's weights with the names of other packages."""

import re
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from cpvt_backbones.checks import check_choice
from cpvt_backbones.plain import TARGETS

from ..report import CheckpointError, ConversionReport, Reason

_GRID = re.compile(r'pos_embed\.grid_\d$')
_OPENMMLAB = (
    (r'^patch_embeds\.(\d)\.proj\.', r'patch_embeds.\1.projection.'),
    (r'^pos_block\.(\d)\.proj\.0\.', r'position_encodings.\1.proj.'),
    (r'\.mlp\.fc1\.', '.ffn.layers.0.0.'),
    (r'\.mlp\.fc2\.', '.ffn.layers.1.'),
)
_PYRAMID_RULES: dict[str, tuple[tuple[str, str], ...]] = {
    'timm': (),
    'mmseg': ((r'^blocks\.', 'layers.'), (r'\.attn\.proj\.', '.attn.attn.out_proj.'), *_OPENMMLAB),
    'mmpretrain': ((r'^blocks\.', 'stages.'), (r'^norm\.', 'norm_after_stage3.'), *_OPENMMLAB),
}


def export_state_dict(
    state_dict: Mapping[str, Tensor], model: nn.Module, *, to: str
) -> tuple[dict[str, Tensor], ConversionReport]:
    """Rename weights of a backbone of this package for timm, mmseg or mmpretrain.

    A :class:`PyramidCPVT` with a PEG after the first block of each stage fits timm's ``twins_*``,
    and ``PCPVT`` and ``SVT`` of mmseg and mmpretrain. mmseg's classes have ``norm_eps=1e-5`` and no
    final norm. Twins-SVT has equal outputs if no window has padding. A :class:`CPVT` with only a
    learned position embedding, global attention, GELU and no registers fits timm's ViT and DeiT.

    Args:
        state_dict: State dict of ``model``.
        model: The backbone.
        to: ``'cpvt'`` (unchanged), ``'timm'``, ``'mmseg'`` or ``'mmpretrain'``.

    Returns:
        The renamed state dict, and the :class:`ConversionReport`.

    Raises:
        ValueError: ``to`` is none of these.
        CheckpointError: The other package has no model that computes the same.

    Examples:
        >>> from cpvt_backbones import CPVT
        >>> from cpvt_backbones.checkpoints import export_state_dict
        >>> model = CPVT(arch='tiny', position=dict(type='Learned'))
        >>> ours = model.state_dict()
        >>> theirs, report = export_state_dict(ours, model, to='timm')
        >>> 'pos_embed' in ours, 'pos_embed' in theirs
        (False, True)
    """
    check_choice(TARGETS, to=to)
    report = ConversionReport(source=type(model).__name__, target=f"{to}'s names")
    rules = _rules(state_dict, to, report.source)
    parts = [] if to == 'cpvt' else _found_here_alone(model, to)
    if parts:
        fault = f'this {report.source} has {", ".join(parts)}'
        raise CheckpointError(f'to={to!r}: no model of {to} under these names computes it: {fault}')
    result: dict[str, Tensor] = {}
    for key, value in state_dict.items():
        if to != 'cpvt' and _GRID.match(key):
            height, width = value.tolist()
            report.dropped[key] = Reason.NO_KEY_THERE
            report.notes.append(
                f'{to} does not store the grid of a position embedding: build its model for'
                f' {height} x {width} tokens'
            )
            continue
        name = key
        for pattern, replacement in rules:
            name = re.sub(pattern, replacement, name)
        if _is_windowed(key, state_dict):  # its attention is not torch.nn.MultiheadAttention
            name = name.replace('.attn.attn.out_proj.', '.attn.proj.')
        if to == 'mmseg' and name.startswith('norm.'):
            report.dropped[key] = Reason.NO_NORM_THERE
            continue
        if to == 'mmseg' and '.attn.kv.' in name:
            continue  # joined with its query
        if to == 'mmseg' and '.attn.q.' in name:
            value = torch.cat((value, state_dict[key.replace('.q.', '.kv.')]))
            name = name.replace('.attn.q.', '.attn.attn.in_proj_')
        result[name] = value
        if name != key:
            report.renamed.append((key, name))
    report.loaded = list(result)
    return result, report


def _is_windowed(key: str, state_dict: Mapping[str, Tensor]) -> bool:
    """``True`` for a key of windowed attention, which has one projection."""
    block, attention, _ = key.partition('.attn.')
    return bool(attention) and f'{block}.attn.qkv.weight' in state_dict


def _found_here_alone(model: nn.Module, to: str) -> list[str]:
    """List arguments of a model that no ViT, DeiT or Twins of another package supports.

    Keys alone do not show them: a window, for example, has no weights.
    """
    parts = []
    for encoding in getattr(model, 'position_encodings', ()):
        name = type(encoding).__name__
        if name not in ('LearnedTable', 'PEGPosition'):
            parts.append(f'the encoding {name}')
    if getattr(model, 'window_size', None) is not None:
        parts.append(f'window_size={model.window_size}')
    if getattr(model, 'norm_after_stage', False) and to != 'mmseg':
        parts.append('norm_after_stage=True')
    if getattr(model, 'activation', 'gelu') != 'gelu':
        parts.append(f'activation={model.activation!r}')
    # With registers, timm's embeddings have no entries for the class token and registers.
    if getattr(model, 'num_registers', 0):
        parts.append(f'num_registers={model.num_registers}')
    return parts


def _rules(state_dict: Mapping[str, Tensor], to: str, source: str) -> tuple[tuple[str, str], ...]:
    """Return the renaming rules; raise CheckpointError if the package lacks such a model."""
    if to == 'cpvt':
        return ()
    positions = {
        key for key in state_dict if key.startswith(('pos_', 'rel_pos.')) and not _GRID.match(key)
    }
    if 'patch_embed.proj.weight' in state_dict:
        if to != 'timm':
            raise CheckpointError(f"to={to!r}: {source} can only be written with timm's names")
        if positions != {'pos_embed.0'} or any(key.startswith('pyramid.') for key in state_dict):
            found = ', '.join(sorted(positions)) or 'no position encoding'
            fault = f'this {source} has {found}'
            raise CheckpointError(
                f"to='timm': timm's ViT has only a learned position embedding, {fault}"
            )
        return ((r'^pos_embed\.0$', 'pos_embed'),)
    pegs = {f'pos_block.{stage}.proj.0.{leaf}' for stage in range(4) for leaf in ('weight', 'bias')}
    others = sorted((positions ^ pegs) | (set(state_dict) & {'cls_token'}))
    if others:
        theirs = (
            'Twins has one PEG in each of four stages, without norm, and neither tables nor'
            ' class token'
        )
        raise CheckpointError(f'to={to!r}: {theirs}; this {source} differs in {", ".join(others)}')
    return _PYRAMID_RULES[to]
