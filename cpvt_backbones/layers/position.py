"""Interface of position encodings, with the sine-cosine and relative encodings.

A new encoding is a subclass of :class:`PositionEncoding` with ``@register_position('Name')``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cpvt_backbones.checks import (
    check_choice,
    check_int,
    check_keywords,
    check_positive,
    is_int,
    is_sequence,
    list_of_dicts,
)
from cpvt_backbones.errors import InputError, InputTypeError

from .attention import Arrange
from .axial_bias import AxialBias
from .offset_bias import LogitBias
from .tokens import Grid, is_exporting

StageTokens = tuple[Tensor, Tensor | None, Grid]
"""Patch tokens (B, H * W, C), prefix tokens (B, P, C) or ``None``, and their grid (H, W)."""


@dataclass(frozen=True)
class Stage:
    """Properties of a stage of a trunk, from which a position encoding is built.

    A plain ViT has one stage. A hierarchical one has four.

    Attributes:
        dim: Width C of a token.
        depth: Number of blocks of the architecture.
        used: Number of blocks that are built; less than ``depth`` if no output needs the rest.
        head_dim: Width d of a head.
        grid: (H, W) in tokens at the model's ``img_size``.
        outputs_map: ``True`` if an output depends on the patch tokens after the last block.
        num_prefix: Number of prefix tokens: class, distillation and register tokens.
        sr_ratio: Side of the square of tokens that becomes one key (spatial reduction). 1 keeps all
            keys.
        window_size: Side of the attention windows in tokens. ``None`` means global attention.
        global_blocks: With windows, the blocks with global attention. ``sr_ratio`` reduces their
            keys.
    """

    dim: int
    depth: int
    used: int
    head_dim: int
    grid: Grid
    outputs_map: bool = True
    num_prefix: int = 0
    sr_ratio: int = 1
    window_size: int | None = None
    global_blocks: tuple[int, ...] = ()

    def is_windowed(self, block: int) -> bool:
        """``True`` if attention in a block is limited to windows."""
        return self.window_size is not None and block not in self.global_blocks


class PositionEncoding(nn.Module):
    """Base of the position encodings. A trunk calls the methods of every encoding.

    **Write your own position encoding.**

    1. Derive a class from this one. Its constructor takes ``stages``, a list with one
       :class:`Stage` per stage of the trunk, and the arguments of a config as keywords.
    2. Set ``attribute``, and override at least one hook: ``before_stage``, ``after_block``,
       ``query_key``, ``attention_bias`` or ``rotate``.
    3. Register the class with :func:`register_position`. ``position=dict(type=NAME, ...)`` then
       builds it in every backbone, also together with other encodings.
    4. If it has parameters in later blocks, override ``layer_id``, so that these have the learning
       rate of their block and are frozen with it.

    Attributes:
        attribute: Name of the encoding in the trunk and prefix of its parameters' names. The trunk
            must not use the name yet, as it uses ``'blocks'`` and ``'norm'``.
        has_bias: ``True`` if :meth:`PositionEncoding.attention_bias` is implemented.
        has_rotation: ``True`` if :meth:`PositionEncoding.rotate` is implemented.
        keeps_grid: Set it to ``False`` if ``after_block`` or ``before_stage`` returns another grid.
            :class:`PyramidCPVT` and :class:`MultiScaleCPVT` refuse such an encoding, and so does
            a rotary encoding beside it.

    Examples:
        A learned vector for each row, up to 64, before the first block. :func:`register_position`
        has an encoding without parameters.

        >>> import torch
        >>> from torch import nn
        >>> from cpvt_backbones import CPVT
        >>> from cpvt_backbones.layers import PositionEncoding
        >>> from cpvt_backbones.layers import register_position
        >>> @register_position('LearnedRows')
        ... class LearnedRows(PositionEncoding):
        ...     attribute = 'rows'  # its parameter is model.rows.table
        ...     def __init__(self, stages):
        ...         super().__init__()
        ...         self.table = nn.Parameter(torch.zeros(64, stages[0].dim))
        ...     def before_stage(self, stage, tokens, prefix_tokens, grid):
        ...         if stage == 0:
        ...             rows = self.table[:grid[0]]
        ...             rows = rows.repeat_interleave(grid[1], dim=0)
        ...             tokens = tokens + rows
        ...         return tokens, prefix_tokens, grid
        >>> model = CPVT(arch='tiny', position=dict(type='LearnedRows'))
        >>> (features,) = model(torch.rand(1, 3, 50, 70))
        >>> model.get_layer_depth('rows.table')
        (0, 14)

        The same in a config, where the module of the class is imported by its name:

        ```python
        custom_imports = dict(imports=['cpvt_backbones', 'my_encodings'])
        model = dict(
            backbone=dict(
                type='PyramidCPVT',
                arch='small',
                position=[dict(type='LearnedRows'), dict(type='PEG')],
            )
        )
        ```

        A learned number for each block, with the learning rate of its block:

        >>> @register_position('BlockScale')
        ... class BlockScale(PositionEncoding):
        ...     attribute = 'block_scale'
        ...     def __init__(self, stages):
        ...         super().__init__()
        ...         self.ids = [
        ...             (s, block)
        ...             for s, stage in enumerate(stages)
        ...             for block in range(stage.used)
        ...         ]
        ...         scales = [nn.Parameter(torch.zeros(1)) for _ in self.ids]
        ...         self.scales = nn.ParameterList(scales)
        ...     def after_block(self, stage, block, tokens, grid):
        ...         scale = self.scales[self.ids.index((stage, block))]
        ...         rows = torch.arange(grid[0], device=tokens.device)
        ...         rows = rows.repeat_interleave(grid[1])[:, None]
        ...         return tokens + scale * rows, grid
        ...     def layer_id(self, name):  # 'scales.3'
        ...         return self.ids[int(name.split('.')[1])]
        >>> model = CPVT(arch='tiny', position=dict(type='BlockScale'))
        >>> model.get_layer_depth('block_scale.scales.3')
        (4, 14)
    """

    attribute: ClassVar[str]
    has_bias: ClassVar[bool] = False
    has_rotation: ClassVar[bool] = False
    keeps_grid: bool = True

    def before_stage(
        self, stage: int, tokens: Tensor, prefix_tokens: Tensor | None, grid: Grid
    ) -> StageTokens:
        """Encode the tokens of a stage before its first block.

        Args:
            stage: Index of the stage; 0 in a plain ViT.
            tokens: Patch tokens (B, H * W, C).
            prefix_tokens: (B, P, C), or ``None`` without prefix tokens.
            grid: (H, W).

        Returns:
            ``tokens``, ``prefix_tokens`` and ``grid``. The number of prefix tokens must not change.
        """
        return tokens, prefix_tokens, grid

    def acts(self, method: str, stage: int, block: int) -> bool:
        """Return ``False`` if ``after_block`` or ``query_key`` changes nothing at a block.

        The trunk asks once and then skips such calls.
        """
        return overrides(type(self), method)

    def after_block(
        self, stage: int, block: int, tokens: Tensor, grid: Grid
    ) -> tuple[Tensor, Grid]:
        """Encode the patch tokens (B, H * W, C) after a block; return tokens and their grid.

        The next block and later encodings work on the returned grid.
        """
        return tokens, grid

    def query_key(self, stage: int, block: int, tokens: Tensor, grid: Grid) -> Tensor:
        """Return the patch tokens for queries and keys of a block.

        Return ``tokens`` itself if the values use the same tokens.
        """
        return tokens

    def attention_bias(self, stage: int, block: int, query: Tensor, grid: Grid) -> LogitBias:
        """Return the bias on the attention logits of patch tokens.

        Args:
            stage: Index of the stage.
            block: Index of the block in the stage.
            query: Queries (B, heads, N, d) before rotation; (B * windows, heads, h * w, d) with
                windows.
            grid: Grid of the N tokens, which are queries and keys. With windows, the grid of one
                window.

        Examples:
            A bias that falls with the distance in rows, and does not depend on the query:

            >>> import torch
            >>> from cpvt_backbones import CPVT
            >>> from cpvt_backbones.layers import AxialBias, PositionEncoding
            >>> from cpvt_backbones.layers import register_position
            >>> @register_position('RowDistance')
            ... class RowDistance(PositionEncoding):
            ...     attribute, has_bias = 'row_distance', True
            ...     def __init__(self, stages):
            ...         super().__init__()
            ...     def attention_bias(self, stage, block, query, grid):
            ...         height, width = grid
            ...         rows = torch.arange(height, device=query.device)
            ...         steps = (rows[:, None] - rows).abs().to(query.dtype)
            ...         bias = -steps.repeat_interleave(width, dim=0)  # (N, H)
            ...         heads = query.shape[:2]
            ...         bias = bias.expand(*heads, -1, -1)
            ...         columns = bias.new_zeros(*heads, height * width, width)
            ...         return AxialBias(bias, columns)
            >>> model = CPVT(arch='tiny', position=dict(type='RowDistance'))
            >>> model(torch.rand(1, 3, 50, 70))[0].shape
            torch.Size([1, 192, 4, 5])
        """
        raise NotImplementedError

    def prepare(self, stage: int, grid: Grid, num_prefix: int, device: torch.device) -> Any:
        """Compute what :meth:`PositionEncoding.rotate` needs for a grid.

        The trunk calls this once per stage and forward pass.
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
        """Rotate queries (B, heads, P + N, d) and keys (B, heads, P + S, d) after their projection.

        The first P are those of prefix tokens, which have no position in the grid.

        Args:
            stage: Index of the stage.
            block: Index of the block in the stage.
            query: Queries. With windows, they are (B, windows, heads, h * w, d).
            key: Keys. With windows, they are (B, windows, heads, h * w, d).
            prepared: The result of :meth:`PositionEncoding.prepare`.
            arrange: With windows, a function that arranges a tensor (heads or 1, P + N, d) as
                (windows, heads or 1, h * w, d); otherwise ``None``.

        Examples:
            Turn the first pair of channels by the row of the token:

            >>> import torch
            >>> from torch.nn.functional import pad
            >>> from cpvt_backbones import CPVT
            >>> from cpvt_backbones.layers import PositionEncoding
            >>> from cpvt_backbones.layers import register_position
            >>> @register_position('TurnByRow')
            ... class TurnByRow(PositionEncoding):
            ...     attribute, has_rotation = 'turn_by_row', True
            ...     def __init__(self, stages):
            ...         super().__init__()
            ...     def prepare(self, stage, grid, num_prefix, device):
            ...         rows = torch.arange(grid[0], device=device)
            ...         angles = 0.1 * rows.repeat_interleave(grid[1])
            ...         angles = pad(angles, (num_prefix, 0))  # 0: not turned
            ...         return angles[None, :, None]  # (1, P + N, 1)
            ...     def rotate(self, stage, block, query, key, angles, arrange):
            ...         if arrange is not None:
            ...             angles = arrange(angles)
            ...         return self.turn(query, angles), self.turn(key, angles)
            ...     def turn(self, x, angles):
            ...         x, y, rest = x.split((1, 1, x.shape[-1] - 2), dim=-1)
            ...         cos, sin = angles.cos(), angles.sin()
            ...         turned = x * cos - y * sin, x * sin + y * cos
            ...         return torch.cat((*turned, rest), dim=-1)
            >>> model = CPVT(arch='tiny', position=dict(type='TurnByRow'))
            >>> model(torch.rand(1, 3, 50, 70))[0].shape
            torch.Size([1, 192, 4, 5])
        """
        raise NotImplementedError

    def layer_id(self, name: str) -> tuple[int, int]:
        """Return (stage, block) of a parameter, for layer-wise learning rates and freezing.

        Block -1 precedes the first block of the stage. The default (0, -1) precedes the first block
        of the model. There, parameters get the lowest learning rate and ``frozen_stages=0`` freezes
        them.

        Args:
            name: Name of the parameter without ``attribute``, such as ``'table'`` or
                ``'proj.0.weight'``.
        """
        return 0, -1


