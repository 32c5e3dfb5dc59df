"""Features as colours, and the attention of a place, of the page's models."""

import numpy as np
import pytest
import torch
from explain import attention_layers, attention_map, principal_colours
from tiny import column, pyramid, randomise


def test_principal_components_recover_patterns():
    """Patterns of decreasing strength, mixed into ten channels, become red, green and blue."""
    patterns = torch.rand(3, 20, 30, dtype=torch.double) * 2 - 1
    basis = torch.linalg.qr(torch.randn(10, 3, dtype=torch.double)).Q
    mixed = torch.einsum('ck,khw->chw', basis * torch.tensor([16.0, 4.0, 1.0]), patterns) + 3
    colours = principal_colours(mixed, clip=0.0)
    assert colours.shape == (20, 30, 3) and colours.min() == 0 and colours.max() == 1
    for index in range(3):
        correlation = np.corrcoef(colours[..., index].flatten(), patterns[index].flatten())[0, 1]
        assert abs(correlation) > 0.98
    assert torch.equal(principal_colours(torch.ones(4, 2, 3)), torch.full((2, 3, 3), 0.5))


@pytest.mark.parametrize('with_cls_token', [False, True])
def test_weights_of_a_place_are_the_softmax_of_its_products(with_cls_token):
    model = randomise(column(patch_size=8, with_cls_token=with_cls_token)).eval()
    images = torch.randn(1, 3, 37, 60)  # 5 x 8 cells
    module = attention_layers(model)['blocks.1.attn']
    seen = []
    module.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))
    found = attention_map(model, images, 'blocks.1.attn', x=59, y=17)
    prefix = int(with_cls_token)
    with torch.no_grad():
        query, key, _ = module.query_key_value(seen[0], (5, 8), 0, None)
        logits = query @ key.transpose(2, 3) * query.shape[3] ** -0.5
    expected = logits.softmax(3)[0, :, prefix + 2 * 8 + 7, prefix:].mean(0).view(5, 8)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_keys_of_a_reduced_map_have_its_grid():
    model = randomise(pyramid()).eval()
    found = attention_map(model, torch.randn(1, 3, 39, 50), 'blocks.0.0.attn', x=0, y=0)
    assert found.shape == (3, 4) and found.sum().item() == pytest.approx(1, abs=1e-4)


def test_windows_are_refused_by_name():
    model = column(patch_size=8, window_size=3).eval()
    with pytest.raises(ValueError, match='layer must attend over the whole image at once'):
        attention_map(model, torch.randn(1, 3, 37, 60), 'blocks.0.attn', x=0, y=0)
