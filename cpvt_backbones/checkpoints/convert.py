"""Conversion of other packages' weights to a model of this package."""

import math
import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import zip_longest
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cpvt_backbones.layers.checks import is_int, is_sequence
from cpvt_backbones.layers.peg import PEGPosition, identity_init
from cpvt_backbones.layers.position import (
    LearnedTable,
    PositionEncoding,
    describe_readings,
    grid_key,
    prefix_tokens,
    read_table,
    show_grid,
    stored_grid,
)
from cpvt_backbones.layers.tokens import Grid

from .families import Family, Found, find_backbone, find_weights
from .report import CheckpointError, ConversionReport, shorten

_PEG = r'pos_block(_\d+)?\.'

# Keys that the model lacks are sorted by these three tables, in this order. A key in none of them
# is a reason to refuse: nobody knows what it does to the outputs.
# What comes after the trunk, or is used in pretraining alone: dropping it changes no output.
_HARMLESS = (
    (r'(head|head_dist|fc|fc_norm|pre_logits|classifier|classifier_head)\.', 'classifier head'),
    (r'(attn_pool|pooler)\.', 'pooling for a classifier'),
    (r'(decoder|decoder_\w+)(\.|$)', 'decoder of masked pretraining'),
    (r'(predictor|projector)\.', 'projection of contrastive pretraining'),
    (r'neck\.', 'neck behind the trunk'),
    (r'mask_token$', 'of masked pretraining'),
    (r'rope(_embed)?\.periods$', 'computed by the formula'),
    (r'pyramid\.', 'only MultiScaleCPVT has it'),
)
_REFUSED = (
    (
        r'norm_pre\.',
        (
            'it normalises the tokens before the first block, as CLIP does: build a CPVT with'
            ' pre_norm=True'
        ),
    ),
    (
        r'(norm_after_stage|norm_list\.)[0-3]\.',
        'it normalises what goes from stage to stage, and PyramidCPVT does not',
    ),
    (
        r'.*(rel_pos_[hw]$|relative_position|rel_pos\.(?!\d+\.(row|column)$))',
        'a relative position bias in attention, which is none of position=',
    ),
    (r'.*\.ls[12]\.gamma$', 'layer scale: build the model with layer_scale_init=1.0'),
    (r'.*\.[qk]_norm\.', 'it normalises queries and keys, and CPVT does not'),
    (r'.*\.(qkv|q|kv)\.bias$', 'build the model with qkv_bias=True'),
    (r'.*\.dwconv\.', 'a convolution in the MLP (PVTv2), which PyramidCPVT has not'),
    (
        r'patch_embed.*\.norm\.',
        'a norm after the patch embedding, which CPVT does not have',
    ),
    (
        r'(blocks\.\d+|patch_embed|patch_embeds\.\d+)\.',
        'a part of a block that this package does not know',
    ),
)
# What the model's arguments chose to be without.
_CHOSEN = (
    (r'dist_token$', 'the model has no distillation token'),
    (r'reg_token$', 'the model has no register tokens'),
    (r'cls_token$', 'the model has no class token'),
    (_PEG, 'the model has no such PEG'),
    (r'rope\.freqs', 'the model has no learned rotary frequencies'),
    (r'rel_pos\.\d+\.(row|column)$', 'the model has no relative position encoding'),
    (r'norm\.', 'the model does not normalise its last block'),
)
_UNKNOWN = 'not a part that this package knows, so it may change the outputs'
# What `allow_missing` may cover, besides the model's position encodings: parts that are added to
# pretrained weights, to be trained. The outputs of the weights depend on all else.
_NEW_PARTS = (
    r'(cls|dist|reg)_token$',
    r'blocks\.(\d+\.)?\d+\.ls[12]\.gamma$',
    r'(.+\.)?\w*(adapter|lora)\w*\.',
)
_MAY_BE_NEW = 'position encodings, class, distillation and register tokens, layer scales, adapters'
# Arguments of the model that leave out what a source has not.
_WITHOUT = (
    (r'norm\.', 'final_norm=False'),
    (r'norm_pre\.', 'pre_norm=False'),
    (r'blocks\..*\.(qkv|q|kv)\.bias$', 'qkv_bias=False'),
    (r'blocks\..*\.ls[12]\.gamma$', 'layer_scale_init=None'),
    (r'cls_token$', 'with_cls_token=False'),
    (r'dist_token$', 'with_dist_token=False'),
    (r'reg_token$', 'num_registers=0'),
)


