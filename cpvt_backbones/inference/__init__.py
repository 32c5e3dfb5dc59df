"""Prediction on images of any size. An image's way to boxes on disk:

1. ``images``: find the files; read one, upright, (H, W, 3), uint8, BGR.
2. ``windows``: or open one that is larger than memory.
3. ``sizes``: the size at which the model sees it.
4. ``tiles``: cut an image larger than one forward call; later blend class maps, merge boxes.
5. ``predictors``: run the model on a batch, by its toolbox.
6. ``predictions``: its output as plain data, in px of the image.
7. ``drawing``: a picture of it.
8. ``inferencer``: does 1 to 7, in threads and in bounded memory, for any number of images.
9. ``outputs``: the files: a line of records.jsonl and a picture for each image, predictions.json at
   the end.
10. ``folders``: a run on a folder: which images are left, locks, shards.
"""

from .folders import Summary, merge_shards, predict_to_folder
from .images import IMAGE_SUFFIXES, ImageError, find_images, image_size, read_image
from .inferencer import Inferencer, Result
from .predictors import Predictor, ToolboxPredictor
from .sizes import GoodSizes
