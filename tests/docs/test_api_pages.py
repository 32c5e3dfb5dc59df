"""The pages of docs/api are those that docs/site/reference.py writes."""

import importlib
import inspect
import re
from inspect import Parameter

import pytest
from pages import ROOT, blocks

from cpvt.__main__ import COMMANDS

COMMAND_LINES = 'docs/api/command_line.md'
PAGES = sorted(
    path for path in (ROOT / 'docs/api').glob('*.md') if path.stem not in ('README', 'command_line')
)
WRITTEN = re.compile(r'Default: ``(.+?)``', re.DOTALL)


@pytest.fixture
def reference(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / 'docs/site')
    import reference

    return reference


def words(text):
    """Words of a text: argparse of another Python may break its lines elsewhere."""
    return text.split()


@pytest.mark.parametrize('name', COMMANDS)
def test_the_page_has_what_a_command_prints_for_help(name, reference):
    ((_, shown),) = blocks(COMMAND_LINES, f'cpvt {name}')
    assert words(shown) == words(reference.printed_help(name)), 'run `make reference`'


def test_the_page_lists_the_commands():
    text = (ROOT / COMMAND_LINES).read_text(encoding='utf-8')
    assert re.findall(r'^## cpvt (\S+)$', text, re.MULTILINE) == [*COMMANDS]
    for name, (_, about) in COMMANDS.items():
        assert f'| [`cpvt {name}`](#cpvt-{name}) | {about} |\n' in text


def test_the_overview_lists_the_pages():
    text = (ROOT / 'docs/api/README.md').read_text(encoding='utf-8')
    listed = re.findall(r'^\| \[[\w ]+\]\((\w+)\.md\) \|', text, re.MULTILINE)
    assert sorted(listed) == sorted(['command_line', *(path.stem for path in PAGES)])


@pytest.mark.full
def test_the_pages_have_what_the_docstrings_say(reference):
    pytest.importorskip('griffe')  # of the extra `docs`
    code = reference.Reference()
    for path in PAGES:
        text = path.read_text(encoding='utf-8')
        assert any(reference.names_of(text).values()), path.name
        written = code.written(text, f'cpvt_backbones.{path.stem}')
        assert text == written, f'{path.name}: run `make reference`'


@pytest.mark.full
def test_the_pages_have_each_class_that_a_config_can_name(reference):
    pytest.importorskip('griffe')
    listed = {
        name.rpartition('.')[2]
        for path in PAGES
        for names in reference.names_of(path.read_text(encoding='utf-8')).values()
        for name in names
    }
    registered = set()
    folders = [reference.Reference().objects['cpvt_backbones']]
    for folder in folders:  # which grows
        members = [one for one in folder.members.values() if not one.is_alias]
        folders += [one for one in members if one.is_module]
        registered |= {one.name for one in members if reference.is_registered(one)}
    assert len(registered) > 30 and registered <= listed


@pytest.mark.full
def test_a_page_has_all_arguments_of_each_backbone(reference):
    """The table has the defaults of the signature, also of inherited arguments."""
    pytest.importorskip('griffe')
    import cpvt_backbones

    text = (ROOT / 'docs/api/backbones.md').read_text(encoding='utf-8')
    for name in cpvt_backbones.list_archs():
        part = text.partition(f'\n### Arguments of {name}\n')[2].partition('\n**')[0]
        rows = re.findall(r'^\| `(\w+)` \| `.+?` \| `(.+?)` \| \S.+ \|$', part, re.MULTILINE)
        parameters = inspect.signature(getattr(cpvt_backbones, name)).parameters
        assert [row[0] for row in rows] == [*parameters]
        for argument, default in rows:
            assert eval(default, {}) == parameters[argument].default


def parameter_of(cls, name):
    """The parameter of a class: of its constructor, or of that to which ``**options`` lead."""
    for base in cls.__mro__:
        constructor = vars(base).get('__init__') or vars(base).get('__new__')
        if constructor is None:
            continue
        parameters = inspect.signature(constructor).parameters
        if name in parameters:
            return parameters[name]
        if all(one.kind is not Parameter.VAR_KEYWORD for one in parameters.values()):
            break
    return None


def fault_of(cls, name, description, *, is_own):
    """What a docstring says wrongly of an argument, or an empty text.

    The pages take the defaults of an ``is_own`` argument from the signature, and others from the
    docstring.
    """
    parameter = parameter_of(cls, name)
    if parameter is None:
        return 'no signature has it'
    default = 'no default' if parameter.default is Parameter.empty else repr(parameter.default)
    if written := WRITTEN.search(description):
        documented = repr(eval(written[1], {}))
    elif is_own or 'Default: ' in description:  # in words
        return ''
    else:
        documented = 'no default'
    if documented == default:
        return ''
    return f'the docstring has {documented}, the signature {default}'


def documented_arguments(reference):
    """Each class of the package with each of its documented arguments, and what is said of it."""
    folders = [reference.Reference().objects['cpvt_backbones']]
    for folder in folders:  # which grows
        members = [one for one in folder.members.values() if not one.is_alias]
        folders += [one for one in members if one.is_module]
        for found in members:
            if found.is_class and found.docstring:
                for names, entry in reference.own_words(found).items():
                    yield from ((found, name, entry.description) for name in names.split(', '))


@pytest.mark.full
def test_a_documented_argument_has_the_default_of_the_signature_that_takes_it(reference):
    """Also of base classes in other packages, whose code the pages are not written from."""
    for package in ('griffe', 'mmdet', 'mmpretrain', 'mmseg', 'timm'):
        pytest.importorskip(package)
    faults, inherited = [], 0
    for found, name, description in documented_arguments(reference):
        cls = getattr(importlib.import_module(found.module.path), found.name)
        is_own = name in [one.name for one in found.parameters]
        inherited += not is_own
        if fault := fault_of(cls, name, description, is_own=is_own):
            faults.append(f'{found.name}: {name}: {fault}')
    assert inherited > 30
    assert not faults, '\n'.join(faults)


def test_no_page_has_marks_that_only_the_site_understands():
    """They show as text in the repository."""
    pages = [*ROOT.glob('*.md'), *(ROOT / 'docs').rglob('*.md')]
    for path in pages:
        text = re.sub(r'^```.*?^```', '', path.read_text(encoding='utf-8'), flags=re.M | re.S)
        found = re.findall(r'^ *(?::::|///|!!!|\?\?\?|===) .*|\{[:#.][^}]*\}', text, re.MULTILINE)
        assert not found, f'{path.name}: {found}'
