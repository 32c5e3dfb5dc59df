"""Backbones of public weights, by the name of the weights."""

import re
from os import PathLike
from typing import Any

_SIZES: dict[str, Any] = {
    'medium': dict(embed_dims=512, depth=12, num_heads=8, mlp_ratio=4.0),
    'large': dict(embed_dims=1024, depth=24, num_heads=16, mlp_ratio=4.0),
    'huge': dict(embed_dims=1280, depth=32, num_heads=16, mlp_ratio=4.0),
    # For hidden widths 4304 and 8960: blocks round the product down.
    'so400m': dict(embed_dims=1152, depth=27, num_heads=16, mlp_ratio=3.7362),
    'giantopt': dict(embed_dims=1536, depth=40, num_heads=16, mlp_ratio=4.0),
    'gigantic': dict(embed_dims=1536, depth=50, num_heads=16, mlp_ratio=5.8334),
}
_TABLE = dict(type='Learned')
_PE: dict[str, Any] = dict(
    position=[_TABLE, dict(type='RoPE', mode='pe')], pre_norm=True, norm_eps=1e-5
)
_PE_PARTS: dict[str, Any] = dict(**_PE, final_norm=False)  # PE-Spatial and PE-Lang
_AXIAL, _MIXED = dict(type='RoPE', mode='axial'), dict(type='RoPE', mode='mixed')
_DEIT: dict[str, Any] = dict(position=_TABLE)
_DISTILLED = dict(**_DEIT, with_dist_token=True)
_MM_TABLE = dict(type='Learned', antialias=False)  # mmpretrain resizes without a low-pass filter
_MM_DEIT: dict[str, Any] = dict(position=_MM_TABLE)
_DEIT3 = dict(**_DEIT, layer_scale_init=1e-6)
_CLIP = dict(**_DEIT, pre_norm=True, norm_eps=1e-5)
_QUICK_CLIP = dict(**_CLIP, activation='quick_gelu')
_SCALED: dict[str, Any] = dict(layer_scale_init=1e-5)
_DINOV2 = dict(**_DEIT, **_SCALED, img_size=518)
_DINOV3 = dict(
    **_SCALED,
    position=dict(type='RoPE', mode='dinov3'),
    num_registers=4,
    qkv_bias=False,
    norm_eps=1e-5,
)
_SIGLIP: dict[str, Any] = dict(**_DEIT, with_cls_token=False)
_SIGLIP_TANH = dict(**_SIGLIP, activation='gelu_tanh')
_RADIO = dict(**_DEIT, final_norm=False, img_size=512)
_TIPS = dict(**_DEIT, **_SCALED, num_registers=1, img_size=448)
_GIANT = dict(embed_dims=1536, depth=40, num_heads=24, mlp_ratio=4.0)
_PE_LANG: dict[str, Any] = {
    'large': {**_SIZES['large'], 'depth': 23},
    'gigantic': {**_SIZES['gigantic'], 'depth': 47},
}
# Two thirds of the usual hidden width, because the gate has the same width: 512 and 1024.
_EVA_SIZES: dict[str, Any] = {
    'tiny': dict(embed_dims=192, depth=12, num_heads=3, mlp_ratio=2.6667),
    'small': dict(embed_dims=384, depth=12, num_heads=6, mlp_ratio=2.6667),
}
_EVA: dict[str, Any] = dict(position=[_TABLE, dict(type='RoPE', mode='eva')], activation='swiglu')
_SAM: dict[str, Any] = dict(
    img_size=1024,
    with_cls_token=False,
    window_size=14,
    mask_window_padding=False,
    final_norm=False,
)
_TIMM_SAM = dict(**_SAM, position=[_TABLE, dict(type='DecomposedRelative', grid=64)], norm_eps=1e-5)
_MM_SAM = dict(**_SAM, position=[_MM_TABLE, dict(type='DecomposedRelative', grid=64)])
_SAM_GLOBAL = {'base': (2, 5, 8, 11), 'large': (5, 11, 17, 23), 'huge': (7, 15, 23, 31)}
_BILINEAR = dict(type='Learned', interpolation='bilinear', antialias=False)
_PVT = dict(position=_BILINEAR, embed_norm_eps=1e-6, with_cls_token=True)

