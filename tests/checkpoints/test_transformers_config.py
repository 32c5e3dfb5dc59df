"""``from_pretrained`` of a folder of transformers: ``config.json`` says what no weight shows."""

import json
import re

import pytest
import torch
from safetensors.torch import save_file
from tiny import randomise

from cpvt_backbones import CPVT, MultiScaleCPVT
from cpvt_backbones.checkpoints import CheckpointError, load_checkpoint

ARCH = dict(embed_dims=48, depth=2, num_heads=6, mlp_ratio=2.0)
TABLE = dict(type='Learned', antialias=False)
COMMON = dict(arch=ARCH, patch_size=8, img_size=(32, 64), norm_eps=1e-3, out_type='raw')
ROPE = dict(type='RoPE', mode='dinov3', temperature=7.0)
VIT_NAMES = (
    (r'^cls_token', 'embeddings.cls_token'),
    (r'^dist_token', 'embeddings.distillation_token'),
    (r'^reg_token', 'embeddings.register_tokens'),
    (r'^pos_embed\.0', 'embeddings.position_embeddings'),
    (r'^patch_embed\.proj\.', 'embeddings.patch_embeddings.projection.'),
    (r'^norm_pre\.', 'pre_layrnorm.'),
    (r'^norm\.', 'layernorm.'),
    (r'^blocks\.', 'encoder.layer.'),
    (r'\.norm1\.', '.layernorm_before.'),
    (r'\.norm2\.', '.layernorm_after.'),
    (r'\.attn\.proj\.', '.attention.output.dense.'),
    (r'\.mlp\.fc1\.', '.intermediate.dense.'),
    (r'\.mlp\.fc1_g\.', '.mlp.gate_proj.'),
    (r'\.mlp\.fc1_x\.', '.mlp.up_proj.'),
    (r'\.mlp\.fc2\.', '.output.dense.'),
    (r'\.ls([12])\.gamma', r'.layer_scale\1.lambda1'),
)
VITDET_NAMES = (
    (r'^pos_embed\.0', 'embeddings.position_embeddings'),
    (r'^patch_embed\.proj\.', 'embeddings.projection.'),
    (r'^rel_pos_hw\.(\d+)\.([hw])$', r'encoder.layer.\1.attention.rel_pos_\2'),
    (r'^blocks\.', 'encoder.layer.'),
    (r'\.attn\.', '.attention.'),
)
SHAPES = dict(
    hidden_size=48, num_hidden_layers=2, num_channels=3, patch_size=8, image_size=[36, 64]
)
ODD = dict(**SHAPES, num_attention_heads=6, layer_norm_eps=1e-3)
WINDOWED = dict(
    arch=dict(embed_dims=24, depth=4, num_heads=4, mlp_ratio=2.0),
    img_size=32,
    position=[TABLE, dict(type='DecomposedRelative', grid=8)],
    activation='gelu_tanh',
    with_cls_token=False,
    final_norm=False,
    window_size=3,
    global_blocks=(1, 3),
    mask_window_padding=False,
)
VITDET = dict(
    hidden_size=24,
    num_hidden_layers=4,
    num_attention_heads=4,
    patch_size=8,
    image_size=64,
    window_size=3,
    layer_norm_eps=1e-3,
    hidden_act='gelu_new',
    model_type='vitdet',
    pretrain_image_size=32,
    window_block_indices=[0, 2],
    use_relative_position_embeddings=True,
)
# Arguments of the CPVT, and the config.json.
CASES = {
    'vit': (
        dict(position=TABLE, activation='quick_gelu'),
        dict(model_type='vit', hidden_act='quick_gelu', **ODD),
    ),
    'dinov3': (
        dict(position=ROPE, layer_scale_init=1.0, num_registers=3),
        dict(model_type='dinov3_vit', rope_theta=7, num_register_tokens=3, **ODD),
    ),
    'gated': (
        dict(position=ROPE, activation='swiglu'),
        dict(model_type='dinov3_vit', rope_theta=7, use_gated_mlp=True, hidden_act='silu', **ODD),
    ),
    'clip_dict': (
        dict(position=TABLE, pre_norm=True),
        dict(
            model_type='clip',
            vision_config=dict(**SHAPES, num_attention_heads=4),
            vision_config_dict=dict(hidden_act='gelu', **ODD),
        ),
    ),
    'vitdet': (WINDOWED, VITDET),
    'mae': (dict(position=TABLE), dict(model_type='vit_mae', **ODD)),
    'maps': (
        dict(position=TABLE, layer_scale_init=1.0, final_norm=False),
        dict(
            model_type='dinov2',
            architectures=['Dinov2Backbone'],
            apply_layernorm=False,
            **ODD,
        ),
    ),
    'defaults': (
        dict(
            arch={**ARCH, 'num_heads': 12},
            position=TABLE,
            img_size=64,
            patch_size=16,
            norm_eps=1e-12,
        ),
        dict(model_type='vit', image_size=64),
    ),
}


