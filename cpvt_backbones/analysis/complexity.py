"""Parameters and operations of any mm model at any image size."""

from dataclasses import dataclass

import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from cpvt_backbones.engine.launch import find_toolbox
from cpvt_backbones.layers.attention import reference_attention


@dataclass(frozen=True)
class Complexity:
    """What one image costs.

    Attributes:
        parameters: Of the whole model.
        gmacs: 1e9 multiply-adds of convolutions, linear layers and attention. Papers and the OpenMMLab tools call a
            multiply-add one FLOP.
        attention_gmacs: The part of it that multiplies queries by keys and weights by values, which those tools leave
            out.
    """

    parameters: int
    gmacs: float
    attention_gmacs: float


def build_model(cfg: Config) -> nn.Module:
    """The model of a config, with its own initial weights and nothing loaded, in evaluation mode."""
    find_toolbox(cfg)
    init_default_scope(cfg.default_scope)
    options = dict(cfg.model)
    if 'init_cfg' in options.get('backbone', {}):  # this package's backbones would load it in their first forward
        options['backbone'] = {**options['backbone'], 'init_cfg': None}
    if 'data_preprocessor' in cfg:
        options.setdefault('data_preprocessor', cfg.data_preprocessor)
    return MODELS.build(options).eval()


def measure_complexity(cfg: Config, *, height: int, width: int) -> Complexity:
    """Count what a config's model needs for one image; detectors up to their heads, without post-processing.

    Args:
        cfg: A config with ``model`` and ``default_scope``.
        height: Of the image, in pixels.
        width: Likewise.

    Returns:
        Complexity: Parameters and multiply-adds.
    """
    model = build_model(cfg)
    images = torch.zeros(1, 3, height, width)
    arguments = {}
    if cfg.default_scope == 'mmdet':  # a second stage wants to know what it works on
        from mmdet.structures import DetDataSample

        size = (height, width)
        shapes = dict(img_shape=size, ori_shape=size, pad_shape=size, batch_input_shape=size, scale_factor=(1.0, 1.0))
        arguments = {'data_samples': [DetDataSample(metainfo=shapes)]}
        if not hasattr(model, 'roi_head'):
            arguments = {}
    # Attention written out: fused kernels are not counted on every device.
    with FlopCounterMode(display=False) as counter, reference_attention(), torch.no_grad():
        model(images, mode='tensor', **arguments)
    flops = {str(operator): count for operator, count in counter.get_flop_counts()['Global'].items()}
    attention = sum(count for operator, count in flops.items() if 'bmm' in operator or 'scaled_dot' in operator)
    return Complexity(
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        gmacs=sum(flops.values()) / 2e9,
        attention_gmacs=attention / 2e9,
    )
