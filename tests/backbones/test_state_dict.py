"""Layer depths, and exemptions from weight decay."""

import pytest
import torch
from mmengine.optim import DefaultOptimWrapperConstructor
from tiny import DENSE, NEED_EVERY_KEY, POSITIONS, column, multi_scale, pyramid


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
    model, depths = DENSE[name](), {}
    for key, _ in model.named_parameters():
        depths[key], count = model.get_layer_depth(key)
        assert model.get_layer_depth('backbone.' + key, 'backbone.') == (depths[key], count)
        assert 0 <= depths[key] < count == model.num_layers
    blocks = sum(type(module).__name__ == 'Block' for module in model.modules())
    assert model.num_layers == blocks + 2
    assert set(range(blocks + 1)) <= set(depths.values())
    order, used = depth_of_use(model), []
    for key, depth in depths.items():
        owner = key.rpartition('.')[0]
        if owner in order and not key.startswith('pyramid.'):
            used.append((order[owner], depth))
    ranks = [depth for _, depth in sorted(used)]
    assert ranks == sorted(ranks)
    head = model.get_layer_depth('head.fc.weight', 'backbone.')
    assert head == (model.num_layers - 1, model.num_layers)


PEG_TWICE = dict(type='PEG', after_blocks=(-1, 2))
EVERY_KIND = [
    dict(type='Learned'),
    PEG_TWICE,
    dict(type='Relative'),
    dict(type='DecomposedRelative'),
]
COLUMN_DEPTHS = {
    'patch_embed.proj.weight': 0,
    'cls_token': 0,
    'pos_embed.0': 0,
    'pos_block.0.proj.0.weight': 0,
    'blocks.0.norm1.weight': 1,
    'blocks.3.mlp.fc1.bias': 4,
    'pos_block.1.proj.0.bias': 3,
    'rel_pos.0.row': 1,
    'rel_pos.3.column': 4,
    'rel_pos_hw.3.h': 4,
    'norm.weight': 5,
}
PYRAMID_DEPTHS = {
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


@pytest.mark.parametrize(
    ('build', 'position', 'depths', 'count'),
    [
        (column, EVERY_KIND, COLUMN_DEPTHS, 6),
        (multi_scale, EVERY_KIND, COLUMN_DEPTHS, 6),
        (pyramid, [dict(type='Learned'), dict(type='PEG')], PYRAMID_DEPTHS, 9),
    ],
)
def test_layer_depth(build, position, depths, count):
    model = build(position=position, with_cls_token=True, final_norm=True)
    assert depths.keys() <= dict(model.named_parameters()).keys()
    found = {name: model.get_layer_depth(name) for name in depths}
    assert found == {name: (depth, count) for name, depth in depths.items()}


class Classifier(torch.nn.Module):
    def __init__(self, position):
        super().__init__()
        self.backbone = column(position=position)
        self.head = torch.nn.Linear(24, 2)

    def get_layer_depth(self, name):
        return self.backbone.get_layer_depth(name, 'backbone.')


def options_by_name(model, optimizer, option):
    """An option of the optimizer for each parameter."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = optimizer.param_groups
    return {names[id(p)]: group[option] for group in groups for p in group['params']}


ADAMW = dict(optimizer=dict(type='AdamW', lr=1.0, weight_decay=0.1))


def test_mmpretrain_layer_wise_rates():
    engine = pytest.importorskip('mmpretrain.engine')
    model = Classifier(dict(type='PEG', after_blocks=(0, 2)))
    constructor = engine.LearningRateDecayOptimWrapperConstructor
    optimizer = constructor(ADAMW, dict(layer_decay_rate=0.5))(model).optimizer
    rates = options_by_name(model, optimizer, 'lr')
    assert rates['head.weight'] == rates['backbone.norm.weight'] == 1.0
    assert rates['backbone.blocks.3.attn.qkv.weight'] == 0.5
    assert rates['backbone.blocks.0.attn.qkv.weight'] == 0.5**4
    assert rates['backbone.pos_block.0.proj.0.weight'] == 0.5**4
    assert rates['backbone.cls_token'] == rates['backbone.patch_embed.proj.weight'] == 0.5**5


# -- weight decay
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('position', POSITIONS)
@pytest.mark.parametrize('build', [column, pyramid])
def test_no_weight_decay_names_every_position_parameter(build, position):
    if build is pyramid and position in NEED_EVERY_KEY:
        return
    model = build(position=POSITIONS[position])
    parameters = dict(model.named_parameters()).keys()
    trunk = dict(build(position=None).named_parameters()).keys()
    assert model.no_weight_decay() == parameters - trunk | {'cls_token'} & parameters


def test_weight_decay_spares_peg_in_the_optimizer():
    model = Classifier([dict(type='Learned'), dict(type='PEG')])
    keys = {name: dict(decay_mult=0.0) for name in model.backbone.no_weight_decay()}
    optimizer = DefaultOptimWrapperConstructor(ADAMW, dict(custom_keys=keys))(model).optimizer
    decays = options_by_name(model, optimizer, 'weight_decay')
    peg = {f'backbone.pos_block.0.proj.0.{leaf}' for leaf in ('weight', 'bias')}
    spared = {name for name, decay in decays.items() if decay == 0}
    assert spared == {'backbone.cls_token', 'backbone.pos_embed.0'} | peg
