"""Runs a model on a batch in a chosen precision.

No other part of inference depends on the toolbox.
"""

import copy
import hashlib
import io
import logging
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.logging import MMLogger
from mmengine.registry import init_default_scope
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from cpvt_backbones.checkpoints import (
    CheckpointError,
    classes_of,
    load_weights,
    locate_checkpoint,
    naming_file,
    warn_of_other_normalisation,
)
from cpvt_backbones.checks import (
    check_by_keyword,
    check_choice,
    check_device,
    check_gpu,
    check_keywords,
)
from cpvt_backbones.errors import InputError
from cpvt_backbones.heads.eomt import MaskLayers
from cpvt_backbones.images.value_range import ValueRange
from cpvt_backbones.layers.blocked_attention import bfloat16_instructions
from cpvt_backbones.plain import DTYPES
from cpvt_backbones.toolboxes import (
    SIZE_ARGUMENTS,
    ConfigInput,
    check_model,
    config_classes,
    dataset_metainfo,
    find_toolbox,
    resolve_config,
    step_name,
)
from cpvt_backbones.weights import named_models, published_weights, sha256_of, similar_names

from .sizes import GoodSizes, loads_floats, size_steps

MERGED_VALUES = 100 << 20
"""Values of all masks of an image that are merged at once: 100 masks of 1024 x 1024 px."""
SURE_QUERIES = 25  # a panoptic EoMT merges the masks of sure queries only, about so many


class Predictor(Protocol):
    """Protocol of models that :class:`Inferencer` runs: objects with these attributes and methods.

    A predictor runs batches of images of equal size, at that size. :class:`ToolboxPredictor` and
    :class:`ExportedModel` are predictors.

    Attributes:
        task: ``'detection'``, ``'panoptic'``, ``'segmentation'`` or ``'classification'``.
        classes: Names of the classes, in the order of their labels; ``None`` if they are unknown.
        palette: RGB of each class, three integers from 0 to 255; ``None`` for distinct colours.
        fingerprint: Text that identifies the model and its weights.
        num_things (int | None): Optional; number of object classes of a panoptic segmentor, which
            come before the other classes.
        size_steps (Sequence[dict[str, Any]] | None): Optional; steps of the test pipeline that set
            the size.
        to_float32 (bool): Optional; images are resized as float32, as mmdet's Mask2Former does, and
            ``predict`` gets float32.
        sizes (GoodSizes | None): Optional; the sizes at which the model is good.
        value_range (ValueRange | None): Optional; the range for reading files.
        nms_threshold (float | None): Optional; IoU threshold of the detector's non-maximum
            suppression, also used to merge boxes of overlapping tiles.
        align_corners (bool): Optional; ``align_corners`` of a segmentor's head, also used to resize
            its logits.
        merge_pixels (int | None): Optional; number of pixels up to which ``predict`` can return
            masks and boxes at the size of the original image. It then takes the argument ``sizes``.
    """

    task: str
    classes: Sequence[str] | None
    palette: Sequence[Sequence[int]] | None
    fingerprint: str

    def predict(self, images: list[np.ndarray]) -> list[dict[str, Any]]:
        """Detect or classify.

        Args:
            images: Images of the same size, (H, W, 3) uint8 in BGR, or (H, W, channels of
                ``value_range``).

        Returns:
            A dict of arrays per image. Detection: ``boxes`` (N, 4; x1, y1, x2, y2 in px),
            ``scores`` (N,), ``labels`` (N,); an instance segmentor adds ``masks`` (N, H, W; bool).
            Panoptic: ``panoptic`` (H, W), class + 1000 * instance of each pixel, -1 for no segment.
            With ``sizes``, masks and ``panoptic`` have these sizes, and boxes are in their px.
            Classification: ``scores`` (classes,).
        """

    def logits(self, images: list[np.ndarray]) -> Tensor:
        """Segment.

        Args:
            images: As for :meth:`Predictor.predict`.

        Returns:
            Logits (B, C, H, W), float, on any device.
        """

    def to_classes(self, logits: Tensor) -> Tensor:
        """Convert a segmentor's logits (C, h, w) to class indices (h, w)."""


