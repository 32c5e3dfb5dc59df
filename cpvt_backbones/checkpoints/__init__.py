"""Checkpoints of this and other packages. The way of a file of weights into a model, by its verbs:

=========  ====================================  ===============================================
locate     a name, address or folder: its file   ``reading.files``, ``reading.sources``
read       a file: plain data and tensors        ``reading.files``, ``.unpickle``, ``.opcodes``
recognise  tensors: whose names they have        ``conversion.families``, ``.architecture``
convert    tensors: a model's names and shapes   ``conversion.convert``, ``.renaming``, ``.fitting``
load       all of these, into a model            ``loading``
=========  ====================================  ===============================================

``reading`` runs nothing that is in a file, and knows no model. ``conversion`` opens no file: it
knows names and shapes, and gives weights the names of other packages, too (``exporting``).
``described`` has what a name or a ``config.json`` says of the weights' model, ``classes`` what they
were trained for. ``mmengine_loader`` reads for mmengine.
"""

from .classes import classes_of
from .conversion.architecture import Architecture
from .conversion.convert import convert_state_dict
from .conversion.exporting import TARGETS, export_state_dict
from .conversion.families import SOURCES
from .conversion.public import public_backbone
from .described import named_backbone, recognise_backbone, stored_config
from .loading import (
    check_loaded,
    load_checkpoint,
    load_weights,
    naming_file,
    unwrap,
    weights_in,
)
from .reading.files import (
    INTERRUPTED,
    POINTER,
    locate_checkpoint,
    newest_checkpoint,
    read_checkpoint,
)
from .reading.json_files import parse_json, read_json
from .reading.writing import (
    atomic_write,
    check_destination,
    flush_to_disk,
    lock_file,
    write_checkpoint,
)
from .report import CheckpointError, ConversionReport
