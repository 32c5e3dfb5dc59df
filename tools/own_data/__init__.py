"""Readers of a user's own data, and the check that they all pass; see tools/make_config.py.

Everything becomes COCO JSON, or images beside class maps or class names. :func:`check` is the one gate.
"""

from .check import check
from .coco import Coco, Part, part_of, read_coco
from .files import files_in, split, write_json
from .masks import named_files, write_masks
from .report import Fault, Report
from .voc import read_voc

__all__ = [
    'Coco',
    'Fault',
    'Part',
    'Report',
    'check',
    'files_in',
    'named_files',
    'part_of',
    'read_coco',
    'read_voc',
    'split',
    'write_json',
    'write_masks',
]
