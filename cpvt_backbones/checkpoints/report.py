"""The report of a conversion, and the error that carries it."""

from dataclasses import dataclass, field

from cpvt_backbones.errors import InputError

_TRUNK = 'backbone.'  # prefix of the backbone in the model of a toolbox


def shorten(items: list[str], *, shown: int = 4) -> str:
    """Join the first items of a list, with the number of the others."""
    more = len(items) - shown
    return ', '.join(items[:shown]) + (f' and {more} more' if more > 0 else '')


@dataclass
class ConversionReport:
    """What :func:`convert_state_dict` or :func:`export_state_dict` did; ``print(report)`` shows it.

    Attributes:
        source: Kind of checkpoint that was recognised, in words.
        target: Type of the model.
        prefix: Text that was removed from every key of the checkpoint, such as ``'backbone.'``.
        loaded: Keys of the result that come from the checkpoint.
        renamed: (key in the checkpoint, key in the result) where they differ.
        dropped: Keys of the checkpoint that the outputs do not need, and the reason.
        added: Keys of the result that the checkpoint lacks, and a description of their values.
        missing: Keys of the model that the result lacks, and why that is allowed; an empty
            reason: it is not allowed.
        mismatched: Keys of another shape, and both shapes: in the checkpoint and in the model.
        refused: Keys of the checkpoint that the model lacks and that may change the outputs, and
            the reason.
        notes: Any other change, in words, such as a learned table that was resized.

    Examples:
        >>> from cpvt_backbones import CPVT, convert_state_dict
        >>> deit = CPVT(arch='tiny', position=dict(type='Learned'))
        >>> model = CPVT(arch='tiny', position=dict(type='PEG'))
        >>> _, report = convert_state_dict(deit.state_dict(), model)
        >>> len(report.loaded), report.dropped['pos_embed.0']
        (149, 'the model has no learned table')
        >>> report.added['pos_block.0.proj.0.weight']
        'the source has no PEG: it starts as the identity'
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
        """A line of text for each key of another shape."""
        line = 'shape mismatch: {} is {} in the checkpoint, {} in the model'
        return [line.format(key, *shapes) for key, shapes in self.mismatched.items()]


class CheckpointError(RuntimeError, InputError):
    """Raised for a checkpoint that cannot be read, is not recognised, or does not fit the model.

    Args:
        message: What is wrong, and what to do.
        report: The :class:`ConversionReport` up to the error; ``None`` without a conversion.

    Examples:
        >>> from cpvt_backbones import CPVT, convert_state_dict
        >>> from cpvt_backbones.checkpoints import CheckpointError
        >>> model = CPVT(arch='tiny')
        >>> weights = model.state_dict()
        >>> del weights['norm.weight']
        >>> try:
        ...     convert_state_dict(weights, model)
        ... except CheckpointError as error:
        ...     print(list(error.report.missing))
        ['norm.weight']
    """

    def __init__(self, message: str, *, report: ConversionReport | None = None) -> None:
        super().__init__(message)
        self.report = report
