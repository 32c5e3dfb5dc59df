"""``from_pretrained`` of a file of any name: the architecture is read from the weights."""

import re

import pytest
import torch
from tiny import randomise

from cpvt_backbones import CPVT, MultiScaleCPVT, PyramidCPVT
from cpvt_backbones.checkpoints import CheckpointError, export_state_dict

COLUMN = dict(embed_dims=192, depth=2, num_heads=3, mlp_ratio=2.0)
DEEP = dict(embed_dims=192, depth=6, num_heads=3, mlp_ratio=1.0)
ODD = dict(embed_dims=384, depth=1, num_heads=6, mlp_ratio=43 / 384)
WIDTHS = dict(embed_dims=(64, 128, 320, 512), num_heads=(1, 2, 5, 8))
PYRAMID = dict(
    depths=(1, 2, 1, 1), mlp_ratios=(1.0, 2.0, 1.0, 0.5), sr_ratios=(4, 2, 2, 1), **WIDTHS
)
TABLE, PEG = dict(type='Learned'), dict(type='PEG', kernel_size=5)
MIXED = dict(type='RoPE', mode='mixed')
PVT_TABLE = dict(type='Learned', interpolation='bilinear', antialias=False)

MODELS = {
    'peg': (CPVT, dict(arch=COLUMN)),
    'gap': (CPVT, dict(arch=DEEP, position={**PEG, 'after_blocks': '0-5'}, with_cls_token=False)),
    'table': (CPVT, dict(arch=COLUMN, position=TABLE, img_size=96, patch_size=32)),
    'oblong_table': (CPVT, dict(arch=COLUMN, position=TABLE, img_size=(32, 96), patch_size=8)),
    'deit': (CPVT, dict(arch=COLUMN, position=TABLE, img_size=64, with_dist_token=True)),
    'registers': (
        CPVT,
        dict(
            arch=ODD,
            position=[TABLE, MIXED, PEG],
            img_size=64,
            num_registers=3,
            activation='swiglu',
            layer_scale_init=0.5,
        ),
    ),
    'relative': (
        CPVT,
        dict(arch={**COLUMN, 'num_heads': 4}, position=dict(type='Relative', clip=3)),
    ),
    'channels': (CPVT, dict(arch=COLUMN, in_channels=4, qkv_bias=False, final_norm=False)),
    'multi_scale': (MultiScaleCPVT, dict(arch=DEEP)),
    'multi_scale_taps': (MultiScaleCPVT, dict(arch=DEEP, source='taps', patch_size=8)),
    'pyramid': (PyramidCPVT, dict(arch=PYRAMID)),
    'pvtv2': (
        PyramidCPVT,
        dict(
            arch={**PYRAMID, 'patch_kernels': (7, 3, 3, 3), 'mlp_kernel_size': 3},
            position=None,
            norm_after_stage=True,
        ),
    ),
    'pyramid_windows': (
        PyramidCPVT,
        dict(
            arch={**PYRAMID, 'depths': (2, 2, 3, 2), 'window_size': 7},
            norm_after_stage=True,
        ),
    ),
    'pvt': (
        PyramidCPVT,
        dict(
            arch=PYRAMID,
            position=PVT_TABLE,
            img_size=64,
            with_cls_token=True,
            embed_norm_eps=1e-6,
            final_norm=True,
        ),
    ),
}


def images(model):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(1, model.in_channels, 64, 96, generator=generator)


def assert_same(model, found):
    with torch.no_grad():
        for got, wanted in zip(found.eval()(images(model)), model(images(model)), strict=True):
            assert torch.equal(got, wanted)


@pytest.mark.parametrize('name', MODELS)
def test_a_file_of_any_name_gives_the_model_back(name, tmp_path):
    cls, arguments = MODELS[name]
    model = randomise(cls(**arguments)).eval()
    torch.save(model.state_dict(), tmp_path / 'mine.pth')
    given = dict(taps=None) if name == 'multi_scale_taps' else {}
    given |= dict(final_norm=True) if name == 'pvt' else {}
    found = cls.from_pretrained(tmp_path / 'mine.pth', **given)
    assert found.state_dict().keys() == model.state_dict().keys()
    assert_same(model, found)


def test_names_of_other_packages_inside_a_whole_model(tmp_path):
    model = randomise(PyramidCPVT(arch=PYRAMID)).eval()
    state, _ = export_state_dict(model.state_dict(), model, to='mmseg')
    weights = {f'backbone.{key}': value for key, value in state.items()}
    content = dict(state_dict=weights | {'decode_head.w': torch.ones(1)}, meta=dict(iter=9))
    torch.save(content, tmp_path / 'iter_9.pth')
    for name in (tmp_path / 'iter_9.pth', tmp_path):  # a file, a work directory
        assert_same(model, PyramidCPVT.from_pretrained(name))


@pytest.mark.parametrize('num_registers', [0, 4])
def test_metas_dinov2_resizes_its_table_with_an_offset(num_registers, tmp_path):
    """Without registers; with them it does as timm."""
    options = dict(position=dict(type='Learned'), layer_scale_init=0.5, num_registers=num_registers)
    weights = CPVT(arch=COLUMN, **options).state_dict()
    torch.save({**weights, 'mask_token': torch.zeros(1, 24)}, tmp_path / 'dinov2.pth')
    (table,) = CPVT.from_pretrained(tmp_path / 'dinov2.pth').position_encodings
    assert (table.offset, table.antialias) == ((0.0, True) if num_registers else (0.1, False))


