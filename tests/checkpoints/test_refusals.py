"""Weights that would compute something else in a model are refused, by the key and with advice."""

from functools import partial

import pytest
import torch
from peers import (
    biases_of_beit,
    clip_names,
    learned,
    load,
    misfit,
    mmseg_pcpvt,
    timm_clip,
    timm_swiglu,
    timm_vit,
)
from tiny import COLUMN, PYRAMID

from cpvt_backbones import CPVT, PyramidCPVT, convert_state_dict
from cpvt_backbones.checkpoints import CheckpointError, Reason

PEG = dict(type='PEG')
PEGS = dict(type='PEG', after_blocks=(0, 1, 2, 3))
NO_BIAS = dict(type='PEG', bias=False)
CLIP = dict(pre_norm=True, norm_eps=1e-5, activation='quick_gelu')
pyramid = partial(PyramidCPVT, arch=PYRAMID)


def own(build=learned, **arguments):
    """Weights of a model of this package."""
    return lambda: build(**arguments).state_dict()


def with_part(key, shape):
    return lambda: learned().state_dict() | {key: torch.ones(shape)}


def of(theirs, names=dict, **more):
    """Weights of a model of another package."""

    def state():
        pytest.importorskip(name.partition('_')[0])
        return names(theirs().state_dict()) | more

    name = theirs.func.__name__ if isinstance(theirs, partial) else theirs.__name__
    return state


def timm(**arguments):
    return of(partial(timm_vit, **arguments))


def pvt_v2():
    backbones = pytest.importorskip('mmdet.models.backbones')
    return backbones.PyramidVisionTransformerV2(embed_dims=8, num_layers=[1] * 4).state_dict()


def one_bias():
    state = of(timm_vit, biases_of_beit)()
    del state['blocks.0.attn.q_bias']
    return state


def peg_of_a_fifth_stage():
    state = pyramid().state_dict()
    return {key.replace('pos_block.3.', 'pos_block.4.'): value for key, value in state.items()}


model = partial(partial, learned)  # a builder of a column with these arguments
OTHER_PEGS = 'the model has other PEGs'
# Weights, model, and the message.
MISFITS = {
    # No weights, or others.
    'nothing': (dict, learned, 'the checkpoint is empty'),
    'nothing inside': (lambda: dict(state_dict={}), learned, 'the checkpoint is empty'),
    'a number': (lambda: dict(epoch=3), learned, r'has no weights: no tensors, .*; it has epoch'),
    'a list': (lambda: [torch.ones(1)], learned, 'must be a dict of weights, got a list'),
    'two keys': (
        with_part('pos_embed', (1, 17, 24)),
        learned,
        'two keys for pos_embed.0: pos_embed.0 and pos_embed',
    ),
    # Another architecture.
    'pyramid': (
        own(pyramid),
        learned,
        r'wrong architecture: the checkpoint is of a hierarchical ViT \(Twins',
    ),
    'PVTv2': (
        pvt_v2,
        partial(PyramidCPVT, arch={**PYRAMID, 'depths': (1, 1, 1, 1)}),
        'wrong architecture: layers',
    ),
    'width': (
        own(arch={**COLUMN, 'embed_dims': 32}),
        learned,
        r'shape mismatch: cls_token is \(1, 1, 32\) in .* \(1, 1, 24\) in the .*\d+ more keys',
    ),
    'grey patches': (
        with_part('patch_embed.proj.weight', (24, 1, 8, 8)),
        learned,
        r'shape mismatch: patch_embed.proj.weight is \(24, 1, 8, 8\) .*, \(24, 3, 16, 16\)',
    ),
    'depth': (
        own(arch={**COLUMN, 'depth': 5}),
        learned,
        r'the checkpoint \(ViT.*\) has 5 blocks, CPVT 4; choose the arch that fits',
    ),
    'depths': (
        own(PyramidCPVT, arch={**PYRAMID, 'depths': (2, 1, 5, 2)}),
        pyramid,
        r'the checkpoint \(.*\) has 2, 1, 5, 2 blocks, PyramidCPVT 2, 1, 2, 2',
    ),
    'fewer blocks': (own(arch={**COLUMN, 'depth': 3}), learned, r'lacks 12 keys .* blocks.3.norm1'),
    'registers': (timm(reg_tokens=4), model(num_registers=3), r'mismatch: reg_token is \(1, 4, 24'),
    # Options of a trunk.
    'layer scale': (timm(init_values=0.5), learned, r'ls1.gamma: .*with layer_scale_init=1.0'),
    'no qkv bias': (timm(qkv_bias=False), learned, r'lacks 4 keys .*: blocks.0.attn.qkv.bias'),
    'qkv bias': (timm(), model(qkv_bias=False), 'attn.qkv.bias: build the model with qkv_bias='),
    'a bias of values alone': (one_bias, learned, r'attn\.v_bias: a part of a block'),
    'norm of queries': (
        with_part('blocks.0.attn.q_norm.weight', 12),
        learned,
        'wrong architecture: blocks.0.attn.q_norm.weight: it normalises queries and keys',
    ),
    'SwiGLU': (of(timm_swiglu), learned, r'mlp\.fc1_g\.weight: a part of a block'),
    'CLIP': (
        of(timm_clip),
        learned,
        r'wrong architecture: .*build a CPVT with pre_norm=True',
    ),
    'no first norm': (timm(), model(**CLIP), r'lacks 2 keys of the model: norm_pre\.weight'),
    'Perception Encoder of Meta': (
        of(timm_clip, clip_names, **{'visual.attn_pool.probe': torch.ones(1, 1, 24)}),
        model(**CLIP),
        r'visual\.attn_pool\.probe: .* those of Perception Encoder',
    ),
    'norms between stages': (
        of(partial(mmseg_pcpvt, norm_after_stage=True)),
        partial(pyramid, final_norm=True),
        'wrong architecture: norm_list.0.weight: it normalises what goes',
    ),
    # PEGs.
    'PEG without padding': (
        own(position=None),
        model(position=dict(type='PEG', padding='none')),
        'lacks 2 keys of the model: pos_block.0.proj.0.weight',
    ),
    'fewer PEGs': (own(position=PEG), model(position=PEGS), r'lacks 6 keys .*: pos_block.1.proj.0'),
    'more PEGs': (
        own(position=PEGS),
        model(position=PEG),
        f'pos_block.1.proj.0.weight: {OTHER_PEGS}.* 5 more keys',
    ),
    'more layers of a PEG': (
        own(position={**NO_BIAS, 'num_layers': 2}),
        model(position=NO_BIAS),
        f'pos_block.0.proj.*: {OTHER_PEGS}',
    ),
    'bias of a PEG': (own(position=PEG), model(position=NO_BIAS), f'proj.0.bias: {OTHER_PEGS}'),
    'PEG without a number': (
        with_part('pos_block.scale', 2),
        model(position=PEG),
        r'lacks 2 keys of the model: pos_block\.0\.proj',
    ),
    'PEG of no stage': (peg_of_a_fifth_stage, pyramid, OTHER_PEGS),
    # Anything else.
    'a part of a block': (
        with_part('blocks.0.adapter.weight', 12),
        learned,
        'architecture: blocks.0.adapter.weight: a part of a block that this package does not know',
    ),
    **{
        key: (with_part(key, 2), learned, f'wrong architecture: {key}: ')
        for key in (
            'adapter.weight',
            'bias_table',
            'norm_out.weight',
            'rel_pos.table',
            'rope.weight',
        )
    },
}


