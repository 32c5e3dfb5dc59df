"""Imports when they are needed: importing torch and mmengine takes longer than any ``--help`` should."""

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from .weights import repository_file


def lazy_names(package: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """A package's ``__getattr__``, which imports each name from its module, and submodules named by ``''``."""

    def get(name: str) -> Any:
        if name not in names:
            raise AttributeError(f'module {package!r} has no attribute {name!r}')
        module = import_module(f'{package}.{names[name] or name}')
        value = getattr(module, name) if names[name] else module
        setattr(sys.modules[package], name, value)
        return value

    return get


class _AfterImport(MetaPathFinder):
    """Finder that runs an action when a module has been imported."""

    def __init__(self, name: str, action: Callable[[], object]) -> None:
        self.name, self.action = name, action

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                self.action()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def register_with_mmengine() -> None:
    """Register configs and, before the first look-up of any name, classes, as soon as mmengine is imported.

    mmengine's checkpoint loader is replaced as soon as it is imported.
    """
    for name, action in ('mmengine', _register_names), ('mmengine.runner', _replace_loader):
        if name in sys.modules:
            action()
        else:
            sys.meta_path.insert(0, _AfterImport(name, action))


def _replace_loader() -> None:
    import_module('cpvt_backbones.checkpoints')


def _register_names() -> None:
    from mmengine.config import Config, utils
    from mmengine.registry import Registry

    utils.MODULE2PACKAGE['cpvt_backbones'] = 'cpvt_backbones'
    get_path = Config._get_cfg_path

    def get_cfg_path(cfg_path: str, filename: str) -> tuple[str, str | None]:
        scope, _, name = cfg_path.partition('::')
        if scope != 'cpvt_backbones':
            return get_path(cfg_path, filename)
        # Without the scope, which would name the registry of the config's types: it is that of its `default_scope`.
        return str(repository_file(f'configs/{name}')), None

    Config._get_cfg_path = staticmethod(get_cfg_path)
    look_up = Registry.get

    @functools.wraps(look_up)
    def get(self: Registry, key: str) -> Any:
        import_module('cpvt_backbones.engine.registered')
        return look_up(self, key)

    Registry.get = get
