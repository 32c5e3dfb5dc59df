"""Weights with the names of Hugging Face's transformers compute here what they compute there.

`make test-peers` installs transformers.
"""

import hashlib
import json
import re
from pathlib import Path
from urllib.error import URLError

import pytest
import torch
from safetensors.torch import load_file
from tiny import max_difference

from benchmarks import published
from benchmarks.peer_models import transformers_tokens
from benchmarks.published import (
    FOLDER,
    PHOTO,
    build,
    difference,
    outputs,
    predict,
    randomise,
    save,
    transformers_model,
)
from cpvt import command_line
from cpvt_backbones import CPVT, PyramidCPVT, convert_state_dict, weights
from cpvt_backbones.checkpoints import CheckpointError, load_weights
from cpvt_backbones.toolboxes import dataset_metainfo, read_config

transformers = pytest.importorskip('transformers', reason='pip install transformers')

COMMON = dict(
    hidden_size=48,
    num_hidden_layers=3,
    num_attention_heads=4,
    patch_size=8,
    image_size=48,
)
# Windows of 4 divide neither side of a grid of 6 x 6.
# Model class, its options, and the arguments of the CPVT.
MLP = dict(intermediate_size=96)
DINOV3 = dict(**MLP, num_register_tokens=2, rope_theta=7.0)
# Windows of 4 divide neither side of a grid of 6 x 6.
VITDET = dict(
    mlp_ratio=2,
    pretrain_image_size=32,
    window_size=4,
    window_block_indices=[0, 2],
    use_relative_position_embeddings=True,
)
SAM = dict(mlp_dim=96, window_size=4, global_attn_indexes=[1], output_channels=8)
# Model class and its options.
MODELS = {
    'vit': ('ViTModel', MLP),
    'vit_without_biases': ('ViTModel', dict(**MLP, qkv_bias=False)),
    'classifier': ('ViTForImageClassification', MLP),
    'deit': ('DeiTModel', MLP),
    'msn': ('ViTMSNModel', MLP),
    'ijepa': ('IJepaModel', MLP),
    'dinov2': ('Dinov2Model', dict(mlp_ratio=2)),
    'dinov2_swiglu': ('Dinov2Model', dict(mlp_ratio=3, use_swiglu_ffn=True)),
    'dinov2_registers': ('Dinov2WithRegistersModel', dict(mlp_ratio=2, num_register_tokens=4)),
    'dinov3': ('DINOv3ViTModel', DINOV3),
    'dinov3_plus': ('DINOv3ViTModel', dict(**DINOV3, use_gated_mlp=True, hidden_act='silu')),
    'clip': ('CLIPVisionModel', MLP),
    'metaclip_2': ('MetaClip2VisionModel', MLP),
    'siglip': ('SiglipVisionModel', MLP),
    'vitdet': ('VitDetModel', VITDET),
    'vitdet_without_relative': (
        'VitDetModel',
        {**VITDET, 'use_relative_position_embeddings': False},
    ),
    'vitdet_without_windows': (
        'VitDetModel',
        {**VITDET, 'window_block_indices': [], 'qkv_bias': False},
    ),
    'beit': ('BeitModel', dict(**MLP, use_relative_position_bias=True)),
    'beit_with_table': (
        'BeitForImageClassification',
        dict(**MLP, use_absolute_position_embeddings=True),
    ),
    # As pretrained: one bias of all blocks, here besides those of the blocks.
    'beit_shared': (
        'BeitForMaskedImageModeling',
        dict(**MLP, use_shared_relative_position_bias=True, use_relative_position_bias=True),
    ),
    'sam': ('SamVisionModel', SAM),
    'sam_hq': ('SamHQVisionModel', SAM),
}
SIZES = ((48, 48), (32, 72), (104, 40))


def random_model(kind, **values):
    """A model of transformers with random weights, tokens and tables, for evaluation."""
    torch.manual_seed(0)
    name, options = MODELS[kind]
    model = getattr(transformers, name)
    model = model(model.config_class(**{**COMMON, **values, **options})).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3 if parameter.dim() > 1 else 1.0)
    return model