# Pattern of a name of timm, mmpretrain or the authors' file, and the model's arguments that are not
# in the name; the name has arch, patch (patch_size) and size (img_size).
_PLAIN: dict[str, dict[str, Any]] = {
    r'deit_(?P<arch>tiny|small|base)_patch16_(?P<size>\d+)': _DEIT,
    r'deit-(?P<arch>tiny|small|base)_.*?(?:-(?P<size>\d+)px)?': _MM_DEIT,
    r'deit_(?P<arch>tiny|small|base)_distilled_patch16_(?P<size>\d+)': _DISTILLED,
    r'deit-(?P<arch>tiny|small|base)-distilled_.*?(?:-(?P<size>\d+)px)?': dict(
        **_MM_DEIT, with_dist_token=True
    ),
    r'deit3_(?P<arch>small|medium|base|large)_patch16_(?P<size>\d+)': _DEIT3,
    r'deit_3_(?P<arch>small|medium|base|large)_(?P<size>\d+)_(?:1k|21k)': _DEIT3,  # Meta's files
    r'deit3-(?P<arch>small|medium|base|large)-p16_.*?(?:-(?P<size>\d+)px)?': dict(
        **_MM_DEIT, layer_scale_init=1e-6
    ),
    r'vit_(?P<arch>tiny|small|base|large)_patch(?P<patch>8|16|32)_(?P<size>\d+)': _DEIT,
    **{
        f'samvit_(?P<arch>{arch})_patch16': dict(**_TIMM_SAM, global_blocks=blocks)
        for arch, blocks in _SAM_GLOBAL.items()
    },
    **{
        f'vit-(?P<arch>{arch})-p16_sam-pre_.*': dict(**_MM_SAM, global_blocks=blocks)
        for arch, blocks in _SAM_GLOBAL.items()
    },
    r'vit-(?P<arch>base|large)-p(?P<patch>16|32)_(?!clip|sam).*?(?:-(?P<size>\d+)px)?': _MM_DEIT,
    r'vit_(?P<arch>base|large)_patch(?P<patch>14|16|32)_clip_(?P<size>\d+)': _CLIP,
    r'vit_(?P<arch>base|large)_patch(?P<patch>14|16|32)_clip_quickgelu_(?P<size>\d+)': _QUICK_CLIP,
    # timm computes some with another GELU than their authors.
    r'vit_(?P<arch>so400m)_patch(?P<patch>14)_siglip_(?:gap_)?384': dict(**_SIGLIP, img_size=378),
    r'vit_(?P<arch>so400m)_patch(?P<patch>14)_siglip_(?:gap_)?(?P<size>\d+)': _SIGLIP,
    r'vit_(?P<arch>base)_patch(?P<patch>32)_siglip_(?:gap_)?(?P<size>\d+)': _SIGLIP_TANH,
    r'vit_(?P<arch>large)_patch16_siglip_(?:gap_)?(?P<size>512)': _SIGLIP_TANH,
    r'vit_(?P<arch>so400m|giantopt)_patch16_siglip_(?:gap_)?(?P<size>\d+)': _SIGLIP_TANH,
    r'vit_(?P<arch>base|large)_patch16_siglip_(?:gap_)?(?P<size>\d+)': _SIGLIP,
    r'vit_pe_core_(?P<arch>tiny|small|base|large)_patch(?P<patch>14|16)_(?P<size>\d+)': _PE,
    r'vit_pe_core_(?P<arch>gigantic)_patch(?P<patch>14)_(?P<size>\d+)': dict(
        **_PE, with_cls_token=False
    ),
    r'vit_pe_spatial_(?P<arch>tiny|small|base|large)_patch(?P<patch>14|16)_(?P<size>\d+)': (
        _PE_PARTS
    ),
    r'vit_pe_spatial_(?P<arch>gigantic)_patch(?P<patch>14)_(?P<size>\d+)': dict(
        **_PE_PARTS, with_cls_token=False, layer_scale_init=0.1
    ),
    r'vit_pe_lang_(?P<arch>large)_patch(?P<patch>14)_(?P<size>\d+)': {
        **_PE_PARTS,
        'arch': _PE_LANG['large'],
        'layer_scale_init': 0.1,
    },
    r'vit_pe_lang_(?P<arch>gigantic)_patch(?P<patch>14)_(?P<size>\d+)': {
        **_PE_PARTS,
        'arch': _PE_LANG['gigantic'],
        'layer_scale_init': 0.1,
        'with_cls_token': False,
    },
    **{
        rf'eva02_(?P<arch>{arch})_patch(?P<patch>14)_(?P<size>\d+)': dict(**_EVA, arch=sizes)
        for arch, sizes in _EVA_SIZES.items()
    },
    r'vit_(?P<arch>small|base|large)_patch(?P<patch>14)_dinov2': _DINOV2,
    r'vit_(?P<arch>small|base|large)_patch(?P<patch>14)_reg4_dinov2': dict(
        **_DINOV2, num_registers=4
    ),
    r'vit_(?P<arch>base|large)_patch16_radio_v3': dict(**_RADIO, **_SCALED, num_registers=7),
    r'vit_(?P<arch>huge)_patch16_radio_v3': dict(**_RADIO, num_registers=7),
    r'vit_(?P<arch>giant)_patch16_radio_v3': dict(**_RADIO, num_registers=7, arch=_GIANT),
    r'vit_(?P<arch>huge|so400m)_patch16_radio_v4': dict(**_RADIO, num_registers=9),
    r'vit_(?P<arch>base|large|so400m)_patch(?P<patch>14)_reg1_tipsv2': _TIPS,
    r'vit_(?P<arch>giant)_patch(?P<patch>14)_reg1_tipsv2': dict(
        **_TIPS, activation='swiglu', arch=_GIANT | dict(mlp_ratio=2.6667)
    ),
    r'vit_(?P<arch>small|base|large)_patch16_rope_224': dict(**_SCALED, position=_AXIAL),
    r'vit_(?P<arch>small|base|large)_patch16_rope_mixed_224': dict(**_SCALED, position=_MIXED),
    r'vit_(?P<arch>small|base|large)_patch16_rope_ape_224': dict(
        **_SCALED, position=[_TABLE, _AXIAL]
    ),
    r'vit_(?P<arch>small|base|large)_patch16_rope_mixed_ape_224': dict(
        **_SCALED, position=[_TABLE, _MIXED]
    ),
    r'vit_(?P<arch>small|base|large)_patch16_dinov3': _DINOV3,
    r'vit_(?P<arch>tiny|small|base|large)_patch16_dinov3_qkvb': {**_DINOV3, 'qkv_bias': True},
    r'vit_(?P<arch>small)_plus_patch16_dinov3': dict(**_DINOV3, activation='swiglu'),
    r'vit_(?P<arch>small)_plus_patch16_dinov3_qkvb': {
        **_DINOV3,
        'qkv_bias': True,
        'activation': 'swiglu',
    },
}
_HIERARCHICAL: dict[str, dict[str, Any]] = {
    r'twins[_-]pcpvt[_-](?P<arch>small|base|large)(?:_.*)?': {},
    # In timm, tokens attend to the padding of windows; in mmpretrain they do not.
    r'twins_(?P<arch>svt_(?:small|base|large))': dict(mask_window_padding=False),
    r'twins-(?P<arch>svt-(?:small|base|large))_.*': {},
    r'pvt_(?P<arch>tiny|small|medium|large)': _PVT,  # whai362/PVT; its "Medium" is `base` here
}


