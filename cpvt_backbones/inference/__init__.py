"""Prediction on images of any size."""

from cpvt_backbones.options import EXPORTED_SUFFIXES

from .exported import ExportedModel
from .folders import Summary, predict_to_folder
from .images import IMAGE_SUFFIXES, ImageError, find_images, image_size, read_image
from .inferencer import Inferencer, Result
from .predictors import Predictor, ToolboxPredictor
from .sizes import GoodSizes
