"""A user's own labels, from files to a config: read, check, decide, write.

Each step is a folder, and hands a value to the next:

=========== ==================================================================================
``read``    One file a format; all give :class:`Part`, images with their labels, as they are.
``check``   Rules: what is used, skipped, altered or refused. :class:`Report` counts it.
``decide``  :class:`Settings`: scale, length, tiles and the backbone of weights.
``write``   JSON, lists, class maps, tiles, a sheet and the config, in one folder.
=========== ==================================================================================

:func:`make_config` takes all steps, for ``cpvt make-config``.
"""

from .dataset import Fault, Part, Report
from .decide.settings import Settings
from .read.recognise import Form, recognise
from .steps import TASKS, Request, make_config
from .write.config import work_dir

__all__ = [
    'TASKS',
    'Fault',
    'Form',
    'Part',
    'Report',
    'Request',
    'Settings',
    'make_config',
    'recognise',
    'work_dir',
]
