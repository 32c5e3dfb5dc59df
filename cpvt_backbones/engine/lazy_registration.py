"""Names in mmengine's registry of classes that need a toolbox.

The toolboxes take seconds to import, and one that is not used may be missing. Therefore
``import cpvt_backbones`` registers a function under each name. When a config is built, it imports
the module of the class, which takes the function's place.
"""

from collections.abc import Callable
from typing import Any

from mmengine.registry import MODELS


def _import_preprocessors() -> None:
    from . import preprocessors  # noqa: F401


def _import_distillation() -> None:
    from . import distillation  # noqa: F401


def _import_detr() -> None:
    from . import detr  # noqa: F401


CLASSES: dict[str, tuple[Callable[[], None], str]] = {
    'ValidSizesDetDataPreprocessor': (_import_preprocessors, 'mmdet'),
    'ValidSizesSegDataPreProcessor': (_import_preprocessors, 'mmseg'),
    'ValidSizesClsDataPreprocessor': (_import_preprocessors, 'mmpretrain'),
    'DistillationHead': (_import_distillation, 'mmpretrain'),
    'HardDistillation': (_import_distillation, 'mmpretrain'),
    'DETRWithPEG': (_import_detr, 'mmdet'),
}
"""Name in a config to what imports its module, and the toolbox that it needs."""


def defer() -> None:
    """Register a function for each class whose module was not imported yet."""
    for name in CLASSES.keys() - MODELS.module_dict.keys():
        MODELS.register_module(name=name, module=_builder(name))


def _builder(name: str) -> Callable[..., Any]:
    import_module, toolbox = CLASSES[name]

    def build(**options: Any) -> Any:
        try:
            import_module()
        except ImportError as error:
            raise ImportError(f'{name} needs {toolbox}: {error}') from error
        cls = MODELS.module_dict[name]
        if cls is build:  # the module leaves out the classes of a missing toolbox
            raise ImportError(f'{name} needs {toolbox}, which is not installed')
        return cls(**options)

    return build
