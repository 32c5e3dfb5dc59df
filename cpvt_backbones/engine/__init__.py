"""What mmengine lacks: layer-wise rates for any model, and this package's configs by name."""

from .config_scope import register_configs, without_own_scope
from .layer_decay import LayerDecayOptimWrapperConstructor

register_configs()

__all__ = ['LayerDecayOptimWrapperConstructor', 'without_own_scope']
