"""Ways to run a model besides a plain call: the suffix of its name in a case,
``semantic_fpn_openvino``.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cpvt_backbones.export import ExportedModel, ExportGraph, export
from cpvt_backbones.inference.predictors import reduce_precision

Run = Callable[[Tensor], Any]
FOLDER = Path('work_dirs/benchmark')
"""Where exported files are kept: AOTInductor takes minutes for one."""


def base_of(name: str) -> str:
    """The name of a model without the suffix of its route."""
    return next((name.removesuffix(suffix) for suffix in ROUTES if name.endswith(suffix)), name)


def route_of(name: str, model: nn.Module) -> Run:
    """What a case calls with its images."""
    base = base_of(name)
    return ROUTES[name.removeprefix(base)](base, model) if name != base else model


def runs_in_torch(name: str) -> bool:
    """False for a route whose memory torch's allocator does not see."""
    return not name.endswith(('_onnxruntime', '_openvino', '_openvino_bf16'))


def _bf16(_: str, model: nn.Module) -> Run:
    """Weights and images in bfloat16, a whole model as ``--dtype bfloat16`` of ``tools/infer.py``
    has it.
    """
    if isinstance(model, ExportGraph):
        reduce_precision(model.model, torch.bfloat16)
        return lambda images: model(images)
    model.to(torch.bfloat16)
    return lambda images: model(images.bfloat16())


def _file(form: str, **options: str) -> Callable[[str, Any], Run]:
    def open_file(name: str, model: ExportGraph) -> Run:
        path = FOLDER / f'{name}-{torch.__version__}{".onnx" if form == "onnx" else f"-{form}.pt2"}'
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            export(model, path, format=form)
        exported = ExportedModel(path, device='cpu', **options)
        return lambda images: exported.run(images.numpy())

    return open_file


ROUTES: dict[str, Callable[[str, Any], Run]] = {
    '_compiled': lambda _, model: torch.compile(model),
    '_graphs': lambda _, model: torch.compile(model, mode='reduce-overhead'),
    '_onnxruntime': _file('onnx'),
    '_openvino': _file('onnx', runtime='openvino'),
    '_openvino_bf16': _file('onnx', runtime='openvino-bfloat16'),  # before the suffix within it
    '_bf16': _bf16,
    '_aoti': _file('aoti'),
}
"""Suffix to a function from the model's name and the model to what is called."""
