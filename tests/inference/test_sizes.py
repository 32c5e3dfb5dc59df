"""The test scale: as the toolboxes have it, told, remembered by exported files, and compared with
the good sizes.
"""

import copy
import dataclasses
import json
import logging

import cv2
import numpy as np
import pytest
from local_models import Brightness, LocalSegmentor
from mmengine.logging import MMLogger
from mmengine.registry import TRANSFORMS, init_default_scope
from toolbox_models import write_model

from cpvt_backbones.export import ExportedModel, export, graph_of
from cpvt_backbones.inference import GoodSizes, Inferencer, ToolboxPredictor
from cpvt_backbones.inference.sizes import apply_steps, size_after

RNG = np.random.default_rng(0)
SHAPES = [(97, 20), (40, 56), (33, 33), (61, 200), (24, 24), (7, 300)]


def picture(height, width):
    return RNG.integers(0, 256, (height, width, 3), np.uint8)


STEPS = [
    [dict(type='Resize', scale=(48, 32), keep_ratio=True)],
    [dict(type='Resize', scale=(32, 48), keep_ratio=True, interpolation='bicubic')],
    [dict(type='Resize', scale=(31, 17), backend='pillow', interpolation='lanczos')],
    [dict(type='Resize', scale=29, interpolation='area')],
    [dict(type='Resize', scale_factor=0.7)],
    [dict(type='Resize', scale_factor=(1.3, 0.6), keep_ratio=True)],
    [
        dict(type='mmseg.Resize', scale=(50, 40), keep_ratio=True),
        dict(type='mmseg.ResizeToMultiple', size_divisor=8),
    ],
    *(
        [dict(type='mmpretrain.ResizeEdge', scale=37, edge=edge)]
        for edge in ('short', 'long', 'width', 'height')
    ),
    [
        dict(type='mmpretrain.ResizeEdge', scale=39, backend='pillow', interpolation='bicubic'),
        dict(type='CenterCrop', crop_size=(28, 31)),
    ],
    [dict(type='CenterCrop', crop_size=30)],
]


@pytest.mark.parametrize('steps', STEPS, ids=lambda steps: ' '.join(step['type'] for step in steps))
def test_every_step_gives_the_toolboxes_pixels(steps):
    for package in ('mmseg', 'mmpretrain'):
        pytest.importorskip(f'{package}.datasets.transforms')
    import mmcv.transforms  # noqa: F401

    init_default_scope('mmengine')
    plain = [
        {**step, 'type': step['type'].split('.')[-1]} for step in json.loads(json.dumps(steps))
    ]
    for height, width in SHAPES:
        image = picture(height, width)
        wanted = dict(img=image)
        try:
            for step in steps:
                scope = '' if '.' in step['type'] else 'mmcv.'
                wanted = TRANSFORMS.build(dict(step, type=scope + step['type']))(wanted)
        except Exception:  # a side of 0 px
            assert min(size_after(plain[:1], width, height)) == 1
            continue
        found = apply_steps(image, plain)
        np.testing.assert_array_equal(found, wanted['img'])
        assert found.shape[1::-1] == size_after(plain, width, height)


def toolbox_predictor(cfg, checkpoint):
    """The toolbox's own functions: an image to its prediction, as plain data."""
    cfg = copy.deepcopy(cfg)
    init_default_scope(cfg.default_scope)
    if cfg.default_scope == 'mmpretrain':
        from mmpretrain import ImageClassificationInferencer

        classify = ImageClassificationInferencer(cfg, pretrained=str(checkpoint), device='cpu')
        return lambda image: classify(image)[0]
    if cfg.default_scope == 'mmseg':
        from mmseg.apis import inference_model, init_model

        cfg.test_pipeline = cfg.test_dataloader.dataset.pipeline  # the one that this function reads
        segmentor = init_model(cfg, str(checkpoint), device='cpu')
        return lambda image: dict(seg_map=inference_model(segmentor, image).pred_sem_seg.data[0])
    from mmdet.apis import inference_detector, init_detector

    detector = init_detector(cfg, str(checkpoint), device='cpu')

    def detect(image):
        found = inference_detector(detector, image).pred_instances
        return dict(boxes=found.bboxes, scores=found.scores, labels=found.labels)

    return detect