def tokens_of_sam(encoder, images):
    """All tokens before the neck, at other sizes too, which SAM refuses."""
    seen, table = [], encoder.pos_embed
    size = tuple(images.shape[2:])
    grid = [side // 8 for side in size]
    resized = torch.nn.functional.interpolate(table.permute(0, 3, 1, 2), grid, mode='bicubic')
    encoder.patch_embed.image_size = size
    encoder.pos_embed = torch.nn.Parameter(resized.permute(0, 2, 3, 1))
    handle = encoder.neck.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    encoder(images)
    handle.remove()
    encoder.pos_embed = table
    return seen[0].flatten(1, 2)


def tokens_of(model, images):
    """All tokens of the last block, normalised."""
    if 'Sam' in type(model).__name__:
        return tokens_of_sam(model.vision_encoder, images)
    if 'VitDet' in type(model).__name__:
        return model(images).last_hidden_state.flatten(2).mT
    model = getattr(model, 'vit', getattr(model, 'beit', model))  # of a classifier
    return transformers_tokens(model, images)


@pytest.mark.parametrize('usual', [True, False], ids=['usual', 'unusual'])
@pytest.mark.parametrize('kind', MODELS)
def test_a_saved_model_computes_the_same(kind, usual, tmp_path, record_property):
    """With usual values, and with unusual ones and every activation in turn.

    The names in memory (transformers 5) are recognised too, beside those in files (4).
    """
    acts = ('gelu', 'quick_gelu', 'gelu_new', 'gelu_pytorch_tanh', 'gelu_fast')
    act = acts[list(MODELS).index(kind) % len(acts)]
    unusual = dict(num_attention_heads=6, layer_norm_eps=1e-3, hidden_act=act)
    theirs = random_model(kind, **({} if usual else unusual))
    theirs.save_pretrained(tmp_path, max_shard_size='5MB' if usual else '60KB')
    assert (tmp_path / 'model.safetensors').exists() == usual  # else in several files
    ours = CPVT.from_pretrained(tmp_path, out_type='raw').eval()
    loaded, report = convert_state_dict(theirs.state_dict(), ours)
    assert "transformers'" in report.source and not report.missing
    assert not any('resizes its position embedding' in note for note in report.notes)
    assert all(torch.equal(ours.state_dict()[key], value) for key, value in loaded.items())
    for size in SIZES:
        images = torch.randn(2, 3, *size)
        with torch.no_grad():
            want, got = tokens_of(theirs, images), ours(images)[0]
        difference = max_difference(got, want) / max(1, want.abs().max().item())
        record_property(f'{size[0]}x{size[1]}', difference)
        assert difference <= 2e-6, size


PYRAMID = dict(
    hidden_sizes=[16, 32, 48, 64],
    depths=[1, 2, 1, 1],
    num_attention_heads=[1, 1, 3, 4],
    mlp_ratios=[2, 2, 2, 2],
    image_size=64,
    layer_norm_eps=1e-4,
)


@pytest.mark.parametrize(
    ('name', 'options'),
    {
        'PvtModel': {},
        'PvtForImageClassification': dict(qkv_bias=False),
        'PvtV2Model': {},
        'PvtV2ForImageClassification': dict(patch_sizes=[5, 3, 3, 3], sr_ratios=[4, 2, 2, 1]),
    }.items(),
)
def test_a_saved_pyramid_computes_the_same(name, options, tmp_path):
    """PVT at its own size: transformers cannot resize its tables."""
    torch.manual_seed(0)
    model = getattr(transformers, name)
    theirs = model(model.config_class(**{**PYRAMID, **options})).eval()
    randomise(theirs)
    theirs.save_pretrained(tmp_path)
    theirs = getattr(theirs, 'pvt', getattr(theirs, 'pvt_v2', theirs))  # of a classifier
    is_v2 = 'V2' in name
    ours = PyramidCPVT.from_pretrained(
        tmp_path, out_type='featmap' if is_v2 else 'raw', out_indices=-1
    ).eval()
    report = convert_state_dict(theirs.state_dict(), ours)[1]
    assert "transformers' names" in report.source and not report.missing
    for size in ((64, 64), (96, 160)) if is_v2 else ((64, 64),):
        images = torch.randn(2, 3, *size)
        with torch.no_grad():
            want, got = theirs(images).last_hidden_state, ours(images)[0]
        assert max_difference(got, want) / max(1, want.abs().max().item()) <= 2e-6, size


@pytest.mark.parametrize(
    ('model', 'values', 'message'),
    [
        ('PvtV2Model', dict(linear_attention=True), 'linear_attention must be False'),
        ('PvtV2Model', dict(hidden_act='silu'), r'hidden_act must be one of .*gelu.*silu'),
        ('PvtModel', dict(num_attention_heads=[1, 3, 3, 4]), 'num_attention_heads must be a'),
        ('PvtModel', dict(image_size=96), "image_size must be that of the weights' table of 256"),
        ('PvtModel', dict(depths=[1, 1, 1, 1]), r'depths must be \[1, 2, 1, 1\] as in the weights'),
        ('PvtModel', dict(model_type='vit'), "model_type is 'vit', the weights are PVT, trans"),
    ],
)
def test_another_config_than_that_of_a_pyramid_is_refused(model, values, message, tmp_path):
    theirs = getattr(transformers, model)
    theirs(theirs.config_class(**PYRAMID)).save_pretrained(tmp_path)
    file = tmp_path / 'config.json'
    file.write_text(json.dumps(json.loads(file.read_text()) | values))
    with pytest.raises(CheckpointError, match=f'config.json: {message}'):
        PyramidCPVT.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ('name', 'options', 'family'),
    [
        ('SwinModel', dict(embed_dim=24, depths=[1, 1], num_heads=[1, 2]), 'Swin'),
        ('Swinv2Model', dict(embed_dim=24, depths=[1, 1], num_heads=[1, 2]), 'Swin'),
        ('Siglip2VisionModel', dict(COMMON, intermediate_size=96), 'SigLIP 2 NaFlex'),
        ('ConvNextModel', dict(depths=[1] * 4, hidden_sizes=[8] * 4), 'ConvNeXt'),
    ],
)
def test_what_no_backbone_computes_gets_no_advice(name, options, family, tmp_path):
    model = getattr(transformers, name)
    model(model.config_class(**options)).save_pretrained(tmp_path)
    for path in (tmp_path, tmp_path / 'model.safetensors'):
        with pytest.raises(CheckpointError, match=f'is of {family}, .*: no backbone here computes'):
            CPVT.from_pretrained(path)


