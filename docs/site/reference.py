"""Pages of the reference: public names of each folder, a list of all, and the command lines."""

import contextlib
import functools
import io
import logging
import os
import re
import sys
from pathlib import Path
from typing import Any

import griffe
import yaml
from arguments import import_path
from contents import GUIDES, PAGES

from cpvt.__main__ import COMMANDS

ROOT = Path(__file__).parents[2]
ROLE = re.compile(r':(?:class|func|meth|mod|attr|data):`~?(?:[\w.]+\.)?(\w+)`')
PICTURE = """<picture>
<source media="(max-width: 44.9em)" srcset="../docs/figures/backbones_narrow.svg">
<img src="../docs/figures/backbones.svg" alt="Blocks, PEGs and outputs of the backbones">
</picture>

"""
PICTURES = {'backbones': PICTURE}
ALL_NAMES = """# Index of names

The names that people use, in one line each. [Command lines](command_line.md) has the scripts, and
[concepts to names](../docs/concepts.md) explains terms.

## Tasks

{tasks}

## What importing changes

{changes}

"""
# What people look for, and the call.
TASKS = (
    (
        'load pretrained weights',
        "`CPVT.from_pretrained('FILE or NAME')`",
        'Backbone.from_pretrained',
    ),
    ('load them in a config', "`init_cfg='timm://...'`", 'Backbone'),
    ('load them into a built backbone', "`load_checkpoint(model, 'deit.pth')`", 'load_checkpoint'),
    ('freeze the first two stages', '`PyramidCPVT(frozen_stages=2)`', 'PyramidCPVT'),
    ('set stochastic depth', '`CPVT(drop_path_rate=0.2)`', 'CPVT'),
    ('get other feature maps', '`PyramidCPVT(out_indices=(0, 3))`', 'PyramidCPVT'),
    ('write a position encoding', "`@register_position('NAME')`", 'PositionEncoding'),
    ('predict with shipped weights', "`Inferencer(checkpoint='NAME')`", 'Inferencer'),
    (
        'predict with a model of mine',
        "`Inferencer(cfg='config.py', checkpoint='iter_400.pth')`",
        'Inferencer',
    ),
    (
        'predict a folder',
        "`predict_to_folder(inferencer, 'photos/', out_dir='out/photos')`",
        'predict_to_folder',
    ),
    (
        'predict an image of Pillow',
        "`inferencer(np.asarray(image.convert('RGB'))[..., ::-1])`",
        'Inferencer.__call__',
    ),
    ('get boxes as an array', "`np.array(prediction['boxes']).reshape(-1, 4)`", 'Inferencer'),
)
COMMAND_LINES = """# Command lines

The command `cpvt` and its commands, with all arguments. `cpvt NAME --help` prints the same, and
so do the scripts of the folder `tools` of a clone, such as `python tools/train.py`. How to use
them: [Train on your own data](../docs/own_data.md), [prediction](../docs/inference.md),
[export](../docs/export.md).

"""
# What stands at the end of a folder's first page, from the first of these on, and its heading.
LAST = {'| type in a signature |': 'types', 'Loading has ': 'steps', 'The modules': 'modules'}
FURTHER = '## Further names\n\nHelpers of the names above.\n\n'
ROOMS = ('backbones', 'layers', 'checkpoints', 'inference', 'export', 'engine', 'weights')
# Rooms whose modules are imported one by one.
ANALYSES = ('complexity', 'resolution', 'image_size')
MODULES = {'analysis': ANALYSES}


@functools.cache
def entries() -> dict[str, dict[str, Any]]:
    """Public names of each folder of the package, by path."""
    package = griffe.load('cpvt_backbones', search_paths=[str(ROOT)])
    found = {}
    for room in (*ROOMS, *MODULES):
        found[room] = public_names(package[room])
        for module in MODULES.get(room, ()):
            found[room] |= own_names(package[f'{room}.{module}'])
    return found


def linked(name: str) -> str:
    """Code that names an entry of the reference as a link to it."""
    entry = entry_of(name)
    return f'[`{name}`](../api/{entry[0]}.md#{entry[1]})' if entry else f'`{name}`'


def entry_of(name: str) -> tuple[str, str] | None:
    """Page and anchor of ``PEG`` or ``CPVT.forward``, if the reference has them."""
    first, _, method = name.partition('.')
    for room, names in entries().items():
        for path, one in names.items():
            if one.name == first and not method:
                return page_of(room, first), path
            if one.name == first and method in one.all_members:
                owner = place(one, method, names)
                return page_of(room, owner.name), f'{owner.path}.{method}'
    return None


@functools.cache
def types() -> dict[str, str]:
    """The page whose table explains a type of signatures, such as ``Grid``, by name."""
    package = griffe.load('cpvt_backbones', search_paths=[str(ROOT)])
    found = {}
    for room in entries():
        text = package[room].docstring.value.partition('| type in a signature |')[2]
        found.update(dict.fromkeys(re.findall(r'^\| ``(\w+)`` ', text, re.MULTILINE), room))
    return found


