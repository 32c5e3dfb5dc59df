"""Vision transformer backbones for images of any size in mmdet, mmsegmentation and mmpretrain.

Importing the package registers its backbones in ``mmengine.registry.MODELS``, its hooks, optimizer
constructor, FSDP strategy and ``LoadRange`` in mmengine's other registries, and its configs under
``cpvt_backbones::``. It imports torch, mmengine and OpenCV, but no toolbox. :mod:`.patches` lists
its changes to other packages.
"""

from . import heads, patches  # noqa: F401  (`heads` registers a hook)
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

patches.apply()
