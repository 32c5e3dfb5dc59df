"""Models that are more than a trunk, and what they train on.

EoMT's queries run through the last blocks of a plain trunk.

| module | what it has |
| --- | --- |
| ``eomt`` | queries, layers and masked attention, in plain PyTorch |
| ``detection`` | :class:`EoMT` for mmdet: instances and panoptic segments |
| ``segmentation`` | :class:`EoMTSegmentor` for mmsegmentation: class maps |
| ``annealing`` | the schedule of masked attention in training |
| ``ignored`` | mmdet's heads and assigners, which leave ignored objects out of the loss |
| ``schedule`` | learning rates that rise in the head first |

``detection``, ``segmentation`` and ``ignored`` need mmdet, ``segmentation`` mmsegmentation, too. A
config needs no import of its own: they are imported when a config with one of their classes is
built.
"""

from .annealing import MaskAnnealingHook
from .eomt import MaskLayers
from .schedule import HeadFirstPolyLR
