"""Step ``fit``: resizes position and patch embeddings, and adds parts that the source lacks."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cpvt_backbones.checks import is_int, is_sequence
from cpvt_backbones.errors import InputError
from cpvt_backbones.layers.learned_table import (
    LearnedTable,
    embedding_layout,
    grid_key,
    prefix_tokens,
    show_grid,
    stored_grid,
)
from cpvt_backbones.layers.peg import identity_init
from cpvt_backbones.layers.tokens import Grid

from ..report import CheckpointError, Reason
from .families import Recognised
from .renaming import Part, Parts, Renamed

PEG = r'pos_block(_\d+)?\.'
_TABLE = re.compile(r'pos_embed\.(grid_)?\d$')


@dataclass(frozen=True)
class Fitted:
    """Weights in the shapes of a model; the other attributes go to the report."""

    renamed: Renamed
    parts: Parts
    dropped: dict[str, Reason]
    added: dict[str, Reason]
    notes: list[str]


def fit(renamed: Renamed, model: nn.Module, *, table_grid: Any) -> Fitted:
    """Fit weights to a model's position embedding, channels, patches and PEGs.

    Args:
        renamed: Weights by this package's names.
        model: The model.
        table_grid: See :func:`convert_state_dict`.

    Raises:
        CheckpointError: One model is plain and the other hierarchical, or there are more blocks
            than the model has. Or the grid of an embedding is unknown or not ``table_grid``.
        ValueError: ``table_grid`` is neither a pair nor pairs.
    """
    parts, wanted = renamed.parts, model.state_dict()
    _check_architecture(renamed, model)
    grids = _known_grids(parts, table_grid)
    encodings = getattr(model, 'position_encodings', ())
    table = next((one for one in encodings if isinstance(one, LearnedTable)), None)
    dropped: dict[str, Reason] = {}
    notes: list[str] = []
    if table is not None:
        parts, notes = _fit_embeddings(parts, model, table, grids)
        notes += _resizing(renamed.source, table)
    else:
        tables = [name for name in parts if _TABLE.match(name)]
        dropped = {parts[name].keys[0]: Reason.NO_EMBEDDING for name in tables}
        parts = {name: part for name, part in parts.items() if name not in tables}
    parts, more = _fit_patches(parts, wanted)
    added, reasons = _additions(parts, wanted, model)
    return Fitted(renamed, {**parts, **added}, dropped, reasons, notes + more)


def _check_architecture(renamed: Renamed, model: nn.Module) -> None:
    """Raise CheckpointError for another layout, or for more blocks than the model has."""
    depths: Any = model.depths
    layout = 'plain' if hasattr(model, 'depth') else 'hierarchical'
    family = renamed.source.family
    if family.layout != layout:
        target = type(model).__name__
        fault = f'the checkpoint is of a {family.layout} ViT ({family.name}), {target} is {layout}'
        raise CheckpointError(f'wrong architecture: {fault}')
    counts = dict.fromkeys(range(len(depths)), 0)
    pattern = r'blocks\.(\d+)\.(\d+)\.' if len(depths) > 1 else r'blocks\.()(\d+)\.'
    for key in renamed.parts:
        if match := re.match(pattern, key):
            stage = int(match[1] or 0)
            counts[stage] = max(counts.get(stage, 0), int(match[2]) + 1)
    # Fewer blocks are no error, because a model without later outputs saves no later blocks.
    if any(count > depth for count, depth in zip_longest(counts.values(), depths, fillvalue=0)):
        blocks = ', '.join(map(str, counts.values()))
        mine = f'{type(model).__name__} {", ".join(map(str, depths))}'
        fault = f'the checkpoint ({family.name}) has {blocks} blocks, {mine}'
        advice = 'choose the arch that fits (out_indices ends a model early)'
        raise CheckpointError(f'wrong architecture: {fault}; {advice}')


def _additions(
    parts: Parts, wanted: Mapping[str, Tensor], model: nn.Module
) -> tuple[dict[str, Part], dict[str, Reason]]:
    """Make parts that the source lacks and that change no output: zero biases, identity PEGs.

    Returns:
        The parts, and a description of their values.
    """
    added: dict[str, Part] = {}
    reasons: dict[str, Reason] = {}
    bias = 'patch_embed.proj.bias'
    if 'patch_embed.proj.weight' in parts and bias not in parts:  # CLIP, mmseg
        zeros = parts['patch_embed.proj.weight'].value.new_zeros(wanted[bias].shape)
        added[bias] = Part(zeros)
        reasons[bias] = Reason.ZERO_BIAS
    if any(re.match(PEG, name) for name in parts):
        return added, reasons
    # A user's own encoding may contain PEGs, under its own name.
    present = {name.partition('.')[0] for name in parts}
    for name, value in identity_init(model).items():
        if name.partition('.')[0] not in present:
            added[name] = Part(value)
            reasons[name] = Reason.IDENTITY_PEG
    return added, reasons


def _fit_embeddings(
    parts: Parts, model: nn.Module, table: LearnedTable, grids: Mapping[int, Grid]
) -> tuple[dict[str, Part], list[str]]:
    """Fit the position embedding of each stage to the model's prefix tokens and grid."""
    result: dict[str, Part] = {}
    notes: list[str] = []
    for name, part in parts.items():
        if not _TABLE.match(name):
            result[name] = part
        elif 'grid_' not in name:
            result[name] = part
            index = int(name[-1])
            if index < len(table.grids) and part.value.dim() == 3:  # of a stage that is built
                value, more = _fit_embedding(index, parts, model, table, grids.get(index))
                result[name] = Part(value, part.keys)
                notes += more
    for index, grid in enumerate(table.grids):
        if f'pos_embed.{index}' in result:
            name = f'pos_embed.{grid_key(index)}'
            keys = parts[name].keys if name in parts else ()
            result[name] = Part(torch.tensor(grid), keys)
    return result, notes


