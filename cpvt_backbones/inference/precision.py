"""Reduced precision for prediction: weights are cast once, and what needs fp32 stays in it."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from cpvt_backbones.layers.checks import check_choice
from cpvt_backbones.options import DTYPES


def choose_dtype(dtype: str, device: str | torch.device) -> tuple[str, str]:
    """Resolve ``'auto'`` to bfloat16 where the device computes it faster than float32.

    Also the reason, in words.
    """
    check_choice(DTYPES, dtype=dtype)
    if dtype != 'auto':
        return dtype, 'as given'
    if torch.device(device).type == 'cuda':
        major, minor = torch.cuda.get_device_capability(device)
        return ('float32', 'bfloat16')[
            major >= 8
        ], f'the GPU has compute capability {major}.{minor}, and 8.0 has it'
    abilities: dict[str, Any] = getattr(
        torch.cpu, 'get_capabilities', dict
    )()  # older releases of torch have none
    found = [name for name in ('amx_bf16', 'avx512_bf16', 'bf16') if abilities.get(name)]
    if torch.device(device).type == 'cpu' and found:
        return 'bfloat16', f'the processor has {found[0]}'
    return (
        'float32',
        'bfloat16 is slower here: no instructions for it were found (amx_bf16, avx512_bf16, bf16)',
    )


def reduce_precision(model: nn.Module, dtype: torch.dtype) -> None:
    """Cast backbone, neck and convolutional heads of a toolbox's model, in place.

    Its inputs and outputs stay fp32.

    In fp32 stay normalisation by stored statistics, the last layer of a segmentor, other heads
    (transformers, regions, classes) and what follows the heads: softmax, boxes, NMS.
    """
    parts = {
        name: part
        for name, part in model.named_children()
        if next(part.parameters(), None) is not None
    }
    trunk = [parts.pop(name) for name in ('backbone', 'neck') if name in parts]
    parts.pop('auxiliary_head', None)  # of training
    dense = [head for head in parts.values() if _is_convolutional(head)]
    for part in (*trunk, *dense):
        part.to(dtype)
        for module in part.modules():
            if isinstance(module, nn.modules.batchnorm._NormBase):
                module.float()
    trunk[0].register_forward_pre_hook(lambda _, inputs: _cast(inputs, dtype))
    if len(dense) < len(parts):
        trunk[-1].register_forward_hook(_to_float)
    for head in dense:
        head.register_forward_pre_hook(lambda _, inputs: _cast(inputs, dtype))
        head.register_forward_hook(_to_float)
        if isinstance(
            last := getattr(head, 'conv_seg', None), nn.Module
        ):  # mmseg calls its heads past their hooks
            last.float().register_forward_pre_hook(_to_float)


def _is_convolutional(head: nn.Module) -> bool:
    names = {cls.__name__ for cls in type(head).__mro__}
    return bool(names & {'BaseDenseHead', 'BaseDecodeHead'}) and 'MaskFormerHead' not in names


def _to_float(*values: Any) -> Any:
    """Hook before or after a forward call: its inputs or its output, the last argument, in fp32."""
    return _cast(values[-1], torch.float32)


def _cast(values: Any, dtype: torch.dtype) -> Any:
    def cast(x: Any) -> Any:
        if not isinstance(x, Tensor) or not x.is_floating_point() or x.dtype == dtype:
            return x
        result = x.to(dtype)
        vars(result).update(vars(x))  # valid_sizes, of engine.preprocessors
        return result

    return tree_map(cast, values)
