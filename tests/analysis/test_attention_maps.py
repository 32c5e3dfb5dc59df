"""Recorded attention weights reproduce the output of the layer."""

import numpy as np
import pytest
import torch
from PIL import Image
from tiny import VITDET, column, pyramid, randomise
from torch import nn

from cpvt_backbones.analysis.attention_maps import (
    AttentionWeights,
    attention_layers,
    attention_weights,
    cell_side,
    map_of_query,
    query_at,
)
from cpvt_backbones.layers import axial_bias
from tools.attention_maps import locality, mean_matrix

RELATIVE = dict(type='Relative', clip=3)
COLUMNS = {
    'global': dict(),
    'gap': dict(with_cls_token=False),
    'two tokens': dict(with_dist_token=True),
    'relative': dict(position=RELATIVE),
    'qk': dict(position=dict(type='PEG', after_blocks=(-1,), target='qk')),
    'windowed': dict(window_size=3),
    'windowed gap': dict(window_size=3, with_cls_token=False),
    'windowed decomposed': dict(window_size=3, position=dict(type='DecomposedRelative')),
    'windowed relative': dict(window_size=3, with_dist_token=True, position=RELATIVE),
}


def recorded(model, images, layer):
    """Weights of the layer, and its input and output in a fused run."""
    found = attention_weights(model, images, layer)
    assert torch.allclose(found.weights.sum(-1), torch.ones(()), atol=1e-5)
    seen = []
    handle = model.get_submodule(layer).register_forward_hook(
        lambda _, args, output: seen.extend((args[0], output))
    )
    with torch.no_grad():
        model(images)
    handle.remove()
    return found, *seen


@pytest.mark.parametrize('kind', COLUMNS)
@pytest.mark.parametrize('layer', ['blocks.0.attn', 'blocks.1.attn'])
def test_weights_times_values_equal_the_output(kind, layer):
    model = randomise(column(patch_size=8, **COLUMNS[kind])).eval()
    # 5 x 8 cells: windows of 3 are padded on both sides.
    found, tokens, output = recorded(model, torch.randn(2, 3, 37, 60), layer)
    assert found.grid == found.key_grid == (5, 8)
    assert found.weights.shape == (2, 2, tokens.shape[1], tokens.shape[1])
    assert found.weights.min() >= 0
    module = model.get_submodule(layer)
    with torch.no_grad():
        _, _, values = module.query_key_value(tokens, found.grid, 0, None)
        expected = module.proj((found.weights @ values).transpose(1, 2).flatten(2))
    assert torch.allclose(expected, output, atol=1e-5)


def test_a_bias_that_is_computed_in_parts_is_recorded_whole(monkeypatch):
    model = randomise(column(patch_size=8, position=RELATIVE)).eval()
    images = torch.randn(2, 3, 37, 60)
    wanted = attention_weights(model, images, 'blocks.0.attn').weights
    monkeypatch.setattr(axial_bias, 'MAX_BIAS', 1)
    assert torch.allclose(attention_weights(model, images, 'blocks.0.attn').weights, wanted)


def test_weights_of_padding_are_left_out():
    model = column(patch_size=8, **VITDET).eval()
    found = attention_weights(model, torch.randn(2, 3, 37, 48), 'blocks.0.attn')
    sums = found.weights.sum(-1).unflatten(-1, found.grid)  # (2, heads, 5, 6): 2 x 2 windows of 3
    assert torch.allclose(sums[..., :3, :], torch.ones(()), atol=1e-5)
    assert (sums[..., 3:, :] < 0.9).all()


@pytest.mark.parametrize(
    ('stage', 'grid', 'key_grid'), [(0, (10, 13), (3, 4)), (1, (5, 7), (3, 4)), (3, (2, 2), (2, 2))]
)
@pytest.mark.parametrize('with_cls_token', [False, True])
def test_spatial_reduction(stage, grid, key_grid, with_cls_token):
    model = randomise(pyramid(with_cls_token=with_cls_token)).eval()
    name = f'blocks.{stage}.0.attn'
    assert name in attention_layers(model)
    found, tokens, output = recorded(model, torch.randn(2, 3, 39, 50), name)
    assert (found.grid, found.key_grid) == (grid, key_grid)
    assert found.num_prefix == (with_cls_token and stage == 3)
    module = model.get_submodule(name)
    with torch.no_grad():
        patches = tokens[:, found.num_prefix :]
        keys = tokens if module.sr_ratio == 1 else module.reduce(patches, grid)
        values = module.kv(keys)[..., tokens.shape[-1] :]
        values = values.unflatten(-1, (module.num_heads, -1)).transpose(1, 2)
        expected = module.proj((found.weights @ values).transpose(1, 2).flatten(2))
    assert torch.allclose(expected, output, atol=1e-5)


