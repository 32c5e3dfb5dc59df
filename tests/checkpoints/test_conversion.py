"""State dicts of other packages: nothing missing, equal outputs, and the way back."""

import pytest
import torch
from tiny import COLUMN, PYRAMID, max_difference, randomise

from cpvt_backbones import CPVT, PyramidCPVT, convert_state_dict
from cpvt_backbones.checkpoints import CheckpointError, export_state_dict

TABLES = dict(type='Learned', interpolation='bilinear', antialias=False)
SIN_COS_PEG = [dict(type='SinCos'), dict(type='PEG')]
LEARNED = dict(type='Learned')


def scaled(model):
    """Random weights of a scale that keeps activations near 1 through any depth, norms and biases
    included.
    """
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.5 * parameter[0].numel() ** -0.5)
            else:
                parameter.normal_(0, 0.1).add_(name.endswith('weight'))
    model.eval()  # mm backbones return nothing from it
    return model


def load(ours, state, **kwargs):
    """Convert and load strictly; the hooks of the model change no value."""
    state_dict, report = convert_state_dict(state, ours, **kwargs)
    assert not report.missing and not report.mismatched and not report.refused, str(report)
    before = {key: value.clone() for key, value in state_dict.items()}
    ours.load_state_dict(state_dict, strict=True)
    assert all(torch.equal(ours.state_dict()[key], value) for key, value in before.items())
    return report


def misfit(message, state, model, **options):
    """The model must refuse the weights."""
    with pytest.raises(CheckpointError, match=message):
        convert_state_dict(state, model, **options)


def assert_close(ours, theirs, record, size=(64, 96)):
    images = torch.randn(1, 3, *size)
    with torch.inference_mode():
        outputs, wanted = ours.eval()(images), theirs(images)
    assert len(outputs) == len(wanted)
    for got, want in zip(outputs, wanted, strict=True):
        assert got.shape == want.shape
        difference = max_difference(got, want)
        record('difference', f'{difference:.1e}')
        assert difference <= 1e-5 * max(1, want.abs().max().item())


def lists(arch):
    """Convert an arch to lists, as the mm packages take it."""
    return {key: [int(number) for number in value] for key, value in arch.items()}


def timm_twins(arch):
    from timm.models.twins import Twins

    return scaled(Twins(**arch, num_classes=10))


def timm_vit(cls='VisionTransformer', **kwargs):
    from timm.models import deit, vision_transformer

    arguments = dict(
        img_size=64,
        embed_dim=24,
        depth=4,
        num_heads=2,
        mlp_ratio=2.0,
        num_classes=10,
        dynamic_img_size=True,
    )
    return scaled(
        getattr(deit if 'Distilled' in cls else vision_transformer, cls)(**{**arguments, **kwargs})
    )


def mmseg_pcpvt(arch, **kwargs):
    from mmseg.models.backbones import PCPVT

    return scaled(PCPVT(**{**lists(arch), 'qkv_bias': True, **kwargs}))


def mmpretrain_pcpvt(arch, **kwargs):
    from mmpretrain.models.backbones import PCPVT

    full = {**lists(arch), 'patch_sizes': [4, 2, 2, 2], 'strides': [4, 2, 2, 2]}
    return scaled(PCPVT(arch=full, qkv_bias=True, **kwargs))


def mmpretrain_vit(cls='VisionTransformer', **kwargs):
    from mmpretrain.models import backbones

    arch = dict(embed_dims=24, num_layers=4, num_heads=2, feedforward_channels=48)
    return scaled(getattr(backbones, cls)(**{'arch': arch, 'img_size': 64, **kwargs}))


def mmdet_pvt(**kwargs):
    from mmdet.models.backbones import PyramidVisionTransformer

    arguments = dict(
        pretrain_img_size=64,
        embed_dims=8,
        num_layers=[2, 1, 2, 2],
        num_heads=[1, 2, 2, 3],
        mlp_ratios=[2] * 4,
        sr_ratios=[4, 2, 2, 1],
    )
    return scaled(PyramidVisionTransformer(**{**arguments, **kwargs}))


# mmdet: widths are 8 times the heads
PVT_ARCH = {**PYRAMID, 'embed_dims': (8, 16, 16, 24), 'num_heads': (1, 2, 2, 3)}


# -- Twins-PCPVT
# --------------------------------------------------------------------------------------------------


def assert_equal_states(left, right):
    assert left.keys() == right.keys()
    assert all(torch.equal(left[key], value) for key, value in right.items())


