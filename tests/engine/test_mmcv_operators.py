"""mmcv's operators on torchvision's kernels: equal to the compiled ones, or to the definition where
a CPU has none.
"""

import importlib
import importlib.machinery
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
import torch
from hypothesis import given
from hypothesis import strategies as st

mmcv = pytest.importorskip('mmcv')

from cpvt_backbones.engine import mmcv_operators as operators  # noqa: E402
from cpvt_backbones.patches import OperatorFinder, provide_operators  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
COMPILED = importlib.machinery.PathFinder.find_spec('mmcv._ext', mmcv.__path__) is not None
NAMES = 'bbox deform_conv focal_loss modulated_deform_conv multi_scale_deform_attn nms roi_align'
WRAPPERS = {name: importlib.import_module(f'mmcv.ops.{name}') for name in NAMES.split()}
needs_compiled = pytest.mark.skipif(
    not COMPILED, reason='mmcv has no compiled operators to compare with'
)
IMAGE = dict(batch=2, channels=4, height=9, width=13)
# The sums of a convolution or of a region have some hundred terms, in another order: rounding of
# sqrt(100) steps.
CLOSE = {
    torch.float64: dict(rtol=1e-12, atol=1e-12),
    torch.float32: dict(rtol=1e-6, atol=1e-5),
    torch.float16: dict(rtol=4e-3, atol=4e-3),
}


def ours(function, *inputs):
    """The same function of mmcv.ops over the operators on torchvision's kernels."""
    with pytest.MonkeyPatch.context() as patch:
        for wrapper in WRAPPERS.values():
            patch.setattr(wrapper, 'ext_module', operators)
        return function(*inputs)


def outputs_and_gradients(function, *inputs):
    leaves = [t.clone().requires_grad_(t.is_floating_point()) for t in inputs]
    output = function(*leaves)
    weights = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output)
    (output * weights).sum().backward()
    return [output.detach(), *(t.grad for t in leaves if t.grad is not None)]


def assert_agree(function, *inputs):
    """Outputs and gradients of the compiled operators and of ours."""
    expected = outputs_and_gradients(function, *inputs)
    found = ours(outputs_and_gradients, function, *inputs)
    for left, right in zip(expected, found, strict=True):
        torch.testing.assert_close(right, left, **CLOSE[left.dtype])


def boxes_and_scores(count, kind='random'):
    corner = torch.rand(count, 2) * 50
    boxes = torch.cat((corner, corner + torch.rand(count, 2) * 40), dim=1)
    scores = torch.rand(count)
    if kind == 'integer':
        boxes = (
            boxes.div(8, rounding_mode='floor') * 8
        )  # many of the same box, some without an area
    if kind in ('integer', 'equal scores'):
        scores = (scores * 3).round() / 3
    return boxes, scores


# -- boxes
# --------------------------------------------------------------------------------------------------

KINDS = st.sampled_from(['random', 'integer', 'equal scores'])
COUNTS = st.sampled_from([0, 1, 2, 17, 90])
THRESHOLDS = st.sampled_from([0.0, 0.3, 0.5, 0.6, 0.7, 1.0])


def assert_same_boxes(found, expected, tolerance=0.0):
    for left, right in zip(found, expected, strict=True):
        torch.testing.assert_close(left, right, rtol=tolerance, atol=0, equal_nan=True)


@needs_compiled
@given(count=COUNTS, kind=KINDS, threshold=THRESHOLDS, offset=st.sampled_from([0, 1]))
def test_nms(count, kind, threshold, offset):
    inputs = (*boxes_and_scores(count, kind), threshold, offset)
    assert_same_boxes(ours(WRAPPERS['nms'].nms, *inputs), WRAPPERS['nms'].nms(*inputs))


@needs_compiled
@given(
    count=COUNTS, kind=KINDS, threshold=THRESHOLDS, offset=st.sampled_from([0, 1]),
    method=st.sampled_from(['naive', 'linear', 'gaussian']), min_score=st.sampled_from([0.0, 1e-3,
        0.3]),
)  # fmt: skip
def test_soft_nms(count, kind, threshold, offset, method, min_score):
    inputs = (*boxes_and_scores(count, kind), threshold, 0.5, min_score, method, offset)
    # A gaussian score is a product of at most 90 exponentials, each with an error of two steps of
    # fp32.
    tolerance = 2 * 90 * 2.0**-23 if method == 'gaussian' else 0
    assert_same_boxes(
        ours(WRAPPERS['nms'].soft_nms, *inputs), WRAPPERS['nms'].soft_nms(*inputs), tolerance
    )


