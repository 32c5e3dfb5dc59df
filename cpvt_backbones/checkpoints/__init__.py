"""Weights of others: open their files safely, recognise, rename and report; write them under others' names.

The package reads and writes checkpoint files here and nowhere else. mmengine's own loader goes through
:func:`read_checkpoint` too, once this package is imported.
"""

from .convert import convert_state_dict
from .families import SOURCES
from .files import atomic_write, check_destination, newest_checkpoint, read_checkpoint, write_checkpoint
from .names import TARGETS, export_state_dict
from .pretrained import RecognisedPretrained, load_checkpoint, load_weights
from .report import CheckpointError, ConversionReport

__all__ = [
    'SOURCES',
    'TARGETS',
    'CheckpointError',
    'ConversionReport',
    'RecognisedPretrained',
    'atomic_write',
    'check_destination',
    'convert_state_dict',
    'export_state_dict',
    'load_checkpoint',
    'load_weights',
    'newest_checkpoint',
    'read_checkpoint',
    'write_checkpoint',
]
