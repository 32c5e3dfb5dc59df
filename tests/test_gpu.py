"""A GPU: the numbers of the CPU, mixed precision, training, inference, and mmcv's operators.

Without a GPU all tests are skipped. The outputs of these small models pass some twenty products of
matrices, and a product in another order differs by about 3 * 6e-8: the errors add to less than
2e-6 of an output. Ten times as much is allowed. A gradient passes three times as many products.
"""

import importlib
import importlib.machinery

import pytest
import torch
from tiny import BACKBONES, column, multi_scale, pyramid, randomise
from torch.utils.checkpoint import checkpoint

from cpvt_backbones import CPVT, MultiScaleCPVT, PyramidCPVT, list_archs
from cpvt_backbones.analysis.memory import peak_memory
from cpvt_backbones.backbones import announce_sizes

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason='there is no GPU')

CLASSES = dict(CPVT=CPVT, MultiScaleCPVT=MultiScaleCPVT, PyramidCPVT=PyramidCPVT)
ARCHS = [(name, arch) for name, archs in list_archs().items() for arch in archs]
OUTPUT, GRADIENT = 2e-5, 6e-5
SIZES = [(50, 37), (1, 1), (161, 224)]


@pytest.fixture(autouse=True)
def _exact(monkeypatch):
    """Without this, cuDNN rounds the inputs of a convolution in float32 to ten bits."""
    monkeypatch.setattr(torch.backends.cudnn, 'allow_tf32', False)


def parts(outputs):
    """The tensors of a backbone's outputs, with class tokens or without."""
    outputs = outputs if isinstance(outputs, (tuple, list)) else [outputs]
    for output in outputs:
        yield from (output if isinstance(output, (tuple, list)) else [output])


def relative(found, expected):
    """Norm of a difference, relative to that of the expected tensors."""
    pairs = [(a.double().cpu(), b.double().cpu()) for a, b in zip(found, expected, strict=True)]
    error = sum((a - b).square().sum() for a, b in pairs)
    return float((error / sum(b.square().sum() for _, b in pairs)).sqrt())


def outputs_and_gradients(model, images, weights):
    images = images.detach().requires_grad_()
    found = list(parts(model(images)))
    sum((one * weight.to(one)).sum() for one, weight in zip(found, weights, strict=True)).backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return found, [images.grad, *gradients]


@pytest.mark.parametrize('size', SIZES, ids=str)
@pytest.mark.parametrize('name', BACKBONES)
def test_outputs_and_gradients_are_those_of_the_cpu(name, size):
    model, images = randomise(BACKBONES[name]()).eval(), torch.randn(2, 3, *size)
    with torch.no_grad():
        weights = [torch.randn_like(one) for one in parts(model(images))]
    expected, slopes = outputs_and_gradients(model.double(), images.double(), weights)
    model.zero_grad()
    found, own = outputs_and_gradients(model.float().cuda(), images.cuda(), weights)
    assert all(one.is_cuda for one in found)
    assert relative(found, expected) < OUTPUT
    assert relative(own, slopes) < GRADIENT


@pytest.mark.parametrize(('name', 'arch'), ARCHS)
def test_registered_sizes_in_mixed_precision(name, arch):
    """bfloat16 keeps 8 bits and float16 11: an output differs by a few of their steps."""
    model = CLASSES[name](arch=arch).cuda().eval()
    images = torch.randn(1, 3, 203, 310, device='cuda')
    with torch.no_grad():
        whole = list(parts(model(images)))
        assert all(one.isfinite().all() for one in whole)
        for dtype, bound in ((torch.bfloat16, 0.05), (torch.float16, 0.01)):
            with torch.autocast('cuda', dtype):
                half = list(parts(model(images)))
            assert relative(half, whole) < bound, dtype


@pytest.mark.parametrize('name', BACKBONES)
@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16], ids=str)
def test_a_training_step_in_mixed_precision(name, dtype):
    model = randomise(BACKBONES[name]()).cuda().train()
    images = torch.randn(2, 3, 61, 94, device='cuda')
    with torch.autocast('cuda', dtype):
        sum(one.float().square().mean() for one in parts(model(images))).backward()
    slopes = [p.grad for p in model.parameters() if p.grad is not None]
    assert slopes and all(slope.isfinite().all() for slope in slopes)


