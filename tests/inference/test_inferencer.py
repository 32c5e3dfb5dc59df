"""Inferencer with models of each toolbox: batches, size policies, errors."""

import copy
import importlib
import weakref

import numpy as np
import pytest
import torch
from bad_files import BAD, GOOD, write_folder
from local_models import BlockDetector, LocalSegmentor
from mmengine.config import ConfigDict
from mmengine.runner import save_checkpoint
from PIL import Image
from tiny import max_difference

from cpvt_backbones.inference import ImageError, Inferencer, ToolboxPredictor, inferencer
from cpvt_backbones.inference.drawing import draw_prediction, make_preview
from cpvt_backbones.inference.predictions import LoadedImage, resize_logits
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


def test_batches_of_equal_size_give_what_single_images_give(predictor, forwards):
    inputs = images()
    alone = [
        Inferencer(predictor=predictor, scale='native')(image, score_thr=0.0)[0] for image in inputs
    ]
    assert [shape[2:] for shape in forwards] == SIZES
    forwards.clear()
    together = Inferencer(predictor=predictor, scale='native', batch_size=3).predict(
        inputs, score_thr=0.0
    )
    # Full batches first, the others at the end; none is padded.
    batches = [(3, (40, 56)), (2, (33, 20)), (1, (56, 40)), (1, (1, 1)), (1, (40, 56))]
    assert [(shape[0], shape[2:]) for shape in forwards] == batches
    assert [result.size for result in together] == [size[::-1] for size in SIZES]
    for one, result in zip(alone, together, strict=True):
        same(one, result.prediction)
    if predictor.task == 'detection':
        assert all(one['boxes'] for one in alone)
    if predictor.task == 'segmentation':
        assert len(np.unique(alone[0]['seg_map'])) > 1
        assert [one['seg_map'].shape for one in alone] == SIZES


def test_predictions_do_not_depend_on_neighbours_in_the_batch(predictor, forwards):
    """For other images and other positions in the batch."""
    image, noise, other = images([(40, 56)] * 3)
    black, white = np.zeros_like(image), np.full_like(image, 255)
    alone, _ = Inferencer(predictor=predictor)(image, score_thr=0.0)
    forwards.clear()
    for batch in (
        [image, black, white],
        [noise, image, noise],
        [white, other, image],
        [image, image, black],
    ):
        results = Inferencer(predictor=predictor, batch_size=3).predict(batch, score_thr=0.0)
        for one, result in zip(batch, results, strict=True):
            if one is image:
                same(alone, result.prediction)
    assert [shape[0] for shape in forwards] == [3] * 4


def test_max_pixels_limits_batches(predictor, forwards):
    Inferencer(
        predictor=predictor,
        scale='native',
        batch_size=8,
        max_pixels=2 * 40 * 56,
        tile_size=32,
        overlap=8,
    ).predict(images())
    assert max(shape[0] * shape[2] * shape[3] for shape in forwards) <= 2 * 40 * 56
    assert [shape[0] for shape in forwards if shape[2:] == (40, 56)] == [2, 2]


def test_waiting_images_are_run_when_they_hold_too_much_memory(monkeypatch, predictor, forwards):
    monkeypatch.setattr('cpvt_backbones.inference.inferencer.WAITING_BYTES', 3 * 50 * 50)
    sizes = [(8 + i, 30) for i in range(12)]
    results = Inferencer(predictor=predictor, scale='native', batch_size=4).predict(images(sizes))
    assert [result.size[::-1] for result in results] == sizes
    assert [shape[2:] for shape in forwards] == sizes, 'longest waiting first'


