"""PEG, the Positional Encoding Generator: the paper's one idea (arXiv 2102.10882, section 3.2)."""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from .checks import check_choice, check_int, strict_keywords
from .position import PositionEncoding, Stage, register_position
from .tokens import Grid, map_to_tokens, tokens_to_map

NORMS: dict[str, Any] = {'BN': nn.BatchNorm2d}
ACTIVATIONS: dict[str, Any] = {'ReLU': nn.ReLU, 'GELU': nn.GELU}


@strict_keywords
class PEG(nn.Module):
    """Positional Encoding Generator: ``x + dwconv(x)`` over patch tokens laid out as a map.

    The zero padding is what tells a token how far it is from the border; the convolution spreads that inwards.
    There is no class token here: the trunk keeps it beside the patch tokens, so it passes unchanged.
    The convolutions keep torch's initial weights, which DeiT's code, the paper's base, leaves alone too: each PEG then
    makes the tokens 1.15 times larger at the start. (The fan-out rule of Twins' code would make that 1.7 times, and
    fifteen times after five of them in a column; a pyramid, with one a stage, follows it.)

    Args:
        dim: Width C of a token.
        kernel_size: Side of the depthwise kernel, odd (paper: 3; 27 in the ablation of position -1).
        num_layers: Convolutions in a row, each with its own residual.
        kind: ``'depthwise'``, or ``'separable'``: depthwise, then 1 x 1 (l * (d^2 + k^2 * d) weights).
        padding: ``'zero'``, or ``'none'``: the map shrinks by ``kernel_size - 1`` a layer and the residual is left
            out, as in the authors' ablation.
        bias: Whether the convolutions have a bias (official code: yes).
        norm: ``None`` or ``'BN'`` (with ``act='ReLU'``, ``bias=False``: the detection variant).
        act: ``None``, ``'ReLU'`` or ``'GELU'``, after the norm and before the residual.
        frozen: Keep the random initial weights (the ablation's "random 3 x 3, frozen").

    Raises:
        ValueError: An argument outside the values above; in ``forward``, tokens that do not fill the grid, or a
            grid smaller than an unpadded kernel.
    """

    def __init__(
        self,
        dim: int,
        *,
        kernel_size: int = 3,
        num_layers: int = 1,
        kind: str = 'depthwise',
        padding: str = 'zero',
        bias: bool = True,
        norm: str | None = None,
        act: str | None = None,
        frozen: bool = False,
    ) -> None:
        super().__init__()
        check_int('dim', dim)
        if isinstance(kernel_size, bool) or not isinstance(kernel_size, int) or kernel_size < 1 or kernel_size % 2 == 0:
            raise ValueError(f'kernel_size must be an odd integer >= 1, got {kernel_size!r}')
        check_int('num_layers', num_layers)
        check_choice('kind', kind, ('depthwise', 'separable'))
        check_choice('padding', padding, ('zero', 'none'))
        check_choice('norm', norm, (None, *NORMS))
        check_choice('act', act, (None, *ACTIVATIONS))
        self.dim = dim
        self.shrink = 0 if padding == 'zero' else num_layers * (kernel_size - 1)
        self.residual = padding == 'zero'

        pad = (kernel_size - 1) // 2 if padding == 'zero' else 0
        layers = []
        for _ in range(num_layers):
            layer: list[nn.Module] = [nn.Conv2d(dim, dim, kernel_size, padding=pad, groups=dim, bias=bias)]
            if kind == 'separable':
                layer.append(nn.Conv2d(dim, dim, 1, bias=bias))
            if norm is not None:
                layer.append(NORMS[norm](dim))
            if act is not None:
                layer.append(ACTIVATIONS[act]())
            # A single convolution stays bare, so that its key is the official `proj.0.weight`.
            layers.append(layer[0] if len(layer) == 1 else nn.Sequential(*layer))
        self.proj = nn.Sequential(*layers)
        self.fused: nn.Sequential | None = None
        if frozen:
            self.requires_grad_(False)

    def out_grid(self, grid: Grid) -> Grid:
        """The grid of the result: the same with zero padding, smaller without."""
        height, width = grid[0] - self.shrink, grid[1] - self.shrink
        if height < 1 or width < 1:
            raise ValueError(
                f'grid must be larger than {self.shrink} x {self.shrink} tokens when PEG has '
                f"padding='none' (it shrinks the map by that much), got {grid[0]} x {grid[1]}"
            )
        return height, width

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        """Encode the position of each token.

        Args:
            tokens: (B, H * W, C) patch tokens, row by row.
            grid: (H, W) in tokens.

        Returns:
            (B, H' * W', C) with (H', W') = ``out_grid(grid)``.
        """
        if tokens.dim() != 3 or tokens.shape[1] != grid[0] * grid[1] or tokens.shape[2] != self.dim:
            raise ValueError(
                f'tokens must be (B, {grid[0]} * {grid[1]}, {self.dim}) for grid={tuple(grid)}, '
                f'got shape {tuple(tokens.shape)}'
            )
        self.out_grid(grid)
        x = tokens_to_map(tokens, grid)  # (B, C, H, W)
        if self.fused is not None:
            # Its kernel holds the identity: rounded, all that runs past the blocks would be.
            if x.dtype == torch.float32 and not x.is_meta and torch.is_autocast_enabled(x.device.type):
                with torch.autocast(x.device.type, enabled=False):
                    return map_to_tokens(self.fused(x))
            return map_to_tokens(self.fused(x))
        for layer in self.proj:
            x = x + layer(x) if self.residual else layer(x)
        return map_to_tokens(x)

    @torch.no_grad()
    def fuse(self) -> bool:
        """For inference: fold the identity into the centre tap of the kernel, in place, and a norm before that.

        ``x + conv(x)`` is one convolution whose centre tap is larger by 1. Its weights then go by another name
        (``fused``), so that they are not taken for unfused ones.

        Returns:
            Whether that was possible: not with an activation or a 1 x 1 convolution between them, without an identity,
            or a second time (nothing changes then).
        """
        if self.fused is not None or not self.residual:
            return False
        folded = [_with_identity(layer) for layer in self.proj]
        if any(layer is None for layer in folded):
            return False
        self.fused = nn.Sequential(*folded)  # type: ignore[arg-type]
        del self.proj
        return True


