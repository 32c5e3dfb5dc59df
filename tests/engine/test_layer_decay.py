"""Layer-wise learning rates: what each parameter really gets, in a model of every toolbox."""

import pytest
import tiny
import torch
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, init_default_scope
from tiny import COLUMN, NEED_EVERY_KEY, POSITIONS, PYRAMID, column, multi_scale, pyramid
from torch import nn

from cpvt_backbones.engine.layer_decay import LayerDecayOptimWrapperConstructor

LR, WEIGHT_DECAY, RATE = 1e-3, 0.05, 0.5
PEG_AND_TABLE = [dict(type='Learned'), dict(type='PEG', after_blocks=(0,))]


def classifier(backbone, **kwargs):
    pytest.importorskip('mmpretrain')
    init_default_scope('mmpretrain')
    head = dict(type='DeiTClsHead', num_classes=2, in_channels=24)
    return MODELS.build({**dict(type='ImageClassifier', backbone=backbone, head=head), **kwargs})


def segmentor(backbone, in_channels):
    pytest.importorskip('mmseg')
    init_default_scope('mmseg')
    neck = dict(
        type='FPN', in_channels=list(in_channels), out_channels=8, num_outs=len(in_channels)
    )
    head = dict(type='FCNHead', in_channels=8, in_index=0, channels=8, num_convs=1, num_classes=2)
    head['norm_cfg'] = dict(type='GN', num_groups=2)
    return MODELS.build(dict(type='EncoderDecoder', backbone=backbone, neck=neck, decode_head=head))


BUILDERS = {
    'CPVT': lambda **kw: classifier(
        dict(
            type='CPVT', arch=COLUMN, img_size=64, with_dist_token=True, out_type='cls_token', **kw
        )
    ),
    'MultiScaleCPVT': lambda **kw: tiny.build(
        tiny.retinanet(dict(type='MultiScaleCPVT', arch=COLUMN, img_size=64, source='taps', **kw))
    ),
    'PyramidCPVT': lambda **kw: segmentor(
        dict(type='PyramidCPVT', arch=PYRAMID, img_size=64, with_cls_token=True, **kw),
        PYRAMID['embed_dims'],
    ),
}


def build(model, constructor='LayerDecayOptimWrapperConstructor', **paramwise_cfg):
    optimizer = dict(type='AdamW', lr=LR, weight_decay=WEIGHT_DECAY)
    cfg = dict(
        type='OptimWrapper',
        constructor=constructor,
        optimizer=optimizer,
        paramwise_cfg=paramwise_cfg,
    )
    return build_optim_wrapper(model, cfg).optimizer


