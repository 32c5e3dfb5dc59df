"""PEGs that start as the identity, for weights trained without them."""

import torch
from torch import Tensor, nn

from cpvt_backbones.layers import PEG

_NEARLY = 1e-6


def neutral_pegs(model: nn.Module) -> dict[str, Tensor]:
    """Values under which each PEG of a model adds nothing to the tokens, yet has a gradient.

    The last layer with parameters of each residual branch is set to zero; zero everywhere would leave a branch of
    several layers without gradient. In front of a ReLU, which has none at zero, it is made a millionth instead.
    PEGs without residual (``padding='none'``) cannot be neutral and are left out.

    Args:
        model: A backbone.

    Returns:
        dict: State dict of its PEGs.
    """
    values: dict[str, Tensor] = {}
    for name, peg in model.named_modules():
        if not isinstance(peg, PEG) or not peg.residual:
            continue
        values.update({f'{name}.{key}': value.detach().clone() for key, value in peg.state_dict().items()})
        for index, layer in enumerate(peg.proj):
            rectified = any(isinstance(part, nn.ReLU) for part in layer.modules())
            last, module = [(key, part) for key, part in layer.named_modules() if hasattr(part, 'weight')][-1]
            path = '.'.join(filter(None, (name, 'proj', str(index), last)))
            for key, parameter in module.named_parameters():
                values[f'{path}.{key}'] = parameter.detach() * _NEARLY if rectified else torch.zeros_like(parameter)
    return values