POSITIONS: dict[str, type[PositionEncoding]] = {}


def register_position(name: str) -> Callable[[type[PositionEncoding]], type[PositionEncoding]]:
    """Register a class for ``position=dict(type=name, ...)``; a class decorator.

    A config finds the name only after the class's module was imported, so list the module in
    ``custom_imports``. A class of the same module and name replaces the earlier one, so that a
    notebook cell can run again.

    Args:
        name: The type in a config, such as ``'RowIndex'``.

    Raises:
        TypeError: ``name`` is not a text, or the class is not a :class:`PositionEncoding`.
        ValueError: Another class has the name, ``attribute`` is not an identifier, or ``has_bias``
            or ``has_rotation`` does not match the methods of the class.

    Examples:
        >>> import torch
        >>> from cpvt_backbones import CPVT
        >>> from cpvt_backbones.layers import PositionEncoding
        >>> from cpvt_backbones.layers import register_position
        >>> @register_position('RowIndex')
        ... class RowIndex(PositionEncoding):
        ...     attribute = 'row_index'  # its name in the trunk
        ...     def __init__(self, stages, *, scale=0.01):
        ...         super().__init__()
        ...         self.scale = scale
        ...     def before_stage(self, stage, tokens, prefix_tokens, grid):
        ...         rows = torch.arange(grid[0], device=tokens.device)
        ...         rows = rows.repeat_interleave(grid[1])[:, None]
        ...         return tokens + self.scale * rows, prefix_tokens, grid
        >>> position = dict(type='RowIndex', scale=0.1)
        >>> model = CPVT(arch='tiny', position=position)
        >>> (features,) = model(torch.rand(1, 3, 50, 70))
        >>> tuple(features.shape)
        (1, 192, 4, 5)
    """

    given: Any = name
    if isinstance(given, type):  # @register_position without a name
        written = f"@register_position('{given.__name__}')"
        raise InputTypeError(
            f'name must be a text: write {written}, got the class {given.__name__}'
        )
    if not isinstance(given, str):
        raise InputTypeError(f'name must be a text, got {given!r}')

    def register(cls: type[PositionEncoding]) -> type[PositionEncoding]:
        _check_encoding(cls)
        taken = POSITIONS.get(name)
        if taken is not None and _path_of(taken) != _path_of(cls):
            raise InputError(f'name must be new, got {name!r}, taken by {_path_of(taken)}')
        POSITIONS[name] = cls
        return cls

    return register