def test_the_grid_of_a_table_is_assumed_to_be_a_square(tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(
        'cpvt_backbones.backbones.pretrained.print_log', lambda text, logger: told.append(text)
    )
    model = randomise(CPVT(arch=COLUMN, position=dict(type='Learned'), img_size=(32, 128))).eval()
    weights = model.state_dict()
    stored = weights.pop('pos_embed.grid_0')
    assert stored.tolist() == [2, 8]
    torch.save(weights, tmp_path / 'theirs.pth')
    found = CPVT.from_pretrained(tmp_path / 'theirs.pth')
    assert found.img_size == 64 and told[0].endswith(', img_size=64')
    with pytest.raises(CheckpointError, match='17 entries may be 4 x 4 or 2 x 8.* table_grid='):
        CPVT.from_pretrained(tmp_path / 'theirs.pth', img_size=(32, 128))
    found = CPVT.from_pretrained(tmp_path / 'theirs.pth', table_grid=(2, 8))
    assert found.img_size == (32, 128)
    assert_same(model, found)
    assert all('img_size' not in line.split(' is assumed: ')[1] for line in told[1:])
    odd = {**weights, 'pos_embed.0': weights['pos_embed.0'][:, :-2]}
    torch.save(odd, tmp_path / 'odd.pth')
    with pytest.raises(ValueError, match=r'pass img_size: .* of its table of 15 entries'):
        CPVT.from_pretrained(tmp_path / 'odd.pth')
    assert CPVT.from_pretrained(tmp_path / 'odd.pth', table_grid=(2, 7)).img_size == (32, 112)


def test_what_is_read_and_what_is_assumed_is_logged(tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(
        'cpvt_backbones.backbones.pretrained.print_log', lambda text, logger: told.append(text)
    )
    torch.save(CPVT(arch=COLUMN).state_dict(), tmp_path / 'mine.pth')
    CPVT.from_pretrained(tmp_path / 'mine.pth')
    (text,) = told
    assert 'CPVT(patch_size=16, in_channels=3, with_cls_token=True' in text
    assumed = "num_heads=3, norm_eps=1e-06, window_size=None, activation='gelu', after_blocks=(0,)"
    assert text.endswith(f'is assumed: {assumed}')


NARROW = dict(embed_dims=48, depth=2, num_heads=4, mlp_ratio=2.0)
UNCLEAR = {
    'width': (dict(arch=NARROW), 'arch', r"arch: a dict of {'embed_dims': 48, .*} and num_heads"),
    'pegs': (
        dict(arch=COLUMN, position={**PEG, 'after_blocks': (0, 1)}),
        'position',
        "position: the model's PEGs",
    ),
    'norm': (dict(arch=COLUMN, position={**PEG, 'norm': 'BN'}), 'position', 'position: .*PEGs'),
    'none': (
        dict(arch=COLUMN, position=dict(type='SinCos')),
        'position',
        'position: None, or an encoding without weights',
    ),
    'clip': (
        dict(arch=COLUMN, pre_norm=True, activation='quick_gelu', norm_eps=1e-5),
        'activation',
        "activation: 'quick_gelu'",
    ),
}


@pytest.mark.parametrize('name', UNCLEAR)
def test_an_argument_that_no_weight_shows_is_asked_for(name, tmp_path):
    arguments, argument, message = UNCLEAR[name]
    model = randomise(CPVT(**arguments)).eval()
    torch.save(model.state_dict(), tmp_path / 'mine.pth')
    with pytest.raises(ValueError, match=f'does not show every argument; pass {message}'):
        CPVT.from_pretrained(tmp_path / 'mine.pth')
    given = {argument: arguments[argument]}
    assert_same(model, CPVT.from_pretrained(tmp_path / 'mine.pth', **given))


def test_weights_of_another_layout_or_of_nothing_known(tmp_path):
    torch.save(PyramidCPVT(arch=PYRAMID).state_dict(), tmp_path / 'a.pth')
    with pytest.raises(ValueError, match='has weights of PyramidCPVT, not of CPVT'):
        CPVT.from_pretrained(tmp_path / 'a.pth')
    torch.save({'conv1.weight': torch.ones(1)}, tmp_path / 'b.pth')
    with pytest.raises(CheckpointError, match=r'b.pth.*none of those recognised'):
        CPVT.from_pretrained(tmp_path / 'b.pth')
    torch.save({'blocks.0.attn.qkv.weight': torch.ones(9, 3)}, tmp_path / 'c.pth')
    with pytest.raises(CheckpointError, match=r'c.pth.*cannot be read without patch_embed'):
        CPVT.from_pretrained(tmp_path / 'c.pth')
    flat = CPVT(arch=COLUMN, position=TABLE).state_dict() | {'pos_embed.0': torch.ones(192)}
    torch.save(flat, tmp_path / 'd.pth')
    with pytest.raises(CheckpointError, match=r'd.pth.*without pos_embed.0 \(3 dimensions\)'):
        CPVT.from_pretrained(tmp_path / 'd.pth')


MISSING = (
    *('runs/x.pt', 'x.safetensors', 'runs/best.PTH', './x', '../x', '~/x.pth', '/x/y', 'a/b/c'),
    *('runs\\x', '.cache/x', 'a--b/c', 'a/b..c', 'a/b.git', '~nobody/x', 'user/model.ckpt'),
)


@pytest.mark.parametrize('name', MISSING)
def test_a_missing_file_is_no_repository(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match='name: there is no file or folder') as error:
        CPVT.from_pretrained(name)
    assert re.search(r"hub is 'user/repository'", str(error.value))