class FromCheckpoint:
    """Base class of classes that take ``cfg`` and ``checkpoint`` by keyword."""

    def __new__(cls, *values: Any, **arguments: Any) -> Any:
        """Refuse positional arguments and unknown keywords."""
        is_config = bool(values) and str(values[0]).endswith('.py')
        check_by_keyword(cls, values, suggested='cfg' if is_config else 'checkpoint')
        check_keywords(cls.__name__, cls, arguments)
        return super().__new__(cls)


class ToolboxPredictor(FromCheckpoint):
    """:class:`Predictor` that runs a model by the inferencer of mmdet, mmseg or mmpretrain.

    :class:`Inferencer` makes one from ``cfg`` and ``checkpoint``.

    Args:
        cfg: Config of the model, or the path of its file; not modified. ``None`` for the config of
            shipped weights or a published model.
        checkpoint: A ``.pth`` or ``.safetensors`` file, an ``https://`` address, or the name of
            shipped weights or a published model.
        device: See :class:`Inferencer`.
        dtype: See :class:`Inferencer`.

    Attributes:
        model (torch.nn.Module): The model of the toolbox, with its weights.
        dtype (str): ``'float32'``, ``'bfloat16'`` or ``'float16'``; ``'auto'`` is resolved.
        dtype_reason (str): Reason for the type that replaces ``'auto'``.
        device (str): Device that the model runs on.

    Raises:
        FileNotFoundError: The checkpoint does not exist.
        ValueError: The checkpoint does not fit the model, or its classes or their order differ from
            ``metainfo`` of the config's test set.
        ImportError: The toolbox is not installed.
    """

    def __init__(
        self,
        *,
        cfg: ConfigInput | None = None,
        checkpoint: str | os.PathLike[str],
        device: str | None = None,
        dtype: str = 'float32',
    ) -> None:
        device = device or get_device()
        check_device(device)
        check_gpu(device)
        self.device = device
        config: Config = resolve_config(_config_of(checkpoint) if cfg is None else cfg)
        self.dtype, self.dtype_reason = choose_dtype(dtype, device)
        toolbox = find_toolbox(config)
        check_model(config)
        self._scope, self.task = toolbox.package, toolbox.task
        file = str(locate_checkpoint(checkpoint))
        self.fingerprint = _digest(config, file)
        config = copy.deepcopy(config)
        classes = config_classes(config)  # before the toolbox changes the config
        self.sizes, self.size_steps = GoodSizes.of(checkpoint), size_steps(config)
        self.to_float32: bool = loads_floats(config)
        self.value_range = _take_range(config)
        _adapt_pipeline(config, keep=('Pad',) if self._scope == 'mmdet' else ())
        # mmpretrain's inferencer keeps the scope of another toolbox.
        init_default_scope(self._scope)
        with _quiet():
            self._inferencer = _build_inferencer(self._scope, config, device)
        self.model: Any = self._inferencer.model
        self.num_things: int | None = None
        if _is_panoptic(self.model):
            self.task, self.num_things = 'panoptic', self.model.num_things_classes
        if self._scope == 'mmseg':
            # The toolbox's own method also takes an argmax, the slowest step here.
            self.model.postprocess_result = _crop_logits
        meta = load_weights(self.model, file, classes=classes)
        warn_of_other_normalisation(self.model, checkpoint)
        metainfo = config.test_dataloader.dataset.get('metainfo')
        named = classes_of(meta) or classes_of(metainfo) or classes
        if not named and self._is_of_data_set(str(checkpoint), config):
            metainfo = dataset_metainfo(config)
            named = classes_of(metainfo)
        self.classes: Sequence[str] | None = named
        with naming_file(file):
            self.palette: Sequence[Sequence[int]] | None = _palette_of(meta, metainfo)
        self.nms_threshold: float | None = nms_threshold(self.model)
        self.align_corners: bool = bool(getattr(self.model, 'align_corners', False))
        self.merge_pixels: int | None = merge_pixels(self.model, self.task)
        if self.dtype != 'float32':
            reduce_precision(self.model, getattr(torch, self.dtype))

    def _is_of_data_set(self, checkpoint: str, config: Config) -> bool:
        """``True`` if weights without class names have the classes of the config's data set.

        This holds for published models, and for ImageNet's 1,000 classes: all packages use the same
        order, and files of timm and transformers do not name them.
        """
        if checkpoint in published_weights():
            return True
        if self.task != 'classification':
            return False
        names = classes_of(dataset_metainfo(config)) or ()
        return len(names) == getattr(self.model.head, 'num_classes', None) == 1000

    def predict(
        self, images: list[np.ndarray], *, sizes: Sequence[tuple[int, int]] | None = None
    ) -> list[dict[str, Any]]:
        """See :class:`Predictor`.

        Args:
            images: As there.
            sizes: (height, width) of each image at which the logits of masks are merged, by a model
                with ``merge_pixels``; ``None`` for the sizes of ``images``.
        """
        samples = self._run(images, sizes)
        if self.task == 'classification':
            return [dict(scores=sample.pred_score.cpu().numpy()) for sample in samples]
        if self.task == 'panoptic':
            return [_segments_of(sample, self.model.num_classes) for sample in samples]
        return [_boxes_of(sample.pred_instances) for sample in samples]

    def logits(self, images: list[np.ndarray]) -> Tensor:
        """See :class:`Predictor`; a model with a single channel returns its probability."""
        return self._run(images)

    def to_classes(self, logits: Tensor) -> Tensor:
        """See :class:`Predictor`."""
        if len(logits) == 1:
            return logits[0] > self.model.decode_head.threshold
        return first_maximum(logits)

    def _run(self, images: list[np.ndarray], sizes: Sequence[tuple[int, int]] | None = None) -> Any:
        (batch,) = self._inferencer.preprocess(images, batch_size=len(images))
        if self._scope == 'mmdet':
            _, batch = batch  # images, then inputs of the model
        if sizes is not None:
            for sample, size in zip(batch['data_samples'], sizes, strict=True):
                sample.set_metainfo(dict(ori_shape=size))
        return self._inferencer.forward(batch)