def _with_identity(layer: nn.Module) -> nn.Conv2d | None:
    """The depthwise convolution that does ``x + layer(x)`` in evaluation mode, where there is one."""
    parts = list(layer) if isinstance(layer, nn.Sequential) else [layer]
    conv = parts[0]
    if not isinstance(conv, nn.Conv2d) or len(parts) > 2:
        return None
    if len(parts) == 2:
        if not isinstance(parts[1], nn.BatchNorm2d):
            return None
        conv = fuse_conv_bn_eval(conv.eval(), parts[1].eval())
    conv = deepcopy(conv)
    centre = conv.kernel_size[0] // 2
    conv.weight[:, 0, centre, centre] += 1
    return conv


@register_position('PEG')
@strict_keywords
class PEGPosition(PositionEncoding):
    """PEG as a trunk's position encoding.

    Args:
        stages: The trunk's stages.
        after_blocks: Indices of the blocks, counted within a stage, after which a PEG stands; -1 is before the first.
            The paper's "0" is ``(0,)``, its "0-5" is ``(0, 1, 2, 3, 4)``.
        target: ``'qkv'``: the tokens themselves carry the position from here on. ``'qk'``: only the queries and
            keys of the next block see it (ablation "PEG on Q and K").
        kernel_size, num_layers, kind, padding, bias, norm, act, frozen: see :class:`PEG`.

    Raises:
        ValueError: An index outside [-1, depth), one named twice, ``target='qk'`` after the last block (nothing
            would see it) or with ``padding='none'`` (the map changes its size).
    """

    attribute = 'pos_block'

    def __init__(
        self,
        stages: Sequence[Stage],
        *,
        after_blocks: Sequence[int] = (0,),
        target: str = 'qkv',
        kernel_size: int = 3,
        num_layers: int = 1,
        kind: str = 'depthwise',
        padding: str = 'zero',
        bias: bool = True,
        norm: str | None = None,
        act: str | None = None,
        frozen: bool = False,
    ) -> None:
        super().__init__()
        check_choice('target', target, ('qkv', 'qk'))
        if target == 'qk' and padding == 'none':
            raise ValueError("padding must be 'zero' with target='qk' (queries must keep their map's size), got 'none'")
        self.target = target
        self.places: dict[tuple[int, int], int] = {}
        for s, stage in enumerate(stages):
            last = stage.depth - (2 if target == 'qk' else 1)
            for block in check_after_blocks(after_blocks, last=last):
                # A PEG that no output depends on is not built: it would be a parameter without gradient.
                serves_next = target == 'qk' or not stage.hands_out_map
                if block + serves_next < stage.used:
                    self.places[s, block] = len(self.places)
        self.num_in_stage = len(after_blocks)
        for (s, _), index in self.places.items():
            peg = PEG(
                stages[s].dim,
                kernel_size=kernel_size,
                num_layers=num_layers,
                kind=kind,
                padding=padding,
                bias=bias,
                norm=norm,
                act=act,
                frozen=frozen,
            )
            self.add_module(str(index), peg)
        self.keeps_grid = padding == 'zero'

    def _peg(self, stage: int, block: int) -> PEG | None:
        index = self.places.get((stage, block))
        return None if index is None else self.get_submodule(str(index))  # type: ignore[return-value]

    def before_stage(
        self, stage: int, tokens: Tensor, cls_token: Tensor | None, grid: Grid
    ) -> tuple[Tensor, Tensor | None, Grid]:
        tokens, grid = self.after_block(stage, -1, tokens, grid)
        return tokens, cls_token, grid

    def after_block(self, stage: int, block: int, tokens: Tensor, grid: Grid) -> tuple[Tensor, Grid]:
        peg = self._peg(stage, block) if self.target == 'qkv' else None
        return (tokens, grid) if peg is None else (peg(tokens, grid), peg.out_grid(grid))

    def query_key(self, stage: int, block: int, tokens: Tensor, grid: Grid) -> Tensor:
        peg = self._peg(stage, block - 1) if self.target == 'qk' else None
        return tokens if peg is None else peg(tokens, grid)

    def place(self, name: str) -> tuple[int, int]:
        index = int(name.split('.')[0])
        return next(place for place, i in self.places.items() if i == index)


def check_after_blocks(after_blocks: Any, *, last: int) -> list[int]:
    """Return the sorted block indices, each in [-1, last] and named once, or raise ``ValueError``."""
    if isinstance(after_blocks, (str, bytes)) or not hasattr(after_blocks, '__iter__'):
        raise ValueError(f'after_blocks must be a sequence of block indices, got {after_blocks!r}')
    indices = list(after_blocks)
    if not indices:
        raise ValueError('after_blocks must name at least one block (use position=None for no encoding), got ()')
    for index in indices:
        if isinstance(index, bool) or not isinstance(index, int) or not -1 <= index <= last:
            raise ValueError(f'after_blocks must hold integers in [-1, {last}], got {index!r} in {after_blocks!r}')
    if len(set(indices)) != len(indices):
        raise ValueError(f'after_blocks must name each block once, got {after_blocks!r}')
    return sorted(indices)
