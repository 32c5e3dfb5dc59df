"""Weights of BEiT and of mmseg's MAE: a relative position bias in each block."""

import pytest
import torch

from benchmarks.published import difference, randomise
from cpvt_backbones import CPVT, convert_state_dict
from cpvt_backbones.checkpoints import CheckpointError

ARCH = dict(embed_dims=48, depth=3, num_heads=4, mlp_ratio=4)
OPTIONS = dict(arch=ARCH, patch_size=8, img_size=64, layer_scale_init=1.0)
BIAS = dict(type='RelativeBias')


def in_mmseg(kind):
    backbones = pytest.importorskip('mmseg.models.backbones')
    options = dict(embed_dims=48, num_layers=3, num_heads=4, norm_cfg=dict(type='LN', eps=1e-6))
    model = getattr(backbones, kind)(img_size=64, patch_size=8, out_indices=[0, 2], **options)
    randomise(model)
    model.eval()  # returns None
    return model


@pytest.mark.parametrize('kind', ['MAE', 'BEiT'])
def test_a_trunk_of_mmseg_computes_the_same(kind):
    torch.manual_seed(0)
    peer = in_mmseg(kind)
    position = [dict(type='Learned', antialias=False), BIAS] if kind == 'MAE' else BIAS
    model = CPVT(**OPTIONS, position=position, out_indices=[0, 2], final_norm=False).eval()
    weights, report = convert_state_dict(peer.state_dict(), model)
    assert not report.missing and not report.notes
    model.load_state_dict(weights)
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        assert difference(list(model(images)), list(peer(images))) <= 1e-6


@pytest.mark.parametrize('size', [64, 96])
def test_a_beit_of_timm_is_recognised_and_computes_the_same(size, tmp_path):
    timm = pytest.importorskip('timm')
    torch.manual_seed(0)
    options = dict(embed_dim=48, depth=3, num_heads=4, patch_size=8, img_size=size)
    peer = timm.create_model('beit_base_patch16_224', **options, num_classes=0).eval()
    randomise(peer)
    torch.save(peer.state_dict(), tmp_path / 'beit.pth')
    model = CPVT.from_pretrained(tmp_path / 'beit.pth', out_type='raw').eval()
    assert model.position['grid'] == size // 8
    images = torch.randn(2, 3, size, size)
    with torch.no_grad():
        (found,), wanted = model(images), peer.forward_features(images)
    assert difference([found], [model.norm(wanted)]) <= 1e-6


def test_a_beit_of_transformers_is_resized_as_there():
    transformers = pytest.importorskip('transformers')
    torch.manual_seed(0)
    config = transformers.BeitConfig(
        hidden_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=192,
        patch_size=8,
        image_size=64,
        use_relative_position_bias=True,
        use_mean_pooling=False,
        layer_norm_eps=1e-6,
    )
    peer = transformers.BeitModel(config).eval()
    randomise(peer)
    model = CPVT(**OPTIONS, position=BIAS, out_type='raw').eval()
    weights, report = convert_state_dict(peer.state_dict(), model)
    assert not report.missing
    model.load_state_dict(weights)
    for size in ((64, 64), (40, 104), (120, 72)):
        images = torch.randn(2, 3, *size)
        with torch.no_grad():
            (found,), wanted = model(images), peer(images, interpolate_pos_encoding=True)
        assert difference([found], [wanted.last_hidden_state]) <= 1e-6


@pytest.mark.parametrize(
    ('position', 'line'),
    [
        (dict(type='Learned'), r"needs dict\(type='RelativeBias'\) in position"),
        (dict(type='RelativeBias', grid=5), r'\(228, 4\), .* \(84, 4\): the grid of RelativeBias'),
    ],
)
def test_a_model_with_another_bias_refuses(position, line):
    model = CPVT(**OPTIONS, position=position, final_norm=False)
    with pytest.raises(CheckpointError, match=line):
        convert_state_dict(in_mmseg('BEiT').state_dict(), model)
