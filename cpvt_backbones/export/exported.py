"""Running exported files, which need neither config nor toolbox."""

import contextlib
import functools
import logging
import os
import zipfile
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.logging import print_log
from torch import Tensor

from cpvt_backbones.checks import check_choice, check_device, check_path
from cpvt_backbones.errors import InputError
from cpvt_backbones.images.value_range import ValueRange
from cpvt_backbones.inference.predictors import first_maximum
from cpvt_backbones.inference.sizes import GoodSizes
from cpvt_backbones.layers import group_by_shape
from cpvt_backbones.plain import EXPORTED_SUFFIXES, RUNTIMES
from cpvt_backbones.weights import sha256_of

from .metadata import METADATA, read_metadata

WARM_UP_SIDE = 65  # px; more than a token at every stride up to 64
Run = Callable[[np.ndarray], list[np.ndarray]]


class ExportedModel:
    """Runs an exported file, ONNX or ``.pt2``, on images of any size, without config or toolbox.

    It is a predictor for :class:`Inferencer`:
    ``Inferencer(predictor=ExportedModel('model.onnx'))``.

    Args:
        path: ``.onnx``, or ``.pt2`` (torch.export or AOTInductor).
        device: ``'cpu'``, ``'cuda'`` or ``'cuda:1'``; ``None`` takes a GPU if the file can use one.
            A ``.pt2`` runs on the type of device for which it was exported.
        runtime: Runtime of an ONNX file: ``'onnxruntime'``, ``'openvino'`` (on the CPU, in float32)
            or ``'openvino-bfloat16'``.

    Attributes:
        metadata: Data stored in the file: ``task``, ``outputs``, ``classes``, ``mean`` and ``std``,
            thresholds, versions and more.
        task: ``'detection'``, ``'segmentation'``, ``'classification'``, or ``'features'`` for a
            backbone.
        in_channels: Number of channels of the images.
        classes: Names of the classes; ``None`` if the file has none.
        palette: RGB of each class; ``None`` if the file has none.
        size_steps: Steps that resize an image to the test scale; ``None`` without one.
        sizes: :class:`GoodSizes` of the model; ``None`` if they were not measured.
        value_range: :class:`ValueRange` of the images; ``None`` for RGB of 8 bits.
        fingerprint: SHA-256 of the file, with the runtime unless that is ``'onnxruntime'``.

    Raises:
        FileNotFoundError: The file does not exist.
        ValueError: The file is damaged or of another kind, or cannot run on the device or runtime.
        ImportError: The runtime is not installed.

    Examples:
        A file of the shipped classifier, on an image of any size. :func:`verify` shows the whole
        way from a config.

        >>> import numpy as np
        >>> from cpvt_backbones.export import ExportedModel, export, graph_of
        >>> from cpvt_backbones.inference import ToolboxPredictor, read_config
        >>> from cpvt_backbones.weights import find_shipped
        >>> shipped = find_shipped('cpvt_tiny_gap-imagenette')
        >>> cfg = read_config(shipped.config_file)
        >>> model = ToolboxPredictor(cfg=cfg, checkpoint=shipped.name).model
        >>> stored = export(
        ...     graph_of(model), 'model.pt2', format='torch_export'
        ... )
        >>> exported = ExportedModel('model.pt2', device='cpu')
        >>> exported.task, exported.in_channels
        ('classification', 3)
        >>> photo = np.zeros((120, 160, 3), np.uint8)  # BGR
        >>> (prediction,) = exported.predict([photo])
        >>> prediction['scores'].shape
        (10,)
    """

    def __init__(
        self, path: str | os.PathLike[str], *, device: str | None = None, runtime: str = RUNTIMES[0]
    ) -> None:
        self.metadata: dict[str, Any]
        check_path(path=path)
        suffix = Path(path).suffix
        if device is not None:
            check_device(device)
        check_choice(RUNTIMES if suffix == '.onnx' else RUNTIMES[:1], runtime=runtime)
        if not Path(path).is_file():
            raise FileNotFoundError(f'path: there is no file {str(path)!r}')
        if suffix not in _OPENERS:
            raise InputError(f'path must end in {" or ".join(_OPENERS)}, got {str(path)!r}')
        opener = _OPENERS[suffix] if runtime == RUNTIMES[0] else _open_openvino
        try:
            self._run, self.metadata = opener(str(path), device, runtime)
        except ImportError as error:
            package = runtime.partition('-')[0]
            raise ImportError(f'{runtime=} needs `pip install {package}` ({error})') from error
        except ValueError:
            raise
        except Exception as error:  # each runtime raises its own types
            if 'com.microsoft' in str(error):  # OpenVINO before 2026.3
                raise InputError(
                    f'path: {str(path)!r} has ONNX Runtime operators that this version of'
                    f' {runtime.partition("-")[0]} lacks: update it, or export with --portable'
                ) from error
            reason = str(error).partition('\n')[0]
            raise InputError(
                f'path: {str(path)!r} is damaged, or runs on another device ({reason})'
            ) from error
        _warn_of_runtime(self.metadata.get('int8'), runtime, str(path))
        self.task: str = self.metadata['task']
        self.in_channels: int = self.metadata.get('in_channels', 3)
        self.classes: Sequence[str] | None = self.metadata.get('classes')
        self.palette: Sequence[Sequence[int]] | None = self.metadata.get('palette')
        self.size_steps: list[dict[str, Any]] | None = self.metadata.get('size_steps')
        sizes, stored = self.metadata.get('sizes'), self.metadata.get('value_range')
        self.sizes: GoodSizes | None = GoodSizes(**sizes) if sizes else None
        self.value_range: ValueRange | None = ValueRange(**stored) if stored else None
        self.nms_threshold: float | None = self.metadata.get('iou_threshold')
        self.align_corners: bool = self.metadata.get('align_corners', False)
        self.fingerprint: str = sha256_of(path) + runtime.removeprefix(RUNTIMES[0])

    def run(self, images: np.ndarray) -> dict[str, np.ndarray]:
        """Compute the outputs of the file.

        Args:
            images: (B, in_channels, H, W), uint8; three channels are BGR. If ``metadata['input']``
                is ``'normalised'``, they are normalised float32 images.

        Returns:
            Arrays by the names in ``metadata['outputs']``.

        Raises:
            ValueError: The images have another shape or type.
        """
        dtype = np.uint8 if self.metadata['input'] == 'pixels' else np.float32
        are_images = images.ndim == 4 and images.shape[1] == self.in_channels
        if not are_images or 0 in images.shape or images.dtype != dtype:
            accepted = f'(B, {self.in_channels}, H, W) with H, W >= 1, {np.dtype(dtype)}'
            raise InputError(f'images must be {accepted}, got shape {images.shape}, {images.dtype}')
        outputs = self._run(np.ascontiguousarray(images))
        return dict(zip(self.metadata['outputs'], outputs, strict=True))

    def predict(self, images: list[np.ndarray]) -> list[dict[str, Any]]:
        """Predict on images of any sizes; see :class:`Predictor`.

        Args:
            images: (H, W, in_channels), uint8; three channels are BGR.

        Returns:
            A dict of arrays per image, as in :meth:`Predictor.predict`. A segmentor gives
            ``seg_map`` (H, W), and a backbone the list ``features``.
        """
        predictions: list[dict[str, Any]] = [{}] * len(images)
        for indices in group_by_shape(image.shape for image in images):
            outputs = self.run(self._batch([images[index] for index in indices]))
            for i, index in enumerate(indices):
                own = {name: value[i] for name, value in outputs.items()}
                predictions[index] = self._prediction(own, images[index].shape[:2])
        return predictions

    def logits(self, images: list[np.ndarray]) -> Tensor:
        """Segment images of the same size; see :class:`Predictor`.

        A file with the output ``class_map`` has no logits, so its classes are returned one-hot,
        uint8. A model with one channel returns (B, 1, H, W) float, 0 or 1.
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
        if len(logits) == 1:
            return (logits[0] > self.metadata['threshold']).long()
        return first_maximum(logits).long()

    def _batch(self, images: list[np.ndarray]) -> np.ndarray:
        for image in images:
            is_image = image.ndim == 3 and image.shape[2] == self.in_channels
            if not is_image or image.dtype != np.uint8:
                accepted = f'(H, W, {self.in_channels}), uint8'
                raise InputError(
                    f'images must be {accepted}, got shape {image.shape}, {image.dtype}'
                )
        batch = np.stack(images).transpose(0, 3, 1, 2)
        if self.metadata['input'] == 'pixels':
            return batch
        if self.metadata['flip_channels']:
            batch = batch[:, ::-1]
        mean = np.array(self.metadata['mean'], np.float32).reshape(-1, 1, 1)
        std = np.array(self.metadata['std'], np.float32).reshape(-1, 1, 1)
        return (batch.astype(np.float32) - mean) / std

    def _prediction(self, outputs: dict[str, np.ndarray], size: tuple[int, ...]) -> dict[str, Any]:
        if self.task == 'detection':
            return self._detection(outputs, size)
        if self.task == 'classification':
            return outputs
        if self.task == 'features':
            return dict(features=list(outputs.values()))
        if 'class_map' in outputs:
            return dict(seg_map=outputs['class_map'])
        return dict(seg_map=self.to_classes(torch.from_numpy(outputs['logits'])).numpy())

    def _detection(self, outputs: dict[str, np.ndarray], size: tuple[int, ...]) -> dict[str, Any]:
        count = int(outputs.pop('counts'))
        found = {name: value[:count] for name, value in outputs.items()}
        if 'masks' in found:
            masks = np.zeros((count, *size), bool)
            for i, (mask, box) in enumerate(zip(found['masks'], found['boxes'], strict=True)):
                masks[i] = paste_mask(mask, box, size) >= self.metadata['mask_threshold']
            found['masks'] = masks
        return found


def paste_mask(mask: np.ndarray, box: np.ndarray, size: tuple[int, ...]) -> np.ndarray:
    """Paste a mask bilinearly into a map of the image that is 0 outside the box.

    Args:
        mask: Probabilities (h, w) within the box.
        box: x1, y1, x2, y2 in px.
        size: (H, W) of the map.
    """
    left, top, right, bottom = box
    rows = _paste_weights(top, bottom, size[0], len(mask))
    columns = _paste_weights(left, right, size[1], mask.shape[1])
    return rows @ mask @ columns.T


def _paste_weights(start: float, stop: float, length: int, cells: int) -> np.ndarray:
    """Compute weights (length, cells) per pixel along one axis; all 0 for a box without extent."""
    centres = np.arange(length, dtype=np.float32) + 0.5
    with np.errstate(divide='ignore', invalid='ignore'):
        positions = (centres - start) / (stop - start) * cells - 0.5
        near = 1 - np.abs(positions[:, None] - np.arange(cells))
        return np.nan_to_num(np.clip(near, 0, None))


def _open_onnx(path: str, device: str | None, _: str) -> tuple[Run, dict[str, Any]]:
    import onnxruntime

    cuda = 'CUDAExecutionProvider'
    available = cuda in onnxruntime.get_available_providers()
    wanted = torch.device(device or ('cuda' if available else 'cpu'))
    if wanted.type not in ('cpu', 'cuda'):
        accepted = "'cpu' or 'cuda[:index]' for an .onnx file"
        raise InputError(f'device must be {accepted}, got {device!r}', argument='device')
    if wanted.type == 'cuda' and not available:
        reason = 'this onnxruntime has no CUDA (onnxruntime-gpu does)'
        raise InputError(f"device must be 'cpu': {reason}, got {device!r}", argument='device')
    providers: list[Any] = ['CPUExecutionProvider']
    if wanted.type == 'cuda':
        providers.insert(0, (cuda, dict(device_id=wanted.index or 0)))
    options = onnxruntime.SessionOptions()
    # OMP_NUM_THREADS, which onnxruntime does not read
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(path, options, providers=providers)
    if device is not None and wanted.type == 'cuda' and cuda not in session.get_providers():
        reason = 'onnxruntime could not start CUDA (see its log)'
        raise InputError(f"device must be 'cpu': {reason}, got {device!r}", argument='device')
    metadata = read_metadata(session.get_modelmeta().custom_metadata_map, path)
    return lambda images: session.run(None, {'images': images}), metadata


@functools.cache
def _openvino_core() -> Any:
    """Return the only OpenVINO core of this process.

    Deleting a second core may leave the signal handlers with a stack in freed memory.
    """
    import openvino

    return openvino.Core()


def _open_openvino(path: str, device: str | None, runtime: str) -> tuple[Run, dict[str, Any]]:
    if device not in (None, 'cpu'):
        raise InputError(
            f"device must be 'cpu' with runtime={runtime!r}, got {device!r}", argument='device'
        )
    core = _openvino_core()
    model = core.read_model(path)
    key = ['framework', METADATA]
    stored = model.get_rt_info(key).value if model.has_rt_info(key) else ''
    metadata = read_metadata({METADATA: stored}, path)
    options: dict[str, Any] = dict(
        PERFORMANCE_HINT='LATENCY', INFERENCE_NUM_THREADS=torch.get_num_threads()
    )
    options['INFERENCE_PRECISION_HINT'] = 'bf16' if runtime.endswith('bfloat16') else 'f32'
    request = core.compile_model(model, 'CPU', options).create_infer_request()
    # If the first images have one token, OpenVINO 2026.4 computes all later ones wrongly.
    (images,) = model.inputs
    shape = (1, images.partial_shape[1].get_length(), WARM_UP_SIDE, WARM_UP_SIDE)
    request.infer({0: np.zeros(shape, images.element_type.to_dtype())})
    return lambda images: list(request.infer({0: images}).values()), metadata


def _open_pt2(path: str, device: str | None, _: str) -> tuple[Run, dict[str, Any]]:
    with zipfile.ZipFile(path) as archive:
        if damaged := archive.testzip():
            fault = f'the checksum of its part {damaged!r} differs'
            raise InputError(f'path: {path!r} is damaged: {fault}')
        compiled = any('/data/aotinductor/' in name for name in archive.namelist())
    model: Any
    with contextlib.suppress(ImportError):
        import_module('torchvision')  # registers its RoIAlign
    if compiled:
        index = torch.device(device or 'cpu').index
        model = torch._inductor.aoti_load_package(path, device_index=-1 if index is None else index)
        metadata = read_metadata(model.get_metadata(), path)
    else:
        stored: dict[str, Any] = {METADATA: ''}
        # The guards check the sizes of the example; the export verified the file at other sizes.
        model = torch.export.load(path, extra_files=stored).module(check_guards=False)
        metadata = read_metadata(stored, path)
    target = torch.device(device or metadata['device'])
    if target.type != metadata['device']:
        accepted = f'{metadata["device"]!r}, for which {path!r} was exported'
        raise InputError(f'device must be {accepted}, got {device!r}', argument='device')
    if not compiled and target.index:  # the weights stay on the device of the export
        accepted = f'{target.type!r} or {target.type + ":0"!r} for {path!r}'
        raise InputError(f'device must be {accepted}, got {device!r}', argument='device')

    def run(images: np.ndarray) -> list[np.ndarray]:
        with torch.no_grad():
            return [output.cpu().numpy() for output in model(torch.from_numpy(images).to(target))]

    return run, metadata


_OPENERS = dict(zip(EXPORTED_SUFFIXES, (_open_onnx, _open_pt2), strict=True))


def _warn_of_runtime(int8: Any, runtime: str, path: str) -> None:
    used = runtime.partition('-')[0]
    if int8 in RUNTIMES[:2] and int8 != used:
        message = f'{path}: int8 file made for {int8}, slower in {used}; export one for {used}'
        print_log(message, 'current', logging.WARNING)


@torch.library.custom_op('cpvt_backbones::nms_mask', mutates_args=())
def nms_mask(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Mark the boxes that non-maximum suppression keeps, (B, N) bool.

    Exported detectors call this operation, because the shape of a mask does not depend on the data.

    Args:
        boxes: (B, N, 4; x1, y1, x2, y2).
        scores: (B, N); boxes with scores <= 0 are ignored.
        iou_threshold: Boxes that overlap a better one by more are dropped.
    """
    from torchvision.ops import nms

    keep = torch.zeros(scores.shape, dtype=torch.bool, device=scores.device)
    for image in range(len(boxes)):
        candidates = (scores[image] > 0).nonzero()[:, 0]
        best = nms(boxes[image, candidates], scores[image, candidates], iou_threshold)
        keep[image, candidates[best]] = True
    return keep


@nms_mask.register_fake
def _(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    return torch.empty_like(scores, dtype=torch.bool)
