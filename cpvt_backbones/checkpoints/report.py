"""The report of a conversion, and the error that carries it."""

from dataclasses import dataclass, field

_TRUNK = 'backbone.'  # prefix of the backbone in the model of a toolbox


def shorten(items: list[str], *, shown: int = 4) -> str:
    """Join the first items of a list, with the number of the others."""
    more = len(items) - shown
    return ', '.join(items[:shown]) + (f' and {more} more' if more > 0 else '')


@dataclass
class ConversionReport:
    """Report of a conversion; ``str()`` of it is for people."""

    # Recognised kind of checkpoint, type of the model, and what was removed from every key.
    source: str = ''
    target: str = ''
    prefix: str = ''
    # Keys of the result that come from the checkpoint.
    loaded: list[str] = field(default_factory=list)
    # (key in the checkpoint, key in the result)
    renamed: list[tuple[str, str]] = field(default_factory=list)
    # Key of the checkpoint that the outputs do not need, to the reason.
    dropped: dict[str, str] = field(default_factory=dict)
    # Key that the checkpoint lacks, to a description of its value.
    added: dict[str, str] = field(default_factory=dict)
    # Key that the result lacks, to the reason why it may; '' if it may not.
    missing: dict[str, str] = field(default_factory=dict)
    # Key to both shapes.
    mismatched: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=dict)
    # Key of the checkpoint that the model lacks and that may change the outputs, to the reason.
    refused: dict[str, str] = field(default_factory=dict)
    # Any other change.
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        prefix = f" (under '{self.prefix}')" if self.prefix else ''
        lines = [f'{self.source}{prefix} to {self.target}: {len(self.loaded)} keys loaded']
        pairs = [f'{old} -> {new}' for old, new in self.renamed if old not in self.dropped]
        if pairs:
            lines.append(f'  renamed {len(pairs)}: {shorten(pairs)}')
        for title in ('dropped', 'added', 'missing', 'refused'):
            by_reason: dict[str, list[str]] = {}
            for key, reason in getattr(self, title).items():
                by_reason.setdefault(reason, []).append(key)
            by_reason.pop(f'not under {_TRUNK!r}', None)  # neck and heads; the first line says it
            for reason, group in by_reason.items():
                lines.append(
                    f'  {title} {len(group)}: {shorten(group)}' + (f' ({reason})' if reason else '')
                )
        lines += [f'  {mismatch}' for mismatch in self.mismatches()]
        return '\n'.join(lines + [f'  note: {note}' for note in self.notes])

    def mismatches(self) -> list[str]:
        """A line for each key of another shape."""
        line = 'shape mismatch: {} is {} in the checkpoint, {} in the model'
        return [line.format(key, *shapes) for key, shapes in self.mismatched.items()]


class CheckpointError(RuntimeError, ValueError):
    """A checkpoint that cannot be read, is not recognised, or does not fit the model."""

    def __init__(self, message: str, *, report: ConversionReport | None = None) -> None:
        super().__init__(message)
        self.report = report
