"""Wrong arguments: each error names the argument, the value it got and what is accepted."""

import inspect
import math
import pathlib
import re

import numpy as np
import pytest
import torch
from mmengine.registry import MODELS
from tiny import COLUMN, PYRAMID, column, multi_scale, pyramid

from cpvt_backbones import CPVT, PEG, MultiScaleCPVT, PyramidCPVT
from cpvt_backbones.backbones.base import Backbone
from cpvt_backbones.layers import (
    Attention,
    PEGPosition,
    SpatialReductionAttention,
    WindowAttention,
)

BUILD = {'CPVT': column, 'MultiScaleCPVT': multi_scale, 'PyramidCPVT': pyramid}


@pytest.mark.parametrize('build', BUILD.values(), ids=BUILD)
@pytest.mark.parametrize(
    ('arguments', 'parts'),
    [
        (dict(arch='huge'), ('arch', "'huge'", 'tiny', 'small', 'base')),
        (dict(arch=dict(depth=4)), ('arch', "{'depth': 4}", 'embed_dims')),
        (dict(out_indices=(0, -5)), ('out_indices', '-5', '[-4, 3]')),
        (dict(out_indices=()), ('out_indices', '()', '[-4, 3]')),
        (dict(drop_path_rate=1), ('drop_path_rate', '1', '[0, 1)')),
        (dict(drop_rate=1.5), ('drop_rate', '1.5', '[0, 1)')),
        (dict(attn_drop_rate=-1), ('attn_drop_rate', '-1', '[0, 1)')),
        (dict(frozen_stages=5), ('frozen_stages', '5', '[-1, 4]')),
        (dict(norm_eps=math.inf), ('norm_eps', 'inf', 'finite number > 0')),
        (dict(with_cls_token=2), ('with_cls_token', '2', 'True or False')),
        (dict(init_cfg=dict(checkpoint='x.pth')), ('init_cfg', "{'checkpoint': 'x.pth'}", 'type')),
        (dict(in_channels=0), ('in_channels', '0', '>= 1')),
        (dict(img_size=(1, 2, 3)), ('img_size', '(1, 2, 3)', 'height')),
    ],
)
def test_values(build, arguments, parts):
    with pytest.raises(ValueError) as caught:
        build(**arguments)
    for part in parts:
        assert part in str(caught.value)
    assert 'got' in str(caught.value)


@pytest.mark.parametrize('build', [column, multi_scale, pyramid])
def test_init_cfg_may_be_the_path_of_a_checkpoint(build):
    for path in ('x.pth', pathlib.Path('x.pth')):
        assert build(init_cfg=path).init_cfg == dict(type='Pretrained', checkpoint='x.pth')


def arch(**changes):
    return dict(arch={**COLUMN, **changes})


def pyramid_arch(**changes):
    return dict(arch={**PYRAMID, **changes})


