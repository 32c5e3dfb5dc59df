"""Layers in plain PyTorch: PEG and other position encodings, attention, blocks.

In shapes, B is the number of images, N = H * W the number of patch tokens, and P the number of
prefix tokens: class, distillation and register tokens, which come first. T = P + N is the number of
all tokens. S is the number of keys, which a spatial reduction lowers. C is the width of a token and
d the width of a head.

| type in a signature | value |
| --- | --- |
| ``Grid`` | (H, W): rows and columns of the patch tokens |
| ``StageTokens`` | patch tokens (B, N, C), prefix tokens (B, P, C) or ``None``, and a ``Grid`` |
| ``Bias`` | function of queries (B, heads, N, d) and a ``Grid``; returns a ``LogitBias`` |
| ``LogitBias`` | an :class:`AxialBias` or an :class:`OffsetBias` |
| ``Arrange`` | function of a tensor (heads or 1, P + N, d); returns it in windows |
| ``Rotate`` | function of queries, keys and an ``Arrange`` or ``None``; returns both, rotated |
"""

from .attention import (
    Arrange,
    Attention,
    Bias,
    Rotate,
    SpatialReductionAttention,
    WindowAttention,
    set_fused_attention,
)
from .axial_bias import AxialBias
from .block import MLP, Block, ConvMLP, DropPath, LayerScale
from .learned_table import LearnedTable
from .offset_bias import LogitBias, OffsetBias
from .patch_embed import PatchEmbed
from .peg import PEG, PEGPosition
from .position import (
    POSITIONS,
    DecomposedRelative,
    PositionEncoding,
    Relative,
    SinCos,
    Stage,
    StageTokens,
    build_positions,
    register_position,
)
from .relative_bias import RelativeBias
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
