"""Vision transformer backbones that take any image size, for mmdet, mmsegmentation and mmpretrain.

Importing the package registers its backbones in ``mmengine.registry.MODELS``, its optimizer
constructor in ``OPTIM_WRAPPER_CONSTRUCTORS``, and its configs under ``cpvt_backbones::``. torch and
mmengine are imported when they are needed.
"""

from typing import TYPE_CHECKING

from .lazy import lazy_names, register
from .patches import provide_operators
from .version import __version__

if TYPE_CHECKING:
    from .backbones import CPVT, MultiScaleCPVT, PyramidCPVT, list_archs
    from .checkpoints import convert_state_dict
    from .engine.layer_decay import LayerDecayOptimWrapperConstructor
    from .layers import PEG

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

__getattr__ = lazy_names(
    __name__,
    dict.fromkeys(('backbones', 'checkpoints', 'engine', 'layers', 'weights'), '')
    | dict.fromkeys(('CPVT', 'MultiScaleCPVT', 'PyramidCPVT', 'list_archs'), 'backbones')
    | dict(
        PEG='layers', convert_state_dict='checkpoints', LayerDecayOptimWrapperConstructor='engine'
    ),
)
register()
provide_operators()
