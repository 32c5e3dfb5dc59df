"""Weights of ViTDet and SAM in files of their authors' names, and what they do not show.

`test_conversion.py` compares the outputs with mmpretrain, `tests/backbones/test_public_weights.py`
with timm, and `test_transformers.py` with transformers.
"""

import pickle
import re

import pytest
import torch
from peers import misfit
from tiny import randomise

from cpvt_backbones import CPVT, MultiScaleCPVT, convert_state_dict
from cpvt_backbones.checkpoints import CheckpointError, check_loaded, public_backbone

HEADS, WINDOW, GLOBAL = 4, 3, (1, 3)
ARCH = dict(embed_dims=24, depth=4, num_heads=HEADS, mlp_ratio=2.0)
VITDET = dict(
    arch=ARCH,
    patch_size=8,
    img_size=32,
    position=[dict(type='Learned', antialias=False), dict(type='DecomposedRelative', grid=8)],
    with_cls_token=False,
    final_norm=False,
    window_size=WINDOW,
    global_blocks=GLOBAL,
    mask_window_padding=False,
)


def model(**options):
    torch.manual_seed(0)
    return randomise(CPVT(**{**VITDET, **options})).eval()


def detectron2(state):
    """The names of a detector of detectron2, whose table has an entry for a class token."""
    theirs = {'proposal_generator.w': torch.ones(1), 'backbone.simfp_2.0.weight': torch.ones(1)}
    for key, value in state.items():
        key = re.sub(r'^rel_pos_hw\.(\d+)\.([hw])$', r'blocks.\1.attn.rel_pos_\2', key)
        if key == 'pos_embed.0':
            key, value = 'pos_embed', torch.cat((value[:, :1], value), dim=1)
        if key != 'pos_embed.grid_0':
            theirs[f'backbone.net.{key}'] = value
    return dict(model=theirs)


def segment_anything(state):
    """The names of a whole SAM, whose table has rows and columns."""
    theirs = {
        'prompt_encoder.pe_layer.w': torch.ones(1),
        'mask_decoder.transformer.layers.0.mlp.lin1.weight': torch.ones(1),
        'image_encoder.neck.0.weight': torch.ones(1),
    }
    for key, value in state.items():
        key = re.sub(r'^rel_pos_hw\.(\d+)\.([hw])$', r'blocks.\1.attn.rel_pos_\2', key)
        if key == 'pos_embed.0':
            key, value = 'pos_embed', value.unflatten(1, (4, 4))
        if key != 'pos_embed.grid_0':
            theirs[f'image_encoder.{key.replace(".mlp.fc", ".mlp.lin")}'] = value
    return theirs


@pytest.mark.parametrize('protocol', [3, 4])  # the defaults of Python 3.0 to 3.7, and 3.8 to 3.13
def test_a_pkl_of_detectron2_gives_the_model(protocol, tmp_path):
    trunk = model()
    content = detectron2(trunk.state_dict())
    content['model'] = {key: value.numpy() for key, value in content['model'].items()}
    content |= dict(__author__='Detectron2', matching_heuristics=True)
    (tmp_path / 'model_final_0123ab.pkl').write_bytes(pickle.dumps(content, protocol))
    state = CPVT.from_pretrained(tmp_path / 'model_final_0123ab.pkl').state_dict()
    assert all(torch.equal(state[key], value) for key, value in trunk.state_dict().items())


@pytest.mark.parametrize('names', [detectron2, segment_anything])
@pytest.mark.parametrize('cls', [CPVT, MultiScaleCPVT])
def test_a_file_of_any_name_gives_the_model(names, cls, tmp_path):
    arguments = {**VITDET, 'arch': {**ARCH, 'num_heads': 3, 'embed_dims': 30}}
    trunk = randomise(CPVT(**arguments)).eval()
    torch.save(names(trunk.state_dict()), tmp_path / 'mine.pth')
    found = cls.from_pretrained(tmp_path / 'mine.pth')
    assert found.window_size == WINDOW and tuple(found.global_blocks) == GLOBAL
    state = found.state_dict()
    assert all(torch.equal(state[key], value) for key, value in trunk.state_dict().items())


def test_weights_of_this_package_do_not_show_whether_padding_was_masked(tmp_path):
    trunk = randomise(CPVT(**{**VITDET, 'mask_window_padding': True})).eval()
    torch.save(trunk.state_dict(), tmp_path / 'mine.pth')
    with pytest.raises(ValueError, match='pass mask_window_padding: False as in ViTDet and SAM'):
        CPVT.from_pretrained(tmp_path / 'mine.pth')
    options = dict(mask_window_padding=True, position=VITDET['position'])
    found = CPVT.from_pretrained(tmp_path / 'mine.pth', **options).eval()
    images = torch.randn(1, 3, 40, 88)
    assert torch.equal(found(images)[0], trunk(images)[0])


