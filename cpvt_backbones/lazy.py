"""Imports when they are needed: importing torch and mmengine takes longer than any ``--help``
should.
"""

import functools
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import Any

from .weights import repository_file


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
    after_import('mmengine.runner', lambda: import_module('cpvt_backbones.checkpoints'))


def _find_mmseg(distributions: dict[str, str]) -> None:
    """Let mmengine find ``mmseg::`` by the module where no distribution has the original's name.

    ``distributions`` are mmengine's, by the scope of a config. The maintained fork is called
    onedl-mmsegmentation; without this, ``_base_ = 'mmseg::...'`` ends in "mmsegmentation is not
    installed".
    """
    from mmengine.utils import is_installed

    if not is_installed('mmsegmentation') and find_spec('mmseg') is not None:
        distributions['mmseg'] = 'mmseg'


def _register() -> None:
    from mmengine.config import Config, utils
    from mmengine.registry import Registry

    utils.MODULE2PACKAGE['cpvt_backbones'] = 'cpvt_backbones'
    _find_mmseg(utils.MODULE2PACKAGE)
    get_path, look_up = Config._get_cfg_path, Registry.get

    def get_cfg_path(cfg_path: str, filename: str) -> tuple[str, str | None]:
        scope, _, name = cfg_path.partition('::')
        if scope != 'cpvt_backbones':
            return get_path(cfg_path, filename)
        # Without the scope, which would name the registry of the config's types: it is that of its
        # `default_scope`.
        return str(repository_file(f'configs/{name}')), None

    @functools.wraps(look_up)
    def get(self: Registry, key: str) -> Any:
        import_module('cpvt_backbones.engine.registered')
        return look_up(self, key)

    Config._get_cfg_path, Registry.get = staticmethod(get_cfg_path), get
