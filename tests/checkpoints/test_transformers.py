"""Weights with the names of Hugging Face's transformers compute here what they compute there.

`make test-peers` installs transformers.
"""

import pytest
import torch
from tiny import max_difference

from cpvt_backbones import CPVT, convert_state_dict
from cpvt_backbones.checkpoints import read_checkpoint

transformers = pytest.importorskip('transformers', reason='pip install transformers')

COMMON = dict(
    hidden_size=48,
    num_hidden_layers=3,
    num_attention_heads=4,
    patch_size=8,
    image_size=48,
)
MLP = dict(intermediate_size=96)
ARCH = dict(embed_dims=48, depth=3, num_heads=4, mlp_ratio=2.0)
TABLE = dict(type='Learned', antialias=False)
SCALED = dict(position=TABLE, layer_scale_init=1.0)
DINOV3 = dict(
    position=dict(type='RoPE', mode='dinov3'), layer_scale_init=1.0, num_registers=4, norm_eps=1e-5
)
CLIP = dict(position=TABLE, pre_norm=True, norm_eps=1e-5, activation='quick_gelu')
SIGLIP = dict(position=TABLE, with_cls_token=False, activation='gelu_tanh')
# Windows of 4 divide neither side of a grid of 6 x 6.
WINDOWS = dict(
    window_size=4,
    global_blocks=(1,),
    mask_window_padding=False,
    with_cls_token=False,
    final_norm=False,
)
RELATIVE = dict(type='DecomposedRelative', grid=6)
VITDET = dict(
    mlp_ratio=2,
    pretrain_image_size=32,
    window_size=4,
    window_block_indices=[0, 2],
    use_relative_position_embeddings=True,
)
# Model class, its options, and the arguments of the CPVT.
MODELS = {
    'vit': ('ViTModel', MLP, dict(position=TABLE, norm_eps=1e-12)),
    'vit_without_biases': (
        'ViTModel',
        dict(**MLP, qkv_bias=False),
        dict(position=TABLE, norm_eps=1e-12, qkv_bias=False),
    ),
    'classifier': ('ViTForImageClassification', MLP, dict(position=TABLE, norm_eps=1e-12)),
    'deit': (
        'DeiTModel',
        MLP,
        dict(position=TABLE, norm_eps=1e-12, with_dist_token=True),
    ),
    'dinov2': ('Dinov2Model', dict(mlp_ratio=2), SCALED),
    'dinov2_swiglu': (
        'Dinov2Model',
        dict(mlp_ratio=3, use_swiglu_ffn=True),
        dict(**SCALED, activation='swiglu', arch={**ARCH, 'mlp_ratio': 2.0}),
    ),
    'dinov2_registers': (
        'Dinov2WithRegistersModel',
        dict(mlp_ratio=2, num_register_tokens=4),
        dict(position=dict(type='Learned'), layer_scale_init=1.0, num_registers=4),
    ),
    'dinov3': ('DINOv3ViTModel', dict(**MLP, num_register_tokens=4), DINOV3),
    'dinov3_plus': (
        'DINOv3ViTModel',
        dict(**MLP, num_register_tokens=4, use_gated_mlp=True, hidden_act='silu'),
        dict(**DINOV3, activation='swiglu'),
    ),
    'clip': ('CLIPVisionModel', MLP, CLIP),
    'siglip': ('SiglipVisionModel', MLP, SIGLIP),
    'vitdet': ('VitDetModel', VITDET, dict(**WINDOWS, position=[TABLE, RELATIVE], img_size=32)),
    'vitdet_without_relative': (
        'VitDetModel',
        {**VITDET, 'use_relative_position_embeddings': False},
        dict(**WINDOWS, position=TABLE, img_size=32),
    ),
    'vitdet_without_windows': (
        'VitDetModel',
        {**VITDET, 'window_block_indices': [], 'qkv_bias': False},
        dict(
            position=[TABLE, RELATIVE],
            img_size=32,
            with_cls_token=False,
            final_norm=False,
            qkv_bias=False,
        ),
    ),
    'sam': (
        'SamVisionModel',
        dict(mlp_dim=96, window_size=4, global_attn_indexes=[1], output_channels=8),
        dict(**WINDOWS, position=[TABLE, RELATIVE]),
    ),
}
SIZES = ((48, 48), (32, 72), (104, 40))


def random_model(kind, **values):
    """A model of transformers with random weights, tokens and tables, for evaluation."""
    torch.manual_seed(0)
    name, options, _ = MODELS[kind]
    model = getattr(transformers, name)
    model = model(model.config_class(**{**COMMON, **options, **values})).eval()
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
    model = getattr(model, 'vit', model)  # of a classifier
    options = dict(interpolate_pos_encoding=True)
    if type(model).__name__.startswith(('Dinov2', 'DINOv3')):
        options = {}  # they always do
    last = model(images, **options).last_hidden_state
    vision = getattr(model, 'vision_model', model)
    if 'CLIP' in type(vision).__name__:
        return vision.post_layernorm(last)  # transformers normalises the class token alone
    return last


@pytest.mark.parametrize('kind', MODELS)
def test_tokens_agree(kind, tmp_path, record_property):
    """With the names in memory (transformers 5) and with those in files (transformers 4)."""
    theirs = random_model(kind)
    theirs.save_pretrained(tmp_path)
    ours = CPVT(
        **{'arch': ARCH, 'img_size': 48, 'patch_size': 8, **MODELS[kind][2]}, out_type='raw'
    )
    saved, report = convert_state_dict(read_checkpoint(tmp_path), ours)
    assert "transformers'" in report.source and not report.missing
    assert not any('resizes its table' in note for note in report.notes)
    loaded, _ = convert_state_dict(theirs.state_dict(), ours)
    assert saved.keys() == loaded.keys()
    assert all(torch.equal(saved[key], loaded[key]) for key in saved)
    ours.load_state_dict(saved, strict=False)
    ours.eval()
    for size in SIZES:
        images = torch.randn(2, 3, *size)
        with torch.no_grad():
            want, got = tokens_of(theirs, images), ours(images)[0]
        difference = max_difference(got, want) / max(1, want.abs().max().item())
        record_property(f'{size[0]}x{size[1]}', difference)
        assert difference <= 2e-6, size


@pytest.mark.parametrize('kind', MODELS)
def test_from_pretrained_reads_config_json(kind, tmp_path):
    """Unusual values, and every activation in turn."""
    acts = ('gelu', 'quick_gelu', 'gelu_new', 'gelu_pytorch_tanh', 'gelu_fast')
    values = dict(num_attention_heads=6, layer_norm_eps=1e-3)
    if 'plus' not in kind:
        values['hidden_act'] = acts[list(MODELS).index(kind) % len(acts)]
    if 'dinov3' in kind:
        values |= dict(rope_theta=7.0, num_register_tokens=2)
    theirs = random_model(kind, **values)
    theirs.save_pretrained(tmp_path, max_shard_size='60KB')  # in several files
    assert not (tmp_path / 'model.safetensors').exists()
    ours = CPVT.from_pretrained(tmp_path, out_type='raw').eval()
    for size in SIZES:
        images = torch.randn(2, 3, *size)
        with torch.no_grad():
            want, got = tokens_of(theirs, images), ours(images)[0]
        assert max_difference(got, want) / max(1, want.abs().max().item()) <= 2e-6, size
