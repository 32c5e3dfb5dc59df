"""The pages of docs/api are those that docs/site/reference.py writes."""

import re

import pytest
from pages import ROOT, blocks

from cpvt.__main__ import COMMANDS

PAGE = 'docs/api/command_line.md'


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
    ((_, shown),) = blocks(PAGE, f'cpvt {name}')
    assert words(shown) == words(reference.printed_help(name)), 'run `make reference`'


def test_the_page_lists_the_commands():
    text = (ROOT / PAGE).read_text(encoding='utf-8')
    assert re.findall(r'^## cpvt (\S+)$', text, re.MULTILINE) == [*COMMANDS]
    for name, (_, about) in COMMANDS.items():
        assert f'| [`cpvt {name}`](#cpvt-{name}) | {about} |\n' in text