def test_a_folder_of_everything(inferencer, tmp_path):
    folder = write_folder(tmp_path / 'images')
    results = inferencer.predict(
        [folder, np.full((4, 4, 3), np.nan), np.zeros((6, 5), np.uint16)], vis=True
    )
    names = [result.name.rsplit('/')[-1] for result in results]
    assert names == [
        *sorted([*BAD, *GOOD]),
        f'array {len(BAD) + len(GOOD)}',
        f'array {len(BAD) + len(GOOD) + 1}',
    ]
    for name, result in zip(names, results, strict=True):
        if name in GOOD or result is results[-1]:
            assert result.error is None
            assert result.size == GOOD.get(name, (5, 6))
            width, height = result.size
            if 'seg_map' in result.prediction:
                assert result.prediction['seg_map'].shape == (height, width)
            for x1, y1, x2, y2 in result.prediction.get('boxes', []):
                assert 0 <= x1 <= x2 <= width and 0 <= y1 <= y2 <= height
            if name != 'line.png':  # drawn smaller
                assert result.picture.shape == (height, width, 3)
        else:
            assert isinstance(result.error, ImageError) and result.prediction is None
            assert result.error.reason.startswith(BAD.get(name, 'uint8 and uint16 are accepted'))
            assert result.name in str(result.error)


def test_call_raises_for_an_unreadable_image(inferencer):
    with pytest.raises(ImageError, match=r'none.png: there is no such file'):
        inferencer('none.png')


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
    assert [str(result.error) if result.error else None for result in results] == [
        None,
        None,
        'black',
        None,
    ]
    assert [result.prediction is None for result in results] == [False, False, True, False]


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
    inferencer = Inferencer(cfg=cfg, checkpoint=checkpoint, device='cpu', scale='config')
    shapes = []
    inferencer.predictor.model.backbone.register_forward_pre_hook(
        lambda _, x: shapes.append(tuple(x[0].shape[2:]))
    )
    (image,) = images([(97, 20)])
    prediction, _ = inferencer(image, score_thr=0.0)
    assert shapes == [(24, 24) if cfg.default_scope == 'mmpretrain' else (48, 10)]
    if 'seg_map' in prediction:
        assert prediction['seg_map'].shape == (97, 20)
    if 'boxes' in prediction:
        assert max(y2 for _, _, _, y2 in prediction['boxes']) > 48


def test_a_large_image_is_tiled(predictor, forwards):
    (image,) = images([(150, 200)])
    tiles = []
    inferencer = Inferencer(
        predictor=predictor, scale='native', max_pixels=64 * 64, tile_size=64, overlap=16
    )
    ((_, result),) = inferencer.stream(
        [image], score_thr=0.0, on_tiles=lambda *counts: tiles.append(counts)
    )
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


def test_files_and_arrays_give_the_same(inferencer, tmp_path):
    (image,) = images([(31, 45)])
    Image.fromarray(image[..., ::-1]).save(tmp_path / 'image.png')
    same(inferencer(tmp_path / 'image.png')[0], inferencer(image)[0])


def test_wrong_arguments(model, predictor):
    cfg, checkpoint = model
    for wrong in ('big', (0, 60), (60,), 0.0, float('nan')):
        with pytest.raises(
            ValueError, match=r"scale must be None, 'config', 'native', a factor .* in px, got"
        ):
            Inferencer(predictor=predictor, scale=wrong)
    with pytest.raises(ValueError, match='cfg and checkpoint are needed, or a predictor'):
        Inferencer(cfg=cfg)
    with pytest.raises(ValueError, match='predictor excludes cfg'):
        Inferencer(cfg=cfg, checkpoint=checkpoint, predictor=predictor)
    with pytest.raises(FileNotFoundError, match="no file or folder 'none.pth'"):
        Inferencer(cfg=cfg, checkpoint='none.pth')


def test_the_config_is_not_modified(model):
    cfg, checkpoint = model
    before = cfg.pretty_text
    Inferencer(cfg=cfg, checkpoint=checkpoint, device='cpu', long_side=30)
    assert cfg.pretty_text == before


