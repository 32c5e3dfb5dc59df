"""Training with mmengine. The modules, in the order in which a training meets them:

| module | what it does |
| --- | --- |
| ``launch`` | starts a training or a test from a config of any toolbox |
| ``lazy_registration`` | names of classes that need a toolbox, imported when a config is built |
| ``loading`` | reads images of more than 8 bits or other bands, and class maps |
| ``cached_dataset`` | keeps many small images decoded |
| ``seeding`` | random numbers that a training draws again after an interruption |
| ``workers`` | processes that read images: their options, shared memory and signals |
| ``valid_sizes``, ``preprocessors`` | pass the size of each image of a padded batch |
| ``distillation``, ``detr`` | models: a student with a teacher, DETR with PEG |
| ``layer_decay`` | learning rates by the depth of a layer |
| ``fsdp`` | a training split over several GPUs |
| ``class_names`` | classes of data sets, annotations and metrics, compared |
| ``class_recall`` | recall of each class of a classifier |
| ``training_checks`` | what ends a training early: parts that do not fit, NaN |
| ``resume_checks`` | a checkpoint against the training that is to go on from it |
| ``resuming`` | schedule, data, gradients and random numbers of a resumed training |
| ``labels`` | labels that are no class, and ignored objects, before the loss |
| ``averaging`` | a moving average of the weights |
| ``checkpoint_hook`` | saves, resumes, ends on a signal |
| ``curves`` | loss and score as a picture |
| ``prediction_by_size`` | predictions that do not depend on the other images of a batch |
| ``saving`` | checkpoints that are complete or not there |
| ``runner`` | mmengine's runners with exact resume, durable saves, prediction by size |
| ``mmcv_operators`` | mmcv's operators on torchvision's, where mmcv has none compiled |

``import cpvt_backbones`` registers all of it but :class:`DecodedDataset` and
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