@functools.cache
def sources() -> dict[str, tuple[str, int]]:
    """File in the repository, and line, at which each entry of the reference begins, by path."""
    found = {}
    for names in entries().values():
        for path, one in names.items():
            found[path] = (one.filepath.relative_to(ROOT).as_posix(), one.lineno)
    return found


def page_of(room: str, name: str) -> str:
    """The page of a folder on which a name has its entry."""
    for file, page in PAGES[room].items():
        if name in f'{page.names} {page.helpers}'.split():
            return file
    return room


def reference() -> dict[str, str]:
    """Pages of each folder of the package, one of the command lines, and a list of names.

    A public name without a docstring is a warning, which fails the build.
    """
    package = griffe.load('cpvt_backbones', search_paths=[str(ROOT)])
    changes = package['patches'].docstring.value
    names = ALL_NAMES.format(tasks=task_table(), changes=changes)
    texts = {'names': names, 'command_line': command_lines()}
    for room, found in entries().items():
        for one in found.values():
            check_documented(one)
        by_name = {one.name: (path, one) for path, one in found.items()}
        texts['names'] += name_table(room, by_name)
        for file, page in PAGES[room].items():
            helpers, rest = page.helpers.split(), ''
            if file == room:
                listed = ' '.join(f'{one.names} {one.helpers}' for one in PAGES[room].values())
                helpers += [name for name in by_name if name not in listed.split()]
                introduction, rest = split_introduction(package[room].docstring.value)
                texts[file] = first_page(room, introduction)
            else:
                texts[file] = (
                    f'# {page.title}\n\n[{PAGES[room][room].title}]({room}.md) introduces'
                    f' `cpvt_backbones.{room}`. How to use it: {guides(room)}.\n\n'
                )
            for name in page.names.split():
                texts[file] += reference_block(room, *by_name[name], found)
            texts[file] += FURTHER if page.names and helpers else ''
            for name in helpers:
                level = 3 if page.names else 2
                texts[file] += reference_block(room, *by_name[name], found, level=level)
            texts[file] += rest
    return texts


def first_page(room: str, introduction: str) -> str:
    """Head of a folder's first page: what stands on the others, then what the folder is."""
    text = f'# {PAGES[room][room].title}\n\n`cpvt_backbones.{room}`\n\n'
    for file, page in PAGES[room].items():
        if file != room:
            names = ', '.join(f'`{name}`' for name in (page.names or page.helpers).split())
            text += f'- [{page.title}]({file}.md): {names}\n'
    return f'{text}\n{introduction}\n\nHow to use it: {guides(room)}.\n\n{PICTURES.get(room, "")}'


def split_introduction(text: str) -> tuple[str, str]:
    """What stands above the names of a page, and a section for below: types, steps and modules."""
    places = sorted(text.index(mark) for mark in LAST if mark in text)
    if not places:
        return text, ''
    rest = text[places[0] :]
    heading = ' and '.join(title for mark, title in LAST.items() if mark in rest).capitalize()
    return text[: places[0]].rstrip(), f'## {heading}\n\n{rest}\n'


def guides(room: str) -> str:
    """Links to the guides that use the names of a folder."""
    return ', '.join(f'[{title(page)}](../{page})' for page in GUIDES[room])


def name_table(room: str, by_name: dict[str, tuple[str, Any]]) -> str:
    """The names of a folder in one line each, helpers left out, with links to their entries."""
    heading = PAGES[room][room].title.removesuffix(' (API)')
    text = f'## {heading}\n\n| name | what it is | import from |\n| --- | --- | --- |\n'
    for file, page in PAGES[room].items():
        for name in page.names.split():
            path, one = by_name[name]
            link = f'[`{name}`]({file}.md#{path})'
            text += f'| {link} | {first_sentence(one)} | `{import_path(one)}` |\n'
    return f'{text}\n'


def task_table() -> str:
    """The tasks, each with the call, and a link to the entry of its class or function."""
    lines = ['| to | write | entry |', '| --- | --- | --- |']
    lines += [f'| {task} | {call} | {linked(name)} |' for task, call, name in TASKS]
    return '\n'.join(lines)


def first_sentence(one: Any) -> str:
    """Of a docstring, on one line."""
    paragraph = ' '.join(one.docstring.value.partition('\n\n')[0].split())
    sentence = re.split(r'(?<=[\w`])\. (?=[A-Z])', paragraph)[0].rstrip('.')
    return ROLE.sub(r'`\1`', sentence).replace('``', '`')


def title(page: str) -> str:
    """The first heading of a page."""
    return (ROOT / page).read_text(encoding='utf-8').partition('\n')[0].removeprefix('# ')


