"""Predictions in bfloat16: agreement with float32, what stays in float32, and the choice."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tiny import build, eomt, eomt_segmentor, randomise
from torch import nn

from cpvt_backbones.backbones import announce_sizes, announced_sizes
from cpvt_backbones.inference import Inferencer, ToolboxPredictor
from cpvt_backbones.inference.predictors import choose_dtype, reduce_precision
from cpvt_backbones.layers import blocked_attention
from cpvt_backbones.toolboxes import read_config
from cpvt_backbones.weights import find_shipped

DATA = Path(__file__).resolve().parents[2] / 'data'


def scenes(count=3):
    """Smooth random images of two sizes."""
    rng = np.random.default_rng(0)
    for i in range(count):
        colours = Image.fromarray(rng.integers(0, 256, (6, 8, 3), np.uint8))
        yield np.asarray(colours.resize((72 + 8 * i, 56), Image.Resampling.BICUBIC))


def outputs(predictor, image):
    if predictor.task == 'segmentation':
        return predictor.logits([image])[0].flatten()
    (output,) = predictor.predict([image])
    return torch.from_numpy(output['scores'])


@pytest.mark.parametrize('dtype', ['bfloat16', 'float16'])
def test_outputs_agree_with_float32(model, predictor, dtype):
    """The rounding of some fifty operations in a row, each of 2^-9, is below 1.5 %.

    Of labels only ties may differ.
    """
    cfg, checkpoint = model
    reduced = ToolboxPredictor(cfg=cfg, checkpoint=checkpoint, device='cpu', dtype=dtype)
    assert {p.dtype for p in reduced.model.backbone.parameters()} == {getattr(torch, dtype)}
    for image in scenes():
        exact, rounded = outputs(predictor, image), outputs(reduced, image)
        assert rounded.dtype == torch.float32
        count = min(len(exact), len(rounded))
        assert (exact[:count] - rounded[:count]).norm() <= 0.05 * exact.norm()
        assert not torch.equal(exact[:count], rounded[:count])


def test_what_stays_in_float32():
    seen = {}

    def note(name):
        return lambda _, inputs, output: seen.update({name: (inputs[0].dtype, output.dtype)})

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.backbone = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
            self.neck, self.roi_head = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 2, 1)
            for name, module in self.named_children():
                module.register_forward_hook(note(name))

        def forward(self, x):
            # As the toolboxes call some heads: no hooks.
            return self.roi_head.forward(self.neck(self.backbone(x)))

    model = Model().eval()
    reduce_precision(model, torch.bfloat16)
    assert model.backbone[1].running_var.dtype == model.backbone[1].weight.dtype == torch.float32
    images = torch.randn(2, 3, 5, 5)
    announce_sizes(images, [(5, 4), (5, 5)])
    model.backbone.register_forward_hook(
        lambda _, inputs, output: seen.update(sizes=announced_sizes(inputs[0]))
    )
    assert model(images).dtype == torch.float32
    assert seen['backbone'] == (torch.bfloat16, torch.bfloat16)
    assert seen['sizes'] == [(5, 4), (5, 5)]


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
@pytest.mark.parametrize('make', [eomt, eomt_segmentor])
def test_queries_and_masks_of_eomt(make, dtype):
    """They run inside of the trunk. The rounding is as above; classes are computed in float32."""
    pytest.importorskip('mmseg')
    torch.manual_seed(0)
    model = randomise(build(make())).eval()
    head = getattr(model, 'panoptic_head', None) or model.decode_head
    head.attn_mask_probs.zero_()
    images = torch.randn(2, 3, 50, 61)
    with torch.no_grad():
        exact = model.extract_feat(images)[-1]
        reduce_precision(model, dtype)
        rounded = model.extract_feat(images)[-1]
    cast = {p.dtype for part in (head.q, head.mask_head, head.upscale) for p in part.parameters()}
    assert cast == {dtype}
    assert head.class_head.weight.dtype == head.attn_mask_probs.dtype == torch.float32
    for right, found in zip(exact, rounded, strict=True):
        assert found.dtype == torch.float32
        assert (right - found).norm() <= 0.05 * right.norm()
        assert not torch.equal(right, found)


@pytest.fixture
def processor(monkeypatch):
    """Sets what the processor can do, and whether Intel made it."""

    def pretend(abilities, is_intel):
        monkeypatch.setattr(torch.cpu, 'get_capabilities', lambda: abilities, raising=False)
        monkeypatch.setattr(blocked_attention, '_is_intel', lambda: is_intel)
        blocked_attention.bfloat16_instructions.cache_clear()

    yield pretend
    blocked_attention.bfloat16_instructions.cache_clear()


@pytest.mark.parametrize(
    ('abilities', 'is_intel', 'expected'),
    [
        (dict(amx_bf16=True, avx512_bf16=True), True, 'bfloat16'),
        (dict(avx512_bf16=True), False, 'bfloat16'),
        (dict(avx512_bf16=True), True, 'float32'),  # a Xeon whose AMX is hidden
        (dict(avx512_f=True), False, 'float32'),
        (dict(bf16=True), False, 'bfloat16'),
        ({}, True, 'float32'),
    ],
)
def test_auto_follows_the_processor(processor, abilities, is_intel, expected):
    processor(abilities, is_intel)
    dtype, reason = choose_dtype('auto', 'cpu')
    assert dtype == expected
    assert next(iter(abilities), '') in reason or 'bfloat16 is slower here' in reason
    assert choose_dtype('float16', 'cpu')[0] == 'float16'
    with pytest.raises(
        ValueError,
        match=r"dtype must be one of \['auto', 'bfloat16', 'float16', 'float32'\], got 'half'",
    ):
        choose_dtype('half', 'cpu')


def shipped_results(name, files, dtype, **options):
    config = read_config(str(find_shipped(name).config_file))
    return Inferencer(cfg=config, checkpoint=name, device='cpu', dtype=dtype).predict(
        files, **options
    )


DTYPES = ('float32', 'bfloat16')


def every_third(pattern):
    files = sorted(DATA.glob(pattern))[::3]
    if not files:
        pytest.skip(f'needs data/{pattern}')
    return files


@pytest.mark.slow
def test_shipped_classifier():
    files = every_third('imagenette/val/*/*.webp')
    results = [shipped_results('cpvt_tiny_gap-imagenette', files, dtype) for dtype in DTYPES]
    labels = [[one.prediction['label'] for one in found] for found in results]
    folders = [file.parent.name for file in files]
    truth = [sorted(set(folders)).index(folder) for folder in folders]
    accuracies = [np.mean(np.equal(found, truth)) for found in labels]
    equal = np.mean(np.equal(*labels))
    print(f'{len(files)} images: {accuracies[0]:.1%}, {accuracies[1]:.1%}, equal {equal:.1%}')
    assert equal >= 0.99


@pytest.mark.slow
def test_shipped_segmentor():
    files = every_third('camvid/images/test/*.jpg')
    metrics = []
    for dtype in DTYPES:
        counts = np.zeros((11, 11))
        results = shipped_results('semantic_fpn_cpvt_tiny_gap-camvid', files, dtype)
        for file, result in zip(files, results, strict=True):
            labels = Image.open(DATA / 'camvid/labels/test' / f'{file.stem}.png')
            truth = np.asarray(labels).astype(int)
            pairs = truth * 11 + result.prediction['seg_map']
            counts += np.bincount(pairs[truth < 11], minlength=121).reshape(11, 11)
        common = counts.diagonal()
        metrics.append(np.mean(common / (counts.sum(0) + counts.sum(1) - common)))
    assert metrics[1] == pytest.approx(metrics[0], abs=0.003)


@pytest.mark.slow
def test_shipped_detector(tmp_path):
    files, name = every_third('bccd/test/*.jpg'), 'retinanet_cpvt_tiny_gap-bccd'
    coco = pytest.importorskip('pycocotools.coco')
    cocoeval = pytest.importorskip('pycocotools.cocoeval')
    truth, metrics = coco.COCO(DATA / 'bccd/annotations/test.json'), []
    ids = {image['file_name']: image['id'] for image in truth.dataset['images']}
    kinds = {kind['name']: kind['id'] for kind in truth.dataset['categories']}
    for dtype in DTYPES:
        entries = []
        results = shipped_results(name, files, dtype, score_thr=0.0)
        for file, result in zip(files, results, strict=True):
            columns = [result.prediction[key] for key in ('boxes', 'classes', 'scores')]
            for (x1, y1, x2, y2), kind, score in zip(*columns, strict=True):
                entry = dict(image_id=ids[file.name], category_id=kinds[kind], score=score)
                entries.append(dict(entry, bbox=[x1, y1, x2 - x1, y2 - y1]))
        evaluation = cocoeval.COCOeval(truth, truth.loadRes(entries), 'bbox')
        evaluation.params.imgIds = [ids[file.name] for file in files]
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
        metrics.append(evaluation.stats[0])
    assert metrics[1] == pytest.approx(metrics[0], abs=0.003)
