"""Recognises the backbone of weights from their names and shapes.

Weights do not show some arguments. If such an argument has one usual value, it is assumed and
logged; otherwise the user has to pass the argument.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from cpvt_backbones.checks import list_of_dicts
from cpvt_backbones.layers.learned_table import embedding_layout, prefix_tokens

from ..report import CheckpointError
from .families import Family, recognise
from .renaming import hidden_rotation, is_eva02, rename

# Number of heads by width: ViT (arXiv 2010.11929, table 1), DeiT, DeiT-III.
_HEADS = {192: 3, 384: 6, 512: 8, 768: 12, 1024: 16, 1280: 16}
# Number of heads by widths of the stages: PVT (arXiv 2102.12122, table 1), PVTv2, Twins (arXiv
# 2104.13840).
_PYRAMID_HEADS: dict[tuple[int, ...], tuple[int, ...]] = {
    (32, 64, 160, 256): (1, 2, 5, 8),
    (64, 128, 320, 512): (1, 2, 5, 8),
    (64, 128, 256, 512): (2, 4, 8, 16),
    (96, 192, 384, 768): (3, 6, 12, 24),
    (128, 256, 512, 1024): (4, 8, 16, 32),
}
# Their patch embeddings normalise with epsilon 1e-6, those of other PVTv2 with 1e-5.
_SMALL_EPSILON = ("PVTv2, mmdet's names", "PVTv2, transformers' names")
_PVT_TABLE = dict(interpolation='bilinear', antialias=False)
_DINOV2_TABLE = dict(antialias=False, offset=0.1)

# Description of `position` if a rotary encoding may accompany the position embedding.
_HIDDEN = {
    'pe': (
        "[dict(type='Learned'), dict(type='RoPE', mode='pe')] (PE-Spatial, PE-Lang) or"
        " dict(type='Learned') (a CLIP without its last norm)"
    ),
    'axial': (
        "[dict(type='Learned'), dict(type='RoPE', mode='axial')] (timm's rope_ape) or"
        " dict(type='Learned') (DeiT-III)"
    ),
}

Weights = Mapping[str, Tensor]  # by this package's names


@dataclass
class Architecture:
    """Arguments of a backbone that were read from its weights, see :func:`recognise_backbone`.

    Attributes:
        backbone: Class of the weights: ``'CPVT'`` (:class:`MultiScaleCPVT` takes the same weights)
            or ``'PyramidCPVT'``.
        source: Kind of checkpoint, in words.
        arguments: Arguments of the class that the weights determine.
        assumed: Arguments that no weight shows, with their usual values: ``'norm_eps=1e-06'``.
        unclear: Arguments that the weights do not determine, with a description; the user must pass
            them.
        table_entries: Number of entries of the first learned position embedding; ``None`` without
            one.
        relative_sides: (height, width) in tokens of each block's relative positions; empty without
            relative positions.
    """

    backbone: str
    source: str
    arguments: dict[str, Any] = field(default_factory=dict)
    assumed: list[str] = field(default_factory=list)
    unclear: dict[str, str] = field(default_factory=dict)
    table_entries: int | None = None
    relative_sides: list[tuple[int, int]] = field(default_factory=list)


def recognise_architecture(
    checkpoint: Mapping[str, Any], *, prefix: str | None = None, ema: bool = False
) -> Architecture:
    """Read the architecture of a ViT, DeiT, ViTDet, SAM, PVT, Twins or CPVT from its weights.

    The arguments are those of :func:`convert_state_dict`.

    Raises:
        CheckpointError: There are no weights, the names are unknown, or the trunk lacks its first
            parts.
    """
    source = recognise(checkpoint, prefix=prefix, ema=ema)
    parts = rename(source).parts
    weights = {name: part.value for name, part in parts.items()}
    family = source.family
    if family.layout == 'plain':
        result = Architecture('CPVT', family.name)
        _read_plain(weights, result)
    else:
        result = Architecture('PyramidCPVT', family.name)
        _read_hierarchical(weights, family, result)
    _read_position(weights, family, result, rope='eva' if is_eva02(parts) else None)
    if result.backbone == 'CPVT' and (hidden := hidden_rotation(parts)):
        result.unclear['position'] = _HIDDEN[hidden]
    _read_windows(weights, family, result)
    return result


def _read_plain(weights: Weights, result: Architecture) -> None:
    dim, channels, height, width = _shape(weights, 'patch_embed.proj.weight', 4)
    if height != width:
        raise CheckpointError(f'patches must be square, got {height} x {width} px')
    result.arguments |= dict(
        patch_size=height,
        in_channels=channels,
        with_cls_token='cls_token' in weights,
        with_dist_token='dist_token' in weights,
        num_registers=weights['reg_token'].shape[-2] if 'reg_token' in weights else 0,
        qkv_bias='blocks.0.attn.qkv.bias' in weights,
        pre_norm='norm_pre.weight' in weights,
        final_norm='norm.weight' in weights,
        layer_scale_init=1.0 if 'blocks.0.ls1.gamma' in weights else None,
    )
    arch = dict(
        embed_dims=dim,
        depth=_count(weights, r'blocks\.(\d+)\.'),
        num_heads=_heads_in_position(weights, dim) or _HEADS.get(dim),
        mlp_ratio=_mlp_ratio(weights, 'blocks.0', dim),
    )
    _set_arch(arch, result)
    is_dinov3 = 'rope_embed.periods' in weights  # Meta's names
    is_clip = 'norm_pre.weight' in weights
    result.arguments['norm_eps'] = 1e-5 if is_dinov3 or is_clip else 1e-6
    result.assumed += [f'norm_eps={result.arguments["norm_eps"]}', 'window_size=None']
    if 'blocks.0.mlp.fc1_g.weight' in weights:
        result.arguments['activation'] = 'swiglu'
        result.assumed.append("activation='swiglu'")
    elif is_clip and not _is_pe_core(weights):
        result.unclear['activation'] = "'quick_gelu' (OpenAI's CLIP) or 'gelu' (most others)"
    else:
        result.assumed.append("activation='gelu'")
    _read_source(weights, result)


def _read_source(weights: Weights, result: Architecture) -> None:
    """Set ``source`` of a MultiScaleCPVT: upsampling halves the width only with 'last'."""
    for key, value in weights.items():
        if re.match(r'pyramid\.\d\.0\.weight$', key) and value.dim() == 4:
            halves = value.shape[0] != value.shape[1]
            result.arguments['source'] = 'last' if halves else 'taps'
            if not halves:
                result.unclear['taps'] = 'the block of each stride; None for the usual ones'


def _read_hierarchical(weights: Weights, family: Family, result: Architecture) -> None:
    embeddings = [_shape(weights, f'patch_embeds.{s}.proj.weight', 4) for s in range(4)]
    dims = tuple(shape[0] for shape in embeddings)
    reductions = []
    has_windows = 'blocks.0.0.attn.qkv.weight' in weights  # Twins-SVT
    for s in range(4):
        kernel = weights.get(f'blocks.{s}.{int(has_windows)}.attn.sr.weight')
        reductions.append(1 if kernel is None else kernel.shape[-1])
    convolution = weights.get('blocks.0.0.mlp.dwconv.weight')  # PVTv2
    is_pvt = 'pos_embed.0' in weights or family.name in _SMALL_EPSILON
    result.arguments |= dict(
        in_channels=embeddings[0][1],
        with_cls_token='cls_token' in weights,
        qkv_bias=f'blocks.0.0.attn.{"qkv" if has_windows else "q"}.bias' in weights,
        norm_after_stage='norm_list.0.weight' in weights,
        embed_norm_eps=1e-6 if is_pvt else 1e-5,
    )
    arch: dict[str, Any] = dict(
        depths=tuple(_count(weights, rf'blocks\.{s}\.(\d+)\.') for s in range(4)),
        embed_dims=dims,
        num_heads=_PYRAMID_HEADS.get(dims),
        mlp_ratios=tuple(_mlp_ratio(weights, f'blocks.{s}.0', dims[s]) for s in range(4)),
        sr_ratios=tuple(reductions),
    )
    if convolution is not None:
        arch['mlp_kernel_size'] = convolution.shape[-1]
    if embeddings[0][2] > 4:
        arch['patch_kernels'] = tuple(shape[2] for shape in embeddings)
    if has_windows:
        arch['window_size'] = 7
        result.assumed += ['window_size=7', 'mask_window_padding=True']
    _set_arch(arch, result)
    result.assumed += [f'embed_norm_eps={result.arguments["embed_norm_eps"]}', 'norm_eps=1e-06']


def _set_arch(arch: dict[str, Any], result: Architecture) -> None:
    result.arguments['arch'] = arch
    if arch['num_heads'] is None:
        shown = {key: value for key, value in arch.items() if key != 'num_heads'}
        result.unclear['arch'] = f'a dict of {shown} and num_heads'
    else:
        result.assumed.append(f'num_heads={arch["num_heads"]}')


def _read_position(
    weights: Weights, family: Family, result: Architecture, *, rope: str | None
) -> None:
    """Set ``position``, and ``img_size`` for a learned position embedding.

    ``rope`` is the mode of a rotary encoding without a key.
    """
    position: list[dict[str, Any]] = []
    if 'pos_embed.0' in weights:
        position.append(dict(type='Learned', **_resize_options(weights, family)))
        result.table_entries = _shape(weights, 'pos_embed.0', 3)[1]
        _read_grid(weights, result, result.table_entries)
    position += _relative(weights, result)
    rope = 'pe' if _is_pe_core(weights) else rope
    if rope:
        position.append(_rotation(rope, result.arguments))
    if 'rope.freqs.0' in weights:
        position.append(dict(type='RoPE', mode='mixed'))
    elif 'rope_embed.periods' in weights:  # Meta's DINOv3
        position.append(dict(type='RoPE', mode='dinov3'))
    if any(key.startswith('pos_block') for key in weights):
        peg = _read_pegs(weights, result)
        if peg is None:
            result.unclear['position'] = "the model's PEGs, dict(type='PEG', after_blocks=...)"
        else:
            position.append(peg)
    result.arguments['position'] = position[0] if len(position) == 1 else position or None
    # PVTv2 encodes positions in its MLPs.
    if not position and 'blocks.0.0.mlp.dwconv.weight' not in weights:
        result.unclear.setdefault(
            'position',
            "None, or an encoding without weights: dict(type='SinCos'),"
            " dict(type='RoPE', mode='dinov3')",
        )


def _relative(weights: Weights, result: Architecture) -> list[dict[str, Any]]:
    """Read relative positions; a bias by offset must be for a square of tokens."""
    position: list[dict[str, Any]] = []
    if 'rel_pos.0.row' in weights:
        position.append(dict(type='Relative', clip=weights['rel_pos.0.row'].shape[0] // 2))
    if 'rel_pos_hw.0.h' in weights:
        position.append(dict(type='DecomposedRelative'))
    if 'rel_pos_bias.0' not in weights:
        return position
    entries = _shape(weights, 'rel_pos_bias.0', 2)[0]
    entries -= 3 if prefix_tokens(weights) else 0
    offsets = math.isqrt(max(entries, 0))
    if offsets * offsets == entries and offsets % 2:
        return [*position, dict(type='RelativeBias', grid=(offsets + 1) // 2)]
    result.unclear['position'] = "dict(type='RelativeBias', grid=(height, width)), in tokens"
    return position


def _resize_options(weights: Weights, family: Family) -> Mapping[str, Any]:
    """Return how the source resizes its embedding, as arguments of ``LearnedTable``."""
    if family.layout == 'hierarchical':
        return _PVT_TABLE
    # Meta's DINOv2 keeps the mask token, which timm's copy lacks; with registers it equals timm's.
    parts = ('mask_token', 'cls_token', 'blocks.0.ls1.gamma')
    if family.table is None and 'reg_token' not in weights and all(p in weights for p in parts):
        return _DINOV2_TABLE
    return family.table or {}


def _rotation(mode: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Describe a rotary encoding without a key, with the grid of the embedding if known."""
    position: dict[str, Any] = dict(type='RoPE', mode=mode)
    if mode == 'pe' and 'img_size' in arguments:
        size, patch = arguments['img_size'], arguments['patch_size']
        sides = size if isinstance(size, tuple) else (size, size)
        position['grid'] = tuple(side // patch for side in sides)
    return position


def _is_pe_core(weights: Weights) -> bool:
    """``True`` for PE-Core (arXiv 2504.13181), whose rotary encoding has no key."""
    pools = ('attn_pool.latent', 'attn_pool.probe')
    return 'norm_pre.weight' in weights and any(pool in weights for pool in pools)


def _read_windows(weights: Weights, family: Family, result: Architecture) -> None:
    """Set the windows of ViTDet and SAM, and the grid of relative positions in other blocks."""
    sides: dict[tuple[int, int], list[int]] = {}
    for block in range(_count(weights, r'rel_pos_hw\.(\d+)\.')):
        rows = (_shape(weights, f'rel_pos_hw.{block}.{axis}', 2)[0] for axis in 'hw')
        height, width = ((count + 1) // 2 for count in rows)
        result.relative_sides.append((height, width))
        sides.setdefault((height, width), []).append(block)
    if not sides or result.backbone != 'CPVT':
        return
    squares = [side for side in sides if side[0] == side[1]]
    window = min(squares, default=None) if len(sides) > 1 else None
    others = [side for side in sides if side != window]
    if len(others) > 1:
        shown = ', '.join(f'{height} x {width}' for height, width in sides)
        raise CheckpointError(
            'relative positions are of windows of one side and of one grid, got tables for'
            f' {shown} tokens'
        )
    (grid,) = others
    entries: Any = list_of_dicts('position', result.arguments['position'])
    for entry in entries:
        if entry['type'] == 'DecomposedRelative':
            entry['grid'] = grid
    if window is None and grid in squares:
        # Windows may be as large as the training grid.
        result.unclear['window_size'] = (
            f'None, or {grid[0]} beside global_blocks and mask_window_padding: every block has a'
            f' table for {grid[0]} x {grid[1]} tokens'
        )
    result.assumed.remove('window_size=None')
    result.arguments['global_blocks'] = sides[grid] if window else []
    result.arguments['window_size'] = window[0] if window else None
    if window is None or family.attends_to_padding:
        result.arguments['mask_window_padding'] = not family.attends_to_padding
    else:
        result.unclear['mask_window_padding'] = 'False as in ViTDet and SAM, or True'


def _read_pegs(weights: Weights, result: Architecture) -> dict[str, Any] | None:
    """Describe a plain PEG after the usual blocks; ``None`` for other PEGs."""
    count = _count(weights, r'pos_block\.(\d+)\.')
    usual: dict[int, Any] = {4: (0,)} if result.backbone == 'PyramidCPVT' else {1: (0,), 5: '0-5'}
    plain = {f'pos_block.{i}.proj.0.{leaf}' for i in range(count) for leaf in ('weight', 'bias')}
    if count not in usual or {key for key in weights if key.startswith('pos_block')} != plain:
        return None
    kernel = _shape(weights, 'pos_block.0.proj.0.weight', 4)
    if kernel[1] != 1:  # not depthwise
        return None
    result.assumed.append(f'after_blocks={usual[count]!r}')
    return dict(type='PEG', after_blocks=usual[count], kernel_size=kernel[2])


def _read_grid(weights: Weights, result: Architecture, entries: int) -> None:
    """Set ``img_size`` from the grid of the first position embedding."""
    patch = result.arguments.get('patch_size', 4)
    stored = weights.get('pos_embed.grid_0')
    if stored is not None and stored.numel() == 2:
        height, width = (int(side) for side in stored.tolist())
        result.arguments['img_size'] = (height * patch, width * patch)
        return
    prefix = len(prefix_tokens(weights)) if result.backbone == 'CPVT' else 0
    no_grid = (0, 0)  # of the model, which is not known
    if layout := embedding_layout(entries, no_grid, (prefix, 0, 1, 2)):
        result.arguments['img_size'] = layout[1][0] * patch  # of a square
        result.assumed.append(f'img_size={result.arguments["img_size"]}')
        return
    result.unclear['img_size'] = (
        f'(height, width) in px of its table of {entries} entries; or table_grid, in tokens'
    )


def _heads_in_position(weights: Weights, dim: int) -> int | None:
    """Return the number of heads if the weights of a position encoding show it."""
    bias = weights.get('rel_pos_bias.0')
    if bias is not None and bias.dim() == 2:  # (offsets, heads)
        return bias.shape[1]
    frequencies = weights.get('rope.freqs.0')
    if frequencies is not None and frequencies.dim() == 3:  # (2, heads, d / 2)
        return frequencies.shape[1]
    for key in ('rel_pos.0.row', 'rel_pos_hw.0.h'):
        table = weights.get(key)
        if table is not None and table.dim() == 2 and table.shape[1]:  # (offsets, d)
            return dim // table.shape[1]
    return None


def _mlp_ratio(weights: Weights, block: str, dim: int) -> float:
    gated = f'{block}.mlp.fc1_g.weight'
    hidden = _shape(weights, gated if gated in weights else f'{block}.mlp.fc1.weight', 2)[0]
    ratio = hidden / dim
    # Blocks truncate mlp_ratio * embed_dims.
    return ratio if int(dim * ratio) == hidden else (hidden + 0.5) / dim


def _count(weights: Weights, pattern: str) -> int:
    """Return the largest number that a pattern finds in the keys, plus 1."""
    matches = (re.match(pattern, key) for key in weights)
    return max((int(match[1]) + 1 for match in matches if match), default=0)


def _shape(weights: Weights, key: str, dims: int) -> tuple[int, ...]:
    value = weights.get(key)
    if value is None or value.dim() != dims:
        found = 'none' if value is None else f'shape {tuple(value.shape)}'
        raise CheckpointError(
            f'the architecture cannot be read without {key} ({dims} dimensions), got {found}: these'
            ' are not the weights of a whole ViT, PVT, Twins or CPVT'
        )
    return tuple(value.shape)
