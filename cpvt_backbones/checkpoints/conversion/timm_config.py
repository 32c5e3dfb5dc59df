"""Arguments from ``config.json`` of timm, and of transformers' ``timm_wrapper``."""

import re
from collections.abc import Mapping
from typing import Any

from cpvt_backbones.checks import is_int
from cpvt_backbones.errors import InputError

from .architecture import Architecture
from .public import public_backbone

# Arguments of timm's models that the weights show, or that do not change the trunk's outputs.
_SHOWN = re.compile(
    r'num_classes|num_heads|act_layer|global_pool|pool_include_prefix|.*drop.*|weight_init|fix_init'
    r'|in_chans|img_size|patch_size|embed_dims?|depths?|mlp_ratios?|init_values|qkv_bias|class_token'
    r'|proj_bias|reg_tokens|no_embed_class|pos_embed|pre_norm|final_norm|fc_norm|dynamic_img_size'
    r'|strict_img_size|qk_norm|output_fmt|sr_ratios|use_abs_pos|use_rel_pos|features_only'
)
_ACTIVATIONS = {
    'gelu': 'gelu',
    'quick_gelu': 'quick_gelu',
    'quickgelu': 'quick_gelu',
    'gelu_tanh': 'gelu_tanh',
    'gelutanh': 'gelu_tanh',
}
_HEADS = dict(tiny=3, small=6, base=12)  # of `arch` by name
# Arguments that the tables of relative positions show.
_WINDOWS = ('window_size', 'global_attn_indexes')


def apply_timm_config(config: Mapping[str, Any], read: Architecture) -> tuple[int, int] | None:
    """Set the arguments in a ``config.json`` of timm, in place.

    Arguments that the weights show are kept. ``model_args`` has precedence over ``architecture``.

    Args:
        config: Content of the file.
        read: Architecture of the weights beside it.

    Returns:
        Grid (height, width) of the position embedding in tokens; ``None`` if not in the file.

    Raises:
        ValueError: An argument is unknown, or no backbone here has it.
    """
    given = config.get('model_args') or {}
    if not isinstance(given, dict):
        raise InputError(f'model_args must be a JSON object, got {given!r:.100}')
    for name, value in given.items():
        is_shown = _SHOWN.fullmatch(name) or (name in _WINDOWS and read.relative_sides)
        if not is_shown and not _is_usual(name, value):
            raise InputError(
                f'model_args.{name} is not understood, got {value!r:.100}: remove it if it is the'
                f" default of timm's {config['architecture']!r:.100}"
            )
    _apply_named(public_backbone(str(config['architecture'])) or {}, read)
    if 'act_layer' in given:
        is_gated = read.arguments.get('activation') == 'swiglu'
        read.arguments['activation'] = _activation(given['act_layer'], gated=is_gated)
        read.unclear.pop('activation', None)
    if 'num_heads' in given:
        heads = given['num_heads']
        heads = tuple(heads) if isinstance(heads, list) else heads
        read.arguments['arch'] = {**read.arguments['arch'], 'num_heads': heads}
        read.unclear.pop('arch', None)
    return _grid(config, read)


def _apply_named(named: Mapping[str, Any], read: Architecture) -> None:
    """Set the arguments of a public model that its weights do not show."""
    arguments = read.arguments
    hidden = {'norm_eps'}
    if arguments.get('activation') != 'swiglu':
        hidden |= {'activation'}
    if not read.relative_sides:
        hidden |= {'window_size', 'global_blocks', 'mask_window_padding'}
    if read.backbone == 'PyramidCPVT':
        hidden = {name for name in named if name not in ('type', 'arch', 'position')}
    usual = dict(norm_eps=1e-6, activation='gelu') if named and read.backbone == 'CPVT' else {}
    for name, value in (usual | dict(named)).items():
        if name in hidden:
            arguments[name] = value
            read.unclear.pop(name, None)
            read.assumed = [one for one in read.assumed if not one.startswith(f'{name}=')]
    arch = named.get('arch')
    heads = arch['num_heads'] if isinstance(arch, dict) else _HEADS.get(str(arch))
    if heads is not None and read.backbone == 'CPVT':
        arguments['arch'] = {**arguments['arch'], 'num_heads': heads}
        read.unclear.pop('arch', None)
    if 'position' in named and _has_embedding(named['position']) == (
        read.table_entries is not None
    ):
        arguments['position'] = named['position']
        read.unclear.pop('position', None)


def _has_embedding(position: Any) -> bool:
    encodings = position if isinstance(position, list) else [position]
    return any(encoding and encoding['type'] == 'Learned' for encoding in encodings)


def _is_usual(name: str, value: Any) -> bool:
    """``True`` if an argument has the value that the backbones here use."""
    if name == 'norm_layer':  # of timm, with an epsilon of 1e-6
        return value is None or str(value).lower() == 'layernorm'
    return value is None or (value is False and name == 'dynamic_img_pad')


def _activation(name: Any, *, gated: bool) -> str:
    if gated:
        if str(name).lower() not in ('silu', 'swish'):
            raise InputError(f'model_args.act_layer of a gated MLP must be silu, got {name!r:.100}')
        return 'swiglu'
    if str(name).lower() not in _ACTIVATIONS:
        accepted = ', '.join(_ACTIVATIONS)
        raise InputError(f'model_args.act_layer must be one of {accepted}, got {name!r:.100}')
    return _ACTIVATIONS[str(name).lower()]


def _grid(config: Mapping[str, Any], read: Architecture) -> tuple[int, int] | None:
    """Return the grid for the image size in the file, if the embedding has as many entries."""
    patch = read.arguments.get('patch_size')
    if read.table_entries is None or patch is None:
        return None
    given = (config.get('model_args') or {}).get('img_size')
    stored = (config.get('pretrained_cfg') or {}).get('input_size') or []
    for size in (given, stored[1:]):
        sides = size if isinstance(size, list) else [size, size]
        if len(sides) != 2 or not all(is_int(side) and side >= patch for side in sides):
            continue
        height, width = sides[0] // patch, sides[1] // patch
        tokens = read.arguments['with_cls_token'] + read.arguments['with_dist_token']
        extra = read.table_entries - height * width
        if extra in (0, tokens, tokens + read.arguments['num_registers']):
            read.arguments['img_size'] = (height * patch, width * patch)
            read.assumed = [one for one in read.assumed if not one.startswith('img_size=')]
            read.unclear.pop('img_size', None)
            return height, width
    return None
