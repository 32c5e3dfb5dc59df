"""``dict(type='WithPEG', ...)``: PEGs after named blocks of any registered backbone."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from mmengine.registry import MODELS
from torch import nn

from cpvt_backbones.checks import OF_BASES, check_bool, check_keywords, is_int, is_sequence
from cpvt_backbones.errors import InputError
from cpvt_backbones.layers import PEG, Grid, ceil_div
from cpvt_backbones.layers.peg import identity_init
from cpvt_backbones.plain import most_similar

from .archs import resolve_size


@MODELS.register_module('WithPEG')
def build_with_peg(
    *, backbone: dict[str, Any], after: Sequence[str], channels_last: bool = False, **peg: Any
) -> Any:
    """Add a PEG after each named block of any registered backbone: ``type='WithPEG'``.

    The result is the backbone itself with forward hooks and further weights ``pos_block.{i}.*``.
    Its checkpoints, ``init_cfg`` and arguments keep their meaning. PEGs start as the identity, so
    that the outputs of pretrained weights do not change. ``frozen_stages`` of the backbone does not
    freeze the PEGs.

    A PEG encodes the block's output: tokens (B, N, C) or a map. If the output is a tuple, the PEG
    encodes its first entry. The grid of tokens is a (height, width) argument of the block whose
    product is N. Otherwise it is computed from the image size.

    Args:
        backbone: Config of the backbone, such as ``dict(type='mmdet.SwinTransformer', ...)``. It
            runs once on a blank image of its ``img_size`` (default: 224 px) to find the widths of
            the blocks.
        after: Names of its blocks in ``named_modules()``, such as ``('stages.0.blocks.0',
            'stages.1.blocks.0')``.
        channels_last: ``True`` if maps are (B, H, W, C), as in timm's Swin. Otherwise they are
            (B, C, H, W).
        peg: Further arguments, those of :class:`PEG`. ``padding`` must be ``'zero'``.

    Returns:
        The backbone, of its own class.

    Raises:
        ValueError: The backbone lacks a named block or does not call it, or the grid of its tokens
            is not found.

    Examples:
        >>> from cpvt_backbones.backbones import build_with_peg
        >>> config = dict(type='PyramidCPVT', arch='tiny', position=None)
        >>> names = ['blocks.0.0', 'blocks.1.0']
        >>> model = build_with_peg(backbone=config, after=names)
        >>> type(model).__name__, [peg.dim for peg in model.pos_block.values()]
        ('PyramidCPVT', [64, 128])

        A config: Swin in RetinaNet, with a PEG after the first block of each stage:

        ```python
        # retinanet_swin_peg.py
        _base_ = 'mmdet::swin/retinanet_swin-t-p4-w7_fpn_1x_coco.py'
        custom_imports = dict(imports=['cpvt_backbones'])
        model = dict(
            backbone=dict(
                _delete_=True,
                type='WithPEG',
                backbone=_base_.model.backbone,
                after=[f'stages.{stage}.blocks.0' for stage in range(4)],
            )
        )
        ```
    """
    if not is_sequence(after) or not after or len(set(after)) < len(after):
        raise InputError(f'after must be different names of blocks, got {after!r}')
    if peg.get('padding', 'zero') != 'zero':
        kept = "'zero' (a block's map keeps its size)"
        raise InputError(f'padding must be {kept}, got {peg["padding"]!r}')
    check_bool(channels_last=channels_last)
    called = "dict(type='WithPEG')"
    check_keywords(called, PEG, peg, positional=('dim',), advice_on=OF_BASES)
    model: Any = MODELS.build(backbone)
    if hasattr(model, 'pos_block'):
        raise InputError(
            f'backbone must be without pos_block (use position=), got {dict(backbone)!r}'
        )
    modules = dict(model.named_modules())
    owner = type(model).__name__
    pegs = nn.ModuleDict()
    model.pos_block = pegs
    model.register_forward_pre_hook(_note_size)
    for index, name in enumerate(after):
        if name not in modules:
            near = most_similar(name, modules, count=3, cutoff=0)
            raise InputError(f'after must name modules of {owner}, such as {near}, got {name!r}')
        hook = partial(_encode, pegs, str(index), name, channels_last, peg)
        modules[name].register_forward_hook(hook, with_kwargs=True)
    size = resolve_size('img_size', backbone.get('img_size', 224))
    model.eval()
    with torch.no_grad():  # the hooks build the PEGs
        model(torch.zeros(1, backbone.get('in_channels', 3), *size))
    model.train()
    if unused := [name for index, name in enumerate(after) if str(index) not in pegs]:
        raise InputError(f'after must name modules that {owner} calls, got {unused[0]!r}')
    pegs.load_state_dict(identity_init(pegs))
    return model


def _note_size(model: Any, inputs: Any) -> None:
    model.pos_block.image_size = tuple(inputs[0].shape[-2:])


def _encode(
    pegs: Any,
    key: str,
    name: str,
    last: bool,
    peg: Any,
    _: Any,
    args: Any,
    kwargs: Any,
    output: Any,
) -> Any:
    x, *rest = output if isinstance(output, tuple) else (output,)
    is_map = x.dim() == 4
    if is_map:
        rows = x if last else x.permute(0, 2, 3, 1)  # (B, H, W, C)
        grid = tuple(rows.shape[1:3])
        tokens = rows.flatten(1, 2)
    else:
        tokens = x  # (B, N, C)
        grid = _grid(name, tokens.shape[1], (*args, *kwargs.values()), pegs.image_size)
    if key not in pegs:
        pegs[key] = PEG(tokens.shape[-1], **peg)
        return None
    x = pegs[key](tokens, grid)
    if is_map:
        x = x.unflatten(1, grid)
        if not last:
            x = x.permute(0, 3, 1, 2).contiguous()
    return (x, *rest) if isinstance(output, tuple) else x


def _grid(name: str, count: int, values: Sequence[Any], size: Grid) -> Grid:
    pairs = set()
    for value in values:
        if is_sequence(value) and len(value) == 2 and all(map(is_int, value)):
            pairs.add((value[0], value[1]))
    of_strides = set()
    for stride in range(1, max(size) + 1):
        of_strides.add((ceil_div(size[0], stride), ceil_div(size[1], stride)))
        of_strides.add((size[0] // stride, size[1] // stride))
    for grids in (pairs, of_strides):
        found = {grid for grid in grids if grid[0] * grid[1] == count}
        if len(found) == 1:
            return found.pop()
    given = (
        f'a pair among the arguments of the block, or of a stride of the image ({size[0]} x'
        f' {size[1]} px)'
    )
    raise InputError(
        f'after: the tokens of {name!r} must fill the grid of {given}, got {count} (a class token?)'
    )