def public_backbone(checkpoint: str | PathLike[str]) -> dict[str, Any] | None:
    """Return type and arguments of the backbone of public weights, from their name.

    Args:
        checkpoint: ``timm://NAME``, ``mmpretrain://NAME``, an address or a file, such as
            ``'vit_small_patch16_dinov3.lvd1689m.safetensors'``.

    Returns:
        A config, ``dict(type=..., arch=..., ...)``; ``None`` for an unknown name.

    Examples:
        >>> from cpvt_backbones.checkpoints import public_backbone
        >>> public_backbone('timm://twins_pcpvt_small.in1k')
        {'type': 'PyramidCPVT', 'arch': 'small'}
        >>> config = public_backbone('deit_tiny_patch16_224.fb_in1k')
        >>> config['type'], config['patch_size'], config['position']
        ('CPVT', 16, {'type': 'Learned'})
    """
    last = re.split(r'[\\/]', str(checkpoint))[-1]
    name = re.split(r'[.?]|-[0-9a-f]{8,}', last)[0]
    for backbone, table in (('CPVT', _PLAIN), ('PyramidCPVT', _HIERARCHICAL)):
        for pattern, arguments in table.items():
            if match := re.fullmatch(pattern, name):
                numbers = match.groupdict()
                arch = numbers['arch']
                if backbone == 'PyramidCPVT':
                    arch = 'base' if arch == 'medium' else arch.replace('-', '_')
                    return dict(type=backbone, arch=arch, **arguments)
                sizes = dict(
                    patch_size=int(numbers.get('patch') or 16),
                    img_size=int(numbers.get('size') or 224),
                )
                built = dict(type=backbone, arch=_SIZES.get(arch, arch), with_cls_token=True)
                built |= sizes | arguments
                if arguments.get('position') == _PE['position']:
                    # Coordinates stay those of pretraining if img_size is overridden.
                    grid = sizes['img_size'] // sizes['patch_size']
                    built['position'] = [_TABLE, dict(type='RoPE', mode='pe', grid=grid)]
                return built
    return None