@needs_compiled
@pytest.mark.parametrize('split', [10, 10000])
@pytest.mark.parametrize('kind', ['nms', 'soft_nms'])
def test_batched_nms(kind, split):
    boxes, scores = boxes_and_scores(60)
    options = dict(type=kind, iou_threshold=0.4, split_thr=split)
    inputs = boxes, scores, torch.arange(60) % 3, options
    batched_nms = WRAPPERS['nms'].batched_nms
    assert_same_boxes(ours(batched_nms, *inputs), batched_nms(*inputs))


def test_nms_of_half_precision_and_of_doubles_keeps_the_boxes_of_fp32():
    boxes, scores = boxes_and_scores(40)
    boxes, scores = boxes.half(), scores.half()
    expected = ours(WRAPPERS['nms'].nms, boxes.float(), scores.float(), 0.5)[1]
    for dtype in (torch.float16, torch.float64):
        found = ours(WRAPPERS['nms'].nms, boxes.to(dtype), scores.to(dtype), 0.5)[1]
        assert torch.equal(found, expected)


@needs_compiled
@pytest.mark.parametrize('aligned', [True, False])
@pytest.mark.parametrize('mode', ['iou', 'iof'])
@pytest.mark.parametrize('offset', [0, 1])
def test_bbox_overlaps(mode, aligned, offset):
    one, two = boxes_and_scores(20)[0], boxes_and_scores(20 if aligned else 31, 'integer')[0]
    inputs = (one, two, mode, aligned, offset)
    overlaps = WRAPPERS['bbox'].bbox_overlaps
    expected = overlaps(*inputs)
    torch.testing.assert_close(ours(overlaps, *inputs), expected, **CLOSE[torch.float32])


# -- regions
# --------------------------------------------------------------------------------------------------


def image(dtype):
    return torch.randn(*IMAGE.values(), dtype=dtype)


