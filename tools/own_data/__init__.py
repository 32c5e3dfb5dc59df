"""Readers of a user's own data, and the check that they all pass; see tools/make_config.py.

Everything becomes COCO JSON, or images beside class maps or class names. :func:`check` is the one
gate.
"""

from .check import check
from .coco import (
    Coco,
    Part,
    note_unlisted,
    part_of,
    read_coco,
    read_predictions,
    report_left_out,
)
from .files import files_in, must_exist, refuse_links, split, write_json
from .folders import classes_of, read_folders
from .images import any_size
from .instances import read_instances
from .masks import MaskedImages, pair_masks, read_masks, write_class_maps
from .recognise import Form, recognise
from .report import Fault, Report
from .settings import Settings, class_settings, map_settings, object_settings
from .sheet import write_sheet
from .templates import check_out, fields_of, start, work_dir, write_config
from .value_range import choose_range, mean_and_std
from .voc import read_voc
from .weights import read_backbone
from .yolo import read_yolo

__all__ = [
    'Coco',
    'Fault',
    'Form',
    'MaskedImages',
    'Part',
    'Report',
    'Settings',
    'any_size',
    'check',
    'check_out',
    'choose_range',
    'class_settings',
    'classes_of',
    'fields_of',
    'files_in',
    'map_settings',
    'mean_and_std',
    'must_exist',
    'note_unlisted',
    'object_settings',
    'pair_masks',
    'part_of',
    'read_backbone',
    'read_coco',
    'read_folders',
    'read_instances',
    'read_masks',
    'read_predictions',
    'read_voc',
    'read_yolo',
    'recognise',
    'refuse_links',
    'report_left_out',
    'split',
    'start',
    'work_dir',
    'write_class_maps',
    'write_config',
    'write_json',
    'write_sheet',
]
