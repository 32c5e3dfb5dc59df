"""Run the blocks of a documentation page in order, as a reader would."""

import re
import shlex
from pathlib import Path

from cpvt.__main__ import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
SETS = ('train', 'val', 'test')
SMALL = [
    f'{one}_dataloader.{key}'
    for one in SETS
    for key in ('num_workers=0', 'persistent_workers=False', 'batch_size=4')
]


def blocks(page, part=''):
    """Language and text of each fenced block of a page, by its path in the repository.

    ``part`` is the text of a heading.
    """
    text = (ROOT / page).read_text(encoding='utf-8')
    if part:
        heading = re.escape(part)
        (text,) = re.findall(rf'^###? {heading}\n(.*?)(?=^###? |\Z)', text, re.M | re.S)
    return re.findall(r'^```(\w+)\n(.*?)^```', text, re.DOTALL | re.MULTILINE)


def run_page(page, call, shorter, capsys=None, parts=('',)):
    """Run the Python blocks in one namespace and the commands, which are all of ``cpvt``.

    ``parts`` are headings; without them, the whole page is run.
    ``shorter`` replaces texts of the blocks, as the length of a training; each must occur. With
    ``capsys``, blocks of text are compared with what the block before them printed; otherwise
    they are left out.
    """
    code = [block for part in parts for block in blocks(page, part)]
    for old in shorter:
        assert any(old in text for _, text in code), old
    namespace = {}
    for language, text in code:
        for old, new in shorter.items():
            text = text.replace(old, new)
        if language == 'text':
            if capsys is not None:
                assert_printed(text, capsys.readouterr().out)
            continue
        if capsys is not None:
            capsys.readouterr()
        if language == 'python':
            exec(compile(text, page, 'exec'), namespace)
        assert language in ('python', 'bash'), language
        if language == 'bash':
            run_commands(text, call)
    return namespace


def run_commands(text, call):
    """Run a block of command lines; trainings are on few images at a time."""
    for line in text.replace('\\\n', ' ').splitlines():
        if not (words := shlex.split(line, comments=True)):
            continue
        program, command, *arguments = words
        assert program == 'cpvt' and command in COMMANDS, line
        if command in ('train', 'test'):
            arguments += ['--cfg-options', *SMALL]
        call(command.replace('-', '_'), *arguments)


def assert_printed(text, output):
    """Each part of a text, between lines of three dots, was printed; lines may be wrapped.

    Progress bars are left out.
    """
    lines = [line for line in output.splitlines() if '━' not in line]
    printed = ' '.join(' '.join(lines).split())
    for part in re.split(r'^\.\.\.$', text, flags=re.MULTILINE):
        wanted = ' '.join(part.split())
        assert wanted in printed, f'{wanted}\nis not in\n{printed}'
