"""Reading other people's weights: open safely, recognise, rename, report; and writing them under others' names.

It knows the backbones by their state dicts and asks ``layers`` about PEG and tables. The backbones know it by a name in
mmengine's registry, ``RecognisedPretrained``, when ``init_cfg`` names a checkpoint.
"""

from .convert import convert_state_dict
from .errors import CheckpointError
from .export import TARGETS, export_state_dict
from .init_cfg import RecognisedPretrained, load_checkpoint
from .reading import read_checkpoint
from .report import ConversionReport
from .sources import SOURCES
from .writing import check_destination, write_checkpoint

__all__ = [
    'SOURCES',
    'TARGETS',
    'CheckpointError',
    'ConversionReport',
    'RecognisedPretrained',
    'check_destination',
    'convert_state_dict',
    'export_state_dict',
    'load_checkpoint',
    'read_checkpoint',
    'write_checkpoint',
]