def test_windows_as_large_as_the_grid_are_asked_for(tmp_path):
    options = {**VITDET, 'position': dict(type='DecomposedRelative', grid=WINDOW)}
    trunk = randomise(CPVT(**options)).eval()
    torch.save(detectron2(trunk.state_dict()), tmp_path / 'mine.pth')
    with pytest.raises(ValueError, match='pass window_size: None, or 3 beside global_blocks'):
        CPVT.from_pretrained(tmp_path / 'mine.pth')
    given = dict(window_size=WINDOW, global_blocks=GLOBAL)
    found = CPVT.from_pretrained(tmp_path / 'mine.pth', **given).eval()
    images = torch.randn(1, 3, 40, 88)
    assert torch.equal(found(images)[0], trunk(images)[0])


def test_an_oblong_grid_has_no_windows_of_its_shape(tmp_path):
    position = dict(type='DecomposedRelative', grid=(2, 5))
    options = {**VITDET, 'position': position, 'window_size': None, 'global_blocks': ()}
    trunk = randomise(CPVT(**options)).eval()
    torch.save(trunk.state_dict(), tmp_path / 'mine.pth')
    found = CPVT.from_pretrained(tmp_path / 'mine.pth').eval()
    images = torch.randn(1, 3, 40, 88)
    assert torch.equal(found(images)[0], trunk(images)[0])


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        (dict(position=dict(type='Learned')), r"rel_pos_h: .* dict\(type='DecomposedRelative'\)"),
        (dict(window_size=4), 'rel_pos_h: the table is for a side of 3 tokens, that .* for 4'),
        (dict(global_blocks=(1,)), r'blocks\.3\..*: the table is for a side of 8 tokens, .* for 3'),
        (
            dict(position=[dict(type='Learned'), dict(type='DecomposedRelative')]),
            'for a side of 8 tokens, that of the model for 4',
        ),
    ],
)
def test_a_model_that_computes_something_else_is_refused(options, message):
    misfit(message, detectron2(model().state_dict()), CPVT(**{**VITDET, **options}))


def test_convolutional_blocks_are_refused_by_name():
    state = detectron2(model().state_dict())
    state['model']['backbone.net.blocks.0.residual.conv1.weight'] = torch.ones(1)
    misfit('residual.conv1.weight: a convolutional block after the MLP', state, CPVT(**VITDET))


def test_blocks_that_no_output_needs_and_masked_padding():
    ours = CPVT(**{**VITDET, 'mask_window_padding': True}, out_indices=1)
    _, report = convert_state_dict(detectron2(model().state_dict()), ours)
    assert not report.missing
    assert 'of a block' in report.dropped['backbone.net.blocks.3.attn.rel_pos_w']
    assert any('mask_window_padding=False' in note for note in report.notes)


@pytest.mark.parametrize(
    ('theirs', 'mine'),
    [
        (dict(type='DecomposedRelative', grid=8), dict(type='DecomposedRelative', grid=7)),
        (dict(type='Relative', clip=2), dict(type='Relative', clip=3)),
    ],
)
def test_mmengine_loads_no_tables_of_another_size(theirs, mine):
    """It would leave them random."""
    options = {**VITDET, 'window_size': None, 'global_blocks': ()}
    weights = CPVT(**{**options, 'position': theirs}).state_dict()
    with pytest.raises(CheckpointError, match='other shapes of rel_pos'):
        check_loaded(dict(state_dict=weights), CPVT(**{**options, 'position': mine}), 'a.pth')


@pytest.mark.parametrize(
    ('name', 'depth', 'eps'),
    [
        ('timm://samvit_huge_patch16.sa1b', 32, 1e-5),
        ('mmpretrain://vit-large-p16_sam-pre_3rdparty_sa1b-1024px', 24, 1e-6),
    ],
)
def test_public_names(name, depth, eps):
    built = public_backbone(name)
    del built['type']
    with torch.device('meta'):
        found = CPVT(**built)
    assert (found.depth, found.norm_eps) == (depth, eps)
    assert found.rel_pos_hw.get_submodule('0')['h'].shape[0] == 27
    assert found.rel_pos_hw.get_submodule(f'{depth - 1}')['w'].shape[0] == 127
