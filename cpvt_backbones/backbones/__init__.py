"""Backbones for configs."""

from .archs import list_archs
from .cpvt import CPVT
from .multi_scale import MultiScaleCPVT
from .pyramid_cpvt import PyramidCPVT

__all__ = ['CPVT', 'MultiScaleCPVT', 'PyramidCPVT', 'list_archs']
