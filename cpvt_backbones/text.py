"""Names of a user's files and classes: in lines of a terminal, cells of a table, and compared."""

import csv
import io
import re
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath
from typing import Any

LONGEST = 1000  # characters of a line
# Not U+DC80 to U+DCFF, by which Python names files that are not UTF-8.
CONTROL = re.compile(r'[\x00-\x1f\x7f-\x9f\ud800-\udc7f\udd00-\udfff]')
FORMULA = ('=', '+', '-', '@', '\t', '\r')


def printable(text: str) -> str:
    """Text on one line, control characters and half characters as escapes; long text is cut."""
    if len(text) > LONGEST:
        text = f'{text[: LONGEST // 2]} ... {text[-LONGEST // 2 :]}'
    return CONTROL.sub(lambda match: match[0].encode('unicode_escape').decode(), text)


def csv_text(rows: Iterable[Sequence[Any]]) -> str:
    """Rows as CSV, for programs and spreadsheets.

    Text that a spreadsheet would compute, because it begins with ``=``, ``+``, ``-`` or ``@``, gets
    an apostrophe before it. Cells with line breaks are in quotes.
    """
    lines = []
    for row in rows:
        text = io.StringIO(newline='')
        # The line end of the writer has both characters, so that cells with either are quoted.
        csv.writer(text, lineterminator='\r\n').writerow([_inert(cell) for cell in row])
        lines.append(text.getvalue().removesuffix('\r\n') + '\n')
    return ''.join(lines)


def _inert(cell: Any) -> Any:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA) else cell


def plain(name: str) -> str:
    """A name without case, each letter with its accent as one character.

    Programs and systems write accents in one or two characters, and suffixes such as JPG in either
    case.
    """
    return unicodedata.normalize('NFC', name).casefold()


class Spellings:
    """Names, found by others that agree with them but for case and Unicode form."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = {*names}
        self._by_plain: dict[str, list[str]] = {}
        for name in sorted(self._names):
            self._by_plain.setdefault(plain(name), []).append(name)

    def find(self, name: str) -> str:
        """The name itself if it is there, or the only one that agrees with it; else the name."""
        found = self._by_plain.get(plain(name), [])
        return found[0] if name not in self._names and len(found) == 1 else name


def stems(names: Iterable[str]) -> dict[str, str]:
    """Each path without its suffix."""
    return {name: PurePosixPath(name).with_suffix('').as_posix() for name in names}
