"""Vision transformer backbones that take any image size, for mmdet, mmsegmentation and mmpretrain.

Importing the package registers its backbones in ``mmengine.registry.MODELS``, its optimizer constructor in
``OPTIM_WRAPPER_CONSTRUCTORS``, and its configs under ``cpvt_backbones::``.
"""

from .backbones import CPVT, MultiScaleCPVT, PyramidCPVT, list_archs
from .checkpoints import convert_state_dict
from .engine import LayerDecayOptimWrapperConstructor
from .layers import PEG
from .version import __version__

__all__ = [
    'CPVT',
    'PEG',
    'LayerDecayOptimWrapperConstructor',
    'MultiScaleCPVT',
    'PyramidCPVT',
    '__version__',
    'convert_state_dict',
    'list_archs',
]
