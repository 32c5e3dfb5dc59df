"""From a user's own labels to a config: read, check, decide, write.

Each step is a folder and passes a value to the next:

=========== ==================================================================================
``read``    One file per format; all return :class:`Split`, images with labels as in the files.
``check``   Rules for what is used, skipped, altered or refused; :class:`Report` counts it.
``decide``  :class:`Settings`: scale, length, tiles, and the backbone of the weights.
``write``   JSON, lists, class maps, tiles, a sheet and the config, in one folder.
=========== ==================================================================================

:func:`make_config` runs all steps for ``cpvt make-config``.
"""

from .dataset import Fault, Report, Split
from .decide.settings import Settings
from .read.recognise import Form, recognise
from .steps import TASKS, Request, make_config
from .write.config import work_dir

__all__ = [
    'TASKS',
    'Fault',
    'Form',
    'Report',
    'Split',
    'Request',
    'Settings',
    'make_config',
    'recognise',
    'work_dir',
]