# Of each model: arguments, and the name, the accepted values and the value of the message.
OF_ONE_MODEL = {
    column: [
        (arch(num_heads=5), 'num_heads must divide embed_dims, got num_heads=5 for embed_dims=24'),
        (arch(depth=0), 'depth must be an integer >= 1, got 0'),
        (arch(mlp_ratio=0), 'mlp_ratio must be a finite number > 0, got 0'),
        (dict(patch_size=0), 'patch_size must be an integer >= 1, got 0'),
        (dict(activation='relu'), "['gelu', 'gelu_tanh', 'quick_gelu', 'swiglu'], got 'relu'"),
        (dict(with_dist_token=1), 'with_dist_token must be True or False, got 1'),
        (
            dict(with_dist_token=True, with_cls_token=False),
            'with_dist_token must be False with with_cls_token=False, got True',
        ),
        (dict(layer_scale_init=math.inf), 'layer_scale_init must be a finite number > 0, got inf'),
        (dict(window_size=0), 'window_size must be an integer >= 1, got 0'),
        (dict(global_blocks=(1,)), 'global_blocks must be empty without window_size, got (1,)'),
        (dict(mask_window_padding=1), 'mask_window_padding must be True or False, got 1'),
        (dict(window_size=2, global_blocks=(4,)), 'integers in [-4, 3], got 4 in (4,)'),
        (
            dict(out_type='tokens'),
            "['avg_featmap', 'cls_and_avg', 'cls_token', 'featmap', 'raw', 'with_cls_token'], got",
        ),
        (dict(out_type='cls_token', with_cls_token=False), "out_type must not be 'cls_token' with"),
        (dict(out_type='cls_and_avg', with_cls_token=False), "must not be 'cls_and_avg' with"),
    ],
    pyramid: [
        (pyramid_arch(num_heads=(3, 2, 2, 3)), 'num_heads must divide embed_dims, got num_heads=3'),
        (pyramid_arch(depths=(1, 1, 1)), 'arch must give 4 numbers for depths, one per stage, got'),
        (pyramid_arch(sr_ratios=1), 'arch must give 4 numbers for sr_ratios, one per stage, got 1'),
        (pyramid_arch(sr_ratios=(0, 1, 1, 1)), 'must be an integer >= 1, got 0'),
        (dict(embed_norm_eps=-1), 'embed_norm_eps must be a finite number > 0, got -1'),
        (dict(out_type='cls_token'), "out_type must not be 'cls_token' with with_cls_token=False"),
        (
            dict(out_type='cls_token', with_cls_token=True),
            "out_indices must be -1 with out_type='cls_token'",
        ),
        (dict(with_cls_token=True, out_indices=(0, 1)), 'with_cls_token must be False unless'),
        (dict(position=dict(type='PEG', padding='none')), "padding must be 'zero' in a pyramid"),
    ],
    multi_scale: [
        (arch(embed_dims=4) | dict(patch_size=32), "embed_dims must be >= 8 with source='last'"),
        (dict(position=dict(type='PEG', padding='none')), "padding must be 'zero' in a model for"),
        (dict(source='first'), "source must be one of ['last', 'taps'], got 'first'"),
        (dict(patch_size=14), 'patch_size must be one of (4, 8, 16, 32), got 14'),
        (dict(taps=(0, 1, 2, 3)), "taps must be None with source='last', got (0, 1, 2, 3)"),
        (dict(source='taps', taps=(3, 2, 1, 0)), 'ascending order, got (3, 2, 1, 0)'),
        (dict(source='taps', taps=(0, 1, 2, 4)), 'taps must be an integer or a sequence of'),
    ],
}


