"""Arguments from ``config.json`` of Hugging Face's transformers."""

from collections.abc import Mapping
from typing import Any

from cpvt_backbones.checks import (
    check,
    check_bool,
    check_choice,
    check_int,
    check_positive,
    is_int,
    list_of_dicts,
)
from cpvt_backbones.errors import InputError

from .architecture import Architecture

# Defaults of transformers' classes by `model_type`. A file may leave them out.
_USUAL: dict[str, Any] = dict(num_attention_heads=12, hidden_act='gelu', image_size=224)
_VIT = dict(**_USUAL, layer_norm_eps=1e-12)
_DINOV2 = dict(**_USUAL, layer_norm_eps=1e-6)
_CLIP = {**_USUAL, 'hidden_act': 'quick_gelu', 'layer_norm_eps': 1e-5}
_SIGLIP = {**_USUAL, 'hidden_act': 'gelu_pytorch_tanh', 'layer_norm_eps': 1e-6}
_SAM = {
    **_DINOV2,
    'image_size': 1024,
    'window_size': 14,
    'global_attn_indexes': [2, 5, 8, 11],
    'use_abs_pos': True,
    'use_rel_pos': True,
}
_DEFAULTS: dict[str, dict[str, Any]] = {
    'vit': _VIT,
    'deit': _VIT,
    'vit_mae': _VIT,
    'vit_msn': _DINOV2,
    'ijepa': _VIT,
    'dinov2': _DINOV2,
    'dinov2_with_registers': _DINOV2,
    'dinov3_vit': {
        **_USUAL,
        'num_attention_heads': 6,
        'layer_norm_eps': 1e-5,
        'rope_theta': 100.0,
        'use_gated_mlp': False,
    },
    'clip_vision_model': _CLIP,
    'metaclip_2_vision_model': _CLIP,
    'siglip_vision_model': _SIGLIP,
    'vitdet': dict(
        **_DINOV2,
        pretrain_image_size=224,  # of the table
        window_size=0,
        window_block_indices=[],
        residual_block_indices=[],
        use_absolute_position_embeddings=True,
        use_relative_position_embeddings=False,
    ),
    'sam_vision_model': _SAM,
    'sam_hq_vision_model': _SAM,
    'beit': dict(
        **_VIT,
        use_absolute_position_embeddings=False,
        use_relative_position_bias=False,
        use_shared_relative_position_bias=False,
    ),
}
_PVT: dict[str, Any] = dict(
    hidden_act='gelu',
    layer_norm_eps=1e-6,
    image_size=224,
    num_attention_heads=[1, 2, 5, 8],
    strides=[4, 2, 2, 2],
)
_HIERARCHICAL: dict[str, dict[str, Any]] = {'pvt': _PVT, 'pvt_v2': _PVT}
# Models of images and text, whose file has a section for the vision tower.
_TOWERS = {
    'clip': 'clip_vision_model',
    'metaclip_2': 'metaclip_2_vision_model',
    'siglip': 'siglip_vision_model',
    'sam': 'sam_vision_model',
    'sam_hq': 'sam_hq_vision_model',
}
MODEL_TYPES = (*_DEFAULTS, *_TOWERS, *_HIERARCHICAL)
_ACTIVATIONS = {
    'gelu': 'gelu',
    'gelu_python': 'gelu',
    'quick_gelu': 'quick_gelu',
    'gelu_new': 'gelu_tanh',
    'gelu_fast': 'gelu_tanh',
    'gelu_pytorch_tanh': 'gelu_tanh',
}