HEAD = {'head.weight', 'head.bias'}


def test_timm_twins_and_back(record_property):
    pytest.importorskip('timm')
    theirs = timm_twins(PYRAMID)
    ours = PyramidCPVT(arch=PYRAMID, final_norm=True)
    report = load(ours, theirs.state_dict())
    assert report.dropped == dict.fromkeys(HEAD, 'classifier head')
    assert not report.renamed and not report.added
    peer = lambda x: theirs.forward_intermediates(x, norm=True, intermediates_only=True)  # noqa: E731
    assert_close(ours, peer, record_property)
    back, _ = export_state_dict(ours.state_dict(), ours, to='timm')
    assert set(theirs.load_state_dict(back, strict=False).missing_keys) == HEAD


def test_mmseg_pcpvt_and_back(record_property):
    pytest.importorskip('mmseg')
    theirs = mmseg_pcpvt(PYRAMID)
    ours = PyramidCPVT(arch=PYRAMID, norm_eps=1e-5)
    load(ours, theirs.state_dict())
    assert_close(ours, theirs, record_property)
    back, _ = export_state_dict(ours.state_dict(), ours, to='mmseg')
    assert_equal_states(back, theirs.state_dict())


def test_mmseg_has_no_final_norm():
    pytest.importorskip('mmseg')
    state = mmseg_pcpvt(PYRAMID).state_dict()
    ours = PyramidCPVT(arch=PYRAMID, final_norm=True)
    message = (
        r'lacks 2 keys of the model: norm.weight, norm.bias; a model without .* final_norm=False;'
        ' allow_missing is for new parts only'
    )
    for options in ({}, dict(allow_missing='norm.*'), dict(allow_missing='*')):
        misfit(message, state, ours, **options)
    _, report = convert_state_dict(state, PyramidCPVT(arch=PYRAMID, final_norm=False))
    assert not report.missing
    _, report = export_state_dict(ours.state_dict(), ours, to='mmseg')
    assert set(report.dropped) == {'norm.weight', 'norm.bias'}
    other = mmseg_pcpvt(PYRAMID, norm_after_stage=True).state_dict()
    misfit(r'wrong architecture: norm_list.0.weight: it normalises what goes', other, ours)


def test_mmpretrain_pcpvt_and_back(record_property):
    pytest.importorskip('mmpretrain')
    normalised = dict(norm_after_stage=[False, False, False, True], out_indices=(0, 1, 2, 3))
    theirs = mmpretrain_pcpvt(PYRAMID, **normalised)
    classifier = {f'backbone.{key}': value for key, value in theirs.state_dict().items()}
    head = {'head.fc.weight': torch.zeros(10, 24), 'head.fc.bias': torch.zeros(10)}
    ours = PyramidCPVT(arch=PYRAMID, final_norm=True, norm_eps=1e-5)
    report = load(ours, dict(state_dict=classifier | head))
    assert set(report.dropped) == set(head)
    assert ('backbone.norm_after_stage3.bias', 'norm.bias') in report.renamed
    assert_close(ours, theirs, record_property)
    back, _ = export_state_dict(ours.state_dict(), ours, to='mmpretrain')
    assert_equal_states(back, theirs.state_dict())


@pytest.mark.parametrize(
    ('build', 'pattern'),
    [
        *((PyramidCPVT, f'pos_block.{{}}.{part}') for part in ('proj.0', 'proj', 'pos', 'pos.0')),
        *((CPVT, f'pos_block.{part}') for part in ('proj', 'pos', 'proj.0')),
    ],
)
def test_every_name_of_a_peg(build, pattern):
    arch = PYRAMID if build is PyramidCPVT else COLUMN
    ours, twin = randomise(build(arch=arch)), build(arch=arch)
    state = ours.state_dict()
    for key in [key for key in state if key.startswith('pos_block')]:
        stage, leaf = key.split('.')[1], key.rpartition('.')[2]
        state[f'{pattern.format(stage)}.{leaf}'] = state.pop(key)
    assert not load(twin, state).added
    assert_equal_states(twin.state_dict(), ours.state_dict())


# -- PVT
# --------------------------------------------------------------------------------------------------