def nms_threshold(model: Any) -> float | None:
    """Return the IoU threshold of an mmdet detector's NMS; ``None`` for other models."""
    settings = getattr(model, 'test_cfg', None) or {}
    for part in (settings.get('rcnn'), settings):
        nms = part.get('nms') if isinstance(part, Mapping) else None
        found = nms.get('iou_threshold') if isinstance(nms, Mapping) else None
        if isinstance(found, (int, float)):
            return float(found)
    return None


def merge_pixels(model: Any, task: str) -> int | None:
    """Number of pixels up to which a model merges masks at the size of the original image.

    ``None`` for models that are not of mmdet's MaskFormer family.
    """
    fusion = getattr(model, 'panoptic_fusion_head', None)
    if fusion is None:
        return None
    head, best = model.panoptic_head, fusion.test_cfg.get('max_per_image', 100)
    if not isinstance(head, MaskLayers):  # mmdet's models resize the masks of all queries
        return MERGED_VALUES // max(head.num_queries, best)
    return MERGED_VALUES // (SURE_QUERIES if task == 'panoptic' else best)


def _config_of(checkpoint: str | os.PathLike[str]) -> Path:
    named = named_models().get(str(checkpoint))
    if named is None:
        fault = f'{str(checkpoint)!r} is not the name of shipped weights or of a published model'
        advice = similar_names(str(checkpoint))
        raise InputError(f'cfg is needed with checkpoint: {fault}{advice}')
    return named.config_file


def _is_panoptic(model: Any) -> bool:
    """``True`` for models of mmdet's MaskFormer family that predict panoptic segments."""
    fusion = getattr(model, 'panoptic_fusion_head', None)
    return fusion is not None and bool((fusion.test_cfg or {}).get('panoptic_on', True))


def _segments_of(sample: Any, num_classes: int) -> dict[str, np.ndarray]:
    """Return mmdet's panoptic ids, with -1 for "no segment"."""
    found = sample.pred_panoptic_seg.sem_seg[0].cpu().numpy()
    return dict(panoptic=np.where(found == num_classes, -1, found))


def _boxes_of(found: Any) -> dict[str, np.ndarray]:
    """Convert mmdet's predicted instances to arrays."""
    names = dict(boxes='bboxes', scores='scores', labels='labels', masks='masks')
    present = {name: getattr(found, key) for name, key in names.items() if key in found}
    return {name: torch.as_tensor(value).cpu().numpy() for name, value in present.items()}


