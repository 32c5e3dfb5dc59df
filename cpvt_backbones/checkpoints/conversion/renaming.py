"""Step ``rename``: gives weights this package's names, and splits or joins tensors if needed."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..report import CheckpointError, Reason
from .families import Recognised


class Part(NamedTuple):
    """A weight, and the keys of the checkpoint that it came from; none if it was added."""

    value: Tensor
    keys: tuple[str, ...] = ()


Parts = Mapping[str, Part]  # by this package's names
_TOKENS = ('cls_token', 'dist_token', 'reg_token')


@dataclass(frozen=True)
class Renamed:
    """Weights by this package's names; the other attributes go to the report."""

    source: Recognised
    parts: Parts
    pairs: list[tuple[str, str]]  # key of the checkpoint and name, where they differ
    dropped: dict[str, Reason]
    notes: list[str]


def rename(source: Recognised) -> Renamed:
    """Return the weights by this package's names.

    Raises:
        CheckpointError: Two keys have one name.
    """
    parts: dict[str, Part] = {}
    for theirs, (old, value) in source.weights.items():
        for name, part in _split(source.family.rename(theirs), value, source.family.layout):
            if name in parts:
                first = parts[name].keys[0]
                raise CheckpointError(f'there are two keys for {name}: {first} and {old}')
            parts[name] = Part(part, (old,))
    parts, dropped = _join_biases(parts)
    parts = _share_biases(_join_projections(parts))
    parts = _split_gated(parts)
    notes: list[str] = []
    if 'fc_norm.weight' in parts and 'norm.weight' not in parts:
        parts = {re.sub(r'^fc_norm\.', 'norm.', name): part for name, part in parts.items()}
        notes.append(Reason.POOLED_NORM)
    stripped = {old: theirs for theirs, (old, _) in source.weights.items()}
    pairs = []
    for name in parts:
        for old in parts[name].keys:
            if stripped[old] != name:
                pairs.append((old, name))
    return Renamed(source, parts, pairs, dropped, notes)


def is_eva02(parts: Parts) -> bool:
    """``True`` for EVA-02-Ti and -S, whose rotary encoding has no key."""
    bias = parts.get('blocks.0.attn.qkv.bias')
    gate = parts.get('blocks.0.mlp.fc1_g.weight')
    if bias is None or gate is None:
        return False
    return bias.keys[0].endswith('.q_bias') and gate.keys[0].endswith('.fc1.weight')


def hidden_rotation(parts: Parts) -> str:
    """Return the mode of a rotary encoding without a key that may accompany the embedding.

    Returns:
        ``'pe'`` for keys of a CLIP without its last norm, also those of PE-Spatial and PE-Lang
        (arXiv 2504.13181); ``'axial'`` for keys of Meta's DeiT-III, also those of timm's
        ``rope_ape`` models; ``''`` for other keys.
    """
    shown = ('rope', 'rel_pos_bias')
    if 'pos_embed.0' not in parts or any(name.startswith(shown) for name in parts):
        return ''
    if 'norm_pre.weight' in parts and 'norm.weight' not in parts:
        return 'pe'
    scale = parts.get('blocks.0.ls1.gamma')
    return 'axial' if scale is not None and scale.keys[0].endswith('.gamma_1') else ''


def _join_biases(parts: Parts) -> tuple[dict[str, Part], dict[str, Reason]]:
    """Join the biases of queries and values (BEiT, EVA, DINOv3) to ``qkv.bias``, zero for keys.

    Returns:
        The weights, and the keys that were applied to other weights.
    """
    result, dropped = dict(parts), dict[str, Reason]()
    for name in parts:
        match = re.match(r'(.*\.attn\.)(?:v_bias|qkv\.bias_mask)$', name)
        if not match:
            continue
        query_name, joined = f'{match[1]}q_bias', f'{match[1]}qkv.bias'
        if query_name in result:
            query, value = result.pop(query_name), result.pop(name)
            bias = torch.cat((query.value, torch.zeros_like(query.value), value.value))
            result[joined] = Part(bias, query.keys + value.keys)
        elif joined in result:
            dropped[result.pop(name).keys[0]] = Reason.KEY_BIAS
            first, _, last = result[joined].value.chunk(3)
            bias = torch.cat((first, torch.zeros_like(first), last))
            result[joined] = Part(bias, result[joined].keys)
    return result, dropped


