"""Backbones, registered under their names for configs of mmdet, mmsegmentation and mmpretrain.

They take images of any size. :class:`PyramidCPVT` and :class:`MultiScaleCPVT` return feature maps
of strides 4, 8, 16 and 32. :class:`CPVT` is a plain ViT and returns one map or a vector. A neck
takes :attr:`Backbone.out_channels` as ``in_channels``; :attr:`Backbone.out_strides` are the
strides of the maps. The default arguments give:

| backbone | ``arch`` | parameters, M | ``out_channels`` |
| --- | --- | --- | --- |
| ``PyramidCPVT`` | tiny | 12.3 | 64, 128, 320, 512 |
| ``PyramidCPVT`` | small | 23.6 | 64, 128, 320, 512 |
| ``PyramidCPVT`` | base | 43.3 | 64, 128, 320, 512 |
| ``PyramidCPVT`` | large | 60.5 | 64, 128, 320, 512 |
| ``PyramidCPVT`` | svt_small | 23.5 | 64, 128, 256, 512 |
| ``PyramidCPVT`` | svt_base | 55.3 | 96, 192, 384, 768 |
| ``PyramidCPVT`` | svt_large | 98.2 | 128, 256, 512, 1024 |
| ``PyramidCPVT`` | pvtv2_b0 | 3.4 | 32, 64, 160, 256 |
| ``PyramidCPVT`` | pvtv2_b1 | 13.5 | 64, 128, 320, 512 |
| ``PyramidCPVT`` | pvtv2_b2 | 24.9 | 64, 128, 320, 512 |
| ``PyramidCPVT`` | pvtv2_b3 | 44.7 | 64, 128, 320, 512 |
| ``PyramidCPVT`` | pvtv2_b4 | 62.1 | 64, 128, 320, 512 |
| ``PyramidCPVT`` | pvtv2_b5 | 81.5 | 64, 128, 320, 512 |
| ``MultiScaleCPVT`` | tiny | 5.7 | 48, 96, 192, 192 |
| ``MultiScaleCPVT`` | small | 22.3 | 96, 192, 384, 384 |
| ``MultiScaleCPVT`` | base | 88.3 | 192, 384, 768, 768 |
| ``CPVT`` | tiny | 5.5 | 192 |
| ``CPVT`` | small | 21.6 | 384 |
| ``CPVT`` | base | 85.7 | 768 |

| backbone | ``out_indices`` | ``out_strides`` | ``out_indices`` counts | ``frozen_stages`` counts |
| --- | --- | --- | --- | --- |
| ``PyramidCPVT`` | 0, 1, 2, 3 | 4, 8, 16, 32 | stages | stages |
| ``MultiScaleCPVT`` | 0, 1, 2, 3 | 4, 8, 16, 32 | levels of the pyramid | blocks |
| ``CPVT`` | -1 | 16 | blocks | blocks |

``out_indices`` chooses the outputs: those of ``MultiScaleCPVT(arch='tiny', out_indices=(1, 3))``
have 96 and 192 channels. All backbones share the arguments of :class:`Backbone`, but
``MultiScaleCPVT`` has no ``out_type``. Depths, widths and heads are listed below with each class.

| type in a signature | value |
| --- | --- |
| ``Position`` | ``None``, a dict with an encoding's ``type`` and arguments, or a list of dicts |
| ``InitCfg`` | name or file of weights, an initialisation of mmengine as a dict, or a list |
"""

from .announced import announce_sizes, announced_sizes
from .archs import list_archs
from .base import Backbone
from .cpvt import CPVT
from .multi_scale import MultiScaleCPVT
from .pyramid_cpvt import PyramidCPVT
from .queries import Queries
from .simple_pyramid import SimplePyramid
from .with_peg import build_with_peg
