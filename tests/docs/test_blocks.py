"""Every Python block of the pages runs, with small models and data.

Blocks that a test of their own page runs are listed with it. bridges.md is run as a whole.
"""

import json
import os
import shutil
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mmengine.registry import HOOKS, MODELS
from pages import ROOT, blocks
from PIL import Image
from safetensors.torch import save_file
from tiny import PYRAMID

from cpvt_backbones import CPVT, PEG, MultiScaleCPVT, PyramidCPVT
from cpvt_backbones.backbones.archs import HIERARCHICAL_ARCHS
from cpvt_backbones.checkpoints import public_backbone
from cpvt_backbones.checkpoints.conversion import public
from cpvt_backbones.checkpoints.reading import finding
from cpvt_backbones.engine import ResumableRunner

COLUMN = dict(embed_dims=48, depth=2, num_heads=2, mlp_ratio=2.0)
CLASSIFIER = 'cpvt_tiny_gap-imagenette'
# Page, and text of a block that another test runs.
ELSEWHERE = {
    'docs/evidence.md': {'model = dict(': 'test_local_dinov3.py'},
    'docs/evidence/one_gpu.md': {'accumulative_counts=1': 'test_example_masks.py'},
    'docs/export.md': {"'classifier.onnx'": 'test_export_page.py'},
    'docs/improve.md': {
        "'out/maps/": 'test_example_masks.py',
        'tta_pipeline = ': 'test_example_masks.py',
    },
    'docs/own_data.md': {'categories = [': 'test_own_data_page.py'},
    'docs/mmdet.md': {
        '# my_detector.py': 'test_own_config.py',
        '# my_faster_rcnn.py': 'test_own_config.py',
        '# three_classes.py': 'test_own_config.py',
    },
    'docs/mmseg.md': {
        '# my_upernet.py': 'test_own_config.py',
        '# my_segmentor.py': 'test_own_config.py',
        '# (1) more pixels': 'test_own_config.py',
    },
    'docs/own_config.md': {'optim_wrapper = dict(\n    constructor=': 'test_own_config.py'},
    'docs/weights.md': {
        "'dinov3_vits16_": 'test_local_dinov3.py',
        "'runs/epoch_12.pth'": 'test_weights_pages.py',
        "'dino.pth'": 'test_weights_pages.py',
    },
}
PAGES = sorted(
    page
    for path in (ROOT / 'docs').rglob('*.md')
    if (page := path.relative_to(ROOT).as_posix()) != 'docs/bridges.md'
    and path.parent.name != 'api'  # examples of docstrings: test_examples.py
    and any(
        language == 'python' and not any(part in text for part in ELSEWHERE.get(page, ()))
        for language, text in blocks(page)
    )
)


def run(page, changes=(), **names):
    """Run the blocks of a page that no other test runs, in one namespace, which is returned."""
    texts = [text for language, text in blocks(page) if language == 'python']
    for part in ELSEWHERE.get(page, ()):
        assert sum(part in text for text in texts) == 1, part
        texts = [text for text in texts if part not in text]
    for old, new in changes:
        assert any(old in text for text in texts), old
        texts = [text.replace(old, new) for text in texts]
    assert texts
    for text in texts:
        exec(compile(text, page, 'exec'), names)
    return names


@pytest.fixture
def small(tmp_path, monkeypatch):
    """Sizes of models are tiny, and timm's hub has random weights under each name."""
    pytest.importorskip('timm')
    monkeypatch.chdir(tmp_path)
    for size in ('tiny', 'small', 'base'):
        monkeypatch.setitem(public._SIZES, size, COLUMN)
        monkeypatch.setitem(HIERARCHICAL_ARCHS, size, PYRAMID)

    def fetched(name):
        built = public_backbone(name)
        model = dict(CPVT=CPVT, PyramidCPVT=PyramidCPVT)[built.pop('type')](**built)
        weights = {
            key.replace('pos_embed.0', 'pos_embed'): value
            for key, value in model.state_dict().items()
        }
        file = tmp_path / f'{name.removeprefix("timm://")}.safetensors'
        save_file(weights, file)
        return file

    monkeypatch.setattr(finding, 'fetch', fetched)


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """``photo.jpg``, ``photos/`` and ``scans/a/``."""
    monkeypatch.chdir(tmp_path)
    noise = np.random.default_rng(0).integers(0, 255, (48, 64, 3), np.uint8)
    for name in ('photo.jpg', 'photos/1.jpg', 'photos/2.jpg', 'scans/a/1.tif'):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noise).save(tmp_path / name)


def test_every_page_is_run_here():
    text = (ROOT / 'tests/docs/test_blocks.py').read_text()
    assert len(PAGES) >= 9
    for page in PAGES:
        assert f"run('{page}'" in text or f"run(\n        '{page}'" in text, page


def test_evidence():
    found = run('docs/evidence.md')
    model = MODELS.build(dict(found['backbone'], arch=dict(COLUMN, depth=6)))
    assert sum(isinstance(module, PEG) for module in model.modules()) == 5


def test_get_started():
    found = run('docs/get_started.md', [("arch='small'", f'arch={COLUMN}')])
    shapes = [tuple(one.shape[2:]) for one in found['maps']]
    assert shapes == [(84, 130), (42, 65), (21, 33), (11, 17)]
    assert found['vector'].shape == (1, 192)


def test_how_it_works():
    found = run('docs/how_it_works.md')
    assert found['map_'].shape == (1, 192, 21, 33)


