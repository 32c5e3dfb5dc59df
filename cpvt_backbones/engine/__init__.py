"""Training with mmengine: checkpoint hooks, averaged weights, layer-wise learning rates, data
preprocessors, sharding, images of more than 8 bits.

``import cpvt_backbones`` registers what needs no toolbox. The data preprocessors,
:class:`DistillationHead`, :class:`HardDistillation`, :class:`DecodedDataset`,
:class:`BatchRandomResizedCrop` and :class:`DETRWithPEG` need one. A config imports their modules by
``custom_imports``; the entries below show how. Configs that import them ship with the package.
"""

from .averaging import WarmupEMAHook
from .by_size import PredictBySizeHook, predict_by_size
from .durable import DurableCheckpointHook
from .layer_decay import LayerDecayOptimWrapperConstructor
from .loading import LoadRange
from .sharding import ResumableFSDPStrategy, wrap_blocks
from .training_checks import NotFiniteError, TrainingCheckHook
from .valid_sizes import ValidSizes
