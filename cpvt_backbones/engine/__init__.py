"""Training with mmengine: checkpoint hooks, averaged weights, layer-wise learning rates, data
preprocessors, sharding, images of more than 8 bits.

``import cpvt_backbones`` registers all of it but :class:`DecodedDataset` and
:class:`BatchRandomResizedCrop`. A config imports their module by ``custom_imports``; their entries
below show how. The data preprocessors, :class:`DistillationHead`, :class:`HardDistillation` and
:class:`DETRWithPEG` need a toolbox, which is imported when a config with them is built.
"""

from .averaging import WarmupEMAHook
from .by_size import PredictBySizeHook, predict_by_size
from .deferred import defer
from .durable import DurableCheckpointHook
from .layer_decay import LayerDecayOptimWrapperConstructor
from .loading import LoadClassMap, LoadRange
from .sharding import ResumableFSDPStrategy, wrap_blocks
from .training_checks import NotFiniteError, TrainingCheckHook
from .valid_sizes import ValidSizes

defer()
