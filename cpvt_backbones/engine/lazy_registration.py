"""Registers classes that need a toolbox in mmengine's registry, without importing the toolbox.

Importing a toolbox takes seconds, and an unused one may be missing. So ``import cpvt_backbones``
registers a function under each name. When a config is built, the function imports the module of the
class, which replaces the function.
"""

from collections.abc import Callable
from typing import Any

from mmengine.registry import METRICS, MODELS, TASK_UTILS, Registry


def _import_preprocessors() -> None:
    from . import preprocessors  # noqa: F401


def _import_distillation() -> None:
    from . import distillation  # noqa: F401


def _import_detr() -> None:
    from . import detr  # noqa: F401


def _import_class_recall() -> None:
    from . import class_recall  # noqa: F401


def _import_ignored() -> None:
    from cpvt_backbones.heads import ignored  # noqa: F401


def _import_eomt() -> None:
    from cpvt_backbones.heads import detection  # noqa: F401


def _import_eomt_segmentor() -> None:
    from cpvt_backbones.heads import segmentation  # noqa: F401


CLASSES: dict[str, tuple[Callable[[], None], str]] = {
    'ValidSizesDetDataPreprocessor': (_import_preprocessors, 'mmdet'),
    'ValidSizesSegDataPreProcessor': (_import_preprocessors, 'mmseg'),
    'ValidSizesClsDataPreprocessor': (_import_preprocessors, 'mmpretrain'),
    'DistillationHead': (_import_distillation, 'mmpretrain'),
    'HardDistillation': (_import_distillation, 'mmpretrain'),
    'DETRWithPEG': (_import_detr, 'mmdet'),
    'IgnoreAwareDETRHead': (_import_ignored, 'mmdet'),
    'IgnoreAwareDINOHead': (_import_ignored, 'mmdet'),
    'IgnoreAwareMask2FormerHead': (_import_ignored, 'mmdet'),
    'EoMT': (_import_eomt, 'mmdet'),
    'EoMTHead': (_import_eomt, 'mmdet'),
    'EoMTSegmentor': (_import_eomt_segmentor, 'mmseg'),
    'EoMTSegHead': (_import_eomt_segmentor, 'mmseg'),
}
"""Import function and required toolbox of each model part, by its name in a config."""

ASSIGNERS: dict[str, tuple[Callable[[], None], str]] = {
    'IgnoreAwareMaxIoUAssigner': (_import_ignored, 'mmdet'),
}
"""Like ``CLASSES``, for the registry of assigners."""

EVALUATED: dict[str, tuple[Callable[[], None], str]] = {
    'RecallByClass': (_import_class_recall, 'mmpretrain'),
}
"""Like ``CLASSES``, for the registry of metrics."""


def defer() -> None:
    """Register a function for each class whose module is not imported yet."""
    for registry, classes in ((MODELS, CLASSES), (TASK_UTILS, ASSIGNERS), (METRICS, EVALUATED)):
        for name in classes.keys() - registry.module_dict.keys():
            registry.register_module(name=name, module=_builder(registry, name, *classes[name]))


def _builder(
    registry: Registry, name: str, import_module: Callable[[], None], toolbox: str
) -> Callable[..., Any]:

    def build(**options: Any) -> Any:
        try:
            import_module()
        except ImportError as error:
            raise ImportError(f'{name} needs {toolbox}: {error}') from error
        cls = registry.module_dict[name]
        if cls is build:  # the module omits the classes of a missing toolbox
            raise ImportError(f'{name} needs {toolbox}, which is not installed')
        return cls(**options)

    return build
