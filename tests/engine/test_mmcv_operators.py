"""mmcv's operators on torchvision's kernels: equal to the recorded outputs of the compiled ones, or
to the definition where a CPU has none.
"""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip('mmcv')  # its operators are found, as tiny imports cpvt_backbones

from mmcv import ops
from operator_cases import (
    BOXES,
    MAPS,
    boxes_case,
    maps_case,
    outputs_and_gradients,
    read,
)

from cpvt_backbones.engine import mmcv_operators as operators
from cpvt_backbones.patches import provide_operators

ROOT = Path(__file__).resolve().parents[2]
NAMES = 'bbox deform_conv focal_loss modulated_deform_conv multi_scale_deform_attn nms roi_align'
WRAPPERS = {name: importlib.import_module(f'mmcv.ops.{name}') for name in NAMES.split()}
# The sums of a convolution or of a region have some hundred terms, in another order: rounding of
# sqrt(100) steps. The record is in fp32.
CLOSE = {
    torch.float64: dict(rtol=1e-7, atol=1e-7),
    torch.float32: dict(rtol=1e-6, atol=1e-5),
    torch.float16: dict(rtol=4e-3, atol=4e-3),
}


def ours(function, *inputs):
    """The same function of mmcv.ops over the operators on torchvision's kernels."""
    with pytest.MonkeyPatch.context() as patch:
        for wrapper in WRAPPERS.values():
            patch.setattr(wrapper, 'ext_module', operators)
        return function(*inputs)


# -- as the compiled operators


@pytest.mark.parametrize('name', BOXES)
def test_boxes_are_those_of_the_compiled_operators(name):
    # A gaussian score is a product of at most 60 exponentials, each with an error of two steps of
    # fp32.
    tolerance = 2 * 60 * 2.0**-23 if 'gaussian' in name else 0
    if name.startswith('overlap'):
        tolerance = 2.0**-22
    for found, expected in zip(ours(boxes_case, name), read()[name], strict=True):
        found = found.to(expected.dtype)
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=0, equal_nan=True)


@pytest.mark.parametrize('dtype', [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize('name', MAPS)
def test_maps_and_gradients_are_those_of_the_compiled_operators(name, dtype):
    for found, expected in zip(ours(maps_case, name, dtype), read()[name], strict=True):
        assert found.dtype == dtype
        torch.testing.assert_close(found.float(), expected, **CLOSE[dtype])


# -- boxes and regions


def boxes_and_scores(count):
    corner = torch.rand(count, 2) * 50
    return torch.cat((corner, corner + torch.rand(count, 2) * 40), dim=1), torch.rand(count)


@given(st.integers(0, 90), st.sampled_from([0.0, 0.3, 0.5, 1.0]))
def test_nms_takes_equal_scores_in_the_order_of_a_sort(count, threshold):
    boxes, scores = boxes_and_scores(count)
    scores = (scores * 3).round() / 3
    ranks = torch.empty(count)
    ranks[scores.sort(descending=True)[1]] = torch.arange(count, 0, -1.0)
    found = ours(ops.nms, boxes, scores, threshold)[1]
    assert torch.equal(found, ours(ops.nms, boxes, ranks, threshold)[1])


def test_nms_of_half_precision_and_of_doubles_keeps_the_boxes_of_fp32():
    boxes, scores = boxes_and_scores(40)
    boxes, scores = boxes.half(), scores.half()
    expected = ours(ops.nms, boxes.float(), scores.float(), 0.5)[1]
    for dtype in (torch.float16, torch.float64):
        found = ours(ops.nms, boxes.to(dtype), scores.to(dtype), 0.5)[1]
        assert torch.equal(found, expected)


def image(dtype):
    return torch.randn(2, 4, 9, 13, dtype=dtype)


def regions(count, dtype):
    boxes = boxes_and_scores(count)[0]
    boxes[: count // 4, 2:] = boxes[: count // 4, :2]  # without an area
    return torch.cat((torch.arange(count)[:, None] % 2, boxes), dim=1).to(dtype)


@pytest.mark.parametrize('aligned', [True, False])
def test_roi_align_in_half_precision_adds_in_fp32_and_rounds_once(aligned):
    features, rois = image(torch.float16), regions(9, torch.float16)

    def align(features, rois):
        return ops.roi_align(features, rois, (3, 2), 0.25, 2, 'avg', aligned)

    expected = ours(align, features.float(), rois.float()).half()
    assert torch.equal(ours(align, features, rois), expected)


def test_roi_align_with_maxima_is_named():
    with pytest.raises(NotImplementedError, match="pool_mode='max'"):
        inputs = image(torch.float32), regions(2, torch.float32), 2, 1.0, 0, 'max'
        ours(ops.roi_align, *inputs)


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
        function = ops.sigmoid_focal_loss
        return function(logits, target, gamma, alpha, weight, reduction)

    expected = outputs_and_gradients(define, logits)
    found = ours(outputs_and_gradients, compute, logits)
    for left, right in zip(found, expected, strict=True):
        scale = right.abs().max().item()
        atol = CLOSE[dtype]['rtol'] * max(scale, 1) * 4
        torch.testing.assert_close(left.double(), right.double(), rtol=0, atol=atol)


# -- deformable convolution and attention


@pytest.mark.parametrize('name', [name for name in MAPS if name.startswith('cut')])
def test_images_of_offsets_may_lie_apart_in_memory(name):
    def compute(memory_format):
        return maps_case(name, torch.float64, memory_format=memory_format)

    together = ours(compute, torch.contiguous_format)
    apart = ours(compute, torch.channels_last)
    for left, right in zip(together, apart, strict=True):
        torch.testing.assert_close(left, right)


def test_offsets_that_are_smaller_than_the_output_are_refused():
    """The compiled operator reads what lies behind them in memory."""
    inputs = image(torch.float32), torch.zeros(2, 18, 9, 12), torch.zeros(2, 9, 9, 12)
    function = ops.modulated_deform_conv2d
    with pytest.raises(ValueError, match='as large as the output, 9 x 13, got 9 x 12$'):
        ours(function, *inputs, torch.zeros(6, 4, 3, 3), None, 1, 1)


def test_deformable_convolution_in_half_precision():
    x, weight, offset = image(torch.float32), torch.randn(6, 4, 3, 3), torch.randn(2, 18, 9, 13)
    x, weight, offset = x.half(), weight.half(), offset.half()

    def convolve(x, offset, weight):
        return ops.deform_conv2d(x, offset, weight, 1, 1)

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


@pytest.mark.full
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


@pytest.mark.full
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


@pytest.mark.full
def test_compiled_operators_win(tmp_path):
    (tmp_path / '_ext.py').write_text('')
    printed = run(f"""
import cpvt_backbones, mmcv
assert type(sys.meta_path[-1]).__name__ == 'OperatorFinder'
mmcv.__path__.insert(0, {str(tmp_path)!r})
sys.meta_path[sys.meta_path.index(Hiding)] = PathFinder
import mmcv._ext
print(mmcv._ext.__file__)
""")
    assert printed.strip().endswith(str(tmp_path / '_ext.py'))
