"""Any H and W: shapes, finite values, and no pixel that goes unseen."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tiny import DENSE, NEED_EVERY_KEY, POSITIONS, column, multi_scale, pyramid, randomise

sizes = st.tuples(st.integers(1, 300), st.integers(1, 300))


def check(model, size, batch=1):
    images = torch.randn(batch, 3, *size)
    outputs = model(images)
    assert len(outputs) == len(model.out_channels) == len(model.out_strides)
    for out, channels, stride in zip(outputs, model.out_channels, model.out_strides, strict=True):
        assert out.shape == (batch, channels, -(-size[0] // stride), -(-size[1] // stride))
        assert out.isfinite().all()


@pytest.fixture(scope='module')
def models():
    torch.manual_seed(0)
    return {name: randomise(build()).eval() for name, build in DENSE.items()}


@pytest.mark.parametrize('name', DENSE)
@settings(max_examples=12)
@given(size=sizes)
@example(size=(1, 1))
@example(size=(300, 1))
@example(size=(17, 257))
@example(size=(2048, 37))
@example(size=(37, 1031))
def test_any_size(models, name, size):
    with torch.no_grad():
        check(models[name], size)


@pytest.mark.parametrize('position', POSITIONS)
@settings(max_examples=6)
@given(size=sizes)
@example(size=(1, 1))
def test_any_size_with_any_position(position, size):
    with torch.no_grad():
        check(column(position=POSITIONS[position]).eval(), size)
        check(column(position=POSITIONS[position], window_size=4).eval(), size)
        check(multi_scale(position=POSITIONS[position], patch_size=32).eval(), size)
        if position not in NEED_EVERY_KEY:
            check(pyramid(position=POSITIONS[position]).eval(), size)


@pytest.mark.parametrize('patch_size', [4, 8, 16, 32])
@pytest.mark.parametrize('source', ['last', 'taps'])
@pytest.mark.parametrize('size', [(1, 1), (33, 50)])
def test_patch_sizes(patch_size, source, size):
    model = multi_scale(patch_size=patch_size, source=source)
    with torch.no_grad():
        check(model, size, batch=2)
    assert model.out_strides == (4, 8, 16, 32)
    ups = [max(0, (patch_size // stride).bit_length() - 1) for stride in model.out_strides]
    assert model.out_channels == tuple(24 // 2**up if source == 'last' else 24 for up in ups)


@pytest.mark.parametrize('name', DENSE)
@pytest.mark.parametrize('size', [(33, 50), (16, 17), (5, 3)])
def test_no_pixel_is_ignored(models, name, size):
    """The gradient of a random sum of all outputs reaches every pixel, the last ones included."""
    images = torch.randn(1, 3, *size, requires_grad=True)
    outputs = models[name](images)
    sum((out * torch.randn_like(out)).sum() for out in outputs).backward()
    unseen = (images.grad == 0).nonzero()
    assert not len(unseen), f'{len(unseen)} values go unseen, e.g. {unseen[0].tolist()}'


@pytest.mark.parametrize('name', DENSE)
def test_an_image_alone_and_in_a_batch_of_any_memory_format(models, name):
    images = torch.randn(3, 3, 45, 70)
    with torch.no_grad():
        batch = models[name](images)
        other_format = models[name](images.to(memory_format=torch.channels_last))
        alone = [models[name](image[None]) for image in images]
    for level, whole in enumerate(batch):
        assert torch.allclose(whole, other_format[level], atol=1e-5)
        assert torch.allclose(whole, torch.cat([one[level] for one in alone]), atol=1e-5)


@pytest.mark.parametrize('fused', [False, True])
@pytest.mark.parametrize('with_cls_token', [True, False])
def test_the_residual_stream_under_autocast_is_fp32(with_cls_token, fused):
    position = dict(type='PEG', after_blocks=(0, 1))
    model = column(position=position, with_cls_token=with_cls_token, out_type='raw').eval()
    model = model.fuse() if fused else model
    seen = []
    for block in model.blocks:
        block.register_forward_hook(lambda _, __, outputs: seen.append(outputs[0].dtype))
    with torch.no_grad(), torch.autocast('cpu', dtype=torch.bfloat16):
        model(torch.randn(1, 3, 64, 48))
    assert seen == [torch.float32] * len(model.blocks)


@pytest.mark.parametrize('position', POSITIONS)
@pytest.mark.parametrize('window_size', [None, 3])
@pytest.mark.parametrize('with_cls_token', [True, False])
def test_mixed_and_low_precision(position, window_size, with_cls_token):
    model = column(
        position=POSITIONS[position], window_size=window_size, with_cls_token=with_cls_token
    )
    images = torch.randn(2, 3, 80, 50)
    with torch.autocast('cpu', dtype=torch.bfloat16):
        (out,) = model(images)
        out.float().square().sum().backward()
    assert out.isfinite().all()
    with torch.no_grad():
        assert model.bfloat16()(images.bfloat16())[0].dtype == torch.bfloat16
        assert model.double()(images.double())[0].dtype == torch.float64