def overrides(cls: type[PositionEncoding], method: str) -> bool:
    """``True`` if an encoding overrides a method of :class:`PositionEncoding`."""
    return getattr(cls, method) is not getattr(PositionEncoding, method)


def _path_of(cls: type) -> str:
    """Import path of a class, which does not change when the class is defined again."""
    return f'{cls.__module__}.{cls.__qualname__}'


def _check_encoding(cls: Any) -> None:
    if not isinstance(cls, type) or not issubclass(cls, PositionEncoding):
        raise InputTypeError(f'register_position takes a subclass of PositionEncoding, got {cls!r}')
    attribute = getattr(cls, 'attribute', None)
    if not isinstance(attribute, str) or not attribute.isidentifier():
        accepted = 'the name of the encoding in the trunk, a Python identifier'
        raise InputError(f'{cls.__name__}.attribute must be {accepted}, got {attribute!r}')
    for other in POSITIONS.values():
        shipped = other.__module__.startswith('cpvt_backbones.')
        if shipped and other.attribute == attribute and not issubclass(cls, other):
            # Loading handles weights under these names.
            fault = f'got {attribute!r}, that of {other.__name__}'
            raise InputError(f'{cls.__name__}.attribute must be a new name, {fault}')
    for flag, method in (('has_bias', 'attention_bias'), ('has_rotation', 'rotate')):
        given = bool(getattr(cls, flag))
        overridden = overrides(cls, method)
        if given != overridden:
            fault = f'as the class {"overrides" if overridden else "does not override"} {method}'
            raise InputError(f'{cls.__name__}.{flag} must be {overridden} {fault}, got {given}')