def convert_state_dict(
    state_dict: Mapping[str, Any],
    model: nn.Module,
    *,
    prefix: str | None = None,
    allow_missing: str | Iterable[str] = (),
    ema: bool = False,
    table_grid: Sequence[Any] | None = None,
) -> tuple[dict[str, Tensor], ConversionReport]:
    """Convert weights of a ViT, DeiT, PVT, Twins-PCPVT or CPVT to a state dict of a backbone of
    this package.

    The names of the authors, timm, transformers, mmdet, mmseg, mmpretrain and this package are
    recognised, inside wrappers (``model``, ``state_dict``) and under prefixes (``module.``,
    ``backbone.``, ``_orig_mod.``); any other prefix is found if it is the only one. A table of
    another grid is resized. A patch embedding for RGB is fitted to another number of channels, and
    that of a column to the patch size. PEGs that the source lacks start as the identity: step 0
    computes what the source computes without its table. The state dict is to be loaded with
    ``strict=False``.

    Args:
        state_dict: A state dict, or a whole checkpoint that holds one; not changed.
        model: CPVT, MultiScaleCPVT or PyramidCPVT.
        prefix: Convert the keys under this prefix only, ``'teacher'`` where a checkpoint holds
            weights under the keys ``teacher`` and ``student``; ``None`` finds it.
        allow_missing: Keys of new parts of the model that the source may lack, or patterns such as
            ``'pos_block.*'``. New parts are position encodings, class, distillation and register
            tokens, layer scales, and adapters (``adapter`` or ``lora`` in the name). No other key
            may be missing.
        ema: Convert the averaged weights stored beside the others. (mmengine's EMAHook stores them
            in place of the others: there they are converted either way.)
        table_grid: Grid (height, width) in tokens of the source's learned table, or one pair for
            each stage of a pyramid. Needed where the source does not say it and a square would be a
            guess: 16 entries for a grid of 2 x 8 tokens may be 4 x 4.

    Raises:
        CheckpointError: No weights, unknown names, another architecture, other shapes, an
            incomplete trunk, or values refused by :func:`check_values`.
    """
    depths: Any = getattr(model, 'depths', None)  # of the architecture, built or not
    if not hasattr(model, 'position_encodings') or depths is None:
        accepted = (
            'a CPVT, MultiScaleCPVT or PyramidCPVT (of a detector, segmentor or classifier its'
            ' backbone)'
        )
        raise TypeError(f'model must be {accepted}, got {type(model).__name__}')
    report = ConversionReport(target=type(model).__name__)
    source, found = find_backbone(find_weights(state_dict, ema=ema), prefix=prefix, report=report)
    layout = 'column' if hasattr(model, 'depth') else 'pyramid'
    if source.layout != layout:
        fault = (
            f'the checkpoint is a {source.layout} ({source.name}), {report.target} is a {layout}'
        )
        raise CheckpointError(f'wrong architecture: {fault}', report=report)
    ours, origin = rename_weights(source, found, report)
    _check_depths(ours, depths, report)
    wanted = model.state_dict()
    if not any(re.match(rf'{_PEG}|pos_embed\.|rel_pos\.|rope\.freqs', key) for key in ours):
        report.notes.append(
            'the source has no parameters of position: it encodes none, or encodes it by a formula'
        )
    _fit_tables(ours, origin, model, table_grid=table_grid, report=report)
    _note_resizing(source, model, report)
    _note_deit3(source, found, report)
    _fit_patches(ours, wanted, report)
    if 'patch_embed.proj.weight' in ours and 'patch_embed.proj.bias' not in ours:  # CLIP, mmseg
        ours['patch_embed.proj.bias'] = ours['patch_embed.proj.weight'].new_zeros(
            wanted['patch_embed.proj.bias'].shape
        )
        report.added['patch_embed.proj.bias'] = 'zero: the source embeds patches without a bias'
    if not any(re.match(_PEG, key) for key in ours):
        pegs = identity_init(model)
        ours |= pegs
        report.added |= dict.fromkeys(pegs, 'the source has no PEG: it starts as the identity')

    encodings = (
        (name, child) for name, child in model.named_children() if isinstance(child, PEGPosition)
    )
    # With the PEGs that are not built because no output needs them.
    num_pegs = {
        name: sum(len(child.blocks_of(depth)) for depth in depths) for name, child in encodings
    }
    result: dict[str, Tensor] = OrderedDict()
    for key, value in ours.items():
        if key not in wanted:
            _sort_out(key, origin[key], wanted, num_pegs, report)
        elif value.shape != wanted[key].shape:
            report.mismatched[key] = (tuple(value.shape), tuple(wanted[key].shape))
        else:
            result[key] = value
    report.loaded = [key for key in result if key in origin]
    patterns = (allow_missing,) if isinstance(allow_missing, str) else tuple(allow_missing)
    new = {key for key in wanted if _is_new_part(key, model)}
    for key in wanted:
        if key not in ours and not re.search(r'\.num_batches_tracked$|^pos_embed\.grid_\d$', key):
            report.missing[key] = ''
            if key.startswith('pyramid.'):
                report.missing[key] = 'part of MultiScaleCPVT only: it keeps its initial weights'
            elif key in new and any(fnmatchcase(key, pattern) for pattern in patterns):
                report.missing[key] = 'allowed by allow_missing: it keeps its initial weights'
    _raise_if_incomplete(report, new=new)
    check_values(result, wanted)
    return result, report


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
    if key == 'pos_embed.0' and value.dim() == 2:
        return [(key, value[None])]
    return [(key, value)]