def pvt_authors_names(state, extra_entries):
    """mmdet's PVT to its authors' names, the inverse of mmdet's own converter, with a class token
    in stage 4.
    """
    renamed = {
        'cls_token': torch.zeros(1, 1, 24),
        'norm.weight': torch.ones(24),
        'norm.bias': torch.zeros(24),
    }
    for key, value in state.items():
        _, stage, part, *rest = key.split('.')
        number = int(stage) + 1
        leaf = '.'.join(rest)
        if part == '0':
            renamed[f'patch_embed{number}.{leaf}'.replace('projection', 'proj')] = value
        elif rest == ['0', 'pos_embed']:
            entries = torch.ones(1, extra_entries if number == 4 else 0, value.shape[2])
            renamed[f'pos_embed{number}'] = torch.cat((entries, value), dim=1)
        else:
            block, leaf = f'block{number}.{int(rest[0]) - 1}.', '.'.join(rest[1:])
            if 'in_proj' in leaf:
                kind, dim = leaf.rsplit('_', 1)[1], value.shape[0] // 3
                renamed[f'{block}attn.q.{kind}'], renamed[f'{block}attn.kv.{kind}'] = (
                    value[:dim],
                    value[dim:],
                )
                continue
            leaf = leaf.replace('attn.attn.out_proj', 'attn.proj')
            leaf = leaf.replace('ffn.layers.0', 'mlp.fc1').replace('ffn.layers.3', 'mlp.fc2')
            renamed[block + leaf] = (
                value.flatten(1) if value.dim() == 4 and 'mlp' in leaf else value
            )
    return renamed


@pytest.mark.parametrize('names', ['mmdet', 'authors', 'authors_detection'])
def test_pvt(names, record_property):
    pytest.importorskip('mmdet')
    theirs = mmdet_pvt(pretrain_img_size=32)
    # As in a stage of one token: 1 entry could be a class token's or a patch's.
    state = theirs.state_dict()
    if names != 'mmdet':
        state = pvt_authors_names(state, extra_entries=int(names == 'authors'))
        if names == 'authors_detection':
            del state['cls_token']
    ours = PyramidCPVT(arch=PVT_ARCH, img_size=32, position=TABLES, embed_norm_eps=1e-6)
    report = load(ours, state)
    assert ('cls_token' in report.dropped) == (names == 'authors')
    assert_close(ours, theirs, record_property)


def test_pvt_v2_is_refused():
    pytest.importorskip('mmdet')
    from mmdet.models.backbones import PyramidVisionTransformerV2

    state = PyramidVisionTransformerV2(embed_dims=8, num_layers=[1, 1, 1, 1]).state_dict()
    misfit(
        r'wrong architecture: layers', state, PyramidCPVT(arch={**PVT_ARCH, 'depths': (1, 1, 1, 1)})
    )


# -- ViT and DeiT
# --------------------------------------------------------------------------------------------------


def test_timm_vit_and_back(record_property):
    pytest.importorskip('timm')
    theirs = timm_vit()
    ours = CPVT(arch=COLUMN, img_size=64, position=LEARNED, out_type='raw')
    report = load(ours, dict(model=theirs.state_dict()))
    assert set(report.dropped) == HEAD
    assert_close(ours, lambda x: [theirs.forward_features(x)], record_property)
    back, _ = export_state_dict(ours.state_dict(), ours, to='timm')
    assert_equal_states(back | {key: theirs.state_dict()[key] for key in HEAD}, theirs.state_dict())


@pytest.mark.parametrize(
    ('theirs', 'mine', 'without', 'message'),
    [
        (
            dict(init_values=0.5),
            dict(layer_scale_init=1.0),
            {},
            r'blocks.0.ls1.gamma: layer scale: build .* layer_scale_init=1.0',
        ),
        (
            dict(qkv_bias=False),
            dict(qkv_bias=False),
            {},
            'lacks 4 keys of the model: blocks.0.attn.qkv.bias',
        ),
        (
            {},
            {},
            dict(qkv_bias=False),
            'blocks.0.attn.qkv.bias: build the model with qkv_bias=True',
        ),
    ],
    ids=['layer_scale', 'no_qkv_bias', 'qkv_bias'],
)
def test_options_of_timms_vit_that_the_model_lacks(theirs, mine, without, message, record_property):
    pytest.importorskip('timm')
    theirs = timm_vit(**theirs)
    kwargs = dict(arch=COLUMN, img_size=64, position=LEARNED, out_type='raw')
    ours = CPVT(**kwargs, **mine)
    load(ours, theirs.state_dict())
    assert_close(ours, lambda x: [theirs.forward_features(x)], record_property)
    misfit(message, theirs.state_dict(), CPVT(**kwargs, **without))


