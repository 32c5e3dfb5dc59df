"""Export of trained models to one file that runs without a config: ONNX, torch.export,
AOTInductor.
"""

from .detectors import Detections, TwoStageDetections, graph_of
from .formats import export
from .graphs import ClassMaps, ExportGraph, Features, Scores
from .verification import Comparison, features_of, reference_of, verify
