"""The table of what became of each image and label."""

from collections import Counter
from pathlib import Path

from cpvt_backbones.errors import InputError
from cpvt_backbones.text import printable

# In the order of the table. Notes change nothing and refuse nothing.
OUTCOMES = ('note', 'skipped', 'altered', 'refused')
SHOWN = 3  # files of a reason
SHOWN_CLASSES = 10


class Fault(ValueError):
    """One image or label that is left out.

    Args:
        outcome: ``'skipped'``: the training does without it; ``'refused'``: no config is written.
        reason: Text that is the same for every image or label with the same fault.
        detail: What differs between these, such as the value.
    """

    def __init__(self, outcome: str, reason: str, detail: str = '') -> None:
        super().__init__(reason)
        self.outcome = outcome
        self.reason = reason
        self.detail = detail


class Report:
    """Counts of what was read and used, the classes, and the files of each reason to skip, alter or
    refuse.
    """

    def __init__(self) -> None:
        self.read = Counter[str]()
        self.used = Counter[str]()
        self.classes: list[str] = []  # index, name, and how much there is of each
        self.found: dict[tuple[str, str], list[str]] = {}

    def add(self, outcome: str, reason: str, where: str) -> None:
        """Record that ``where`` (a file, and maybe a detail) has one of ``OUTCOMES`` for this
        reason.
        """
        if outcome not in OUTCOMES:
            raise ValueError(f'outcome must be one of {OUTCOMES}, got {outcome!r}')
        self.found.setdefault((outcome, reason), []).append(printable(where))

    def add_fault(self, fault: Fault, where: str) -> None:
        """Record a fault of ``where``."""
        detail = f' ({fault.detail})' if fault.detail else ''
        self.add(fault.outcome, fault.reason, f'{where}{detail}')

    def count(self, *outcomes: str) -> int:
        """Number of images and labels with these outcomes."""
        return sum(len(files) for (outcome, _), files in self.found.items() if outcome in outcomes)

    @property
    def is_long(self) -> bool:
        """True if the table shows less than there is."""
        return bool(self.found) or len(self.classes) > SHOWN_CLASSES

    def finish(self, *, strict: bool = False, file: Path | None = None) -> None:
        """Print the table; ``InputError`` if anything is refused, or with ``strict`` skipped or
        altered.

        Args:
            strict: Refuse what is skipped or altered too.
            file: CSV file that has every entry, if there are any.
        """
        fatal = ('skipped', 'altered', 'refused') if strict else ('refused',)
        count = self.count(*fatal)
        for line in self.lines():
            print(line)
        if count:
            print('data refused' + _whole_list(file))
            why = ' by strict' if strict and not self.count('refused') else ''
            raise InputError(f'data: {count} refused{why}; the table above says what and why')

    def accept(self, file: Path | None = None) -> None:
        """Print that the data are accepted, after all that can fail.

        Args:
            file: CSV file that has every entry, if there are any.
        """
        print('data accepted' + _whole_list(file))

    def rows(self) -> list[tuple[str, str, str]]:
        """Outcome, reason and file of each entry, in the order of the table, and the classes."""
        rows = [('class', '', printable(line.strip())) for line in self.classes]
        for outcome in OUTCOMES:
            for (kind, reason), files in self.found.items():
                if kind == outcome:
                    rows += [(outcome, reason, where) for where in files]
        return rows

    def lines(self) -> list[str]:
        """The lines of the table: counts, classes, then outcome, count, reason, first files."""
        lines = []
        for name, counts in (('read', self.read), ('used', self.used)):
            lines += [f'{name:8} {count:7} {what}' for what, count in counts.items() if count]
        lines += [f'{"class":8} {printable(line)}' for line in self.classes[:SHOWN_CLASSES]]
        if len(self.classes) > SHOWN_CLASSES:
            lines.append(f'{"class":8} {"...":>7} {len(self.classes) - SHOWN_CLASSES} more classes')
        for outcome in OUTCOMES:
            for (kind, reason), files in self.found.items():
                if kind == outcome:
                    lines.append(f'{outcome:8} {len(files):7} {_sentence(reason, files)}')
        return lines


def _whole_list(file: Path | None) -> str:
    return f'; the whole list: {file}' if file else ''


def _sentence(reason: str, files: list[str]) -> str:
    more = ', ...' if len(files) > SHOWN else ''
    return f'{reason}: {", ".join(files[:SHOWN])}{more}'
