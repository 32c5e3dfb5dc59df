"""Old path of :mod:`cpvt_backbones.engine.distillation`, for one release."""

import warnings

from .engine.distillation import DistillationHead, HardDistillation

__all__ = ['DistillationHead', 'HardDistillation']

warnings.warn('cpvt_backbones.classifiers is now cpvt_backbones.engine.distillation', DeprecationWarning, stacklevel=2)