def test_failed_images_hold_no_memory():
    """Neither errors nor retries keep the frames of a failure, which hold its batch."""

    class Failing(LocalSegmentor):
        def logits(self, images):
            batch = np.zeros(8)
            held.append(weakref.ref(batch))
            alive.append(sum(one() is not None for one in held))
            raise RuntimeError('no')

    held, alive = [], []
    results = Inferencer(predictor=Failing(), batch_size=3).predict(
        [np.zeros((8, 8, 3), np.uint8)] * 3
    )
    assert [str(result.error) for result in results] == ['no'] * 3
    assert alive == [1] * 4  # one batch, then single images


@pytest.mark.parametrize('scale', [800, ('a', 'b'), (10,), '10x10', (0, 5)])
def test_invalid_scale(scale):
    with pytest.raises(ValueError, match='scale must be'):
        Inferencer(predictor=LocalSegmentor(), scale=scale)


def test_a_backbone_alone_is_refused():
    predictor = LocalSegmentor()
    predictor.task = 'features'
    with pytest.raises(ValueError, match="predictor.task must be one of .*'features'"):
        Inferencer(predictor=predictor)


@pytest.mark.parametrize('kind', [dict, ConfigDict])
def test_classes_and_palette_are_those_of_the_checkpoint(model, tmp_path, kind):
    """Stored as plain data, or as mmengine's ConfigDict."""
    cfg, checkpoint = model
    weights = torch.load(checkpoint, weights_only=False)['state_dict']
    meta = dict(
        classes=tuple(f'class {i}' for i in range(4)), palette=[(i, 2 * i, 3 * i) for i in range(4)]
    )
    file = str(tmp_path / 'model.pth')
    save_checkpoint(
        dict(state_dict=weights, meta=dict(dataset_meta=kind(meta), cfg=cfg.pretty_text)), file
    )
    cfg = copy.deepcopy(cfg)
    cfg.test_dataloader.dataset.pop('metainfo', None)
    inferencer = Inferencer(cfg=cfg, checkpoint=file, device='cpu')
    assert inferencer.predictor.classes == list(meta['classes'])
    assert inferencer.predictor.palette == [list(colour) for colour in meta['palette']]
    prediction, _ = inferencer(images([(40, 56)])[0], score_thr=0.0)
    if 'seg_map' not in prediction:
        assert set(prediction.get('classes') or [prediction['class']]) <= set(meta['classes'])


META = [
    3,
    [1],
    dict(dataset_meta=[1]),
    dict(dataset_meta={1: 2}),
    dict(dataset_meta=dict(classes=5, palette='random')),
    dict(dataset_meta=dict(palette=5)),
    dict(dataset_meta=dict(palette=[[1, 2]])),
    dict(dataset_meta=dict(palette=[[1, 2, 300]])),
]


@pytest.mark.parametrize('meta', META, ids=str)
def test_a_checkpoints_odd_meta_is_ignored_or_refused_by_name(model, tmp_path, meta):
    cfg, checkpoint = model
    weights = torch.load(checkpoint, weights_only=False)['state_dict']
    file = tmp_path / 'model.pth'
    torch.save(dict(state_dict=weights, meta=meta), file)
    if 'palette' not in str(meta) or 'random' in str(meta):
        predictor = ToolboxPredictor(cfg=cfg, checkpoint=file, device='cpu')
        known = None if cfg.default_scope == 'mmpretrain' else list(cfg.meta['classes'])
        assert predictor.classes == known
        return
    with pytest.raises(ValueError, match=r"model.pth': palette must have three integers"):
        ToolboxPredictor(cfg=cfg, checkpoint=file, device='cpu')


