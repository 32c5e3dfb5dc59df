"""Programs recorded from a model: torch.compile, torch.export, torch.jit.trace, OpenVINO, torch.fx,
torch.func.
"""

import gc
import io

import numpy as np
import pytest
import torch
from tiny import (
    BACKBONES,
    ONE_BLOCK,
    POSITIONS,
    PYRAMID,
    TWO_BLOCKS,
    VITDET,
    column,
    max_difference,
    multi_scale,
    only,
    pyramid,
    randomise,
)
from torch._dynamo.testing import CompileCounterWithBackend
from torch.export import Dim

from cpvt_backbones.backbones import announce_sizes

SMALL_PYRAMID = {**PYRAMID, 'depths': (1, 1, 1, 1)}
# Of two encodings or layouts that one model combines, there is no model with each alone.
MODELS = {
    'class_token': lambda: column(arch=TWO_BLOCKS, out_type='cls_token'),
    'tables': lambda: column(
        arch=TWO_BLOCKS, out_indices=(0, 1), position=POSITIONS['learned_and_peg']
    ),
    'sin_cos': lambda: column(arch=TWO_BLOCKS, position=POSITIONS['sin_cos']),
    'relative': lambda: column(arch=TWO_BLOCKS, position=POSITIONS['relative']),
    'vitdet': lambda: column(**{**VITDET, 'arch': TWO_BLOCKS}),
    'rope_windowed': lambda: multi_scale(
        arch=TWO_BLOCKS,
        window_size=4,
        global_blocks=(1,),
        num_registers=2,
        position=POSITIONS['rope_dinov3'],
    ),
    'rope_pyramid': lambda: pyramid(
        arch=SMALL_PYRAMID, out_indices=0, position=POSITIONS['rope_mixed']
    ),
    'pyramid_tables': lambda: pyramid(
        arch=SMALL_PYRAMID,
        out_indices=(0, 1),
        position=[dict(type='Learned', interpolation='bilinear'), dict(type='PEG')],
    ),
    'taps': lambda: multi_scale(arch=TWO_BLOCKS, source='taps', taps=(0, 0, 1, 1)),
    'fused': lambda: column(arch=TWO_BLOCKS).fuse(),
}
SIZES = [(96, 96), (112, 160), (97, 131), (160, 112), (83, 200)]
# Down to one token a side, where torch compiles anew: it takes a size of 1 for a constant.
ANY_SIZES = [(64, 64), (65, 64), (64, 130), (33, 47), (100, 8), (8, 100)]
ANY_SIZES += [(257, 31), (16, 16), (120, 121), (7, 9), (1, 1), (200, 56)]


def compilations(model, sizes):
    """Number of compilations of a model for images of all sizes, whose features are checked."""
    torch.compiler.reset()
    counter = CompileCounterWithBackend('eager')
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    with torch.no_grad():
        for size in sizes:
            images = torch.randn(1, 3, *size)
            for found, expected in zip(compiled(images), model(images), strict=True):
                torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    torch.compiler.reset()
    return counter.frame_count


@pytest.mark.parametrize('name', only('taps', of=MODELS))
def test_compile_once_and_at_most_twice_more_for_every_size(name):
    assert compilations(MODELS[name]().eval(), SIZES) <= 3


@pytest.mark.full
def test_compile_within_torchs_limit_down_to_one_pixel():
    model = multi_scale(arch=TWO_BLOCKS).eval()
    assert compilations(model, ANY_SIZES) <= torch._dynamo.config.recompile_limit


@pytest.mark.full
def test_compiled_training_step_has_the_same_gradients():
    model = multi_scale(arch=TWO_BLOCKS)
    torch.compiler.reset()
    compiled = torch.compile(model, backend='aot_eager', fullgraph=True)
    images = torch.randn(2, 3, 50, 70)
    gradients = []
    for run in (compiled, model):
        model.zero_grad()
        sum(output.square().mean() for output in run(images)).backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    torch.compiler.reset()
    for found, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.full
def test_valid_sizes_are_seen_through_compile():
    model = multi_scale(arch=TWO_BLOCKS, position=POSITIONS['peg']).eval()
    compiled = torch.compile(model, fullgraph=True, backend='aot_eager')
    sizes = [(96, 128), (64, 100)]
    images = torch.randn(2, 3, 96, 128)
    with torch.no_grad():
        expected = model(images, valid_sizes=sizes)
        assert not torch.allclose(expected[0], model(images)[0], atol=1e-3)
        found = compiled(images, valid_sizes=sizes)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize('whole_step', only(False, of=[False, True]))
@torch._dynamo.config.patch(recompile_limit=3)
def test_announced_sizes_are_seen_through_compile(whole_step):
    """Batch after batch, padded or not, beyond the limit of compilations.

    mmengine compiles the whole training step, with the data preprocessor that announces the sizes.
    """
    model = column(**ONE_BLOCK).eval()

    def step(images, sizes):
        announce_sizes(images, sizes)
        return model(images)

    torch.compiler.reset()
    compiled = torch.compile(step if whole_step else model, backend='eager')
    for index in range(6):
        height = 64 + 4 * index
        images, sizes = torch.randn(2, 3, height, 70), [(height, 70), (height, 70)]
        if index != 2:
            sizes[index % 2] = (40, 60 - index)
        with torch.no_grad():
            if whole_step:
                found = compiled(images, sizes)
            else:
                announce_sizes(images, sizes)
                found = compiled(images)
            expected = model(images, valid_sizes=sizes)
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    torch.compiler.reset()


