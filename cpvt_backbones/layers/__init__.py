"""Layers in plain PyTorch."""

from .attention import Attention, SpatialReductionAttention, WindowAttention
from .axial_bias import AxialBias
from .block import MLP, Block, DropPath, LayerScale
from .learned_table import LearnedTable
from .patch_embed import PatchEmbed
from .peg import PEG, PEGPosition
from .position import (
    POSITIONS,
    DecomposedRelative,
    PositionEncoding,
    Relative,
    SinCos,
    Stage,
    build_positions,
    register_position,
)
from .rope import RoPE
from .tokens import (
    Grid,
    ceil_div,
    group_by_shape,
    map_to_tokens,
    pad_to_multiple,
    prepend_tokens,
    tokens_to_map,
)