def build_positions(position: Any, stages: Sequence[Stage]) -> dict[str, PositionEncoding]:
    """Build the encodings of a ``position=`` argument.

    Returns:
        The encodings by their attribute names in the trunk, in the given order.

    Raises:
        ValueError: A type or an argument of an encoding is not accepted.

    Examples:
        >>> from cpvt_backbones.layers import Stage, build_positions
        >>> stage = Stage(dim=192, depth=12, used=12, head_dim=64, grid=(14, 14))
        >>> position = [dict(type='SinCos'), dict(type='PEG')]
        >>> list(build_positions(position, [stage]))
        ['sin_cos', 'pos_block']
    """
    built: dict[str, PositionEncoding] = {}
    for spec in list_of_dicts('position', position):
        arguments = dict(spec)
        name = arguments.pop('type', None)
        check_choice(POSITIONS, **{'position type': name})
        cls = POSITIONS[name]
        count = sum(other.attribute == cls.attribute for other in built.values())
        check_keywords(f'position=dict(type={name!r})', cls, arguments, positional=('stages',))
        built[cls.attribute + (f'_{count + 1}' if count else '')] = cls(stages, **arguments)
    return built


@register_position('SinCos')
class SinCos(PositionEncoding):
    """Fixed 2D sine-cosine encoding of any grid; half the channels encode rows, half columns.

    Args:
        stages: Passed by the backbone; not written in a config. Widths must be multiples of 4.
        temperature: The longest wavelength is ``2 * pi * temperature`` tokens.
        resize: Encoding of other grids than that of ``img_size``. ``'continue'`` counts on, so that
            a token has the same encoding in every grid. ``'interpolate'`` resizes the encoding of
            ``img_size`` bicubically, like a learned position embedding.

    Raises:
        ValueError: An argument is not accepted.

    Examples:
        >>> import torch
        >>> from cpvt_backbones import CPVT
        >>> model = CPVT(arch='tiny', position=dict(type='SinCos'))
        >>> (encoding,) = model.position_encodings
        >>> list(encoding.parameters())
        []
    """

    attribute = 'sin_cos'

    def __init__(
        self,
        stages: Sequence[Stage],
        *,
        temperature: float = 10000.0,
        resize: str = 'continue',
    ) -> None:
        super().__init__()
        check_positive(above=1, temperature=temperature)
        check_choice(('continue', 'interpolate'), resize=resize)
        for stage in stages:
            if stage.dim % 4:
                raise InputError(
                    f'embed_dims must be a multiple of 4 for a 2D sin-cos encoding, got {stage.dim}'
                )
        self.temperature = temperature
        self.resize = resize
        self.grids = [stage.grid for stage in stages]

    def before_stage(
        self, stage: int, tokens: Tensor, prefix_tokens: Tensor | None, grid: Grid
    ) -> StageTokens:
        own = self.grids[stage]
        if self.resize == 'interpolate' and (is_exporting() or grid != own):
            feature_map = self._encode(tokens, own).permute(2, 0, 1)[None]  # (1, C, h, w)
            feature_map = F.interpolate(feature_map, size=grid, mode='bicubic', antialias=True)
            encoding = feature_map[0].permute(1, 2, 0)
        else:
            encoding = self._encode(tokens, grid)
        encoding = encoding.flatten(0, 1)  # (H * W, C)
        return tokens + encoding.to(tokens.dtype), prefix_tokens, grid

    def _encode(self, tokens: Tensor, grid: Grid) -> Tensor:
        """Encoding (H, W, C) of a grid, counted from its top left corner."""
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
        return torch.cat((rows, columns), dim=2)