def write(folder, model, config):
    """Write a model in the layout of transformers."""
    is_vitdet = config['model_type'] == 'vitdet'
    weights = {}
    for key, value in model.state_dict().items():
        for pattern, name in VITDET_NAMES if is_vitdet else VIT_NAMES:
            key = re.sub(pattern, name, key)
        if is_vitdet and 'position' in key:  # an entry for a class token
            value = torch.cat((value[:, :1], value), dim=1)
        if '.attn.qkv.' in key:
            for part, tensor in zip(('query', 'key', 'value'), value.chunk(3), strict=True):
                weights[key.replace('attn.qkv', f'attention.attention.{part}')] = tensor.clone()
        elif 'grid_' not in key:
            weights[key] = value
    save_file(weights, folder / 'model.safetensors')
    (folder / 'config.json').write_text(json.dumps(config))


def build(case):
    torch.manual_seed(0)
    arguments, config = CASES[case]
    return randomise(CPVT(**{**COMMON, **arguments})).eval(), config


# The last has less than a window.
# The last has less than a window.
SIZES = ((40, 24), (16, 8))


@pytest.mark.parametrize('case', CASES)
def test_the_model_is_built_by_its_config(case, tmp_path):
    model, config = build(case)
    write(tmp_path, model, config)
    found = CPVT.from_pretrained(tmp_path, out_type='raw').eval()
    for size in SIZES:
        images = torch.randn(1, 3, *size)
        with torch.no_grad():
            assert torch.equal(found(images)[0], model(images)[0])


def test_other_classes_and_arguments(tmp_path):
    write(tmp_path, *build('vit'))
    model = MultiScaleCPVT.from_pretrained(tmp_path, norm_eps=0.5, img_size=64)
    assert (model.norm_eps, model.activation, model.img_size) == (0.5, 'quick_gelu', 64)
    model.init_weights()  # reads the table's grid of config.json, too


@pytest.mark.parametrize(
    ('case', 'changes', 'message'),
    [
        ('vit', dict(model_type='swin'), r"model_type must be one of \[.*'vit', .*, got 'swin'"),
        ('vit', dict(hidden_act='relu'), r"hidden_act must be one of .*, got 'relu'"),
        ('vit', dict(layer_norm_eps=0), 'layer_norm_eps must be a finite number > 0, got 0'),
        ('vit', dict(layer_norm_eps=10**400), 'too large'),
        ('vit', dict(num_attention_heads=5), 'must be a divisor of hidden_size=48, got 5'),
        (
            'vit',
            dict(image_size=10**9),
            'image_size must be .* table of 33 entries, got 1000000000',
        ),
        ('vit', dict(image_size=[32]), r'image_size must be .*, got \[32\]'),
        ('vit', dict(patch_size=16), 'patch_size must be 8 as in the weights, got 16'),
        ('vit', dict(num_hidden_layers=3), 'num_hidden_layers must be 2 .*, got 3'),
        ('vit', dict(model_type='dinov3_vit'), "'dinov3_vit' has no table, the weights have one"),
        ('dinov3', dict(num_register_tokens=4), 'num_register_tokens must be 3 .*, got 4'),
        ('dinov3', dict(use_gated_mlp=True), 'use_gated_mlp must be False as in the weights'),
        ('gated', dict(hidden_act='gelu'), "hidden_act with use_gated_mlp must be .*, got 'gelu'"),
        (
            'clip_dict',
            dict(vision_config=[], vision_config_dict=None),
            r'vision_config must be a JSON object, got \[\]',
        ),
        ('vitdet', dict(window_size=4), 'window_size must be that .* block 0, for 3 x 3 .* got 4'),
        ('vitdet', dict(image_size=72), 'image_size must be that .* block 1, for 8 x 8 .* got 72'),
        ('vitdet', dict(window_block_indices=[0]), 'image_size must be .* block 2, for 3 x 3'),
        ('vitdet', dict(window_block_indices=[0, 4]), r'indices must be .* 0 to 3, got \[0, 4'),
        ('vitdet', dict(window_block_indices=2), 'indices must be a list of blocks'),
        ('vitdet', dict(residual_block_indices=[3]), r'indices must be \[\], since .*\[3\]'),
        ('vitdet', dict(use_relative_position_embeddings=False), 'must be True as .*, got False'),
        ('vitdet', dict(use_absolute_position_embeddings=None), 'must be True or False, got None'),
        ('vitdet', dict(pretrain_image_size=64), 'must be .* 17 entries, got 64: 65'),
        ('vitdet', dict(num_attention_heads=3), 'num_attention_heads must be 4 .*, got 3'),
    ],
)
def test_what_the_backbone_cannot_hold(case, changes, message, tmp_path):
    model, config = build(case)
    write(tmp_path, model, {**config, **changes})
    with pytest.raises(ValueError, match=rf'config\.json: .*{message}'):
        CPVT.from_pretrained(tmp_path)