def apply_config(config: Mapping[str, Any], read: Architecture) -> tuple[int, int] | None:
    """Set the arguments in a ``config.json`` of transformers, in place.

    Args:
        config: Content of the file.
        read: Architecture of the weights beside it.

    Returns:
        Grid (height, width) of the position embedding in tokens; ``None`` without one.

    Raises:
        ValueError: No backbone here supports the model or a value, or the weights contradict it.
    """
    values = _values(config)
    if (values['model_type'] in _HIERARCHICAL) != (read.backbone == 'PyramidCPVT'):
        raise InputError(f'model_type is {values["model_type"]!r}, the weights are {read.source}')
    if read.backbone == 'PyramidCPVT':
        _apply_pyramid(values, read)
        return None
    arguments = read.arguments
    _check_agreement(values, read)
    arch = dict(arguments['arch'])
    dim = arch['embed_dims']
    check_int(num_attention_heads=values['num_attention_heads'])
    check(
        f'a divisor of hidden_size={dim}',
        lambda heads: dim % heads == 0,
        num_attention_heads=values['num_attention_heads'],
    )
    check_positive(layer_norm_eps=values['layer_norm_eps'])
    arch['num_heads'] = values['num_attention_heads']
    arguments |= dict(
        arch=arch,
        norm_eps=float(values['layer_norm_eps']),
        activation=_activation(values, gated=arguments.get('activation') == 'swiglu'),
    )
    if 'rope_theta' in values:
        check_positive(above=1, rope_theta=values['rope_theta'])
        temperature = float(values['rope_theta'])
        if read.table_entries is not None:
            raise InputError(
                f'model_type {values["model_type"]!r} has no table, the weights have one'
            )
        arguments['position'] = dict(type='RoPE', mode='dinov3', temperature=temperature)
        read.unclear.pop('position', None)
    for name in ('arch', 'activation', 'img_size'):
        read.unclear.pop(name, None)
    read.assumed = ['window_size=None']
    if any('Backbone' in str(name) for name in config.get('architectures') or ()):
        # For maps; other classes of transformers for these weights always normalise.
        apply_layernorm = values.get('apply_layernorm', True)
        check_bool(apply_layernorm=apply_layernorm)
        arguments['final_norm'] = arguments['final_norm'] and apply_layernorm
    if values['model_type'] in ('vitdet', 'sam_vision_model', 'sam_hq_vision_model'):
        _set_windows(values, read)
    if values['model_type'] == 'beit':
        _set_relative_bias(values, read)
    if read.table_entries is None:
        return None
    return _set_grid(values, arguments, read.table_entries)


