"""Names of this package for the weights of other packages, split and joined where they differ."""

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from ..report import CheckpointError, ConversionReport
from .families import Family, Found


def rename_weights(
    source: Family, found: Found, report: ConversionReport
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Map this package's keys to the tensors, and to the checkpoint's keys."""
    ours: dict[str, Tensor] = {}
    origin: dict[str, str] = {}
    for theirs, (old, value) in found.items():
        for name, part in _split(source.rename(theirs), value, source.layout):
            if name in ours:
                raise CheckpointError(
                    f'there are two keys for {name}: {origin[name]} and {old}', report=report
                )
            ours[name], origin[name] = part, old
    _join_biases(ours, origin, report)
    _join_projections(ours, origin, report)
    _name_gated(ours, origin)
    _split_gated(ours, origin)
    if 'fc_norm.weight' in ours and 'norm.weight' not in ours:
        for leaf in ('weight', 'bias'):
            if f'fc_norm.{leaf}' in ours:
                ours[f'norm.{leaf}'] = ours.pop(f'fc_norm.{leaf}')
                origin[f'norm.{leaf}'] = origin.pop(f'fc_norm.{leaf}')
        report.notes.append(
            'the source averages tokens and normalises the mean; this package does the reverse'
        )
    stripped = {old: theirs for theirs, (old, _) in found.items()}
    report.renamed += [(old, key) for key, old in origin.items() if stripped[old] != key]
    return ours, origin


def is_eva02(origin: Mapping[str, str]) -> bool:
    """Whether keys are those of EVA-02-Ti or -S, whose rotary encoding has no key.

    Args:
        origin: This package's names to the checkpoint's.
    """
    bias = origin.get('blocks.0.attn.qkv.bias', '')
    gate = origin.get('blocks.0.mlp.fc1_g.weight', '')
    return bias.endswith('.q_bias') and gate.endswith('.fc1.weight')


def _join_biases(ours: dict[str, Tensor], origin: dict[str, str], report: ConversionReport) -> None:
    """Make ``qkv.bias`` of the biases of queries and values (BEiT, EVA, DINOv3), with none
    on keys.
    """
    for key in [key for key in ours if re.search(r'\.attn\.(v_bias|qkv\.bias_mask)$', key)]:
        stem = key[: key.index('attn.') + 5]
        if f'{stem}q_bias' in ours:
            query, value = ours.pop(f'{stem}q_bias'), ours.pop(key)
            report.renamed.append((origin.pop(key), f'{stem}qkv.bias'))
            origin[f'{stem}qkv.bias'] = origin.pop(f'{stem}q_bias')
            ours[f'{stem}qkv.bias'] = torch.cat((query, torch.zeros_like(query), value))
        elif f'{stem}qkv.bias' in ours:
            del ours[key]
            report.dropped[origin.pop(key)] = 'applied to the bias: that of keys is zero'
            query, _, value = ours[f'{stem}qkv.bias'].chunk(3)
            ours[f'{stem}qkv.bias'] = torch.cat((query, torch.zeros_like(query), value))


def _join_projections(
    ours: dict[str, Tensor], origin: dict[str, str], report: ConversionReport
) -> None:
    """Make ``qkv`` of separate projections; a bias that one of them lacks is zero."""
    for first in [key for key in ours if re.search(r'\.attn\.q_proj\.(weight|bias)$', key)]:
        names = [first.replace('.q_proj.', f'.{part}_proj.') for part in 'qkv']
        joined = first.replace('.q_proj.', '.qkv.')
        if not first.endswith('bias') and not all(name in ours for name in names):
            continue  # refused as an unknown part of a block
        zero = torch.zeros_like(ours[first])
        ours[joined] = torch.cat([ours.pop(name, zero) for name in names])
        old = [origin.pop(name) for name in names if name in origin]
        origin[joined] = old[0]
        report.renamed += [(name, joined) for name in old[1:]]


def _name_gated(ours: dict[str, Tensor], origin: dict[str, str]) -> None:
    """Name ``up_proj``: the second input of a gated MLP, or the only one."""
    for key in [key for key in ours if '.mlp.up_proj.' in key]:
        gated = key.replace('.up_proj.', '.fc1_g.') in ours
        name = key.replace('.up_proj.', '.fc1_x.' if gated else '.fc1.')
        ours[name], origin[name] = ours.pop(key), origin.pop(key)


def _split_gated(ours: dict[str, Tensor], origin: dict[str, str]) -> None:
    """Split the first layer of a gated MLP that is twice as wide as its second (EVA-02, DINOv2-g):
    the gate, then the other input. All public ones are SwiGLU.
    """
    for first in [key for key in ours if key.endswith('.mlp.fc1.weight')]:
        stem = first.removesuffix('fc1.weight')
        second = ours.get(f'{stem}fc2.weight')
        if second is None or second.dim() != 2 or len(ours[first]) != 2 * second.shape[1]:
            continue
        for key in (first, f'{stem}fc1.bias'):
            if key in ours:
                gate, other = ours.pop(key).chunk(2)
                ours[key.replace('.fc1.', '.fc1_g.')] = gate
                ours[key.replace('.fc1.', '.fc1_x.')] = other
                old = origin.pop(key)
                origin[key.replace('.fc1.', '.fc1_g.')] = old
                origin[key.replace('.fc1.', '.fc1_x.')] = old


def _split(key: str, value: Tensor, layout: str) -> list[tuple[str, Tensor]]:
    """Convert one tensor of the source to one or more of this package."""
    if '.attn.in_proj.' in key:
        if layout == 'column':
            return [(key.replace('.in_proj.', '.qkv.'), value)]
        dim = value.shape[0] // 3
        return [
            (key.replace('.in_proj.', '.q.'), value[:dim]),
            (key.replace('.in_proj.', '.kv.'), value[dim:]),
        ]
    if '.mlp.weights_in.' in key:  # gate and value of DINOv2's SwiGLU
        gate, other = value.chunk(2)
        return [
            (key.replace('.weights_in.', '.fc1_g.'), gate),
            (key.replace('.weights_in.', '.fc1_x.'), other),
        ]
    if key == 'rope.freqs' and value.dim() == 4:  # of all blocks
        return [(f'{key}.{block}', freqs) for block, freqs in enumerate(value.unbind(1))]
    if (
        '.mlp.fc' in key and value.dim() == 4 and value.shape[2:] == (1, 1)
    ):  # mmdet's MLP is made of 1 x 1 convolutions
        return [(key, value.flatten(1))]
    if key == 'cls_token':  # CLIP stores a vector, and its table without the batch dimension
        return [(key, value.reshape(1, 1, -1))]
    if key == 'pos_embed.0' and value.dim() == 4:  # SAM stores it by rows and columns
        return [(key, value.flatten(1, 2)), ('pos_embed.grid_0', torch.tensor(value.shape[1:3]))]
    if key == 'pos_embed.0' and value.dim() == 2:
        return [(key, value[None])]
    return [(key, value)]
