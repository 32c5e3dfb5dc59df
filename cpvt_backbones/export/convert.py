"""From a graph to a file."""

import json
import os
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.export import Dim, ExportedProgram

from cpvt_backbones import __version__
from cpvt_backbones.inference.exported import METADATA

from .graphs import ExportGraph

OPSET = 23  # the first with Attention as one operator
# Any example will do whose batch and sides, in pixels and in cells of every stride, are not 0 or 1: torch takes those
# for constants.
EXAMPLE = dict(batch=2, height=203, width=331)


def record(graph: ExportGraph) -> ExportedProgram:
    """One program for any batch size and any H, W >= 1.

    Raises:
        ValueError: The model branches on the size of its images, or does something else that cannot be recorded.
    """
    dynamic = {0: Dim.DYNAMIC, 2: Dim.DYNAMIC, 3: Dim.DYNAMIC}
    images = graph.example(**EXAMPLE)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter('ignore')
            program = torch.export.export(
                graph.eval(),
                (images,),
                dynamic_shapes=(dynamic,),
                strict=False,
                prefer_deferred_runtime_asserts_over_guards=True,
            )
    except Exception as error:
        raise ValueError(f'model: {type(graph.model).__name__} cannot be recorded for every size: {error}') from error
    _drop_assumptions(program)
    return program


def _drop_assumptions(program: ExportedProgram) -> None:
    """Let the program take the sizes that torch ruled out.

    It notes that every size it met was not 1: of a map a single cell wide that is untrue, but no result depends on it.
    (Not believed but tested: see :mod:`cpvt_backbones.export.verification`.)
    """
    from torch.utils._sympy.numbers import int_oo
    from torch.utils._sympy.value_ranges import ValueRanges

    for node in list(program.graph.nodes):
        if node.target is torch.ops.aten._assert_scalar.default:
            program.graph.erase_node(node)
    program.graph.eliminate_dead_code()
    program.graph_module.recompile()
    for symbol in program.range_constraints:
        program.range_constraints[symbol] = ValueRanges(1, int_oo)


def export(
    graph: ExportGraph,
    path: str | os.PathLike[str],
    *,
    format: str = 'onnx',
    settings: dict[str, Any] | None = None,
    opset: int = OPSET,
) -> dict[str, Any]:
    """Write a graph to a file for any batch size and image size, on the device its weights are on.

    Args:
        graph: What to export.
        path: Ends in ``.onnx`` or ``.pt2``, as the format asks.
        format: ``'onnx'``, ``'torch_export'`` (a program that PyTorch loads and may compile) or ``'aoti'`` (compiled by
            AOTInductor for this device).
        settings: More plain data to store in the file, names of classes for one.
        opset: Version of ONNX's operators.

    Returns:
        dict: All that was stored beside the weights.

    Raises:
        ValueError: An unknown format, another ending, or a model that cannot be exported.
    """
    if format not in FORMATS:
        raise ValueError(f'format must be one of {list(FORMATS)}, got {format!r}')
    suffix, write = FORMATS[format]
    if Path(path).suffix != suffix:
        raise ValueError(f'path must end in {suffix} for format={format!r}, got {str(path)!r}')
    stored = dict(
        format=format,
        **graph.settings,
        device=next(graph.parameters()).device.type,
        versions=dict(cpvt_backbones=__version__, torch=torch.__version__),
        **(settings or {}),
    )
    write(record(graph), str(path), graph, stored, opset)
    return stored


def _write_onnx(program: ExportedProgram, path: str, graph: ExportGraph, stored: dict[str, Any], opset: int) -> None:
    from .onnx_nms import TRANSLATIONS

    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter('ignore')
        written = torch.onnx.export(
            program,
            dynamo=True,
            verbose=False,
            opset_version=opset,
            input_names=['images'],
            output_names=list(graph.output_names),
            custom_translation_table=TRANSLATIONS,
        )
    assert written is not None
    # A version that it cannot write is no error to the exporter.
    if written.model.opset_imports[''] != opset:
        raise ValueError(f'opset must be one that this graph can be written in, 18 or {OPSET}, got {opset}')
    stored['opset'] = opset
    written.model.metadata_props[METADATA] = json.dumps(stored)
    _name_sizes(written.model.graph)
    written.save(path)


def _name_sizes(graph: Any) -> None:
    """Call the sizes of inputs and outputs batch, height and width, instead of torch's s77, s14, s54."""
    import onnx_ir

    (images,) = graph.inputs
    names = {str(images.shape[axis]): name for axis, name in ((0, 'batch'), (2, 'height'), (3, 'width'))}
    for value in (images, *graph.outputs):
        sizes = [
            size if isinstance(size, int) else re.sub(r'\w+', lambda word: names.get(word[0], word[0]), str(size))
            for size in value.shape
        ]
        value.shape = onnx_ir.Shape(sizes)


def _write_program(program: ExportedProgram, path: str, _: ExportGraph, stored: dict[str, Any], __: int) -> None:
    torch.export.save(program, path, extra_files={METADATA: json.dumps(stored)})


def _write_aoti(program: ExportedProgram, path: str, _: ExportGraph, stored: dict[str, Any], __: int) -> None:
    torch._inductor.aoti_compile_and_package(
        program, package_path=path, inductor_configs={'aot_inductor.metadata': {METADATA: json.dumps(stored)}}
    )


Writer = Callable[[ExportedProgram, str, ExportGraph, dict[str, Any], int], None]
FORMATS: dict[str, tuple[str, Writer]] = {
    'onnx': ('.onnx', _write_onnx),
    'torch_export': ('.pt2', _write_program),
    'aoti': ('.pt2', _write_aoti),
}
"""Ending and writer of each format."""