def _known_grids(parts: Parts, table_grid: Any) -> dict[int, Grid]:
    """Return the grid of each stage's embedding, from the checkpoint or the argument."""
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
            accepted = '(height, width) in tokens, or one such pair for each stage'
            raise InputError(
                f'table_grid must be {accepted}, got {table_grid!r}', argument='table_grid'
            )
        named[index] = (pair[0], pair[1])
    for key, part in parts.items():
        if match := re.match(r'pos_embed\.grid_(\d)$', key):
            index = int(match[1])
            try:
                stored = stored_grid(part.value)
            except ValueError as error:
                raise CheckpointError(f'{key}: {error}') from error
            assert stored is not None
            if named.get(index, stored) != stored:
                fault = f'the checkpoint stores {show_grid(stored)} for stage {index}'
                raise CheckpointError(f'table_grid={table_grid!r}, but {fault}')
            named[index] = stored
    return named


def _prefix_entries(parts: Parts) -> list[str]:
    """List prefix tokens for which the source's embedding may have entries."""
    theirs = prefix_tokens({name: part.value for name, part in parts.items()})
    registers = parts.get('reg_token')
    if registers is not None and registers.keys[0].endswith('register_tokens'):
        # Meta adds the embedding before it inserts the registers.
        theirs = [token for token in theirs if not token.startswith('reg_token')]
    return theirs


