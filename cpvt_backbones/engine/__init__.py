"""Training with mmengine: layer-wise rates, repeatable resuming, predictions by image size, configs
by name.

:mod:`.preprocessors`, :mod:`.distillation` and :mod:`.detr` import toolboxes; configs name them in
``custom_imports``.
"""

from cpvt_backbones.lazy import lazy_names

__all__ = """
    DurableCheckpointHook LayerDecayOptimWrapperConstructor PredictBySizeHook ResumableFSDPStrategy
    WarmupEMAHook predict_by_size wrap_blocks
""".split()
__getattr__ = lazy_names(__name__, dict.fromkeys(__all__, 'registered'))
