"""Prediction on many files by Ray Data: an actor for each GPU or core, Parquet or JSON out.

See docs/scale.md.
"""

import base64
import io
import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from cpvt_backbones.checks import check_choice, check_fraction
from cpvt_backbones.errors import InputError
from cpvt_backbones.export import ExportedModel
from cpvt_backbones.inference import Inferencer, Result

FORMATS = ('parquet', 'json')


class Worker:
    """An actor: predicts on batches of paths with one :class:`Inferencer`.

    See :func:`predict_with_ray`.
    """

    def __init__(self, options: Mapping[str, Any], score_thr: float, file_format: str) -> None:
        options = dict(options)
        if exported := options.pop('exported', None):
            runtime = options.pop('runtime', 'onnxruntime')
            options['predictor'] = ExportedModel(
                exported, device=options.get('device'), runtime=runtime
            )
        self.inferencer = Inferencer(**options)
        self.score_thr = score_thr
        self.file_format = file_format

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, list[Any]]:
        """Columns ``path``, ``width``, ``height``, ``prediction`` (JSON), ``seg_map`` (PNG or TIFF)
        and ``error``.
        """
        paths = [str(path) for path in batch['path']]
        results = dict(self.inferencer.stream(paths, score_thr=self.score_thr))
        rows = [self._row(results[index]) for index in range(len(results))]
        return {name: [row[name] for row in rows] for name in rows[0]}

    def _row(self, result: Result) -> dict[str, Any]:
        prediction = dict(result.prediction or {})
        pixels = prediction.pop('seg_map', None)
        seg_map = b''
        if isinstance(pixels, Path):
            seg_map = pixels.read_bytes()
            pixels.unlink()
        elif pixels is not None:
            file = io.BytesIO()
            Image.fromarray(pixels).save(file, format='PNG')
            seg_map = file.getvalue()
        error = '' if result.error is None else f'{type(result.error).__name__}: {result.error}'
        width, height = result.size or (0, 0)
        encoded: bytes | str = seg_map
        if self.file_format == 'json':
            encoded = base64.b64encode(seg_map).decode()
        return dict(
            path=result.name,
            width=width,
            height=height,
            prediction='' if error else json.dumps(prediction),
            seg_map=encoded,
            error=error,
        )


def predict_with_ray(
    options: Mapping[str, Any],
    images: Sequence[str | os.PathLike[str]],
    *,
    out_dir: str | os.PathLike[str],
    file_format: str = 'parquet',
    score_thr: float = 0.3,
    workers: int | None = None,
    batch_size: int = 16,
) -> None:
    """Predict on files that every node can read; Ray restarts a lost actor and repeats its batches.

    Args:
        options: Arguments of :class:`Inferencer`, or with ``exported``, the path of an exported
            file, in place of ``cfg`` and ``checkpoint``.
        images: The files.
        out_dir: Folder of the results, which every node can write to.
        file_format: ``'parquet'``, or ``'json'`` (lines; class maps in base64).
        score_thr: Minimum score of a box.
        workers: Number of actors, each with one GPU if the cluster has any; by default one for each
            GPU or core.
        batch_size: Files that an actor gets at a time.

    ``ImportError`` without ray; ``ValueError`` for another ``file_format`` or ``score_thr``, or
    files in ``out_dir``.
    """
    check_choice(FORMATS, file_format=file_format)
    check_fraction(score_thr=score_thr)
    if Path(out_dir).exists() and any(Path(out_dir).iterdir()):
        raise InputError(f'out_dir must be empty, got {str(out_dir)!r}')
    import ray

    # This folder is on no other node's path.
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])

    paths = [dict(path=os.path.abspath(image)) for image in images]
    # A block is what a lost actor repeats, and a file of results.
    blocks = min(math.ceil(len(paths) / batch_size), 1000)
    # Starts a local Ray, unless RAY_ADDRESS or an earlier ray.init names a cluster.
    data = ray.data.from_items(paths, override_num_blocks=blocks)
    resources = ray.cluster_resources()
    gpus = int(resources.get('GPU', 0))
    cores = int(resources.get('CPU', 1))
    data = data.map_batches(
        Worker,
        fn_constructor_args=(dict(options), score_thr, file_format),
        batch_size=batch_size,
        concurrency=workers or gpus or cores,
        num_gpus=1 if gpus else 0,
        num_cpus=1,
    )
    write = data.write_parquet if file_format == 'parquet' else data.write_json
    write(os.path.abspath(out_dir), ray_remote_args=dict(num_cpus=0))  # actors may have all cores
