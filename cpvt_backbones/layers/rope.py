"""Rotary encodings: queries and keys rotated by angles that grow with their coordinates."""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cpvt_backbones.checks import check, check_choice, check_positive
from cpvt_backbones.errors import InputError

from .attention import Arrange
from .position import PositionEncoding, Stage, register_position, resolve_grid
from .tokens import Grid, ceil_div

TEMPERATURES = {'axial': 100.0, 'mixed': 10.0, 'dinov3': 100.0, 'eva': 10000.0, 'pe': 10000.0}
EVA_SIDE = 16
"""Side of EVA-02's pretraining grid in tokens, to which the coordinates of any grid are scaled."""


@register_position('RoPE')
class RoPE(PositionEncoding):
    """Rotary position encoding: rotates channel pairs of queries and keys by the token's position.

    A logit of two patch tokens depends on the difference of their coordinates. Prefix tokens are
    not rotated. A spatially reduced key is at the centre of its cell. In windows, coordinates are
    those of the whole grid. Angles are computed in fp32, for all blocks of a stage at once unless
    they are learned.

    | mode | angles of a token in column x and row y, for i < d / 4 | source |
    | --- | --- | --- |
    | ``axial`` | x w_i, y w_i; w_i = T^(-4 i / d) | RoPE-ViT, arXiv 2403.13298 |
    | ``mixed`` | x f + y g, learned for each block, head and pair | RoPE-ViT, section 3.2 |
    | ``dinov3`` | 2 pi y' w_i, 2 pi x' w_i; y', x' in [-1, 1] across the grid | arXiv 2508.10104 |
    | ``eva`` | y' w_i, x' w_i; y', x' in [0, 16) across the grid | EVA-02, arXiv 2303.11331 |
    | ``pe`` | x' w_i, y' w_i; x' = (x + c) W0 / W, y' likewise | PE, arXiv 2504.13181 |

    The f and g of ``mixed`` start as the w_i of two perpendicular axes, at a random angle for each
    block and head.

    In ``pe``, the grid is H x W, and H0 x W0 in pretraining. c is 1 for a model with a class token
    and 0 without. timm rescales coordinates in this way. On the pretraining grid they equal the
    authors'.

    For ``mixed``, each block has its own parameter; loading also accepts timm's key ``rope.freqs``.

    Args:
        stages: Passed by the backbone; not written in a config. The width d of a head must be a
            multiple of 4.
        mode: ``'axial'``, ``'mixed'``, ``'dinov3'``, ``'eva'`` or ``'pe'``, a row of the table.
        temperature: T in the table. ``None`` is 100 for ``'axial'`` and ``'dinov3'``, 10 for
            ``'mixed'``, and 10000 for ``'eva'`` and ``'pe'``.
        rescale_coords: In training, multiply coordinates by a random factor for each batch,
            log-uniform in [1 / ``rescale_coords``, ``rescale_coords``] (DINOv3: 2). ``None`` leaves
            them.
        grid: For ``pe``, the side, or (height, width), of the pretraining grid in tokens. ``None``
            takes the grid at the model's ``img_size``.

    Raises:
        ValueError: An argument is not accepted, or 4 does not divide the width of a head.

    Examples:
        >>> import torch
        >>> from cpvt_backbones import CPVT
        >>> rope, peg = dict(type='RoPE', mode='dinov3'), dict(type='PEG')
        >>> model = CPVT(arch='tiny', position=[rope, peg])
        >>> [type(one).__name__ for one in model.position_encodings]
        ['RoPE', 'PEGPosition']
        >>> model(torch.rand(1, 3, 50, 70))[0].shape
        torch.Size([1, 192, 4, 5])
    """

    attribute = 'rope'
    has_rotation = True

    def __init__(
        self,
        stages: Sequence[Stage],
        *,
        mode: str = 'axial',
        temperature: float | None = None,
        rescale_coords: float | None = None,
        grid: int | Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        check_choice(TEMPERATURES, mode=mode)
        self.temperature = TEMPERATURES[mode] if temperature is None else temperature
        check_positive(above=1, temperature=self.temperature)
        if rescale_coords is not None:
            check_positive(above=1, rescale_coords=rescale_coords)
        if grid is not None and mode != 'pe':
            raise InputError(f"grid must be None but with mode='pe', got {grid!r} for {mode!r}")
        self.grid = None if grid is None else resolve_grid('grid', grid)
        self.mode, self.rescale_coords, self.stages = mode, rescale_coords, tuple(stages)
        for stage in stages:
            head_dim = {'embed_dims / num_heads': stage.head_dim}
            check('a multiple of 4 for a rotary encoding', lambda dim: dim % 4 == 0, **head_dim)
        self.layer_ids: list[tuple[int, int]] = []
        if mode == 'mixed':
            self.layer_ids = [
                (s, block) for s, stage in enumerate(stages) for block in range(stage.used)
            ]
            self.freqs = nn.ParameterList(self._initial(stages[s]) for s, _ in self.layer_ids)
            self._register_load_state_dict_pre_hook(_split_freqs, with_module=True)

    def _frequencies(self, head_dim: int, device: torch.device | None = None) -> Tensor:
        steps = torch.arange(head_dim // 4, device=device, dtype=torch.float32)
        return 1 / self.temperature ** (steps / (head_dim // 4))

    def _initial(self, stage: Stage) -> Tensor:
        """(2, heads, d / 2): factors of x and of y."""
        angle = 2 * math.pi * torch.rand(stage.dim // stage.head_dim, 1)
        w, quarter = self._frequencies(stage.head_dim), math.pi / 2
        f = torch.cat((w * angle.cos(), w * (angle + quarter).cos()), dim=1)
        g = torch.cat((w * angle.sin(), w * (angle + quarter).sin()), dim=1)
        return torch.stack((f, g))

    def _coordinates(
        self, length: int, cell: int, device: torch.device, stage: Stage, axis: int
    ) -> Tensor:
        """Coordinates of the centres of cells of ``cell`` tokens, on ``length`` tokens."""
        cells = torch.arange(ceil_div(length, cell), device=device, dtype=torch.float32)
        centres = cells * cell + (cell - 1) / 2
        if self.mode == 'dinov3':
            return 2 * math.pi * (2 * ((centres + 0.5) / length) - 1)
        if self.mode == 'eva':
            return centres / length * EVA_SIDE
        if self.mode == 'pe':
            return (centres + min(stage.num_prefix, 1)) / length * (self.grid or stage.grid)[axis]
        return centres

    def _turns(self, angles: Tensor, num_prefix: int) -> tuple[Tensor, Tensor]:
        """Convert angles (heads or 1, h, w, d / 2) to cosines and signed sines (..., P + N, d)."""
        angles = angles.flatten(1, 2)
        cos, sin = angles.cos(), angles.sin()
        if self.mode == 'dinov3':  # channel i is paired with d / 2 + i
            cos = torch.cat((cos, cos), dim=-1)
            sin = torch.cat((-sin, sin), dim=-1)
        else:  # channel 2 i is paired with 2 i + 1
            cos = cos.repeat_interleave(2, dim=-1)
            sin = torch.stack((-sin, sin), dim=-1).flatten(-2)
        # Prefix tokens are rotated by 0.
        cos = F.pad(cos, (0, 0, num_prefix, 0), value=1.0)
        sin = F.pad(sin, (0, 0, num_prefix, 0))
        return cos, sin

    def prepare(self, stage: int, grid: Grid, num_prefix: int, device: torch.device) -> Any:
        scale: Any = 1.0
        if self.training and self.rescale_coords is not None:
            bound = math.log(self.rescale_coords)
            scale = torch.empty((), device=device).uniform_(-bound, bound).exp()
        prepared: list[Any] = []
        # Sides of the cells of queries, and of keys if they differ.
        cells = dict.fromkeys((1, self.stages[stage].sr_ratio))
        for cell in cells:
            y = self._coordinates(grid[0], cell, device, self.stages[stage], 0) * scale
            x = self._coordinates(grid[1], cell, device, self.stages[stage], 1) * scale
            y, x = y[None, :, None, None], x[None, None, :, None]
            if self.mode == 'mixed':
                prepared.append((y, x, num_prefix))
                continue
            w = self._frequencies(self.stages[stage].head_dim, device)
            shape = (1, y.shape[1], x.shape[2], len(w))
            rows, columns = (y * w).expand(shape), (x * w).expand(shape)
            parts = (columns, rows) if self.mode in ('axial', 'pe') else (rows, columns)
            angles = torch.cat(parts, dim=-1)
            prepared.append(self._turns(angles, num_prefix))
        return prepared

    def rotate(
        self,
        stage: int,
        block: int,
        query: Tensor,
        key: Tensor,
        prepared: Any,
        arrange: Arrange | None,
    ) -> tuple[Tensor, Tensor]:
        turns = prepared
        if self.mode == 'mixed':
            freqs = self.freqs[self.layer_ids.index((stage, block))].float()
            f, g = freqs[:, :, None, None].unbind(0)  # (heads, 1, 1, d / 2)
            turns = [self._turns(x * f + y * g, num_prefix) for y, x, num_prefix in prepared]
        if arrange is not None:  # in windows, whose keys are not reduced
            turns = [tuple(map(arrange, turns[0]))]
        # Keys in windows are not reduced, those of a global block in the same stage may be.
        reduced = 0 if self.stages[stage].is_windowed(block) else -1
        return self._turn(query, *turns[0]), self._turn(key, *turns[reduced])

    def _turn(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        if self.mode == 'dinov3':
            first, second = x.chunk(2, dim=-1)
            partner = torch.cat((second, first), dim=-1)
        else:
            # Swap the two channels of each pair.
            partner = torch.stack((x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
        return (x * cos).addcmul_(partner, sin).to(x.dtype)

    def layer_id(self, name: str) -> tuple[int, int]:
        return self.layer_ids[int(name.removeprefix('freqs.'))]


def _split_freqs(encoding: Any, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """Split timm's ``freqs`` (2, depth, heads, d / 2) into a tensor per built block: load hook."""
    freqs = state_dict.get(f'{prefix}freqs')
    if freqs is not None and freqs.dim() == 4 and freqs.shape[1] == encoding.stages[0].depth:
        del state_dict[f'{prefix}freqs']
        for block in range(encoding.stages[0].used):
            state_dict[f'{prefix}freqs.{block}'] = freqs[:, block]
