"""Old path of :mod:`cpvt_backbones.engine.decoded`, for one release."""