def _join_projections(parts: Parts) -> dict[str, Part]:
    """Join separate projections to ``qkv``, or to ``kv`` beside ``q``; missing biases are zero."""
    result = dict(parts)
    for first in parts:
        match = re.search(r'\.attn\.([qk])_proj\.(weight|bias)$', first)
        if not match or match[1] == 'k' and first.replace('.k_proj.', '.q.') not in parts:
            continue
        old, letters = f'.{match[1]}_proj.', 'qkv' if match[1] == 'q' else 'kv'
        names = [first.replace(old, f'.{letter}_proj.') for letter in letters]
        if not first.endswith('bias') and not all(name in parts for name in names):
            continue  # refused as an unknown part of a block
        zero = Part(torch.zeros_like(parts[first].value))
        pieces = [result.pop(name, zero) for name in names]
        keys = tuple(key for part in pieces for key in part.keys)
        joined = torch.cat([part.value for part in pieces])
        result[first.replace(old, f'.{letters}.')] = Part(joined, keys)
    return result


def _share_biases(parts: dict[str, Part]) -> dict[str, Part]:
    """Add the relative positions that all blocks of a BEiT share to those of each block."""
    result = dict(parts)
    if 'rel_pos_bias.shared' not in result:
        return result
    shared = result.pop('rel_pos_bias.shared')
    blocks = {match[1] for name in parts if (match := re.match(r'blocks\.(\d+)\.', name))}
    for name in (f'rel_pos_bias.{block}' for block in sorted(blocks, key=int)):
        own = result.get(name, Part(torch.zeros_like(shared.value)))
        result[name] = Part(own.value + shared.value, own.keys + shared.keys)
    return result


def _split_gated(parts: Parts) -> dict[str, Part]:
    """Name the first layers of gated MLPs.

    ``up_proj`` is the second input of a gated MLP, or the only one. If the first layer is twice as
    wide as the second layer's input (EVA-02, DINOv2-g), it holds the gate and then the other input.
    All public models use SwiGLU.
    """
    result = {}
    for name, part in parts.items():
        stem, _, leaf = name.rpartition('.mlp.fc1.')
        wide = parts.get(f'{stem}.mlp.fc1.weight') if leaf in ('weight', 'bias') else None
        second = parts.get(f'{stem}.mlp.fc2.weight')
        if '.mlp.up_proj.' in name:
            is_gated = name.replace('.up_proj.', '.fc1_g.') in parts
            result[name.replace('.up_proj.', '.fc1_x.' if is_gated else '.fc1.')] = part
        elif wide and second and second.value.shape[1:] == (len(wide.value) / 2,):
            gate, other = part.value.chunk(2)
            result[f'{stem}.mlp.fc1_g.{leaf}'] = Part(gate, part.keys)
            result[f'{stem}.mlp.fc1_x.{leaf}'] = Part(other, part.keys)
        else:
            result[name] = part
    return result


def _split(key: str, value: Tensor, layout: str) -> list[tuple[str, Tensor]]:
    """Convert a tensor of the source to one or more tensors of this package."""
    if '.attn.in_proj.' in key:
        if layout == 'plain':
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
    if key in _TOKENS and value.dim() < 3:  # CLIP stores a vector
        return [(key, value.reshape(1, -1, value.shape[-1] if value.dim() else 1))]
    if key == 'pos_embed.0' and value.dim() == 4:  # SAM stores it by rows and columns
        return [(key, value.flatten(1, 2)), ('pos_embed.grid_0', torch.tensor(value.shape[1:3]))]
    if key == 'pos_embed.0' and value.dim() == 2:  # CLIP's has no batch dimension
        return [(key, value[None])]
    return [(key, value)]