@pytest.mark.parametrize('package', ['timm', 'mmpretrain'])
def test_distilled_deit(package, record_property):
    """Without its distillation token it is a ViT with the same blocks."""
    pytest.importorskip(package)
    if package == 'timm':
        theirs, plain = timm_vit('VisionTransformerDistilled'), timm_vit()
    else:
        theirs, plain = mmpretrain_vit('DistilledVisionTransformer'), mmpretrain_vit(out_type='raw')
    state = theirs.state_dict()
    ours = CPVT(arch=COLUMN, img_size=64, position=LEARNED, out_type='raw')
    report = load(ours, state)
    assert report.dropped['dist_token'] == 'the model has no distillation token'
    assert package == 'mmpretrain' or report.dropped['head_dist.weight'] == 'classifier head'
    left_out, *others = report.notes
    assert left_out == 'pos_embed.0: left out 1 of 18 entries, of tokens that the model has not'
    assert len(others) == (package == 'mmpretrain')  # which resizes without a low-pass filter
    plain.load_state_dict({**state, 'pos_embed': ours.pos_embed.state_dict()['0']}, strict=False)
    forward = (lambda x: [plain.forward_features(x)]) if package == 'timm' else plain
    assert_close(ours, forward, record_property, size=(64, 64))


def test_timm_vit_that_averages():
    pytest.importorskip('timm')
    state = timm_vit(global_pool='avg').state_dict()
    ours = CPVT(arch=COLUMN, img_size=64, position=LEARNED)
    report = load(ours, state)
    assert ('fc_norm.weight', 'norm.weight') in report.renamed
    assert any('averages tokens and normalises the mean' in note for note in report.notes)


def test_mmpretrain_vit_with_layer_scale(record_property):
    pytest.importorskip('mmpretrain')
    theirs = mmpretrain_vit(out_type='raw', layer_scale_init_value=0.5)
    ours = CPVT(arch=COLUMN, img_size=64, position=LEARNED, layer_scale_init=1.0, out_type='raw')
    load(ours, theirs.state_dict())
    assert_close(ours, theirs, record_property, size=(64, 64))


def test_mmseg_vit_without_bias_of_patches(record_property):
    pytest.importorskip('mmseg')
    theirs = mmseg_vit(patch_bias=False)
    ours = CPVT(arch=COLUMN, img_size=64, position=LEARNED, norm_eps=1e-5)
    assert set(load(ours, theirs.state_dict()).added) == {'patch_embed.proj.bias'}
    assert_close(ours, theirs, record_property, size=(64, 64))


def mmseg_vit(**kwargs):
    from mmseg.models.backbones import VisionTransformer

    sizes = dict(img_size=64, embed_dims=24, num_layers=4, num_heads=2, mlp_ratio=2)
    return scaled(VisionTransformer(**{**sizes, 'patch_bias': True, 'final_norm': True, **kwargs}))


