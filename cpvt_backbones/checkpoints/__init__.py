"""Checkpoints of this and other packages. The way of a file of weights into a backbone:

1. ``sources``: where it is (:func:`locate_checkpoint`); names and addresses are fetched.
2. ``files``: read it without running anything (:func:`read_checkpoint`). ``unpickle`` and
   ``opcodes`` read ``.pth``, ``shards`` the index of several files; ``inert`` removes what mmengine
   would run or delete. Of a work directory the newest checkpoint is read (:func:`find_checkpoint`).
3. ``architecture``, ``transformers_config``, ``public``: the arguments of the backbone, from the
   weights, a ``config.json`` or a published name. ``described``: the last two.
4. ``families``: whose names the weights have. ``renaming``: this package's names for them.
5. ``fitting``: tables of another grid, patch embeddings of another size or number of channels.
6. ``convert``: 4 and 5, and what is missing, dropped or refused (:func:`convert_state_dict`), with
   a ``report``.
7. ``pretrained``: 1 to 6, into a backbone (:func:`load_checkpoint`); or a whole model's own weights
   (:func:`load_weights`), whose ``classes`` must be those of the config.

``loader`` is the same for mmengine, ``exporting`` gives the weights other packages' names, and
``writing`` writes files atomically.
"""

from .architecture import Architecture, read_architecture
from .classes import classes_of
from .convert import convert_state_dict
from .exporting import TARGETS, export_state_dict
from .families import SOURCES
from .files import find_checkpoint, newest_checkpoint, read_checkpoint
from .json_files import parse_json, read_json
from .pretrained import load_checkpoint, load_weights, naming_file
from .public import public_backbone
from .report import CheckpointError, ConversionReport
from .sources import locate_checkpoint
from .transformers_config import apply_config, is_transformers_config
from .writing import atomic_write, check_destination, write_checkpoint
