"""The page of command lines: what each command prints for ``--help``."""

import contextlib
import io
import os
import sys

from cpvt.__main__ import COMMANDS

HEAD = """# Command lines

The command `cpvt` and its commands, with all arguments. `cpvt NAME --help` prints the same, and
so do the scripts of the folder `tools` of a clone, such as `python tools/train.py`. How to use
them: [Train on your own data](../own_data.md), [prediction](../inference.md),
[export](../export.md).

"""


def command_lines() -> str:
    """The page as Markdown."""
    text = HEAD
    os.environ['COLUMNS'] = '77'  # the text has two columns less, which fits the page
    for name, (command, _) in COMMANDS.items():
        shown = io.StringIO()
        sys.argv[0] = f'cpvt {name}'
        with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
            command.main(['--help'])
        block = f'```text\n{shown.getvalue()}```'
        text += f'## cpvt {name}\n\n<div class="help" markdown>\n\n{block}\n\n</div>\n\n'
    return text
