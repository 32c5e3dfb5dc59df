"""Old path of :mod:`cpvt_backbones.engine.distillation`, for one release."""

from cpvt_backbones.engine.config_scope import module_moved

module_moved(__name__, 'cpvt_backbones.engine.distillation')