@pytest.mark.parametrize('order', [(1, 2, 0, 3), (0, 1)])
def test_other_classes_than_those_of_the_config_are_refused(model, tmp_path, order):
    cfg, checkpoint = model
    cfg = copy.deepcopy(cfg)
    names = list(cfg.meta['classes'])
    if cfg.default_scope == 'mmpretrain':
        cfg.test_dataloader.dataset.classes = names
    content = torch.load(checkpoint, weights_only=False)
    others = [names[i] for i in order if i < len(names)] if order[0] else ['x', *names[1:]]
    content['meta'] = dict(dataset_meta=dict(classes=tuple(others)))
    torch.save(content, tmp_path / 'model.pth')
    kind = 'the same classes in another order' if order[0] else 'other classes'
    lists = (
        rf'{kind}: \({", ".join(others)}\), the config has \({", ".join(names)}\); give'
        r' metainfo.classes'
    )
    with pytest.raises(ValueError, match=lists):
        ToolboxPredictor(cfg=cfg, checkpoint=tmp_path / 'model.pth', device='cpu')
    content['meta'] = dict(CLASSES=names)
    torch.save(content, tmp_path / 'model.pth')
    ToolboxPredictor(cfg=cfg, checkpoint=tmp_path / 'model.pth', device='cpu')


def test_classes_are_those_of_the_config_where_the_checkpoint_has_none(model, tmp_path):
    """Not those of COCO or Cityscapes, the defaults of the toolboxes."""
    cfg, checkpoint = model
    if cfg.default_scope == 'mmpretrain':
        pytest.skip('its classes are folders of the data')
    weights = torch.load(checkpoint, weights_only=False)['state_dict']
    torch.save(dict(state_dict=weights), tmp_path / 'bare.pth')
    predictor = ToolboxPredictor(cfg=cfg, checkpoint=tmp_path / 'bare.pth', device='cpu')
    assert tuple(predictor.classes) == tuple(cfg.meta['classes'])


def test_safetensors_and_shipped_names_are_read(model, predictor, tmp_path, monkeypatch):
    import hashlib
    import json

    from cpvt_backbones import weights
    from cpvt_backbones.checkpoints import write_checkpoint

    cfg, checkpoint = model
    file = tmp_path / 'mine.safetensors'
    write_checkpoint(torch.load(checkpoint, weights_only=False)['state_dict'], file, meta={})
    entry = dict(
        about='', backbone={}, config='', sha256=hashlib.sha256(file.read_bytes()).hexdigest()
    )
    (tmp_path / 'index.json').write_text(json.dumps(dict(mine=entry)))
    monkeypatch.setattr(weights, 'FOLDER', tmp_path)
    image = images([(40, 56)])[0]
    expected, _ = Inferencer(predictor=predictor)(image, score_thr=0)
    for name in (file, 'mine'):
        found, _ = Inferencer(cfg=cfg, checkpoint=name, device='cpu')(image, score_thr=0)
        for key in found.keys() - {'classes', 'class'}:
            np.testing.assert_allclose(found[key], expected[key], atol=1e-4)


@pytest.mark.parametrize(
    'step',
    ['Resize', 'FixShapeResize', 'ResizeShortestEdge', 'ResizeToMultiple', 'torchvision/Resize'],
)
def test_no_step_of_the_pipeline_sets_the_size(model, step):
    from cpvt_backbones.inference.predictors import _adapt_pipeline

    cfg = copy.deepcopy(model[0])
    cfg.test_dataloader.dataset.pipeline.insert(1, dict(type=step))
    _adapt_pipeline(cfg)
    assert [one['type'] for one in cfg.test_dataloader.dataset.pipeline][:2] == [
        'LoadImageFromFile',
        'mmcv.Resize',
    ]
    assert step not in [one['type'] for one in cfg.test_dataloader.dataset.pipeline]


def test_a_pipeline_without_loading_is_refused(model):
    cfg = copy.deepcopy(model[0])
    cfg.test_dataloader.dataset.pipeline = [dict(type='LoadFromNowhere')]
    with pytest.raises(ValueError, match='LoadImageFromFile.*LoadFromNowhere'):
        ToolboxPredictor(cfg=cfg, checkpoint=model[1], device='cpu')