@pytest.mark.parametrize('size', [(64, 64), (48, 112), (144, 32), (16, 48)])
@pytest.mark.parametrize('package', ['mmpretrain', 'mmseg', 'mmdet'])
def test_tables_are_resized_as_the_source_does(package, size, record_property):
    """Without a low-pass filter; the log says where the model does otherwise."""
    pytest.importorskip(package)
    cls, options, names = CPVT, dict(arch=COLUMN, img_size=64), 'antialias=False'
    if package == 'mmpretrain':
        theirs, table = mmpretrain_vit(out_type='featmap'), dict(type='Learned', antialias=False)
    elif package == 'mmseg':
        theirs, table = mmseg_vit(), dict(type='Learned', antialias=False)
        options['norm_eps'] = 1e-5
    else:
        theirs, table, cls = mmdet_pvt(), TABLES, PyramidCPVT
        options |= dict(arch=PVT_ARCH, embed_norm_eps=1e-6)
        names = "interpolation='bilinear', antialias=False"
        size = tuple(32 * (side // 16) for side in size)
    ours = cls(position=table, **options)
    report = load(ours, theirs.state_dict())
    assert not any('resizes its table' in note for note in report.notes)
    assert_close(ours, theirs, record_property, size=size)
    report = load(cls(position=LEARNED, **options), theirs.state_dict())
    assert any(
        note.startswith(f'the source resizes its table with {names}, ') for note in report.notes
    )


@pytest.mark.parametrize(
    'name', ['vit-base-p16_a', 'deit-small_b', 'deit3-base-p16_c', 'deit-tiny-distilled_d']
)
@pytest.mark.parametrize('size', [(48, 112), (144, 32)])
def test_names_of_mmpretrain_resize_as_mmpretrain(name, size, tmp_path, record_property):
    pytest.importorskip('mmpretrain')
    kinds = dict(deit3='DeiT3', distilled='DistilledVisionTransformer')
    kind = next((kind for part, kind in kinds.items() if part in name), 'VisionTransformer')
    theirs = mmpretrain_vit(kind, out_type='featmap')
    if kind == 'DeiT3':  # which applies ln1 twice
        for layer in theirs.layers:
            layer.ln2.load_state_dict(layer.ln1.state_dict())
    state = {f'backbone.{key}': value for key, value in theirs.state_dict().items()}
    torch.save(dict(state_dict=state), tmp_path / f'{name}.pth')
    ours = CPVT.from_pretrained(tmp_path / f'{name}.pth', arch=COLUMN, img_size=64)
    assert_close(ours, theirs, record_property, size=size)


@pytest.mark.parametrize(
    ('kind', 'options', 'noted'),
    [
        ('DeiT3', {}, True),
        ('DeiT3', dict(img_size=(96, 96), patch_size=8), True),
        ('VisionTransformer', dict(layer_scale_init_value=0.5), False),
        ('DistilledVisionTransformer', {}, False),
    ],
)
def test_mmpretrains_deit3_is_noted(kind, options, noted, record_property):
    """Its blocks apply ``ln1`` twice.

    With ``norm2`` as a copy of ``norm1`` ours compute the same.
    """
    pytest.importorskip('mmpretrain')
    theirs = mmpretrain_vit(kind, out_type='featmap', **options)
    mine = dict(arch=COLUMN, img_size=64, position=dict(type='Learned', antialias=False))
    mine |= {key: value for key, value in options.items() if key != 'layer_scale_init_value'}
    if 'Distilled' not in kind:
        mine['layer_scale_init'] = 1.0
    ours = CPVT(**mine)
    state = {f'backbone.{key}': value for key, value in theirs.state_dict().items()}
    report = load(ours, dict(state_dict=state))
    assert any("mmpretrain's DeiT-III" in note for note in report.notes) == noted
    if noted:
        with torch.no_grad():
            for block in ours.blocks:
                block.norm2.load_state_dict(block.norm1.state_dict())
        assert_close(ours, theirs, record_property, size=(64, 80))


# -- this package's own
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('build', 'options', 'to', 'message'),
    [
        (CPVT, {}, 'timm', "timm's ViT has a learned table and nothing else, .* has pos_block"),
        (CPVT, dict(position=None), 'timm', 'has no position encoding'),
        (CPVT, dict(position=[LEARNED, dict(type='RoPE', mode='axial')]), 'timm', 'has .* RoPE'),
        (CPVT, dict(position=[LEARNED, dict(type='RoPE', mode='mixed')]), 'timm', 'has .* RoPE'),
        (CPVT, dict(position=[LEARNED, dict(type='SinCos')]), 'timm', 'has .* SinCos'),
        (PyramidCPVT, dict(position=SIN_COS_PEG), 'mmseg', 'has the encoding SinCos'),
        (PyramidCPVT, dict(position=SIN_COS_PEG), 'mmpretrain', 'has the encoding SinCos'),
        (CPVT, dict(position=LEARNED, window_size=2), 'timm', 'has window_size=2'),
        (CPVT, dict(position=LEARNED, activation='quick_gelu'), 'timm', "has activation='quick"),
        (CPVT, dict(position=LEARNED, activation='swiglu'), 'timm', "has activation='swiglu'"),
        (CPVT, dict(position=LEARNED, num_registers=2), 'timm', 'has num_registers=2'),
        (CPVT, {}, 'mmseg', "CPVT goes to timm's names alone"),
        (PyramidCPVT, dict(position=TABLES), 'timm', 'Twins-PCPVT has one PEG .*pos_block.0.proj'),
        (PyramidCPVT, dict(with_cls_token=True), 'mmseg', 'differs in cls_token'),
    ],
)
def test_export_without_a_counterpart_is_refused(build, options, to, message):
    model = build(arch=COLUMN if build is CPVT else PYRAMID, **options)
    with pytest.raises(CheckpointError, match=message):
        export_state_dict(model.state_dict(), model, to=to)
    with pytest.raises(ValueError, match=r"one of \['cpvt', .*, 'timm'\], got 'keras'"):
        export_state_dict(model.state_dict(), model, to='keras')
