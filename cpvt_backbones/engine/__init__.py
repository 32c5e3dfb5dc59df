"""Training with mmengine: layer-wise rates, repeatable resuming, predictions by image size, configs by name.

:mod:`.preprocessors` and :mod:`.distillation` import the toolboxes; a config that uses them lists them in
``custom_imports``.
"""

from typing import TYPE_CHECKING

from cpvt_backbones.lazy import lazy_names

if TYPE_CHECKING:
    from .durable import DurableCheckpointHook
    from .epoch_seed import EpochSeedHook
    from .layer_decay import LayerDecayOptimWrapperConstructor
    from .predict_by_size import PredictBySizeHook, predict_by_size
    from .sharding import ResumableFSDPStrategy, wrap_blocks

__all__ = [
    'DurableCheckpointHook',
    'EpochSeedHook',
    'LayerDecayOptimWrapperConstructor',
    'PredictBySizeHook',
    'ResumableFSDPStrategy',
    'predict_by_size',
    'wrap_blocks',
]

__getattr__ = lazy_names(__name__, dict.fromkeys(__all__, 'registered'))
