"""Inferencer with models of each toolbox: batches, size policies, errors."""

import copy
import hashlib
import importlib
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from local_models import BlockDetector, LocalSegmentor
from mmengine.config import ConfigDict
from mmengine.runner import save_checkpoint
from tiny import max_difference
from toolbox_models import write_model

from cpvt_backbones import weights as shipped
from cpvt_backbones.checkpoints import write_checkpoint
from cpvt_backbones.inference import ImageError, Inferencer, ToolboxPredictor
from cpvt_backbones.inference.predictions import resize_logits
from cpvt_backbones.inference.predictors import nms_threshold
from cpvt_backbones.inference.sizes import fit

SIZES = [(40, 56), (33, 20), (40, 56), (56, 40), (33, 20), (40, 56), (1, 1), (40, 56)]


def images(sizes=SIZES):
    rng = np.random.default_rng(0)
    return [rng.integers(0, 255, (*size, 3), np.uint8) for size in sizes]


def same(a, b):
    """Predictions of one image: class maps identical, boxes to 0.01 px."""
    assert a.keys() == b.keys()
    if 'seg_map' in a:
        np.testing.assert_array_equal(a['seg_map'], b['seg_map'])
    elif 'boxes' in a:
        assert a['labels'] == b['labels'] and a['classes'] == b['classes']
        np.testing.assert_allclose(a['boxes'], b['boxes'], atol=1e-2)
        np.testing.assert_allclose(a['scores'], b['scores'], atol=1e-4)
    else:
        assert a['class'] == b['class']
        assert a['score'] == pytest.approx(b['score'], abs=1e-5)


def toolbox_inferencer(cfg, checkpoint, **options):
    return Inferencer(cfg=cfg, checkpoint=checkpoint, device='cpu', **options)


# -- batches


def test_predictions_do_not_depend_on_the_batch(predictor, forwards):
    """Nor on the other images in it, or the place."""
    inputs = images()
    inputs[2][:], inputs[5][:] = 0, 255
    single = Inferencer(predictor=predictor, scale='native')
    alone = [single(image, score_thr=0.0)[0] for image in inputs]
    assert [shape[2:] for shape in forwards] == SIZES
    forwards.clear()
    batched = Inferencer(predictor=predictor, scale='native', batch_size=3)
    together = batched.predict(inputs, score_thr=0.0)
    # Full batches first, the others at the end; none is padded.
    batches = [(3, (40, 56)), (2, (33, 20)), (1, (56, 40)), (1, (1, 1)), (1, (40, 56))]
    assert [(shape[0], shape[2:]) for shape in forwards] == batches
    assert [result.size for result in together] == [size[::-1] for size in SIZES]
    for one, result in zip(alone, together, strict=True):
        same(one, result.prediction)
    for one, result in zip(alone[::-1], batched.predict(inputs[::-1], score_thr=0.0), strict=True):
        same(one, result.prediction)
    assert alone[0].get('boxes', True)
    if predictor.task == 'segmentation':
        assert len(np.unique(alone[0]['seg_map'])) > 1
        assert [one['seg_map'].shape for one in alone] == SIZES


def test_max_pixels_limits_batches(predictor, forwards):
    bounds = dict(batch_size=8, max_pixels=2 * 40 * 56, tile_size=32, overlap=8)
    Inferencer(predictor=predictor, scale='native', **bounds).predict(images())
    assert max(shape[0] * shape[2] * shape[3] for shape in forwards) <= 2 * 40 * 56
    assert [shape[0] for shape in forwards if shape[2:] == (40, 56)] == [2, 2]


def test_failure_of_the_model_does_not_stop_other_images(monkeypatch, predictor):
    """Of the same batch, too."""
    inputs = images([(40, 56)] * 4)
    inputs[2][:] = 0
    name = 'logits' if predictor.task == 'segmentation' else 'predict'
    run = getattr(predictor, name)

    def fragile(batch):
        if any(not image.any() for image in batch):
            raise RuntimeError('black')
        return run(batch)

    monkeypatch.setattr(predictor, name, fragile)
    results = Inferencer(predictor=predictor, batch_size=4).predict(inputs)
    assert str(results.pop(2).error) == 'black'
    assert all(result.error is None and result.prediction for result in results)


