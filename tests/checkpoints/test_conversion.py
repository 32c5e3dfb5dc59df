"""State dicts of other packages: nothing missing, equal outputs, and the way back."""

import re
from functools import partial

import pytest
import torch
from peers import (
    CASES,
    HEAD,
    LEARNED,
    NATIVE,
    PVT_TABLE,
    assert_close,
    assert_equal_states,
    column,
    in_classifier,
    learned,
    load,
    maps,
    misfit,
    mmpretrain_vit,
    mmseg_pcpvt,
    timm_vit,
    tokens,
)
from tiny import COLUMN, PYRAMID, randomise

from cpvt_backbones import CPVT, PyramidCPVT
from cpvt_backbones.checkpoints import CheckpointError, export_state_dict

SIN_COS_PEG = [dict(type='SinCos'), dict(type='PEG')]


@pytest.mark.parametrize('name', CASES)
def test_weights_compute_what_they_compute_in_their_package(name, record_property):
    """Every key is loaded, renamed or dropped for a reason; the model may be fused; the peer takes
    its weights back.
    """
    case = CASES[name]
    pytest.importorskip(case.package)
    theirs, ours = case.theirs(), case.ours()
    state = case.names(theirs.state_dict())
    report = load(ours, state)
    renamed = {old for old, _ in report.renamed}
    kept = {key.removeprefix(report.prefix) for key in state.keys() - renamed - {*report.dropped}}
    assert kept <= set(report.loaded)
    assert bool(report.dropped) == bool(case.dropped)
    assert all(re.fullmatch(case.dropped, key) for key in report.dropped), report.dropped
    assert set(report.added) == case.added
    assert not any('resizes its position embedding' in note for note in report.notes)
    outputs = partial(case.outputs, theirs)
    for size in case.sizes:
        assert_close(ours, outputs, record_property, size, case.bound)
    assert_close(ours.fuse(), outputs, record_property, case.sizes[0])
    if case.to:
        back, _ = export_state_dict(ours.state_dict(), ours, to=case.to)
        wanted = {key: v for key, v in theirs.state_dict().items() if not re.match(HEAD, key)}
        assert_equal_states(back, wanted)


# -- what the report says
# --------------------------------------------------------------------------------------------------


def test_timm_vit_that_averages():
    pytest.importorskip('timm')
    report = load(learned(), timm_vit(global_pool='avg').state_dict())
    assert ('fc_norm.weight', 'norm.weight') in report.renamed
    assert any('averages tokens and normalises the mean' in note for note in report.notes)


@pytest.mark.parametrize('package', ['timm', 'mmpretrain'])
def test_distilled_deit(package, record_property):
    """Without its distillation token it is a ViT with the same blocks."""
    pytest.importorskip(package)
    if package == 'timm':
        theirs, plain = timm_vit('VisionTransformerDistilled'), timm_vit()
    else:
        theirs = mmpretrain_vit('DistilledVisionTransformer', out_type='raw')
        plain = mmpretrain_vit(out_type='raw')
    state = theirs.state_dict()
    ours = learned()
    report = load(ours, state)
    assert report.dropped['dist_token'] == 'the model has no distillation token'
    assert package == 'mmpretrain' or report.dropped['head_dist.weight'] == 'classifier head'
    left_out, *others = report.notes
    assert left_out == 'pos_embed.0: left out 1 of 18 entries, of tokens that the model lacks'
    assert len(others) == (package == 'mmpretrain')  # which resizes without a low-pass filter
    plain.load_state_dict({**state, 'pos_embed': ours.pos_embed.state_dict()['0']}, strict=False)
    outputs = tokens if package == 'timm' else maps
    assert_close(ours, partial(outputs, plain), record_property, NATIVE)


