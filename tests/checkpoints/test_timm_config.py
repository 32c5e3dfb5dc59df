"""Folders of timm: what the weights show decides, then ``model_args``, then ``architecture``."""

import json

import pytest
import torch
from tiny import max_difference

from cpvt_backbones import CPVT, PyramidCPVT
from cpvt_backbones.checkpoints import CheckpointError, load_checkpoint

timm = pytest.importorskip('timm')
TINY = 'vit_tiny_patch16_224'


def write(folder, name, *, shown=(), wrapped=False, **arguments):
    """Save a model of timm with two blocks; ``shown`` are the arguments that config.json names."""
    torch.manual_seed(0)
    blocks = {} if 'depths' in arguments else dict(depth=2)
    theirs = timm.create_model(name, num_classes=0, **blocks, **arguments).eval()
    for parameter in theirs.parameters():
        parameter.data.add_(0.05 * torch.randn_like(parameter))
    args = {key: arguments[key] for key in shown or arguments}
    size = theirs.pretrained_cfg['input_size']
    config = dict(architecture=name, model_args=args, pretrained_cfg=dict(input_size=size))
    prefix = ''
    if wrapped:
        config['model_type'], prefix = 'timm_wrapper', 'timm_model.'
    state = {f'{prefix}{key}': value for key, value in theirs.state_dict().items()}
    torch.save(state, folder / 'pytorch_model.bin')
    (folder / 'config.json').write_text(json.dumps(config))
    return theirs


@pytest.mark.parametrize('wrapped', [False, True], ids=['timm', 'transformers'])
@pytest.mark.parametrize(
    ('name', 'arguments', 'size'),
    [
        (TINY, dict(num_heads=6), (224, 224)),
        (TINY, dict(act_layer='quick_gelu', embed_dim=96, num_heads=2), (224, 224)),
        (TINY, dict(patch_size=8, img_size=[32, 128], reg_tokens=4), (32, 128)),
        (TINY, dict(pre_norm=True, init_values=1e-5, dynamic_img_size=True), (96, 160)),
        ('vit_small_patch16_rope_ape_224', dict(img_size=96), (96, 96)),
        ('vit_small_patch16_dinov3', dict(num_heads=12), (64, 96)),
    ],
)
def test_arguments_of_the_file(name, arguments, size, wrapped, tmp_path):
    theirs = write(tmp_path, name, wrapped=wrapped, **arguments)
    ours = CPVT.from_pretrained(tmp_path, out_type='raw').eval()
    images = torch.randn(1, 3, *size)
    with torch.inference_mode():
        assert max_difference(ours(images)[0], theirs.forward_features(images)) < 1e-5
    assert not any('trained with' in note for note in load_checkpoint(ours, tmp_path).notes)


def test_a_pyramid(tmp_path):
    """timm's Twins-SVT lets tokens attend to the padding of windows."""
    theirs = write(tmp_path, 'twins_svt_small', depths=[2, 2, 2, 2])
    ours = PyramidCPVT.from_pretrained(tmp_path, out_type='raw').eval()
    images = torch.randn(1, 3, 96, 160)
    with torch.inference_mode():
        assert max_difference(ours(images)[-1], theirs.forward_features(images)) < 2e-5


def test_what_the_weights_show_goes_before_the_file(tmp_path):
    theirs = write(tmp_path, TINY, shown=('num_heads',), num_heads=6, reg_tokens=4, init_values=0.1)
    ours = CPVT.from_pretrained(tmp_path, out_type='raw').eval()
    images = torch.randn(1, 3, 224, 224)
    with torch.inference_mode():
        assert max_difference(ours(images)[0], theirs.forward_features(images)) < 1e-5


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        (dict(model_args=dict(act_layer='relu')), "act_layer must be one of .*, got 'relu'"),
        (dict(model_args=dict(norm_layer='rmsnorm')), r'model_args\.norm_layer is not understood'),
        (dict(model_args=dict(dynamic_img_pad=True)), 'dynamic_img_pad is not understood, got Tr'),
        (dict(model_args=dict(block_fn='ParallelBlock')), 'block_fn is not understood'),
        (dict(model_args=[3]), r'model_args must be a JSON object, got \[3\]'),
        (dict(architecture='vit_base_patch16_rpn_224'), 'normalise after attention and MLP'),
        (dict(architecture='eva02_enormous_patch14_clip_224'), 'no model of this package'),
    ],
)
def test_models_that_are_refused(changes, message, tmp_path):
    write(tmp_path, TINY)
    config = json.loads((tmp_path / 'config.json').read_text())
    (tmp_path / 'config.json').write_text(json.dumps(config | changes))
    model = CPVT(arch='tiny', position=dict(type='Learned'))
    for load in (CPVT.from_pretrained, lambda folder: load_checkpoint(model, folder)):
        with pytest.raises(CheckpointError, match=rf'config\.json: .*{message}'):
            load(tmp_path)


