"""Models as graphs from a batch of images to plain tensors, without data-dependent shapes.

A graph works for every batch size and image size, so no code here may branch on a size.
"""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from cpvt_backbones.backbones.base import Backbone
from cpvt_backbones.checkpoints import Normalisation, model_normalisation
from cpvt_backbones.errors import InputError
from cpvt_backbones.layers import pad_to_multiple


class Preprocess(nn.Module):
    """A toolbox's data preprocessor at test time: normalisation, then padding.

    ``mean`` and ``std`` have one value per channel, in the order after ``flip_channels`` is applied
    to BGR. The right and the bottom are padded with ``pad_value`` to a multiple of ``divisor``.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        *,
        mean: Sequence[float] = (0.0,),
        std: Sequence[float] = (1.0,),
        flip_channels: bool = False,
        divisor: int = 1,
        pad_value: float = 0.0,
    ) -> None:
        super().__init__()
        self.register_buffer('mean', torch.tensor(mean).view(-1, 1, 1))
        self.register_buffer('std', torch.tensor(std).view(-1, 1, 1))
        self.flip_channels, self.divisor, self.pad_value = flip_channels, divisor, pad_value

    @classmethod
    def of(cls, preprocessor: Any) -> 'Preprocess':
        """Build from the data preprocessor of a toolbox's model.

        Raises:
            ValueError: The preprocessor sets a fixed size.
        """
        settings = vars(preprocessor)
        test_cfg = settings.get('test_cfg') or {}
        if test_cfg.get('size') is not None:
            raise InputError(
                f'data_preprocessor.test_cfg must not set a size, got {test_cfg["size"]!r}'
            )
        if 'test_cfg' in settings:  # mmseg pads to its size_divisor only in training
            divisor = test_cfg.get('size_divisor')
        else:
            divisor = settings.get('pad_size_divisor')
        found = model_normalisation(preprocessor) or Normalisation((0.0,), (1.0,), rgb=False)
        return cls(
            mean=found.mean,
            std=found.std,
            flip_channels=found.rgb,
            divisor=divisor or 1,
            pad_value=float(settings.get('pad_val', settings.get('pad_value', 0))),
        )

    def normalise(self, pixels: Tensor) -> Tensor:
        """Normalise (B, C, H, W) pixels of any type to float32."""
        if self.flip_channels:
            pixels = pixels.flip(1)
        return (pixels.float() - self.mean) / self.std

    def pad(self, images: Tensor) -> Tensor:
        """Pad (B, C, H, W) to (B, C, H', W')."""
        if self.divisor == 1:
            return images
        return pad_to_multiple(images, self.divisor, value=self.pad_value)


class ExportGraph(nn.Module):
    """Base class of the graphs that :func:`export` writes; :func:`graph_of` chooses the right one.

    A graph is a copy of a model in evaluation mode, fused. It takes a batch of images of any size
    and returns a tuple of tensors.

    Args:
        model: The model; not changed.
        preprocess: Normalisation and padding of the toolbox; ``None`` for none.
        pixels: Include normalisation. The graph then takes uint8 images (B, in_channels, H, W);
            three channels are BGR, as OpenCV reads them. Otherwise it takes normalised float32
            images.

    Attributes:
        task: ``'features'``, ``'classification'``, ``'segmentation'`` or ``'detection'``.
        output_names: Names of the outputs, in their order.
        in_channels: Number of channels of the images.
    """

    task: ClassVar[str]
    output_names: tuple[str, ...]

    def __init__(
        self, model: nn.Module, *, preprocess: Preprocess | None = None, pixels: bool = False
    ) -> None:
        super().__init__()
        # Frozen, because the attention kernel must not depend on requires_grad.
        self.model: Any = deepcopy(model).eval().requires_grad_(False)
        self.preprocess = (preprocess or Preprocess()).to(next(model.parameters()).device)
        self.pixels = pixels
        self.in_channels: int = 3  # for other backbones
        if isinstance(model, Backbone):
            self.model = model.fuse()
            self.in_channels = model.in_channels
        elif isinstance(backbone := getattr(model, 'backbone', None), Backbone):
            self.model.backbone = backbone.fuse()
            self.in_channels = backbone.in_channels

    @property
    def settings(self) -> dict[str, Any]:
        """Plain data needed to run the file: task, input, outputs, channels, mean and std."""
        return dict(
            task=self.task,
            input='pixels' if self.pixels else 'normalised',
            in_channels=self.in_channels,
            mean=self.preprocess.mean.flatten().tolist(),
            std=self.preprocess.std.flatten().tolist(),
            flip_channels=self.preprocess.flip_channels,
            outputs=list(self.output_names),
        )

    def example(self, *, batch: int, height: int, width: int) -> Tensor:
        """Return random images of the graph's type, (batch, in_channels, height, width)."""
        shape = batch, self.in_channels, height, width
        device = self.preprocess.mean.device
        images = torch.randint(0, 256, shape, dtype=torch.uint8, device=device)
        return images if self.pixels else self.preprocess.normalise(images)

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Compute the outputs, in the order of ``output_names``; images are (B, C, H, W)."""
        inputs = self.preprocess.normalise(images) if self.pixels else images
        return self.outputs(
            self.preprocess.pad(inputs), height=images.shape[2], width=images.shape[3]
        )

    def outputs(self, inputs: Tensor, *, height: int, width: int) -> tuple[Tensor, ...]:
        """Compute the outputs from normalised, padded inputs.

        Args:
            inputs: (B, in_channels, H', W').
            height: H of the images before padding, px.
            width: W of the images before padding, px.
        """
        raise NotImplementedError


class Features(ExportGraph):
    """Graph of a backbone of this package.

    The outputs ``features_0``, ``features_1``, ... are those of ``out_indices``.

    Raises:
        ValueError: The model is not a backbone of this package, or it outputs pairs.
    """

    task = 'features'

    def __init__(self, model: nn.Module, **options: Any) -> None:
        super().__init__(model, **options)
        if not isinstance(model, Backbone):
            raise InputError(
                f'model must be a backbone of this package, got {type(model).__name__}'
            )
        gives_pairs = model.out_type == 'with_cls_token' or (
            model.dist_token is not None and model.out_type == 'cls_token'
        )
        if gives_pairs:
            raise InputError(
                'out_type must give one tensor per output, a map without the class token or a'
                f' class token without a distillation token, got {model.out_type!r}'
            )
        self.output_names = tuple(f'features_{i}' for i in range(len(model.out_strides)))

    @property
    def settings(self) -> dict[str, Any]:
        return super().settings | dict(
            strides=list(self.model.out_strides),
            channels=list(self.model.out_channels),
            out_type=self.model.out_type,
        )

    def outputs(self, inputs: Tensor, *, height: int, width: int) -> tuple[Tensor, ...]:
        return self.model(inputs)


class Scores(ExportGraph):
    """Graph of an image classifier of mmpretrain; the output is ``scores`` (B, classes).

    Scores are those after softmax.

    Raises:
        ValueError: The head predicts several classes per image.
    """

    task = 'classification'
    output_names = ('scores',)

    def __init__(self, model: nn.Module, **options: Any) -> None:
        from mmpretrain.models import MultiLabelClsHead

        super().__init__(model, **options)
        if isinstance(head := self.model.head, MultiLabelClsHead):
            raise InputError(
                f'model.head must give an image one class, by softmax, got {type(head).__name__}'
            )

    def outputs(self, inputs: Tensor, *, height: int, width: int) -> tuple[Tensor, ...]:
        return (self.model(inputs, mode='tensor').softmax(dim=1),)


class ClassMaps(ExportGraph):
    """Graph of a segmentor of mmsegmentation (``EncoderDecoder``).

    The output is ``class_map`` (B, H, W; int64), or ``logits`` (B, C, H, W).

    Args:
        model: The segmentor.
        logits: Output logits instead of classes.
        options: The other arguments of :class:`ExportGraph`.

    Raises:
        ValueError: The test mode of the model is a sliding window.
    """

    task = 'segmentation'

    def __init__(self, model: nn.Module, *, logits: bool = False, **options: Any) -> None:
        super().__init__(model, **options)
        if (mode := self.model.test_cfg.get('mode', 'whole')) != 'whole':
            raise InputError(
                f"model.test_cfg.mode must be 'whole', got {mode!r}: export with --cfg-options"
                ' model.test_cfg.mode=whole, and cut tiles outside the file (infer.py --tile-size)'
            )
        self.logits = logits
        self.output_names = ('logits',) if logits else ('class_map',)
        _replace_resizing(self.model)

    @property
    def settings(self) -> dict[str, Any]:
        settings = super().settings | dict(
            num_channels=self.model.out_channels, align_corners=bool(self.model.align_corners)
        )
        if self.model.out_channels == 1:
            settings['threshold'] = self.model.decode_head.threshold
        return settings

    def outputs(self, inputs: Tensor, *, height: int, width: int) -> tuple[Tensor, ...]:
        size = inputs.shape[2:]
        logits = self.model.encode_decode(inputs, [dict(img_shape=size, pad_shape=size)])
        logits = logits.narrow(2, 0, height).narrow(3, 0, width)
        single = self.model.out_channels == 1
        if single:
            logits = logits.sigmoid()  # like mmseg
        if self.logits:
            return (logits,)
        if single:
            return ((logits[:, 0] > self.model.decode_head.threshold).long(),)
        return (logits.argmax(dim=1),)


class _AdaptivePool(nn.Module):
    """``nn.AdaptiveAvgPool2d`` for maps of any size in one graph, by two averaging matrices."""

    def __init__(self, cells: int) -> None:
        super().__init__()
        self.cells = torch.arange(cells)

    def means(self, length: int, like: Tensor) -> Tensor:
        """Return the averaging matrix (cells, length), whose rows hold the weights of a cell."""
        cells = self.cells[:, None].to(like.device)
        position = torch.arange(length, device=like.device)
        count = len(self.cells)
        first = cells * length // count
        end = ((cells + 1) * length + count - 1) // count
        inside = (position >= first) & (position < end)
        return inside.to(like) / inside.sum(dim=1, keepdim=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.means(x.shape[2], x) @ x @ self.means(x.shape[3], x).mT


def _replace_resizing(model: nn.Module) -> None:
    """Replace modules that compute sizes in Python, which the graph would store as constants."""
    from mmseg.models.utils import Upsample

    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, Upsample) and child.scale_factor:
                size = dict(mode=child.mode, align_corners=child.align_corners)
                setattr(module, name, nn.Upsample(scale_factor=child.scale_factor, **size))
            if isinstance(child, nn.AdaptiveAvgPool2d) and isinstance(child.output_size, int):
                setattr(module, name, _AdaptivePool(child.output_size))
