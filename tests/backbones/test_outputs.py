"""What comes out: indices, types, layouts."""

from collections import Counter

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
from torch.utils._python_dispatch import TorchDispatchMode

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


class CountCalls(TorchDispatchMode):
    """Counts torch's operations by name."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.counts[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def test_a_block_without_encoding_adds_two_branches_and_copies_nothing():
    """Each operation on the tokens is a kernel of its own on a GPU."""
    counts = []
    for depth in (2, 7):
        model = column(arch=dict(COLUMN, depth=depth), position=PAPER_POSITION).eval()
        with CountCalls() as calls, torch.no_grad():
            model(torch.randn(IMAGES))
        counts.append(calls.counts)
    more = counts[1] - counts[0]
    assert more['add'] == 2 * 5
    assert not more.keys() & {'cat', 'clone', 'copy_', 'repeat'}


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


def test_the_class_token_joins_the_pyramid_s_last_stage():
    model = randomise(pyramid(with_cls_token=True)).eval()
    plain = pyramid().eval()
    plain.load_state_dict({k: v for k, v in model.state_dict().items() if k != 'cls_token'})
    images = torch.randn(IMAGES)
    *earlier, last = model(images)
    *plain_earlier, plain_last = plain(images)
    assert_equal_outputs(earlier, plain_earlier)
    assert max_difference(last, plain_last) > 1e-4


def test_windows_and_global_blocks_are_where_they_were_asked_for():
    attentions = [block.attn for block in column(window_size=3, global_blocks=(-1, 0)).blocks]
    assert [getattr(attn, 'window_size', None) for attn in attentions] == [None, 3, 3, None]


def test_taps_are_the_ends_of_the_quarters_of_the_depth():
    arch = dict(embed_dims=8, depth=12, num_heads=2, mlp_ratio=1.0)
    model = randomise(multi_scale(arch=arch, source='taps')).eval()
    outputs = []
    for block in model.blocks:
        block.register_forward_hook(lambda *args: outputs.append(args[2]))
    images = torch.randn(IMAGES)
    last = model(images)[2]  # stride 16: the tap as it is
    assert max_difference(last.flatten(2).mT, outputs[8]) < 1e-6
    for depth in (1, 2, 3, 4, 5):
        assert len(multi_scale(arch={**arch, 'depth': depth}, source='taps')(images)) == 4


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
