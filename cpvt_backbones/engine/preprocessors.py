"""Data preprocessors that pass the size of each image of a padded batch to the backbone.

Importing this module imports the installed toolboxes. A config does not import it, because
:mod:`.lazy_registration` does so when the config is built.
"""

from typing import Any

from mmengine.registry import MODELS

from .valid_sizes import AnyChannels, MixedSizes, Sizes, ValidSizes, with_attributes

try:
    from mmdet.models.data_preprocessors import DetDataPreprocessor
except ImportError:  # mmdet is not installed
    pass
else:

    @MODELS.register_module(force=True)  # replaces the function of .lazy_registration
    class ValidSizesDetDataPreprocessor(AnyChannels, DetDataPreprocessor):
        """mmdet's ``DetDataPreprocessor`` that passes the size of each image to the backbone.

        It announces the sizes (see :class:`ValidSizes`), and the backbone ignores the padding. In
        training, neck and head see padded maps, which are zero outside the images. In validation
        and test, only images of the same size share a forward call, without padding;
        ``pad_size_divisor`` is for training.

        Args:
            mean: Mean of each channel, which is subtracted from the pixels, in their unit (0 to 255
                for 8 bits); any number of channels. ``None`` with ``std=None`` changes no pixel.
            std: Standard deviation of each channel, by which the pixels are divided.
            bgr_to_rgb (bool): Swap red and blue of images that are read as BGR, mmcv's default;
                ``mean`` and ``std`` are then those of RGB. Default: ``False``.
            pad_size_divisor (int): Pad height and width of a training batch to a multiple, in px.
                Default: ``1``.
            pad_value (float): Value of the padding, after normalisation. Default: ``0``.
            pad_mask (bool): Also pad the masks of objects, for instance and panoptic segmentation.
                Default: ``False``.
            pad_seg (bool): Also pad the class maps, for panoptic segmentation. Default: ``False``.
            batch_augments (list[dict] | None): Augmentations of a whole batch, which may pad but
                not resize. Default: ``None``.
            options: Other arguments of ``DetDataPreprocessor``.

        Raises:
            ValueError: ``mean`` and ``std`` differ in length. Or in a batch: the images do not have
                as many channels as ``mean`` has values, ``batch_augments`` resized them, a label is
                outside the classes (training), or sizes differ (validation and test).

        Examples:
            ```python
            custom_imports = dict(imports=['cpvt_backbones'])
            model = dict(
                data_preprocessor=dict(
                    type='ValidSizesDetDataPreprocessor',
                    mean=[123.675, 116.28, 103.53],
                    std=[58.395, 57.12, 57.375],
                    bgr_to_rgb=True,
                    pad_size_divisor=32,
                )
            )
            ```
        """


try:
    from mmseg.models import SegDataPreProcessor
except ImportError:  # mmsegmentation is not installed
    pass
else:

    @MODELS.register_module(force=True)  # replaces the function of .lazy_registration
    class ValidSizesSegDataPreProcessor(AnyChannels, SegDataPreProcessor):
        """mmseg's ``SegDataPreProcessor`` that passes the size of each image to the backbone.

        It announces the sizes (see :class:`ValidSizes`), and the backbone ignores the padding. In
        training, the head sees padded maps, which are zero outside the images.

        In validation and test, only images of the same size share a forward call, whole or in
        windows (``mode='slide'``). A batch for the model's validation and test steps may have
        images of several sizes, which mmsegmentation's class refuses. Set
        ``test_cfg=dict(size_divisor=32)``: mmsegmentation resizes the last maps to the image, and
        with a side that is no multiple of the last stride, their cells reach beyond it and the
        result shifts. The padding counts as part of the image, and the result is cut.

        Args:
            mean: Mean of each channel, which is subtracted from the pixels, in their unit (0 to 255
                for 8 bits); any number of channels. ``None`` with ``std=None`` changes no pixel.
            std: Standard deviation of each channel, by which the pixels are divided.
            bgr_to_rgb (bool): Swap red and blue of images that are read as BGR, mmcv's default;
                ``mean`` and ``std`` are then those of RGB. Default: ``False``.
            size (tuple[int, int] | None): Pad a training batch to this (height, width) in px. Set
                it or ``size_divisor``. Default: ``None``.
            size_divisor (int | None): Pad height and width of a training batch to a multiple, in
                px. Default: ``None``.
            pad_val (float): Value of the padding, after normalisation. Default: ``0``.
            seg_pad_val (int): Label of the padding in class maps, which the loss ignores.
                Default: ``255``.
            batch_augments (list[dict] | None): Augmentations of a whole batch, which must not
                resize. Default: ``None``.
            test_cfg (dict | None): Padding in validation and test, ``dict(size_divisor=...)`` or
                ``dict(size=...)`` in px. Default: ``None``, which pads nothing.
            options: Other arguments of ``SegDataPreProcessor``.

        Raises:
            ValueError: ``mean`` and ``std`` differ in length. Or in a batch: the images do not have
                as many channels as ``mean`` has values, ``batch_augments`` resized them, or a label
                is outside the classes (training).

        Examples:
            ```python
            custom_imports = dict(imports=['cpvt_backbones'])
            model = dict(
                data_preprocessor=dict(
                    type='ValidSizesSegDataPreProcessor',
                    mean=[123.675, 116.28, 103.53],
                    std=[58.395, 57.12, 57.375],
                    bgr_to_rgb=True,
                    size_divisor=32,
                    test_cfg=dict(size_divisor=32),
                )
            )
            ```
        """

        img_shape_means_resized = False  # mmsegmentation also changes it for padding
        test_options = None


try:
    from mmpretrain.models.utils import ClsDataPreprocessor
except ImportError:  # mmpretrain is not installed
    pass
else:

    @MODELS.register_module(force=True)  # replaces the function of .lazy_registration
    class ValidSizesClsDataPreprocessor(ValidSizes, ClsDataPreprocessor):
        """mmpretrain's ``ClsDataPreprocessor`` that passes the size of each image to the backbone.

        It announces the sizes (see :class:`ValidSizes`), and the backbone ignores the padding. In
        validation and test, only images of the same size share a forward call, without padding. All
        arguments are those of ``ClsDataPreprocessor``. If ``batch_augments`` mix images (Mixup,
        CutMix, ResizeMix), the size covers the pixels of both. A custom augmentation of images of
        several sizes gets a further channel; see :class:`MixedSizes`.

        Examples:
            ```python
            custom_imports = dict(imports=['cpvt_backbones'])
            data_preprocessor = dict(
                type='ValidSizesClsDataPreprocessor',
                mean=[123.675, 116.28, 103.53],
                std=[58.395, 57.12, 57.375],
                to_rgb=True,
            )
            ```
        """

        def _preprocess(self, data: Any, training: bool, sizes: Sizes) -> tuple[Any, Sizes]:
            augments = self.batch_augments if training else None
            if augments is None or len(set(sizes)) == 1:
                return super()._preprocess(data, training, sizes)
            mixed = MixedSizes(augments, sizes)
            worker = with_attributes(self, {'batch_augments': mixed})
            result, _ = super(ValidSizesClsDataPreprocessor, worker)._preprocess(
                data, training, sizes
            )
            return result, mixed.sizes
