"""Tables and patch embeddings of other sizes, fitted to a model."""

import math
import re
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cpvt_backbones.checks import is_int, is_sequence
from cpvt_backbones.errors import InputError
from cpvt_backbones.layers.learned_table import (
    LearnedTable,
    grid_key,
    prefix_tokens,
    show_grid,
    stored_grid,
    table_layout,
)
from cpvt_backbones.layers.tokens import Grid

from ..report import CheckpointError, ConversionReport
from .families import Family, Found


def fit_tables(
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
            raise InputError(
                f'table_grid must be {accepted}, got {table_grid!r}', argument='table_grid'
            )
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
    try:
        layout = table_layout(entries, grid, usual, (0, 1, 2), stored=known)
    except ValueError as error:
        advice = ''
        if known is None:
            advice = (
                ', and the checkpoint does not say; table_grid=(height, width) names the grid in'
                ' tokens'
            )
        raise CheckpointError(f'{origin[key]}: its {error}{advice}', report=report) from error
    if layout is None:
        return  # no table of patches: reported as a mismatch
    skip, old = layout
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


def note_resizing(source: Family, found: Found, model: nn.Module, report: ConversionReport) -> None:
    """Note another interpolation of the table: the outputs differ at all sizes but the
    table's own.

    SAM's authors do not resize theirs, which is stored by rows and columns.
    """
    if 'pos_embed' in found and found['pos_embed'][1].dim() == 4:
        return
    for encoding in getattr(model, 'position_encodings', ()):
        if not isinstance(encoding, LearnedTable) or source.table is None:
            continue
        differing = [
            name for name, value in source.table.items() if getattr(encoding, name) != value
        ]
        if differing:
            wanted = ', '.join(f'{name}={source.table[name]!r}' for name in differing)
            mine = ', '.join(f'{name}={getattr(encoding, name)!r}' for name in differing)
            report.notes.append(
                f'the source resizes its table with {wanted}, the model with {mine}'
            )


def fit_patches(
    ours: dict[str, Tensor], wanted: Mapping[str, Tensor], report: ConversionReport
) -> None:
    """Fit the patch embedding to the model's channels and, of a column, to its patches.

    A patch then gives what the source gives for it, resized to the source's size. Of weights for
    RGB, one channel has the sum of the three; more repeat them, scaled so that their sum stays.
    """
    for key in ('patch_embed.proj.weight', 'patch_embeds.0.proj.weight'):
        _fit_channels(key, ours, wanted, report)
    key = 'patch_embed.proj.weight'
    if key not in ours or key not in wanted:
        return
    old, new = list(ours[key].shape), list(wanted[key].shape)
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
    if key not in ours or key not in wanted:
        return
    weight, channels = ours[key], wanted[key].shape[1]
    if weight.dim() != 4 or wanted[key].dim() != 4 or weight.shape[1] != 3 or channels == 3:
        return
    if channels == 1:
        ours[key] = weight.sum(1, keepdim=True)
        change = 'their sum'
    else:
        repeated = weight.repeat(1, math.ceil(channels / 3), 1, 1)[:, :channels]
        ours[key] = repeated * (3 / channels)
        change = f'repeated, times 3 / {channels}'
    report.notes.append(
        f'{key}: fitted to {channels} channels, from 3: {change}; train the model on'
    )