def test_inference(photos, tmp_path):
    pytest.importorskip('mmpretrain')
    from cpvt_backbones.toolboxes import read_config
    from cpvt_backbones.weights import find_shipped

    shipped = find_shipped(CLASSIFIER)
    read_config(shipped.config_file).dump('config.py')
    shutil.copy(shipped.file, 'model.safetensors')
    found = run('docs/inference.md', [("'model.pth'", "'model.safetensors'")])
    assert found['prediction']['class'] and found['picture'] is not None
    assert len(found['results']) == 3 and all(one.prediction for one in found['results'])
    assert len(json.loads((tmp_path / 'out/photos/predictions.json').read_text())) == 2


def test_own_config(capsys):
    pytest.importorskip('timm')
    run('docs/own_config.md')
    assert capsys.readouterr().out == (
        'mean [127.5, 127.5, 127.5] and std [127.5, 127.5, 127.5] of RGB\n'
    )


def test_mmdet():
    found = run('docs/mmdet.md')
    assert found['load_from'] == 'retinanet_pvtv2_b2-coco'


def test_mmseg():
    found = run('docs/mmseg.md')
    assert found['load_from'] == 'upernet_twins_pcpvt_small-ade20k'


def test_mmpretrain():
    found = run('docs/mmpretrain.md')
    assert found['model']['neck'] is None


def test_own_images(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.makedirs('out/model/pred')
    classes = np.zeros((9, 9), np.uint8)
    classes[1, 1] = classes[5:7, 5:7] = 1
    Image.fromarray(classes).save('out/model/pred/photo.png')
    assert run('docs/own_images.md')['count'] == 2


def test_improve():
    found = run('docs/improve.md')
    assert [one['type'] for one in found['visualizer']['vis_backends']] == [
        'LocalVisBackend',
        'TensorboardVisBackend',
    ]


def test_resume():
    """The lines, and in place of the last one that with an interval."""
    found = run('docs/resume.md')
    assert found['custom_imports'] == dict(imports=['cpvt_backbones'])
    assert found['runner_type'] == ResumableRunner.__name__
    options = dict(found['default_hooks']['checkpoint'])
    assert HOOKS.build(options).max_keep_ckpts == 2


class InProcess:
    """Ray's data set, without its cluster: the calls on the page, in this process."""

    def __init__(self, rows):
        self.rows = rows

    def map_batches(self, worker, *, batch_size, concurrency):
        worker, found = worker(), []
        for start in range(0, len(self.rows), batch_size):
            rows = self.rows[start : start + batch_size]
            result = worker({key: [row[key] for row in rows] for key in rows[0]})
            found += [
                dict(zip(result, row, strict=True)) for row in zip(*result.values(), strict=True)
            ]
        return InProcess(found)

    def write_parquet(self, folder):
        self.folder = folder


def test_scale(photos, monkeypatch):
    """On a cluster: test_ray_example.py."""
    pytest.importorskip('mmpretrain')
    from_items = SimpleNamespace(from_items=lambda rows, override_num_blocks: InProcess(rows))
    monkeypatch.setitem(sys.modules, 'ray', SimpleNamespace(data=from_items))
    found = run(
        'docs/scale.md', [("cfg='CONFIG', checkpoint='CHECKPOINT'", f'checkpoint={CLASSIFIER!r}')]
    )
    rows = found['data'].rows
    assert len(rows) == 2 and all('label' in json.loads(row['prediction']) for row in rows)


def test_weights(small, tmp_path):
    from timm.models.vision_transformer_sam import VisionTransformerSAM

    CPVT(arch=COLUMN, patch_size=14).save_pretrained('facebook/dinov2-small')
    sizes = dict(img_size=64, embed_dim=48, depth=4, num_heads=2, neck_chans=8)
    windows = dict(use_rel_pos=True, window_size=2, global_attn_indexes=(1, 3))
    weights = VisionTransformerSAM(**sizes, **windows, num_classes=0).state_dict()
    sam = {f'image_encoder.{key}': value for key, value in weights.items()}
    torch.save(sam, 'sam_vit_b_01ec64.pth')
    vitdet = {f'backbone.{key}': value for key, value in weights.items() if 'neck' not in key}
    torch.save(dict(model=vitdet), 'vitdet.pth')
    found = run('docs/weights.md')
    assert isinstance(found['model'], MultiScaleCPVT)


class Around(torch.nn.Module):
    """A model around a backbone."""

    def __init__(self, backbone):
        super().__init__()
        self.backbone = backbone

    def forward(self, images):
        return self.backbone(images)


@pytest.mark.full
def test_export(photos, monkeypatch):
    pytest.importorskip('onnxruntime')
    pytest.importorskip('mmdet')
    monkeypatch.syspath_prepend(str(ROOT / 'tests' / 'export'))
    from export_models import BACKBONES, detector

    from cpvt_backbones.export import export, graph_of

    single = detector(levels=1)
    classes = [f'kind {i}' for i in range(80)]
    export(graph_of(single), 'model.onnx', settings=dict(classes=classes))
    found = run(
        'docs/export.md',
        [("arch='small'", f'arch={PYRAMID}')],
        model=Around(MODELS.build(BACKBONES['single'])),
        MultiScaleCPVT=MultiScaleCPVT,
    )
    assert len(found['names']) == len(found['boxes'])
    assert found['extractor']
