"""Versions, operators, device and shipped weights, as an issue report needs them: ``python -m cpvt_backbones``."""

import contextlib
import io
import platform
import warnings
from collections.abc import Callable
from importlib import import_module

from cpvt_backbones import __version__
from cpvt_backbones.weights import shipped_weights

PACKAGES = ('torch', 'torchvision', 'numpy', 'mmengine', 'mmcv', 'mmdet', 'mmseg', 'mmpretrain', 'timm', 'onnxruntime')


def found(module: str, describe: Callable[..., str]) -> str:
    """What ``describe`` says of a module, or why it does not import."""
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter('ignore')
            return describe(import_module(module))
    except Exception as error:  # a broken package is what such a report is about
        return f'none: {error}'


def operators(module: object) -> str:
    file = str(getattr(module, '__file__', ''))
    return "torchvision's kernels" if file.endswith('.py') else f'compiled, {file}'


def device(torch: object) -> str:
    cuda = getattr(torch, 'cuda', None)
    names = [cuda.get_device_name(index) for index in range(cuda.device_count())] if cuda else []
    return ', '.join(names) or f'cpu, {platform.machine()}'


def main() -> None:
    rows = dict(cpvt_backbones=__version__, python=f'{platform.python_version()}, {platform.platform()}')
    rows |= {name: found(name, lambda module: str(module.__version__)) for name in PACKAGES}
    rows |= dict(operators=found('mmcv._ext', operators), device=found('torch', device))
    rows |= {f'weights {name}': entry.about for name, entry in shipped_weights().items()}
    for name, value in rows.items():
        print(f'{name:18s} {value}')


if __name__ == '__main__':
    main()