def _check_depths(
    ours: Mapping[str, Tensor], depths: tuple[int, ...], report: ConversionReport
) -> None:
    counts = dict.fromkeys(range(len(depths)), 0)
    pattern = r'blocks\.(\d+)\.(\d+)\.' if len(depths) > 1 else r'blocks\.()(\d+)\.'
    for key in ours:
        if match := re.match(pattern, key):
            stage = int(match[1] or 0)
            counts[stage] = max(counts.get(stage, 0), int(match[2]) + 1)
    # Fewer blocks are no error: a model saves no blocks that its outputs do not need.
    if any(count > depth for count, depth in zip_longest(counts.values(), depths, fillvalue=0)):
        theirs, mine = (', '.join(map(str, numbers)) for numbers in (counts.values(), depths))
        fault = f'the checkpoint ({report.source}) has {theirs} blocks, {report.target} {mine}'
        advice = 'choose the arch that fits (out_indices ends a model early)'
        raise CheckpointError(f'wrong architecture: {fault}; {advice}', report=report)


def _fit_tables(
    ours: dict[str, Tensor],
    origin: dict[str, str],
    model: nn.Module,
    *,
    table_grid: Any,
    report: ConversionReport,
) -> None:
    """Fit learned tables to the prefix tokens and the grid of the model.

    Drop them if it has none.
    """
    encodings = getattr(model, 'position_encodings', ())
    encoding = next((e for e in encodings if isinstance(e, LearnedTable)), None)
    known = _known_grids(ours, table_grid, report)
    for key in [key for key in ours if re.match(r'pos_embed\.(grid_)?\d$', key)]:
        index = int(key[-1])
        if encoding is None:
            del ours[key]
            report.dropped[origin[key]] = 'the model has no learned table'
        elif 'grid_' in key:
            del ours[key]
        elif (
            index < len(encoding.grids) and ours[key].dim() == 3
        ):  # not of a stage that is not built
            _fit_table(key, ours, origin, model, encoding, known.get(index), report)
    for index, grid in enumerate(encoding.grids if encoding else ()):
        if f'pos_embed.{index}' in ours:
            ours[f'pos_embed.{grid_key(index)}'] = torch.tensor(grid)


