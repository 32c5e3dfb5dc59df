"""What mmengine lacks: layer-wise rates for any model, and this package's configs by name."""

from .config_scope import register_configs, without_own_scope
from .layer_decay import LayerDecayOptimWrapperConstructor
from .sharding import ResumableFSDPStrategy, wrap_blocks

register_configs()

__all__ = ['LayerDecayOptimWrapperConstructor', 'ResumableFSDPStrategy', 'without_own_scope', 'wrap_blocks']