def test_model_is_unchanged_after_recording():
    model = randomise(column(patch_size=8)).eval()
    images = torch.randn(1, 3, 32, 32)
    with torch.no_grad():
        before = model(images)[-1]
        attention_weights(model, images, 'blocks.1.attn')
        assert torch.equal(model(images)[-1], before)
    accepted = r"layer must be one of \['blocks.0.attn', .*\]"
    with pytest.raises(ValueError, match=f"{accepted}, got 'attn'"):
        attention_weights(model, images, 'attn')

    def broken(*_, **__):
        raise RuntimeError('no')

    model.norm.forward = broken
    with pytest.raises(RuntimeError):
        attention_weights(model, images, 'blocks.1.attn')
    assert 'forward' not in vars(model.blocks[1].attn)


def test_no_weight_outside_the_window():
    model = randomise(column(patch_size=8, window_size=3)).eval()
    found = attention_weights(model, torch.randn(1, 3, 40, 64), 'blocks.0.attn')
    y, x = torch.meshgrid(torch.arange(5), torch.arange(8), indexing='ij')
    for row, place in ((0, 0), (2, 5), (4, 7)):
        query = query_at(found, x=place * 8 + 7, y=row * 8, height=40, width=64)
        assert query == 1 + row * 8 + place
        seen = map_of_query(found, query)[0].amin(0) > 0
        assert torch.equal(seen, (y // 3 == row // 3) & (x // 3 == place // 3))
    assert (map_of_query(found, 0) > 0).all()  # the class token sees every patch


def test_map_of_query_and_mean_matrix():
    model = randomise(column(patch_size=8)).eval()
    found = attention_weights(model, torch.randn(2, 3, 24, 40), 'blocks.0.attn')
    looks = map_of_query(found, 4)
    assert looks.shape == (2, 2, 3, 5)
    assert looks[0, 1, 2, 3] == found.weights[0, 1, 4, 1 + 2 * 5 + 3]
    with pytest.raises(ValueError, match='query must lie within 40 x 24 px, got 40, 0'):
        query_at(found, x=40, y=0, height=24, width=40)
    matrix = mean_matrix(found.weights, found.num_prefix)
    assert matrix.shape == (15, 15)
    assert matrix[3, 7].item() == pytest.approx(found.weights[:, :, 4, 8].mean().item())
    coarse = mean_matrix(found.weights, found.num_prefix, largest=8)
    assert coarse.shape == (8, 8)
    assert coarse[1, 2].item() == pytest.approx(matrix[2:4, 4:6].mean().item())
    assert coarse[7, 7].item() == pytest.approx(matrix[14, 14].item())


@pytest.mark.parametrize('num_prefix', [0, 2])
@pytest.mark.parametrize('key_grid', [(4, 6), (2, 3)])
def test_locality(key_grid, num_prefix):
    grid, p = (4, 6), num_prefix
    uniform = torch.ones(2, 3, p + 24, p + key_grid[0] * key_grid[1])
    for one in locality(AttentionWeights(uniform / uniform.shape[-1], p, grid, key_grid)):
        assert torch.allclose(one, torch.ones(3))
    if key_grid == grid:  # one head attends to itself, one to the opposite corner
        own, far = torch.eye(24), torch.eye(24).flip(0)
        weights = torch.zeros(1, 2, p + 24, p + 24)
        weights[0, :, :, :p] = 0.5  # to prefix tokens: left out
        weights[0, 0, p:, p:], weights[0, 1, p:, p:] = own / 2, far / 2
        distance, near = locality(AttentionWeights(weights, p, grid, grid))
        assert distance[0] == 0 and distance[1] > 1
        # Cells of a 3 x 3 neighbourhood within the grid, on average.
        neighbours = (3 * 4 - 2) * (3 * 6 - 2) / 24
        assert near[0].item() == pytest.approx(24 / neighbours) and near[1] < near[0]


@pytest.mark.parametrize(
    ('grid', 'size', 'cell'),
    [
        ((14, 14), (224, 224), 16),
        ((23, 30), (360, 480), 16),
        ((16, 16), (224, 224), 14),
        ((1, 1), (5, 7), 8),
        ((2, 3), (33, 70), 32),
        ((3, 3), (50, 50), 16),  # cut, not padded,
    ],
)
def test_cell_side(grid, size, cell):
    height, width = size
    assert cell_side(grid, height=height, width=width) == cell
    with pytest.raises(ValueError, match='grid must cover'):
        cell_side((grid[0], grid[1] + 40), height=height, width=width)


class Other(nn.Module):
    """A model with torch's own attention, as in mmseg's ViT and PVT."""

    def __init__(self, need_weights):
        super().__init__()
        self.embed = nn.Conv2d(3, 8, 4, stride=4)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.need_weights = need_weights

    def forward(self, images):
        tokens = self.embed(images).flatten(2).transpose(1, 2)
        return (self.attention(tokens, tokens, tokens, need_weights=self.need_weights)[0],)


@pytest.mark.parametrize('need_weights', [True, False])
def test_torch_multihead_attention(need_weights):
    model = Other(need_weights).eval()
    images = torch.randn(2, 3, 20, 32)
    found = attention_weights(model, images, 'attention')
    assert (found.num_prefix, found.grid, found.key_grid) == (0, (5, 8), (5, 8))
    tokens = model.embed(images).flatten(2).transpose(1, 2)
    expected = model.attention(tokens, tokens, tokens, average_attn_weights=False)[1]
    assert torch.allclose(found.weights, expected, atol=1e-6)


def test_timm_and_mmpretrain():
    timm = pytest.importorskip('timm')
    vit = timm.create_model('deit_tiny_patch16_224', depth=2, dynamic_img_size=True).eval()
    found = attention_weights(vit, torch.randn(1, 3, 64, 96), 'blocks.1.attn')
    assert (found.num_prefix, found.grid, found.weights.shape) == (1, (4, 6), (1, 3, 25, 25))
    models = pytest.importorskip('mmpretrain.models.backbones')
    arch = dict(embed_dims=24, depths=[1, 1, 1, 1], num_heads=[1, 2, 3, 4])
    swin = models.SwinTransformer(arch=arch)
    with pytest.raises(ValueError, match='layer must attend over whole images'):
        attention_weights(swin, torch.randn(1, 3, 224, 224), next(iter(attention_layers(swin))))


def test_command_line(call, refused, trained, tmp_path):
    path, checkpoint = trained('mmseg')
    photos = [tmp_path / f'{index}.png' for index in range(2)]
    for index, file in enumerate(photos):
        pixels = np.random.default_rng(index).integers(0, 255, (50, 70, 3), np.uint8)
        Image.fromarray(pixels).save(file)
    out = tmp_path / 'out'
    out.mkdir()
    own = out / 'matrix_of_confusion.csv'
    own.write_text('of the user')
    common = [path, checkpoint, *photos, '--shape', '44x60', '--out-dir', out]
    call('attention_maps', *common, '--layers', 0, -1, '--query', 10, 20, '--query', 59, 43)
    pictures = {name: (out / f'{name}.png').read_bytes() for name in ('maps', 'matrices', 'grids')}
    tables = {'maps', 'locality', 'matrix_blocks.0.attn', 'matrix_blocks.1.attn'}
    assert {file.name for file in out.iterdir()} == {
        *(f'{name}.png' for name in pictures),
        *(f'{name}.csv' for name in tables),
        own.name,
    }
    assert own.read_text() == 'of the user'
    matrix = np.loadtxt(out / 'matrix_blocks.1.attn.csv', delimiter=',')
    assert matrix.shape == (6 * 8, 6 * 8)
    assert matrix.sum(axis=1) == pytest.approx(1, abs=1e-3)
    assert len((out / 'maps.csv').read_text().splitlines()) == 1 + 2 * 2 * 2 * 6 * 8
    checkpoint.unlink()
    for name in pictures:
        (out / f'{name}.png').unlink()
    call('attention_maps', *common, '--draw')
    assert {name: (out / f'{name}.png').read_bytes() for name in pictures} == pictures
    words = [path, '-', photos[0], '--shape', '44x60', '--out-dir', tmp_path / 'no']
    assert '--layers must be in' in refused('attention_maps', *words, '--layers', 2)
    assert 'query must lie within' in refused('attention_maps', *words, '--query', 60, 0)
