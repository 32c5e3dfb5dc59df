"""Running exported files, which need neither config nor toolbox."""

import contextlib
import functools
import hashlib
import os
import zipfile
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cpvt_backbones.checkpoints.json_files import parse_json
from cpvt_backbones.inference.predictors import first_maximum
from cpvt_backbones.inference.sizes import GoodSizes
from cpvt_backbones.layers import group_by_shape
from cpvt_backbones.layers.checks import check_choice
from cpvt_backbones.options import EXPORTED_SUFFIXES, RUNTIMES
from cpvt_backbones.weights import sha256_of

METADATA = 'cpvt_backbones'  # key of a file's metadata, which are JSON
_SEAL = b'cpvt_backbones_sha256'
Run = Callable[[np.ndarray], list[np.ndarray]]


class ExportedModel:
    """A model from an ONNX file or a ``.pt2`` package, for images of any size.

    A predictor for ``Inferencer``.

    ``metadata`` has the file's task (``'features'`` of a backbone), classes, mean and std,
    thresholds and versions.

    Args:
        path: ``.onnx``, or ``.pt2`` (torch.export or AOTInductor).
        device: ``'cpu'``, ``'cuda:1'``; ``None`` for a GPU if the file can use one. A ``.pt2`` runs
            on the type of device that it was exported on.
        runtime: Of an ONNX file: ``'onnxruntime'``, ``'openvino'`` (on the CPU, in fp32) or
            ``'openvino-bfloat16'``.

    Raises:
        FileNotFoundError: The file does not exist.
        ValueError: Another kind of file, a damaged file, or a device or runtime that it cannot run
            on.
        ImportError: The runtime is not installed.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, device: str | None = None, runtime: str = RUNTIMES[0]
    ) -> None:
        check_choice(RUNTIMES if Path(path).suffix == '.onnx' else RUNTIMES[:1], runtime=runtime)
        if not Path(path).is_file():
            raise FileNotFoundError(f'path: there is no file {str(path)!r}')
        if Path(path).suffix not in _OPENERS:
            raise ValueError(f'path must end in {" or ".join(_OPENERS)}, got {str(path)!r}')
        try:
            opener = _open_openvino if runtime != RUNTIMES[0] else _OPENERS[Path(path).suffix]
            self._run, self.metadata = opener(str(path), device, runtime)
        except ImportError as error:
            package = runtime.partition('-')[0]
            raise ImportError(
                f'path: {str(path)!r}, {runtime=} needs `pip install {package}` ({error})'
            ) from error
        except ValueError:
            raise
        except Exception as error:  # each runtime raises its own types
            reason = str(error).partition('\n')[0]
            raise ValueError(
                f'path: {str(path)!r} is damaged, or runs on another device ({reason})'
            ) from error
        self.task: str = self.metadata['task']
        self.classes: Sequence[str] | None = self.metadata.get('classes')
        self.palette: Sequence[Sequence[int]] | None = self.metadata.get('palette')
        self.size_steps = self.metadata.get('size_steps')
        self.sizes = GoodSizes(**self.metadata['sizes']) if self.metadata.get('sizes') else None
        self.fingerprint = sha256_of(path) + runtime.removeprefix(RUNTIMES[0])

    def run(self, images: np.ndarray) -> dict[str, np.ndarray]:
        """The outputs, by name, of images (B, 3, H, W), uint8 BGR or, if ``metadata['input']`` says
        it, normalised.
        """
        dtype = np.uint8 if self.metadata['input'] == 'pixels' else np.float32
        if images.ndim != 4 or images.shape[1] != 3 or 0 in images.shape or images.dtype != dtype:
            accepted = f'(B, 3, H, W) with H, W >= 1, {np.dtype(dtype)}'
            raise ValueError(f'images must be {accepted}, got shape {images.shape}, {images.dtype}')
        return dict(
            zip(self.metadata['outputs'], self._run(np.ascontiguousarray(images)), strict=True)
        )

    def predict(self, images: list[np.ndarray]) -> list[dict[str, Any]]:
        """See :class:`Predictor`; images of any sizes.

        A segmentor: ``seg_map`` (H, W), a backbone: ``features``.
        """
        predictions: list[dict[str, Any]] = [{}] * len(images)
        for indices in group_by_shape(image.shape for image in images):
            outputs = self.run(self._batch([images[index] for index in indices]))
            for i, index in enumerate(indices):
                own = {name: value[i] for name, value in outputs.items()}
                predictions[index] = self._prediction(own, images[index].shape[:2])
        return predictions

    def logits(self, images: list[np.ndarray]) -> Tensor:
        """See :class:`Predictor`.

        Of a file with output ``class_map``: the classes, one-hot, uint8.
        """
        outputs = self.run(self._batch(images))
        if 'logits' in outputs:
            return torch.from_numpy(outputs['logits'])
        class_maps, channels = torch.from_numpy(outputs['class_map']), self.metadata['num_channels']
        if channels == 1:
            return class_maps[:, None].float()
        shape = (len(class_maps), channels, *class_maps.shape[1:])
        return torch.zeros(shape, dtype=torch.uint8).scatter_(1, class_maps[:, None], 1)

    def to_classes(self, logits: Tensor) -> Tensor:
        """See :class:`Predictor`."""
        return (
            first_maximum(logits) if len(logits) > 1 else logits[0] > self.metadata['threshold']
        ).long()

    def _batch(self, images: list[np.ndarray]) -> np.ndarray:
        for image in images:
            if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8:
                raise ValueError(
                    f'images must be (H, W, 3), uint8, got shape {image.shape}, {image.dtype}'
                )
        batch = np.stack(images).transpose(0, 3, 1, 2)
        if self.metadata['input'] == 'pixels':
            return batch
        if self.metadata['flip_channels']:
            batch = batch[:, ::-1]
        mean, std = (
            np.array(self.metadata[name], np.float32).reshape(-1, 1, 1) for name in ('mean', 'std')
        )
        return (batch.astype(np.float32) - mean) / std

    def _prediction(self, outputs: dict[str, np.ndarray], size: tuple[int, ...]) -> dict[str, Any]:
        if self.task == 'detection':
            count = int(outputs.pop('counts'))
            found = {name: value[:count] for name, value in outputs.items()}
            if 'masks' in found:
                pairs = zip(found['masks'], found['boxes'], strict=True)
                masks = [
                    paste_mask(*pair, size) >= self.metadata['mask_threshold'] for pair in pairs
                ]
                found['masks'] = np.array(masks).reshape(count, *size)
            return found
        if 'class_map' in outputs:
            return dict(seg_map=outputs['class_map'])
        if self.task == 'segmentation':
            return dict(seg_map=self.to_classes(torch.from_numpy(outputs['logits'])).numpy())
        return outputs if self.task == 'classification' else dict(features=list(outputs.values()))


def paste_mask(mask: np.ndarray, box: np.ndarray, size: tuple[int, ...]) -> np.ndarray:
    """Probabilities (h, w) within a box (x1, y1, x2, y2) as a map (H, W) of the image: bilinear, 0
    around the box.
    """

    def weights(start: float, stop: float, length: int, cells: int) -> np.ndarray:
        """(length, cells) of the pixels along one axis; none within a box without extent."""
        with np.errstate(divide='ignore', invalid='ignore'):
            places = (np.arange(length, dtype=np.float32) + 0.5 - start) / (
                stop - start
            ) * cells - 0.5
            return np.nan_to_num(np.clip(1 - np.abs(places[:, None] - np.arange(cells)), 0, None))

    left, top, right, bottom = box
    return (
        weights(top, bottom, size[0], len(mask))
        @ mask
        @ weights(left, right, size[1], mask.shape[1]).T
    )


def _open_onnx(path: str, device: str | None, _: str) -> tuple[Run, dict[str, Any]]:
    import onnxruntime

    cuda = 'CUDAExecutionProvider' in onnxruntime.get_available_providers()
    wanted = torch.device(device or ('cuda' if cuda else 'cpu'))
    if wanted.type not in ('cpu', 'cuda'):
        raise ValueError(
            f"device must be 'cpu' or 'cuda[:index]' for an .onnx file, got {device!r}"
        )
    if wanted.type == 'cuda' and not cuda:
        raise ValueError(
            "device must be 'cpu': this onnxruntime has no CUDA (onnxruntime-gpu does), got"
            f' {device!r}'
        )
    sealed = _check_seal(path)
    gpu = (
        [('CUDAExecutionProvider', dict(device_id=wanted.index or 0))]
        if wanted.type == 'cuda'
        else []
    )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = (
        torch.get_num_threads()
    )  # OMP_NUM_THREADS, which onnxruntime does not read
    session = onnxruntime.InferenceSession(path, options, providers=[*gpu, 'CPUExecutionProvider'])
    if (
        device is not None
        and wanted.type == 'cuda'
        and 'CUDAExecutionProvider' not in session.get_providers()
    ):
        raise ValueError(
            f"device must be 'cpu': onnxruntime could not start CUDA (see its log), got {device!r}"
        )
    metadata = _read_metadata(session.get_modelmeta().custom_metadata_map, path, sealed)
    return lambda images: session.run(None, {'images': images}), metadata


@functools.cache
def _openvino_core() -> Any:
    """One for the process: where a second is deleted, the stack of signal handlers may be freed
    memory.
    """
    import openvino

    return openvino.Core()


def _open_openvino(path: str, device: str | None, runtime: str) -> tuple[Run, dict[str, Any]]:
    if device not in (None, 'cpu'):
        raise ValueError(f"device must be 'cpu' with runtime={runtime!r}, got {device!r}")
    sealed = _check_seal(path)
    core = _openvino_core()
    model = core.read_model(path)
    key = ['framework', METADATA]
    metadata = _read_metadata(
        {METADATA: model.has_rt_info(key) and model.get_rt_info(key).value}, path, sealed
    )
    options = dict(PERFORMANCE_HINT='LATENCY', INFERENCE_NUM_THREADS=torch.get_num_threads())
    options['INFERENCE_PRECISION_HINT'] = 'bf16' if runtime.endswith('bfloat16') else 'f32'
    request = core.compile_model(model, 'CPU', options).create_infer_request()
    return lambda images: list(request.infer({0: images}).values()), metadata


def _open_pt2(path: str, device: str | None, _: str) -> tuple[Run, dict[str, Any]]:
    with zipfile.ZipFile(path) as archive:
        if damaged := archive.testzip():
            raise ValueError(
                f'path: {path!r} is damaged: the checksum of its part {damaged!r} differs'
            )
        compiled = any('/data/aotinductor/' in name for name in archive.namelist())
    model: Any
    with contextlib.suppress(ImportError):
        import_module('torchvision')  # registers its RoIAlign
    if compiled:
        index = torch.device(device or 'cpu').index
        model = torch._inductor.aoti_load_package(path, device_index=-1 if index is None else index)
        metadata = _read_metadata(model.get_metadata(), path)
    else:
        stored: dict[str, Any] = {METADATA: ''}
        # The guards repeat the sizes of the example. Exporting verifies the file at other sizes.
        model = torch.export.load(path, extra_files=stored).module(check_guards=False)
        metadata = _read_metadata(stored, path)
    target = torch.device(device or metadata['device'])
    if target.type != metadata['device']:
        raise ValueError(
            f'device must be {metadata["device"]!r}, for which {path!r} was exported, got'
            f' {device!r}'
        )
    if not compiled and target.index:  # the weights stay on the device of the export
        raise ValueError(
            f'device must be {target.type!r} or {target.type + ":0"!r} for {path!r}, got {device!r}'
        )

    def run(images: np.ndarray) -> list[np.ndarray]:
        with torch.no_grad():
            return [output.cpu().numpy() for output in model(torch.from_numpy(images).to(target))]

    return run, metadata


_OPENERS = dict(zip(EXPORTED_SUFFIXES, (_open_onnx, _open_pt2), strict=True))


def _read_metadata(entries: dict[str, Any], path: str, sealed: bool = True) -> dict[str, Any]:
    if not entries.get(METADATA):
        raise ValueError(
            f'path must be a file that tools/export.py wrote; {path!r} has no entry {METADATA!r}'
        )
    metadata = parse_json(entries[METADATA], f'path: the metadata of {path!r}')
    if missing := {'task', 'input', 'outputs', 'device'} - set(metadata):
        raise ValueError(f'path: {path!r} is damaged: its metadata lacks {sorted(missing)}')
    if metadata.get('checksum') and not sealed:
        raise ValueError(f'path: {path!r} is damaged: the SHA-256 at its end is missing')
    return metadata


def seal(content: bytes) -> bytes:
    """SHA-256 of an ONNX file as an entry of ``metadata_props``, to append to the file."""
    value = hashlib.sha256(content).hexdigest().encode()
    entry = (
        b'\x0a' + bytes([len(_SEAL)]) + _SEAL + b'\x12' + bytes([len(value)]) + value
    )  # key and value in protobuf
    return b'\x72' + bytes([len(entry)]) + entry


def _check_seal(path: str) -> bool:
    """``False`` for a file without :func:`seal`, as older releases wrote it."""
    content, length = Path(path).read_bytes(), len(seal(b''))
    if content[-length:-64] != seal(b'')[:-64]:
        return False
    if content[-length:] != seal(content[:-length]):
        raise ValueError(
            f'path: {path!r} is damaged: its SHA-256 differs from the one stored in it'
        )
    return True


@torch.library.custom_op('cpvt_backbones::nms_mask', mutates_args=())
def nms_mask(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Non-maximum suppression of boxes (B, N, 4.

    X1, y1, x2, y2) as a mask, (B, N) bool, of those to keep.

    Exported detectors call this operation, because the shape of a mask does not depend on the data.
    Boxes of scores (B, N) <= 0 are ignored.
    """
    from torchvision.ops import nms

    keep = torch.zeros(scores.shape, dtype=torch.bool, device=scores.device)
    for image, (own_boxes, own_scores) in enumerate(zip(boxes, scores, strict=True)):
        (candidates,) = (own_scores > 0).nonzero(as_tuple=True)
        keep[
            image, candidates[nms(own_boxes[candidates], own_scores[candidates], iou_threshold)]
        ] = True
    return keep


@nms_mask.register_fake
def _(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    return torch.empty_like(scores, dtype=torch.bool)
