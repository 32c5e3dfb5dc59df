"""mmengine's way to open a checkpoint: ``load_from``, ``resume``, the toolboxes' inferencers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from mmengine.fileio import get_local_path
from mmengine.runner import checkpoint as model_zoo
from torch import Tensor

from .classes import stored_meta
from .loading import weights_in
from .reading.files import read_checkpoint
from .report import CheckpointError

_NAMED: dict[str, Callable[[], dict[str, str]]] = {
    **dict.fromkeys(('modelzoo', 'torchvision'), model_zoo.get_torchvision_models),
    **dict.fromkeys(('open-mmlab', 'openmmlab'), model_zoo.get_external_models),
    'mmcls': model_zoo.get_mmcls_models,
}

# Every scheme of mmengine's, and those of this package. `pavi://`, which is not served, is refused.
SCHEMES = [
    '',
    r'(\S+\:)?s3://',
    r'(\S+\:)?petrel://',
    *(f'{name}://' for name in ('http', 'https', 'pavi', 'timm', 'hf', 'mmpretrain', *_NAMED)),
]


def load_from_cpvt_backbones(filename: str, map_location: Any = None) -> dict[str, Any]:
    """Read a checkpoint by :func:`read_checkpoint`, which runs nothing in it.

    Args:
        filename: As there, or a name of mmengine's, as ``'torchvision://resnet50'``.
        map_location: Ignored; the weights are on the CPU.
    """
    scheme, separator, name = filename.partition('://')
    if separator and scheme.rpartition(':')[2] in ('s3', 'petrel'):
        with get_local_path(filename, backend_args=dict(backend='petrel')) as path:
            return load_from_cpvt_backbones(path)
    if scheme in _NAMED:
        models = _NAMED[scheme]()
        name = model_zoo.get_deprecated_model_names().get(name, name)
        if name not in models:
            raise CheckpointError(f'checkpoint: mmengine knows no model {filename!r}')
        filename = models[name]
        if '://' not in filename:
            filename = str(Path(model_zoo._get_mmengine_home(), filename))
    content = read_checkpoint(filename)
    if all(isinstance(value, Tensor) for value in content.values()):
        # .safetensors, and a state dict alone
        content = dict(state_dict=content, meta=stored_meta({}, filename))
    if scheme == 'mmcls':  # the backbone of a classifier
        return dict(state_dict=weights_in(content, 'backbone.'))
    return content
