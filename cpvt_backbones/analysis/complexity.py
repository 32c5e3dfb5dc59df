"""Parameters and operations of the toolboxes' models at any image size."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from os import PathLike
from typing import Any

import torch
from mmengine.config import Config
from mmengine.model import BaseModel
from mmengine.registry import MODELS, init_default_scope
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from cpvt_backbones.checks import check_device, check_gpu
from cpvt_backbones.toolboxes import ConfigInput, check_neck, find_toolbox, resolve_config

from .memory import peak_memory


@dataclass(frozen=True)
class ComplexityRow:
    """Cost of a model for one image of one size, without post-processing.

    Attributes:
        model: Name of the model.
        height: Height of the image in px.
        width: Width of the image in px.
        parameters: Number of parameters of the whole model.
        gmacs: 1e9 multiply-adds of convolutions, linear layers and attention. Papers call one
            multiply-add a FLOP.
        attention_gmacs: Part of ``gmacs`` in the two matrix products of attention, which
            OpenMMLab's tools omit.
        attention_share: ``attention_gmacs / gmacs``.
        peak_mib: Peak memory of a forward call in MiB, without the weights; ``None`` if it was not
            measured.
    """

    model: str
    height: int
    width: int
    parameters: int
    gmacs: float
    attention_gmacs: float
    attention_share: float
    peak_mib: float | None


def build_model(cfg: ConfigInput) -> nn.Module:
    """Build the model of a config in evaluation mode, without its weights.

    Raises:
        ValueError: The neck does not fit the channels of the backbone.
    """
    cfg = resolve_config(cfg)
    find_toolbox(cfg)
    init_default_scope(cfg.default_scope)
    options = dict(cfg.model)
    if 'data_preprocessor' in cfg:
        options.setdefault('data_preprocessor', cfg.data_preprocessor)
    model = MODELS.build(options).eval()
    check_neck(model, options)
    return model


@contextmanager
def explicit_attention() -> Iterator[None]:
    """Context in which torch computes all attention unfused."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def complexity_against_size(
    models: Mapping[str, ConfigInput | Mapping[str, Any]],
    sizes: Sequence[tuple[int, int]],
    *,
    memory: str | None = None,
) -> list[ComplexityRow]:
    """Count parameters and multiply-adds (FLOPs) of models at several image sizes.

    Args:
        models: By name, the config of a whole model, the path of its file, or a backbone's dict
            such as ``dict(type='CPVT', arch='small')``.
        sizes: (height, width) in px.
        memory: ``'cpu'`` or ``'cuda'`` also runs each size there and measures its peak memory.

    Returns:
        One row per model and size.

    Raises:
        ValueError: ``memory`` is not a device, or there is no GPU.

    Examples:
        >>> from cpvt_backbones.analysis.complexity import (
        ...     complexity_against_size
        ... )
        >>> models = {'tiny': dict(type='CPVT', arch='tiny')}
        >>> rows = complexity_against_size(models, [(224, 224), (448, 448)])
        >>> [(row.height, round(row.gmacs, 1)) for row in rows]
        [(224, 1.3), (448, 7.1)]
    """
    if memory is not None:
        check_device(memory)
        check_gpu(memory)
    rows = []
    for name, described in models.items():
        if isinstance(described, (Config, str, PathLike)):
            model = build_model(described)
        else:
            model = MODELS.build(dict(described))
        model.eval()  # not chained: the eval() of mmseg's ViT returns None
        # The meta device computes nothing; a second stage needs real boxes.
        counted = model if hasattr(model, 'roi_head') else deepcopy(model).to('meta')
        parameters = sum(parameter.numel() for parameter in model.parameters())
        for height, width in sizes:
            with torch.device(next(counted.parameters()).device):
                gmacs, attention = _count(_forward_call(counted, height=height, width=width))
            peak = None
            if memory is not None:
                model.to(memory)
                with torch.device(memory), torch.no_grad():
                    call = _forward_call(model, height=height, width=width)
                    call()
                    peak = peak_memory(call, memory)
            rows.append(
                ComplexityRow(
                    name, height, width, parameters, gmacs, attention, attention / gmacs, peak
                )
            )
    return rows


def _forward_call(model: nn.Module, *, height: int, width: int) -> Callable[[], object]:
    """Return a forward call for one image on the current device."""
    images = torch.zeros(1, 3, height, width)
    if not isinstance(model, BaseModel):
        return lambda: model(images)
    arguments: dict[str, Any] = {}
    if hasattr(model, 'roi_head'):  # two-stage heads need metadata
        from mmdet.structures import DetDataSample

        size = (height, width)
        shapes = dict(
            img_shape=size,
            ori_shape=size,
            pad_shape=size,
            batch_input_shape=size,
            scale_factor=(1.0, 1.0),
        )
        arguments = {'data_samples': [DetDataSample(metainfo=shapes)]}
    return lambda: model(images, mode='tensor', **arguments)


def _count(call: Callable[[], object]) -> tuple[float, float]:
    """Count the multiply-adds of a call in 1e9: all, and those of attention's products."""
    # The counter does not know the fused kernels of every device.
    with FlopCounterMode(display=False) as counter, explicit_attention(), torch.no_grad():
        call()
    flops = {
        str(operator): count for operator, count in counter.get_flop_counts()['Global'].items()
    }
    attention = sum(
        count for operator, count in flops.items() if 'bmm' in operator or 'scaled_dot' in operator
    )
    return sum(flops.values()) / 2e9, attention / 2e9