@register_position('Relative')
class Relative(PositionEncoding):
    """2D relative encoding: learned vectors for the row and the column offset of query and key.

    The logit of query i and key j gains ``q_i . (row[dy] + column[dx])``, divided by sqrt(d) like
    the product of query and key. Offsets are clipped to [-K, K] (Shaw et al. 2018). The heads of a
    block share one table per axis. Prefix tokens have no bias.

    Args:
        stages: Passed by the backbone; not written in a config. No stage may reduce its keys: an
            offset between two grids has no table entry.
        clip: K, the largest offset in tokens with its own vector. The CPVT paper's comparison uses
            8.

    Raises:
        ValueError: An argument is not accepted, or a stage reduces its keys.

    Examples:
        >>> from cpvt_backbones import CPVT
        >>> model = CPVT(arch='tiny', position=dict(type='Relative', clip=4))
        >>> (encoding,) = model.position_encodings
        >>> sorted(name for name, _ in encoding.named_parameters())[:2]
        ['0.column', '0.row']
    """

    attribute = 'rel_pos'
    has_bias = True

    def __init__(self, stages: Sequence[Stage], *, clip: int = 8) -> None:
        super().__init__()
        check_int(clip=clip)
        self.clip = clip
        self.layer_ids: list[tuple[int, int]] = []
        for s, stage in enumerate(stages):
            check_all_keys('Relative', s, stage)
            for block in range(stage.used):
                tables = {
                    axis: torch.empty(2 * clip + 1, stage.head_dim) for axis in ('row', 'column')
                }
                for table in tables.values():
                    nn.init.trunc_normal_(table, std=0.02)
                self.add_module(str(len(self.layer_ids)), nn.ParameterDict(tables))
                self.layer_ids.append((s, block))

    def attention_bias(self, stage: int, block: int, query: Tensor, grid: Grid) -> AxialBias:
        index = self.layer_ids.index((stage, block))
        tables: Any = self.get_submodule(str(index))
        scale = query.shape[-1] ** -0.5
        parts = []
        for length, table in zip(grid, (tables['row'], tables['column']), strict=True):
            positions = torch.arange(length, device=query.device)
            offsets = (positions[None] - positions[:, None]).clamp(-self.clip, self.clip)
            parts.append(table[offsets + self.clip])  # (queries, keys, d)
        rows, columns = axial_products(query, grid, *parts)
        return AxialBias(rows * scale, columns * scale)

    def layer_id(self, name: str) -> tuple[int, int]:
        return self.layer_ids[int(name.split('.')[0])]