@pytest.mark.parametrize('name', MISFITS)
def test_misfits_are_refused(name):
    """In one line, and no parameter of the model is touched."""
    weights, build, message = MISFITS[name]
    state, model = weights(), build()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(CheckpointError, match=message) as raised:
        convert_state_dict(state, model)
    assert '\n' not in str(raised.value)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


@pytest.mark.parametrize(
    ('key', 'reason'),
    {
        'head.weight': Reason.HEAD,
        'attn_pool.q.bias': Reason.POOLING,
        'decoder_blocks.0.attn.qkv.bias': Reason.DECODER,
        'mask_token': Reason.PRETRAINING,
        'rope_embed.periods': Reason.COMPUTED,
        'storage_tokens': Reason.NO_REGISTERS,
    }.items(),
)
def test_parts_that_no_output_needs_are_dropped(key, reason):
    assert convert_state_dict(with_part(key, 2)(), learned())[1].dropped[key] == reason


def test_the_pooling_of_coca_beside_the_names_of_clip_loads():
    """Perception Encoder has another."""
    state = of(timm_clip, clip_names, **{'visual.attn_pool.query': torch.ones(1, 24)})()
    load(learned(**CLIP), state)


@pytest.mark.parametrize('name', ['resnet18', 'levit_128'])
def test_an_unrelated_checkpoint(name):
    timm = pytest.importorskip('timm')
    with torch.device('meta'):
        state = timm.create_model(name).state_dict()
    misfit(r'none of those recognised: its keys are .* and \d+ more; recogn', state, learned())


@pytest.mark.parametrize(
    'build', [lambda: torch.nn.Linear(2, 2), lambda: torch.nn.ModuleDict({'backbone': learned()})]
)
def test_a_model_that_is_no_backbone(build):
    with pytest.raises(
        TypeError, match=r'model must be a CPVT, MultiScaleCPVT or PyramidCPVT .* its backbone'
    ):
        convert_state_dict(learned().state_dict(), build())


# -- allow_missing
# --------------------------------------------------------------------------------------------------


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


NEW = (
    *('cls_token', 'dist_token', 'reg_token', 'blocks.0.ls1.gamma', 'pos_embed.0'),
    *('pos_block.0.proj.0.weight', 'rope.freqs.0', 'blocks.1.adapter.down.weight'),
    'lora_gate.weight',
)


@pytest.mark.parametrize('key', NEW)
def test_allow_missing_covers_new_parts(key):
    position = [dict(type='Learned'), {**PEGS, 'after_blocks': (0, 1)}]
    position.append(dict(type='RoPE', mode='mixed'))
    tokens = dict(with_dist_token=True, num_registers=2)
    model = CPVT(arch=COLUMN, img_size=64, position=position, layer_scale_init=0.1, **tokens)
    model.blocks[1].adapter = torch.nn.ModuleDict(dict(down=torch.nn.Linear(24, 2)))
    model.lora_gate = torch.nn.Linear(24, 2)
    state = model.state_dict()
    del state[key]
    misfit(f'lacks 1 keys of the model: {key}; .*allow_missing names those', state, model)
    assert key in convert_state_dict(state, model, allow_missing=key)[1].missing
