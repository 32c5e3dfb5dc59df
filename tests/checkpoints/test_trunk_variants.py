"""Register tokens, biases on queries and values alone, SwiGLU: timm's and Meta's names, equal
outputs.
"""

from functools import partial

import pytest
import torch
from test_conversion import LEARNED, assert_close, load, misfit, timm_vit
from tiny import COLUMN

from cpvt_backbones import CPVT, convert_state_dict
from cpvt_backbones.checkpoints import CheckpointError

pytest.importorskip('timm')


def learned(**kwargs):
    return CPVT(arch=COLUMN, img_size=64, position=LEARNED, out_type='raw', **kwargs)


@pytest.mark.parametrize('in_table', [True, False])
def test_register_tokens(in_table, record_property):
    """The table of timm's model has entries for the class token and the registers, or for
    neither.
    """
    theirs = timm_vit(reg_tokens=4, no_embed_class=not in_table)
    ours = learned(num_registers=4)
    report = load(ours, theirs.state_dict())
    assert set(report.dropped) == {'head.weight', 'head.bias'}
    assert_close(ours, lambda x: [theirs.forward_features(x)], record_property)
    meta = {
        key.replace('reg_token', 'storage_tokens'): value
        for key, value in theirs.state_dict().items()
    }
    assert ('storage_tokens', 'reg_token') in load(learned(num_registers=4), meta).renamed
    misfit(
        r'shape mismatch: reg_token is \(1, 4, 24\) in the checkpoint',
        theirs.state_dict(),
        learned(num_registers=3),
    )
    report = convert_state_dict(theirs.state_dict(), learned())[1]
    assert report.dropped['reg_token'] == 'the model has no register tokens'


def official_dinov2(theirs):
    """State dict of timm's DINOv2 with registers in Meta's names: the table has the class token's
    entry.
    """
    state = dict(theirs.state_dict())
    entry = torch.randn(1, 1, 24) * 0.1
    state['register_tokens'] = state.pop('reg_token')
    state['cls_token'] = state['cls_token'] - entry
    state['pos_embed'] = torch.cat((entry, state['pos_embed']), dim=1)
    state['mask_token'] = torch.zeros(1, 24)
    return state


def test_official_dinov2_with_registers(record_property):
    theirs = timm_vit(reg_tokens=4, no_embed_class=True, init_values=0.1)
    ours = learned(num_registers=4, layer_scale_init=1.0)
    report = load(ours, official_dinov2(theirs))
    assert ('register_tokens', 'reg_token') in report.renamed and not report.missing
    assert_close(ours, lambda x: [theirs.forward_features(x)], record_property)


@pytest.mark.parametrize(
    ('key', 'argument'),
    [
        ('norm.weight', 'final_norm=False'),
        ('norm_pre.bias', 'pre_norm=False'),
        ('blocks.2.attn.qkv.bias', 'qkv_bias=False'),
        ('blocks.1.norm1.weight', ''),
        ('blocks.0.attn.proj.weight', ''),
        ('patch_embed.proj.weight', ''),
        ('blocks.3.mlp.fc1_x.weight', ''),
    ],
)
def test_allow_missing_does_not_cover_the_trunk(key, argument):
    model = learned(num_registers=2, pre_norm=True, activation='swiglu', layer_scale_init=0.1)
    state = model.state_dict()
    del state[key]
    for patterns in ('*', key, ['norm*', 'blocks.*', 'patch_embed.*']):
        with pytest.raises(CheckpointError, match='allow_missing is for new parts only') as caught:
            convert_state_dict(state, model, allow_missing=patterns)
        assert argument in str(caught.value)


@pytest.mark.parametrize(
    'key',
    [
        'cls_token',
        'dist_token',
        'reg_token',
        'blocks.0.ls1.gamma',
        'pos_embed.0',
        'pos_block.0.proj.0.weight',
    ]
    + ['rope.freqs.0', 'blocks.1.adapter.down.weight', 'lora_gate.weight'],
)
def test_allow_missing_covers_new_parts(key):
    position = [LEARNED, dict(type='PEG', after_blocks=(0, 1)), dict(type='RoPE', mode='mixed')]
    tokens = dict(with_dist_token=True, num_registers=2)
    model = CPVT(arch=COLUMN, img_size=64, position=position, layer_scale_init=0.1, **tokens)
    model.blocks[1].adapter = torch.nn.ModuleDict(dict(down=torch.nn.Linear(24, 2)))
    model.lora_gate = torch.nn.Linear(24, 2)
    state = model.state_dict()
    del state[key]
    misfit(f'lacks 1 keys of the model: {key}; .*allow_missing names those', state, model)
    assert key in convert_state_dict(state, model, allow_missing=key)[1].missing


