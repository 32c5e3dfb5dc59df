"""Any H and W: shapes, finite values, and no pixel that goes unseen."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tiny import DENSE, POSITIONS, column, multi_scale, pyramid, randomise

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
def test_any_size(models, name, size):
    with torch.no_grad():
        check(models[name], size)


@pytest.mark.parametrize('name', DENSE)
@pytest.mark.parametrize('size', [(2048, 37), (37, 1031)])
def test_long_images(models, name, size):
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
        if position != 'relative':
            check(pyramid(position=POSITIONS[position]).eval(), size)


@pytest.mark.parametrize('patch_size', [4, 8, 16, 32])
@pytest.mark.parametrize('source', ['last', 'taps'])
@pytest.mark.parametrize('size', [(1, 1), (33, 50), (64, 96)])
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
    """The gradient of a random sum of all outputs reaches every pixel, those of the last row and
    column included.
    """
    model = models[name]
    images = torch.randn(1, 3, *size, requires_grad=True)
    outputs = model(images)
    sum((out * torch.randn_like(out)).sum() for out in outputs).backward()
    seen = images.grad != 0
    assert seen.all(), (
        f'{(~seen).sum().item()} values go unseen, e.g. {(~seen).nonzero()[0].tolist()}'
    )


@pytest.mark.parametrize('name', DENSE)
@settings(max_examples=5)
@given(data=st.data())
def test_changing_one_pixel_changes_the_output(models, name, data):
    height, width = data.draw(st.tuples(st.integers(1, 90), st.integers(1, 90)))
    row, column_ = data.draw(st.integers(0, height - 1)), data.draw(st.integers(0, width - 1))
    images = torch.randn(1, 3, height, width)
    with torch.no_grad():
        before = models[name](images)
        for y, x in (
            (row, column_),
            (height - 1, column_),
            (row, width - 1),
            (height - 1, width - 1),
        ):
            changed = images.clone()
            changed[0, :, y, x] += torch.tensor([3.0, -2.0, 1.0])
            after = models[name](changed)
            assert any(not torch.equal(a, b) for a, b in zip(before, after, strict=True)), (y, x)


@pytest.mark.parametrize('name', DENSE)
def test_an_image_alone_and_in_a_batch(models, name):
    images = torch.randn(3, 3, 45, 70)
    with torch.no_grad():
        batch = models[name](images)
        for i in range(3):
            for whole, single in zip(batch, models[name](images[i : i + 1]), strict=True):
                assert torch.allclose(whole[i], single[0], atol=1e-5)


@pytest.mark.parametrize('name', DENSE)
def test_memory_format_does_not_matter(models, name):
    images = torch.randn(2, 3, 45, 70)
    with torch.no_grad():
        for a, b in zip(
            models[name](images),
            models[name](images.to(memory_format=torch.channels_last)),
            strict=True,
        ):
            assert torch.allclose(a, b, atol=1e-5)


@pytest.mark.parametrize('fused', [False, True])
@pytest.mark.parametrize('with_cls_token', [True, False])
def test_what_runs_past_the_blocks_keeps_its_precision(with_cls_token, fused):
    """Under autocast the residual stream is fp32, with and without a class token that makes
    it so.
    """
    model = column(
        position=dict(type='PEG', after_blocks=(0, 1)),
        with_cls_token=with_cls_token,
        out_type='raw',
    ).eval()
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