@pytest.mark.parametrize(
    ('name', 'names'),
    [
        ('mmpretrain', 'antialias=False'),
        ('mmseg', 'antialias=False'),
        ('mmdet, PVT', "interpolation='bilinear', antialias=False"),
    ],
)
def test_another_interpolation_of_the_table_is_noted(name, names):
    case = CASES[name]
    pytest.importorskip(case.package)
    ours = case.ours.func(**{**case.ours.keywords, 'position': LEARNED})
    report = load(ours, case.theirs().state_dict())
    start = f'the source resizes its position embedding with {names}, '
    assert any(note.startswith(start) for note in report.notes)


@pytest.mark.parametrize(
    ('name', 'size'),
    [
        ('vit-base-p16_a', (48, 112)),
        ('deit-small_b', (144, 32)),
        ('deit3-base-p16_c', (48, 112)),
        ('deit-tiny-distilled_d', (144, 32)),
    ],
)
def test_names_of_mmpretrain_resize_as_mmpretrain(name, size, tmp_path, record_property):
    pytest.importorskip('mmpretrain')
    kinds = dict(deit3='DeiT3', distilled='DistilledVisionTransformer')
    kind = next((kind for part, kind in kinds.items() if part in name), 'VisionTransformer')
    theirs = mmpretrain_vit(kind)
    if kind == 'DeiT3':  # which applies ln1 twice
        for layer in theirs.layers:
            layer.ln2.load_state_dict(layer.ln1.state_dict())
    torch.save(dict(state_dict=in_classifier(theirs.state_dict())), tmp_path / f'{name}.pth')
    ours = CPVT.from_pretrained(tmp_path / f'{name}.pth', arch=COLUMN, img_size=64)
    assert_close(ours, theirs, record_property, size)


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
    theirs = mmpretrain_vit(kind, **options)
    mine = {key: value for key, value in options.items() if key != 'layer_scale_init_value'}
    if 'Distilled' not in kind:
        mine['layer_scale_init'] = 1.0
    ours = column(**mine)()
    report = load(ours, dict(state_dict=in_classifier(theirs.state_dict())))
    assert any("mmpretrain's DeiT-III" in note for note in report.notes) == noted
    if noted:
        with torch.no_grad():
            for block in ours.blocks:
                block.norm2.load_state_dict(block.norm1.state_dict())
        assert_close(ours, theirs, record_property, (64, 80))


# -- this package's own
# ------------------------------------------------------------------------------------------------


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


def test_mmseg_has_no_final_norm():
    pytest.importorskip('mmseg')
    state = mmseg_pcpvt().state_dict()
    ours = PyramidCPVT(arch=PYRAMID, final_norm=True)
    message = (
        r'lacks 2 keys of the model: norm.weight, norm.bias; a model without .* final_norm=False;'
        ' allow_missing is for new parts only'
    )
    for options in ({}, dict(allow_missing='norm.*'), dict(allow_missing='*')):
        misfit(message, state, ours, **options)
    _, report = export_state_dict(ours.state_dict(), ours, to='mmseg')
    assert set(report.dropped) == {'norm.weight', 'norm.bias'}


@pytest.mark.parametrize(
    ('build', 'options', 'to', 'message'),
    [
        (CPVT, {}, 'timm', "timm's ViT has only a learned position embedding, .* has pos_block"),
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
        (CPVT, {}, 'mmseg', "CPVT can only be written with timm's names"),
        (PyramidCPVT, dict(position=PVT_TABLE), 'timm', 'Twins has one PEG .*pos_block.0.pr'),
        (PyramidCPVT, dict(with_cls_token=True), 'mmseg', 'differs in cls_token'),
    ],
)
def test_export_without_a_counterpart_is_refused(build, options, to, message):
    model = build(arch=COLUMN if build is CPVT else PYRAMID, **options)
    with pytest.raises(CheckpointError, match=message):
        export_state_dict(model.state_dict(), model, to=to)
    with pytest.raises(ValueError, match=r"one of \['cpvt', .*, 'timm'\], got 'keras'"):
        export_state_dict(model.state_dict(), model, to='keras')
