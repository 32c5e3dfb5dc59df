"""Pre-norm encoder block, its MLP, stochastic depth and layer scale."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cpvt_backbones.checks import (
    check,
    check_choice,
    check_int,
    check_positive,
    check_probability,
    is_int,
)

from .attention import Bias, Rotate, drop_out
from .tokens import (
    Grid,
    ceil_div,
    is_recording,
    map_to_tokens,
    replace_patch_tokens,
    tokens_to_map,
)


class DropPath(nn.Module):
    """Stochastic depth (arXiv 1603.09382).

    Each sample's branch is dropped with probability ``rate``; the others are scaled by
    1 / (1 - ``rate``). Evaluation mode drops and scales nothing.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        check_probability(drop_path_rate=rate)
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """Drop and scale samples of a branch (B, T, C)."""
        if self.rate == 0 or not self.training:
            return x
        keep = 1 - self.rate
        mask = x.new_empty((x.shape[0], 1, 1)).bernoulli_(keep)
        return x * (mask / keep)

    def extra_repr(self) -> str:
        """Describe the module by its rate."""
        return f'rate={self.rate:.3f}'


class LayerScale(nn.Module):
    """Learned factor for each channel of a branch (CaiT, arXiv 2103.17239).

    Args:
        dim: Width C of a token.
        init: Initial factor.
    """

    def __init__(self, dim: int, *, init: float) -> None:
        super().__init__()
        check_positive(layer_scale_init=init)
        self.gamma = nn.Parameter(torch.full((dim,), float(init)))

    def forward(self, x: Tensor) -> Tensor:
        """Scale the channels of a branch (B, T, C)."""
        return x * self.gamma


WHOLE_BYTES, PART_BYTES = 32 * 2**20, 8 * 2**20
"""An MLP computes hidden layers larger than ``WHOLE_BYTES`` in parts of ``PART_BYTES``, about the
size of a cache. Above 32 MiB the C library maps new memory for every tensor. Below that size, parts
cost more than they save.
"""
ACTIVATIONS = ('gelu', 'gelu_tanh', 'quick_gelu', 'swiglu')


class MLP(nn.Module):
    """Two linear layers with an activation between them.

    Inference on a CPU computes large inputs in parts, so that the hidden layer stays in the cache.

    Args:
        dim: Width C of a token.
        hidden_dim: Width between the layers.
        drop: Dropout after each layer.
        activation: ``'gelu'``; ``'gelu_tanh'``, its tanh approximation (SigLIP);
            ``'quick_gelu'``, x sigmoid(1.702 x) (CLIP); or ``'swiglu'``, silu(g) x with two first
            layers, g and x (arXiv 2002.05202; DINOv3-S+).

    Examples:
        >>> import torch
        >>> from cpvt_backbones.layers import MLP
        >>> mlp = MLP(192, hidden_dim=512, activation='swiglu')
        >>> [name for name, _ in mlp.named_children()]
        ['fc1_g', 'fc1_x', 'fc2', 'drop']
        >>> mlp(torch.rand(1, 20, 192)).shape
        torch.Size([1, 20, 192])
    """

    def __init__(
        self, dim: int, *, hidden_dim: int, drop: float = 0.0, activation: str = 'gelu'
    ) -> None:
        super().__init__()
        check_int(hidden_dim=hidden_dim)
        check_choice(ACTIVATIONS, activation=activation)
        self.activation = activation
        if activation == 'swiglu':
            self.fc1_g = nn.Linear(dim, hidden_dim)
            self.fc1_x = nn.Linear(dim, hidden_dim)
        else:
            self.fc1 = nn.Linear(dim, hidden_dim)
        self.fc2 = nn.Linear(hidden_dim, dim)
        self.drop = nn.Dropout(drop)
        self.in_place = False

    def forward(self, x: Tensor, grid: Grid | None = None, num_prefix: int = 0) -> Tensor:
        """Map tokens (B, T, C) to the same shape; only :class:`ConvMLP` uses the grid."""
        if is_recording() or torch.is_grad_enabled() or x.device.type != 'cpu':
            return self._run(x, grid, num_prefix)
        hidden_bytes = x.shape[0] * x.shape[1] * self.fc2.in_features * x.element_size()
        if hidden_bytes <= WHOLE_BYTES:
            return self._run(x, grid, num_prefix)
        return self._run_in_parts(x, ceil_div(hidden_bytes, PART_BYTES), grid, num_prefix)

    def _run(self, x: Tensor, grid: Grid | None, num_prefix: int) -> Tensor:
        if self.activation == 'swiglu':
            hidden = F.silu(self.fc1_g(x), inplace=self.in_place) * self.fc1_x(x)
        elif self.activation == 'quick_gelu':
            hidden = self.fc1(x)
            gate = torch.sigmoid(1.702 * hidden)
            hidden = gate.mul_(hidden) if self.in_place else gate * hidden
        else:
            kind = 'tanh' if self.activation == 'gelu_tanh' else 'none'
            hidden = self.fc1(x)
            if self.in_place:
                hidden = torch.ops.aten.gelu_(hidden, approximate=kind)
            else:
                hidden = F.gelu(hidden, approximate=kind)
        return drop_out(self.drop, self.fc2(drop_out(self.drop, hidden)))

    def _run_in_parts(self, x: Tensor, parts: int, grid: Grid | None, num_prefix: int) -> Tensor:
        flat = x.flatten(0, 1)
        out = torch.empty_like(flat)
        for source, target in zip(flat.tensor_split(parts), out.tensor_split(parts), strict=True):
            target.copy_(self._run(source, grid, num_prefix))
        return out.unflatten(0, x.shape[:2])


