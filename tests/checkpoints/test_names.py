"""Published models by name: a server on the loopback address is the publisher."""

import hashlib
import io
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import numpy as np
import pytest
import torch
from mmengine.config import Config
from peers import PVT_ARCH, PVT_TABLE, mmdet_pvt, scaled
from tiny import build, retinanet

from cpvt_backbones import PyramidCPVT, weights
from cpvt_backbones.checkpoints import CheckpointError, locate_checkpoint, read_checkpoint
from cpvt_backbones.inference import Inferencer
from cpvt_backbones.weights import named_models, published_weights, repository_file

NAME = 'retinanet_toys-coco'
PVT = dict(type='PyramidCPVT', arch=PVT_ARCH, img_size=64, embed_norm_eps=1e-6, position=PVT_TABLE)
PIPELINE = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(96, 64), keep_ratio=True),
    dict(type='PackDetInputs', meta_keys=('img_path', 'ori_shape', 'img_shape', 'scale_factor')),
]


class Publisher(BaseHTTPRequestHandler):
    """Sends ``content``; ``sends`` bytes an answer at most, from the first byte that is asked."""

    def do_GET(self):
        server = self.server
        asked = self.headers.get('Range', 'bytes=0-')
        server.asked.append(asked)
        start = int(asked.removeprefix('bytes=').rstrip('-')) if server.resumes else 0
        self.send_response(206 if start else 200)
        self.send_header('Content-Length', str(len(server.content) - start))
        self.send_header('ETag', '"1"')
        self.end_headers()
        self.wfile.write(server.content[start : start + server.sends])

    def log_message(self, *_):
        pass


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
    monkeypatch.setattr(torch.hub, 'get_dir', lambda: str(tmp_path / 'torch'))
    with ThreadingHTTPServer(('127.0.0.1', 0), Publisher) as server:
        server.content, server.peer, server.asked = buffer.getvalue(), peer, []
        server.sends, server.resumes = len(server.content), True
        digest = hashlib.sha256(server.content).hexdigest()[:8]
        entry = dict(
            about='toys',
            task='detection',
            dataset='COCO',
            config=str(file),
            address=f'http://127.0.0.1:{server.server_port}/toys_2021-{digest}.pth',
            scores={'box AP': 1.0},
            source='this test',
            license='none',
            parameters=1_500_000,
        )
        (tmp_path / 'index.json').write_text(json.dumps({NAME: entry}))
        thread = threading.Thread(target=server.serve_forever, kwargs=dict(poll_interval=0.01))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_name_is_config_and_weights(publisher):
    """An answer that is cut is resumed; the file is kept."""
    publisher.sends = len(publisher.content) // 2 + 1
    image = np.random.default_rng(0).integers(0, 255, (64, 96, 3), np.uint8)
    inferencer = Inferencer(checkpoint=NAME, device='cpu')
    assert publisher.asked == ['bytes=0-', f'bytes={publisher.sends}-']
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
    assert len(publisher.asked) == 2


def test_without_a_network_one_line_says_what_to_do(publisher):
    published = published_weights()[NAME]
    publisher.shutdown()
    publisher.server_close()
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(NAME)
    line = str(caught.value)
    assert line.startswith(f"checkpoint: '{NAME}' (about 6 MB): {published.address} could not be")
    name = urlsplit(published.address).path[1:]
    folder = weights.FOLDER / 'torch' / 'checkpoints'
    assert line.endswith(f"without a network, put the file at '{folder / name}'")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(publisher.content)
    assert 'state_dict' in read_checkpoint(NAME)


@pytest.mark.parametrize(
    ('change', 'message'),
    {
        'another file': 'the SHA-256 of the answer is .* as in its name',
        'no resuming': r'the answer ended after 1,000 of \d+ bytes',
        'nothing more': r'the answer ended after 1,000 of \d+ bytes',
    }.items(),
)
def test_another_or_an_incomplete_file_is_not_kept(change, message, publisher):
    if change == 'another file':
        publisher.content = publisher.content[:-1] + b'x'
    elif change == 'no resuming':
        publisher.sends, publisher.resumes = 1000, False
    else:
        publisher.sends = 1000
        whole, publisher.content = publisher.content, Short(publisher.content)
        assert len(publisher.content) == len(whole)
    with pytest.raises(CheckpointError, match=message):
        locate_checkpoint(NAME)
    assert not list(weights.FOLDER.rglob('*.pth'))


class Short(bytes):
    """Content of which a server has the first 1,000 bytes."""

    def __getitem__(self, part):
        return bytes(self)[:1000][part]


def test_the_index():
    """Each entry has a config here, and a whole address."""
    entries = published_weights()
    assert len(entries) >= 40 and entries.keys() < named_models().keys()
    for entry in entries.values():
        assert repository_file(entry.config).is_file(), entry.config
        assert entry.address.startswith(('https://', 'timm://')), entry.address
        assert entry.scores and entry.source and entry.parameters > 1e6
        assert entry.task in ('detection', 'segmentation', 'classification')