@register_position('DecomposedRelative')
class DecomposedRelative(PositionEncoding):
    """2D relative encoding of ViTDet and SAM.

    The logit of a query in row y and column x and a key in row y' and column x' gains
    ``q . (h[y - y'] + w[x - x'])``, which is not divided by sqrt(d).

    The heads of a block share two tables, ``h`` (2 H - 1, d) and ``w`` (2 W - 1, d), where d is the
    width of a head. In blocks with global attention, H x W is ``grid``, and the tables are resized
    to other grids by linear interpolation. In blocks with windows, H and W are the ``window_size``,
    and a smaller window uses the middle of the tables. Tables start at zero. Prefix tokens have no
    bias.

    Sources: MViTv2 (arXiv 2112.01526, section 4.1), ViTDet (arXiv 2203.16527, section 3; keys
    ``blocks.<i>.attn.rel_pos_h`` and ``rel_pos_w``), SAM (arXiv 2304.02643).

    Args:
        stages: Passed by the backbone; not written in a config. No stage may reduce its keys: an
            offset between two grids has no table entry.
        grid: Side, or (height, width), of the tables in blocks with global attention, in tokens.
            ``None`` takes the grid at the model's ``img_size``. ViTDet and SAM use 64, for 1024 px.
            ViTDet also has a learned position embedding of 14 x 14 tokens:
            ``position=[dict(type='Learned'), dict(type='DecomposedRelative', grid=64)]``.

    Raises:
        ValueError: ``grid`` is not accepted, or a stage reduces its keys.

    Examples:
        As in ViTDet, block 0 has windows, and block 2 global attention:

        >>> from cpvt_backbones import CPVT
        >>> model = CPVT(
        ...     arch='tiny',
        ...     position=dict(type='DecomposedRelative', grid=64),
        ...     window_size=14,
        ...     global_blocks=(2, 5, 8, 11),
        ... )
        >>> weights = model.state_dict()
        >>> weights['rel_pos_hw.0.h'].shape, weights['rel_pos_hw.2.h'].shape
        (torch.Size([27, 64]), torch.Size([127, 64]))
    """

    attribute = 'rel_pos_hw'
    has_bias = True

    def __init__(self, stages: Sequence[Stage], *, grid: int | Sequence[int] | None = None) -> None:
        super().__init__()
        self.layer_ids: list[tuple[int, int]] = []
        self.sides: list[Grid | None] = []  # of each block's window; None for global attention
        for s, stage in enumerate(stages):
            check_all_keys('DecomposedRelative', s, stage)
            for block in range(stage.used):
                side = None
                if stage.window_size is not None and stage.is_windowed(block):
                    side = (stage.window_size, stage.window_size)
                height, width = side or (stage.grid if grid is None else resolve_grid('grid', grid))
                tables = dict(
                    h=torch.zeros(2 * height - 1, stage.head_dim),
                    w=torch.zeros(2 * width - 1, stage.head_dim),
                )
                self.add_module(str(len(self.layer_ids)), nn.ParameterDict(tables))
                self.layer_ids.append((s, block))
                self.sides.append(side)

    def attention_bias(self, stage: int, block: int, query: Tensor, grid: Grid) -> AxialBias:
        index = self.layer_ids.index((stage, block))
        tables: Any = self.get_submodule(str(index))
        whole = self.sides[index] or grid
        parts = []
        for length, full, table in zip(grid, whole, (tables['h'], tables['w']), strict=True):
            table = resize_offsets(table, full)
            positions = torch.arange(length, device=query.device)
            offsets = positions[:, None] - positions[None]
            parts.append(table[offsets + full - 1])  # (queries, keys, d)
        return AxialBias(*axial_products(query, grid, *parts))

    def layer_id(self, name: str) -> tuple[int, int]:
        return self.layer_ids[int(name.split('.')[0])]


