"""Names in mmengine's registry of classes that need a toolbox.

The toolboxes take seconds to import, and one that is not used may be missing. Therefore
``import cpvt_backbones`` registers a function under each name. When a config is built, it imports
the module of the class, which takes the function's place.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from mmengine.registry import MODELS

MODULES = {
    'ValidSizesDetDataPreprocessor': ('preprocessors', 'mmdet'),
    'ValidSizesSegDataPreProcessor': ('preprocessors', 'mmseg'),
    'ValidSizesClsDataPreprocessor': ('preprocessors', 'mmpretrain'),
    'DistillationHead': ('distillation', 'mmpretrain'),
    'HardDistillation': ('distillation', 'mmpretrain'),
    'DETRWithPEG': ('detr', 'mmdet'),
}
"""Name in a config to the module of the class in this folder, and the toolbox that it needs."""


def defer() -> None:
    """Register a function for each class whose module was not imported yet."""
    for name in MODULES.keys() - MODELS.module_dict.keys():
        MODELS.register_module(name=name, module=_builder(name))


def _builder(name: str) -> Callable[..., Any]:
    module, toolbox = MODULES[name]

    def build(**options: Any) -> Any:
        try:
            import_module(f'{__package__}.{module}')
        except ImportError as error:
            raise ImportError(f'{name} needs {toolbox}: {error}') from error
        cls = MODELS.module_dict[name]
        if cls is build:  # the module leaves out the classes of a missing toolbox
            raise ImportError(f'{name} needs {toolbox}, which is not installed')
        return cls(**options)

    return build
