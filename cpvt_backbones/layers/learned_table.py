"""A learned table of positions, and reading it from weights of any grid."""

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cpvt_backbones.checks import check, check_bool, check_choice, is_number
from cpvt_backbones.errors import InputError

from .position import PositionEncoding, Stage, StageTokens, register_position
from .tokens import Grid, is_exporting, map_to_tokens, tokens_to_map


@register_position('Learned')
class LearnedTable(PositionEncoding):
    """Learned position table, resized to any grid (ViT, DeiT; one table a stage as in PVT).

    The entries of prefix tokens are never resized. A table of another grid in a checkpoint is
    resized on loading. ``pos_embed`` is accepted for ``pos_embed.0``, so that a DeiT state dict of
    timm loads unchanged. A state dict has the grid of each table, ``grid_<stage>`` (2,). State
    dicts without it load, too.

    Args:
        stages: Passed by the backbone; not written in a config.
        interpolation: Interpolation of the table: ``'bicubic'`` (DeiT, timm) or ``'bilinear'``
            (PVT).
        antialias: Apply a low-pass filter when the table shrinks (timm: yes; PVT: no).
        offset: Tokens that the new grid counts for more than it has where the interpolation places
            its cells. Meta's DINO and DINOv2 without registers have 0.1, and ``antialias=False``.
            Graphs that are exported need 0.

    Examples:
        >>> import torch
        >>> from cpvt_backbones import CPVT
        >>> position = dict(type='Learned', antialias=False)
        >>> model = CPVT(arch='tiny', position=position, img_size=64)
        >>> model.state_dict()['pos_embed.0'].shape  # 16 cells, class token
        torch.Size([1, 17, 192])
        >>> model(torch.rand(1, 3, 50, 70))[0].shape
        torch.Size([1, 192, 4, 5])
    """

    attribute = 'pos_embed'

    def __init__(
        self,
        stages: Sequence[Stage],
        *,
        interpolation: str = 'bicubic',
        antialias: bool = True,
        offset: float = 0.0,
    ) -> None:
        super().__init__()
        check_choice(('bicubic', 'bilinear'), interpolation=interpolation)
        check_bool(antialias=antialias)
        check(
            'a number in [0, 1)', lambda value: is_number(value) and 0 <= value < 1, offset=offset
        )
        self.interpolation, self.antialias, self.offset = interpolation, antialias, offset
        self.grids = [stage.grid for stage in stages]
        self.num_prefix = [stage.num_prefix for stage in stages]
        for index, stage in enumerate(stages):
            table = nn.Parameter(
                torch.empty(1, stage.num_prefix + stage.grid[0] * stage.grid[1], stage.dim)
            )
            nn.init.trunc_normal_(table, std=0.02)
            self.register_parameter(str(index), table)
            self.register_buffer(grid_key(index), torch.tensor(stage.grid))

    def resize(self, entries: Tensor, old: Grid, new: Grid) -> Tensor:
        """Resize (1, h * w, C) entries of one grid to (1, H * W, C) of another."""
        if not is_exporting() and old == new:
            return entries
        dtype = entries.dtype
        if dtype in (torch.float16, torch.bfloat16):
            entries = entries.float()  # not every device interpolates in half precision
        feature_map = tokens_to_map(entries, old)
        options: dict[str, Any] = dict(mode=self.interpolation, antialias=self.antialias)
        if self.offset:
            if is_exporting():
                raise InputError(f'offset must be 0 in an exported graph, got {self.offset}')
            scales = ((new[0] + self.offset) / old[0], (new[1] + self.offset) / old[1])
            feature_map = F.interpolate(feature_map, scale_factor=scales, **options)
        else:
            feature_map = F.interpolate(feature_map, size=new, **options)
        return map_to_tokens(feature_map).to(dtype)

    def before_stage(
        self, stage: int, tokens: Tensor, prefix_tokens: Tensor | None, grid: Grid
    ) -> StageTokens:
        table = getattr(self, str(stage))  # get_parameter() refuses functional_call's tensors
        prefix = self.num_prefix[stage]
        if prefix_tokens is not None:
            prefix_tokens = prefix_tokens + table[:, :prefix]
        return tokens + self.resize(table[:, prefix:], self.grids[stage], grid), prefix_tokens, grid

    def layer_id(self, name: str) -> tuple[int, int]:
        return int(name.split('.')[0]), -1

    def fit(
        self, index: int, table: Tensor, skip: int, grid: Grid, theirs: list[str], ours: list[str]
    ) -> Tensor:
        """Fit a table (1, skip + h * w, C) of another model to the prefix tokens and the grid of
        stage ``index``.

        The ``skip`` entries in front belong to the prefix tokens ``theirs``. A token of ``ours``
        that is not among them gets zeros.
        """
        entries = {token: table[:, i : i + 1] for i, token in enumerate(theirs[:skip])}
        zero = table.new_zeros(1, 1, table.shape[2])
        prefix = [entries.get(token, zero) for token in ours[: self.num_prefix[index]]]
        return torch.cat((*prefix, self.resize(table[:, skip:], grid, self.grids[index])), dim=1)


def prefix_tokens(weights: Mapping[str, Any], prefix: str = '') -> list[str]:
    """Names of the prefix tokens in a state dict, registers with their number, in the order of a
    table's entries.
    """
    found = {
        name: weights.get(f'{prefix}{name}') for name in ('cls_token', 'dist_token', 'reg_token')
    }
    return [
        f'{name}{i}'
        for name, token in found.items()
        if token is not None
        for i in range(token.shape[-2])
    ]


