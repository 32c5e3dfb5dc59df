"""Versions, operators, device and weights for issue reports: ``python -m cpvt_backbones``."""

import contextlib
import io
import platform
import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

from cpvt_backbones import __version__
from cpvt_backbones.weights import shipped_weights

PACKAGES = (
    'torch',
    'torchvision',
    'numpy',
    'mmengine',
    'mmcv',
    'mmdet',
    'mmseg',
    'mmpretrain',
    'timm',
    'onnxruntime',
)


def found(module: str, describe: Callable[[Any], str] = lambda module: module.__version__) -> str:
    """Return what ``describe`` says of a module, or why it cannot be imported."""
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter('ignore')
            return describe(import_module(module))
    except Exception as error:  # reports are often about broken packages
        return f'none: {error}'


if __name__ == '__main__':
    rows = dict(
        cpvt_backbones=__version__, python=f'{platform.python_version()}, {platform.platform()}'
    )
    rows |= {name: found(name) for name in PACKAGES}
    rows['operators'] = found(
        'mmcv._ext',
        lambda m: ('torchvision, ' if m.__file__.endswith('.py') else 'compiled, ') + m.__file__,
    )
    rows['device'] = found(
        'torch',
        lambda m: (
            m.cuda.get_device_name() if m.cuda.is_available() else f'cpu, {platform.machine()}'
        ),
    )
    rows |= {f'weights {name}': entry.about for name, entry in shipped_weights().items()}
    for key, value in rows.items():
        print(f'{key:18s} {value}')
