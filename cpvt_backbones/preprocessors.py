"""Old path of :mod:`cpvt_backbones.engine.preprocessors`, for one release."""

import warnings

from .engine.preprocessors import PARENTS, ValidSizes, ValidSizesSeg

__all__ = ['PARENTS', 'ValidSizes', 'ValidSizesSeg']

warnings.warn(
    'cpvt_backbones.preprocessors is now cpvt_backbones.engine.preprocessors', DeprecationWarning, stacklevel=2
)