@pytest.mark.parametrize(
    ('build', 'arguments', 'message'),
    [(build, *row) for build, rows in OF_ONE_MODEL.items() for row in rows],
)
def test_values_of_one_model(build, arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        build(**arguments)


@pytest.mark.parametrize('cls', [CPVT, MultiScaleCPVT, PyramidCPVT])
def test_an_unknown_keyword_is_named_in_a_config_and_for_pretrained_weights(cls):
    message = re.escape("has no argument 'archh'; did you mean 'arch'?")
    with pytest.raises(TypeError, match=f'{cls.__name__} {message}'):
        MODELS.build(dict(type=cls.__name__, archh='tiny'))
    with pytest.raises(TypeError, match=f'{cls.__name__}.from_pretrained {message}'):
        cls.from_pretrained('cpvt_tiny_gap-imagenette', archh='tiny')


@pytest.mark.parametrize('cls', [CPVT, MultiScaleCPVT, PyramidCPVT])
def test_a_value_without_keyword_is_answered_by_the_keyword(cls):
    message = f"{cls.__name__} takes its arguments by keyword: {cls.__name__}(arch='small')"
    with pytest.raises(TypeError, match=re.escape(message)):
        cls('small')


@pytest.mark.parametrize(
    ('name', 'error', 'words'),
    [
        (3, TypeError, 'name must be a path, a str or pathlib.Path, got 3'),
        ('no_such', ValueError, "or 'timm://NAME', 'user/repository', a file or a folder, got"),
    ],
)
def test_a_name_that_is_none_is_answered_by_the_accepted_ones(name, error, words):
    with pytest.raises(error, match=re.escape(words)):
        CPVT.from_pretrained(name)


@pytest.mark.parametrize(
    ('name', 'similar'),
    [
        ('deit_small', "'deit_small-imagenet'"),
        ('timm://deit_smal_patch16_224', ".*'timm://deit_small_patch16_224'"),
    ],
)
def test_a_name_of_timm_is_answered_by_similar_ones(name, similar):
    pytest.importorskip('timm')
    with pytest.raises(ValueError, match=f'did you mean {similar}'):
        CPVT.from_pretrained(name)


@pytest.mark.parametrize('build', BUILD.values(), ids=BUILD)
def test_an_unknown_keyword_of_init_cfg_is_named(build):
    model = build(init_cfg=dict(type='Pretrained', checkpoint='x.pth', prefx='teacher.'))
    message = "init_cfg=dict(type='Pretrained') has no argument 'prefx'; did you mean 'prefix'?"
    with pytest.raises(TypeError, match=re.escape(message)):
        model.init_weights()


@pytest.mark.parametrize('cls', [CPVT, MultiScaleCPVT, PyramidCPVT, PEG])
def test_constructors_list_their_arguments(cls):
    kinds = {parameter.kind for parameter in inspect.signature(cls.__init__).parameters.values()}
    assert kinds == {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}


@pytest.mark.parametrize(
    ('outer', 'inner', 'different'),
    [
        (CPVT, Backbone, 'depths'),
        (PyramidCPVT, Backbone, 'depths'),
        (MultiScaleCPVT, CPVT, 'out_type with_dist_token with_cls_token out_indices position'),
        (WindowAttention, Attention, ''),
        (SpatialReductionAttention, Attention, ''),
        (PEGPosition, PEG, 'dim'),
    ],
)
def test_arguments_that_are_passed_on_have_the_same_defaults(outer, inner, different):
    ours = inspect.signature(outer.__init__).parameters
    theirs = inspect.signature(inner.__init__).parameters
    for name in theirs.keys() - set(different.split()):
        assert ours[name].default == theirs[name].default or name in ('self', 'with_cls_token')


NO_TENSOR = 'images must be a torch.Tensor (B, 3, H, W), got '
NO_BATCH = 'images must be (B, 3, H, W) with H, W >= 1, got shape '


@pytest.mark.parametrize('build', BUILD.values(), ids=BUILD)
@pytest.mark.parametrize(
    ('images', 'error', 'message'),
    [
        (None, TypeError, f'{NO_TENSOR}NoneType'),
        ([torch.zeros(3, 32, 32)], TypeError, f'{NO_TENSOR}list'),
        (np.zeros((1, 3, 32, 32)), TypeError, f'{NO_TENSOR}ndarray'),
        (torch.zeros(1, 1, 32, 32), ValueError, f'{NO_BATCH}(1, 1, 32, 32)'),
        (
            torch.zeros(3, 32, 32),
            ValueError,
            f'{NO_BATCH}(3, 32, 32); images[None] is a batch',
        ),
        (torch.zeros(1, 3, 0, 32), ValueError, f'{NO_BATCH}(1, 3, 0, 32)'),
        (torch.zeros(1, 3, 4, 32, 32), ValueError, f'{NO_BATCH}(1, 3, 4, 32, 32)'),
        (torch.zeros(1, 3, 9, 9).byte(), TypeError, 'floating point type, got torch.uint8'),
        (
            torch.zeros(1, 3, 9, 9).double(),
            TypeError,
            'got torch.float64, as NumPy',
        ),
    ],
)
def test_images(build, images, error, message):
    with pytest.raises(error, match=re.escape(message)):
        build()(images)


@pytest.mark.parametrize('build', BUILD.values(), ids=BUILD)
def test_other_channel_counts(build):
    model = build(in_channels=5)
    model(torch.zeros(1, 5, 32, 32))
    with pytest.raises(ValueError, match=re.escape('images must be (B, 5, H, W)')):
        model(torch.zeros(1, 3, 32, 32))
