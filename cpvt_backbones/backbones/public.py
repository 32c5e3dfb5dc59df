"""Public weights whose name says which model of this package they fit."""

import re
from os import PathLike
from typing import Any

from cpvt_backbones.layers.checks import keyword_only
from cpvt_backbones.weights import find_shipped

_SIZES: dict[str, Any] = {
    'medium': dict(embed_dims=512, depth=12, num_heads=8, mlp_ratio=4.0),
    'large': dict(embed_dims=1024, depth=24, num_heads=16, mlp_ratio=4.0),
}
_TABLE = dict(type='Learned')
_AXIAL, _MIXED = dict(type='RoPE', mode='axial'), dict(type='RoPE', mode='mixed')
_DEIT: dict[str, Any] = dict(position=_TABLE)
_DISTILLED = dict(**_DEIT, with_dist_token=True)
_DEIT3 = dict(**_DEIT, layer_scale_init=1e-6)
_CLIP = dict(**_DEIT, pre_norm=True, norm_eps=1e-5)
_DINOV2 = dict(**_DEIT, img_size=518, layer_scale_init=1e-5)
_DINOV3: dict[str, Any] = dict(
    position=dict(type='RoPE', mode='dinov3'), num_registers=4, qkv_bias=False, layer_scale_init=1e-5, norm_eps=1e-5
)
_PVT = dict(
    position=dict(type='Learned', interpolation='bilinear', antialias=False), embed_norm_eps=1e-6, with_cls_token=True
)

# A name of timm, of mmpretrain or of the authors' file, and the arguments of its model besides those in the name: arch,
# patch (patch_size) and size (img_size).
_COLUMNS: dict[str, dict[str, Any]] = {
    r'deit_(?P<arch>tiny|small|base)_patch16_(?P<size>\d+)': _DEIT,
    r'deit-(?P<arch>tiny|small|base)_.*?(?:-(?P<size>\d+)px)?': _DEIT,
    r'deit_(?P<arch>tiny|small|base)_distilled_patch16_(?P<size>\d+)': _DISTILLED,
    r'deit-(?P<arch>tiny|small|base)-distilled_.*?(?:-(?P<size>\d+)px)?': _DISTILLED,
    r'deit3_(?P<arch>small|medium|base|large)_patch16_(?P<size>\d+)': _DEIT3,
    r'deit3-(?P<arch>small|medium|base|large)-p16_.*?(?:-(?P<size>\d+)px)?': _DEIT3,
    r'vit_(?P<arch>tiny|small|base|large)_patch(?P<patch>8|16|32)_(?P<size>\d+)': _DEIT,
    r'vit-(?P<arch>base|large)-p(?P<patch>16|32)_(?!clip).*?(?:-(?P<size>\d+)px)?': _DEIT,
    r'vit_(?P<arch>base|large)_patch(?P<patch>14|16|32)_clip_(?P<size>\d+)': _CLIP,
    r'vit_(?P<arch>base|large)_patch(?P<patch>14|16|32)_clip_quickgelu_(?P<size>\d+)': {
        **_CLIP,
        'activation': 'quick_gelu',
    },
    r'vit_(?P<arch>small|base|large)_patch(?P<patch>14)_dinov2': _DINOV2,
    r'vit_(?P<arch>small|base|large)_patch(?P<patch>14)_reg4_dinov2': dict(**_DINOV2, num_registers=4),
    r'vit_(?P<arch>small|base|large)_patch16_rope_224': dict(position=_AXIAL, layer_scale_init=1e-5),
    r'vit_(?P<arch>small|base|large)_patch16_rope_mixed_224': dict(position=_MIXED, layer_scale_init=1e-5),
    r'vit_(?P<arch>small|base|large)_patch16_rope_ape_224': dict(position=[_TABLE, _AXIAL], layer_scale_init=1e-5),
    r'vit_(?P<arch>small|base|large)_patch16_rope_mixed_ape_224': dict(
        position=[_TABLE, _MIXED], layer_scale_init=1e-5
    ),
    r'vit_(?P<arch>small|base|large)_patch16_dinov3': _DINOV3,
    r'vit_(?P<arch>tiny|small|base|large)_patch16_dinov3_qkvb': {**_DINOV3, 'qkv_bias': True},
    r'vit_(?P<arch>small)_plus_patch16_dinov3': dict(**_DINOV3, activation='swiglu'),
    r'vit_(?P<arch>small)_plus_patch16_dinov3_qkvb': {**_DINOV3, 'qkv_bias': True, 'activation': 'swiglu'},
}
_PYRAMIDS: dict[str, dict[str, Any]] = {
    r'twins[_-]pcpvt[_-](?P<arch>small|base|large)(?:_.*)?': {},
    r'pvt_(?P<arch>tiny|small|medium|large)': _PVT,  # whai362/PVT; its "Medium" is `base` here
}


def public_backbone(checkpoint: str | PathLike[str]) -> dict[str, Any] | None:
    """Type and arguments of the backbone that public weights fit, from their name; ``None`` for another name.

    Args:
        checkpoint: ``timm://NAME``, ``mmpretrain://NAME``, an address or a file, e.g.
            ``'vit_small_patch16_dinov3.lvd1689m.safetensors'``.
    """
    name = re.split(r'[.?]|-[0-9a-f]{8,}', str(checkpoint).rpartition('/')[2])[0]
    for backbone, table in (('CPVT', _COLUMNS), ('PyramidCPVT', _PYRAMIDS)):
        for pattern, arguments in table.items():
            if match := re.fullmatch(pattern, name):
                numbers = match.groupdict()
                arch = numbers['arch']
                if backbone == 'PyramidCPVT':
                    return dict(type=backbone, arch='base' if arch == 'medium' else arch, **arguments)
                sizes = dict(patch_size=int(numbers.get('patch') or 16), img_size=int(numbers.get('size') or 224))
                return dict(type=backbone, arch=_SIZES.get(arch, arch), with_cls_token=True) | sizes | arguments
    return None


def pretrained_arguments(cls: type, name: str) -> dict[str, Any]:
    """Arguments with which ``cls`` takes weights that come with the package, or public ones, by their name.

    Raises:
        ValueError: An unknown name, or weights of another class.
    """
    public = public_backbone(name)
    built = public or dict(find_shipped(name).backbone)
    fits = [parent.__name__ for parent in cls.__mro__] if public else [cls.__name__]
    if (kind := built.pop('type')) not in fits:
        raise ValueError(
            f'name: {name!r} are weights of {kind}, got it for {cls.__name__}; where the '
            f"blocks are the same, init_cfg=dict(type='Pretrained', checkpoint={name!r}) takes them"
        )
    accepted = keyword_only(cls)  # MultiScaleCPVT takes a CPVT's arguments but for with_dist_token
    return {key: value for key, value in built.items() if key in accepted}
