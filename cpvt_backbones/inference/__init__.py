"""Prediction on images of any size.

:class:`Inferencer` runs a trained model on one image or many; :func:`read_config` reads its config.
:func:`predict_to_folder` writes predictions and pictures to a folder.

| type in a signature | value |
| --- | --- |
| ``ConfigInput`` | path of a config file, or the result of :func:`read_config` |
| ``ImageInput`` | path of an image file, or an array that :func:`read_image` takes |
| ``Prediction`` | dict; ``seg_map`` is an array or a path, see :class:`Inferencer` |
| ``Scale`` | ``scale`` of :class:`Inferencer` |
| ``Shard`` | (i, n): shard i, from 0, of n |
| ``OnTiles`` | function of two numbers: the finished tiles and all tiles of an image |
| ``Then`` | function of the index and the :class:`Result` of an image |

The modules, in the order in which they work on an image that :mod:`.images` found and opened:

1. ``sizes`` resizes the image to the size at which the model sees it.
2. ``tiles`` cuts an image that is too large for one forward call, and later blends its class maps
   and merges its boxes.
3. ``predictors`` runs the model on a batch through its toolbox.
4. ``predictions`` turns the output into plain data, in px of the image.
5. ``drawing`` draws the prediction on the image.
6. ``inferencer`` does 1 to 5 for any number of images, in threads and bounded memory.
7. ``outputs`` writes the files: a line of ``records.jsonl`` and a picture for each image, and
   ``predictions.json`` at the end.
8. ``folders`` runs a whole folder: remaining images, locks, shards.
"""

from cpvt_backbones.images import (
    IMAGE_SUFFIXES,
    ImageError,
    ImageInput,
    ValueRange,
    find_images,
    image_size,
    read_image,
    search_images,
)
from cpvt_backbones.toolboxes import read_config

from .folders import Summary, merge_shards, predict_to_folder
from .inferencer import Inferencer, Result
from .predictors import Predictor, ToolboxPredictor, reduce_precision
from .sizes import GoodSizes, Scale