@pytest.mark.parametrize('build', [column, multi_scale, pyramid], ids=lambda build: build.__name__)
def test_padded_batches_and_fused_models(build):
    model, images = randomise(build()).eval(), torch.randn(2, 3, 70, 90)
    sizes = [(70, 61), (44, 90)]
    with torch.no_grad():
        padded, fused = list(parts(model(images, valid_sizes=sizes))), list(parts(model(images)))
        model.cuda()
        images = images.cuda()
        assert relative(parts(model(images, valid_sizes=sizes)), padded) < OUTPUT
        assert relative(parts(model.fuse()(images)), fused) < OUTPUT


@pytest.mark.parametrize('reentrant', [False, True])
def test_announced_sizes_in_a_thread_of_autograd(reentrant):
    """Checkpointing of the whole backbone calls it again there. The batch was moved to the GPU."""
    model, batch = randomise(column()).eval().cuda(), torch.randn(2, 3, 70, 90)
    sizes = [(70, 61), (44, 90)]
    images = batch.cuda().requires_grad_()
    gradients = []
    for run in (
        lambda: model(images, valid_sizes=sizes)[0],
        lambda: checkpoint(model, images, use_reentrant=reentrant)[0],
    ):
        model.zero_grad()
        run().square().sum().backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
        announce_sizes(batch, sizes)
    assert relative(*gradients) < GRADIENT


@pytest.mark.parametrize('build', [column, pyramid], ids=lambda build: build.__name__)
def test_compiled_models(build):
    model = randomise(build()).eval().cuda()
    compiled = torch.compile(model, dynamic=True)
    with torch.no_grad():
        for size in ((64, 96), (50, 37)):
            images = torch.randn(2, 3, *size, device='cuda')
            assert relative(parts(compiled(images)), parts(model(images))) < OUTPUT


def test_peak_memory_is_that_of_the_gpu():
    kept = []
    found = peak_memory(lambda: kept.append(torch.empty(3 * 2**20, device='cuda')), 'cuda')
    assert found == pytest.approx(12, abs=0.1)


# -- toolboxes
# --------------------------------------------------------------------------------------------------


@pytest.fixture
def inferencers():
    """A shipped model on the CPU and on the GPU."""

    def both(name, **options):
        from cpvt_backbones.inference import Inferencer, read_config
        from cpvt_backbones.weights import find_shipped

        shipped = find_shipped(name)
        cfg = read_config(shipped.config_file)
        return [
            Inferencer(cfg=cfg, checkpoint=shipped.name, device=device, **options)
            for device in ('cpu', None)
        ]

    return both


@pytest.fixture
def photo():
    """Discs of two colours on a grey ground, BGR."""
    import cv2
    import numpy as np

    rng = np.random.default_rng(0)
    image = rng.integers(190, 215, (300, 400, 3), dtype=np.uint8)
    for x, y in rng.integers(30, 270, (12, 2)):
        cv2.circle(image, (int(x), int(y)), 24, (120, 110, 200), -1)
    return image


def test_a_detector_finds_the_boxes_of_the_cpu(inferencers, photo):
    pytest.importorskip('mmdet')
    cpu, gpu = inferencers('retinanet_cpvt_tiny_gap-bccd')
    assert next(gpu.predictor.model.parameters()).is_cuda
    expected, found = cpu(photo)[0], gpu(photo)[0]
    assert len(expected['boxes']) and list(found['labels']) == list(expected['labels'])
    assert list(found['scores']) == pytest.approx(list(expected['scores']), abs=1e-4)
    boxes = torch.tensor(found['boxes']) - torch.tensor(expected['boxes'])
    assert boxes.abs().max() < 0.05  # px


