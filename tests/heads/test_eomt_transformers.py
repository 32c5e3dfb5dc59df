"""EoMT of transformers: its folder loads, and computes the same."""

from pathlib import Path

import pytest
import torch
from tiny import EOMT_TRUNK, build, eomt, eomt_segmentor, max_difference

from benchmarks.peer_models import scaled
from cpvt_backbones.analysis.complexity import build_model
from cpvt_backbones.checkpoints import load_weights
from cpvt_backbones.toolboxes import read_config

transformers = pytest.importorskip('transformers')
pytestmark = pytest.mark.full
CONFIGS = Path(__file__).resolve().parents[2] / 'configs/published/eomt'
BUILDERS = {'detector': eomt, 'segmentor': eomt_segmentor}


def peer_of(**options):
    arch = dict(EOMT_TRUNK['arch'])
    config = transformers.EomtConfig(
        **{
            'hidden_size': arch['embed_dims'],
            'num_hidden_layers': arch['depth'],
            'num_attention_heads': arch['num_heads'],
            'mlp_ratio': 2,
            'image_size': 64,
            'num_register_tokens': 4,
            'num_blocks': 2,
            'num_queries': 6,
            'num_labels': 5,
            **options,
        }
    )
    torch.manual_seed(0)
    peer = scaled(transformers.EomtForUniversalSegmentation(config)).eval()
    peer.attn_mask_probs.zero_()  # as in published files
    return peer


@pytest.mark.parametrize('kind', BUILDERS)
@pytest.mark.parametrize('gated', [False, True])
def test_its_folder_gives_its_logits(kind, gated, tmp_path):
    peer, changes = peer_of(use_swiglu_ffn=gated), {}
    if gated:
        hidden = peer.layers[0].mlp.down_proj.in_features
        changes = {
            'backbone.activation': 'swiglu',
            'backbone.arch.mlp_ratio': hidden / EOMT_TRUNK['arch']['embed_dims'],
        }
    peer.save_pretrained(tmp_path / 'folder')
    model = build(BUILDERS[kind](**changes)).eval()
    load_weights(model, tmp_path / 'folder')
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        wanted = peer(images)
        (classes,), (masks,) = model(images, mode='tensor')
    for found, right in (
        (classes, wanted.class_queries_logits),
        (masks, wanted.masks_queries_logits),
    ):
        assert max_difference(found, right) <= 1e-5 * max(1, right.abs().max().item())


def test_its_masked_attention(tmp_path):
    """In training with all queries limited."""
    peer = peer_of()
    peer.save_pretrained(tmp_path / 'folder')
    model = build(eomt())
    load_weights(model, tmp_path / 'folder')
    peer.attn_mask_probs.fill_(1)
    model.panoptic_head.attn_mask_probs.fill_(1)
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        wanted = peer(images)  # it masks in evaluation mode, too
        found = model.train().extract_feat(images)
    masks, classes = found[-1]
    assert max_difference(masks, wanted.masks_queries_logits) <= 1e-4
    assert max_difference(classes, wanted.class_queries_logits) <= 1e-4


@pytest.mark.slow
@pytest.mark.parametrize('variant', ['small_640_2x', 'base_640_2x', 'large_640'])
def test_real_sizes(variant, tmp_path, record_property):
    """Of COCO panoptic at 640 px. Each block of the random weights changes the tokens."""
    cfg = read_config(CONFIGS / f'coco_panoptic_eomt_{variant}.py')
    arch, head = cfg.model.backbone.arch, cfg.model.panoptic_head
    peer = peer_of(
        hidden_size=arch['embed_dims'],
        num_hidden_layers=arch['depth'],
        num_attention_heads=arch['num_heads'],
        mlp_ratio=4,
        image_size=640,
        num_blocks=head.num_blocks,
        num_queries=head.num_queries,
        num_labels=133,
        layerscale_value=0.5,
    )
    peer.save_pretrained(tmp_path / 'folder')
    model = build_model(cfg).eval()
    load_weights(model, tmp_path / 'folder')
    images = torch.randn(1, 3, 640, 640)
    with torch.no_grad():
        wanted = peer(images)
        (classes,), (masks,) = model(images, mode='tensor')
    for name, found, right in (
        ('classes', classes, wanted.class_queries_logits),
        ('masks', masks, wanted.masks_queries_logits),
    ):
        difference = max_difference(found, right) / right.abs().max().item()
        record_property(name, difference)
        print(f'EoMT {variant}, {name}: {difference:.1e} of the largest logit')
        assert difference <= 1e-5