def _palette_of(meta: Mapping[str, Any], metainfo: Any) -> list[list[int]] | None:
    """Read RGB of each class from ``meta`` of a checkpoint or metainfo of a data set."""
    for source in (meta.get('dataset_meta'), meta, metainfo):
        for key in ('palette', 'PALETTE'):
            palette = source.get(key) if isinstance(source, Mapping) else None
            if palette is None or isinstance(palette, str):  # mmdet writes 'random'
                continue
            if not _are_colours(palette):
                accepted = 'three integers from 0 to 255 for each class'
                raise CheckpointError(f'{key} must have {accepted}, got {palette!r:.80}')
            return np.asarray(palette).tolist()
    return None


def _are_colours(palette: Any) -> bool:
    try:
        values = np.asarray(palette)
    except ValueError:  # lists of different lengths
        return False
    if values.dtype.kind not in 'iu' or values.ndim != 2 or values.shape[1] != 3:
        return False
    return bool((values >= 0).all() and (values <= 255).all())


def _crop_logits(logits: Tensor, samples: Sequence[Any]) -> Tensor:
    """Crop the right and bottom padding of mmseg's data preprocessors from logits (B, C, H, W)."""
    height, width = samples[0].ori_shape
    logits = logits[..., :height, :width].float()
    return logits if logits.shape[1] > 1 else logits.sigmoid()


def first_maximum(logits: Tensor) -> Tensor:
    """Compute ``logits.argmax(0)`` of (C, h, w) several times faster on a CPU."""
    if logits.device.type != 'cpu' or len(logits) > 255 or logits.dtype != torch.float32:
        return logits.argmax(0)
    channels = logits.numpy()
    best, classes = channels[0].copy(), np.zeros(channels.shape[1:], np.uint8)
    for index, channel in enumerate(channels):
        np.maximum(classes, (channel > best).view(np.uint8) * np.uint8(index), out=classes)
        np.maximum(best, channel, out=best)
    return torch.from_numpy(classes)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the toolboxes: optional packages, registries, missing weights (loaded later)."""
    # mmengine's logger keeps the stdout of its first use and caches which levels are disabled.
    # Without these lines it would lose all later messages.
    logger = MMLogger.get_current_instance()
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()), ExitStack() as stack:
        stack.callback(lambda: logger.setLevel(logger.level))
        stack.callback(logging.disable, logging.root.manager.disable)
        logging.disable(logging.WARNING)
        warnings.simplefilter('ignore')
        yield


def _digest(cfg: Config, checkpoint: str) -> str:
    """Identify the model of a config and its weights."""
    unrelated = ('work_dir', 'launcher', 'filename')
    settings = {key: value for key, value in cfg.to_dict().items() if key not in unrelated}
    return hashlib.sha256(f'{settings!r}{sha256_of(checkpoint)}'.encode()).hexdigest()


def _take_range(cfg: Config) -> ValueRange | None:
    """Replace ``LoadRange`` in the test pipeline by ``LoadImageFromFile``; return its range."""
    for step in cfg.get('test_dataloader', {}).get('dataset', {}).get('pipeline', ()):
        if step_name(step) == 'LoadRange':
            arguments = {key: step[key] for key in step if key != 'type'}
            check_keywords("dict(type='LoadRange')", ValueRange, arguments)
            value_range = ValueRange(**arguments)
            step.clear()
            step['type'] = 'LoadImageFromFile'
            return value_range
    return None


def _adapt_pipeline(cfg: Config, keep: Sequence[str] = ()) -> None:
    """Adapt the test pipeline to images that already have the model's input size.

    Steps that load annotations are dropped, and so are steps that set the size, except ``keep``.
    """
    dataset = cfg.get('test_dataloader', {}).get('dataset', {})
    dropped = {*SIZE_ARGUMENTS, 'LoadAnnotations', 'LoadPanopticAnnotations'} - {*keep}
    names, steps = [], []
    for step in dataset.get('pipeline', ()):
        name = step_name(step)
        names.append(name)
        if name == 'LoadImageFromFile':
            # mmseg's inferencer compares this text. Detectors need the scale factor that Resize
            # records.
            steps += [dict(step, type=name), dict(type='mmcv.Resize', scale_factor=1.0)]
        elif name not in dropped:
            steps.append(step)
    if 'LoadImageFromFile' not in names:
        raise InputError(
            f'cfg.test_dataloader.dataset.pipeline must have a LoadImageFromFile, got {names}'
        )
    dataset.pipeline = steps


def _build_inferencer(scope: str, cfg: Config, device: str) -> Any:
    """Build the toolbox's inferencer with random weights; only ``checkpoints`` opens files."""
    apis = import_module(f'{scope}.apis')
    if scope == 'mmpretrain':
        return apis.ImageClassificationInferencer(model=cfg, pretrained=False, device=device)
    kind = apis.MMSegInferencer if scope == 'mmseg' else apis.DetInferencer
    return kind(model=cfg, weights=None, device=device, show_progress=False)


