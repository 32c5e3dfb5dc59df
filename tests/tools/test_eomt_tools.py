"""EoMT through the commands: a training that is resumed, and the scores of each task."""

import json
import shutil
import sys

import numpy as np
import pytest
import shape_data
import torch
from PIL import Image
from pycocotools import mask as coco_mask
from tiny import EOMT_TRUNK, only, randomise
from tiny_configs import ROOT, save

from cpvt_backbones.analysis.complexity import build_model
from cpvt_backbones.toolboxes import read_config

RECIPES = {
    'panoptic': 'eomt_cpvt-l-dinov2_8xb2-12e_coco-panoptic-640x640',
    'instances': 'eomt_cpvt-l-dinov2_8xb2-12e_coco-instance-640x640',
    'semantic': 'eomt_cpvt-l-dinov2_8xb2-31e_ade20k-512x512',
}
SCOPES = dict(panoptic='mmdet', instances='mmdet', semantic='mmseg')
GROUND = 'ground'  # class of the pixels outside all objects
SIDE = 64  # px, in place of the recipes' 640 and 512
ITERATIONS = 12  # one draws which queries are free, before and after the resume


def panoptic_files(folder, scenes):
    """Write COCO's panoptic JSON and PNG files: each object a segment, and the rest one."""
    folder.mkdir()
    names = (*shape_data.CLASSES, GROUND)
    categories = [
        dict(id=10 * (k + 1), name=name, isthing=int(name != GROUND))
        for k, name in enumerate(names)
    ]
    images, annotations = [], []
    for number, scene in enumerate(scenes, 1):
        size = dict(height=shape_data.HEIGHT, width=shape_data.WIDTH)
        images.append(dict(id=number, file_name=f'{scene.name}.png', **size))
        ids = np.full((shape_data.HEIGHT, shape_data.WIDTH), 300)  # two channels of the PNG
        kinds = {300: 30}
        for k, (label, mask) in enumerate(zip(scene.labels, scene.masks, strict=True), 1):
            ids[mask] = k
            kinds[k] = categories[label]['id']
        segments = []
        for key, kind in kinds.items():
            rows, columns = np.nonzero(ids == key)
            left, top = int(columns.min()), int(rows.min())
            box = [left, top, int(columns.max()) - left + 1, int(rows.max()) - top + 1]
            one = dict(id=key, category_id=kind, area=len(rows), bbox=box, iscrowd=0)
            segments.append(one)
        colours = np.stack((ids % 256, ids // 256, np.zeros_like(ids)), axis=2).astype(np.uint8)
        Image.fromarray(colours).save(folder / f'{scene.name}.png')
        one = dict(image_id=number, file_name=f'{scene.name}.png', segments_info=segments)
        annotations.append(one)
    content = dict(images=images, annotations=annotations, categories=categories)
    folder.with_suffix('.json').write_text(json.dumps(content))


def smaller(node):
    """A pipeline for images of ``SIDE`` px."""
    if isinstance(node, (list, tuple)):
        if [*node] in ([640, 640], [512, 512]):
            return (SIDE, SIDE)
        if len(node) == 2 and node[1] == 512:  # ADE20K's (2048, 512)
            return (4 * SIDE, SIDE)
        return [smaller(value) for value in node]
    return {k: smaller(v) for k, v in node.items()} if isinstance(node, dict) else node


def data_of(task, folder):
    """Values of a data set, and of its metric."""
    names = (*shape_data.CLASSES, GROUND)
    if task == 'semantic':
        paths = dict(img_path='images', seg_map_path='masks')
        data = dict(type='BaseSegDataset', reduce_zero_label=False, img_suffix='.png')
        classes = (GROUND, *shape_data.CLASSES)
        return dict(data, data_root=str(folder), data_prefix=paths, metainfo=dict(classes=classes))
    data = dict(data_root=str(folder), filter_cfg=None)
    if task == 'instances':
        metainfo = dict(classes=names)
        return data | dict(
            ann_file='objects.json', data_prefix=dict(img='images'), metainfo=metainfo
        )
    metainfo = dict(classes=names, thing_classes=names[:2], stuff_classes=names[2:])
    prefix = dict(img='images', seg='segments')
    return data | dict(ann_file='segments.json', data_prefix=prefix, metainfo=metainfo)


def write_data(folder):
    """Write four images and their labels for each task; returns the share of ground."""
    scenes = shape_data.make_split(0, 'train', 4, objects=2)
    shape_data.write_images(folder / 'images', scenes)
    shape_data.class_maps(folder / 'masks', scenes)
    panoptic_files(folder / 'segments', scenes)
    objects_file(folder / 'objects.json', scenes)
    return [float((shape_data.class_map(scene) == 0).mean()) for scene in scenes]


def objects_file(file, scenes):
    """Write COCO JSON in which the ground is an object, too."""
    content = json.loads(shape_data.coco_json(file, scenes, masks=True).read_text())
    content['categories'].append(dict(id=3, name=GROUND))
    for number, scene in enumerate(scenes, 1):
        mask = shape_data.class_map(scene) == 0
        runs = coco_mask.encode(np.asfortranarray(mask))
        outline = dict(size=runs['size'], counts=runs['counts'].decode())
        box = [0, 0, shape_data.WIDTH, shape_data.HEIGHT]
        one = dict(id=1000 + number, image_id=number, category_id=3, bbox=box, iscrowd=0)
        content['annotations'].append(dict(one, area=int(mask.sum()), segmentation=outline))
    file.write_text(json.dumps(content))


def tiny_config(task, folder, *, queries=6, **options):
    """The recipe of a task with a tiny model, small images, and generated data."""
    cfg = read_config(ROOT / f'configs/eomt/{RECIPES[task]}.py')
    cfg.model.backbone = EOMT_TRUNK
    head = cfg.model.decode_head if task == 'semantic' else cfg.model.panoptic_head
    head.update(embed_dims=EOMT_TRUNK['arch']['embed_dims'], num_queries=queries, num_blocks=2)
    if task == 'semantic':
        head.num_classes = 3
        cfg.model.test_cfg.crop_size = (SIDE, SIDE)
    else:
        things = 2 if task == 'panoptic' else 3
        head.update(num_things_classes=things, num_stuff_classes=3 - things)
        cfg.model.test_cfg.square = SIDE
    for part in ('train', 'val', 'test'):
        loader = cfg[f'{part}_dataloader']
        loader.update(num_workers=0, persistent_workers=False)
        pipeline = smaller(loader.dataset.to_dict()['pipeline'])
        for step in pipeline:
            step.pop('reduce_zero_label', None)
        loader.dataset.update(data_of(task, folder), pipeline=pipeline)
        for key in [key for key in ('backend_args',) if key in loader.dataset]:
            del loader.dataset[key]
    if task != 'semantic':
        for evaluator in (cfg.val_evaluator, cfg.test_evaluator):
            name = 'segments' if task == 'panoptic' else 'objects'
            evaluator.ann_file = str(folder / f'{name}.json')
            if task == 'panoptic':
                evaluator.seg_prefix = str(folder / 'segments')
    cfg.train_cfg.update(max_iters=ITERATIONS, val_interval=10**6)
    cfg.param_scheduler[0].update(end=ITERATIONS, head_steps=1, trunk_steps=1)
    cfg.default_hooks.checkpoint.update(interval=6, max_keep_ckpts=2)
    cfg.randomness = dict(seed=0)
    cfg.runner_type = 'ResumableRunner'
    cfg.merge_from_dict(options)
    cfg.dump(folder / f'{task}.py')
    return folder / f'{task}.py'


def equal(left, right):
    """Whether two parts of checkpoints are the same, to the bit."""
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(equal(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(equal, left, right))
    return left == right


def skip_without_panopticapi(task):
    if task == 'panoptic':
        reason = 'panoptic data need panopticapi: see configs/eomt/README.md'
        pytest.importorskip('panopticapi', reason=reason)


WITHOUT_VALIDATION = dict(val_dataloader=None, val_cfg=None, val_evaluator=None)


@pytest.mark.parametrize('task', only('instances', of=SCOPES))
@pytest.mark.full
def test_a_resumed_training_is_the_whole_one(task, tmp_path, call):
    """To the bit: weights, probabilities of masked attention, optimizer."""
    pytest.importorskip(SCOPES[task])
    skip_without_panopticapi(task)
    write_data(tmp_path)
    config = tiny_config(task, tmp_path, **WITHOUT_VALIDATION)
    call('train', config, '--work-dir', tmp_path / 'whole')
    (tmp_path / 'resumed').mkdir()
    shutil.copy(tmp_path / 'whole/iter_6.pth', tmp_path / 'resumed')
    call('train', config, '--work-dir', tmp_path / 'resumed', '--resume')
    middle, whole, resumed = (
        torch.load(tmp_path / path, weights_only=False)
        for path in ('whole/iter_6.pth', 'whole/iter_12.pth', 'resumed/iter_12.pth')
    )
    for key in ('state_dict', 'optimizer', 'param_schedulers'):
        assert equal(whole[key], resumed[key]), key
    head = 'decode_head' if task == 'semantic' else 'panoptic_head'
    assert middle['state_dict'][f'{head}.attn_mask_probs'].tolist() == [0, 1]
    assert whole['state_dict'][f'{head}.attn_mask_probs'].tolist() == [0, 0]
    assert not equal(middle['state_dict'], whole['state_dict'])


@pytest.mark.full
@pytest.mark.parametrize('task', SCOPES)
def test_a_training_validates(task, tmp_path, call):
    """The recipe trains two steps on four images, and its validation has a score."""
    pytest.importorskip(SCOPES[task])
    skip_without_panopticapi(task)
    write_data(tmp_path)
    steps = {'train_cfg.max_iters': 2, 'train_cfg.val_interval': 2}
    config = tiny_config(task, tmp_path, **steps)
    call('train', config, '--work-dir', tmp_path / 'work')
    (log,) = tmp_path.glob('work/*/vis_data/scalars.json')
    found = [json.loads(line) for line in log.read_text().splitlines()]
    keys = dict(semantic='mIoU', instances='coco/segm_mAP', panoptic='coco_panoptic/PQ')
    (score,) = [line[keys[task]] for line in found if keys[task] in line]
    assert 0 <= score <= 100
    assert (tmp_path / 'work/iter_2.pth').is_file()


def model_of_ground(config):
    """A model that takes each image as one segment, the ground."""
    model = build_model(read_config(config))
    head = getattr(model, 'panoptic_head', None) or model.decode_head
    label = 0 if hasattr(model, 'decode_head') else 2
    with torch.no_grad():
        head.upscale[-1].norm.weight.zero_()
        for layer in (head.upscale[-1].norm, head.mask_head[-1]):
            layer.bias.fill_(1)
        head.mask_head[-1].weight.zero_()
        head.class_head.weight.zero_()
        head.class_head.bias.copy_(10.0 * (torch.arange(4) == label))
    head.attn_mask_probs.zero_()
    return model


@pytest.mark.parametrize('task', SCOPES)
def test_scores(task, tmp_path, call):
    """Of three classes, the one that the model knows has a score that follows from the areas."""
    pytest.importorskip(SCOPES[task])
    skip_without_panopticapi(task)
    shares = write_data(tmp_path)
    config = tiny_config(task, tmp_path, queries=1)
    checkpoint = save(model_of_ground(config), tmp_path / 'model.pth')
    call('test', config, checkpoint, '--work-dir', tmp_path / 'work')
    (log,) = tmp_path.glob('work/*/*.json')
    found = json.loads(log.read_text().splitlines()[-1])
    key, expected = dict(
        semantic=('mIoU', 100 * np.mean(shares) / 3),
        instances=('coco/segm_mAP_50', 1 / 3),
        panoptic=('coco_panoptic/PQ', 100 * np.mean(shares) / 3),
    )[task]
    assert 0.5 < min(shares)
    assert found[key] == pytest.approx(expected, abs=0.006)


@pytest.mark.parametrize('tool', ['test', 'train'])
def test_a_missing_panopticapi_is_one_line(tool, tmp_path, refused, monkeypatch):
    """Before weights are fetched and data are read."""
    pytest.importorskip('mmdet')
    monkeypatch.setitem(sys.modules, 'panopticapi', None)
    write_data(tmp_path)
    config = tiny_config('panoptic', tmp_path)
    arguments = [config, '--work-dir', tmp_path / 'work']
    if tool == 'test':
        arguments.insert(1, save(model_of_ground(config), tmp_path / 'model.pth'))
    line = refused(tool, *arguments)
    assert 'LoadPanopticAnnotations needs panopticapi' in line
    assert 'pip install git+https://github.com/cocodataset/panopticapi.git' in line


@pytest.mark.full
@pytest.mark.parametrize('task', only('panoptic', of=['panoptic', 'semantic']))
def test_an_exported_file_is_verified(task, tmp_path, call, capsys):
    """At several sizes, by the command."""
    pytest.importorskip(SCOPES[task])
    pytest.importorskip('onnxscript')
    pytest.importorskip('onnxruntime')
    write_data(tmp_path)
    config = tiny_config(task, tmp_path)
    model = randomise(build_model(read_config(config)))
    (getattr(model, 'panoptic_head', None) or model.decode_head).attn_mask_probs.zero_()
    checkpoint = save(model, tmp_path / 'model.pth')
    out = tmp_path / 'model.onnx'
    sizes = ['--verify-sizes', '64x64', '33x51']
    options = ['--cfg-options', 'model.test_cfg.mode=whole'] if task == 'semantic' else []
    call('export', config, checkpoint, '--out', out, *sizes, *options)
    printed = capsys.readouterr().out
    assert printed.count('agrees') == 4  # two sizes, two sizes of a batch
    assert out.is_file()
    # Masks and classes of queries are no prediction yet.
    assert ('tools/infer.py' in printed) == (task == 'semantic')
    assert ('ExportedModel(' in printed) == (task == 'panoptic')
