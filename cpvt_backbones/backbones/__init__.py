"""Backbones for configs."""

from .archs import list_archs
from .cpvt import CPVT
from .multi_scale import MultiScaleCPVT
from .pyramid_cpvt import PyramidCPVT
from .with_peg import build_with_peg
