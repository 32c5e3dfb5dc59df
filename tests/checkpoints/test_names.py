"""Published models by name: a server on the loopback address is the publisher."""

import hashlib
import io
import json
import re

import numpy as np
import pytest
import torch
from hostile import refused
from mmengine.config import Config
from peers import PVT_ARCH, PVT_TABLE, mmdet_pvt, scaled
from safetensors.torch import save
from server import serving
from tiny import build, retinanet

from cpvt_backbones import PyramidCPVT, weights
from cpvt_backbones.checkpoints import read_checkpoint
from cpvt_backbones.inference import Inferencer
from cpvt_backbones.weights import named_models, published_weights, repository_file

NAME = 'retinanet_toys-coco'
PVT = dict(type='PyramidCPVT', arch=PVT_ARCH, img_size=64, embed_norm_eps=1e-6, position=PVT_TABLE)
PIPELINE = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(96, 64), keep_ratio=True),
    dict(type='PackDetInputs', meta_keys=('img_path', 'ori_shape', 'img_shape', 'scale_factor')),
]


@pytest.fixture
def publisher(tmp_path, monkeypatch):
    """A detector with mmdet's PVT, in the index under its name, in no cache."""
    config = retinanet(PVT, **{'test_cfg.score_thr': 0.05})
    peer = build(config)
    peer.backbone = mmdet_pvt()
    scaled(peer)
    buffer = io.BytesIO()
    meta = dict(CLASSES=('cat', 'dog', 'bus'), PALETTE=[(1, 2, 3)] * 3)
    torch.save(dict(state_dict=peer.state_dict(), meta=meta), buffer)
    test = dict(dataset=dict(type='CocoDataset', pipeline=PIPELINE))
    file = tmp_path / 'config.py'
    drawn = dict(type='DetLocalVisualizer', name='visualizer')
    whole = dict(model=config, default_scope='mmdet', test_dataloader=test, visualizer=drawn)
    Config(whole).dump(file)
    monkeypatch.setattr(weights, 'FOLDER', tmp_path)
    monkeypatch.setattr(weights, 'INDEX', tmp_path / 'index.json')
    with serving(monkeypatch, tmp_path) as server:
        content = buffer.getvalue()
        server.peer, server.path = peer, f'/toys_2021-{hashlib.sha256(content).hexdigest()[:8]}.pth'
        server.files[server.path] = content
        entry = dict(
            about='toys',
            task='detection',
            dataset='COCO',
            config=str(file),
            address=server.address + server.path,
            scores={'box AP': 1.0},
            source='this test',
            license='none',
            parameters=1_500_000,
        )
        (tmp_path / 'index.json').write_text(json.dumps({NAME: entry}))
        yield server


def test_a_name_is_config_and_weights(publisher):
    """The file is kept."""
    image = np.random.default_rng(0).integers(0, 255, (64, 96, 3), np.uint8)
    inferencer = Inferencer(checkpoint=NAME, device='cpu')
    publisher.files.clear()
    model = inferencer.predictor.model
    images = torch.randn(1, 3, 64, 64)
    with torch.inference_mode():
        found, wanted = model(images), publisher.peer(images)
    for ours, theirs in zip(sum(map(list, found), []), sum(map(list, wanted), []), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    assert inferencer.predictor.classes == ['cat', 'dog', 'bus']
    inferencer(image)
    backbone = PyramidCPVT.from_pretrained(NAME, arch=PVT_ARCH)
    assert torch.equal(
        backbone.patch_embeds[0].proj.weight, model.backbone.patch_embeds[0].proj.weight
    )


def test_without_a_network_one_line_says_what_to_do(publisher):
    content = publisher.files.pop(publisher.path)
    line = refused(NAME, 'could not be fetched')
    address = publisher.address + publisher.path
    assert line.startswith(f"checkpoint: '{NAME}' (about 6 MB): {address} could not be")
    file = weights.FOLDER / 'torch' / 'checkpoints' / publisher.path[1:]
    assert line.endswith(f"without a network, put the file at '{file}'")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    assert 'state_dict' in read_checkpoint(NAME)


def test_another_file_is_not_kept(publisher):
    publisher.files[publisher.path] += b'x'
    refused(NAME, 'the SHA-256 of the answer is .* as in its name')
    assert not list(weights.FOLDER.rglob('*.pth'))


def test_a_cached_file_of_another_digest_is_not_read(publisher, tmp_path):
    """Whatever lies beside it."""
    file = tmp_path / 'torch' / 'checkpoints' / publisher.path[1:]
    file.parent.mkdir(parents=True)
    content = save({'backbone.norm.weight': torch.ones(2)})
    file.write_bytes(content)
    file.with_name(f'{file.name}.sha256').write_text(hashlib.sha256(content).hexdigest())
    line = refused(NAME, 'is damaged: its SHA-256 is .* as in its name; fetch it again')
    assert line.endswith(f"delete '{file}' to fetch it again")


def test_an_incomplete_file_is_not_kept(publisher):
    publisher.cut.add(publisher.path)
    refused(NAME, r'the answer ended after [\d,]+ of \d+ bytes')
    assert not list(weights.FOLDER.rglob('*.pth'))


def test_the_index():
    """Each entry has a config here, and a whole address."""
    entries = published_weights()
    assert len(entries) >= 40 and entries.keys() < named_models().keys()
    for entry in entries.values():
        assert repository_file(entry.config).is_file(), entry.config
        assert entry.address.startswith(('https://', 'timm://')), entry.address
        assert entry.scores and entry.source and entry.parameters > 1e6
        assert entry.task in ('detection', 'panoptic', 'segmentation', 'classification')
        stem = entry.address.rpartition('/')[2].partition('.')[0]
        digits = re.search(r'-([0-9a-f]{8})$', stem)
        assert not digits or weights.hash_in_name(stem) == digits[1]  # of digits alone, too