def test_unreadable_images_are_errors_of_theirs(inferencer):
    bad, good = np.full((4, 4, 3), np.nan), np.zeros((6, 5), np.uint16)
    first, second = inferencer.predict([bad, good], vis=True)
    assert isinstance(first.error, ImageError) and first.prediction is None
    assert str(first.error).startswith('array 0: uint8 and uint16 are accepted')
    assert second.error is None and second.size == (5, 6) and second.picture.shape == (6, 5, 3)
    with pytest.raises(ImageError, match=r'none.png: there is no such file'):
        inferencer('none.png')


# -- sizes


@pytest.mark.parametrize(
    ('policy', 'seen'),
    [
        (dict(scale='native'), (97, 20)),
        (dict(scale=0.5), (49, 10)),
        (dict(scale=(60, 60)), (60, 12)),
        (dict(scale=(200, 30)), (146, 30)),
        (dict(long_side=33), (33, 7)),
        (dict(long_side=194), (194, 40)),
        (dict(long_side=1), (1, 1)),
    ],
)
def test_size_policies(predictor, forwards, policy, seen):
    (image,) = images([(97, 20)])
    prediction, picture = Inferencer(predictor=predictor, **policy)(image, score_thr=0.0, vis=True)
    assert [shape[2:] for shape in forwards] == [seen]
    assert picture.shape == image.shape
    if 'seg_map' in prediction:
        assert prediction['seg_map'].shape == (97, 20)
    for x1, y1, x2, y2 in prediction.get('boxes', []):
        assert -1e-3 <= x1 <= x2 <= 20.001 and -1e-3 <= y1 <= y2 <= 97.001


def test_the_configs_own_size(model):
    """The config's pipeline resizes and crops; predictions have the size of the image."""
    cfg, checkpoint = model
    before = cfg.to_dict()
    inferencer = toolbox_inferencer(cfg, checkpoint, scale='config')
    assert cfg.to_dict() == before
    shapes = []
    inferencer.predictor.model.backbone.register_forward_pre_hook(
        lambda _, x: shapes.append(tuple(x[0].shape[2:]))
    )
    prediction, _ = inferencer(*images([(97, 20)]), score_thr=0.0)
    assert shapes == [(24, 24) if cfg.default_scope == 'mmpretrain' else (48, 10)]
    if 'seg_map' in prediction:
        assert prediction['seg_map'].shape == (97, 20)
    if 'boxes' in prediction:
        assert max(y2 for _, _, _, y2 in prediction['boxes']) > 48


def test_a_large_image_is_tiled(predictor, forwards):
    (image,) = images([(150, 200)])
    tiles = []
    bounds = dict(max_pixels=64 * 64, tile_size=64, overlap=16)
    stream = Inferencer(predictor=predictor, scale='native', **bounds).stream(
        [image], score_thr=0.0, on_tiles=lambda *counts: tiles.append(counts)
    )
    ((_, result),) = stream
    if predictor.task == 'classification':
        assert 'max_pixels=4096' in str(result.error)
        return
    assert {shape[2:] for shape in forwards} == {(64, 64)}
    assert tiles == [(i + 1, 12) for i in range(12)]
    if predictor.task == 'segmentation':
        assert result.prediction['seg_map'].shape == (150, 200)
    else:
        boxes = np.array(result.prediction['boxes'])
        assert boxes[:, 2].max() > 150 and boxes[:, 3].max() > 100
        assert (boxes >= 0).all() and (boxes <= [200, 150, 200, 150]).all()


@pytest.mark.parametrize('align_corners', [False, True])
def test_class_maps_are_those_of_mmseg(align_corners, tmp_path):
    """Images that the test pipeline resizes, by the head's ``align_corners``."""
    apis = pytest.importorskip('mmseg.apis')
    cfg, checkpoint = write_model('mmseg', tmp_path)
    cfg.model.decode_head.align_corners = align_corners
    cfg.test_pipeline = cfg.test_dataloader.dataset.pipeline
    theirs = apis.init_model(copy.deepcopy(cfg), str(checkpoint), device='cpu')
    inferencer = Inferencer(cfg=cfg, checkpoint=checkpoint, device='cpu')
    assert inferencer.predictor.align_corners == align_corners
    for image in images([(97, 61), (32, 48), (211, 300)]):
        found = inferencer(image)[0]['seg_map']
        expected = apis.inference_model(theirs, image).pred_sem_seg.data[0].numpy()
        assert len(np.unique(expected)) > 1
        assert (found != expected).sum() <= 1e-4 * found.size  # ties of two classes


