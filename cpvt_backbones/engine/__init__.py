"""Training with mmengine.

The modules, in the order in which a training uses them:

| module | what it does |
| --- | --- |
| ``launch`` | starts a training or a test from a config of any toolbox |
| ``lazy_registration`` | registers classes that need a toolbox, without importing it |
| ``loading`` | reads class maps, and images of more than 8 bits or other bands |
| ``cached_dataset`` | keeps many small images decoded |
| ``seeding`` | reproduces random numbers after an interruption |
| ``workers`` | processes that read images: their options, shared memory and signals |
| ``valid_sizes``, ``preprocessors`` | pass the size of each image of a padded batch |
| ``distillation``, ``detr`` | models: a student with a teacher, DETR with PEG |
| ``layer_decay`` | learning rates by the depth of a layer |
| ``fsdp`` | sharded training on several GPUs |
| ``class_names`` | compares the classes of data sets, annotations and metrics |
| ``class_recall`` | recall of each class of a classifier |
| ``training_checks`` | end a training early: parts that do not fit, NaN |
| ``schedule_checks`` | warns of a schedule that ends before or after the training |
| ``resume_checks`` | compare a checkpoint with the training to be resumed |
| ``resuming`` | schedule, data, gradients and random numbers of a resumed training |
| ``labels`` | check labels before the loss, and find ignored objects |
| ``averaging`` | moving average of the weights |
| ``checkpoint_hook`` | saves, resumes, ends on a signal |
| ``curves`` | draws loss and score |
| ``prediction_by_size`` | makes predictions independent of other images in a batch |
| ``saving`` | writes checkpoints atomically |
| ``runner`` | mmengine's runners with exact resume, durable saves, prediction by size |
| ``mmcv_operators`` | mmcv's operators from torchvision, if mmcv has no compiled ones |

``import cpvt_backbones`` registers all classes but :class:`DecodedDataset` and
:class:`BatchRandomResizedCrop`. A config imports their module by ``custom_imports``; their entries
below show how. The data preprocessors, :class:`DistillationHead`, :class:`HardDistillation`,
:class:`DETRWithPEG` and :class:`RecallByClass` need a toolbox, which is imported when a config with
them is built.
"""

from .averaging import WarmupEMAHook
from .checkpoint_hook import DurableCheckpointHook
from .fsdp import ResumableFSDPStrategy, wrap_blocks
from .layer_decay import LayerDecayOptimWrapperConstructor
from .lazy_registration import defer
from .loading import LoadClassMap, LoadRange
from .prediction_by_size import predict_by_size
from .runner import ResumableFlexibleRunner, ResumableRunner
from .training_checks import NotFiniteError, TrainingCheckHook
from .valid_sizes import ValidSizes

defer()
