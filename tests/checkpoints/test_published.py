"""Configs of published models: a file of the toolbox's model opens, and gives the same outputs."""

import hashlib
import io
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from mmcv.transforms import Compose
from mmengine.registry import init_default_scope
from PIL import Image
from tiny import only

from benchmarks.published import (
    ALL_CONFIGS,
    CONFIGS,
    FOLDER,
    PHOTO,
    build,
    difference,
    outputs,
    pair,
    peer_of,
    predict,
    randomise,
    table_rows,
)
from cpvt import command_line
from cpvt_backbones import weights
from cpvt_backbones.checkpoints import load_weights, read_checkpoint
from cpvt_backbones.inference import ToolboxPredictor
from cpvt_backbones.toolboxes import dataset_metainfo, read_config

BOUND = 1e-5
PYRAMID = dict(
    depths=(1, 1, 2, 2),
    embed_dims=(16, 32, 80, 64),
    num_heads=(1, 2, 5, 2),
    mlp_ratios=(4, 4, 4, 4),
    sr_ratios=(8, 4, 2, 1),
)
COLUMN = dict(embed_dims=24, depth=2, num_heads=2, mlp_ratio=4)
PVT = dict(PYRAMID, embed_dims=(16, 32, 32, 64), num_heads=(1, 2, 2, 4), mlp_ratios=(8, 8, 4, 4))


class Case(NamedTuple):
    """A config made tiny by overrides of the toolbox's model, of ours and of both."""

    name: str
    theirs: dict[str, Any]
    ours: dict[str, Any]
    both: dict[str, Any]
    sizes: tuple[tuple[int, int], ...]


def lists(arch):
    return {key: list(value) for key, value in arch.items()}


def mmseg_vit(**options):
    return {'num_layers': 2, 'embed_dims': 24, 'num_heads': 2, **options}


CASES = [
    Case(
        'twins/twins_svt-s_fpn_fpnhead_8xb4-80k_ade20k-512x512',
        {f'backbone.{key}': value for key, value in lists(PYRAMID).items()},
        {'backbone.arch': {**PYRAMID, 'window_size': 7}},
        {
            'neck.in_channels': [16, 32, 80, 64],
            'neck.out_channels': 16,
            'decode_head.in_channels': [16] * 4,
            'decode_head.channels': 16,
        },
        ((224, 224), (96, 160)),
    ),
    Case(
        'pvt/retinanet_pvt-t_fpn_1x_coco',
        {
            'backbone.embed_dims': 16,
            'backbone.num_layers': list(PVT['depths']),
            'backbone.num_heads': list(PVT['num_heads']),
        },
        {'backbone.arch': {**PVT}},
        {
            'neck.in_channels': [16, 32, 32, 64],
            'neck.out_channels': 16,
            'bbox_head.in_channels': 16,
            'bbox_head.feat_channels': 16,
        },
        ((224, 224), (96, 160)),
    ),
    Case(
        'imagenet/deit-tiny-distilled_4xb256_in1k',
        {'backbone.arch': dict(embed_dims=24, num_layers=2, num_heads=2, feedforward_channels=96)},
        {'backbone.arch': {**COLUMN}},
        {'head.in_channels': 24},
        ((224, 224), (97, 160)),
    ),
    Case(
        'segmenter/segmenter_vit-t_mask_8xb1-160k_ade20k-512x512',
        {f'backbone.{key}': value for key, value in mmseg_vit(img_size=(64, 64)).items()},
        {'backbone.arch': {**COLUMN}, 'backbone.img_size': 64},
        {
            'decode_head.in_channels': 24,
            'decode_head.channels': 24,
            'decode_head.embed_dims': 24,
            'decode_head.num_heads': 2,
        },
        ((64, 64), (97, 160)),
    ),
    Case(
        'dpt/dpt_vit-b16_8xb2-160k_ade20k-512x512',
        {
            f'backbone.{key}': value
            for key, value in mmseg_vit(
                num_layers=4, img_size=(64, 64), out_indices=(0, 1, 2, 3)
            ).items()
        },
        {
            'backbone.arch': {**COLUMN, 'depth': 4},
            'backbone.img_size': 64,
            'backbone.out_indices': (0, 1, 2, 3),
        },
        {
            'decode_head.in_channels': (24,) * 4,
            'decode_head.embed_dims': 24,
            'decode_head.channels': 16,
            'decode_head.post_process_channels': [8, 8, 8, 8],
        },
        ((64, 64), (97, 160)),
    ),
    Case(
        'mae/mae-base_upernet_8xb2-amp-160k_ade20k-512x512',
        {
            f'backbone.{key}': value
            for key, value in mmseg_vit(
                num_layers=4, img_size=(64, 64), out_indices=[0, 1, 2, 3]
            ).items()
        },
        {
            'backbone.arch': {**COLUMN, 'depth': 4},
            'backbone.img_size': 64,
            'backbone.out_indices': [0, 1, 2, 3],
        },
        {
            'neck.embed_dim': 24,
            'decode_head.in_channels': [24] * 4,
            'decode_head.channels': 16,
            'auxiliary_head.in_channels': 24,
        },
        ((64, 64),),  # mmseg's takes one size
    ),
]