def test_the_default_is_what_the_toolbox_predicts(model):
    cfg, checkpoint = model
    theirs = toolbox_predictor(cfg, checkpoint)
    inferencer = Inferencer(cfg=cfg, checkpoint=checkpoint, device='cpu')
    for image in [picture(97, 20), picture(40, 56), picture(150, 211), picture(32, 48)]:
        wanted = theirs(image)
        found, _ = inferencer(image, score_thr=0.0)
        if 'seg_map' in found:  # two logits may be equal to rounding
            assert (found['seg_map'] == wanted['seg_map'].numpy()).mean() > 0.999
            assert found['seg_map'].shape == image.shape[:2]
        elif 'boxes' in found:
            assert len(found['boxes']) > 0 and found['labels'] == wanted['labels'].tolist()
            np.testing.assert_allclose(found['boxes'], wanted['boxes'], atol=1e-2)
            np.testing.assert_allclose(found['scores'], wanted['scores'], atol=1e-4)
        else:
            assert found['label'] == wanted['pred_label']
            np.testing.assert_allclose(found['score'], wanted['pred_score'], atol=1e-5)


def test_images_of_a_batch_that_the_models_own_preprocessor_pads(model):
    """As of a published model: each has what the toolbox predicts on it alone, padding included."""
    cfg, checkpoint = model
    cfg = copy.deepcopy(cfg)
    if cfg.default_scope == 'mmpretrain':
        cfg.data_preprocessor.pad_size_divisor = 32
    elif cfg.default_scope == 'mmdet':
        cfg.model.data_preprocessor.pad_size_divisor = 32
    else:
        cfg.model.data_preprocessor.test_cfg = dict(size_divisor=32)
    theirs = toolbox_predictor(cfg, checkpoint)
    inferencer = Inferencer(cfg=cfg, checkpoint=checkpoint, device='cpu', batch_size=3)
    images = [picture(*size) for size in [(97, 20), (40, 56), (97, 20)] * 2]
    for image, result in zip(images, inferencer.predict(images, score_thr=0.0), strict=True):
        found, wanted = result.prediction, theirs(image)
        if 'seg_map' in found:
            assert (found['seg_map'] == wanted['seg_map'].numpy()).mean() > 0.999
        elif 'boxes' in found:
            assert len(found['boxes']) > 0 and found['labels'] == wanted['labels'].tolist()
            np.testing.assert_allclose(found['boxes'], wanted['boxes'], atol=1e-2)
        else:
            np.testing.assert_allclose(found['score'], wanted['pred_score'], atol=1e-5)


class Scaled(LocalSegmentor):
    """Its test scale has 40 px sides; good at 0.5 to 2 times that; made for images of 80 px."""

    size_steps = [dict(type='Resize', scale=[40, 40], keep_ratio=True)]
    sizes = GoodSizes(low=0.5, high=2.0, side=40.0, zoom=0.5, metric='mIoU')


BOUNDS = dict(max_pixels=100 * 100, tile_size=48, overlap=16)


def test_a_large_image_is_tiled_where_its_objects_have_the_size_of_the_training():
    predictor = Scaled()
    Inferencer(predictor=predictor, **BOUNDS)(picture(90, 60))
    assert predictor.forwards.pop() == [(40, 27)] and not predictor.forwards
    inferencer = Inferencer(predictor=predictor, **BOUNDS)
    prediction, _ = inferencer(picture(300, 400))
    assert prediction['seg_map'].shape == (300, 400)
    assert {size for batch in predictor.forwards for size in batch} == {(48, 48)}  # of 150 x 200
    assert '0.5 times' in str(inferencer.sizing) and not inferencer.outside
    predictor.forwards.clear()
    whole = Inferencer(predictor=predictor, scale='config', **BOUNDS)
    whole(picture(300, 400))
    assert predictor.forwards == [[(30, 40)]] and not whole.outside
    assert whole.settings != inferencer.settings


@pytest.mark.parametrize(
    ('scale', 'shape', 'outside'),
    [
        (None, (90, 60), False),
        ('config', (500, 20), False),
        ((80, 80), (90, 90), False),
        ((100, 100), (90, 90), True),
        ((15, 15), (90, 90), True),
        ('native', (30, 40), False),
        ('native', (90, 90), True),
        (0.25, (80, 80), False),
        (0.2, (80, 80), True),
        ('native', (130, 130), False),  # in tiles; its objects have twice the size
        (2.0, (130, 130), True),
    ],
)
def test_sizes_outside_the_good_ones_are_told_once(scale, shape, outside, caplog):
    inferencer = Inferencer(predictor=Scaled(), scale=scale, **BOUNDS)
    with caplog.at_level(logging.WARNING):
        inferencer.predict([picture(*shape)] * 3)
    assert inferencer.outside == 3 * outside
    size = inferencer.sizing.size_of(*shape[::-1])
    assert size == inferencer.sizing(picture(*shape)).shape[1::-1]


def test_a_model_that_does_not_resize_has_good_sizes_in_px():
    predictor = Scaled()
    predictor.size_steps, predictor.sizes = [], dataclasses.replace(Scaled.sizes, zoom=1.0)
    inferencer = Inferencer(predictor=predictor, **BOUNDS)
    assert 'as in its test pipeline' in str(inferencer.sizing)
    shapes = (40, 40), (20, 80), (20, 15), (85, 85), (200, 200)
    inferencer.predict([picture(*shape) for shape in shapes])
    assert inferencer.outside == 2


