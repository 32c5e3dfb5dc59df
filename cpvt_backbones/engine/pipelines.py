"""Steps of the toolboxes' pipelines that determine an image's size."""

import re
from typing import Any

SIZE_ARGUMENTS = {
    'Resize': ('scale', 'scale_factor'),
    'FixScaleResize': ('scale', 'scale_factor'),
    'FixShapeResize': ('width', 'height'),
    'ResizeEdge': ('scale',),
    'ResizeShortestEdge': ('scale', 'max_size'),
    'ResizeToMultiple': (),
    'CenterCrop': ('crop_size',),
    'EfficientNetCenterCrop': ('crop_size', 'crop_padding'),
    'Pad': ('size',),
}
"""Step names of test pipelines, and the arguments of each that are sizes in px or factors."""


def step_name(step: dict[str, Any]) -> str:
    """Name of a step without its scope: ``Resize`` for 'mmcv.Resize', 'torchvision/Resize' and the
    class itself.
    """
    kind = step['type']
    return kind.__name__ if isinstance(kind, type) else re.split(r'[./]', str(kind))[-1]