def in_model(overrides):
    """Overrides of a config; an arch replaces the name of one."""
    dicts = (value for value in overrides.values() if isinstance(value, dict))
    for value in dicts:
        value['_delete_'] = True
    return {f'model.{key}': value for key, value in overrides.items()}


@pytest.mark.parametrize('case', CASES, ids=lambda case: case.name)
def test_a_tiny_model_computes_the_same(case, record_property):
    torch.manual_seed(0)
    path = FOLDER / f'{case.name}.py'
    theirs, ours = ({**one, **case.both} for one in (case.theirs, case.ours))
    (_, peer), (_, model) = pair(path, in_model(theirs), in_model(ours))
    for size in case.sizes:
        images = torch.randn(1, 3, *size)
        found = difference(outputs(model, images), outputs(peer, images))
        record_property(f'{size[0]}x{size[1]}', f'{found:.1e}')
        assert found <= BOUND


@pytest.mark.full
def test_a_classifier_of_timm_computes_the_same():
    torch.manual_seed(0)
    (_, peer), (_, model) = pair(FOLDER / 'timm' / 'vit_small_patch16_rope_mixed_224.py')
    for size in ((224, 224), (64, 112)):
        images = torch.randn(1, 3, *size)
        assert difference(outputs(model, images), outputs(peer, images)) <= BOUND


def test_a_file_of_mmdets_vitdet_opens(tmp_path):
    """Its table has an entry for a class token, which neither model has."""
    cfg = read_config(FOLDER / 'vitdet' / 'vitdet_mask-rcnn_vit-b-mae_lsj-100e.py')
    changes = {
        'backbone.arch': {**COLUMN},
        'backbone.global_blocks': (1,),
        'neck.in_channels': 24,
        'rpn_head.num_convs': 1,
        'roi_head.bbox_head.fc_out_channels': 8,
    }
    cfg.merge_from_dict(in_model(changes))
    model, opened = build(cfg), build(cfg)
    randomise(model)
    published = {}
    for key, value in model.state_dict().items():
        key = re.sub(r'rel_pos_hw\.(\d+)\.([hw])$', r'blocks.\1.attn.rel_pos_\2', key)
        if key.endswith('pos_embed.0'):
            published[key.removesuffix('.0')] = torch.cat((value[:, :1], value), dim=1)
        elif not key.endswith('grid_0'):
            published[key] = value
    torch.save(dict(state_dict=published, meta={}), tmp_path / 'vitdet.pth')
    load_weights(opened, tmp_path / 'vitdet.pth')
    images = torch.randn(1, 3, 224, 320)
    with torch.inference_mode():
        found, wanted = opened.extract_feat(images), model.extract_feat(images)
    assert len(wanted) == 5 and difference(list(found), list(wanted)) == 0
    theirs, ours = published, opened.state_dict()
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs if 'backbone' not in key)


def test_vitdet_pads_to_a_square_and_keeps_the_size_of_the_image():
    """Boxes are clipped at that size: mmdet fails to paste a mask beside the image."""
    cfg = read_config(FOLDER / 'vitdet' / 'vitdet_mask-rcnn_vit-b-mae_lsj-100e.py')
    steps = cfg.test_dataloader.dataset.pipeline
    init_default_scope('mmdet')
    found = Compose([step for step in steps if step['type'] != 'LoadAnnotations'])(
        dict(img_path=str(PHOTO), img_id=0)
    )
    assert found['inputs'].shape == (3, 1024, 1024)
    assert (found['inputs'][:, 768:] == 114).all() and (found['inputs'][:, 767] != 114).any()
    assert found['data_samples'].img_shape == (768, 1024)


@pytest.mark.parametrize(('number', 'first'), [(1000, 'tench, Tinca tinca'), (999, None)])
def test_a_classifier_without_names_has_those_of_imagenet(number, first, tmp_path):
    """If it has 1,000 classes: files of timm and transformers store no names."""
    case = NAMED['classification']
    cfg = read_config(FOLDER / f'{case.name}.py')
    cfg.merge_from_dict(in_model({**case.ours, **case.both, 'head.num_classes': number}))
    torch.save(build(cfg).state_dict(), tmp_path / 'model.pth')
    predictor = ToolboxPredictor(cfg=cfg, checkpoint=tmp_path / 'model.pth', device='cpu')
    assert (predictor.classes or [None])[0] == first