def _note_resizing(source: Family, model: nn.Module, report: ConversionReport) -> None:
    """Note another interpolation of the table: the outputs differ at all sizes but the
    table's own.
    """
    for encoding in getattr(model, 'position_encodings', ()):
        if not isinstance(encoding, LearnedTable) or source.table is None:
            continue
        differing = [
            name for name, value in source.table.items() if getattr(encoding, name) != value
        ]
        if differing:
            wanted = ', '.join(f'{name}={source.table[name]!r}' for name in differing)
            found = ', '.join(f'{name}={getattr(encoding, name)!r}' for name in differing)
            report.notes.append(
                f'the source resizes its table with {wanted}, the model with {found}'
            )


def _note_deit3(source: Family, found: Found, report: ConversionReport) -> None:
    """Note weights of mmpretrain's DeiT-III, whose blocks apply ``ln1`` before the MLP too, and
    never ``ln2``.

    Its keys are those of a ViT with layer scale, but the table has no entry for the class token.
    """
    parts = ('pos_embed', 'cls_token', 'layers.0.attn.gamma1.weight', 'layers.0.ln2.weight')
    if source.table is None or not all(part in found for part in parts):
        return
    entries = found['pos_embed'][1].shape[1]
    if math.isqrt(entries) ** 2 == entries:
        report.notes.append(
            "the keys are those of mmpretrain's DeiT-III, which normalises by ln1 where its authors"
            ' and this package normalise by ln2: weights that were trained in mmpretrain compute'
            ' something else here, until norm2 of each block is a copy of norm1'
        )


def _known_grids(
    ours: Mapping[str, Tensor], table_grid: Any, report: ConversionReport
) -> dict[int, Grid]:
    """Grid of each stage's table: that stored in the checkpoint, or the argument."""
    pairs = [] if table_grid is None else list(table_grid)
    if len(pairs) == 2 and all(is_int(side) for side in pairs):
        pairs = [pairs]
    named: dict[int, Grid] = {}
    for index, pair in enumerate(pairs):
        if (
            not is_sequence(pair)
            or len(pair) != 2
            or not all(is_int(side) and side > 0 for side in pair)
        ):
            accepted = '(height, width) in tokens, or one such pair for each stage of a pyramid'
            raise ValueError(f'table_grid must be {accepted}, got {table_grid!r}')
        named[index] = (pair[0], pair[1])
    for key in ours:
        if match := re.match(r'pos_embed\.grid_(\d)$', key):
            index = int(match[1])
            try:
                stored = stored_grid(ours[key])
            except ValueError as error:
                raise CheckpointError(f'{key}: {error}', report=report) from error
            assert stored is not None
            if named.get(index, stored) != stored:
                fault = f'the checkpoint stores {show_grid(stored)} for stage {index}'
                raise CheckpointError(f'table_grid={table_grid!r}, but {fault}', report=report)
            named[index] = stored
    return named


def _prefix_entries(
    ours: Mapping[str, Tensor], origin: Mapping[str, str], *, last_stage: bool
) -> list[str]:
    """Prefix tokens that a table of the source may have entries for."""
    theirs = prefix_tokens(ours)
    if origin.get('reg_token', '').endswith('register_tokens'):
        # Meta adds the table before it inserts the registers.
        theirs = [token for token in theirs if not token.startswith('reg_token')]
    return theirs if last_stage else []  # the class token of a pyramid is in its last stage