def test_the_threshold_of_a_detectors_suppression_is_known():
    """mmdet's settings of each kind of detector."""
    for test_cfg, expected in (
        (dict(nms=dict(type='nms', iou_threshold=0.6)), 0.6),
        (dict(rpn=dict(nms=dict(iou_threshold=0.7)), rcnn=dict(nms=dict(iou_threshold=0.5))), 0.5),
        (dict(nms=dict(type='soft_nms', iou_threshold=0.4, min_score=0.05)), 0.4),
        (dict(max_per_img=100), None),  # DETR
        (dict(), None),
        (None, None),
    ):
        assert nms_threshold(SimpleNamespace(test_cfg=test_cfg)) == expected
    assert nms_threshold(SimpleNamespace()) is None


@pytest.mark.parametrize('size', [(97, 61), (300, 200)])
def test_logits_are_brought_to_the_images_size_whatever_the_bound(size):
    """Bands of rows equal the bilinear interpolation of all rows."""
    (image,) = images([size])
    predictor = LocalSegmentor()

    def map_of(bound):
        options = dict(long_side=40, max_pixels=bound, tile_size=8, overlap=2)
        return Inferencer(predictor=predictor, **options)(image)[0]['seg_map']

    found = map_of(1600)
    assert np.array_equal(found, map_of(2500)) and np.array_equal(found, map_of(10**6))
    logits = predictor.logits([fit(image, (40, 40))])
    wanted = torch.nn.functional.interpolate(logits, size, mode='bilinear', align_corners=False)
    got = resize_logits(logits[0], (7, 33), height=size[0], width=size[1])
    assert max_difference(got, wanted[0, :, 7:33]) <= 1e-3  # of logits near 100
    assert (found == wanted[0].argmax(0).numpy()).mean() > 0.999


# -- arguments

SCALE = 'scale must be None'


@pytest.mark.parametrize(
    ('options', 'words'),
    [
        *((dict(scale=scale), SCALE) for scale in ('big', (0, 60), (60,), 0.0, float('nan'))),
        *((dict(scale=scale), SCALE) for scale in (('a', 'b'), '10x10')),
        (dict(scale=800), 'got 800; long_side=800 is a side in px, scale=800.0 a factor'),
        (dict(tile_size=65, max_pixels=4096, overlap=0), 'tile of 65 x 65 .* max_pixels=4096'),
        (dict(tile_size=64, overlap=64), 'overlap must be at least 0 and below .*=64, got 64'),
        (dict(overlap=-1), 'overlap must be at least 0'),
        (dict(batch_size=0), 'batch_size must be an integer >= 1, got 0'),
        (dict(max_pixels=0), 'max_pixels must be an integer >= 1, got 0'),
        (dict(long_side=0), 'long_side must be an integer >= 1, got 0'),
        (dict(long_side=5, scale=(3, 3)), 'scale and long_side exclude each other'),
        (dict(dtype='bfloat16'), "dtype must be 'auto' or 'float32' with an exported file"),
        (dict(cfg={}), 'predictor excludes cfg'),
        (dict(cfg={}, predictor=None), 'checkpoint is needed, or a predictor'),
        (
            dict(checkpoint='cpvt_tiny_gap-imagenete', predictor=None),
            "cfg is needed with checkpoint: .*; did you mean 'cpvt_tiny_gap-imagenette'",
        ),
        (
            dict(cfg={}, checkpoint='x.pth', predictor=None, device='gpu'),
            "device must be one of torch, such as 'cpu', 'cuda' or 'cuda:1', got 'gpu'",
        ),
    ],
)
def test_wrong_arguments(options, words):
    with pytest.raises(ValueError, match=words):
        Inferencer(**{'predictor': BlockDetector(), **options})


@pytest.mark.parametrize(
    ('values', 'options', 'words'),
    [
        (('NAME',), {}, r"by keyword: Inferencer\(checkpoint='NAME'\)"),
        (('x.py', 'x.pth'), {}, r"by keyword: Inferencer\(cfg='x.py'\)"),
        ((), dict(config='x.py'), "Inferencer has no argument 'config'; did you mean 'cfg'"),
        ((), dict(cfg='x.py', weights='x.pth'), "no argument 'weights'; accepted are cfg, checkpo"),
    ],
)
def test_wrong_keywords(values, options, words):
    with pytest.raises(TypeError, match=words):
        Inferencer(*values, **options)