# -- files alone
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('name', 'encoding', 'more'),
    [
        ('vit_small_patch16_rope_ape_224', 'axial', {}),
        ('vit_pe_spatial_tiny_patch16_512', 'pe', dict(activation='gelu', norm_eps=1e-5)),
        ('vit_pe_lang_large_patch14_448', 'pe', dict(activation='gelu', norm_eps=1e-5)),
    ],
)
def test_a_rotary_encoding_that_no_key_shows_is_asked_for(name, encoding, more, tmp_path):
    theirs = timm.create_model(name, num_classes=0, embed_dim=192, depth=2, num_heads=3).eval()
    torch.save(theirs.state_dict(), tmp_path / 'mine.pth')
    with pytest.raises(ValueError, match=rf"position: \[.*mode='{encoding}'\)\] .* or dict"):
        CPVT.from_pretrained(tmp_path / 'mine.pth', **more)
    alone = CPVT.from_pretrained(tmp_path / 'mine.pth', position=dict(type='Learned'), **more)
    notes = ' '.join(load_checkpoint(alone, tmp_path / 'mine.pth').notes)
    assert f"need dict(type='RoPE', mode='{encoding}') beside the position embedding" in notes
    position = [dict(type='Learned'), dict(type='RoPE', mode=encoding)]
    options = dict(position=position, out_type='raw', **more)
    ours = CPVT.from_pretrained(tmp_path / 'mine.pth', **options).eval()
    images = torch.randn(1, 3, *theirs.default_cfg['input_size'][1:])
    with torch.inference_mode():
        assert max_difference(ours(images)[0], theirs.forward_features(images)) < 1e-5


@pytest.mark.parametrize(
    ('name', 'family'),
    [
        ('hiera_tiny_224', 'Hiera'),
        ('sam2_hiera_tiny', 'SAM 2'),
        ('naflexvit_base_patch16_gap', 'NaFlexViT'),
        ('aimv2_large_patch14_224', 'AIMv2'),
        ('swin_tiny_patch4_window7_224', 'Swin'),
        ('swinv2_tiny_window8_256', 'Swin'),
        ('vit_relpos_small_patch16_224', 'a vit_relpos'),
        ('vit_srelpos_small_patch16_224', 'a vit_relpos'),
    ],
)
def test_other_families_are_named(name, family, tmp_path):
    with torch.device('meta'):
        state = timm.create_model(name).state_dict()
    state = {f'net.{key}': torch.zeros(value.shape[:1]) for key, value in state.items()}
    torch.save(state, tmp_path / 'w.pth')
    with pytest.raises(CheckpointError, match=f'is of {family}.*: no backbone here com') as raised:
        CPVT.from_pretrained(tmp_path / 'w.pth')
    assert 'pass' not in str(raised.value) and '\n' not in str(raised.value)


def test_models_of_videos_are_named(tmp_path):
    """V-JEPA 2 embeds patches of several frames."""
    state = CPVT(arch='tiny', position=None).state_dict()
    state['patch_embed.proj.weight'] = torch.zeros(192, 3, 2, 16, 16)
    torch.save(state, tmp_path / 'w.pth')
    with pytest.raises(CheckpointError, match='is of V-JEPA 2, VideoMAE .* of videos: no backb'):
        CPVT.from_pretrained(tmp_path / 'w.pth', position=None)