def _fit_table(
    key: str,
    ours: dict[str, Tensor],
    origin: Mapping[str, str],
    model: nn.Module,
    encoding: LearnedTable,
    known: Grid | None,
    report: ConversionReport,
) -> None:
    index, table = int(key[-1]), ours[key]
    grid, prefix = encoding.grids[index], encoding.num_prefix[index]
    depths: Any = model.depths
    theirs = _prefix_entries(ours, origin, last_stage=index == len(depths) - 1)
    mine = prefix_tokens(dict(model.named_parameters(recurse=False)))
    entries = table.shape[1]
    if known and entries - known[0] * known[1] == prefix != len(theirs):
        theirs = mine  # the source lacks a token that its table has an entry for
    # This package's tables have an entry for each prefix token.
    usual = [len(theirs)] if origin[key].endswith(key) else [len(theirs), 0]
    readings = read_table(entries, grid, usual, known) or read_table(
        entries, grid, [0, 1, 2], known
    )
    if not readings and known:
        fault = f'its {entries} entries do not fit a grid of {show_grid(known)}'
        raise CheckpointError(f'{origin[key]}: {fault}', report=report)
    if not readings:
        return  # no table of patches: reported as a mismatch
    if len(readings) > 1:
        found = f'its {entries} entries may be {describe_readings(readings)}'
        advice = 'table_grid=(height, width) names the grid in tokens'
        raise CheckpointError(
            f'{origin[key]}: {found}, and the checkpoint does not say; {advice}', report=report
        )
    skip, old = readings[0]
    ours[key] = encoding.fit(index, table, skip, old, theirs, mine)
    if known is None and not old == grid == (grid[0], grid[0]):
        kind = 'a square' if old[0] == old[1] else "the model's grid"
        report.notes.append(
            f'{key}: the checkpoint does not say its grid; {show_grid(old)} is assumed, {kind}'
        )
    kept = len({*theirs[:skip]} & {*mine[:prefix]})
    if skip > kept:
        left = f'{skip - kept} of {entries} entries'
        report.notes.append(f'{key}: left out {left}, of tokens that the model has not')
    if old != grid:
        report.notes.append(f'{key}: resized from {show_grid(old)} to {show_grid(grid)} tokens')
    if kept < prefix:
        lacking = f'the source has {kept} of {prefix} entries of prefix tokens'
        report.notes.append(f'{key}: {lacking}; the rest is zero')


def _fit_patches(
    ours: dict[str, Tensor], wanted: Mapping[str, Tensor], report: ConversionReport
) -> None:
    """Fit the patch embedding to the model's channels and, of a column, to its patches.

    A patch then gives what the source gives for it, resized to the source's size. Of weights for
    RGB, one channel has the sum of the three; more repeat them, scaled so that their sum stays.
    """
    for key in ('patch_embed.proj.weight', 'patch_embeds.0.proj.weight'):
        _fit_channels(key, ours, wanted, report)
    key = 'patch_embed.proj.weight'
    old, new = (list(weights[key].shape) if key in weights else [] for weights in (ours, wanted))
    if len(old) == len(new) == 4 and old[:2] == new[:2] and old != new:
        patches = torch.eye(new[2] * new[3]).view(-1, 1, *new[2:])
        resized = F.interpolate(patches, old[2:], mode='bilinear', antialias=True).flatten(1)
        ours[key] = (ours[key].float().flatten(2) @ resized.T).view(new).to(ours[key].dtype)
        report.notes.append(
            f'{key}: fitted to patches of {new[2]} x {new[3]} px, from {old[2]} x {old[3]} px'
        )