def resize_offsets(table: Tensor, length: int) -> Tensor:
    """Resize a table of offsets (2 S - 1, d) to (2 ``length`` - 1, d) by linear interpolation."""
    size = 2 * length - 1
    if not is_exporting() and table.shape[0] == size:
        return table
    dtype = table.dtype
    if dtype in (torch.float16, torch.bfloat16):
        table = table.float()  # not every device interpolates in half precision
    return F.interpolate(table.T[None], size=size, mode='linear')[0].T.to(dtype)


def axial_products(
    query: Tensor, grid: Grid, rows: Tensor, columns: Tensor
) -> tuple[Tensor, Tensor]:
    """Multiply queries by the vectors of their offsets to each row and each column.

    Args:
        query: (B, heads, H * W, d).
        grid: (H, W).
        rows: Vectors (H, H, d) by row of the query and row of the key.
        columns: Vectors (W, W, d) by column of the query and column of the key.

    Returns:
        (B, heads, H * W, H) and (B, heads, H * W, W).
    """
    query = query.unflatten(2, grid)
    by_row = torch.einsum('bnhwd,hyd->bnhwy', query, rows)
    by_column = torch.einsum('bnhwd,wxd->bnhwx', query, columns)
    return by_row.flatten(2, 3), by_column.flatten(2, 3)


def check_all_keys(name: str, index: int, stage: Stage) -> None:
    """Raise ``ValueError`` for a stage whose attention reduces its keys."""
    if stage.sr_ratio > 1:
        where = f'where attention reduces its keys spatially, got it for stage {index}'
        raise InputError(f'position type must not be {name!r} {where}')


def resolve_grid(name: str, value: Any) -> Grid:
    """Convert a side, or (height, width), in tokens to (height, width).

    Raises:
        ValueError: The value is neither; the message begins with ``name``.
    """
    sides = (value, value) if is_int(value) else value
    if not is_sequence(sides) or len(sides) != 2 or not all(is_int(s) and s > 0 for s in sides):
        raise InputError(
            f'{name} must be a positive integer or (height, width) in tokens, got {value!r}'
        )
    return sides[0], sides[1]
