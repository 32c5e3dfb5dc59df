"""Checkpoints of this and other packages: find, open safely, recognise, convert, load, write.

| module | content |
| --- | --- |
| ``reading`` | finds and opens files, without knowing models |
| ``conversion`` | recognises, renames, fits and reports weights, without opening files |
| ``loading`` | loads a file into a backbone by the two above |
| ``whole_model`` | loads a whole detector, segmentor or classifier, also of another package |
| ``mmengine_loader`` | reads for mmengine, and checks what mmengine loads |
| ``source_config`` | arguments of a source's model, from its name or ``config.json`` |
| ``normalisation`` | mean and standard deviation of the images of a source |
| ``classes`` | classes that a model was trained for |

:func:`export_state_dict` renames weights for other packages.
"""

from cpvt_backbones.plain import TARGETS

from .classes import classes_of
from .conversion.architecture import Architecture
from .conversion.exporting import export_state_dict
from .conversion.families import SOURCES
from .conversion.public import public_backbone
from .loading import convert_state_dict, load_checkpoint
from .mmengine_loader import check_loaded
from .normalisation import (
    PREPROCESSOR,
    config_normalisation,
    find_normalisation,
    model_normalisation,
    normalisation_meta,
    preprocessor_config,
    warn_of_other_normalisation,
)
from .reading.finding import (
    INTERRUPTED,
    POINTER,
    locate_checkpoint,
    newest_checkpoint,
    read_checkpoint,
)
from .reading.json_files import parse_json, read_json
from .reading.sources import published_of, similar_timm_names
from .reading.writing import (
    atomic_write,
    check_destination,
    flush_to_disk,
    lock_file,
    write_checkpoint,
)
from .report import (
    CheckpointError,
    ConversionReport,
    FetchError,
    Normalisation,
    Reason,
    naming_file,
)
from .source_config import (
    named_backbone,
    recognise_backbone,
    stored_config,
    stored_value,
    trained_model,
)
from .whole_model import load_weights, missing_weights, refuse_missing, unwrap, weights_in