def _fit_embedding(
    index: int, parts: Parts, model: nn.Module, encoding: LearnedTable, known: Grid | None
) -> tuple[Tensor, list[str]]:
    """Fit the position embedding of a stage; return it and notes for the report."""
    key = f'pos_embed.{index}'
    table, origin = parts[key].value, parts[key].keys[0]
    grid, prefix = encoding.grids[index], encoding.num_prefix[index]
    depths: Any = model.depths
    # A hierarchical ViT has its class token in the last stage.
    theirs = _prefix_entries(parts) if index == len(depths) - 1 else []
    mine = prefix_tokens(dict(model.named_parameters(recurse=False)))
    entries = table.shape[1]
    if known and entries - known[0] * known[1] == prefix != len(theirs):
        theirs = mine  # the source lacks a token that its table has an entry for
    # This package's embeddings have an entry for each prefix token.
    usual = [len(theirs)] if origin.endswith(key) else [len(theirs), 0]
    try:
        layout = embedding_layout(entries, grid, usual, (0, 1, 2), stored=known)
    except ValueError as error:
        advice = ''
        if known is None:
            advice = (
                ', and the checkpoint does not say; table_grid=(height, width) names the grid in'
                ' tokens'
            )
        raise CheckpointError(f'{origin}: its {error}{advice}') from error
    if layout is None:
        return table, []  # no table of patches: reported as a mismatch
    skip, old = layout
    notes = []
    if known is None and not old == grid == (grid[0], grid[0]):
        kind = 'a square' if old[0] == old[1] else "the model's grid"
        notes.append(
            f'{key}: the checkpoint does not say its grid; {show_grid(old)} is assumed, {kind}'
        )
    kept = len({*theirs[:skip]} & {*mine[:prefix]})
    if skip > kept:
        left = f'{skip - kept} of {entries} entries'
        notes.append(f'{key}: left out {left}, of tokens that the model lacks')
    if old != grid:
        notes.append(f'{key}: resized from {show_grid(old)} to {show_grid(grid)} tokens')
    if kept < prefix:
        lacking = f'the source has {kept} of {prefix} entries of prefix tokens'
        notes.append(f'{key}: {lacking}; the rest is zero')
    return encoding.fit(index, table, skip, old, theirs, mine), notes


def _resizing(source: Recognised, table: LearnedTable) -> list[str]:
    """Note that the source interpolates its embedding otherwise, so that outputs differ at other
    sizes.

    SAM's authors do not resize theirs, which is stored by rows and columns.
    """
    stored, theirs = source.weights.get('pos_embed'), source.family.table
    if theirs is None or (stored is not None and stored[1].dim() == 4):
        return []
    differing = [name for name, value in theirs.items() if getattr(table, name) != value]
    if not differing:
        return []
    wanted = ', '.join(f'{name}={theirs[name]!r}' for name in differing)
    mine = ', '.join(f'{name}={getattr(table, name)!r}' for name in differing)
    return [f'the source resizes its position embedding with {wanted}, the model with {mine}']


def _fit_patches(parts: Parts, wanted: Mapping[str, Tensor]) -> tuple[dict[str, Part], list[str]]:
    """Fit the patch embedding to the model's channels and, for a plain ViT, to its patches."""
    result, notes = dict(parts), list[str]()
    for name in ('patch_embed.proj.weight', 'patch_embeds.0.proj.weight'):
        if name not in parts or name not in wanted or parts[name].value.dim() != 4:
            continue
        weight, shape = parts[name].value, wanted[name].shape
        if weight.shape[1] == 3 and shape[1] != 3:
            weight, change = _fit_channels(weight, shape[1])
            notes.append(f'{name}: {change}')
        is_plain = name == 'patch_embed.proj.weight'
        if is_plain and weight.shape[:2] == shape[:2] and weight.shape != shape:
            weight, change = _fit_size(weight, shape)
            notes.append(f'{name}: {change}')
        result[name] = Part(weight, parts[name].keys)
    return result, notes


def _fit_size(weight: Tensor, shape: torch.Size) -> tuple[Tensor, str]:
    """Fit a patch embedding to another patch size.

    A patch then gets the token that the source computes for the patch resized to its own size.
    """
    old, new = weight.shape[2:], shape[2:]
    patches = torch.eye(new[0] * new[1]).view(-1, 1, *new)
    resized = F.interpolate(patches, old, mode='bilinear', antialias=True).flatten(1)
    fitted = (weight.float().flatten(2) @ resized.T).view(shape).to(weight.dtype)
    return fitted, f'fitted to patches of {new[0]} x {new[1]} px, from {old[0]} x {old[1]} px'


def _fit_channels(weight: Tensor, channels: int) -> tuple[Tensor, str]:
    """Fit a patch embedding for RGB to another number of channels.

    A single channel gets the sum of the three. More channels repeat them, scaled to the same sum.
    """
    if channels == 1:
        weight, change = weight.sum(1, keepdim=True), 'their sum'
    else:
        repeated = weight.repeat(1, math.ceil(channels / 3), 1, 1)[:, :channels]
        weight, change = repeated * (3 / channels), f'repeated, times 3 / {channels}'
    return weight, f'fitted to {channels} channels, from 3: {change}; then fine-tune the model'
