"""Training with mmengine: layer-wise rates, repeatable resuming, averaged weights, predictions by
image size, sharding, images of more than 8 bits.

:mod:`.preprocessors`, :mod:`.distillation`, :mod:`.decoded` and :mod:`.detr` import toolboxes;
configs name them in ``custom_imports``. The configs that do are installed with the package, and so
are these modules.
"""

from .averaging import WarmupEMAHook
from .by_size import PredictBySizeHook, predict_by_size
from .durable import DurableCheckpointHook
from .layer_decay import LayerDecayOptimWrapperConstructor
from .loading import LoadRange
from .sharding import ResumableFSDPStrategy, wrap_blocks
from .valid_sizes import ValidSizes
