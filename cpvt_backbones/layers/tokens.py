"""Layouts of a feature map, padding, and grouping by shape."""

from collections.abc import Callable, Hashable, Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import _symbolic_trace

Grid = tuple[int, int]
"""Height and width of a map in tokens: rows and columns."""


def tokens_to_map(tokens: Tensor, grid: Grid) -> Tensor:
    """Lay out (B, H * W, C) tokens as a (B, C, H, W) map.

    The map is a view. It is ``channels_last`` if the tokens are contiguous.

    Examples:
        >>> import torch
        >>> from cpvt_backbones.layers import tokens_to_map
        >>> tokens = torch.arange(6).view(1, 6, 1)
        >>> tokens_to_map(tokens, (2, 3))
        tensor([[[[0, 1, 2],
                  [3, 4, 5]]]])
    """
    # Not transpose(1, 2).unflatten(2, grid): for one image its strides are not those of
    # channels_last, and a convolution copies the map twice.
    return tokens.unflatten(1, grid).permute(0, 3, 1, 2)


def map_to_tokens(feature_map: Tensor) -> Tensor:
    """Turn a (B, C, H, W) map into (B, H * W, C) tokens.

    The result is a view. It is contiguous if the map is ``channels_last``.

    Examples:
        >>> import torch
        >>> from cpvt_backbones.layers import map_to_tokens
        >>> map_to_tokens(torch.rand(1, 192, 4, 5)).shape
        torch.Size([1, 20, 192])
    """
    return feature_map.permute(0, 2, 3, 1).flatten(1, 2)


def prepend_tokens(prefix_tokens: Tensor | None, tokens: Tensor) -> Tensor:
    """Put prefix tokens (B, P, C), if there are any, before tokens (B, N, C)."""
    return tokens if prefix_tokens is None else torch.cat((prefix_tokens, tokens), dim=1)


def patch_tokens(x: Tensor, num_prefix: int) -> Tensor:
    """Return the last N of (B, P + N, C) tokens, as a view, or ``x`` itself if P is 0."""
    return x[:, num_prefix:] if num_prefix else x


def split_tokens(x: Tensor, num_prefix: int) -> tuple[Tensor, Tensor | None]:
    """Split (B, P + N, C) tokens into views of the last N and the first P (``None`` if P is 0)."""
    return patch_tokens(x, num_prefix), x[:, :num_prefix] if num_prefix else None


def replace_patch_tokens(x: Tensor, num_prefix: int, tokens: Tensor) -> Tensor:
    """Join the first P tokens of ``x`` and ``tokens`` (B, N', C) to (B, P + N', C)."""
    return prepend_tokens(x[:, :num_prefix], tokens) if num_prefix else tokens


def ceil_div(size: int, parts: int) -> int:
    """Return ``ceil(size / parts)`` for a size >= 0."""
    # Not -(-size // parts): ONNX rounds a negative quotient towards 0.
    return (size + parts - 1) // parts


def is_symbolic() -> bool:
    """``True`` under ``torch.fx.symbolic_trace``, where sizes, types and devices have no value."""
    return not torch.compiler.is_compiling() and _passes_proxies()


def is_tracing() -> bool:
    """``True`` under ``torch.fx.symbolic_trace`` and under ``torch.jit.trace``.

    OpenVINO and the old ONNX exporter use the latter.
    """
    return not torch.compiler.is_compiling() and _is_traced()


def is_exporting() -> bool:
    """``True`` while exporting or tracing one graph for every size, where no branch may depend on a
    size.

    It is also ``True`` under ``torch.compile`` in torch < 2.7.
    """
    if not torch.compiler.is_compiling():
        return _is_traced()
    # torch < 2.7 does not distinguish exporting from compiling.
    return getattr(torch.compiler, 'is_exporting', torch.compiler.is_compiling)()


def is_recording() -> bool:
    """``True`` while compiling, exporting or tracing."""
    return torch.compiler.is_compiling() or _is_traced()


# Both functions below are for code that is not being compiled. Each block calls them several times.


def _is_traced() -> bool:
    return _passes_proxies() or bool(torch._C._get_tracing_state())


_passes_proxies: Callable[[], bool] = getattr(
    _symbolic_trace,
    'is_fx_symbolic_tracing',
    lambda: _symbolic_trace._is_fx_tracing_flag,  # in older torch; 2.15 has no such flag
)


def is_padded(padding: tuple[int, int]) -> bool:
    """``True`` if there is anything to pad, and always while recording."""
    return is_recording() or any(padding)


def crop(x: Tensor, dims: tuple[int, int], size: Grid) -> Tensor:
    """Return the first ``size`` entries of a tensor along two dimensions.

    The result is a view. In programs that are exported, or compiled for inference, it is a copy.
    There, torch would check whether a view is contiguous, and so fix the size of the example.
    """
    # narrow_copy has no derivative, and torch.compile needs one in training; torch.export does not.
    training = torch.compiler.is_dynamo_compiling() and torch.is_grad_enabled()
    copy = torch.compiler.is_compiling() and not training
    for dim, length in zip(dims, size, strict=True):
        x = x.narrow_copy(dim, 0, length) if copy else x.narrow(dim, 0, length)
    return x


def crop_map(feature_map: Tensor, size: Sequence[int], stride: int) -> Tensor:
    """Crop a map (B, C, h, w) to the cells that contain pixels of an image of ``size`` pixels.

    An upsampled map also covers the padding of the last patch.
    """
    return crop(feature_map, (2, 3), (ceil_div(size[0], stride), ceil_div(size[1], stride)))


def pad_to_multiple(feature_map: Tensor, multiple: int, *, value: float = 0.0) -> Tensor:
    """Pad (B, C, H, W) on the right and at the bottom until ``multiple`` divides both sides."""
    height, width = feature_map.shape[2:]
    padding = (
        ceil_div(height, multiple) * multiple - height,
        ceil_div(width, multiple) * multiple - width,
    )
    if is_padded(padding):
        feature_map = F.pad(feature_map, (0, padding[1], 0, padding[0]), value=value)
    return feature_map


def group_by_shape(shapes: Iterable[Hashable]) -> list[list[int]]:
    """Group the indices of equal shapes, in order of first appearance."""
    groups: dict[Hashable, list[int]] = {}
    for index, shape in enumerate(shapes):
        groups.setdefault(shape, []).append(index)
    return list(groups.values())
