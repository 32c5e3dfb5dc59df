"""The section of docs/weights.md on DINOv3 from a file, with random weights in Meta's names."""

import hashlib

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS
from pages import blocks

from cpvt_backbones import CPVT
from cpvt_backbones.checkpoints import CheckpointError

NAME = 'dinov3_vits16_pretrain_lvd1689m-08c60483.pth'
(CALL,) = (text for _, text in blocks('docs/weights.md') if NAME in text)
(CONFIG,) = (text for _, text in blocks('docs/evidence.md') if text.startswith('model ='))
TIMM = 'timm://vit_small_patch16_dinov3.lvd1689m'
ARCH = dict(embed_dims=192, depth=1, num_heads=3, mlp_ratio=4.0)


def write_file(folder, backbone):
    """Weights of a backbone in Meta's names, under a name that ends in the digits of its hash."""
    keys = torch.eye(3)[1].repeat_interleave(192)
    weights = {
        key.replace('reg_token', 'storage_tokens'): value
        for key, value in backbone.state_dict().items()
        if not key.startswith('pyramid.')
    }
    weights['blocks.0.attn.qkv.bias_mask'] = 1 - keys
    weights['mask_token'], weights['rope_embed.periods'] = torch.zeros(1, 192), torch.ones(16)
    torch.save(weights, folder / 'new.pth')
    digits = hashlib.sha256((folder / 'new.pth').read_bytes()).hexdigest()[:8]
    return (folder / 'new.pth').rename(folder / NAME.replace('08c60483', digits))


def test_dinov3_from_a_file(tmp_path, monkeypatch):
    """The call and the config load the same weights; a renamed or a damaged file is refused."""
    monkeypatch.chdir(tmp_path)
    config = CONFIG.replace("arch='small'", f'arch={ARCH}').replace('qkv_bias=False,', '')
    (tmp_path / 'first.py').write_text(config)
    file = write_file(tmp_path, MODELS.build(Config.fromfile(tmp_path / 'first.py').model.backbone))
    (tmp_path / 'dinov3.py').write_text(config.replace(TIMM, file.name))
    backbone = MODELS.build(Config.fromfile(tmp_path / 'dinov3.py').model.backbone)
    backbone.init_weights()
    values = {}
    exec(CALL.replace(NAME, file.name), values)
    for key, value in values['model'].state_dict().items():
        if not key.startswith('pyramid.'):
            assert torch.equal(value, backbone.state_dict()[key]), key
    assert values['model'].num_registers == backbone.num_registers == 4
    file.rename(NAME)
    with pytest.raises(CheckpointError, match='is damaged'):
        CPVT.from_pretrained(NAME)
    (tmp_path / NAME).rename('vit_small_patch16_dinov3.lvd1689m.pth')
    with pytest.raises(CheckpointError, match='qkv_bias=True'):
        CPVT.from_pretrained('vit_small_patch16_dinov3.lvd1689m.pth', arch=ARCH)