def test_an_unknown_way_to_set_the_size_needs_a_given_one():
    for task, step in (
        ('segmentation', dict(type='CenterCrop', crop_size=30)),
        ('segmentation', dict(type='Pad', size=(30, 30))),
        ('classification', dict(type='EfficientNetCenterCrop', crop_size=30)),
        ('classification', dict(type='Resize', size=30)),  # torchvision's
        ('classification', dict(type='CenterCrop', crop_size=30, auto_pad=True)),
    ):
        predictor = LocalSegmentor() if task == 'segmentation' else Brightness()
        predictor.size_steps = [step]
        with pytest.raises(ValueError, match=f"scale must be 'native', .*{step['type']}"):
            Inferencer(predictor=predictor)
        (result,) = Inferencer(predictor=predictor, scale=0.5).predict([picture(40, 30)])
        assert result.error is None
    assert 'the model has no test scale' in str(Inferencer(predictor=LocalSegmentor()).sizing)


def test_the_range_of_a_checkpoint_is_beside_it(model, tmp_path, monkeypatch):
    cfg, checkpoint = model
    copied = tmp_path / checkpoint.name
    copied.write_bytes(checkpoint.read_bytes())
    assert GoodSizes.of(copied) is None
    file = Scaled.sizes.write(copied)
    assert file.name == f'{checkpoint.name}.sizes.json'
    assert ToolboxPredictor(cfg=cfg, checkpoint=copied, device='cpu').sizes == Scaled.sizes
    copied.write_bytes(b'another')
    said = []
    monkeypatch.setattr(
        'cpvt_backbones.inference.sizes.print_log', lambda message, *_: said.append(message)
    )
    assert GoodSizes.of(copied) is None
    assert len(said) == 1 and f"{file.name}' is of another checkpoint" in said[0]
    whole = json.dumps({**dataclasses.asdict(Scaled.sizes), 'low': 'small'})
    for damaged in ('{', '{"low": 1}', '[]', '[' * 10**5, whole):
        file.write_text(damaged)
        with pytest.raises(ValueError, match='^checkpoint: .*sizes.json.*is damaged: '):
            GoodSizes.of(copied)


def test_an_exported_file_has_the_scale_and_the_range(tmp_path):
    """Of a classifier: its file is the quickest to write."""
    pytest.importorskip('mmpretrain')
    cfg, checkpoint = write_model('mmpretrain', tmp_path)
    predictor = ToolboxPredictor(cfg=cfg, checkpoint=checkpoint, device='cpu')
    settings = dict(size_steps=predictor.size_steps, sizes=dataclasses.asdict(Scaled.sizes))
    export(graph_of(predictor.model), tmp_path / 'a.pt2', format='torch_export', settings=settings)
    exported = ExportedModel(tmp_path / 'a.pt2')
    assert (exported.size_steps, exported.sizes) == (predictor.size_steps, Scaled.sizes)
    image = picture(150, 211)
    wanted, _ = Inferencer(cfg=cfg, checkpoint=checkpoint, device='cpu')(image)
    found, _ = Inferencer(predictor=exported)(image)
    np.testing.assert_allclose(found['score'], wanted['score'], atol=1e-2)


@pytest.mark.parametrize(
    ('dtype', 'highest', 'told'),
    [
        (np.uint16, 4095, True),
        (np.uint16, 1, False),  # of 8 bits it is 0: the image is black
        (np.uint16, 400, True),
        (np.uint16, 9000, False),
        (np.uint8, 16, False),
    ],
)
@pytest.mark.parametrize('name', ['array 0', 'grey é.png', 'grey.tif', 'rgb.png', 'rgb.tif'])
def test_the_first_image_of_twelve_bits_is_told(dtype, highest, told, name, tmp_path, capsys):
    """65535 becomes 255: values of 12 bits are nearly black."""
    image = np.linspace(0, highest, 30 * 40).round().astype(dtype).reshape(30, 40)
    if name.startswith('rgb'):
        image = np.repeat(image[..., None], 3, axis=2)
    if is_file := '.' in name:
        cv2.imwrite(str(tmp_path / name), image)
    MMLogger.get_instance(f'{dtype} {highest} {name}')
    inferencer = Inferencer(predictor=Brightness())
    found = inferencer.predict([str(tmp_path / name) if is_file else image] * 2)
    assert not any(result.error for result in found)
    printed = capsys.readouterr().out
    assert printed.count('have no value above 4095') == told
    assert not told or name in printed