def grid_key(stage: int) -> str:
    """Name of the buffer with the grid of a stage's table."""
    return f'grid_{stage}'


def stored_grid(value: Any) -> Grid | None:
    """The grid in a state dict, from an integer tensor (2,).

    It is ``None`` for ``None``. Any other value is a ValueError.
    """
    if value is None:
        return None
    whole = isinstance(value, Tensor) and value.shape == (2,) and not value.is_floating_point()
    if not whole or min(value.tolist()) < 1:
        raise InputError(f'the grid of a table must be two positive integers, got {value!r}')
    height, width = value.tolist()
    return height, width


def table_layout(
    entries: int,
    grid: Grid,
    usual: Sequence[int],
    unusual: Sequence[int] = (),
    *,
    stored: Grid | None = None,
) -> tuple[int, Grid] | None:
    """Number of prefix entries and grid of a table, or ``None`` if it is no table of patches.

    Args:
        entries: Number of entries, those of prefix tokens included.
        grid: The model's grid.
        usual: Possible numbers of prefix entries, the likeliest first.
        unusual: Numbers that are tried where none of ``usual`` is possible.
        stored: The table's grid, if it is known. Otherwise a square is assumed, and ``grid`` where
            there is no square.

    Raises:
        ValueError: No number of prefix entries fits ``stored``. Without it: ``grid`` has as many
            entries as the square, or is no square and another number of prefix entries leaves one.
    """
    if stored is not None:
        skip = entries - stored[0] * stored[1]
        if skip in (*usual, *unusual):
            return skip, stored
        raise InputError(f'{entries} entries do not fit a grid of {show_grid(stored)}')
    for skips in (usual, unusual):
        layouts = _layouts(entries, grid, skips)
        if len(layouts) == 1:
            return layouts[0]
        if layouts:
            differ = len({skip for skip, _ in layouts}) > 1
            shown = (show_grid(one) + (f' after {skip}' if differ else '') for skip, one in layouts)
            raise InputError(f'{entries} entries may be {" or ".join(shown)}')
    return None


def _layouts(entries: int, grid: Grid, skips: Sequence[int]) -> list[tuple[int, Grid]]:
    """Possible layouts: squares, and the model's grid.

    The likeliest is returned alone if it is a square, and the model's grid does not fit with the
    same number of prefix entries.
    """
    layouts: list[tuple[int, Grid]] = []
    for skip in dict.fromkeys(skips):
        patches = max(entries - skip, 0)
        side = math.isqrt(patches)
        square = (side, side)
        if patches and patches == side * side:
            layouts.append((skip, square))
        if patches and patches == grid[0] * grid[1] and grid != square:
            layouts.append((skip, grid))
    if not layouts:
        return []
    (skip, (height, width)), *others = layouts
    # 14 x 14 and a class token are no 13 x 15 and two tokens.
    if height == width and all(other != skip for other, _ in others):
        return layouts[:1]
    return layouts


def show_grid(grid: Grid) -> str:
    """Write a grid as ``'14 x 14'``."""
    return f'{grid[0]} x {grid[1]}'


def adapt_tables(
    trunk: nn.Module,
    state_dict: dict[str, Any],
    prefix: str,
    local_metadata: Any,
    strict: bool,
    missing_keys: list[str],
    unexpected_keys: list[str],
    errors: list[str],
) -> None:
    """Load hook of a trunk with learned tables: rename timm's ``pos_embed`` to ``pos_embed.0``,
    resize the tables.

    A hook of the encoding itself would see neither the bare key nor the class token's. A table of
    the model's shape whose grid is not stored is taken as the model's own, with a warning unless
    the grid is a square.
    """
    bare = f'{prefix}{LearnedTable.attribute}'
    if bare in state_dict:
        state_dict[f'{bare}.0'] = state_dict.pop(bare)
    encoding: Any = trunk.get_submodule(LearnedTable.attribute)
    theirs = prefix_tokens(state_dict, prefix)
    ours = prefix_tokens(dict(trunk.named_parameters(recurse=False)))
    for index, grid in enumerate(encoding.grids):
        key, key_of_grid = f'{bare}.{index}', f'{bare}.{grid_key(index)}'
        table = state_dict.get(key)
        try:
            stored = stored_grid(state_dict.get(key_of_grid))
        except ValueError as error:
            errors.append(f'{key_of_grid}: {error}')
            continue
        state_dict[key_of_grid] = torch.tensor(grid)
        if table is None or table.dim() != 3:
            continue
        if table.shape == encoding.get_parameter(str(index)).shape and stored in (None, grid):
            if stored is None and grid[0] != grid[1]:
                assumed = f'{show_grid(grid)}, the grid of the model, is assumed'
                warnings.warn(
                    f'{key}: the weights do not say the grid of the table; {assumed}', stacklevel=2
                )
            continue
        # A table without an entry for each prefix token is left to the error about shapes, which
        # names it.
        needed = set(ours[: encoding.num_prefix[index]])
        skips = [skip for skip in (len(theirs), 0, 1, 2) if needed <= set(theirs[:skip])]
        try:
            layout = table_layout(table.shape[1], grid, skips, stored=stored)
        except ValueError as error:
            advice = '' if stored else f'; {key_of_grid} with (height, width) tells'
            errors.append(f'{key}: {error}{advice}')
            continue
        if layout is not None:
            state_dict[key] = encoding.fit(index, table, *layout, theirs, ours)
