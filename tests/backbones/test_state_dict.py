"""Weights going out and coming in, layer depths, weight decay exemptions."""

import pytest
import torch
from tiny import (
    COLUMN,
    DENSE,
    POSITIONS,
    assert_equal_outputs,
    column,
    multi_scale,
    pyramid,
    randomise,
)

from cpvt_backbones import CPVT, MultiScaleCPVT


@pytest.mark.parametrize('name', DENSE)
def test_round_trip(name, tmp_path):
    model, twin = randomise(DENSE[name]()).eval(), DENSE[name]().eval()
    torch.save(model.state_dict(), tmp_path / 'weights.pth')
    twin.load_state_dict(torch.load(tmp_path / 'weights.pth', weights_only=True))
    images = torch.randn(1, 3, 50, 70)
    assert_equal_outputs(model(images), twin(images))


@pytest.mark.parametrize('position', POSITIONS)
def test_round_trip_with_any_position(position, tmp_path):
    model, twin = (randomise(column(position=POSITIONS[position])).eval() for _ in range(2))
    torch.save(model.state_dict(), tmp_path / 'weights.pth')
    twin.load_state_dict(torch.load(tmp_path / 'weights.pth', weights_only=True))
    images = torch.randn(1, 3, 50, 70)
    assert_equal_outputs(model(images), twin(images))


def test_pretrained_init_cfg(tmp_path):
    model = randomise(column()).eval()
    torch.save(dict(state_dict=model.state_dict()), tmp_path / 'weights.pth')
    twin = column(
        init_cfg=dict(type='Pretrained', checkpoint=str(tmp_path / 'weights.pth')), frozen_stages=2
    )
    twin.init_weights()
    images = torch.randn(1, 3, 50, 70)
    assert_equal_outputs(model(images), twin.eval()(images))


@pytest.mark.parametrize('source', ['last', 'taps'])
@pytest.mark.parametrize('cls', [True, False])
def test_a_column_s_checkpoint_loads_into_the_multi_scale_model(source, cls):
    shared = dict(
        arch=COLUMN, with_cls_token=cls, position=dict(type='PEG', after_blocks=(0, 1, 2, 3))
    )
    trunk = randomise(CPVT(**shared)).eval()
    model = MultiScaleCPVT(source=source, **shared).eval()
    keys = model.load_state_dict(trunk.state_dict(), strict=False)
    assert not keys.unexpected_keys
    assert keys.missing_keys and all(key.startswith('pyramid.') for key in keys.missing_keys)
    images = torch.randn(1, 3, 70, 50)
    if source == 'last':  # stride 16 is the trunk's map as it is
        assert torch.equal(model(images)[2], trunk(images)[0])


def test_keys_of_a_column_are_timm_s():
    timm = pytest.importorskip('timm')
    theirs = timm.create_model('deit_tiny_patch16_224', num_classes=0).state_dict()
    with torch.device('meta'):
        ours = CPVT(arch='tiny', position=dict(type='PEG')).state_dict()
    extra = set(ours) - set(theirs)
    assert set(theirs) - set(ours) == {'pos_embed'}
    assert extra == {'pos_block.0.proj.0.weight', 'pos_block.0.proj.0.bias'}
    assert all(ours[key].shape == theirs[key].shape for key in set(ours) & set(theirs))


# -- layer depth
# --------------------------------------------------------------------------------------------------


def depth_of_use(model):
    """Order in which modules run, as a rank for each parameter's owner."""
    order = {}

    def note(name):
        order.setdefault(name, len(order))

    for name, module in model.named_modules():
        if not list(module.children()):
            module.register_forward_pre_hook(lambda *_, name=name: note(name))
    model(torch.randn(1, 3, 64, 64))
    return order


@pytest.mark.parametrize('name', DENSE)
def test_layer_depth_is_complete_and_follows_the_order_of_use(name):
    model = DENSE[name]()
    depths = {}
    for key, _ in model.named_parameters():
        depth, count = model.get_layer_depth('backbone.' + key, 'backbone.')
        assert (depth, count) == model.get_layer_depth(key)
        assert isinstance(depth, int) and 0 <= depth < count == model.num_layers
        depths[key] = depth
    blocks = sum(1 for m in model.modules() if type(m).__name__ == 'Block')
    assert model.num_layers == blocks + 2
    assert set(range(blocks + 1)) <= set(depths.values())
    order = depth_of_use(model)
    used = [
        (order[key.rpartition('.')[0]], depth)
        for key, depth in depths.items()
        if key.rpartition('.')[0] in order and not key.startswith('pyramid.')
    ]
    ranks = [depth for _, depth in sorted(used)]
    assert ranks == sorted(ranks)
    assert model.get_layer_depth('head.fc.weight', 'backbone.') == (
        model.num_layers - 1,
        model.num_layers,
    )


