"""Layer depths, and exemptions from weight decay."""

import pytest
import torch
from tiny import DENSE, NEED_EVERY_KEY, POSITIONS, column, pyramid


def depth_of_use(model):
    """Order in which modules run, as a rank for each parameter's owner."""
    order = {}

    def note(name):
        order.setdefault(name, len(order))

    for name, module in model.named_modules():
        if not list(module.children()):
            module.register_forward_pre_hook(lambda *_, name=name: note(name))
    model(torch.randn(1, 3, 64, 64))
    return order


@pytest.mark.parametrize('name', DENSE)
def test_layer_depth_is_complete_and_follows_the_order_of_use(name):
    model, depths = DENSE[name](), {}
    for key, _ in model.named_parameters():
        depths[key], count = model.get_layer_depth(key)
        assert model.get_layer_depth('backbone.' + key, 'backbone.') == (depths[key], count)
        assert 0 <= depths[key] < count == model.num_layers
    blocks = sum(type(module).__name__ == 'Block' for module in model.modules())
    assert model.num_layers == blocks + 2
    assert set(range(blocks + 1)) <= set(depths.values())
    order, used = depth_of_use(model), []
    for key, depth in depths.items():
        owner = key.rpartition('.')[0]
        if owner in order and not key.startswith('pyramid.'):
            used.append((order[owner], depth))
    ranks = [depth for _, depth in sorted(used)]
    assert ranks == sorted(ranks)
    head = model.get_layer_depth('head.fc.weight', 'backbone.')
    assert head == (model.num_layers - 1, model.num_layers)


# -- weight decay
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('position', POSITIONS)
@pytest.mark.parametrize('build', [column, pyramid])
def test_no_weight_decay_names_every_position_parameter(build, position):
    if build is pyramid and position in NEED_EVERY_KEY:
        return
    model = build(position=POSITIONS[position])
    parameters = dict(model.named_parameters()).keys()
    trunk = dict(build(position=None).named_parameters()).keys()
    assert model.no_weight_decay() == parameters - trunk | {'cls_token'} & parameters
