"""The pages of docs/api, which are written from the code by `make reference`.

command_line.md is written as a whole. The other pages name what they document in comments, which a
reader does not see. What follows a comment, up to `<!-- end -->`, is written again:

    <!-- module NAME -->: the docstring of a module
    <!-- names NAME NAME ... -->: a table with a row for each class or function
    <!-- class NAME -->: the docstring of a class, with tables of its arguments and methods

The site shows full docstrings below the second and in place of the last (hooks.py).
"""

import contextlib
import io
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # where this file runs as a script

from cpvt.__main__ import COMMANDS  # noqa: E402

FOLDER = ROOT / 'docs/api'
COMMAND_LINES = """\
# Command lines

The command `cpvt` and its commands, with all arguments. `cpvt NAME --help` prints the same, and
so do the scripts of the folder `tools` of a clone, such as `python tools/train.py`. How to use
them: [Train on your own data](../own_data.md), [prediction](../inference.md),
[export](../export.md).

"""
PART = re.compile(
    r'(?P<comment><!-- (?P<kind>module|names|class)\s(?P<names>[\w.\s]+?)\s*-->\n)'
    r'(?P<text>.*?)<!-- end -->\n',
    re.DOTALL,
)
ROLE = re.compile(r':(?:class|func|mod|meth|attr|data):(?=`)')  # of Sphinx
OTHERS = re.compile(r'The other arguments are those of :class:`(\w+)`\.')
DEFAULT = re.compile(r'\s+Default: ``(.+?)``\.$')  # of an argument that no signature here has
# Methods that are not listed: private ones, and those of hooks that a runner calls.
UNNAMED = re.compile(r'_|(before|after)_(run|train|val|test|load_checkpoint|save_checkpoint)')
LONGEST_VALUE = 60  # characters of a constant that is shown in place of its name


def command_lines() -> str:
    """The page of what each command prints for ``--help``, as Markdown."""
    table = '| command | what it does |\n| --- | --- |\n'
    parts = ''
    for name, (_, about) in COMMANDS.items():
        table += f'| [`cpvt {name}`](#cpvt-{name}) | {about} |\n'
        parts += f'\n## cpvt {name}\n\n```text\n{printed_help(name)}```\n'
    return COMMAND_LINES + table + parts


def printed_help(name: str) -> str:
    """What a command prints for ``--help``, in lines that fit the page."""
    command, _ = COMMANDS[name]
    with (
        mock.patch.dict(os.environ, COLUMNS='77'),  # the text has two columns less
        mock.patch.object(sys, 'argv', [f'cpvt {name}']),
        contextlib.redirect_stdout(io.StringIO()) as printed,
        contextlib.suppress(SystemExit),
    ):
        command.main(['--help'])
    return printed.getvalue()


class Reference:
    """Names of the package as Markdown, from its source files; nothing is imported."""

    def __init__(self) -> None:
        import griffe  # of the extra `docs`

        options = dict(
            warn_unknown_params=False, warn_missing_types=False, returns_multiple_items=False
        )
        loader = griffe.GriffeLoader(
            search_paths=[ROOT], docstring_parser='google', docstring_options=options
        )
        loader.load('cpvt_backbones')
        self.objects = loader.modules_collection

    def written(self, page: str, package: str) -> str:
        """Text of a page whose marked parts are written again.

        Args:
            page: The present text.
            package: Names of it are shown alone, others with their module.
        """
        named = names_of(page)

        def write(part: re.Match[str]) -> str:
            names = part['names'].split()
            if part['kind'] == 'names':
                text = self.table(names, package, named['class'])
            else:
                (name,) = names
                text = plain(self.objects[name].docstring.value)
                if part['kind'] == 'class':
                    text = self.full(name, package, [*named['names'], *named['class']])
            return f'{part["comment"]}\n{text}\n\n<!-- end -->\n'

        return PART.sub(write, page)

    def table(self, names: Iterable[str], package: str, classes: Iterable[str]) -> str:
        """A row for each name; those of ``classes`` are links to their part of the page."""
        rows = []
        for name in names:
            found = self.objects[name]
            if name in classes:
                link = f'#{found.name.lower()}'
                count = len(self.argument_rows(found))
                arguments = f'[{count} arguments](#arguments-of-{found.name.lower()})'
            else:
                link, arguments = source_of(found), self.signature(found)
            rows.append([f'[`{self.label(name, package)}`]({link})', summary(found), arguments])
        return table('name', 'what it does', 'arguments', rows=rows)

    def label(self, name: str, package: str) -> str:
        """A name as it is found in a package or written in a config: alone, or with its module."""
        last = name.rpartition('.')[2]
        if last in self.objects[package].members or is_registered(self.objects[name]):
            return last
        return name.removeprefix(f'{package}.')

    def signature(self, found: Any) -> str:
        """Arguments in one line, as in ``def``, without types."""
        shown = []
        for one in parameters_of(found):
            stars = {'variadic positional': '*', 'variadic keyword': '**'}.get(one.kind.value, '')
            if one.kind.value == 'keyword-only' and not any(text[0] == '*' for text in shown):
                shown.append('*')
            needed = stars or one.default is None
            shown.append(stars + one.name if needed else f'{one.name}={self.default(one)}')
        return code(', '.join(shown))

    def default(self, parameter: Any) -> str:
        """The default of a parameter; a constant is shown by its value if that is short."""
        try:
            value = str(self.objects[parameter.default.canonical_path].value)
        except (AttributeError, KeyError):
            return str(parameter.default)
        return value if len(value) <= LONGEST_VALUE else str(parameter.default)

    def full(self, name: str, package: str, named: Collection[str]) -> str:
        """A class: its docstring, with tables of all its arguments and of its methods.

        Methods are also those of its base classes, up to the first in ``named``.
        """
        found = self.objects[name]
        place, _, last = name.rpartition('.')
        if place != 'cpvt_backbones' and last in self.objects[package].members:
            place = package
        parts = [f'## {last}', f'`from {place} import {last}` ([source]({source_of(found)}))']
        for section in found.docstring.parsed:
            if section.kind.value == 'parameters':
                parts += [f'### Arguments of {found.name}', self.arguments(found)]
            else:
                parts.append(SECTIONS[section.kind.value](section.value))
        bases = takewhile(lambda base: base.path not in named, found.mro())
        methods = {
            one.name: [f'`{one.name}`', summary(one), self.signature(one)]
            for owner in (found, *bases)
            for one in owner.members.values()
            if one.is_function and one.docstring and not UNNAMED.match(one.name)
        }
        if methods:
            parts.append(table('method', 'what it does', 'arguments', rows=methods.values()))
        return '\n\n'.join(filter(None, parts))

    def arguments(self, found: Any) -> str:
        """A table with a row for each argument."""
        return table('argument', 'type', 'default', 'meaning', rows=self.argument_rows(found))

    def argument_rows(self, found: Any) -> list[list[str]]:
        """A row for each argument: those of the signature, and others that the docstring has.

        The latter are arguments of a base class in another package, whose code is not read.
        """
        words, own = self.words(found), own_words(found)
        rows, last = list[list[str]](), list[list[str]]()
        for one in parameters_of(found):
            meaning = cell(words[one.name].description)
            own.pop(one.name, None)
            if one.kind.value == 'variadic keyword':
                last = [[f'`**{one.name}`', '', '', meaning]]
                continue
            default = '' if one.default is None else code(self.default(one))
            rows.append([f'`{one.name}`', code(one.annotation), default, meaning])
        for one in own.values():
            found_default = DEFAULT.search(one.description)
            default = code(found_default[1]) if found_default else ''
            meaning = cell(DEFAULT.sub('', one.description))
            rows.append([f'`{one.name}`', code(one.annotation), default, meaning])
        return rows + last

    def words(self, found: Any) -> dict[str, Any]:
        """What a docstring, and that of the class to which it refers, says of each argument."""
        (other,) = OTHERS.findall(found.docstring.value) or [None]
        words = self.words(self.objects[found.resolve(other)]) if other else {}
        return {**words, **own_words(found)}