def test_a_segmentor_and_a_classifier_answer_as_on_the_cpu(inferencers, photo):
    pytest.importorskip('mmseg')
    cpu, gpu = inferencers('semantic_fpn_cpvt_tiny_gap-camvid')
    assert (cpu(photo)[0]['seg_map'] == gpu(photo)[0]['seg_map']).mean() > 0.999
    pytest.importorskip('mmpretrain')
    cpu, gpu = inferencers('cpvt_tiny_gap-imagenette')
    expected, found = cpu(photo)[0], gpu(photo)[0]
    assert found['label'] == expected['label']
    assert found['score'] == pytest.approx(expected['score'], abs=1e-4)


@pytest.mark.parametrize('dtype', ['auto', 'bfloat16', 'float16'])
def test_inference_in_reduced_precision(inferencers, photo, dtype):
    pytest.importorskip('mmseg')
    name = 'semantic_fpn_cpvt_tiny_gap-camvid'
    whole = inferencers(name)[1](photo)[0]['seg_map']
    half = inferencers(name, dtype=dtype)[1](photo)[0]['seg_map']
    assert (half == whole).mean() > 0.95


def _operator_cases():
    """Functions of mmcv.ops and their inputs."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape):
        return torch.rand(*shape, generator=generator)

    boxes = random(40, 4) * 30
    boxes[:, 2:] += boxes[:, :2]
    rois = torch.cat((torch.zeros(40, 1), boxes), 1)
    image = random(1, 4, 32, 40)
    offsets = random(1, 18, 30, 38) - 0.5
    kernel = random(4, 4, 3, 3)
    labels = torch.randint(0, 5, (40,), generator=generator)
    shapes = torch.tensor([[6, 8], [3, 4]])
    starts = torch.tensor([0, 48])
    return {
        'nms': lambda ops, to: ops.nms(to(boxes), to(random(40).sort().values), 0.5),
        'soft_nms': lambda ops, to: ops.soft_nms(to(boxes), to(random(40).sort().values)),
        'roi_align': lambda ops, to: ops.roi_align(to(image), to(rois), (7, 7), 0.5, 2),
        'deform_conv2d': lambda ops, to: ops.deform_conv2d(to(image), to(offsets), to(kernel)),
        'modulated_deform_conv2d': lambda ops, to: ops.modulated_deform_conv2d(
            to(image), to(offsets), to(random(1, 9, 30, 38)), to(kernel), None, 1, 0, 1, 1, 1
        ),
        'sigmoid_focal_loss': lambda ops, to: ops.sigmoid_focal_loss(to(random(40, 5)), to(labels)),
        'bbox_overlaps': lambda ops, to: ops.bbox_overlaps(to(boxes), to(boxes)),
        'attention': lambda ops, to: importlib.import_module(
            'mmcv.ops.multi_scale_deform_attn'
        ).MultiScaleDeformableAttnFunction.apply(
            to(random(2, 60, 4, 8)),
            to(shapes),
            to(starts),
            to(random(2, 5, 4, 2, 3, 2)),
            to(random(2, 5, 4, 2, 3)),
            64,
        ),
    }


@pytest.mark.parametrize('name', _operator_cases())
def test_operators_of_mmcv(name):
    mmcv = pytest.importorskip('mmcv')
    if importlib.machinery.PathFinder.find_spec('mmcv._ext', mmcv.__path__):
        pytest.skip('mmcv has its compiled operators')
    ops = importlib.import_module('mmcv.ops')
    found = {}
    for device in ('cpu', 'cuda'):
        leaves = []

        def to(tensor, device=device, leaves=leaves):
            tensor = tensor.to(device)
            if tensor.is_floating_point():
                tensor.requires_grad_()
                leaves.append(tensor)
            return tensor

        # A new set of cases each: it draws the same numbers.
        outputs = _operator_cases()[name](ops, to)
        outputs = [one for one in parts(outputs) if torch.is_tensor(one)]
        if outputs[0].requires_grad and name not in ('nms', 'soft_nms', 'bbox_overlaps'):
            outputs[0].square().sum().backward()
            outputs += [leaf.grad for leaf in leaves if leaf.grad is not None]
        found[device] = [one.detach().cpu() for one in outputs]
        assert device == 'cpu' or outputs[0].is_cuda or name == 'soft_nms'
    for one, other in zip(found['cuda'], found['cpu'], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
