"""Imports when they are needed: importing torch and mmengine takes longer than any ``--help``
should.
"""

import functools
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

from . import patches


def lazy_names(package: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """A package's ``__getattr__``, which imports each name from its submodule.

    ``''``: the name is the submodule.
    """

    def get(name: str) -> Any:
        if name not in names:
            raise AttributeError(f'module {package!r} has no attribute {name!r}')
        module = import_module(f'{package}.{names[name] or name}')
        return getattr(module, name) if names[name] else module

    return get


def after_import(name: str, action: Callable[[], object]) -> None:
    """Run an action as soon as a module is imported, which may be now."""
    if name in sys.modules:
        action()
        return

    def find(wanted: str, path: Any = None, target: Any = None) -> Any:
        if wanted != name:
            return None
        others: Any = [other for other in sys.meta_path if other is not finder]
        spec = next(filter(None, (other.find_spec(name, path, target) for other in others)), None)
        if spec is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                sys.meta_path.remove(finder)
                action()

            spec.loader.exec_module = exec_module
        return spec

    finder: Any = SimpleNamespace(find_spec=find)
    sys.meta_path.insert(0, finder)


def register() -> None:
    """With mmengine: configs, all classes before the first look-up of a name, and the checkpoint
    loader.
    """
    after_import('mmengine', _register)
    after_import('mmengine.runner', patches.replace_loader)


def _register() -> None:
    from mmengine.config.utils import MODULE2PACKAGE
    from mmengine.registry import Registry

    patches.find_own_configs()
    patches.find_mmseg(MODULE2PACKAGE)
    look_up = Registry.get

    @functools.wraps(look_up)
    def get(self: Registry, key: str) -> Any:
        import_module('cpvt_backbones.engine.registered')
        return look_up(self, key)

    Registry.get = get