def test_several_images_in_a_call_are_answered_by_predict(tmp_path):
    image = np.zeros((9, 9, 3), np.uint8)
    inferencer = Inferencer(predictor=BlockDetector())
    with pytest.raises(TypeError, match='one image, got a list; Inferencer.predict takes several'):
        inferencer([image, image])
    for several in (tmp_path, f'{tmp_path}/*.png', 'photo[1].jpg'):
        with pytest.raises(ImageError, match='a folder or a pattern, not one image; Inferencer'):
            inferencer(several)
    with pytest.raises(ImageError, match='URLs are not fetched'):
        inferencer('https://example.org/a.jpg?size=9')


@pytest.mark.skipif(torch.cuda.is_available(), reason='there is a GPU')
@pytest.mark.parametrize('device', ['cuda', 'cuda:1'])
def test_a_gpu_that_is_not_there(device):
    with pytest.raises(ValueError, match=f"or an existing GPU, got '{device}'; .* no GPU"):
        Inferencer(checkpoint='cpvt_tiny_gap-imagenette', device=device)


def test_a_config_may_be_a_path(model, predictor, tmp_path):
    cfg, checkpoint = model
    file = tmp_path / 'config.py'
    cfg.dump(file)
    expected, _ = Inferencer(predictor=predictor)(images()[0], score_thr=0)
    for path in (file, str(file)):
        found, _ = toolbox_inferencer(path, checkpoint)(images()[0], score_thr=0)
        same(found, expected)
    with pytest.raises(FileNotFoundError, match=r"there is no config file '.*gone\.py'"):
        Inferencer(cfg=tmp_path / 'gone.py', checkpoint=checkpoint)
    with pytest.raises(TypeError, match='cfg must be the path of a config file, or .*, got dict'):
        Inferencer(cfg=cfg.to_dict(), checkpoint=checkpoint)


def test_shipped_weights_have_their_config():
    pytest.importorskip('mmpretrain')
    inferencer = Inferencer(checkpoint='cpvt_tiny_gap-imagenette', device='cpu')
    assert inferencer.predictor.task == 'classification'
    assert inferencer.predictor.classes[0] == 'tench'


@pytest.mark.parametrize('form', [str, Path])
def test_stream_takes_folders_and_patterns(folder, form):
    inferencer = Inferencer(predictor=LocalSegmentor())

    def names(inputs):
        results = dict(inferencer.stream(inputs))
        return [Path(results[index].name).name for index in sorted(results)]

    every = [f'{i}.png' for i in range(6)]
    assert names(form(folder)) == names([form(folder)]) == names(form(folder / '*.png')) == every
    assert names(form(folder / '3.png')) == ['3.png']
    assert names([form(folder / '[12].png'), form(folder / '4.png')]) == ['1.png', '2.png', '4.png']
    ((_, missing),) = inferencer.stream([form(folder / 'gone.png')])
    assert 'no such file' in str(missing.error)
    with pytest.raises(FileNotFoundError, match='there is no file or folder'):
        names(form(folder / 'gone'))


def test_a_missing_checkpoint_and_a_backbone_alone_are_refused(model):
    with pytest.raises(FileNotFoundError, match="no file or folder 'none.pth'"):
        Inferencer(cfg=model[0], checkpoint='none.pth')
    predictor = LocalSegmentor()
    predictor.task = 'features'
    with pytest.raises(ValueError, match="predictor.task must be one of .*'features'"):
        Inferencer(predictor=predictor)


# -- checkpoints and configs


@pytest.fixture
def rewritten(model, tmp_path):
    """A copy of the checkpoint with another ``meta``."""

    def write(**content):
        state = torch.load(model[1], weights_only=False)['state_dict']
        torch.save(dict(state_dict=state, **content), tmp_path / 'model.pth')
        return tmp_path / 'model.pth'

    return write


@pytest.mark.parametrize('kind', [dict, ConfigDict])
def test_classes_and_palette_are_those_of_the_checkpoint(model, tmp_path, kind):
    """Stored as plain data, or as mmengine's ConfigDict."""
    cfg, checkpoint = copy.deepcopy(model[0]), model[1]
    names, colours = [f'class {i}' for i in range(4)], [(i, 2 * i, 3 * i) for i in range(4)]
    meta = dict(dataset_meta=kind(classes=tuple(names), palette=colours), cfg='a = 1')
    content = dict(state_dict=torch.load(checkpoint, weights_only=False)['state_dict'], meta=meta)
    save_checkpoint(content, str(tmp_path / 'model.pth'))
    cfg.test_dataloader.dataset.pop('metainfo', None)
    inferencer = toolbox_inferencer(cfg, tmp_path / 'model.pth')
    assert inferencer.predictor.classes == names
    assert inferencer.predictor.palette == [list(colour) for colour in colours]
    prediction, _ = inferencer(images()[0], score_thr=0.0)
    if 'seg_map' not in prediction:
        assert set(prediction.get('classes') or [prediction['class']]) <= set(names)