def test_the_table_has_every_config_within_the_bound():
    rows = table_rows()
    assert {path.stem for path in ALL_CONFIGS} <= {*rows}
    for name, cells in rows.items():
        drops_pixels = 'twins' in name or name.startswith('pvt_')
        exact = [cells[1], cells[3]] if drops_pixels else cells[1:4]
        measured = [float(cell) for cell in exact if cell != 'refused there']
        one_size = name.startswith(('mae', 'beit')) or '_eomt_' in name  # their trunk takes one
        assert len(measured) >= (1 if one_size else 2) and max(measured) <= BOUND, name


def test_the_page_names_every_folder():
    text = Path(FOLDER, 'README.md').read_text(encoding='utf-8')
    assert all(f'| `{path.parent.name}` |' in text for path in FOLDER.rglob('*.py'))


def without_scopes(node):
    """A config without the names of registries, which mmengine adds to a base of a toolbox."""
    if isinstance(node, dict):
        return {key: without_scopes(value) for key, value in node.items() if key != '_scope_'}
    if isinstance(node, list):
        return [without_scopes(value) for value in node]
    return node


def compared(cfg):
    """Parts of a config that decide predictions, besides the backbone."""
    whole = without_scopes(cfg.to_dict())
    beside = ('backbone', 'train_cfg')
    kept = {key: value for key, value in whole['model'].items() if key not in beside}
    # A neck that averages is the backbone's out_type here.
    if (kept.get('neck') or {}).get('type') == 'GlobalAveragePooling':
        kept['neck'] = None
    dataset = whole['test_dataloader']['dataset']
    return {
        'model': {key: value for key, value in kept.items() if value is not None},
        'data_preprocessor': whole.get('data_preprocessor'),
        'dataset': dataset['type'],
        'pipeline': dataset['pipeline'],
    }


FIRST_OF_FOLDER = {path.parent: path for path in reversed(CONFIGS)}.values()


@pytest.mark.parametrize('path', only(*FIRST_OF_FOLDER, of=CONFIGS), ids=lambda path: path.stem)
def test_only_the_backbone_differs(path):
    if path.parent.name in ('timm', 'dinov2', 'eomt'):
        pytest.skip('timm and transformers have no config')
    ours, theirs = compared(read_config(path)), compared(read_config(peer_of(path)))
    theirs['model'].pop('pretrained', None)
    assert ours == theirs


# -- the tools, with a tiny model in the place of a download


def nested(overrides):
    """Overrides by dotted names as dicts in dicts."""
    tree: dict[str, Any] = {}
    for name, value in overrides.items():
        *parents, leaf = name.split('.')
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[leaf] = value
    return tree


NAMED = dict(detection=CASES[1], segmentation=CASES[3], classification=CASES[2])
HERE = [f'test_dataloader.{one}' for one in ('num_workers=0', 'persistent_workers=False')]