def test_registers_without_a_class_token(record_property):
    theirs = timm_vit(
        reg_tokens=1, no_embed_class=True, class_token=False, global_pool='avg', fc_norm=False
    )
    ours = learned(num_registers=1, with_cls_token=False)
    load(ours, theirs.state_dict())
    assert_close(ours, lambda x: [theirs.forward_features(x)], record_property)


def test_a_table_loads_directly_beside_registers():
    """By torch's own ``load_state_dict``: the table is resized, the entries of prefix tokens are
    not.
    """
    source, other = learned(num_registers=2), learned(num_registers=2)
    state = source.state_dict()
    state['pos_embed'] = torch.cat((state['pos_embed.0'][:, :3], torch.randn(1, 36, 24)), dim=1)
    del state['pos_embed.0'], state['pos_embed.grid_0']
    other.load_state_dict(state)
    assert torch.equal(
        other.pos_embed.get_parameter('0')[:, :3], source.pos_embed.get_parameter('0')[:, :3]
    )


@pytest.mark.parametrize('grid', [4, 6])
@pytest.mark.parametrize('directly', [True, False])
@pytest.mark.parametrize('registers', [4, 0])
def test_entries_of_a_table_follow_their_tokens(registers, directly, grid):
    """Of class, distillation and register tokens to a model without the first two, as the peer that
    never had them.
    """
    source = learned(num_registers=4, with_dist_token=True)
    ours = learned(num_registers=registers, with_cls_token=False)
    state = source.state_dict()
    state['pos_embed.0'] = torch.randn(1, 6 + grid * grid, 24)
    state['pos_embed.grid_0'] = torch.tensor((grid, grid))
    wanted = {key: value for key, value in state.items() if key in ours.state_dict()}
    wanted['pos_embed.0'] = state['pos_embed.0'][:, 6 - registers :]
    peer = learned(num_registers=registers, with_cls_token=False)
    peer.load_state_dict(wanted)
    if directly:
        ours.load_state_dict(state, strict=False)
    else:
        assert any('of tokens that the model has not' in note for note in load(ours, state).notes)
    assert all(value.equal(peer.state_dict()[name]) for name, value in ours.state_dict().items())


def without_key_bias(model):
    with torch.no_grad():
        for block in model.blocks:
            block.attn.qkv.bias[24:48] = 0
    return model


@pytest.mark.parametrize('names', ['timm', 'Meta'])
def test_biases_of_queries_and_values_alone(names, record_property):
    theirs = without_key_bias(timm_vit())
    state = dict(theirs.state_dict())
    for index in range(4):
        stem = f'blocks.{index}.attn'
        if names == 'timm':
            query, _, state[f'{stem}.v_bias'] = state.pop(f'{stem}.qkv.bias').chunk(3)
            state[f'{stem}.q_bias'] = query
        else:
            state[f'{stem}.qkv.bias'] = state[f'{stem}.qkv.bias'] + torch.eye(3)[
                1
            ].repeat_interleave(24)
            state[f'{stem}.qkv.bias_mask'] = 1 - torch.eye(3)[1].repeat_interleave(24)
    if names == 'Meta':
        state['mask_token'], state['rope_embed.periods'] = torch.zeros(1, 24), torch.ones(16)
    ours = learned()
    report = load(ours, state)
    reported = {*report.loaded, *report.dropped, *(old for old, _ in report.renamed)}
    assert set(state) <= reported
    if names == 'timm':
        assert ('blocks.0.attn.v_bias', 'blocks.0.attn.qkv.bias') in report.renamed
    else:
        assert report.dropped['mask_token'] == 'of masked pretraining'
        assert report.dropped['rope_embed.periods'] == 'computed by the formula'
    assert_close(ours, lambda x: [theirs.forward_features(x)], record_property)
    state.pop('blocks.0.attn.q_bias', None)
    if names == 'timm':
        misfit(r'blocks\.0\.attn\.v_bias: a part of a block', state, learned())


@pytest.mark.parametrize('names', ['timm', 'Meta'])
def test_swiglu(names, record_property):
    from timm.layers import SwiGLU

    theirs = timm_vit(
        mlp_layer=lambda act_layer, **kwargs: SwiGLU(**kwargs),
        norm_layer=partial(torch.nn.LayerNorm, eps=1e-5),
    )
    state = theirs.state_dict()
    if names == 'Meta':
        for old, new in (('.fc1_g.', '.w1.'), ('.fc1_x.', '.w2.'), ('.fc2.', '.w3.')):
            state = {key.replace(old, new): value for key, value in state.items()}
    ours = learned(activation='swiglu', norm_eps=1e-5)
    load(ours, state)
    assert_close(ours, lambda x: [theirs.forward_features(x)], record_property)
    assert_close(ours.fuse(), lambda x: [theirs.forward_features(x)], record_property)
    misfit(r'mlp\.(w1|fc1_g)\.weight: a part of a block', state, learned())
