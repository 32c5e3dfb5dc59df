"""Training with mmengine: layer-wise rates, repeatable resuming, predictions by image size, configs by name.

:mod:`.preprocessors` and :mod:`.distillation` import the toolboxes; a config that uses them lists them in
``custom_imports``.
"""

from .config_scope import register_configs, without_own_scope
from .durable import DurableCheckpointHook
from .epoch_seed import EpochSeedHook
from .layer_decay import LayerDecayOptimWrapperConstructor
from .predict_by_size import PredictBySizeHook, predict_by_size
from .sharding import ResumableFSDPStrategy, wrap_blocks

register_configs()

__all__ = [
    'DurableCheckpointHook',
    'EpochSeedHook',
    'LayerDecayOptimWrapperConstructor',
    'PredictBySizeHook',
    'ResumableFSDPStrategy',
    'predict_by_size',
    'without_own_scope',
    'wrap_blocks',
]
