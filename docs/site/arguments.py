"""Extension of griffe: a class is documented with the arguments that it shares with another.

The docstrings of the backbones say "The other arguments are those of" a class. In the reference,
these arguments take the place of the sentence.
"""

import re
from typing import Any

import griffe

OTHERS = re.compile(r'\n\n *The other arguments are those of :class:`(?:[\w.]+\.)?(\w+)`\.')
ARGUMENT = re.compile(r'^    (\w+): .+(?:\n {5,}.+)*', re.MULTILINE)


class SharedArguments(griffe.Extension):
    """Adds the arguments to the docstrings of a package."""

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        """Change the docstrings once all modules are loaded."""
        classes = {one.name: one for one in all_classes(pkg)}
        for one in classes.values():
            add_arguments(one, classes)


def all_classes(module: griffe.Module) -> list[griffe.Class]:
    """Classes of a module and of the modules in it."""
    found = [one for one in module.classes.values() if not one.is_alias]
    for inner in module.modules.values():
        if not inner.is_alias:
            found += all_classes(inner)
    return found


def add_arguments(one: griffe.Class, classes: dict[str, griffe.Class]) -> None:
    """Put the arguments of the class that the docstring names behind its own."""
    text = one.docstring.value if one.docstring else ''
    if not (match := OTHERS.search(text)):
        return
    base = classes[match[1]]
    add_arguments(base, classes)  # it may share those of a third
    accepted = {parameter.name for parameter in one.parameters}
    own = {found[1]: found for found in ARGUMENT.finditer(text) if found[1] in accepted}
    shared = [
        argument[0]
        for argument in ARGUMENT.finditer(base.docstring.value)
        if argument[1] in accepted - own.keys()
    ]
    end = max(argument.end() for argument in own.values())
    text = text[:end] + '\n' + '\n'.join(shared) + text[end:]
    one.docstring.value = OTHERS.sub('', text)
