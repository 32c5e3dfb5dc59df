"""Backbones, registered under their names for configs of mmdet, mmsegmentation and mmpretrain.

They take images of any size. :class:`PyramidCPVT` and :class:`MultiScaleCPVT` return maps of
strides 4, 8, 16 and 32, :class:`CPVT` one map or a vector. The arguments that all of them share are
those of :class:`Backbone`.
"""

from .archs import list_archs
from .base import Backbone
from .cpvt import CPVT
from .multi_scale import MultiScaleCPVT
from .pyramid_cpvt import PyramidCPVT
from .with_peg import build_with_peg
