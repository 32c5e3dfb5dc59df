"""Extension of griffe: arguments are documented with those of another class, and with values.

The docstrings of the backbones say "The other arguments are those of" a class. In the reference,
these arguments take the place of the sentence, in the order of the signature. A default that is a
constant shows its value. Each class and function says from where it is imported. Examples stand
below the first paragraph.
"""

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import griffe
from contents import PAGES

OTHERS = re.compile(r'\n\n *The other arguments are those of :class:`(?:[\w.]+\.)?(\w+)`\.')
FIRST = re.compile(r'\n{2,}')  # ends the first paragraph
EXAMPLES = re.compile(r'\n\nExamples?:\n(?:(?: +.*)?\n)*(?: +.+)')
SECTION = re.compile(r'(?<=^Args:\n)(?:    .+(?:\n|\Z))+', re.MULTILINE)
ARGUMENT = re.compile(r'^    (\w+)(?:, \w+)*: .+(?:\n {5,}.+)*', re.MULTILINE)  # or several
CONSTANT = re.compile(r'[A-Z][A-Z_]+(\[\d\])?')


class SharedArguments(griffe.Extension):
    """Adds the arguments to the docstrings of a package, and the values to its signatures."""

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        """Change docstrings and signatures once all modules are loaded."""
        modules = [*all_modules(pkg)]
        found = [one for module in modules for one in module.classes.values()]
        classes = {one.name: one for one in found if not one.is_alias}
        for one in classes.values():
            add_arguments(one, classes)
            put_examples_first(one)
        for owner in (*modules, *classes.values()):
            for function in owner.functions.values():
                if not function.is_alias:
                    show_values(function)
                    put_examples_first(function)
        for owner in modules:
            for one in (*owner.classes.values(), *owner.functions.values()):
                if not one.is_alias and one.docstring:
                    line = f'`from {import_path(one)} import {one.name}`'
                    one.docstring.value = f'{line}\n\n{one.docstring.value}'


def import_path(one: griffe.Object) -> str:
    """The package, else the folder with pages, that offers a class or function; else its module.

    A name that any other folder imports is for the folder's own use.
    """
    package = one.package
    for folder in (package, *(package[room] for room in PAGES)):
        found = folder.members.get(one.name)
        if found is None or (found.is_alias and not found.target_path.startswith(package.path)):
            continue
        if (found.final_target if found.is_alias else found) is one:
            return folder.path
    return one.module.path


def all_modules(module: griffe.Module) -> Iterator[griffe.Module]:
    """A module and the modules in it."""
    yield module
    for inner in module.modules.values():
        if not inner.is_alias:
            yield from all_modules(inner)


def show_values(function: griffe.Function) -> None:
    """Put values in place of the constants among the defaults of a function or method."""
    constants = [one for one in function.parameters if CONSTANT.fullmatch(str(one.default))]
    if not constants:
        return
    found: Any = import_module(function.module.path)
    for name in function.path.removeprefix(f'{function.module.path}.').split('.'):
        found = getattr(found, name)
    values = inspect.signature(found).parameters
    for one in constants:
        one.default = repr(values[one.name].default)


def put_examples_first(one: griffe.Object) -> None:
    """Move the examples of a docstring below its first paragraph."""
    if one.docstring and (match := EXAMPLES.search(one.docstring.value)):
        text = one.docstring.value.replace(match[0], '')
        end = found.start() if (found := FIRST.search(text)) else len(text)
        one.docstring.value = text[:end] + match[0] + text[end:]


def add_arguments(one: griffe.Class, classes: dict[str, griffe.Class]) -> None:
    """Add the arguments of the class that the docstring names, in the order of the signature."""
    text = one.docstring.value if one.docstring else ''
    if not (match := OTHERS.search(text)):
        return
    base = classes[match[1]]
    add_arguments(base, classes)  # it may share those of a third
    order = [parameter.name for parameter in one.parameters]
    documented = {
        found[1]: found[0]
        for docstring in (base.docstring.value, text)  # its own text of an argument counts
        for found in ARGUMENT.finditer(SECTION.search(docstring)[0])
        if found[1] in order
    }
    rows = ''.join(f'{documented[name]}\n' for name in sorted(documented, key=order.index))
    text = SECTION.sub(lambda match: rows, text, count=1)
    one.docstring.value = OTHERS.sub('', text)
