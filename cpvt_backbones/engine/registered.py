"""Everything that mmengine finds by name."""
# ruff: noqa: F401

import cpvt_backbones.backbones
import cpvt_backbones.checkpoints
import cpvt_backbones.engine

from .averaging import WarmupEMAHook
from .durable import DurableCheckpointHook
from .layer_decay import LayerDecayOptimWrapperConstructor
from .predict_by_size import PredictBySizeHook, predict_by_size
from .sharding import ResumableFSDPStrategy, wrap_blocks

# The function, not its module of the same name.
cpvt_backbones.engine.predict_by_size = predict_by_size  # type: ignore[assignment]
