"""Layers in plain PyTorch."""

from .attention import Attention, SpatialReductionAttention, WindowAttention, reference_attention, set_fused_attention
from .block import MLP, Block, DropPath, LayerScale, prepend_tokens
from .patch_embed import PatchEmbed
from .peg import PEG, PEGPosition
from .position import (
    POSITIONS,
    LearnedTable,
    PositionEncoding,
    Relative,
    SinCos,
    Stage,
    adapt_tables,
    build_positions,
    read_table,
    register_position,
)
from .tokens import Grid, ceil_div, group_by_shape, map_to_tokens, pad_to_multiple, tokens_to_map

__all__ = [
    'MLP',
    'PEG',
    'POSITIONS',
    'Attention',
    'Block',
    'DropPath',
    'Grid',
    'LayerScale',
    'LearnedTable',
    'PEGPosition',
    'PatchEmbed',
    'PositionEncoding',
    'Relative',
    'SinCos',
    'SpatialReductionAttention',
    'Stage',
    'WindowAttention',
    'adapt_tables',
    'build_positions',
    'ceil_div',
    'group_by_shape',
    'map_to_tokens',
    'pad_to_multiple',
    'prepend_tokens',
    'read_table',
    'reference_attention',
    'register_position',
    'set_fused_attention',
    'tokens_to_map',
]