@pytest.mark.parametrize(
    'meta',
    [
        3,
        [1],
        dict(dataset_meta=[1]),
        dict(dataset_meta={1: 2}),
        dict(dataset_meta=dict(classes=5, palette='random')),
        None,
    ],
    ids=str,
)
def test_without_usable_meta_the_classes_are_those_of_the_config(model, rewritten, meta):
    """Not those of COCO or Cityscapes, the defaults of the toolboxes."""
    cfg = model[0]
    file = rewritten() if meta is None else rewritten(meta=meta)
    known = None if cfg.default_scope == 'mmpretrain' else list(cfg.meta['classes'])
    assert ToolboxPredictor(cfg=cfg, checkpoint=file, device='cpu').classes == known


@pytest.mark.parametrize('palette', [5, [[1, 2]], [[1, 2, 300]]])
def test_a_damaged_palette_is_refused(model, rewritten, palette):
    file = rewritten(meta=dict(dataset_meta=dict(palette=palette)))
    with pytest.raises(ValueError, match=r"model.pth': palette must have three integers"):
        ToolboxPredictor(cfg=model[0], checkpoint=file, device='cpu')


@pytest.mark.parametrize('order', [(1, 2, 0, 3), (0, 1)])
def test_other_classes_than_those_of_the_config_are_refused(model, rewritten, order):
    cfg = copy.deepcopy(model[0])
    names = list(cfg.meta['classes'])
    if cfg.default_scope == 'mmpretrain':
        cfg.test_dataloader.dataset.classes = names
    others = [names[i] for i in order if i < len(names)] if order[0] else ['x', *names[1:]]
    kind = 'the same classes in another order' if order[0] else 'other classes'
    lists = rf'{kind}: \({", ".join(others)}\), the config has \({", ".join(names)}\)'
    file = rewritten(meta=dict(dataset_meta=dict(classes=tuple(others))))
    with pytest.raises(ValueError, match=lists):
        ToolboxPredictor(cfg=cfg, checkpoint=file, device='cpu')
    file = rewritten(meta=dict(CLASSES=names))
    ToolboxPredictor(cfg=cfg, checkpoint=file, device='cpu')


def test_safetensors_and_shipped_names_are_read(model, predictor, tmp_path, monkeypatch):
    cfg, checkpoint = model
    file = tmp_path / 'mine.safetensors'
    write_checkpoint(torch.load(checkpoint, weights_only=False)['state_dict'], file, meta={})
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    entry = dict(about='', backbone={}, config='', sha256=sha256)
    (tmp_path / 'index.json').write_text(json.dumps(dict(mine=entry)))
    monkeypatch.setattr(shipped, 'FOLDER', tmp_path)
    monkeypatch.setattr(shipped, 'INDEX', tmp_path / 'index.json')
    image = images()[0]
    expected, _ = Inferencer(predictor=predictor)(image, score_thr=0)
    for name in (file, 'mine'):
        found, _ = toolbox_inferencer(cfg, name)(image, score_thr=0)
        for key in found.keys() - {'classes', 'class'}:
            np.testing.assert_allclose(found[key], expected[key], atol=1e-4)


def test_a_pipeline_without_loading_is_refused(model):
    cfg = copy.deepcopy(model[0])
    cfg.test_dataloader.dataset.pipeline = [dict(type='LoadFromNowhere')]
    with pytest.raises(ValueError, match='LoadImageFromFile.*LoadFromNowhere'):
        ToolboxPredictor(cfg=cfg, checkpoint=model[1], device='cpu')


def test_a_pipeline_in_pythons_own_style(model):
    """The types of its steps are classes."""
    cfg, checkpoint = copy.deepcopy(model[0]), model[1]
    (image,) = images([(40, 50)])
    wanted, _ = toolbox_inferencer(cfg, checkpoint)(image)
    registry = importlib.import_module(f'{cfg.default_scope}.registry').TRANSFORMS
    dataset = cfg.test_dataloader.dataset
    dataset.pipeline = [dict(step, type=registry.get(step['type'])) for step in dataset.pipeline]
    same(toolbox_inferencer(cfg, checkpoint)(image)[0], wanted)