def _fit_channels(
    key: str, ours: dict[str, Tensor], wanted: Mapping[str, Tensor], report: ConversionReport
) -> None:
    old, new = (list(weights[key].shape) if key in weights else [] for weights in (ours, wanted))
    if len(old) != 4 or len(new) != 4 or old[1] != 3 or new[1] == 3:
        return
    weight, channels = ours[key], new[1]
    if channels == 1:
        ours[key], change = weight.sum(1, keepdim=True), 'their sum'
    else:
        repeated = weight.repeat(1, math.ceil(channels / 3), 1, 1)[:, :channels]
        ours[key], change = repeated * (3 / channels), f'repeated, times 3 / {channels}'
    report.notes.append(
        f'{key}: fitted to {channels} channels, from 3: {change}; train the model on'
    )


def _sort_out(
    key: str, old: str, wanted: Iterable[str], num_pegs: Mapping[str, int], report: ConversionReport
) -> None:
    """Drop a key that the model lacks, or refuse the checkpoint for it."""
    part = re.match(r'(blocks\.\d+(\.\d+)?|patch_embed|patch_embeds\.\d+)\.', key)
    if part and not any(name.startswith(part[0]) for name in wanted):
        report.dropped[old] = 'of a block or stage that no output needs (out_indices)'
        return
    peg = re.match(r'(pos_block(?:_\d+)?)\.(\d+)\.', key)
    if (
        peg
        and num_pegs
        and (any(n.startswith(peg[0]) for n in wanted) or int(peg[2]) >= num_pegs.get(peg[1], 0))
    ):
        report.refused[old] = (
            'the model has other PEGs: build it with the position of the checkpoint'
        )
        return
    tables = (
        (_HARMLESS, report.dropped),
        (_REFUSED, report.refused),
        (_CHOSEN, report.dropped),
    )
    for reasons, target in tables:
        for pattern, reason in reasons:
            if re.match(pattern, key):
                target[old] = reason
                return
    report.refused[old] = _UNKNOWN


def _is_new_part(key: str, model: nn.Module) -> bool:
    part = getattr(model, key.partition('.')[0], None)
    return isinstance(part, PositionEncoding) or any(re.match(new, key) for new in _NEW_PARTS)


def _advice_on_missing(missing: list[str], new: set[str]) -> str:
    """What to do about missing keys: leave the part out of the model, or call it new."""
    arguments = []
    for pattern, argument in _WITHOUT:
        if any(re.match(pattern, key) for key in missing):
            arguments.append(argument)
    advice = []
    if arguments:
        advice.append(f'a model without them is built with {", ".join(arguments)}')
    if all(key in new for key in missing):
        advice.append('allow_missing names those that are new and keep their initial weights')
    else:
        advice.append(f'allow_missing is for new parts only ({_MAY_BE_NEW})')
    return '; '.join(advice)


def _raise_if_incomplete(report: ConversionReport, *, new: set[str]) -> None:
    faults = [f'wrong architecture: {key}: {reason}' for key, reason in report.refused.items()]
    faults = faults or report.mismatches()
    missing = [key for key, reason in report.missing.items() if not reason]
    if faults:
        message = faults[0] + (f' (and {len(faults) - 1} more keys)' if len(faults) > 1 else '')
    elif missing:
        lacking = f'the checkpoint lacks {len(missing)} keys of the model: {shorten(missing)}'
        message = f'{lacking}; {_advice_on_missing(missing, new)}'
    else:
        return
    raise CheckpointError(f'{report.source} does not fit {report.target}: {message}', report=report)


def check_values(weights: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    """Raise CheckpointError if a weight for a floating-point parameter has integers, booleans, NaN
    or infinity.

    Infinity is accepted where the model's own values, in ``wanted``, have it (a mask).
    """
    for key, value in weights.items():
        own = wanted.get(key)
        if own is None or not own.is_floating_point():
            continue
        if not value.is_floating_point():
            raise CheckpointError(f'{key} is of type {value.dtype}, the model has {own.dtype}')
        if not value.isfinite().all() and own.isfinite().all():
            raise CheckpointError(f'{key} has values that are NaN or infinite')
