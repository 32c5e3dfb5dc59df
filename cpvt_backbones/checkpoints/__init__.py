"""Checkpoints of this and other packages. The way of a file of weights into a model has five verbs:

1. locate: a name, address or folder becomes the path of a file (:func:`locate_checkpoint`;
   ``reading.files``, ``reading.sources``).
2. read: the file becomes tensors and plain data, and nothing in it is run
   (:func:`read_checkpoint`; ``reading.files``, ``.unpickle``, ``.opcodes``).
3. recognise: whose names the tensors have, and of which model they are (``conversion.families``,
   ``.architecture``).
4. convert: they get a model's names and shapes (:func:`convert_state_dict`;
   ``conversion.convert``, ``.renaming``, ``.fitting``).
5. load: all of these, into a backbone (:func:`load_checkpoint`), or a whole model's own weights
   (:func:`load_weights`; ``loading``).

``reading`` knows no model. ``conversion`` opens no file; it gives weights the names of other
packages, too (``exporting``). ``described`` is what a name or a ``config.json`` says of the model,
and ``classes`` what it was trained for. ``mmengine_loader`` reads for
mmengine, and checks what mmengine loads.
"""

from .classes import classes_of
from .conversion.architecture import Architecture
from .conversion.convert import convert_state_dict
from .conversion.exporting import TARGETS, export_state_dict
from .conversion.families import SOURCES
from .conversion.public import public_backbone
from .described import named_backbone, recognise_backbone, stored_config
from .loading import load_checkpoint, load_weights, naming_file, unwrap, weights_in
from .mmengine_loader import check_loaded
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