def groups_by_name(model, optimizer):
    """The options that the optimizer holds for each parameter, found by identity."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found = [(names[id(p)], group) for group in optimizer.param_groups for p in group['params']]
    assert len(found) == len(dict(found)), 'a parameter is in two groups'
    return dict(found)


def layers_behind(kind, name):
    """Layers between a parameter and the end, told from its name alone.

    0 for what learns at the full rate.
    """
    if not name.startswith('backbone.'):
        return 0
    part, first, second, *_ = [*name.removeprefix('backbone.').split('.'), '', '']
    if part in ('norm', 'pyramid'):
        return 0
    if kind != 'PyramidCPVT':
        if part in ('blocks', 'pos_block'):  # the one PEG stands behind block 0
            return COLUMN['depth'] - int(first)
        return COLUMN['depth'] + 1
    depths = PYRAMID['depths']
    stage = 3 if part == 'cls_token' else int(first)
    if stage == 0 and part in ('patch_embeds', 'pos_embed'):
        return sum(depths) + 1
    return sum(depths[stage:]) - (int(second) if part == 'blocks' else 0)


@pytest.mark.parametrize('only', [True, False], ids=['alone', 'with_decay_rules'])
@pytest.mark.parametrize('kind', BUILDERS)
def test_rates_follow_the_depth(kind, only):
    """Also when the rate is all that paramwise_cfg has."""
    model = BUILDERS[kind](position=PEG_AND_TABLE)
    rules = {} if only else dict(norm_decay_mult=0.0)
    groups = groups_by_name(model, build(model, layer_decay_rate=RATE, **rules))
    assert groups.keys() == dict(model.named_parameters()).keys()
    for name, group in groups.items():
        depth, layers = model.backbone.get_layer_depth(name, 'backbone.')
        assert group['lr'] == pytest.approx(LR * RATE ** (layers - 1 - depth)), name
        assert name.startswith('backbone.') or group['lr'] == LR, name
        # And not because get_layer_depth says so: a layer is a block, the stem is the slowest.
        assert group['lr'] == pytest.approx(LR * RATE ** layers_behind(kind, name)), name
    assert min(group['lr'] for group in groups.values()) == pytest.approx(
        LR * RATE ** (model.backbone.num_layers - 1)
    )


@pytest.mark.parametrize('kind', BUILDERS)
@pytest.mark.parametrize('mult', [0.0, 0.5])
def test_weight_decay(kind, mult):
    """Tokens and position encodings have none; norms and biases have what the two factors say."""
    model = BUILDERS[kind](position=PEG_AND_TABLE)
    rules = dict(norm_decay_mult=mult, bias_decay_mult=mult)
    groups = groups_by_name(model, build(model, layer_decay_rate=RATE, **rules))
    spared = {f'backbone.{name}' for name in model.backbone.no_weight_decay()}
    assert spared and spared <= groups.keys()
    owners = {id(p): module for module in model.modules() for p in module.parameters(recurse=False)}
    seen = set()
    for name, parameter in model.named_parameters():
        decay = groups[name]['weight_decay']
        if name in spared:
            assert decay == 0, name
            seen.add('spared')
        elif isinstance(owners[id(parameter)], (nn.LayerNorm, nn.GroupNorm)):
            assert decay == pytest.approx(WEIGHT_DECAY * mult), name
            seen.add('norm')
        elif name.endswith('.bias'):
            assert decay == pytest.approx(WEIGHT_DECAY * mult), name
            seen.add('bias')
        else:
            assert decay == WEIGHT_DECAY, name
            seen.add('rest')
    assert seen == {'spared', 'norm', 'bias', 'rest'}


@pytest.mark.parametrize('kind', BUILDERS)
def test_custom_keys_multiply(kind):
    plain, keyed = BUILDERS[kind](), BUILDERS[kind]()
    keys = {'attn': dict(lr_mult=0.1), 'head': dict(lr_mult=10.0, decay_mult=0.5)}
    before = groups_by_name(plain, build(plain, layer_decay_rate=RATE))
    after = groups_by_name(keyed, build(keyed, layer_decay_rate=RATE, custom_keys=keys))
    assert before.keys() == after.keys()
    factors = set()
    for name in before:
        key = next((key for key in keys if key in name), None)
        factor = keys[key]['lr_mult'] if key else 1.0
        assert after[name]['lr'] == pytest.approx(before[name]['lr'] * factor), name
        if key == 'head':
            assert after[name]['weight_decay'] == pytest.approx(WEIGHT_DECAY * 0.5), name
        factors.add(factor)
    assert factors == {0.1, 1.0, 10.0}


def their_backbone(**kwargs):
    arch = dict(embed_dims=24, num_layers=3, num_heads=2, feedforward_channels=48)
    return dict(type='mmpretrain.VisionTransformer', arch=arch, img_size=32, patch_size=8, **kwargs)


def test_the_same_rates_as_mmpretrain_gives():
    pytest.importorskip('mmpretrain')
    head = dict(type='LinearClsHead', num_classes=2, in_channels=24)
    ours, theirs = classifier(their_backbone(), head=head), classifier(their_backbone(), head=head)
    rules = dict(layer_decay_rate=RATE, norm_decay_mult=0.0, bias_decay_mult=0.0)
    got = groups_by_name(ours, build(ours, **rules))
    want = groups_by_name(
        theirs, build(theirs, constructor='LearningRateDecayOptimWrapperConstructor', **rules)
    )
    assert got.keys() == want.keys()
    assert len({group['lr'] for group in want.values()}) == 5
    for name in want:
        assert got[name]['lr'] == pytest.approx(want[name]['lr']), name
        assert got[name]['weight_decay'] == pytest.approx(want[name]['weight_decay']), name


def test_a_backbone_without_depths():
    pytest.importorskip('mmseg')
    pytest.importorskip('mmpretrain')
    for model in (
        segmentor(dict(type='ResNet', depth=18), (64, 128, 256, 512)),
        classifier(
            dict(type='LeNet5', num_classes=-1),
            head=dict(type='LinearClsHead', num_classes=2, in_channels=84),
        ),
    ):
        with pytest.raises(
            ValueError, match=r'paramwise_cfg\.layer_decay_rate: \w+ has no backbone with get_layer'
        ):
            build(model, layer_decay_rate=RATE)


@pytest.mark.parametrize('value', ['missing', None, 0, 1.5, -0.5, True, 'a', float('nan')])
def test_wrong_rates(value):
    options = {} if value == 'missing' else dict(layer_decay_rate=value)
    shown = repr(None if value == 'missing' else value)
    with pytest.raises(
        ValueError, match=rf'layer_decay_rate must be a number in \(0, 1\], got {shown}$'
    ):
        LayerDecayOptimWrapperConstructor(dict(optimizer=dict(type='AdamW', lr=LR)), options)


# -- mmengine's own constructor with the keys of this package's schedule
# -----------------------------------------------

TRUNKS = {
    'CPVT': lambda **kw: column(with_dist_token=True, **kw),
    'MultiScaleCPVT': multi_scale,
    'PyramidCPVT': lambda **kw: pyramid(with_cls_token=True, **kw),
}


@pytest.mark.parametrize('position', POSITIONS)
@pytest.mark.parametrize('kind', TRUNKS)
def test_the_schedule_spares_tokens_and_positions(kind, position, pytestconfig):
    """A step without gradients moves exactly the parameters that decay."""
    file = pytestconfig.rootpath / 'configs/_base_/schedules/adamw.py'
    schedule = Config.fromfile(file).optim_wrapper
    options = {}
    if kind == 'PyramidCPVT' and position in NEED_EVERY_KEY:
        options = dict(arch={**PYRAMID, 'sr_ratios': (1, 1, 1, 1)})
    model = nn.Sequential()
    model.backbone = TRUNKS[kind](position=POSITIONS[position], **options)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    wrapper = build_optim_wrapper(model, schedule)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    wrapper.optimizer.step()
    still = {name for name, value in model.named_parameters() if torch.equal(value, before[name])}
    backbone = model.backbone
    spared = {f'backbone.{name}' for name in backbone.no_weight_decay()}
    held = {id(backbone.cls_token), id(backbone.dist_token)}
    for encoding in backbone.position_encodings:
        held |= {id(parameter) for parameter in encoding.parameters()}
    assert spared == {name for name, value in model.named_parameters() if id(value) in held}
    assert spared <= still
    decaying = {name for name in before if name.endswith(('qkv.weight', 'fc1.weight'))}
    assert decaying and not decaying & still