class ConvMLP(MLP):
    """MLP whose hidden map passes a depthwise convolution, which encodes positions.

    Prefix tokens bypass the convolution. Inference on a CPU computes large maps in bands of rows.
    Source: PVTv2 (arXiv 2106.13797, section 3.2).

    Args:
        dim: Width C of a token.
        hidden_dim: Width between the layers.
        kernel_size: Side of the kernel, an odd number. The map is padded with zeros.
        drop: Dropout after each layer.

    Examples:
        >>> import torch
        >>> from cpvt_backbones.layers import ConvMLP
        >>> mlp = ConvMLP(64, hidden_dim=256, kernel_size=3)
        >>> mlp(torch.rand(1, 4 * 5, 64), (4, 5)).shape
        torch.Size([1, 20, 64])
    """

    def __init__(self, dim: int, *, hidden_dim: int, kernel_size: int, drop: float = 0.0) -> None:
        super().__init__(dim, hidden_dim=hidden_dim, drop=drop)
        check('an odd integer', lambda k: is_int(k) and k % 2 == 1, mlp_kernel_size=kernel_size)
        self.dwconv = nn.Conv2d(
            hidden_dim, hidden_dim, kernel_size, padding=kernel_size // 2, groups=hidden_dim
        )

    def _run(self, x: Tensor, grid: Grid | None, num_prefix: int) -> Tensor:
        """Map tokens (B, P + H * W, C) to the same shape; ``num_prefix`` is P."""
        assert grid is not None
        hidden = self.fc1(x)
        patches = map_to_tokens(self.dwconv(tokens_to_map(hidden[:, num_prefix:], grid)))
        hidden = replace_patch_tokens(hidden, num_prefix, patches)
        hidden = torch.ops.aten.gelu_(hidden) if self.in_place else F.gelu(hidden)
        return drop_out(self.drop, self.fc2(drop_out(self.drop, hidden)))

    def _run_in_parts(self, x: Tensor, parts: int, grid: Grid | None, num_prefix: int) -> Tensor:
        """Compute bands of rows, each with the rows above and below that the kernel reaches."""
        assert grid is not None
        height, width = grid
        reach = self.dwconv.kernel_size[0] // 2
        rows = max(1, x.shape[0] * height // parts)
        out = torch.empty_like(x)
        for source, target in zip(x, out, strict=True):
            for top in range(0, height, rows):
                start, end = max(0, top - reach), min(height, top + rows + reach)
                cells = slice(num_prefix + start * width, num_prefix + end * width)
                band = self._run(source[None, cells], (end - start, width), 0)[0]
                inner = target[num_prefix:][top * width : (top + rows) * width]
                inner.copy_(band[(top - start) * width :][: len(inner)])
        if num_prefix:
            out[:, :num_prefix] = super()._run(x[:, :num_prefix], grid, num_prefix)
        return out


class Block(nn.Module):
    """``x + attention(norm(x))``, then ``x + mlp(norm(x))``; stochastic depth on each branch.

    Args:
        dim: Width C of a token.
        attn: The attention module, such as :class:`Attention`.
        mlp_ratio: Hidden width of the MLP divided by ``dim``.
        drop: Dropout in the MLP.
        drop_path: Probability of dropping a branch.
        layer_scale_init: Initial layer scale. ``None`` adds no :class:`LayerScale`.
        norm_eps: Epsilon of both norms.
        activation: Activation of the :class:`MLP`: ``'gelu'``, ``'gelu_tanh'``, ``'quick_gelu'`` or
            ``'swiglu'``.
        mlp_kernel_size: Kernel side of a :class:`ConvMLP`, which has GELU. ``None`` gives an
            :class:`MLP`.

    Examples:
        >>> import torch
        >>> from cpvt_backbones.layers import Attention, Block
        >>> block = Block(192, attn=Attention(192, num_heads=3), drop_path=0.1)
        >>> tokens = torch.rand(1, 1 + 4 * 5, 192)  # class token, 4 x 5 patches
        >>> block(tokens, (4, 5), num_prefix=1).shape
        torch.Size([1, 21, 192])
    """

    def __init__(
        self,
        dim: int,
        *,
        attn: nn.Module,
        mlp_ratio: float = 4.0,
        drop: float = 0.0,
        drop_path: float = 0.0,
        layer_scale_init: float | None = None,
        norm_eps: float = 1e-6,
        activation: str = 'gelu',
        mlp_kernel_size: int | None = None,
    ) -> None:
        super().__init__()

        def scale() -> nn.Module:
            if layer_scale_init is None:
                return nn.Identity()
            return LayerScale(dim, init=layer_scale_init)

        self.norm1 = nn.LayerNorm(dim, eps=norm_eps)
        self.attn = attn
        self.ls1 = scale()
        self.drop_path1 = DropPath(drop_path)
        self.norm2 = nn.LayerNorm(dim, eps=norm_eps)
        hidden_dim = int(dim * mlp_ratio)
        self.mlp: MLP
        if mlp_kernel_size is None:
            self.mlp = MLP(dim, hidden_dim=hidden_dim, drop=drop, activation=activation)
        else:
            self.mlp = ConvMLP(dim, hidden_dim=hidden_dim, kernel_size=mlp_kernel_size, drop=drop)
        self.ls2 = scale()
        self.drop_path2 = DropPath(drop_path)
        self.in_place = False

    def fuse(self) -> 'Block':
        """Prepare for inference, and return the block itself.

        Sums and GELU then overwrite tensors that are not needed again, which saves memory traffic.
        """
        self.in_place = self.mlp.in_place = True
        return self

    def forward(
        self,
        x: Tensor,
        grid: Grid,
        *,
        num_prefix: int = 0,
        qk: Tensor | None = None,
        bias: Bias | None = None,
        rotate: Rotate | None = None,
        limit: Tensor | None = None,
    ) -> Tensor:
        """Run the block; the result has the shape of ``x``.

        Args:
            x: (B, P + H * W, C): P prefix tokens, then the patch tokens.
            grid: (H, W).
            num_prefix: P, the number of prefix tokens in front.
            qk: Tokens for queries and keys, if they differ from ``x``. They have the shape of
                ``x``.
            bias: Bias of a position encoding on the logits of the patch tokens.
            rotate: Rotation of queries and keys by a position encoding.
            limit: (B, Q, H * W), boolean: the patches that each of the first Q prefix tokens may
                attend to. ``None`` sets no limit.
        """
        query_key = None if qk is None else self.norm1(qk)
        options: dict[str, Any] = dict(
            num_prefix=num_prefix, qk=query_key, bias=bias, rotate=rotate
        )
        if limit is not None:
            options['limit'] = limit
        # No variable holds a branch, which would stay in memory while the next one is computed.
        x = self._sum(x, self.drop_path1(self.ls1(self.attn(self.norm1(x), grid, **options))))
        return self._sum(x, self.drop_path2(self.ls2(self.mlp(self.norm2(x), grid, num_prefix))))

    def _sum(self, x: Tensor, branch: Tensor) -> Tensor:
        # Never write into x, which may be an output of the model. Under autocast only x is fp32.
        return branch.add_(x) if self.in_place and branch.dtype == x.dtype else x + branch