def test_bytes_of_waiting_images_are_limited(monkeypatch):
    """Small images of different sizes, then large ones: as many small ones as necessary leave."""
    from cpvt_backbones.inference import tiles

    monkeypatch.setattr(inferencer, 'WAITING_BYTES', 100_000)
    buckets = inferencer.ShapeBuckets(
        tiles.Bounds(batch_size=8, max_pixels=1 << 20, tile_size=64, overlap=0)
    )
    waiting = left = 0
    for index in range(40):
        side = 20 + index if index < 20 else 100 + index
        image = np.zeros((side, side, 3), np.uint8)
        waiting += image.nbytes
        for batch in buckets.add(LoadedImage(index, '', (side, side), image, None)):
            waiting -= sum(one.nbytes for one in batch)
            left += len(batch)
        assert waiting <= 100_000
    assert left + sum(len(batch) for batch in buckets.flush()) == 40


@pytest.mark.parametrize('size', [(97, 61), (300, 200)])
def test_logits_are_brought_to_the_images_size_whatever_the_bound(size):
    """Bands of rows equal the bilinear interpolation of all rows."""
    image = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    predictor = LocalSegmentor()
    maps = [
        Inferencer(predictor=predictor, long_side=40, max_pixels=bound, tile_size=8, overlap=2)(
            image
        )[0]['seg_map']
        for bound in (1600, 2500, 10**6)
    ]
    assert np.array_equal(maps[0], maps[1])
    assert np.array_equal(maps[0], maps[2])
    logits = predictor.logits([fit(image, (40, 40))])
    wanted = torch.nn.functional.interpolate(logits, size, mode='bilinear', align_corners=False)
    got = resize_logits(logits[0], (7, 33), height=size[0], width=size[1])
    assert max_difference(got, wanted[0, :, 7:33]) <= 1e-3  # of logits near 100
    assert (maps[0] == wanted[0].argmax(0).numpy()).mean() > 0.999


def test_a_pipeline_in_pythons_own_style(model):
    """The types of its steps are classes."""
    cfg, checkpoint = copy.deepcopy(model[0]), model[1]
    image = np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)
    wanted, _ = Inferencer(cfg=cfg, checkpoint=checkpoint, device='cpu')(image)
    registry = importlib.import_module(f'{cfg.default_scope}.registry').TRANSFORMS
    pipeline = cfg.test_dataloader.dataset.pipeline
    cfg.test_dataloader.dataset.pipeline = [
        dict(step, type=registry.get(step['type'])) for step in pipeline
    ]
    same(Inferencer(cfg=cfg, checkpoint=checkpoint, device='cpu')(image)[0], wanted)


@pytest.mark.parametrize('width', [6000, 5001])
def test_pictures_of_large_maps_are_not_shifted(width):
    """The picture of a mirrored map is the mirrored picture."""
    stripes = (np.arange(width) // 7 % 2).astype(np.uint8) * np.ones((4, 1), np.uint8)
    predictor = LocalSegmentor()
    predictor.palette = [[0, 0, 0], [250, 250, 250], [0, 0, 0], [0, 0, 0]]
    preview = make_preview(np.zeros((4, width, 3), np.uint8))
    pictures = [
        draw_prediction(preview, dict(seg_map=seg_map), predictor, size=(width, 4))
        for seg_map in (stripes, stripes[:, ::-1].copy())
    ]
    assert preview.shape[1] == 2048
    assert (pictures[0] == pictures[1][:, ::-1]).mean() > 0.999


def test_packages_for_tiles_are_missed_at_the_start(monkeypatch):
    said = []
    monkeypatch.setattr(inferencer, 'print_log', lambda message, *_: said.append(message))
    monkeypatch.setattr(inferencer, 'find_spec', lambda name: None if name == 'sahi' else name)
    Inferencer(predictor=BlockDetector(), max_pixels=2_000_000)
    Inferencer(predictor=LocalSegmentor())
    (message,) = said
    assert (
        'images of more than 2000000 pixels will fail' in message
        and "pip install '.[infer]'" in message
    )