def reference_block(room: str, path: str, one: Any, names: dict[str, Any], level: int = 2) -> str:
    """The entry of a name. A class that is alone on its page has a table of what it inherits from
    others of its folder; any other names them.
    """
    options = f'    options:\n      heading_level: {level}\n'
    if not documented_bases(one, names):
        return f'::: {path}\n{options}\n'
    block = f'::: {path}\n{options}      inherited_members: false\n\n'
    found = inherited(one, names)
    if not found:
        return block
    if PAGES[room][page_of(room, one.name)].names == one.name:
        rows = [
            f'| {member_link(room, owner, member.name)} | {first_sentence(member)} |'
            for owner, member in found
        ]
        head = '### Attributes and methods\n\n| name | what it is |\n| --- | --- |\n'
        return block + head + '\n'.join(rows) + '\n\n'
    owners = {owner.path: owner for owner, _ in found}
    links = [
        f'[`{owner.name}`]({page_of(room, owner.name)}.md#{path})' for path, owner in owners.items()
    ]
    return f'{block}Its other methods are described at {" and ".join(links)}.\n\n'


def inherited(one: Any, names: dict[str, Any]) -> list[tuple[Any, Any]]:
    """What a class does not describe itself, each with the class at whose entry it stands."""
    found = {}
    for base in documented_bases(one, names):
        for name in (*base.members, *base.all_members):
            owner = place(one, name, names)
            member = owner.all_members.get(name)
            if owner is not one and member and is_shown(name) and has_entry(member):
                found[name] = (owner, member)
    return [*found.values()]


def member_link(room: str, owner: Any, name: str) -> str:
    """A link to the entry of a method or attribute."""
    return f'[`{name}`]({page_of(room, owner.name)}.md#{owner.path}.{name})'


def documented_bases(one: Any, names: dict[str, Any]) -> list[Any]:
    """The classes of the same folder from which a class inherits, the nearest first."""
    return [base for base in one.mro() if base.path in names] if one.is_class else []


def place(one: Any, member: str, names: dict[str, Any]) -> Any:
    """The class at whose entry a method or attribute of a class is shown."""
    classes = [one, *documented_bases(one, names)]
    described = [
        candidate
        for candidate in classes
        if member in candidate.members and has_entry(candidate.members[member])
    ]
    return (described or classes[-1:])[0]


def is_shown(name: str) -> bool:
    """True for names that the filters of mkdocs.yml let through: the last one that matches."""
    matching = [one for one in filters() if re.search(one.removeprefix('!'), name)]
    return not (matching and matching[-1].startswith('!'))


@functools.cache
def filters() -> list[str]:
    """Patterns of names, those to hide with an exclamation mark in front."""
    (found,) = re.findall(r'^ +filters: (.+)$', (ROOT / 'docs/mkdocs.yml').read_text(), re.M)
    return list(yaml.safe_load(found))


def has_entry(member: Any) -> bool:
    """True for a method or attribute that the reference shows."""
    one = member.final_target if member.is_alias else member
    return (one.is_function or one.is_attribute) and bool(one.docstring)


def command_lines() -> str:
    """What each command prints for ``--help``."""
    text = COMMAND_LINES
    os.environ['COLUMNS'] = '77'  # the text has two columns less, which fits the page
    for name, (command, _) in COMMANDS.items():
        shown = io.StringIO()
        sys.argv[0] = f'cpvt {name}'
        with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
            command.main(['--help'])
        block = f'```text\n{shown.getvalue()}```'
        text += f'## cpvt {name}\n\n<div class="help" markdown>\n\n{block}\n\n</div>\n\n'
    return text


def public_names(room: Any) -> dict[str, Any]:
    """What a folder offers: what its ``__init__`` imports from the package or defines, and what
    its modules register for configs; by path.
    """
    names = own_names(room)
    for key, one in room.members.items():
        if one.is_alias and key[0] != '_' and one.target_path.startswith('cpvt_backbones.'):
            target = one.final_target
            if target.is_class or target.is_function:
                names[target.path] = target
    for module in room.modules.values():
        if not module.is_alias:
            registered = own_names(module).items()
            names |= {path: one for path, one in registered if is_registered(one)}
    return names


def own_names(module: Any) -> dict[str, Any]:
    """Public classes and functions that a module defines, by path."""
    members = ((key, one) for key, one in module.members.items() if key[0] != '_')
    return {
        one.path: one
        for key, one in members
        if not one.is_alias and (one.is_class or one.is_function)
    }


def is_registered(one: Any) -> bool:
    """True for a class or function that mmengine finds by its name."""
    return any('register_module' in str(decorator.value) for decorator in one.decorators)


def check_documented(one: Any) -> None:
    """Warn of a function, class or method that neither it nor a class that it overrides
    describes.
    """
    bases = one.parent.mro() if one.is_function and one.parent.is_class else []
    if not (one.is_attribute or one.docstring or any(one.name in base.members for base in bases)):
        logging.getLogger('mkdocs.hooks').warning('%s has no docstring', one.path)
    for member in one.members.values() if one.is_class else ():
        if member.is_function and member.name[0] != '_':
            check_documented(member)
