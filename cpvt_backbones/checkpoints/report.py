"""The report of a conversion, and the error that carries it."""

from dataclasses import dataclass, field


def shorten(items: list[str], *, shown: int = 4) -> str:
    """Join the first items of a list, with the number of the others."""
    more = len(items) - shown
    return ', '.join(items[:shown]) + (f' and {more} more' if more > 0 else '')


@dataclass
class ConversionReport:
    """Report of a conversion; ``str()`` of it is for people.

    Attributes:
        source: Recognised kind of checkpoint.
        target: Type of the model.
        prefix: Removed from every key.
        loaded: Keys of the result that come from the checkpoint.
        renamed: (key in the checkpoint, key in the result), where they differ by more than the prefix.
        dropped: Key of the checkpoint to the reason it is not in the result.
        added: Key of the result that the checkpoint lacks, to a description of its value.
        missing: Key of the model that the result lacks, to the reason it may, or ``''``.
        mismatched: Key to its shape in the checkpoint and in the model.
        refused: Key of the checkpoint to the reason the model needs it and cannot take it.
        notes: Any other change.
    """

    source: str = ''
    target: str = ''
    prefix: str = ''
    loaded: list[str] = field(default_factory=list)
    renamed: list[tuple[str, str]] = field(default_factory=list)
    dropped: dict[str, str] = field(default_factory=dict)
    added: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    mismatched: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        prefix = f" (under '{self.prefix}')" if self.prefix else ''
        lines = [f'{self.source}{prefix} to {self.target}: {len(self.loaded)} keys loaded']
        if self.renamed:
            pairs = [f'{old} -> {new}' for old, new in self.renamed]
            lines.append(f'  renamed {len(pairs)}: {shorten(pairs)}')
        for title in ('dropped', 'added', 'missing', 'refused'):
            by_reason: dict[str, list[str]] = {}
            for key, reason in getattr(self, title).items():
                by_reason.setdefault(reason, []).append(key)
            for reason, group in by_reason.items():
                lines.append(f'  {title} {len(group)}: {shorten(group)}' + (f' ({reason})' if reason else ''))
        lines += [
            f'  shape mismatch: {key} is {old} in the checkpoint, {new} in the model'
            for key, (old, new) in self.mismatched.items()
        ]
        return '\n'.join(lines + [f'  note: {note}' for note in self.notes])


class CheckpointError(RuntimeError, ValueError):
    """A checkpoint that cannot be read, is not recognised, or does not fit the model.

    It is a ValueError too, because the argument that names the checkpoint is wrong.

    Args:
        message: One line: the fault, and the file or keys that have it.
        report: Report of the conversion that failed.
    """

    def __init__(self, message: str, *, report: ConversionReport | None = None) -> None:
        super().__init__(message)
        self.report = report