def names_of(page: str) -> dict[str, list[str]]:
    """Names in the comments of a page, by the kind of the comment."""
    found: dict[str, list[str]] = dict(module=[], names=[], **{'class': []})
    for part in PART.finditer(page):
        found[part['kind']] += part['names'].split()
    return found


def own_words(found: Any) -> dict[str, Any]:
    """Entries of a docstring by argument."""
    sections = found.docstring.parsed
    kind = 'parameters'
    return {one.name: one for part in sections if part.kind.value == kind for one in part.value}


def is_registered(found: Any) -> bool:
    """``True`` for a class that a config can name as ``type``."""
    return found.is_class and any('register_module' in str(one.value) for one in found.decorators)


def parameters_of(found: Any) -> Iterator[Any]:
    """Parameters of a function, or of the constructor of a class."""
    return (one for one in found.parameters if one.name not in ('self', 'cls'))


def source_of(found: Any) -> str:
    """Link of a page of docs/api to the file with the code."""
    return f'../../{Path(found.filepath).relative_to(ROOT).as_posix()}'


def summary(found: Any) -> str:
    """The first paragraph of a docstring."""
    return cell(found.docstring.value.partition('\n\n')[0])


def plain(text: str) -> str:
    """Text of a docstring as Markdown."""
    return re.sub('(?<!`)``(?!`)', '`', ROLE.sub('', text))


def cell(text: str) -> str:
    """Text of a docstring in a cell of a table."""
    return ' '.join(plain(text).split()).replace('|', r'\|')


def code(value: Any) -> str:
    """Code in a cell of a table."""
    return f'`{value}`'.replace('|', r'\|') if str(value) else ''


def table(*head: str, rows: Iterable[list[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ['---'] * len(head), *rows]
    return '\n'.join(f'| {" | ".join(cells)} |' for cells in lines)


def examples(parts: Iterable[tuple[Any, str]]) -> str:
    """Examples of a docstring: text, and what is typed and printed."""
    shown = [
        plain(text) if kind.value == 'text' else f'```pycon\n{text}\n```' for kind, text in parts
    ]
    return '\n\n'.join(['**Examples**', *shown])


def raised(errors: Iterable[Any]) -> str:
    """Errors of a docstring."""
    lines = [f'- `{one.annotation}`: {cell(one.description)}' for one in errors]
    return '\n'.join(['**Errors**', '', *lines])


def attributes(found: Iterable[Any]) -> str:
    """Attributes of a docstring."""
    rows = [[f'`{one.name}`', cell(one.description)] for one in found]
    return table('attribute', 'meaning', rows=rows)


SECTIONS: dict[str, Callable[[Any], str]] = {
    'text': lambda text: plain(OTHERS.sub('', text)),  # the table has them all
    'raises': raised,
    'attributes': attributes,
    'examples': examples,
}


if __name__ == '__main__':
    (FOLDER / 'command_line.md').write_text(command_lines(), encoding='utf-8')
    reference = Reference()
    for path in sorted(FOLDER.glob('*.md')):
        text = path.read_text(encoding='utf-8')
        path.write_text(reference.written(text, f'cpvt_backbones.{path.stem}'), encoding='utf-8')
