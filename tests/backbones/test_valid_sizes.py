"""Padded batches: what stands beside an image, and how far it is padded, changes nothing."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import NEED_EVERY_KEY, POSITIONS, VITDET, column, multi_scale, pyramid, randomise

MODELS = {
    **{
        f'column_{name}': (lambda p=p: column(out_indices=(1, 3), position=p))
        for name, p in POSITIONS.items()
    },
    **{
        f'pyramid_{name}': (lambda p=p: pyramid(position=p))
        for name, p in POSITIONS.items()
        if name not in NEED_EVERY_KEY
    },
    'pyramid_class_token': lambda: pyramid(with_cls_token=True),
    'windowed': lambda: multi_scale(window_size=2, global_blocks=(3,)),
    'vitdet': lambda: randomise(column(**VITDET)),
    'windowed_class_token': lambda: column(window_size=2),
    'multi_scale': lambda: multi_scale(),
    'taps': lambda: multi_scale(source='taps', patch_size=8),
    'unpadded_peg': lambda: column(patch_size=4, position=dict(type='PEG', padding='none')),
    'vector': lambda: column(with_cls_token=False, out_type='avg_featmap'),
    'class_token': lambda: column(out_type='cls_token'),
    'map_and_class_token': lambda: column(out_type='with_cls_token', out_indices=(1, 3)),
    'two_tokens': lambda: column(out_type='cls_token', with_dist_token=True),
}


def parts(output):
    return output if isinstance(output, tuple) else (output,)


@pytest.mark.parametrize('name', MODELS)
@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_each_image_as_if_alone(name, data):
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    side = st.integers(16, 70)
    sizes = data.draw(st.lists(st.tuples(side, side), min_size=1, max_size=4))
    height = max(h for h, _ in sizes) + data.draw(st.integers(0, 20))
    width = max(w for _, w in sizes) + data.draw(st.integers(0, 20))
    images = torch.full(
        (len(sizes), 3, height, width), 7.0
    )  # what is in the padding must not matter
    alone = []
    for index, (h, w) in enumerate(sizes):
        image = torch.randn(1, 3, h, w)
        images[index, :, :h, :w] = image[0]
        with torch.no_grad():
            alone.append(model(image))
    with torch.no_grad():
        whole, plain = model(images, valid_sizes=sizes), model(images)
    for level, (found, unmasked) in enumerate(zip(whole, plain, strict=True)):
        for part, (a, b) in enumerate(zip(parts(found), parts(unmasked), strict=True)):
            assert a.shape == b.shape
            for index in range(len(sizes)):
                expected = parts(alone[index][level])[part][0]
                if expected.dim() == 1:
                    torch.testing.assert_close(a[index], expected, atol=1e-5, rtol=1e-5)
                    continue
                rows, columns = expected.shape[1:]
                torch.testing.assert_close(
                    a[index, :, :rows, :columns], expected, atol=1e-5, rtol=1e-5
                )
                assert not a[index, :, rows:].any() and not a[index, :, :, columns:].any()


@pytest.mark.parametrize(
    'name', ['column_peg', 'pyramid_peg', 'multi_scale', 'windowed', 'class_token']
)
def test_gradients_are_the_sum_of_those_alone(name):
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    sizes = [(33, 64), (50, 20), (33, 64)]
    images = torch.randn(3, 3, 64, 80)

    def gradients(outputs):
        sum(out.square().sum() for out in outputs).backward()
        found = [p.grad.clone() for p in model.parameters()]
        model.zero_grad()
        return found

    together = gradients(model(images, sizes))
    alone = [gradients(model(images[i : i + 1, :, :h, :w])) for i, (h, w) in enumerate(sizes)]
    for found, *each in zip(together, *alone, strict=True):
        torch.testing.assert_close(found, sum(each), atol=1e-4, rtol=1e-4)


def test_a_batch_without_padding_is_one_call():
    model = column().eval()
    images = torch.randn(3, 3, 40, 50)
    with torch.no_grad():
        for found, expected in zip(model(images, [(40, 50)] * 3), model(images), strict=True):
            assert torch.equal(found, expected)


def test_images_keep_their_places_whatever_the_order_of_sizes():
    model, images = column().eval(), torch.randn(4, 3, 40, 50)
    sizes = [(40, 50), (20, 30), (33, 50), (40, 50)]  # sorted by size, the inverse differs
    with torch.no_grad():
        (found,) = model(images, sizes)
        for image, (height, width), whole in zip(images, sizes, found, strict=True):
            (alone,) = model(image[None, :, :height, :width])
            rows, columns = alone.shape[2:]
            torch.testing.assert_close(whole[:, :rows, :columns], alone[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize('kind', [torch.tensor, np.array, lambda sizes: [*map(np.array, sizes)]])
def test_the_sizes_may_be_integers_of_a_tensor_or_an_array(kind):
    model, images = column().eval(), torch.randn(2, 3, 40, 50)
    sizes = [(40, 30), (20, 50)]
    with torch.no_grad():
        assert torch.equal(model(images, kind(sizes))[0], model(images, sizes)[0])


@pytest.mark.parametrize(
    ('sizes', 'message'),
    [
        ([(40, 50)], '2 images'),
        ((40, 50), 'width. in pixels for each of 2 images, got 40 for image 0'),
        (torch.tensor([[40.0, 50.0]] * 2), r'integers >= 1, got \(40.0, 50.0\) for image 0'),
        ([(40, 50), (41, 50)], '41 x 50 for image 1'),
        ([(40, 50), (0, 50)], r'integers >= 1, got \(0, 50\) for image 1'),
        ([(40, 50), (1.5, 50)], 'valid_sizes'),
        ([(40, 50), (40,)], r'got \(40,\) for image 1'),
    ],
)
def test_errors(sizes, message):
    with pytest.raises((ValueError, TypeError), match=message):
        column()(torch.randn(2, 3, 40, 50), sizes)


def test_tokens_have_no_place():
    with pytest.raises(ValueError, match='raw'):
        column(out_type='raw')(torch.randn(2, 3, 40, 50), [(40, 50), (20, 50)])
