"""``mmcv._ext`` on torchvision's kernels, for an mmcv that was installed without its compiled
operators.

The finder is asked for ``mmcv._ext`` only when there is no compiled one, and imports neither mmcv
nor torchvision before that.
"""

import importlib.util
import os
import sys
import warnings
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

VARIABLE = 'CPVT_MMCV_OPERATORS'


class OperatorFinder(MetaPathFinder):
    """Finds ``mmcv._ext`` in ``operators.py`` of this folder, unless the environment variable
    refuses it.
    """

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname != 'mmcv._ext':
            return None
        if os.environ.get(VARIABLE) == 'compiled':
            # Not an exception: mmengine asks for this module to learn whether the operators are
            # there.
            warnings.warn(
                f'{VARIABLE}=compiled, and mmcv has no compiled operators',
                RuntimeWarning,
                stacklevel=2,
            )
            return None
        return importlib.util.spec_from_file_location(
            fullname, Path(__file__).with_name('operators.py')
        )


def provide() -> None:
    """Append the finder to ``sys.meta_path``.

    The environment's ``CPVT_MMCV_OPERATORS`` is 'auto' or 'compiled'.
    """
    if (choice := os.environ.get(VARIABLE, 'auto')) not in ('auto', 'compiled'):
        raise ValueError(
            f"environment variable {VARIABLE} must be 'auto' or 'compiled', got {choice!r}"
        )
    if not any(isinstance(finder, OperatorFinder) for finder in sys.meta_path):
        sys.meta_path.append(OperatorFinder())
    for toolbox in ('mmdet', 'mmseg'):
        if f'{toolbox}.models' in sys.modules and 'mmcv.ops' not in sys.modules:
            advice = (
                f'{toolbox} was imported before mmcv had operators and lacks them: import'
                ' cpvt_backbones first'
            )
            warnings.warn(advice, RuntimeWarning, stacklevel=2)
