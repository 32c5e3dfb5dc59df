"""Relative position bias of Swin and BEiT: a learned number for each head and each offset."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .offset_bias import OffsetBias
from .position import PositionEncoding, Stage, check_all_keys, register_position, resolve_grid
from .tokens import Grid, is_exporting


@register_position('RelativeBias')
class RelativeBias(PositionEncoding):
    """Relative position bias of BEiT and Swin: a learned number for each head and each offset.

    The logit of a query in row y and column x and a key in row y' and column x' gains
    ``table[y - y', x - x']`` of the head. Each block has its own table, which starts at zero.

    In blocks with global attention, the table is for ``grid``. With prefix tokens it has three more
    entries: for a prefix query and a patch key, for a patch query and a prefix key, and for two
    prefix tokens. At other grids the offsets are resized by bilinear interpolation and these three
    are kept, as in transformers' BEiT. BEiT in mmseg and timm takes one grid only. There, loading a
    checkpoint resizes the table once, by a spline on a geometric grid.

    In blocks with windows, the table is for the ``window_size`` and is never resized. A smaller
    window uses the middle of the table. Prefix tokens have no bias there.

    Sources: Swin (arXiv 2103.14030, section 3.2; key ``attn.relative_position_bias_table``), BEiT
    (arXiv 2106.08254), MAE fine-tuned for segmentation (arXiv 2111.06377, appendix A.3).

    Args:
        stages: Passed by the backbone; not written in a config. No stage may reduce its keys: an
            offset between two grids has no table entry.
        grid: Side, or (height, width), of the tables in blocks with global attention, in tokens.
            ``None`` takes the grid at the model's ``img_size``.

    Raises:
        ValueError: ``grid`` is not accepted, or a stage reduces its keys.

    Examples:
        As in BEiT, an entry for each of 27 x 27 offsets, and three for the class token:

        >>> import torch
        >>> from cpvt_backbones import CPVT
        >>> model = CPVT(arch='tiny', position=dict(type='RelativeBias'))
        >>> model.state_dict()['rel_pos_bias.0'].shape  # 3 heads
        torch.Size([732, 3])
        >>> model(torch.rand(1, 3, 50, 70))[0].shape
        torch.Size([1, 192, 4, 5])
    """

    attribute = 'rel_pos_bias'
    has_bias = True

    def __init__(self, stages: Sequence[Stage], *, grid: int | Sequence[int] | None = None) -> None:
        super().__init__()
        self.layer_ids: list[tuple[int, int]] = []
        self.sides: list[Grid] = []
        self.windowed: list[bool] = []
        for s, stage in enumerate(stages):
            check_all_keys('RelativeBias', s, stage)
            for block in range(stage.used):
                side = stage.grid if grid is None else resolve_grid('grid', grid)
                windowed = stage.is_windowed(block)
                if stage.window_size is not None and windowed:
                    side = (stage.window_size, stage.window_size)
                entries = offsets_of(side) + (3 if stage.num_prefix and not windowed else 0)
                table = nn.Parameter(torch.zeros(entries, stage.dim // stage.head_dim))
                self.register_parameter(str(len(self.layer_ids)), table)
                self.layer_ids.append((s, block))
                self.sides.append(side)
                self.windowed.append(windowed)

    def attention_bias(self, stage: int, block: int, query: Tensor, grid: Grid) -> OffsetBias:
        index = self.layer_ids.index((stage, block))
        # get_parameter() refuses functional_call's tensors
        table: Tensor = getattr(self, str(index)).T  # (heads, offsets)
        side = self.sides[index]
        offsets, prefix = table[:, : offsets_of(side)], table[:, offsets_of(side) :]
        if not self.windowed[index]:
            offsets, side = resize_offset_table(offsets, side, grid), grid
        if not prefix.shape[1]:
            prefix = prefix.new_zeros(len(prefix), 3)
        table = torch.cat((offsets, prefix), dim=1).to(query.dtype)
        positions = torch.arange(grid[0] * grid[1], device=query.device)
        return OffsetBias(table, side, grid, positions)

    def layer_id(self, name: str) -> tuple[int, int]:
        return self.layer_ids[int(name)]


def offsets_of(side: Grid) -> int:
    """Number of offsets in rows and columns within a grid."""
    return (2 * side[0] - 1) * (2 * side[1] - 1)


def resize_offset_table(table: Tensor, old: Grid, new: Grid) -> Tensor:
    """Resize the offsets (heads, offsets) of a grid to those of another, bilinearly."""
    if not is_exporting() and old == new:
        return table
    dtype = table.dtype
    if dtype in (torch.float16, torch.bfloat16):
        table = table.float()  # not every device interpolates in half precision
    table = table.unflatten(1, (2 * old[0] - 1, 2 * old[1] - 1))[None]
    size = (2 * new[0] - 1, 2 * new[1] - 1)
    return F.interpolate(table, size=size, mode='bilinear')[0].flatten(1).to(dtype)
