"""Writing an export graph as ONNX, a torch.export program or an AOTInductor package."""

import json
import os
import re
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.export import Dim, ExportedProgram
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges

from cpvt_backbones import __version__
from cpvt_backbones.inference.exported import METADATA, seal
from cpvt_backbones.layers.checks import check, check_choice
from cpvt_backbones.options import EXPORT_FORMATS, OPSET

from .graphs import ExportGraph

OPSETS = (18, 21, 23)
# torch treats sizes 0 and 1 as constants, so batch and sides, in pixels and in cells of every stride, exceed 1.
EXAMPLE = dict(batch=2, height=203, width=331)


def record(graph: ExportGraph) -> ExportedProgram:
    """Record one program for any batch size and any H, W >= 1.

    Raises:
        ValueError: torch.export cannot record the model, e.g. because it branches on the image size.
    """
    dynamic = {0: Dim.DYNAMIC, 2: Dim.DYNAMIC, 3: Dim.DYNAMIC}
    images = graph.example(**EXAMPLE)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter('ignore')
            options: dict[str, Any] = dict(strict=False, prefer_deferred_runtime_asserts_over_guards=True)
            program = torch.export.export(graph.eval(), (images,), dynamic_shapes=(dynamic,), **options)
    except Exception as error:
        raise ValueError(f'model: {type(graph.model).__name__} cannot be recorded for every size: {error}') from error
    # Remove torch's assertions that no size is 1. A map one cell wide violates them, but no result depends on them;
    # cpvt_backbones.export.verification checks small sizes.
    for node in list(program.graph.nodes):
        if node.target is torch.ops.aten._assert_scalar.default:
            program.graph.erase_node(node)
    program.graph.eliminate_dead_code()
    program.graph_module.recompile()
    for symbol in program.range_constraints:
        program.range_constraints[symbol] = ValueRanges(1, int_oo)
    return program


def export(
    graph: ExportGraph,
    path: str | os.PathLike[str],
    *,
    format: str = 'onnx',
    settings: dict[str, Any] | None = None,
    opset: int = OPSET,
    portable: bool = False,
) -> dict[str, Any]:
    """Write a graph to a file for any batch size and image size, for the device of its weights.

    Args:
        graph: From :func:`~cpvt_backbones.export.graphs.graph_of`.
        path: Destination; the suffix is ``.onnx`` for ONNX, ``.pt2`` for the other formats.
        format: ``'onnx'``, ``'torch_export'`` (a program that PyTorch loads and can compile) or ``'aoti'`` (compiled by
            AOTInductor for this device).
        settings: Further plain data to store in the file, e.g. class names.
        opset: ONNX opset version. Of a two-stage detector 18: onnxruntime has no RoiAlign of a later one.
        portable: Write ONNX's operators only: attention is slower in onnxruntime, in return other runtimes have it.

    Returns:
        The metadata stored in the file.

    Raises:
        ValueError: An unknown format, another suffix, or a model that cannot be exported.
    """
    check_choice(EXPORT_FORMATS, format=format)
    suffix = EXPORT_FORMATS[format]
    if Path(path).suffix != suffix:
        raise ValueError(f'path must have the suffix {suffix} for format={format!r}, got {str(path)!r}')
    check(f'one of {OPSETS}', lambda number: number in OPSETS, opset=opset)
    stored = dict(
        format=format,
        **graph.settings,
        device=next(graph.parameters()).device.type,
        versions=dict(cpvt_backbones=__version__, torch=torch.__version__),
        **(dict(opset=opset, portable=portable, checksum='sha256') if format == 'onnx' else {}),
        **(settings or {}),
    )
    (_write_onnx if format == 'onnx' else _write_pt2)(record(graph), str(path), stored)
    return stored


def _write_onnx(program: ExportedProgram, path: str, stored: dict[str, Any]) -> None:
    from .onnx_operators import FUSED, TRANSLATIONS

    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter('ignore')
        written = torch.onnx.export(
            program,
            dynamo=True,
            verbose=False,
            opset_version=stored['opset'],
            input_names=['images'],
            output_names=stored['outputs'],
            custom_translation_table=TRANSLATIONS if stored['portable'] else TRANSLATIONS | FUSED,
        )
    assert written is not None
    # The exporter silently writes another version when it does not support the requested one.
    if written.model.opset_imports[''] != stored['opset']:
        raise ValueError(f'opset must be one that torch {torch.__version__} writes, got {stored["opset"]}')
    written.model.metadata_props[METADATA] = json.dumps(stored)
    _name_sizes(written.model.graph)
    written.save(path)
    with open(path, 'r+b') as file:
        file.write(seal(file.read()))


def _name_sizes(graph: Any) -> None:
    """Rename the symbolic sizes of inputs and outputs from torch's s77, s14, s54 to batch, height, width."""
    import onnx_ir

    (images,) = graph.inputs
    names = {str(images.shape[axis]): name for axis, name in ((0, 'batch'), (2, 'height'), (3, 'width'))}
    for value in (images, *graph.outputs):
        sizes = [
            size if isinstance(size, int) else re.sub(r'\w+', lambda word: names.get(word[0], word[0]), str(size))
            for size in value.shape
        ]
        value.shape = onnx_ir.Shape(sizes)


def _write_pt2(program: ExportedProgram, path: str, stored: dict[str, Any]) -> None:
    metadata = {METADATA: json.dumps(stored)}
    if stored['format'] == 'torch_export':
        torch.export.save(program, path, extra_files=metadata)
    else:
        configs = {'aot_inductor.metadata': metadata}
        torch._inductor.aoti_compile_and_package(program, package_path=path, inductor_configs=configs)
