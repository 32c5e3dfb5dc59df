"""PEG, the Positional Encoding Generator (arXiv 2102.10882, section 3.2)."""

import re
from collections.abc import Sequence
from contextlib import nullcontext
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from cpvt_backbones.checks import (
    check,
    check_bool,
    check_choice,
    check_int,
    is_int,
    is_sequence,
)
from cpvt_backbones.errors import InputError

from .position import PositionEncoding, Stage, StageTokens, register_position
from .tokens import Grid, is_exporting, map_to_tokens, tokens_to_map

NORMS: dict[str, Any] = {'BN': nn.BatchNorm2d}
ACTIVATIONS: dict[str, Any] = {'ReLU': nn.ReLU, 'GELU': nn.GELU}


class PEG(nn.Module):
    """Positional Encoding Generator: ``x + dwconv(x)`` over patch tokens laid out as a map.

    Zero padding makes the result depend on a token's distance from the border (CPVT, arXiv
    2102.10882). Prefix tokens have no position in the map, so they are not encoded. Initial weights
    are torch's in :class:`CPVT`, as in DeiT's code, and scale the tokens by about 1.15. In
    :class:`PyramidCPVT` they are those of Twins' code, and scale the tokens by about 1.7.

    Args:
        dim: Width C of a token.
        kernel_size: Side of the depthwise kernel, an odd number (paper: 3).
        num_layers: Number of consecutive convolutions, each with its own residual.
        kind: Kind of convolution: ``'depthwise'``, with ``num_layers * kernel_size**2 * dim``
            weights, or ``'separable'``, a depthwise and a 1 x 1 convolution with
            ``num_layers * (dim**2 + kernel_size**2 * dim)`` weights.
        padding: ``'zero'``, or ``'none'`` (authors' ablation). Without padding, each layer shrinks
            the map by ``kernel_size - 1`` and there is no residual.
        bias: Give the convolutions a bias, as the official code does.
        norm: Norm after the convolution: ``None`` or ``'BN'``. The detection variant has ``'BN'``
            with ``act='ReLU'`` and ``bias=False``.
        act: Activation after the norm and before the residual: ``None``, ``'ReLU'`` or ``'GELU'``.
        frozen: Freeze the random initial weights (the ablation's "random 3 x 3, frozen").

    Raises:
        ValueError: An argument is none of the values above. In ``forward``, tokens do not fill the
            grid, the grid is smaller than an unpadded kernel, or a BatchNorm is trained on one
            token.

    Examples:
        >>> import torch
        >>> from cpvt_backbones import PEG
        >>> peg = PEG(192)
        >>> tokens = torch.rand(1, 4 * 5, 192)  # of a grid of 4 rows, 5 columns
        >>> peg(tokens, (4, 5)).shape
        torch.Size([1, 20, 192])
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
        check(
            'an odd integer >= 1',
            lambda k: is_int(k) and k > 0 and k % 2 == 1,
            kernel_size=kernel_size,
        )
        check_int(dim=dim, num_layers=num_layers)
        check_choice(('depthwise', 'separable'), kind=kind)
        check_choice(('zero', 'none'), padding=padding)
        check_choice((None, *NORMS), norm=norm)
        check_choice((None, *ACTIVATIONS), act=act)
        check_bool(bias=bias, frozen=frozen)
        self.dim, self.norm = dim, norm
        self.shrink = 0 if padding == 'zero' else num_layers * (kernel_size - 1)
        self.residual = padding == 'zero'

        pad = (kernel_size - 1) // 2 if padding == 'zero' else 0
        layers = []
        for _ in range(num_layers):
            layer: list[nn.Module] = [
                nn.Conv2d(dim, dim, kernel_size, padding=pad, groups=dim, bias=bias)
            ]
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
        """Return the grid of the result, which is smaller than ``grid`` without padding.

        Raises:
            ValueError: The grid is smaller than an unpadded kernel.
        """
        if self.shrink and min(grid) <= self.shrink:
            least = f"{self.shrink} x {self.shrink} tokens when PEG has padding='none'"
            raise InputError(
                f'grid must be larger than {least} (it shrinks by that), got {grid[0]} x {grid[1]}'
            )
        return grid[0] - self.shrink, grid[1] - self.shrink

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        """Encode patch tokens.

        Args:
            tokens: (B, H * W, C), row by row.
            grid: (H, W).

        Returns:
            (B, H' * W', C) with (H', W') = ``out_grid(grid)``.

        Raises:
            ValueError: Tokens do not fill the grid or their width is not ``dim``, the grid is
                smaller than an unpadded kernel, or a BatchNorm is trained on one token.
        """
        if not is_exporting():
            self._check_tokens(tokens, grid)
        x = tokens_to_map(tokens, grid)  # (B, C, H, W)
        if self.fused is not None:
            # The kernel contains the identity, so half precision would round the residual stream.
            autocast = not x.is_meta and torch.is_autocast_enabled(x.device.type)
            wide = autocast and x.dtype == torch.float32
            with torch.autocast(x.device.type, enabled=False) if wide else nullcontext():
                return map_to_tokens(self.fused(x))
        for layer in self.proj:
            x = x + layer(x) if self.residual else layer(x)
        return map_to_tokens(x)

    def _check_tokens(self, tokens: Tensor, grid: Grid) -> None:
        if isinstance(grid, int):
            raise InputError(f'grid must be (height, width) in tokens, got {grid!r}')
        if tokens.dim() != 3 or tokens.shape[1] != grid[0] * grid[1] or tokens.shape[2] != self.dim:
            raise InputError(
                f'tokens must be (B, {grid[0]} * {grid[1]}, {self.dim}) for grid={tuple(grid)}, '
                f'got shape {tuple(tokens.shape)}'
            )
        height, width = self.out_grid(grid)
        if self.training and self.norm is not None and tokens.shape[0] * height * width == 1:
            raise InputError(
                f'norm must be None to train PEG on fewer than two tokens, got {self.norm!r}'
            )

    @torch.no_grad()
    def fuse(self) -> 'PEG':
        """Prepare for inference: fold a norm and the identity into the convolution, in place.

        ``x + conv(x)`` becomes one convolution whose kernel has 1 added to its centre. The weights
        are renamed to ``fused``, so that they do not load into an unfused PEG. A PEG with an
        activation, a 1 x 1 convolution or ``padding='none'`` does not change.

        Returns:
            The PEG itself, as ``timm.utils.reparameterize_model`` expects.
        """
        if self.fused is not None or not self.residual:
            return self
        folded = [_with_identity(layer) for layer in self.proj]
        if all(layer is not None for layer in folded):
            self.fused = nn.Sequential(*folded)  # type: ignore[arg-type]
            del self.proj
        return self


def identity_init(model: nn.Module) -> dict[str, Tensor]:
    """Weights with which every PEG of a model is the identity, but still has a gradient.

    The last layer with parameters in each residual branch is set to zero; zeros in all layers would
    have no gradient. Before a ReLU, which has no gradient at zero, it is scaled by 1e-6 instead.
    PEGs without residual are left out.

    Returns:
        State dict with the PEGs' parameters, by their names in ``model``.
    """
    values: dict[str, Tensor] = {}
    for name, peg in model.named_modules():
        if isinstance(peg, PEG) and peg.residual:
            peg = deepcopy(peg)
            for branch in peg.proj:
                rectified = any(isinstance(part, nn.ReLU) for part in branch.modules())
                last = [part for part in branch.modules() if hasattr(part, 'weight')][-1]
                for parameter in last.parameters():
                    parameter.detach().mul_(1e-6 if rectified else 0)
            values |= {f'{name}.{key}': value for key, value in peg.state_dict().items()}
    return values


def _with_identity(layer: nn.Module) -> nn.Conv2d | None:
    """Fold ``x + layer(x)`` in evaluation mode into one depthwise convolution, if possible."""
    parts: Any = layer if isinstance(layer, nn.Sequential) else [layer]
    conv, *rest = deepcopy(list(parts))
    if len(rest) == 1 and isinstance(rest[0], nn.BatchNorm2d):
        conv = fuse_conv_bn_eval(conv.eval(), rest[0].eval())
    elif rest:
        return None
    centre = conv.kernel_size[0] // 2
    conv.weight[:, 0, centre, centre] += 1
    return conv


@register_position('PEG')
class PEGPosition(PositionEncoding):
    """PEG as a trunk's position encoding: ``position=dict(type='PEG', ...)``.

    Args:
        stages: Passed by the backbone; not written in a config.
        after_blocks: Blocks that a PEG follows, counted from 0 in each stage. Either a list such as
            ``[0, 2]``, in which -1 is before the first block, or a range without its end as text:
            ``'0-5'`` is ``[0, 1, 2, 3, 4]``. A range ends at the last block of a stage.
        target: ``'qkv'`` encodes the tokens. ``'qk'`` (ablation) encodes only queries and keys of
            the next block.

    The other arguments are those of :class:`PEG`.

    Raises:
        ValueError: An index is outside [-1, depth) or given twice; or ``target='qk'`` is used after
            the last block, where it has no effect, or with ``padding='none'``, which changes the
            map's size.

    Examples:
        >>> from cpvt_backbones import CPVT
        >>> position = dict(type='PEG', after_blocks='0-5', kernel_size=5)
        >>> model = CPVT(arch='tiny', position=position)
        >>> (encoding,) = model.position_encodings
        >>> list(encoding.layer_ids)  # (stage, block) of each PEG
        [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4)]
        >>> encoding.blocks_of(2)  # of a stage of two blocks
        [0, 1]
    """

    attribute = 'pos_block'

    def __init__(
        self,
        stages: Sequence[Stage],
        *,
        after_blocks: Sequence[int] | str = (0,),
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
        check_choice(('qkv', 'qk'), target=target)
        if target == 'qk' and padding == 'none':
            raise InputError(
                "padding must be 'zero' with target='qk' (queries must keep their map's size), got"
                " 'none'"
            )
        self.target, self.after_blocks, self.keeps_grid = target, after_blocks, padding == 'zero'
        self.layer_ids: dict[tuple[int, int], int] = {}
        for s, stage in enumerate(stages):
            for block in self.blocks_of(stage.depth):
                # A PEG that no output depends on is not built: its parameters would have no
                # gradient.
                serves_next = target == 'qk' or not stage.outputs_map
                if block + serves_next >= stage.used:
                    continue
                peg = PEG(
                    stage.dim,
                    kernel_size=kernel_size,
                    num_layers=num_layers,
                    kind=kind,
                    padding=padding,
                    bias=bias,
                    norm=norm,
                    act=act,
                    frozen=frozen,
                )
                self.add_module(str(len(self.layer_ids)), peg)
                self.layer_ids[s, block] = len(self.layer_ids)

    def blocks_of(self, depth: int) -> list[int]:
        """List the blocks that a PEG follows in a stage of ``depth`` blocks, built or not.

        Raises:
            ValueError: ``after_blocks`` does not fit the stage.
        """
        named, last = self.after_blocks, depth - (2 if self.target == 'qk' else 1)
        if isinstance(named, str) and (match := re.fullmatch(r'(\d+)-(\d+)', named)):
            blocks = list(range(int(match[1]), min(int(match[2]), last + 1)))
        else:
            check(
                "a sequence of block indices or a range such as '0-5'",
                is_sequence,
                after_blocks=named,
            )
            blocks = list(named)  # type: ignore[arg-type]
        for block in blocks:
            if not is_int(block) or not -1 <= block <= last:
                raise InputError(
                    f'after_blocks must hold integers in [-1, {last}], got {block!r} in {named!r}'
                )
        if not blocks:
            accepted = f'at least one block in [-1, {last}] (use position=None for no encoding)'
            raise InputError(f'after_blocks must name {accepted}, got {named!r}')
        if len(set(blocks)) != len(blocks):
            raise InputError(f'after_blocks must name each block once, got {named!r}')
        return sorted(blocks)

    def acts(self, method: str, stage: int, block: int) -> bool:
        if method == 'query_key':
            return self.target == 'qk' and (stage, block - 1) in self.layer_ids
        return self.target == 'qkv' and (stage, block) in self.layer_ids

    def _peg(self, target: str, stage: int, block: int) -> Any:
        index = self.layer_ids.get((stage, block)) if target == self.target else None
        return None if index is None else getattr(self, str(index))

    def before_stage(
        self, stage: int, tokens: Tensor, prefix_tokens: Tensor | None, grid: Grid
    ) -> StageTokens:
        tokens, grid = self.after_block(stage, -1, tokens, grid)
        return tokens, prefix_tokens, grid

    def after_block(
        self, stage: int, block: int, tokens: Tensor, grid: Grid
    ) -> tuple[Tensor, Grid]:
        peg = self._peg('qkv', stage, block)
        return (tokens, grid) if peg is None else (peg(tokens, grid), peg.out_grid(grid))

    def query_key(self, stage: int, block: int, tokens: Tensor, grid: Grid) -> Tensor:
        peg = self._peg('qk', stage, block - 1)
        return tokens if peg is None else peg(tokens, grid)

    def layer_id(self, name: str) -> tuple[int, int]:
        return list(self.layer_ids)[int(name.split('.')[0])]