def _values(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the vision tower, with the defaults of its class."""
    kind = config['model_type']
    check_choice(MODEL_TYPES, model_type=kind)
    if kind not in _TOWERS:
        return {**(_DEFAULTS | _HIERARCHICAL)[kind], **config}
    tower = _TOWERS[kind]
    # Old files have the second name, which transformers prefers.
    name = 'vision_config' if config.get('vision_config_dict') is None else 'vision_config_dict'
    part = config.get(name)
    if part is None:
        part = {}
    check('a JSON object', lambda value: isinstance(value, dict), **{name: part})
    return {**_DEFAULTS[tower], **part, 'model_type': tower}


def _apply_pyramid(values: Mapping[str, Any], read: Architecture) -> None:
    """Set the heads and epsilons of PVT and PVTv2; their weights show all other arguments."""
    arguments = read.arguments
    arch = dict(arguments['arch'])
    shown = dict(
        hidden_sizes=[*arch['embed_dims']],
        depths=[*arch['depths']],
        sr_ratios=[*arch['sr_ratios']],
        sequence_reduction_ratios=[*arch['sr_ratios']],
        patch_sizes=[*arch.get('patch_kernels', (4, 2, 2, 2))],
        strides=[4, 2, 2, 2],
        num_channels=arguments['in_channels'],
        linear_attention=False,
    )
    for name, value in shown.items():
        if values.get(name, value) != value:
            raise InputError(f'{name} must be {value} as in the weights, got {values[name]!r:.100}')
    heads = values['num_attention_heads']
    check(
        f'a divisor of each of hidden_sizes={shown["hidden_sizes"]}',
        lambda heads: (
            isinstance(heads, list)
            and len(heads) == len(arch['embed_dims'])
            and all(
                is_int(count) and count > 0 and dim % count == 0
                for count, dim in zip(heads, arch['embed_dims'], strict=True)
            )
        ),
        num_attention_heads=heads,
    )
    check_positive(layer_norm_eps=values['layer_norm_eps'])
    check_choice(
        [name for name, value in _ACTIVATIONS.items() if value == 'gelu'],
        hidden_act=values['hidden_act'],
    )
    epsilon = float(values['layer_norm_eps'])
    arch['num_heads'] = tuple(heads)
    arguments |= dict(arch=arch, norm_eps=epsilon, embed_norm_eps=epsilon)
    read.unclear.pop('arch', None)
    read.assumed = []
    if read.table_entries is None:
        return
    height, width = _grid_of('image_size', values['image_size'], 4)
    if height * width != read.table_entries:
        raise InputError(
            f"image_size must be that of the weights' table of {read.table_entries} entries, got"
            f' {values["image_size"]!r:.100}: {height * width} entries with patches of 4 px'
        )
    arguments['img_size'] = (height * 4, width * 4)
    read.unclear.pop('img_size', None)


def _set_relative_bias(values: Mapping[str, Any], read: Architecture) -> None:
    """Set the grid of BEiT's relative positions; refuse values that contradict the weights."""
    position: list[Any] = list_of_dicts('position', read.arguments['position'])
    flags = ('use_relative_position_bias', 'use_shared_relative_position_bias')
    check_bool(**{name: values[name] for name in flags})
    relative = [entry for entry in position if entry['type'] == 'RelativeBias']
    is_relative = bool(relative) or 'RelativeBias' in read.unclear.get('position', '')
    if any(values[name] for name in flags) != is_relative:
        raise InputError(
            f'{" or ".join(flags)} must be {is_relative} as in the weights, got {not is_relative}'
        )
    read.unclear.pop('position', None)
    if not is_relative:
        return
    grid = _grid_of('image_size', values['image_size'], read.arguments['patch_size'])
    if not relative:  # of an image that is not square
        relative = [dict(type='RelativeBias')]
        position += relative
        read.arguments['position'] = position[0] if len(position) == 1 else position
    relative[0]['grid'] = grid


def _check_agreement(values: Mapping[str, Any], read: Architecture) -> None:
    """Raise ``ValueError`` for values that contradict the weights."""
    arguments = read.arguments
    patch = arguments['patch_size']
    shown = dict(
        hidden_size=arguments['arch']['embed_dims'],
        num_hidden_layers=arguments['arch']['depth'],
        num_channels=arguments['in_channels'],
        num_register_tokens=arguments['num_registers'],
        patch_size=patch,
    )
    if read.relative_sides:
        shown['num_attention_heads'] = arguments['arch']['num_heads']
    for name, value in shown.items():
        found = values.get(name, value)
        if found != value and not (name == 'patch_size' and found == [patch, patch]):
            raise InputError(f'{name} must be {value} as in the weights, got {found!r:.100}')


def _activation(values: Mapping[str, Any], *, gated: bool) -> str:
    name = values['hidden_act']
    if 'use_gated_mlp' in values:  # DINOv3; the gate of DINOv2's SwiGLU is always silu
        check_bool(use_gated_mlp=values['use_gated_mlp'])
        if values['use_gated_mlp'] != gated:
            raise InputError(f'use_gated_mlp must be {gated} as in the weights, got {not gated}')
        if gated:
            check_choice(['silu'], **{'hidden_act with use_gated_mlp': name})
    if gated:
        return 'swiglu'
    check_choice(list(_ACTIVATIONS), hidden_act=name)
    return _ACTIVATIONS[name]


def _set_grid(values: Mapping[str, Any], arguments: dict[str, Any], wanted: int) -> tuple[int, int]:
    """Set ``img_size`` from the grid of the position embedding; return the grid."""
    patch = arguments['patch_size']
    prefix = arguments['with_cls_token'] + arguments['with_dist_token']
    name = 'image_size'
    if values['model_type'] == 'vitdet':  # its embedding has an entry for a class token
        name, prefix = 'pretrain_image_size', 1
    height, width = _grid_of(name, values[name], patch)
    entries = height * width + prefix
    if entries != wanted:
        fault = f"that of the weights' table of {wanted} entries"
        raise InputError(
            f'{name} must be {fault}, got {values[name]!r:.100}: {entries} entries with patches of'
            f' {patch} px'
        )
    arguments['img_size'] = (height * patch, width * patch)
    return height, width


def _grid_of(name: str, size: Any, patch: int) -> tuple[int, int]:
    """Return the grid of whole patches for an image size in pixels."""
    sides = size if isinstance(size, list) else [size, size]
    check(
        'a number of pixels or [height, width]',
        lambda _: len(sides) == 2 and all(is_int(side) and side >= patch for side in sides),
        **{name: size},
    )
    return sides[0] // patch, sides[1] // patch


def _set_windows(values: Mapping[str, Any], read: Architecture) -> None:
    """Set windows and position of ViTDet and SAM; refuse contradictions to the weights."""
    arguments = read.arguments
    is_sam = values['model_type'] != 'vitdet'
    flags = ('use_abs_pos', 'use_rel_pos')
    if not is_sam:
        flags = ('use_absolute_position_embeddings', 'use_relative_position_embeddings')
        check(
            '[], since CPVT has no convolutional blocks',
            lambda blocks: blocks == [],
            residual_block_indices=values['residual_block_indices'],
        )
    position: list[Any] = list_of_dicts('position', arguments['position'])
    relative = [entry for entry in position if entry['type'] == 'DecomposedRelative']
    for name, found in zip(flags, (read.table_entries is not None, bool(relative)), strict=True):
        check_bool(**{name: values[name]})
        if values[name] != found:
            raise InputError(f'{name} must be {found} as in the weights, got {values[name]}')
    read.unclear.pop('position', None)
    wanted = _windows(values, arguments['arch']['depth'], is_sam=is_sam)
    if relative:
        relative[0]['grid'] = _relative_grid(values, read, wanted)
    for name in ('window_size', 'mask_window_padding'):
        read.unclear.pop(name, None)
    read.assumed = []
    arguments |= dict(zip(('window_size', 'global_blocks'), wanted, strict=True))
    arguments['mask_window_padding'] = False


def _windows(
    values: Mapping[str, Any], depth: int, *, is_sam: bool
) -> tuple[int | None, list[int]]:
    """Return ``window_size`` and ``global_blocks``."""
    name = 'global_attn_indexes' if is_sam else 'window_block_indices'
    size, listed = values['window_size'], values[name]
    check_int(window_size=size, minimum=0)
    check(
        f'a list of blocks, 0 to {depth - 1}',
        lambda v: isinstance(v, list) and all(is_int(i) and 0 <= i < depth for i in v),
        **{name: listed},
    )
    others = [block for block in range(depth) if block not in listed]
    global_blocks = sorted(set(listed)) if is_sam else others
    if size == 0 or len(global_blocks) == depth:
        return None, []
    return size, global_blocks


def _relative_grid(
    values: Mapping[str, Any], read: Architecture, windows: tuple[int | None, list[int]]
) -> tuple[int, int]:
    """Return the grid of relative positions in blocks with global attention.

    Raises:
        ValueError: The tables are for other windows or another grid.
    """
    grid = _grid_of('image_size', values['image_size'], read.arguments['patch_size'])
    window, global_blocks = windows
    for block, found in enumerate(read.relative_sides):
        windowed = window is not None and block not in global_blocks
        wanted = (window, window) if windowed else grid
        if found != wanted:
            name = 'window_size' if windowed else 'image_size'
            fault = f'{values[name]!r:.100}: {wanted[0]} x {wanted[1]} tokens'
            raise InputError(
                f'{name} must be that of the relative positions of block {block}, for'
                f' {found[0]} x {found[1]} tokens, got {fault}'
            )
    return grid
