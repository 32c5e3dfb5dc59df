"""Interface of position encodings, and two without a table of positions.

A new encoding is one subclass of :class:`PositionEncoding` and one ``@register_position('Name')``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from .attention import Arrange
from .checks import check_choice, check_int, check_positive, list_of_dicts
from .tokens import Grid

StageTokens = tuple[Tensor, Tensor | None, Grid]
"""Patch tokens (B, H * W, C), prefix tokens (B, P, C) or ``None``, and the grid (H, W)."""


@dataclass(frozen=True)
class Stage:
    """Properties of a stage of a trunk, from which an encoding is built (a column has one
    stage).
    """

    dim: int  # width of a token
    depth: int  # blocks of the architecture
    used: int  # blocks that run; fewer if no output needs the rest
    head_dim: int
    grid: Grid  # (H, W) in tokens at the image size the model is declared for
    outputs_map: bool = True  # an output depends on the patch tokens after the last block
    num_prefix: int = 0  # class token, distillation token
    sr_ratio: int = 1  # side of the square of tokens that becomes one key (spatial reduction)


class PositionEncoding(nn.Module):
    """Base of the encodings: a trunk calls every method of every encoding.

    An encoding overrides those it needs.

    Attributes:
        attribute: Name of the encoding in the trunk, the prefix of its parameters' names.
        has_bias: ``True`` if :meth:`attention_bias` is implemented; otherwise it is not called.
        has_rotation: ``True`` if :meth:`rotate` is implemented; otherwise it and :meth:`prepare`
            are not called.
        keeps_grid: ``True`` if the map keeps its size.
    """

    attribute: ClassVar[str]
    has_bias: ClassVar[bool] = False
    has_rotation: ClassVar[bool] = False
    keeps_grid: bool = True

    def before_stage(
        self, stage: int, tokens: Tensor, prefix_tokens: Tensor | None, grid: Grid
    ) -> StageTokens:
        """Encode before the first block: ``tokens`` (B, H * W, C), ``prefix_tokens`` (B, P, C) or
        ``None``.
        """
        return tokens, prefix_tokens, grid

    def after_block(
        self, stage: int, block: int, tokens: Tensor, grid: Grid
    ) -> tuple[Tensor, Grid]:
        """Encode the patch tokens after a block."""
        return tokens, grid

    def query_key(self, stage: int, block: int, tokens: Tensor, grid: Grid) -> Tensor:
        """Patch tokens for queries and keys of a block.

        ``tokens`` itself if values use the same.
        """
        return tokens

    def attention_bias(self, stage: int, block: int, query: Tensor, grid: Grid) -> Tensor:
        """Bias on the attention logits: (B, heads, N, N) for a query of (B, heads, N, head_dim)."""
        raise NotImplementedError

    def prepare(self, stage: int, grid: Grid, num_prefix: int, device: torch.device) -> Any:
        """What :meth:`rotate` needs of a grid, computed once in a forward pass for all blocks of a
        stage.
        """
        return None

    def rotate(
        self,
        stage: int,
        block: int,
        query: Tensor,
        key: Tensor,
        prepared: Any,
        arrange: Arrange | None,
    ) -> tuple[Tensor, Tensor]:
        """Change queries (B, heads, P + N, d) and keys (B, heads, P + S, d) after their projection.

        P prefix tokens are in front; they have no place in the grid.

        Args:
            prepared: The result of :meth:`prepare`.
            arrange: ``None``; or for attention in windows, whose queries and keys are (B, windows,
                heads, h * w, d), a function that brings a tensor (heads or 1, P + N, d) to
                (windows, heads or 1, h * w, d).
        """
        raise NotImplementedError

    def layer_id(self, name: str) -> tuple[int, int]:
        """(stage, block) of a parameter, for layer-wise learning rates and freezing.

        Block -1 is before the first.
        """
        raise NotImplementedError


POSITIONS: dict[str, type[PositionEncoding]] = {}


def register_position(name: str) -> Callable[[type[PositionEncoding]], type[PositionEncoding]]:
    """Class decorator: make an encoding available as ``position=dict(type=name, ...)``."""

    def register(cls: type[PositionEncoding]) -> type[PositionEncoding]:
        if name in POSITIONS:
            raise ValueError(f'name must be new, got {name!r}, taken by {POSITIONS[name].__name__}')
        POSITIONS[name] = cls
        return cls

    return register


def build_positions(position: Any, stages: Sequence[Stage]) -> dict[str, PositionEncoding]:
    """Build the encodings of a ``position=`` argument, in the order given, by their attribute names
    in the trunk.
    """
    built: dict[str, PositionEncoding] = {}
    for spec in list_of_dicts('position', position):
        arguments = dict(spec)
        name = arguments.pop('type', None)
        check_choice(POSITIONS, **{'position type': name})
        cls = POSITIONS[name]
        count = sum(other.attribute == cls.attribute for other in built.values())
        built[cls.attribute + (f'_{count + 1}' if count else '')] = cls(stages, **arguments)
    return built


@register_position('SinCos')
class SinCos(PositionEncoding):
    """Fixed 2D sine-cosine encoding of any grid; half the channels encode rows, half columns.

    Args:
        stages: The trunk's stages; their widths must be multiples of 4.
        temperature: Longest wavelength is ``2 * pi * temperature`` tokens.
    """

    attribute = 'sin_cos'

    def __init__(self, stages: Sequence[Stage], *, temperature: float = 10000.0) -> None:
        super().__init__()
        check_positive(above=1, temperature=temperature)
        for stage in stages:
            if stage.dim % 4:
                raise ValueError(
                    f'embed_dims must be a multiple of 4 for a 2D sin-cos encoding, got {stage.dim}'
                )
        self.temperature = temperature

    def before_stage(
        self, stage: int, tokens: Tensor, prefix_tokens: Tensor | None, grid: Grid
    ) -> StageTokens:
        dim = tokens.shape[2]
        steps = torch.arange(dim // 4, device=tokens.device, dtype=torch.float32)
        frequencies = self.temperature ** (-steps / (dim // 4))

        def wave(length: int) -> Tensor:
            angles = (
                torch.arange(length, device=tokens.device, dtype=torch.float32)[:, None]
                * frequencies
            )
            return torch.cat((angles.sin(), angles.cos()), dim=1)  # (length, C / 2)

        rows = wave(grid[0])[:, None].expand(-1, grid[1], -1)
        columns = wave(grid[1])[None].expand(grid[0], -1, -1)
        encoding = torch.cat((rows, columns), dim=2).flatten(0, 1)  # (H * W, C)
        return tokens + encoding.to(tokens.dtype), prefix_tokens, grid


@register_position('Relative')
class Relative(PositionEncoding):
    """2D relative encoding: keys carry a learned vector for their clipped row and column offset
    from the query.

    The logit of query i and key j gains ``q_i . (row[dy] + column[dx])``, offsets clipped to [-K,
    K] (Shaw et al. 2018; one table per axis, shared by the heads of a block; K = 8 in the CPVT
    paper's comparison). The bias is materialised, N x N per head. Prefix tokens have none.

    Args:
        stages: The trunk's stages; none may reduce its keys: an offset between two grids has no
            table entry.
        clip: K, in tokens.
    """

    attribute = 'rel_pos'
    has_bias = True

    def __init__(self, stages: Sequence[Stage], *, clip: int = 8) -> None:
        super().__init__()
        check_int(clip=clip)
        self.clip = clip
        self.layer_ids: list[tuple[int, int]] = []
        for s, stage in enumerate(stages):
            if stage.sr_ratio > 1:
                where = f'where attention reduces its keys spatially, got it for stage {s}'
                raise ValueError(f"position type must not be 'Relative' {where}")
            for block in range(stage.used):
                tables = {
                    axis: torch.empty(2 * clip + 1, stage.head_dim) for axis in ('row', 'column')
                }
                for table in tables.values():
                    nn.init.trunc_normal_(table, std=0.02)
                self.add_module(str(len(self.layer_ids)), nn.ParameterDict(tables))
                self.layer_ids.append((s, block))

    def attention_bias(self, stage: int, block: int, query: Tensor, grid: Grid) -> Tensor:
        index = self.layer_ids.index((stage, block))
        tables: Any = self.get_submodule(str(index))
        row, column = tables['row'], tables['column']
        y = torch.arange(grid[0], device=query.device)
        x = torch.arange(grid[1], device=query.device)
        dy = (y[None] - y[:, None]).clamp(-self.clip, self.clip) + self.clip  # (H, H)
        dx = (x[None] - x[:, None]).clamp(-self.clip, self.clip) + self.clip  # (W, W)
        # One table per axis, so the N x N bias is a broadcast sum of (N, H) and (N, W).
        rows = torch.einsum('bnhwd,hyd->bnhwy', query.unflatten(2, grid), row[dy])
        columns = torch.einsum('bnhwd,wxd->bnhwx', query.unflatten(2, grid), column[dx])
        bias = rows[..., :, None] + columns[..., None, :]  # (B, heads, H, W, H, W)
        return bias.flatten(4).flatten(2, 3) * query.shape[-1] ** -0.5

    def layer_id(self, name: str) -> tuple[int, int]:
        return self.layer_ids[int(name.split('.')[0])]
