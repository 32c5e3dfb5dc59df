"""Export of trained models to one file that runs without a config: ONNX, torch.export, AOTInductor."""

from .formats import export
from .graphs import ClassMaps, Detections, ExportGraph, Features, Scores, graph_of
from .verification import Comparison, features_of, reference_of, verify
