"""Prediction at any resolution."""

from .exported import EXPORTED_SUFFIXES, ExportedModel
from .inferencer import Inferencer, Result
from .predictors import Predictor, ToolboxPredictor
from .reading import ImageError, read_image
from .sources import IMAGE_SUFFIXES, find_images
from .writing import Summary, predict_to_folder

__all__ = [
    'EXPORTED_SUFFIXES',
    'IMAGE_SUFFIXES',
    'ExportedModel',
    'ImageError',
    'Inferencer',
    'Predictor',
    'Result',
    'Summary',
    'ToolboxPredictor',
    'find_images',
    'predict_to_folder',
    'read_image',
]
