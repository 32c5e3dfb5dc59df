"""Backbones, registered under their names for configs of mmdet, mmsegmentation and mmpretrain.

They take images of any size. :class:`PyramidCPVT` and :class:`MultiScaleCPVT` return feature maps
of strides 4, 8, 16 and 32, :class:`CPVT` one map or a vector. Two attributes of a model say what it
returns: :attr:`Backbone.out_channels` is ``in_channels`` of the neck in a config, and
:attr:`Backbone.out_strides` are the strides. With the default arguments they are:

| backbone | ``arch`` | depth | heads | ``embed_dims`` | ``out_channels`` |
| --- | --- | --- | --- | --- | --- |
| ``PyramidCPVT`` | tiny | 2, 2, 2, 2 | 1, 2, 5, 8 | 64, 128, 320, 512 | 64, 128, 320, 512 |
| ``PyramidCPVT`` | small | 3, 4, 6, 3 | 1, 2, 5, 8 | 64, 128, 320, 512 | 64, 128, 320, 512 |
| ``PyramidCPVT`` | base | 3, 4, 18, 3 | 1, 2, 5, 8 | 64, 128, 320, 512 | 64, 128, 320, 512 |
| ``PyramidCPVT`` | large | 3, 8, 27, 3 | 1, 2, 5, 8 | 64, 128, 320, 512 | 64, 128, 320, 512 |
| ``MultiScaleCPVT`` | tiny | 12 | 3 | 192 | 48, 96, 192, 192 |
| ``MultiScaleCPVT`` | small | 12 | 6 | 384 | 96, 192, 384, 384 |
| ``MultiScaleCPVT`` | base | 12 | 12 | 768 | 192, 384, 768, 768 |
| ``CPVT`` | tiny | 12 | 3 | 192 | 192 |
| ``CPVT`` | small | 12 | 6 | 384 | 384 |
| ``CPVT`` | base | 12 | 12 | 768 | 768 |

| backbone | ``out_indices`` | ``out_strides`` | ``out_indices`` counts | ``frozen_stages`` counts |
| --- | --- | --- | --- | --- |
| ``PyramidCPVT`` | 0, 1, 2, 3 | 4, 8, 16, 32 | stages | stages |
| ``MultiScaleCPVT`` | 0, 1, 2, 3 | 4, 8, 16, 32 | levels of the pyramid | blocks |
| ``CPVT`` | -1 | 16 | blocks | blocks |

Choose outputs with ``out_indices``. For example, the outputs of
``MultiScaleCPVT(arch='tiny', out_indices=(1, 3))`` have 96 and 192 channels. All
backbones share the arguments of :class:`Backbone`; ``MultiScaleCPVT`` has no ``out_type``.

The type ``Position`` in a signature is ``None``, a dict with the ``type`` and arguments of a
position encoding, or a list of such dicts.
"""

from .archs import list_archs
from .base import Backbone
from .cpvt import CPVT
from .multi_scale import MultiScaleCPVT
from .pyramid_cpvt import PyramidCPVT
from .with_peg import build_with_peg