def test_a_program_of_one_graph_refuses_announced_sizes():
    model = multi_scale(arch=TWO_BLOCKS).eval()
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend='eager')
    images = torch.randn(2, 3, 64, 80)
    compiled(images)
    announce_sizes(images, [(64, 80), (48, 80)])
    with pytest.raises(torch._dynamo.exc.Unsupported):
        compiled(images)
    model(images)
    del images
    gc.collect()  # the error holds the batch
    compiled(torch.randn(2, 3, 64, 80))
    torch.compiler.reset()


# `make test` records these.
TRACED = ('column', 'multi_scale_taps_windowed_8', 'pyramid_cls', 'peg_qk', 'rope_mixed')


# A recorded patch embedding is a convolution, and adds 768 products in another order than the
# linear layer for few patches: 768**0.5 roundings of 6e-8, relative to the largest feature.
ANOTHER_ORDER = 5e-6


def assert_same_features(found, model, *shapes, tolerance=ANOTHER_ORDER):
    for shape in shapes:
        images = torch.randn(shape)
        with torch.no_grad():
            for ours, theirs in zip(found(images), model(images), strict=True):
                assert ours.shape == theirs.shape
                largest = max(1, theirs.abs().max().item())
                assert max_difference(torch.as_tensor(ours), theirs) <= tolerance * largest


@pytest.mark.parametrize('name', only(*TRACED, of=BACKBONES))
def test_a_jit_trace_is_right_at_every_size(name):
    model = randomise(BACKBONES[name]()).eval()
    traced = torch.jit.trace(model, torch.randn(1, 3, 96, 128))
    assert_same_features(traced, model, (2, 3, 75, 101), (1, 3, 3, 5), (3, 3, 16, 300))


@pytest.mark.parametrize(
    ('name', 'arch'),
    only(
        ('learned_rope_and_peg', TWO_BLOCKS),
        of=[
            ('column_windowed', TWO_BLOCKS),
            ('column_vitdet', TWO_BLOCKS),
            ('multi_scale_last', TWO_BLOCKS),
            ('multi_scale_taps_windowed_8', TWO_BLOCKS),
            ('pyramid_cls', SMALL_PYRAMID),
            ('learned_rope_and_peg', TWO_BLOCKS),
        ],
    ),
)
def test_torch_export_with_dynamic_sizes_is_not_tied_to_the_example(name, arch):
    model = randomise(BACKBONES[name](arch=arch)).eval()
    sizes = {0: Dim.DYNAMIC, 2: Dim.DYNAMIC, 3: Dim.DYNAMIC}
    images = torch.randn(2, 3, 96, 128)
    program = torch.export.export(model, (images,), dynamic_shapes=(sizes,), strict=False)
    assert_same_features(program.module(), model, (3, 3, 75, 101), (2, 3, 64, 64))


@pytest.mark.full
@pytest.mark.parametrize(
    ('build', 'arch'),
    [(column, TWO_BLOCKS), (multi_scale, TWO_BLOCKS), (pyramid, SMALL_PYRAMID)],
)
def test_openvino_reads_a_model_for_every_size(build, arch):
    openvino = pytest.importorskip('openvino')
    model = randomise(build(arch=arch)).eval()
    converted = openvino.convert_model(model, example_input=torch.randn(1, 3, 96, 128))
    compiled = openvino.compile_model(converted, 'CPU', {'INFERENCE_PRECISION_HINT': 'f32'})

    def run(images):
        outputs = compiled(images.numpy())
        return [np.array(outputs[index]) for index in range(len(compiled.outputs))]

    assert_same_features(run, model, (2, 3, 75, 101), (1, 3, 3, 5), tolerance=1e-5)


@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('build', [column, pyramid])
def test_the_old_onnx_exporter_is_refused(build):
    pytest.importorskip('onnx')
    with pytest.raises(RuntimeError, match='cpvt export writes ONNX'):
        torch.onnx.export(build().eval(), (torch.randn(1, 3, 96, 128),), io.BytesIO(), dynamo=False)


@pytest.mark.parametrize('name', only(*TRACED, of=BACKBONES))
def test_functional_call_and_vmap(name):
    model = BACKBONES[name]().eval()
    images = torch.randn(3, 2, 3, 40, 56)
    parameters = {key: value.detach() for key, value in model.named_parameters()}
    with torch.no_grad():
        expected = [model(batch) for batch in images]
        called = torch.func.functional_call(model, parameters, (images[0],))
        mapped = torch.func.vmap(model)(images)
    for index in range(len(called)):
        assert max_difference(called[index], expected[0][index]) <= 2e-6
        for i in range(3):
            assert max_difference(mapped[index][i], expected[i][index]) <= 2e-6