TINY = dict(hidden_size=24, num_hidden_layers=2, num_attention_heads=2, image_size=70)


@pytest.fixture
def dinov2(tmp_path, monkeypatch):
    """Function that publishes a tiny classifier as that of a size; returns its name and model.

    The file has the name and form of the publisher's, and is where the download would be. There is
    no network.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.hub, 'get_dir', lambda: str(tmp_path / 'torch'))

    def no_network(*_, **__):
        raise URLError('no network')

    monkeypatch.setattr('urllib.request.OpenerDirector.open', no_network)

    def dinov2(size):
        torch.manual_seed(0)
        stem = f'dinov2-{size}-imagenet1k-1-layer'
        peer = transformers_model(stem, **TINY)
        randomise(peer)
        file = save(peer, tmp_path)
        name = f'dinov2_{size}-imagenet'
        entry = command_line.shipped_index()[name]
        if '/pytorch_model.bin#' in entry['address']:
            torch.save(load_file(file), 'pytorch_model.bin')
            file = tmp_path / 'pytorch_model.bin'
        arch = dict(embed_dims=24, depth=2, num_heads=2, mlp_ratio=8 / 3 if size == 'giant' else 4)
        cfg = read_config(FOLDER / 'dinov2' / f'{stem}.py')
        tiny = {'backbone.arch': dict(arch, _delete_=True), 'backbone.img_size': 70}
        tiny['head.in_channels'] = 48
        cfg.merge_from_dict({f'model.{key}': value for key, value in tiny.items()})
        cfg.dump('config.py')
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        address = f'{entry["address"].partition("#")[0]}#sha256={digest}'
        entry |= dict(config=str(tmp_path / 'config.py'), address=address)
        index = {name: entry}
        (tmp_path / 'index.json').write_text(json.dumps(index))
        monkeypatch.setattr(weights, 'INDEX', tmp_path / 'index.json')
        monkeypatch.setattr(command_line, 'shipped_index', lambda: index)
        return name, file, peer

    return dinov2


@pytest.mark.full
@pytest.mark.parametrize('size', ['base', 'giant'])  # both kinds of file, and of MLP
def test_dinov2_runs_by_name(size, dinov2, call, refused):
    name, file, peer = dinov2(size)
    line = refused('infer', name, PHOTO, '--device', 'cpu')
    assert f'/facebook/dinov2-{size}-imagenet1k-1-layer/resolve/main/{file.name} could not' in line
    place = Path(line.partition("put the file at '")[2].partition("'")[0])
    assert re.fullmatch(rf'{file.stem}-[0-9a-f]{{64}}{file.suffix}', place.name)
    place.parent.mkdir(parents=True, exist_ok=True)
    file.rename(place)

    cfg = read_config('config.py')
    model = build(cfg)
    load_weights(model, name)
    for shape in published.SIZES['dinov2']:
        images = torch.randn(2, 3, *shape)
        assert difference(outputs(model, images), outputs(peer, images)) <= 1e-5

    wanted = predict(cfg, peer)
    call('infer', name, PHOTO, '--device', 'cpu', '--out-dir', 'out')
    (found,) = json.loads(Path('out/predictions.json').read_text())
    assert found['label'] == wanted.argmax()
    assert found['class'] == dataset_metainfo(cfg)['classes'][wanted.argmax()]
    assert found['score'] == pytest.approx(wanted.max().item(), rel=1e-4)
