"""What the models of other packages need to be compared with: weights, names, options, outputs."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

# mmpretrain and mmseg resize without a low-pass filter, PVT bilinearly.
MM_TABLE = dict(type='Learned', antialias=False)
PVT_TABLE = dict(type='Learned', interpolation='bilinear', antialias=False)
# mmdet: widths are 8 times the heads
PVTV2_ARCH = dict(patch_kernels=(7, 3, 3, 3), mlp_kernel_size=3)


def scaled(model: nn.Module) -> nn.Module:
    """Give a peer's model random weights that keep activations near 1 through any depth, norms,
    biases, tables and tokens included.
    """
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_weight = re.search(r'weight$|gamma(_\d)?$|lambda1$', name)
            if parameter.dim() == 1:
                parameter.normal_(0, 0.1).add_(1 if is_weight else 0)
            elif is_weight and 'position_embedding' not in name:
                parameter.normal_(0, 0.5 * parameter[0].numel() ** -0.5)
            else:  # tables and tokens
                parameter.normal_(0, 0.5)
    model.eval()  # mm backbones return nothing from it
    return model


def lists(arch: Mapping[str, Iterable[Any]]) -> dict[str, list[int]]:
    """Convert an arch to lists, as the mm packages take it."""
    return {key: [int(number) for number in value] for key, value in arch.items()}


def pvt_authors_names(state: dict[str, Tensor], extra_entries: int) -> dict[str, Tensor]:
    """mmdet's PVT to its authors' names, the inverse of mmdet's own converter, with a class token
    in stage 4.
    """
    renamed = {
        'cls_token': torch.zeros(1, 1, 24),
        'norm.weight': torch.ones(24),
        'norm.bias': torch.zeros(24),
    }
    for key, value in state.items():
        _, stage, part, *rest = key.split('.')
        number = int(stage) + 1
        leaf = '.'.join(rest)
        if part == '0':
            renamed[f'patch_embed{number}.{leaf}'.replace('projection', 'proj')] = value
        elif rest == ['0', 'pos_embed']:
            entries = torch.ones(1, extra_entries if number == 4 else 0, value.shape[2])
            renamed[f'pos_embed{number}'] = torch.cat((entries, value), dim=1)
        else:
            block, leaf = f'block{number}.{int(rest[0]) - 1}.', '.'.join(rest[1:])
            if 'in_proj' in leaf:
                kind, dim = leaf.rsplit('_', 1)[1], value.shape[0] // 3
                renamed[f'{block}attn.q.{kind}'] = value[:dim]
                renamed[f'{block}attn.kv.{kind}'] = value[dim:]
                continue
            leaf = leaf.replace('attn.attn.out_proj', 'attn.proj')
            leaf = leaf.replace('ffn.layers.0', 'mlp.fc1').replace('ffn.layers.3', 'mlp.fc2')
            if value.dim() == 4 and 'mlp' in leaf:
                value = value.flatten(1)
            renamed[block + leaf] = value
    return renamed


def pvtv2_authors_names(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """timm's PVTv2 to its authors' names."""
    rules: tuple[tuple[str, Any], ...] = (
        (r'^patch_embed\.', 'patch_embed1.'),
        (r'^stages\.(\d)\.downsample\.', lambda match: f'patch_embed{int(match[1]) + 1}.'),
        (r'^stages\.(\d)\.blocks\.', lambda match: f'block{int(match[1]) + 1}.'),
        (r'^stages\.(\d)\.norm\.', lambda match: f'norm{int(match[1]) + 1}.'),
        (r'\.dwconv\.', '.dwconv.dwconv.'),
    )
    renamed = {}
    for key, value in state.items():
        for pattern, name in rules:
            key = re.sub(pattern, name, key)
        renamed[key] = value
    return renamed


def transformers_tokens(model: Any, images: Tensor) -> Tensor:
    """All tokens of the last block of a model of transformers, normalised."""
    options = dict(interpolate_pos_encoding=True)
    if type(model).__name__.startswith(('Dinov2', 'DINOv3')):
        options = {}  # they always do
    last = model(images, **options).last_hidden_state
    vision = getattr(model, 'vision_model', model)
    if 'clip' in type(vision).__name__.lower():
        return vision.post_layernorm(last)  # transformers normalises the class token alone
    return last
