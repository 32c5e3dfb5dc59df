"""Weights of ViTDet and SAM compute here what their authors' models compute, at every size.

The reference is written from the papers, with a bias for every pair of tokens. `test_conversion.py`
compares with timm and mmpretrain, `test_transformers.py` with transformers.
"""

import re

import pytest
import torch
from peers import misfit
from tiny import max_difference, randomise
from torch.nn import functional

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
# Of 8 x 8 tokens, for which the tables of global blocks are; of a multiple of the window in both
# sides; of one in neither; of less than a window.
SIZES = [(64, 64), (48, 72), (40, 88), (16, 8)]


def model(**options):
    torch.manual_seed(0)
    return randomise(CPVT(**{**VITDET, **options})).double().eval()


def linear(x, weights, name):
    return functional.linear(x, weights[f'{name}.weight'], weights[f'{name}.bias'])


def attention_in_pairs(x, weights, block):
    """Attention in each of the maps (B, h, w, C), with the bias of one pair after the other."""
    height, width = x.shape[1:3]
    qkv = linear(x.flatten(1, 2), weights, f'blocks.{block}.attn.qkv')
    q, k, v = qkv.unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
    logits = q @ k.mT / q.shape[-1] ** 0.5
    tables = []
    for axis, length in (('h', height), ('w', width)):
        table = weights[f'rel_pos_hw.{block}.{axis}'].T[None]
        table = functional.interpolate(table, 2 * length - 1, mode='linear')
        tables.append(table[0].T)
    for i in range(height * width):
        for j in range(height * width):
            dy, dx = i // width - j // width, i % width - j % width
            vector = tables[0][dy + height - 1] + tables[1][dx + width - 1]
            logits[:, :, i, j] += q[:, :, i] @ vector
    out = (logits.softmax(-1) @ v).transpose(1, 2).flatten(2)
    return linear(out, weights, f'blocks.{block}.attn.proj').unflatten(1, (height, width))


def attention_in_windows(x, weights, block):
    """Attention in each window of a map that is padded with zeros."""
    rows, columns = x.shape[1:3]
    x = functional.pad(x, (0, 0, 0, -columns % WINDOW, 0, -rows % WINDOW))
    out = torch.empty_like(x)
    for top in range(0, x.shape[1], WINDOW):
        for left in range(0, x.shape[2], WINDOW):
            place = (slice(None), slice(top, top + WINDOW), slice(left, left + WINDOW))
            out[place] = attention_in_pairs(x[place], weights, block)
    return out[:, :rows, :columns]


def by_formula(weights, images):
    """Features (B, C, h, w) of ViTDet by this package's names of weights."""
    embedding = [weights[f'patch_embed.proj.{leaf}'] for leaf in ('weight', 'bias')]
    x = functional.conv2d(images, *embedding, stride=8).permute(0, 2, 3, 1)
    table = weights['pos_embed.0'].unflatten(1, tuple(weights['pos_embed.grid_0'].tolist()))
    table = functional.interpolate(table.permute(0, 3, 1, 2), x.shape[1:3], mode='bicubic')
    x = x + table.permute(0, 2, 3, 1)

    def norm(x, name):
        parts = (weights[f'{name}.{leaf}'] for leaf in ('weight', 'bias'))
        return functional.layer_norm(x, x.shape[-1:], *parts, eps=1e-6)

    for block in range(ARCH['depth']):
        attention = attention_in_pairs if block in GLOBAL else attention_in_windows
        x = x + attention(norm(x, f'blocks.{block}.norm1'), weights, block)
        hidden = linear(norm(x, f'blocks.{block}.norm2'), weights, f'blocks.{block}.mlp.fc1')
        x = x + linear(functional.gelu(hidden), weights, f'blocks.{block}.mlp.fc2')
    return x.permute(0, 3, 1, 2)


@torch.no_grad()
def test_a_padded_batch_is_what_each_image_is_by_the_formula():
    ours = model()
    images = torch.full((len(SIZES), 3, 64, 88), 7.0, dtype=torch.float64)
    for image, (height, width) in zip(images, SIZES, strict=True):
        image[:, :height, :width] = torch.randn(3, height, width)
    (found,) = ours(images, valid_sizes=SIZES)
    state = ours.state_dict()
    for image, features, (height, width) in zip(images, found, SIZES, strict=True):
        wanted = by_formula(state, image[None, :, :height, :width])[0]
        rows, columns = wanted.shape[1:]
        assert max_difference(features[:, :rows, :columns], wanted) < 1e-12
        assert not features[:, rows:].any() and not features[:, :, columns:].any()


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
    if cls is CPVT:
        for size in SIZES:
            images = torch.randn(1, 3, *size)
            assert torch.equal(found.eval()(images)[0], trunk(images)[0])


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