def regions(count, dtype):
    boxes = boxes_and_scores(count)[0]
    boxes[: count // 4, 2:] = boxes[: count // 4, :2]  # without an area
    return torch.cat((torch.arange(count)[:, None] % IMAGE['batch'], boxes), dim=1).to(dtype)


@needs_compiled
@pytest.mark.parametrize('dtype', [torch.float64, torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize('aligned', [True, False])
@pytest.mark.parametrize(('count', 'ratio'), [(0, 0), (1, 0), (9, 0), (9, 2)])
def test_roi_align(count, ratio, aligned, dtype):
    rois = regions(count, dtype)

    def align(features, rois=rois):
        return WRAPPERS['roi_align'].roi_align(features, rois, (3, 2), 0.25, ratio, 'avg', aligned)

    features = image(dtype)
    if dtype != torch.float16:
        assert_agree(align, features)
    else:
        # The compiled kernel adds in half precision; ours adds in fp32 and rounds once.
        assert torch.equal(ours(align, features), align(features.float(), rois.float()).half())


def test_roi_align_with_maxima_is_named():
    with pytest.raises(NotImplementedError, match="pool_mode='max'"):
        inputs = image(torch.float32), regions(2, torch.float32), 2, 1.0, 0, 'max'
        ours(WRAPPERS['roi_align'].roi_align, *inputs)


# -- losses
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('dtype', [torch.float64, torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize('reduction', ['none', 'mean', 'sum'])
@pytest.mark.parametrize('weighted', [False, True])
def test_sigmoid_focal_loss(weighted, reduction, dtype):
    """Against the definition, differentiated by autograd; a CPU has no compiled operator for it."""
    logits = (torch.randn(12, 4, dtype=torch.float64) * 3).to(dtype)
    target = torch.arange(12) % (4 if weighted else 5)  # 4 is the background
    weight = torch.tensor([0.5, 1.0, 2.0, 3.0], dtype=dtype) if weighted else None
    gamma, alpha = 1.5, 0.3

    def define(logits):
        p, own = logits.double().sigmoid(), target[:, None] == torch.arange(4)
        positive = -alpha * (1 - p) ** gamma * p.log()
        negative = -(1 - alpha) * p**gamma * (1 - p).log()
        loss = torch.where(own, positive, negative)
        loss = loss * weight[target][:, None] if weighted else loss
        return dict(none=loss, mean=loss.sum() / len(logits), sum=loss.sum())[reduction]

    def compute(logits):
        function = WRAPPERS['focal_loss'].sigmoid_focal_loss
        return function(logits, target, gamma, alpha, weight, reduction)

    expected = outputs_and_gradients(define, logits)
    found = ours(outputs_and_gradients, compute, logits)
    for left, right in zip(found, expected, strict=True):
        scale = right.abs().max().item()
        atol = CLOSE[dtype]['rtol'] * max(scale, 1) * 4
        torch.testing.assert_close(left.double(), right.double(), rtol=0, atol=atol)


# -- deformable convolution and attention
# ----------------------------------------------------------------------------


@needs_compiled
@pytest.mark.parametrize('dtype', [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize(('groups', 'deform_groups'), [(1, 1), (2, 1), (1, 2), (2, 4)])
@pytest.mark.parametrize(('stride', 'pad', 'dilation'), [(1, 1, 1), ((2, 1), (0, 2), (1, 2))])
@pytest.mark.parametrize('kind', ['plain', 'modulated', 'modulated, bias'])
def test_deformable_convolution(kind, stride, pad, dilation, groups, deform_groups, dtype):
    x, weight = image(dtype), torch.randn(6, 4 // groups, 3, 3, dtype=dtype)
    size = torch.nn.functional.conv2d(x, weight, None, stride, pad, dilation, groups).shape[2:]
    offset = torch.randn(2, deform_groups * 18, *size, dtype=dtype) * 3
    if kind == 'plain':

        def convolve(x, offset, weight):
            return WRAPPERS['deform_conv'].deform_conv2d(
                x, offset, weight, stride, pad, dilation, groups, deform_groups
            )

        assert_agree(convolve, x, offset, weight)
        return
    mask = torch.rand(2, deform_groups * 9, *size, dtype=dtype)
    bias = [torch.randn(6, dtype=dtype)] if 'bias' in kind else []

    def modulate(x, offset, mask, weight, bias=None):
        function = WRAPPERS['modulated_deform_conv'].modulated_deform_conv2d
        return function(x, offset, mask, weight, bias, stride, pad, dilation, groups, deform_groups)

    assert_agree(modulate, x, offset, mask, weight, *bias)


@needs_compiled
@pytest.mark.parametrize('deform_groups', [1, 2])
@pytest.mark.parametrize(('stride', 'larger'), [(1, (18, 26)), (2, (9, 13)), (1, (9, 14))])
def test_offsets_that_are_larger_than_the_output(stride, larger, deform_groups):
    """As DyHead passes them; where they were cut from one map, the images lie apart in memory."""
    x, weight = image(torch.float64), torch.randn(6, 4, 3, 3, dtype=torch.float64)
    both = torch.randn(2, deform_groups * 27, *larger, dtype=torch.float64)

    def modulate(x, both, weight):
        offset, mask = both.split((deform_groups * 18, deform_groups * 9), dim=1)
        function = WRAPPERS['modulated_deform_conv'].modulated_deform_conv2d
        return function(x, offset, mask, weight, None, stride, 1, 1, 1, deform_groups)

    assert_agree(modulate, x, both, weight)
    together = both.to(memory_format=torch.channels_last)
    for left, right in zip(
        ours(outputs_and_gradients, modulate, x, together, weight),
        ours(outputs_and_gradients, modulate, x, both, weight),
        strict=True,
    ):
        torch.testing.assert_close(left, right)


def test_offsets_that_are_smaller_than_the_output_are_refused():
    """The compiled operator reads what lies behind them in memory."""
    inputs = image(torch.float32), torch.zeros(2, 18, 9, 12), torch.zeros(2, 9, 9, 12)
    function = WRAPPERS['modulated_deform_conv'].modulated_deform_conv2d
    with pytest.raises(ValueError, match='as large as the output, 9 x 13, got 9 x 12$'):
        ours(function, *inputs, torch.zeros(6, 4, 3, 3), None, 1, 1)


def test_deformable_convolution_in_half_precision():
    x, weight, offset = image(torch.float32), torch.randn(6, 4, 3, 3), torch.randn(2, 18, 9, 13)
    x, weight, offset = x.half(), weight.half(), offset.half()

    def convolve(x, offset, weight):
        return WRAPPERS['deform_conv'].deform_conv2d(x, offset, weight, 1, 1)

    found = ours(outputs_and_gradients, convolve, x, offset, weight)
    expected = ours(outputs_and_gradients, convolve, x.float(), offset.float(), weight.float())
    for left, right in zip(found, expected, strict=True):
        assert left.dtype == torch.float16
        # The incoming gradient is rounded too.
        torch.testing.assert_close(
            left.float(), right, rtol=2**-9, atol=2**-9 * right.abs().max().item()
        )


@pytest.mark.parametrize('dtype', [torch.float64, torch.float16], ids=str)
def test_multi_scale_deformable_attention(dtype):
    """Against mmcv's own form in PyTorch; a CPU has no compiled operator for it."""
    module = WRAPPERS['multi_scale_deform_attn']
    shapes = torch.tensor([[5, 7], [3, 2]])
    value = torch.randn(2, 41, 2, 4).to(dtype)
    locations, weights = (
        (torch.rand(2, 6, 2, 2, 3, 2) * 1.4 - 0.2).to(dtype),
        torch.rand(2, 6, 2, 2, 3).to(dtype),
    )
    starts = torch.tensor([0, 35])

    def attend(value, locations, weights):
        return module.MultiScaleDeformableAttnFunction.apply(
            value, shapes, starts, locations, weights, 64
        )

    def define(value, locations, weights):
        return module.multi_scale_deformable_attn_pytorch(value, shapes, locations, weights)

    found = ours(outputs_and_gradients, attend, value, locations, weights)
    wide = [t.float() if dtype == torch.float16 else t for t in (value, locations, weights)]
    for left, right in zip(found, outputs_and_gradients(define, *wide), strict=True):
        assert left.dtype == dtype
        atol = 2**-9 * right.abs().max().item() if dtype == torch.float16 else 0
        torch.testing.assert_close(
            left.to(right.dtype), right, rtol=2**-9 if atol else 0, atol=atol
        )


# -- where they come from
# --------------------------------------------------------------------------------------------


def run(code, **environment):
    """What the code prints, in an interpreter without compiled operators."""
    result = subprocess.run(
        [sys.executable, '-c', tiny.WITHOUT_COMPILED_OPERATORS + code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, **environment},
    )
    assert result.returncode == 0, result.stderr
    return result.stdout + result.stderr


def test_an_mmcv_without_operators_gets_them_when_it_is_imported():
    printed = run("""
import cpvt_backbones
assert not {'mmcv', 'torchvision'} & set(sys.modules)
from mmengine.utils.dl_utils.misc import mmcv_full_available
assert mmcv_full_available()
import mmcv._ext, mmcv.ops
assert mmcv._ext.__file__.endswith('mmcv_operators.py'), mmcv._ext
print(mmcv.ops.get_compiler_version())
for operator in ('carafe_forward', 'roi_pool_forward'):
    try:
        getattr(mmcv._ext, operator)()
    except NotImplementedError as error:
        print(error)
""")
    assert printed.count('mmcv has no compiled operators: torchvision') == 1
    assert "operator 'carafe_forward'" in printed and "operator 'roi_pool_forward'" in printed
    assert 'make setup OPERATORS=compiled' in printed


def test_they_can_be_refused():
    printed = run(
        """
import cpvt_backbones
try:
    import mmcv.ops
except ModuleNotFoundError as error:
    print(error.name)
""",
        CPVT_MMCV_OPERATORS='compiled',
    )
    assert (
        'CPVT_MMCV_OPERATORS=compiled, and mmcv has no compiled operators' in printed
        and 'mmcv._ext' in printed
    )


def test_another_value_of_the_variable_is_refused(monkeypatch):
    monkeypatch.setenv('CPVT_MMCV_OPERATORS', 'torch')
    with pytest.raises(
        ValueError, match="CPVT_MMCV_OPERATORS must be 'auto' or 'compiled', got 'torch'"
    ):
        provide_operators()


def test_a_toolbox_that_was_imported_before_is_named():
    pytest.importorskip('mmdet')
    printed = run("""
try:
    import mmdet.models
except ImportError:  # mmdet 3.3 does not import without operators; its fork does
    print('lacks them: import cpvt_backbones first')
import cpvt_backbones
""")
    assert 'lacks them: import cpvt_backbones first' in printed


@needs_compiled
def test_compiled_operators_win():
    assert any(isinstance(finder, OperatorFinder) for finder in sys.meta_path)
    assert importlib.import_module('mmcv._ext').__file__.endswith('.so')
