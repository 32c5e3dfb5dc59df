"""Export of trained models to one file that runs without a config.

``graphs``, ``detectors`` and ``masks`` rewrite a model for any size. ``formats`` writes ONNX,
torch.export and AOTInductor, and ``int8`` writes int8 copies. ``metadata`` reads and checks a
file's metadata, ``exported`` runs a file, and ``verification`` compares it with the model.
"""

from .detectors import Detections, TwoStageDetections, graph_of
from .exported import ExportedModel
from .formats import export
from .graphs import ClassMaps, ExportGraph, Features, Scores
from .masks import MaskQueries
from .verification import Comparison, features_of, finds_something, reference_of, verify
