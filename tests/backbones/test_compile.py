"""`torch.compile`: no break in the graph, the same numbers, and few compilations however the size
changes.
"""

import pytest
import torch
from tiny import POSITIONS, PYRAMID
from tiny import TWO_BLOCKS as COLUMN
from torch._dynamo.testing import CompileCounterWithBackend

from cpvt_backbones import CPVT, MultiScaleCPVT, PyramidCPVT

ONE_BLOCK_A_STAGE = {**PYRAMID, 'depths': (1, 1, 1, 1)}
# All at least 5 x 5 tokens of 16 px; patches of 16 divide some sides, both or none.
SIZES = [
    (96, 96),
    (112, 160),
    (97, 131),
    (160, 112),
    (83, 200),
    (128, 99),
    (144, 144),
    (250, 90),
    (101, 101),
    (192, 81),
]
MODELS = {
    'class_token': lambda: CPVT(arch=COLUMN, out_type='cls_token', position=POSITIONS['peg']),
    'gap': lambda: CPVT(arch=COLUMN, with_cls_token=False, out_type='avg_featmap'),
    'maps': lambda: CPVT(arch=COLUMN, out_indices=(0, 1), position=POSITIONS['learned_and_peg']),
    'sin_cos': lambda: CPVT(arch=COLUMN, position=POSITIONS['sin_cos']),
    'relative': lambda: CPVT(arch=COLUMN, position=POSITIONS['relative']),
    'rope_windowed': lambda: MultiScaleCPVT(
        arch=COLUMN,
        window_size=4,
        global_blocks=(1,),
        num_registers=2,
        position=POSITIONS['rope_dinov3'],
    ),
    'rope_pyramid': lambda: PyramidCPVT(
        arch=ONE_BLOCK_A_STAGE, out_indices=0, position=dict(type='RoPE', mode='mixed')
    ),
    'multi_scale': lambda: MultiScaleCPVT(arch=COLUMN),
    'taps': lambda: MultiScaleCPVT(arch=COLUMN, source='taps', taps=(0, 0, 1, 1)),
    'windowed': lambda: MultiScaleCPVT(arch=COLUMN, window_size=4, global_blocks=(1,)),
    'pyramid': lambda: PyramidCPVT(arch=ONE_BLOCK_A_STAGE),
    'pyramid_tables': lambda: PyramidCPVT(
        arch=ONE_BLOCK_A_STAGE,
        out_indices=(0, 1),
        position=dict(type='Learned', interpolation='bilinear'),
    ),
    'fused': lambda: CPVT(arch=COLUMN).fuse(),
}


@pytest.mark.parametrize('name', MODELS)
def test_one_graph_for_every_size(name):
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    torch.compiler.reset()
    counter = CompileCounterWithBackend('eager')
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    with torch.no_grad():
        for size in SIZES:
            images = torch.randn(1, 3, *size)
            for found, expected in zip(compiled(images), model(images), strict=True):
                torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert counter.frame_count <= 3, 'one compilation and at most two more'
    torch.compiler.reset()


def test_a_training_step_compiles():
    torch.manual_seed(0)
    model = MultiScaleCPVT(arch=COLUMN)
    torch.compiler.reset()
    compiled = torch.compile(model, backend='aot_eager', fullgraph=True)
    images = torch.randn(2, 3, 50, 70)
    for run in (compiled, model):
        model.zero_grad()
        sum(output.square().mean() for output in run(images)).backward()
        gradients = [p.grad.clone() for p in model.parameters()]
        if run is compiled:
            found = gradients
    for a, b in zip(found, gradients, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)
    torch.compiler.reset()


def test_valid_sizes_are_seen_through_compile():
    """Hung on the batch, as the data preprocessors do, or as an argument."""
    torch.manual_seed(0)
    model = MultiScaleCPVT(arch=COLUMN, position=dict(type='PEG', after_blocks=(0,))).eval()
    compiled = torch.compile(model, fullgraph=True, backend='aot_eager')
    sizes = [(96, 128), (64, 100)]
    images = torch.randn(2, 3, 96, 128)
    with torch.no_grad():
        expected = model(images, valid_sizes=sizes)
        assert not torch.allclose(expected[0], model(images)[0], atol=1e-3)
        by_argument = compiled(images, valid_sizes=sizes)
        images.valid_sizes = sizes
        by_attribute = compiled(images)
    for found in (by_argument, by_attribute):
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
