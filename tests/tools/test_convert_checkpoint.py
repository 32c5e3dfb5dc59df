"""convert_checkpoint.py: conversion from file to file, and its errors."""

import pytest
import torch
from tiny import PYRAMID, randomise

from cpvt_backbones import CPVT, PyramidCPVT
from cpvt_backbones.checkpoints import export_state_dict, read_checkpoint

COLUMN_OPTIONS = ['arch.embed_dims=24', 'arch.depth=2', 'arch.num_heads=2', 'arch.mlp_ratio=2.0']
COLUMN = dict(embed_dims=24, depth=2, num_heads=2, mlp_ratio=2.0)


@pytest.fixture
def pyramid():
    return randomise(PyramidCPVT(arch=PYRAMID, final_norm=True))


@pytest.fixture
def config(tmp_path):
    (tmp_path / 'config.py').write_text(
        "model = dict(type='Any', backbone=dict(type='PyramidCPVT', final_norm=True,"
        ' out_indices=(0, 1, 2, 3),\n'
        f'    arch=dict({", ".join(f"{key}={value}" for key, value in PYRAMID.items())}),\n'
        "    init_cfg=dict(type='Pretrained', checkpoint='gone.pth')))\n"
    )
    return tmp_path / 'config.py'


@pytest.mark.parametrize('to', ['timm', 'mmseg', 'mmpretrain', 'cpvt'])
@pytest.mark.parametrize('suffix', ['.pth', '.safetensors'])
def test_there_and_back(to, suffix, pyramid, config, tmp_path, call, capsys):
    if suffix == '.safetensors':
        pytest.importorskip('safetensors')
    torch.save(
        dict(model={f'module.{k}': v for k, v in pyramid.state_dict().items()}),
        tmp_path / 'ours.pth',
    )
    there, back = tmp_path / f'there{suffix}', tmp_path / 'back.pth'
    call('convert_checkpoint', tmp_path / 'ours.pth', there, '--config', config, '--to', to)
    printed = capsys.readouterr().out
    assert "(under 'module.') to PyramidCPVT" in printed and f'{there}: ' in printed
    content = read_checkpoint(there)
    content = content if suffix == '.safetensors' else content['state_dict']
    wanted, _ = export_state_dict(pyramid.state_dict(), pyramid, to=to)
    assert content.keys() == wanted.keys()
    assert all(torch.equal(content[key], value) for key, value in wanted.items())

    without = ['--options', 'final_norm=False'] if to == 'mmseg' else []
    call('convert_checkpoint', there, back, '--config', config, *without)
    state = torch.load(back, weights_only=True)['state_dict']
    expected = {
        k: v for k, v in pyramid.state_dict().items() if to != 'mmseg' or not k.startswith('norm.')
    }
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[key], value) for key, value in expected.items())


def test_a_source_without_final_norm(tmp_path, call):
    for number, options in enumerate(([], ['final_norm=False'])):
        source = randomise(CPVT(arch=COLUMN, final_norm=False))
        torch.save(source.state_dict(), tmp_path / 'source.pth')
        arguments = ['--type', 'CPVT', '--options', *COLUMN_OPTIONS, *options]
        call('convert_checkpoint', tmp_path / 'source.pth', tmp_path / f'{number}.pth', *arguments)
        state = torch.load(tmp_path / f'{number}.pth', weights_only=True)['state_dict']
        assert state.keys() == source.state_dict().keys()


def test_named_sizes_and_options(tmp_path, call, capsys):
    source = randomise(CPVT(arch=COLUMN, position=dict(type='Learned')))
    torch.save(source.state_dict(), tmp_path / 'deit.pth')
    arguments = ['--type', 'CPVT', '--options', *COLUMN_OPTIONS]
    files = tmp_path / 'deit.pth', tmp_path / 'cpvt.pth'
    call('convert_checkpoint', *files, *arguments, 'with_cls_token=False')
    printed = capsys.readouterr().out
    assert 'dropped 1: cls_token (the model has no class token)' in printed
    state = torch.load(tmp_path / 'cpvt.pth', weights_only=True)
    assert state['meta']['source'] == "ViT, DeiT or CPVT, timm's or this package's names"
    assert not state['state_dict']['pos_block.0.proj.0.weight'].any()
    model = CPVT(arch=COLUMN, with_cls_token=False)
    model.load_state_dict(state['state_dict'], strict=True)

    call('convert_checkpoint', files[0], tmp_path / 'timm.pth', '--to', 'timm', *arguments)
    state = torch.load(tmp_path / 'timm.pth', weights_only=True)['state_dict']
    assert torch.equal(state['pos_embed'], source.state_dict()['pos_embed.0'])


@pytest.mark.parametrize(
    ('words', 'message'),
    [
        ('none.pth x.pth --type CPVT', "checkpoint: there is no file or folder 'none.pth'"),
        (
            'ours.pth x.h5 --type CPVT',
            'destination must end in one of .pth, .pt, .safetensors, got',
        ),
        (
            'ours.pth x.pth --type CPVT',
            'wrong architecture: the checkpoint is of a hierarchical ViT',
        ),
        ('ours.pth x.pth --type PyramidCPVT', 'patch_embeds.0.proj.weight is (8, 3, 4, 4)'),
        ('ours.pth x.pth --type CPVT --arch huge', "arch must be one of ['tiny', 'small', 'base']"),
        ('ours.pth x.pth --config empty.py', 'config: model.backbone.type must be one of CPVT'),
        ('ours.pth x.pth --config none.py', 'none.py'),
        ('ours.pth x.pth --config config.py --prefix teacher', "prefix='teacher.': no key starts"),
        ('ours.pth x.pth --config config.py --ema', 'ema=True: the checkpoint has none of'),
    ],
)
@pytest.mark.usefixtures('config')
def test_one_line_for_what_cannot_be_converted(
    words, message, pyramid, tmp_path, monkeypatch, refused
):
    monkeypatch.chdir(tmp_path)
    torch.save(pyramid.state_dict(), 'ours.pth')
    (tmp_path / 'empty.py').write_text('x = 1')
    assert message in refused('convert_checkpoint', *words.split())
    assert not list(tmp_path.glob('x.*'))
