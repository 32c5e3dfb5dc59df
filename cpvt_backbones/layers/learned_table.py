"""Learned position embedding, and loading it from weights of any grid."""

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
    """Learned position embedding, resized to any grid (ViT, DeiT; one per stage as in PVT).

    The entries of prefix tokens are never resized. An embedding of another grid is resized when a
    checkpoint is loaded. The key ``pos_embed`` is accepted for ``pos_embed.0``, so that DeiT state
    dicts from timm load unchanged. State dicts hold the grid of each embedding as ``grid_<stage>``,
    (2,), but load without it too.

    Args:
        stages: Passed by the backbone; not written in a config.
        interpolation: ``'bicubic'`` (DeiT, timm) or ``'bilinear'`` (PVT).
        antialias: Apply a low-pass filter when the embedding shrinks (timm: yes; PVT: no).
        offset: Added to both sides of the new grid when the interpolation places its cells. Meta's
            DINO and DINOv2 without registers use 0.1, and ``antialias=False``. Exported graphs
            need 0.

    Raises:
        ValueError: An argument is not accepted.

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
        """Resize entries (1, h * w, C) of the grid ``old`` to (1, H * W, C) of the grid ``new``.

        Raises:
            ValueError: The graph is being exported and ``offset`` is not 0.
        """
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
        """Fit another model's embedding to the prefix tokens and the grid of a stage.

        Args:
            index: Index of the stage.
            table: The other model's embedding, (1, skip + h * w, C).
            skip: Number of its entries that belong to prefix tokens; they come first.
            grid: Its grid, (h, w).
            theirs: Names of its prefix tokens, from :func:`prefix_tokens`.
            ours: Names of this model's prefix tokens. Tokens that are not in ``theirs`` get zeros.

        Returns:
            The embedding of the stage, (1, P + H * W, C).
        """
        entries = {token: table[:, i : i + 1] for i, token in enumerate(theirs[:skip])}
        zero = table.new_zeros(1, 1, table.shape[2])
        prefix = [entries.get(token, zero) for token in ours[: self.num_prefix[index]]]
        return torch.cat((*prefix, self.resize(table[:, skip:], grid, self.grids[index])), dim=1)


def prefix_tokens(weights: Mapping[str, Any], prefix: str = '') -> list[str]:
    """List the prefix tokens of a state dict in the order of the embedding's entries.

    Names end in a number, such as ``'cls_token0'`` or ``'reg_token3'``.
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
    """Name of the buffer that holds the grid of a stage's embedding."""
    return f'grid_{stage}'


def stored_grid(value: Any) -> Grid | None:
    """Read a grid of a state dict from an integer tensor (2,); ``None`` gives ``None``.

    Raises:
        ValueError: The value is neither.
    """
    if value is None:
        return None
    whole = isinstance(value, Tensor) and value.shape == (2,) and not value.is_floating_point()
    if not whole or min(value.tolist()) < 1:
        raise InputError(f'the grid of a table must be two positive integers, got {value!r}')
    height, width = value.tolist()
    return height, width


def embedding_layout(
    entries: int,
    grid: Grid,
    usual: Sequence[int],
    unusual: Sequence[int] = (),
    *,
    stored: Grid | None = None,
) -> tuple[int, Grid] | None:
    """Find the number of prefix entries and the grid of a position embedding.

    Args:
        entries: Number of entries, including those of prefix tokens.
        grid: The model's grid.
        usual: Possible numbers of prefix entries, the likeliest first.
        unusual: Numbers to try if none of ``usual`` is possible.
        stored: Grid of the embedding, if known. Otherwise a square grid is assumed, or ``grid`` if
            no square fits.

    Returns:
        The number of prefix entries and the grid; ``None`` if no layout fits.

    Raises:
        ValueError: No number of prefix entries fits ``stored``, or, without ``stored``, more than
            one layout fits.
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
    """List possible layouts: squares, and the model's grid.

    The likeliest layout is returned alone if it is a square and the model's grid does not fit with
    the same number of prefix entries.
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
    # 14 x 14 with a class token has as many entries as 13 x 15 with two tokens.
    if height == width and all(other != skip for other, _ in others):
        return layouts[:1]
    return layouts


def show_grid(grid: Grid) -> str:
    """Write a grid as ``'14 x 14'``."""
    return f'{grid[0]} x {grid[1]}'


def fit_stored_embeddings(
    trunk: nn.Module,
    state_dict: dict[str, Any],
    prefix: str,
    local_metadata: Any,
    strict: bool,
    missing_keys: list[str],
    unexpected_keys: list[str],
    errors: list[str],
) -> None:
    """Rename timm's ``pos_embed`` to ``pos_embed.0`` and resize embeddings: a trunk's load hook.

    The arguments are those of a load hook of ``nn.Module``. A hook of the encoding would see
    neither the bare key nor that of the class token. An embedding of the model's shape without a
    stored grid is taken to have the model's grid, with a warning unless that is a square.
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
                    f'{key}: the weights do not contain its grid; {assumed}',
                    stacklevel=2,
                )
            continue
        # If entries for prefix tokens are missing, the error about shapes names the embedding.
        needed = set(ours[: encoding.num_prefix[index]])
        skips = [skip for skip in (len(theirs), 0, 1, 2) if needed <= set(theirs[:skip])]
        try:
            layout = embedding_layout(table.shape[1], grid, skips, stored=stored)
        except ValueError as error:
            advice = '' if stored else f'; {key_of_grid} with (height, width) tells'
            errors.append(f'{key}: {error}{advice}')
            continue
        if layout is not None:
            state_dict[key] = encoding.fit(index, table, *layout, theirs, ours)
