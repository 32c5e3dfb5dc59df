"""Checkpoints of this and other packages: find, open safely, recognise, convert, load, write.

Loading has five steps:

1. Locate: a name, address or folder becomes the path of a file (:func:`locate_checkpoint`).
2. Read: the file becomes tensors and plain data (:func:`read_checkpoint`). Nothing in it is run.
3. Recognise: the names of the tensors tell the package that wrote them, and the architecture.
4. Convert: the tensors get the names and shapes of a model (:func:`convert_state_dict`).
5. Load: :func:`load_checkpoint` does all of this for a backbone. :func:`load_weights` loads a whole
   detector, segmentor or classifier from its own weights.

:func:`export_state_dict` renames weights for other packages.

The modules: ``reading`` has steps 1 and 2 and knows no model. ``conversion`` has steps 3 and 4 and
opens no file. ``described`` reads what a name or a ``config.json`` says of the model, and
``classes`` what it was trained for. ``mmengine_loader`` reads for mmengine and
checks what mmengine loads.
"""

from .classes import classes_of
from .conversion.architecture import Architecture
from .conversion.convert import convert_state_dict
from .conversion.exporting import TARGETS, export_state_dict
from .conversion.families import SOURCES
from .conversion.public import public_backbone
from .described import named_backbone, recognise_backbone, stored_config, trained_backbone
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
from .reading.sources import similar_timm_names
from .reading.writing import (
    atomic_write,
    check_destination,
    flush_to_disk,
    lock_file,
    write_checkpoint,
)
from .report import CheckpointError, ConversionReport
