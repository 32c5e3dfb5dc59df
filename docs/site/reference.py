"""Pages of docs/api that are written from the code: `make reference`."""

import contextlib
import io
import os
import sys
from pathlib import Path
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


if __name__ == '__main__':
    (FOLDER / 'command_line.md').write_text(command_lines(), encoding='utf-8')
