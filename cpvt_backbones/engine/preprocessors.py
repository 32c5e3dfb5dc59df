"""Data preprocessors that pass the size of each image of a padded batch to the backbone.

Importing this module imports the toolboxes that are installed. A config needs no import of its own:
:mod:`.lazy_registration` does it when the config is built.
"""

from mmengine.registry import MODELS

from .valid_sizes import AnyChannels, ValidSizes

try:
    from mmdet.models.data_preprocessors import DetDataPreprocessor
except ImportError:  # mmdet is not installed
    pass
else:

    @MODELS.register_module(force=True)  # in place of the function of .lazy_registration
    class ValidSizesDetDataPreprocessor(AnyChannels, DetDataPreprocessor):
        """mmdet's ``DetDataPreprocessor``; it passes the size of each image to the backbone.

        The batch gets the attribute ``valid_sizes``, see :class:`ValidSizes`. The backbone then
        ignores the padding. In training, neck and head see padded maps, which are zero outside the
        images. In validation and test, only images of one size share a forward call.

        Args:
            mean: Mean of each channel, subtracted from the pixels: any number of values.
            std: Standard deviation of each channel, by which the pixels are divided.
            options: The other arguments of ``DetDataPreprocessor``. ``batch_augments`` may pad, but
                not resize.

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

    @MODELS.register_module(force=True)  # in place of the function of .lazy_registration
    class ValidSizesSegDataPreProcessor(AnyChannels, SegDataPreProcessor):
        """mmsegmentation's ``SegDataPreProcessor``; it passes the size of each image to the
        backbone.

        The batch gets the attribute ``valid_sizes``, see :class:`ValidSizes`. The backbone then
        ignores the padding. In training, the head sees padded maps, which are zero outside the
        images. In validation and test, only images of one size share a forward call. The batch may
        have images of several sizes, which mmsegmentation's class refuses.

        Args:
            mean: Mean of each channel, subtracted from the pixels: any number of values.
            std: Standard deviation of each channel, by which the pixels are divided.
            options: The other arguments of ``SegDataPreProcessor``. ``batch_augments`` must
                not resize.

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
                )
            )
            ```
        """

        img_shape_means_resized = False  # mmsegmentation changes it for padding too


try:
    from mmpretrain.models.utils import ClsDataPreprocessor
except ImportError:  # mmpretrain is not installed
    pass
else:

    @MODELS.register_module(force=True)  # in place of the function of .lazy_registration
    class ValidSizesClsDataPreprocessor(ValidSizes, ClsDataPreprocessor):
        """mmpretrain's ``ClsDataPreprocessor``; it passes the size of each image to the backbone.

        The batch gets the attribute ``valid_sizes``, see :class:`ValidSizes`. The backbone then
        ignores the padding. In validation and test, only images of one size share a forward call.
        All arguments are those of ``ClsDataPreprocessor``.

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