# -- precision


def choose_dtype(dtype: str, device: str | torch.device) -> tuple[str, str]:
    """Replace ``'auto'`` by bfloat16 if the device computes it faster than float32.

    Returns:
        The type, and the reason in words.
    """
    check_choice(DTYPES, dtype=dtype)
    if dtype != 'auto':
        return dtype, 'as given'
    if torch.device(device).type == 'cuda':
        major, minor = torch.cuda.get_device_capability(device)
        faster = 'bfloat16' if major >= 8 else 'float32'
        return faster, f'the GPU has compute capability {major}.{minor}, and 8.0 has it'
    instructions = bfloat16_instructions()
    if torch.device(device).type == 'cpu' and instructions:
        return 'bfloat16', f'the processor has {instructions}'
    return 'float32', 'bfloat16 is slower here: the processor has no fast instructions for it'


def reduce_precision(model: nn.Module, dtype: torch.dtype) -> None:
    """Cast a toolbox's model to half precision, in place: backbone, neck and convolutional heads.

    In EoMT, queries and mask layers are cast too, because they run with the trunk.

    Inputs and outputs of the model stay in float32. These parts also run in float32: normalisation
    by stored statistics, the last layer of a segmentor, EoMT's class layer, other heads
    (transformers, regions, classes), and post-processing (softmax, boxes, NMS).

    Args:
        model: Detector, segmentor or classifier.
        dtype: ``torch.bfloat16`` or ``torch.float16``.
    """
    parts = {name: part for name, part in model.named_children() if _has_weights(part)}
    trunk = [parts.pop(name) for name in ('backbone', 'neck') if name in parts]
    parts.pop('auxiliary_head', None)  # used in training only
    dense = [head for head in parts.values() if _is_convolutional(head)]
    for part in (*trunk, *dense):
        part.to(dtype)
        for module in part.modules():
            if isinstance(module, nn.modules.batchnorm._NormBase):
                module.float()
    trunk[0].register_forward_pre_hook(lambda _, inputs: _cast(inputs, dtype))
    if len(dense) < len(parts):
        trunk[-1].register_forward_hook(_to_float)
    for head in parts.values():
        if isinstance(head, MaskLayers):
            for layers in (head.q, head.mask_head, head.upscale):
                layers.to(dtype)
            head.class_head.register_forward_pre_hook(_to_float)
    for head in dense:
        head.register_forward_pre_hook(lambda _, inputs: _cast(inputs, dtype))
        head.register_forward_hook(_to_float)
        # mmseg calls its heads without running their hooks.
        last = getattr(head, 'conv_seg', None)
        if isinstance(last, nn.Module):
            last.float().register_forward_pre_hook(_to_float)


def _has_weights(part: nn.Module) -> bool:
    return next(part.parameters(), None) is not None


def _is_convolutional(head: nn.Module) -> bool:
    names = {cls.__name__ for cls in type(head).__mro__}
    return bool(names & {'BaseDenseHead', 'BaseDecodeHead'}) and 'MaskFormerHead' not in names


def _to_float(*values: Any) -> Any:
    """Forward hook or pre-hook that casts its last argument, inputs or output, to float32."""
    return _cast(values[-1], torch.float32)


def _cast(values: Any, dtype: torch.dtype) -> Any:
    def cast(x: Any) -> Any:
        return x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x

    return tree_map(cast, values)
