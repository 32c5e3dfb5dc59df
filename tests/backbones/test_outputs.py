"""What comes out: indices, types, layouts."""

import pytest
import torch
from tiny import (
    BACKBONES,
    COLUMN,
    DENSE,
    assert_equal_outputs,
    column,
    max_difference,
    multi_scale,
    pyramid,
    randomise,
)

from cpvt_backbones.backbones.base import DENSE_POSITION, PAPER_POSITION
from cpvt_backbones.layers import set_fused_attention

IMAGES = (2, 3, 40, 70)


@pytest.mark.parametrize('name', DENSE)
@pytest.mark.parametrize('indices', [[0, -1], [-1], [-4, 1, 3], [3, 0]])
def test_out_indices_are_not_mutated_and_may_be_negative(name, indices):
    given, images = list(indices), torch.randn(IMAGES)
    cut = randomise(DENSE[name](out_indices=given)).eval()
    assert given == indices
    whole = DENSE[name](out_indices=tuple(range(4))).eval()
    whole.load_state_dict(cut.state_dict(), strict=False)
    with torch.no_grad():
        outputs, everything = cut(images), whole(images)
    assert_equal_outputs(outputs, [everything[i] for i in indices])
    assert cut.out_indices == tuple(i % 4 for i in indices)
    assert cut.out_channels == tuple(whole.out_channels[i] for i in indices)
    assert cut.out_strides == tuple(whole.out_strides[i] for i in indices)
    assert given == indices


@pytest.mark.parametrize('name', BACKBONES)
def test_attention_in_steps_gives_the_same_maps(name):
    model = randomise(BACKBONES[name]()).eval()
    images = torch.randn(IMAGES)
    sizes = [(40, 70), (33, 51)]
    with torch.no_grad():
        fused = (*model(images), *model(images, valid_sizes=sizes))
        set_fused_attention(False)
        try:
            in_steps = (*model(images), *model(images, valid_sizes=sizes))
        finally:
            set_fused_attention(True)
    for found, expected in zip(in_steps, fused, strict=True):
        assert max_difference(found, expected) <= 1e-5 * max(1, expected.abs().max().item())


@pytest.mark.parametrize('name', DENSE)
def test_maps_are_contiguous(name):
    """mmcv's compiled operators read a map so, whatever its strides: others give other features of
    a region.
    """
    model = DENSE[name](out_indices=tuple(range(4))).eval()
    images = torch.randn(IMAGES)
    sizes = [(40, 70), (33, 51)]
    with torch.no_grad():
        calls = (
            model(images),
            model(images.to(memory_format=torch.channels_last)),
            model(images, valid_sizes=sizes),
        )
    assert all(feature_map.is_contiguous() for outputs in calls for feature_map in outputs)


def test_no_argument_is_mutated():
    arguments = dict(
        arch=dict(COLUMN),
        out_indices=[-1],
        global_blocks=[-1],
        position=[dict(type='Learned'), dict(type='PEG', after_blocks=[3, 0])],
        img_size=[64, 48],
        window_size=2,
    )
    before = repr(arguments)
    column(**arguments)(torch.randn(IMAGES))
    assert repr(arguments) == before
    multi_scale(arch={**COLUMN, 'depth': 2})
    assert DENSE_POSITION == dict(type='PEG', after_blocks='0-5', kernel_size=3)
    assert PAPER_POSITION == dict(type='PEG', after_blocks=(0,), kernel_size=3)


@pytest.mark.parametrize(
    ('build', 'tokens'),
    [
        (column, dict(with_cls_token=False)),
        (column, dict(with_cls_token=True)),
        (column, dict(with_cls_token=True, with_dist_token=True)),
        (pyramid, dict(with_cls_token=False)),
        (pyramid, dict(with_cls_token=True)),
    ],
)
def test_out_types_agree(build, tokens):
    images = torch.randn(2, 3, 70, 100)
    options = dict(out_indices=-1, final_norm=True, **tokens)
    state = randomise(build(**options)).state_dict()

    def output(out_type):
        model = build(out_type=out_type, **options).eval()
        model.load_state_dict(state)
        outputs = model(images)
        assert isinstance(outputs, tuple) and len(outputs) == 1
        assert model.out_channels == (48 if out_type == 'cls_and_avg' else 24,)
        return outputs[0]

    raw, prefix = output('raw'), sum(tokens.values())
    grid = (5, 7) if build is column else (3, 4)
    assert raw.shape == (2, prefix + grid[0] * grid[1], 24)
    assert max_difference(output('featmap'), raw[:, prefix:].mT.unflatten(2, grid)) < 1e-6
    assert max_difference(output('avg_featmap'), raw[:, prefix:].mean(1)) < 1e-6
    if prefix == 1:
        assert max_difference(output('cls_token'), raw[:, 0]) < 1e-6
    if prefix:
        feature_map, token = output('with_cls_token')
        assert max_difference(feature_map, output('featmap')) == 0
        assert max_difference(token, raw[:, 0]) < 1e-6
        both = torch.cat((raw[:, 0], raw[:, prefix:].mean(1)), dim=1)
        assert max_difference(output('cls_and_avg'), both) < 1e-6
    if prefix == 2:
        assert max_difference(torch.stack(output('cls_token'), dim=1), raw[:, :2]) < 1e-6


def test_the_final_norm_normalises_the_last_block_only():
    model = randomise(column(out_indices=(1, 3)))
    bare = column(out_indices=(1, 3), final_norm=False)
    bare.load_state_dict({k: v for k, v in model.state_dict().items() if not k.startswith('norm.')})
    images = torch.randn(IMAGES)
    first, last = model.eval()(images)
    bare_first, bare_last = bare.eval()(images)
    assert torch.equal(first, bare_first)
    assert (
        max_difference(model.norm(bare_last.permute(0, 2, 3, 1)).permute(0, 3, 1, 2), last) < 1e-6
    )


def test_a_dense_pyramid_has_no_final_norm_and_a_classifier_has():
    assert isinstance(pyramid().norm, torch.nn.Identity)
    assert isinstance(pyramid(out_type='avg_featmap').norm, torch.nn.LayerNorm)


def test_levels_are_made_as_documented():
    model = randomise(multi_scale(patch_size=8)).eval()
    images = torch.randn(2, 3, 41, 70)
    four, eight, sixteen, thirty_two = model(images)
    up = model.pyramid['0'][0]
    assert (up.kernel_size, up.stride) == ((2, 2), (2, 2))
    wanted = torch.nn.functional.conv_transpose2d(eight, up.weight, up.bias, stride=2)[
        :, :, :11, :18
    ]
    assert max_difference(four, wanted) < 1e-5
    for coarse, factor in ((sixteen, 2), (thirty_two, 4)):
        for y in range(coarse.shape[2]):
            for x in range(coarse.shape[3]):
                cell = eight[:, :, y * factor : (y + 1) * factor, x * factor : (x + 1) * factor]
                assert torch.equal(coarse[:, :, y, x], cell.amax((2, 3)))
