"""The backbone with DeiT's distillation token beside the class token, against timm's."""

import pytest
import torch
import torch.nn.functional as F
from tiny import COLUMN, max_difference

from cpvt_backbones import CPVT, convert_state_dict

timm = pytest.importorskip('timm')


@pytest.fixture(scope='module')
def deit():
    """timm's distilled DeiT, random weights of a scale that keeps activations near 1."""
    torch.manual_seed(2)
    model = timm.create_model('deit_tiny_distilled_patch16_224', dynamic_img_size=True)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.5 * parameter[0].numel() ** -0.5)
            else:
                parameter.normal_(0, 0.1).add_(name.endswith('weight'))
    return model.eval()


def distilled(**kwargs):
    return CPVT(arch='tiny', position=dict(type='Learned'), with_dist_token=True, **kwargs).eval()


def load_converted(model, state):
    converted, report = convert_state_dict(state, model)
    assert not report.missing and not report.mismatched and not report.refused, str(report)
    model.load_state_dict(converted, strict=True)
    return report


@pytest.mark.parametrize('size', [(224, 224), (160, 192)])
def test_both_tokens_are_timms(deit, size, record_property):
    model = distilled(out_type='cls_token')
    report = load_converted(model, deit.state_dict())
    assert set(report.dropped) == {'head.weight', 'head.bias', 'head_dist.weight', 'head_dist.bias'}
    images = torch.randn(2, 3, *size)
    with torch.no_grad():
        wanted = deit.forward_features(images)
        ((cls_token, dist_token),) = model(images)
    assert max_difference(wanted[:, 0], wanted[:, 1]) > 0.1
    difference = max(
        max_difference(cls_token, wanted[:, 0]), max_difference(dist_token, wanted[:, 1])
    )
    record_property('difference', f'{difference:.1e}')
    assert difference <= 1e-5


def test_raw_tokens_are_timms(deit):
    model = distilled(out_type='raw')
    load_converted(model, deit.state_dict())
    images = torch.randn(1, 3, 64, 96)
    with torch.no_grad():
        (tokens,) = model(images)
        assert tokens.shape == (1, 2 + 4 * 6, 192)
        assert max_difference(tokens, deit.forward_features(images)) <= 1e-5


@pytest.mark.parametrize('size', [112, 256])
@pytest.mark.parametrize('by_hook', [True, False], ids=['load_state_dict', 'convert_state_dict'])
def test_a_resized_table_keeps_both_prefix_entries(deit, size, by_hook):
    model, state = distilled(img_size=size), deit.state_dict()
    if by_hook:
        trunk = {key: value for key, value in state.items() if not key.startswith('head')}
        model.load_state_dict(trunk, strict=True)
    else:
        load_converted(model, state)
    table = model.pos_embed.get_parameter('0')
    assert table.shape == (1, 2 + (size // 16) ** 2, 192)
    assert torch.equal(table[:, :2], state['pos_embed'][:, :2])
    entries = state['pos_embed'][:, 2:].unflatten(1, (14, 14)).permute(0, 3, 1, 2)
    wanted = F.interpolate(
        entries, size=(size // 16,) * 2, mode='bicubic', align_corners=False, antialias=True
    )
    assert max_difference(table[:, 2:], wanted.flatten(2).transpose(1, 2)) <= 1e-5


def test_a_distillation_token_stands_beside_a_class_token():
    with pytest.raises(
        ValueError, match=r'with_dist_token must be False with with_cls_token=False, got True'
    ):
        CPVT(arch=COLUMN, with_cls_token=False, with_dist_token=True)


@pytest.mark.parametrize('size', [(32, 32), (50, 21)])
def test_outputs_with_two_tokens(size):
    images = torch.randn(2, 3, *size)
    cells = -(-size[0] // 8), -(-size[1] // 8)
    for out_type, shape in (
        ('raw', (2, 2 + cells[0] * cells[1], 24)),
        ('featmap', (2, 24, *cells)),
        ('avg_featmap', (2, 24)),
    ):
        (output,) = CPVT(arch=COLUMN, patch_size=8, with_dist_token=True, out_type=out_type)(images)
        assert output.shape == shape
    ((first, second),) = CPVT(
        arch=COLUMN, patch_size=8, with_dist_token=True, out_type='cls_token'
    )(images)
    assert first.shape == second.shape == (2, 24)