@pytest.fixture
def named(tmp_path, monkeypatch):
    """Function that publishes the toolbox's tiny model of a task; returns its config and model."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.hub, 'get_dir', lambda: str(tmp_path / 'torch'))

    def named(task):
        torch.manual_seed(0)
        case = NAMED[task]
        path = FOLDER / f'{case.name}.py'
        theirs, ours = ({**one, **case.both} for one in (case.theirs, case.ours))
        (cfg, peer), _ = pair(path, in_model(theirs), in_model(ours))
        config = tmp_path / 'config.py'
        tiny = nested(in_model(ours))
        config.write_text(f'_base_ = {str(path)!r}\nmodel = {tiny["model"]!r}\n')
        buffer = io.BytesIO()
        meta = dict(CLASSES=tuple(dataset_metainfo(cfg)['classes']))
        torch.save(dict(state_dict=peer.state_dict(), meta=meta), buffer)
        file = f'tiny-{hashlib.sha256(buffer.getvalue()).hexdigest()[:8]}.pth'
        (tmp_path / 'torch/checkpoints').mkdir(parents=True)
        (tmp_path / 'torch/checkpoints' / file).write_bytes(buffer.getvalue())
        known = dict(task=task, dataset='a data set', scores={'box AP': 1.0}, parameters=10**6)
        known |= dict(about='toys', source='this test', license='none')
        entry = dict(known, config=str(config), address=f'https://example.com/{file}')
        index = command_line.shipped_index() | {'toys': entry}
        (tmp_path / 'index.json').write_text(json.dumps(index))
        monkeypatch.setattr(weights, 'INDEX', tmp_path / 'index.json')
        monkeypatch.setattr(command_line, 'shipped_index', lambda: index)
        return cfg, peer

    return named


@pytest.mark.full
@pytest.mark.parametrize('task', NAMED)
def test_infer_predicts_what_the_toolbox_does(task, named, call, tmp_path):
    """Boxes, the class of each pixel, or the likeliest class of a photograph."""
    cfg, peer = named(task)
    wanted = predict(cfg, peer)
    call('infer', 'toys', PHOTO, '--device', 'cpu', '--out-dir', 'out', '--score-thr', '0.05')
    if task == 'segmentation':
        (file,) = Path('out/pred').iterdir()
        # Logits of two classes may differ by rounding alone.
        assert (np.asarray(Image.open(file)) != wanted.numpy()).mean() < 1e-5
        assert len(wanted.unique()) > 2
        return
    found = json.loads(Path('out/predictions.json').read_text())
    if task == 'classification':
        (one,) = found
        assert one['label'] == wanted.argmax()
        assert one['score'] == pytest.approx(wanted.max().item(), abs=1e-4)
        return
    assert len(found) == len(wanted) > 10
    kept = wanted.bboxes.clone()
    kept[:, 2:] -= kept[:, :2]
    for key, theirs in (('bbox', kept), ('score', wanted.scores)):
        ours = torch.tensor([one[key] for one in found])
        torch.testing.assert_close(ours, theirs, atol=1e-2, rtol=1e-3)


@pytest.mark.full
@pytest.mark.parametrize('task', NAMED)
def test_a_name_is_exported_and_verified(task, named, call):
    pytest.importorskip('onnxscript')
    named(task)
    sizes = ['--verify-sizes', '96x128', '--verify-batches', '2']
    whole = ['--cfg-options', 'model.test_cfg.mode=whole'] if task == 'segmentation' else []
    call('export', 'toys', '--out', 'model.onnx', *sizes, *whole)
    assert Path('model.onnx').is_file()


def write_objects(classes, *, file, images):
    """A photograph with a box of the first class, as COCO."""
    for path in (Path(images), Path(file).parent):
        path.mkdir(parents=True)
    annotations, sizes = [], []
    for number in (1, 2, 3, 4, 5):
        size = dict(width=160 + number, height=96)
        Image.open(PHOTO).resize((*size.values(),)).save(Path(images, f'{number}.png'))
        sizes.append(dict(id=number, file_name=f'{number}.png', **size))
        for place, kind in enumerate((1, len(classes))):
            box = dict(bbox=[10 + 60 * place, 20, 40, 50], area=2000, iscrowd=0)
            ids = dict(id=len(annotations) + 1, image_id=number, category_id=kind)
            annotations.append(ids | box)
    kinds = [dict(id=number, name=name) for number, name in enumerate(classes, 1)]
    content = dict(images=sizes, annotations=annotations, categories=kinds)
    Path(file).write_text(json.dumps(content))


def test_a_name_is_tested_on_coco(named, call, refused, capsys):
    cfg, _ = named('detection')
    line = refused('test', 'toys')
    assert "test_dataloader.dataset.data_root: there is no folder 'data/coco/'" in line
    classes = dataset_metainfo(cfg)['classes']
    file = 'data/coco/annotations/instances_val2017.json'
    write_objects(classes, file=file, images='data/coco/val2017')
    small = ['test_dataloader.dataset.pipeline.1.scale=(160,96)']
    call('test', 'toys', '--cfg-options', *HERE, *small)
    assert 'coco/bbox_mAP: ' in capsys.readouterr().out


@pytest.mark.full
def test_a_training_starts_from_the_whole_model(named, call, capsys):
    """Of COCO, person keeps its rows. At a rate of zero, everything that was taken stays."""
    cfg, peer = named('detection')
    write_objects(['cell', 'person'], file='all/all.json', images='images')
    made = ['--weights', 'toys', '--length', '1', '--out', 'mine/toys.py']
    call('make_config', 'coco', 'all/all.json', 'images', *made)
    assert 'classes of the same name keep what they learned: person' in capsys.readouterr().out
    loaders = [one.replace('test', part) for part in ('train', 'val') for one in HERE]
    call('train', 'mine/toys.py', '--cfg-options', *loaders, 'optim_wrapper.optimizer.lr=0')
    assert 'but for the rows of person; new are cell' in capsys.readouterr().out
    found = read_checkpoint('work_dirs/toys/iter_1.pth')['state_dict']
    theirs = peer.state_dict()
    same = [key for key in theirs if key.startswith(('neck.', 'bbox_head.')) and '_cls.' not in key]
    assert len(same) > 20 and all(torch.equal(found[key], theirs[key]) for key in same)
    place = list(dataset_metainfo(cfg)['classes']).index('person')
    for leaf in ('weight', 'bias'):
        rows = found[f'bbox_head.retina_cls.{leaf}'][1::2]
        assert torch.equal(rows, theirs[f'bbox_head.retina_cls.{leaf}'][place::80])