@pytest.mark.parametrize('build', [column, multi_scale])
def test_layer_depth_of_a_column(build):
    model = build(
        position=[
            dict(type='Learned'),
            dict(type='PEG', after_blocks=(-1, 2)),
            dict(type='Relative'),
        ],
        with_cls_token=True,
    )
    wanted = {
        'patch_embed.proj.weight': 0,
        'cls_token': 0,
        'pos_embed.0': 0,
        'pos_block.0.proj.0.weight': 0,
        'blocks.0.norm1.weight': 1,
        'blocks.3.mlp.fc1.bias': 4,
        'pos_block.1.proj.0.bias': 3,
        'rel_pos.0.row': 1,
        'rel_pos.3.column': 4,
        'norm.weight': 5,
    }
    names = dict(model.named_parameters())
    for name, depth in wanted.items():
        assert name in names
        assert model.get_layer_depth(f'backbone.{name}', 'backbone.') == (depth, 6)


def test_layer_depth_of_a_pyramid():
    model = pyramid(
        position=[dict(type='Learned'), dict(type='PEG')], with_cls_token=True, final_norm=True
    )
    wanted = {
        'patch_embeds.0.proj.weight': 0,
        'pos_embed.0': 0,
        'blocks.0.0.norm1.weight': 1,
        'pos_block.0.proj.0.bias': 1,
        'blocks.0.1.norm1.weight': 2,
        'patch_embeds.1.norm.weight': 3,
        'pos_embed.1': 3,
        'blocks.1.0.attn.sr.weight': 3,
        'blocks.3.1.attn.q.bias': 7,
        'cls_token': 6,
        'norm.weight': 8,
    }
    names = dict(model.named_parameters())
    for name, depth in wanted.items():
        assert name in names
        assert model.get_layer_depth(name) == (depth, 9)


def test_mmpretrain_layer_wise_rates():
    pytest.importorskip('mmpretrain')
    from mmengine.optim import OptimWrapper  # noqa: F401
    from mmpretrain.engine import LearningRateDecayOptimWrapperConstructor

    class Classifier(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.backbone = column(position=dict(type='PEG', after_blocks=(0, 2)))
            self.head = torch.nn.Linear(24, 2)

        def get_layer_depth(self, name):
            return self.backbone.get_layer_depth(name, 'backbone.')

    constructor = LearningRateDecayOptimWrapperConstructor(
        dict(optimizer=dict(type='AdamW', lr=1.0, weight_decay=0.1)), dict(layer_decay_rate=0.5)
    )
    model = Classifier()
    rates = {}
    optimizer = constructor(model).optimizer
    by_id = {id(p): name for name, p in model.named_parameters()}
    for group in optimizer.param_groups:
        for p in group['params']:
            rates[by_id[id(p)]] = group['lr']
    assert rates['head.weight'] == rates['backbone.norm.weight'] == 1.0
    assert rates['backbone.blocks.3.attn.qkv.weight'] == 0.5
    assert (
        rates['backbone.blocks.0.attn.qkv.weight']
        == rates['backbone.pos_block.0.proj.0.weight']
        == 0.5**4
    )
    assert rates['backbone.cls_token'] == rates['backbone.patch_embed.proj.weight'] == 0.5**5


# -- weight decay
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('position', POSITIONS)
@pytest.mark.parametrize('build', [column, pyramid])
def test_no_weight_decay_names_every_position_parameter(build, position):
    if build is pyramid and position == 'relative':
        return
    model, names = build(position=POSITIONS[position]), None
    names = model.no_weight_decay()
    parameters = dict(model.named_parameters())
    assert names <= set(parameters)
    trunk = build(position=None)
    assert names == set(parameters) - {name for name, _ in trunk.named_parameters()} | (
        {'cls_token'} & set(parameters)
    )


def test_weight_decay_spares_peg_in_the_optimizer():
    from mmengine.optim import DefaultOptimWrapperConstructor

    model = torch.nn.ModuleDict(
        {'backbone': column(position=[dict(type='Learned'), dict(type='PEG')])}
    )
    keys = {name: dict(decay_mult=0.0) for name in model['backbone'].no_weight_decay()}
    optimizer = DefaultOptimWrapperConstructor(
        dict(optimizer=dict(type='AdamW', lr=1.0, weight_decay=0.1)), dict(custom_keys=keys)
    )(model).optimizer
    by_id = {id(p): name for name, p in model.named_parameters()}
    spared = {
        by_id[id(p)] for g in optimizer.param_groups if g['weight_decay'] == 0 for p in g['params']
    }
    assert spared == {
        'backbone.cls_token',
        'backbone.pos_embed.0',
        'backbone.pos_block.0.proj.0.weight',
        'backbone.pos_block.0.proj.0.bias',
    }
