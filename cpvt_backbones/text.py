"""Names of files and classes: printed, written to tables, and compared."""

import csv
import io
import re
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath
from typing import Any

LONGEST = 1000  # characters of a line
# Without U+DC80 to U+DCFF, which Python uses in names of files that are not UTF-8.
CONTROL = re.compile(r'[\x00-\x1f\x7f-\x9f\ud800-\udc7f\udd00-\udfff]')
FORMULA = ('=', '+', '-', '@', '\t', '\r')


def printable(text: str) -> str:
    """Escape control characters and surrogates, put text on one line and cut long text."""
    if len(text) > LONGEST:
        text = f'{text[: LONGEST // 2]} ... {text[-LONGEST // 2 :]}'
    return CONTROL.sub(lambda match: match[0].encode('unicode_escape').decode(), text)


def csv_text(rows: Iterable[Sequence[Any]]) -> str:
    """Format rows as CSV for programs and spreadsheets.

    Text that begins with ``=``, ``+``, ``-`` or ``@`` gets an apostrophe in front, so that
    spreadsheets do not compute it. Cells with line breaks are quoted.
    """
    lines = []
    for row in rows:
        text = io.StringIO(newline='')
        # The writer's line end has both characters, so that cells with either are quoted.
        csv.writer(text, lineterminator='\r\n').writerow([_inert(cell) for cell in row])
        lines.append(text.getvalue().removesuffix('\r\n') + '\n')
    return ''.join(lines)


def _inert(cell: Any) -> Any:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA) else cell


def plain(name: str) -> str:
    """Normalise a name: without case, and with accents in one character.

    Programs and systems write accents as one or two characters, and suffixes such as JPG in either
    case.
    """
    return unicodedata.normalize('NFC', name).casefold()


class Spellings:
    """Names that can be found regardless of case and Unicode form."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = {*names}
        self._by_plain: dict[str, list[str]] = {}
        for name in sorted(self._names):
            self._by_plain.setdefault(plain(name), []).append(name)

    def find(self, name: str) -> str:
        """Return the stored spelling of a name if it is unambiguous; otherwise the name itself."""
        found = self._by_plain.get(plain(name), [])
        return found[0] if name not in self._names and len(found) == 1 else name


def stems(names: Iterable[str]) -> dict[str, str]:
    """Map each path to its name without suffix."""
    return {name: PurePosixPath(name).with_suffix('').as_posix() for name in names}