@pytest.mark.parametrize('case', ['vit', 'clip_dict', 'vitdet'])
def test_init_cfg_reads_the_config_too(case, tmp_path):
    """The table's grid is that of the file, and no difference is noted."""
    model, config = build(case)
    write(tmp_path, model, config)
    found = CPVT(**{**COMMON, **CASES[case][0]}, init_cfg=str(tmp_path)).eval()
    assert not notes_of(tmp_path, found)
    found.init_weights()
    images = torch.randn(1, 3, 40, 24)
    with torch.no_grad():
        assert torch.equal(found(images)[0], model(images)[0])


def notes_of(folder, model):
    notes = load_checkpoint(model, folder).notes
    return [note for note in notes if 'trained with' in note or 'compared' in note]


@pytest.mark.parametrize(
    ('case', 'changes', 'noted'),
    [
        ('vit', dict(norm_eps=1e-6), 'norm_eps=0.001, the model has 1e-06'),
        ('vit', dict(activation='gelu'), "activation='quick_gelu', the model has 'gelu'"),
        ('vit', dict(arch={**ARCH, 'num_heads': 4}), 'num_heads=6, the model has 4'),
        ('dinov3', dict(position={**ROPE, 'temperature': None}), r'7\.0\).*100\.0\)'),
        ('vitdet', dict(activation='gelu'), "activation='gelu_tanh', the model has 'gelu'"),
        ('vitdet', dict(mask_window_padding=True), 'mask_window_padding=False, the model has True'),
    ],
)
@pytest.mark.parametrize('own', [True, False], ids=['save_pretrained', 'transformers'])
def test_differences_that_no_key_shows_are_noted(case, changes, noted, own, tmp_path):
    model, config = build(case)
    if own:
        model.save_pretrained(tmp_path)
    else:
        write(tmp_path, model, config)
    other = CPVT(**{**COMMON, **CASES[case][0], **changes})
    (note,) = notes_of(tmp_path, other)
    assert re.search(noted, note)


def test_configs_that_do_not_describe_the_weights(tmp_path):
    model, config = build('vit')
    write(tmp_path, model, {**config, 'model_type': 'swin'})
    assert notes_of(tmp_path, model) == ["config.json was not compared: its model_type is 'swin'"]
    (tmp_path / 'config.json').write_text('{"architecture": "vit_small_patch16_224"}')
    assert len(notes_of(tmp_path, model)) == 2  # epsilon and activation of that model of timm
    for content, message in (
        ('[]', 'must hold a JSON object, got a list'),
        ('{"type": "CPVT", "position": 3}', 'position must be None, a dict'),
        (json.dumps({**config, 'hidden_act': 'relu'}), "hidden_act must be .*, got 'relu'"),
    ):
        (tmp_path / 'config.json').write_text(content)
        with pytest.raises(CheckpointError, match=rf'config\.json.*{message}'):
            load_checkpoint(model, tmp_path)
