"""Writes an export graph as ONNX, a torch.export program or an AOTInductor package."""

import inspect
import json
import os
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch.export import Dim, ExportedProgram

from cpvt_backbones import __version__
from cpvt_backbones.checks import check, check_choice
from cpvt_backbones.errors import InputError
from cpvt_backbones.export.metadata import METADATA
from cpvt_backbones.plain import EXPORT_FORMATS, OPSET

from .graphs import ExportGraph

OPSETS = (18, 21, 23)
# torch treats sizes 0 and 1 as constants, so the batch and the sides, in pixels and in cells of
# every stride, must exceed 1. AOTInductor leaves out a crop or a padding that does nothing at these
# sizes: the last patch is partial, upsampled maps are cropped at strides 4 and 8, and windows of 3
# to 7 and 14 cells do not divide the map.
EXAMPLE = dict(batch=2, height=259, width=355)
SIZES = {0: 'batch', 2: 'height', 3: 'width'}  # dynamic axes of the images
DEFERRED = 'prefer_deferred_runtime_asserts_over_guards'  # option of torch.export from torch 2.9 on


def record(graph: ExportGraph) -> ExportedProgram:
    """Record one program for any batch size and any H, W >= 1.

    Raises:
        ValueError: The model branches on a size.
        ImportError: torch is older than 2.9.
    """
    if DEFERRED not in inspect.signature(torch.export.export).parameters:
        raise ImportError(f'an export needs torch 2.9 or newer, found torch {torch.__version__}')
    from torch.utils._sympy.numbers import int_oo
    from torch.utils._sympy.value_ranges import ValueRanges

    options: dict[str, Any] = {'strict': False, DEFERRED: True}
    options['dynamic_shapes'] = (dict.fromkeys(SIZES, Dim.DYNAMIC),)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter('ignore')
            program = torch.export.export(graph.eval(), (graph.example(**EXAMPLE),), **options)
    except Exception as error:
        raise InputError(
            f'model: {type(graph.model).__name__} cannot be recorded for every size: {error}'
        ) from error
    # Remove torch's assertions that no size is 1. Maps of one cell violate them, but no result
    # depends on them; cpvt_backbones.export.verification checks small sizes.
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
        graph: The graph, from :func:`graph_of`.
        path: Destination; the suffix is ``.onnx`` for ONNX, ``.pt2`` for the other formats.
        format: ``'onnx'``, ``'torch_export'`` (a program that PyTorch loads and can compile) or
            ``'aoti'`` (compiled by AOTInductor for this device).
        settings: Further plain data for the file, such as the names of the classes.
        opset: Version of ONNX's operators: 18, 21 or 23. Two-stage detectors need 18, because
            onnxruntime lacks later versions of RoiAlign.
        portable: Write only ONNX's own operators. Attention is then slower in onnxruntime, but
            other runtimes can run it.

    Returns:
        All data that the file stores.

    Raises:
        ImportError: torch is older than 2.9, or ``format='onnx'`` without onnx and onnxscript.
        ValueError: The format or the suffix is not accepted, or the model cannot be exported.

    Examples:
        >>> import numpy as np
        >>> from cpvt_backbones import CPVT
        >>> from cpvt_backbones.export import ExportedModel, Features, export
        >>> arch = dict(embed_dims=32, depth=1, num_heads=2, mlp_ratio=2)
        >>> graph = Features(CPVT(arch=arch).eval())
        >>> stored = export(graph, 'map.pt2', format='torch_export')
        >>> model = ExportedModel('map.pt2', device='cpu')
        >>> images = np.zeros((2, 3, 50, 70), np.float32)  # of any size
        >>> {name: array.shape for name, array in model.run(images).items()}
        {'features_0': (2, 32, 4, 5)}
    """
    check_choice(EXPORT_FORMATS, format=format)
    if Path(path).suffix != (suffix := EXPORT_FORMATS[format]):
        raise InputError(
            f'path must have the suffix {suffix} for format={format!r}, got {str(path)!r}'
        )
    check(f'one of {OPSETS}', lambda number: number in OPSETS, opset=opset)
    if format == 'onnx' and not (find_spec('onnx') and find_spec('onnxscript')):
        needs = 'onnx and onnxscript: pip install onnx onnxscript onnxruntime'
        raise ImportError(f"format='onnx' needs {needs}")
    stored = dict(
        format=format,
        **graph.settings,
        device=next(graph.parameters()).device.type,
        versions=dict(cpvt_backbones=__version__, torch=torch.__version__),
        **(dict(opset=opset, portable=portable) if format == 'onnx' else {}),
        **(settings or {}),
    )
    program, metadata = record(graph), {METADATA: json.dumps(stored)}
    if format == 'onnx':
        _write_onnx(program, str(path), stored, metadata)
    elif format == 'torch_export':
        torch.export.save(program, path, extra_files=metadata)
    else:
        configs = {'aot_inductor.metadata': metadata}
        torch._inductor.aoti_compile_and_package(
            program, package_path=str(path), inductor_configs=configs
        )
    return stored


def _write_onnx(
    program: ExportedProgram, path: str, stored: dict[str, Any], metadata: dict[str, str]
) -> None:
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
            dynamic_shapes=(SIZES,),
            custom_translation_table=TRANSLATIONS if stored['portable'] else TRANSLATIONS | FUSED,
        )
    assert written is not None
    # The exporter silently writes another version when it does not support the requested one.
    if written.model.opset_imports[''] != stored['opset']:
        raise InputError(
            f'opset must be one that torch {torch.__version__} writes, got {stored["opset"]}',
            argument='opset',
        )
    written.model.metadata_props.update(metadata)
    written.save(path)
