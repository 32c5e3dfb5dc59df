"""Checkpoints of this and other packages: open files safely, recognise, convert, write.

All checkpoint files are opened by :func:`read_checkpoint`, those that mmengine loads too.
"""

from .architecture import Architecture, read_architecture
from .classes import classes_of
from .convert import convert_state_dict
from .families import SOURCES
from .files import find_checkpoint, newest_checkpoint, read_checkpoint
from .json_files import parse_json, read_json
from .names import TARGETS, export_state_dict
from .pretrained import load_checkpoint, load_weights, naming_file
from .public import public_backbone
from .report import CheckpointError, ConversionReport
from .sources import locate_checkpoint
from .transformers_config import apply_config, is_transformers_config
from .writing import atomic_write, check_destination, write_checkpoint
