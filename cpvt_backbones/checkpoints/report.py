"""Report and errors of a conversion, and the normalisation that weights require."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from os import PathLike

import numpy as np

from cpvt_backbones.errors import InputError
from cpvt_backbones.text import printable

_ROUNDING = 0.1  # of 255: ImageNet's mean and CLIP's differ by 0.9
_TRUNK = 'backbone.'  # prefix of the backbone in the model of a toolbox


def shorten(items: list[str], *, shown: int = 4) -> str:
    """Join the first items of a list, and add the number of further items."""
    more = len(items) - shown
    return ', '.join(items[:shown]) + (f' and {more} more' if more > 0 else '')


@dataclass(frozen=True)
class Normalisation:
    """Mean and standard deviation by which images are normalised, in the scale of 8-bit pixels.

    Args:
        mean: Mean of each channel, 0 to 255.
        std: Standard deviation of each channel, in the same scale.
        rgb: Three channels are red, green and blue; otherwise blue, green and red.
        source: Where the values come from, in words.

    Examples:
        >>> from cpvt_backbones.checkpoints import find_normalisation
        >>> found = find_normalisation('segmenter_vit_small-ade20k')
        >>> found.mean, found.std, found.rgb
        ((127.5, 127.5, 127.5), (127.5, 127.5, 127.5), True)
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    rgb: bool = True
    source: str = ''

    def __str__(self) -> str:
        order = f' of {"RGB" if self.rgb else "BGR"}' if len(self.mean) == 3 else ''
        mean, std = (', '.join(map('{:.7g}'.format, one)) for one in (self.mean, self.std))
        return f'mean [{mean}] and std [{std}]{order}'

    def agrees(self, other: 'Normalisation') -> bool:
        """``True`` if both normalise images of three channels alike, up to rounding.

        A single value applies to all channels.
        """
        for ours, theirs in ((self.mean, other.mean), (self.std, other.std)):
            alike = len(ours) == len(theirs) or 1 in (len(ours), len(theirs))
            if not alike or np.abs(np.subtract(ours, theirs)).max() > _ROUNDING:
                return False
        return self.rgb == other.rgb


class Reason(str, Enum):
    """Why the result lacks a key of the checkpoint, or has values that the checkpoint lacks."""

    NO_TENSOR = 'no tensor'
    COMPUTED = 'computed by the formula'
    KEY_BIAS = 'applied to the bias: that of keys is zero'
    PRETRAINING = 'of masked pretraining'
    DECODER = 'decoder of masked pretraining'
    NOT_BUILT = 'of a block or stage that no output needs (out_indices)'

    NOT_UNDER_PREFIX = 'not under the prefix'
    HEAD = 'classifier head'
    POOLING = 'pooling for a classifier'
    PROJECTION = 'projection of contrastive pretraining'
    NECK = 'neck behind the trunk'
    PYRAMID = 'only MultiScaleCPVT has it'

    NO_CLS_TOKEN = 'the model has no class token'
    NO_DIST_TOKEN = 'the model has no distillation token'
    NO_REGISTERS = 'the model has no register tokens'
    NO_EMBEDDING = 'the model has no learned position embedding'
    NO_PEG = 'the model has no such PEG'
    NO_FREQUENCIES = 'the model has no learned rotary frequencies'
    NO_RELATIVE = 'the model has no relative position encoding'
    NO_LAST_NORM = 'the model does not normalise its last block'

    NO_KEY_THERE = 'the other package has no such key'
    NO_NORM_THERE = "mmseg's PCPVT has no final norm"

    ZERO_BIAS = 'zero: the source embeds patches without a bias'
    IDENTITY_PEG = 'the source has no PEG: it starts as the identity'
    POOLED_NORM = (
        'the source averages tokens and normalises the mean; this package does the reverse'
    )

    def __str__(self) -> str:
        return self.value


# Reasons to drop a key that changes no output, also of heads and necks.
NOT_USED = frozenset(
    {
        Reason.NO_TENSOR,
        Reason.COMPUTED,
        Reason.KEY_BIAS,
        Reason.PRETRAINING,
        Reason.DECODER,
        Reason.NOT_BUILT,
    }
)
# Reasons for which the outputs of a model differ from those of the source.
OTHER_OUTPUTS = frozenset(
    {
        Reason.NO_CLS_TOKEN,
        Reason.NO_DIST_TOKEN,
        Reason.NO_REGISTERS,
        Reason.NO_EMBEDDING,
        Reason.NO_PEG,
        Reason.NO_FREQUENCIES,
        Reason.NO_RELATIVE,
        Reason.NO_LAST_NORM,
        Reason.IDENTITY_PEG,
        Reason.POOLED_NORM,
    }
)


@dataclass
class ConversionReport:
    """Report of :func:`convert_state_dict` or :func:`export_state_dict`; print it to read it.

    Attributes:
        source: Recognised kind of checkpoint, in words.
        target: Type of the model.
        prefix: Prefix that was removed from every key of the checkpoint, such as ``'backbone.'``.
        loaded: Keys of the result that come from the checkpoint.
        renamed: Pairs (key in the checkpoint, key in the result) that differ.
        dropped: Keys of the checkpoint that the outputs do not need, with the :class:`Reason`.
        added: Keys of the result that the checkpoint lacks, with a :class:`Reason` that describes
            their values.
        missing: Keys of the model that the result lacks, with the reason why that is allowed; empty
            if it is not allowed.
        mismatched: Keys of another shape, with both shapes: in the checkpoint and in the model.
        refused: Keys of the checkpoint that the model lacks and that may change the outputs, with
            the reason.
        notes: Other changes, in words, such as a resized position embedding.
        normalisation: Mean and standard deviation of the images that the weights were trained on;
            ``None`` if unknown.

    Examples:
        >>> from cpvt_backbones import CPVT, convert_state_dict
        >>> deit = CPVT(arch='tiny', position=dict(type='Learned'))
        >>> model = CPVT(arch='tiny', position=dict(type='PEG'))
        >>> _, report = convert_state_dict(deit.state_dict(), model)
        >>> len(report.loaded), report.dropped['pos_embed.0'].value
        (149, 'the model has no learned position embedding')
        >>> print(report.added['pos_block.0.proj.0.weight'])
        the source has no PEG: it starts as the identity
    """

    source: str = ''
    target: str = ''
    prefix: str = ''
    loaded: list[str] = field(default_factory=list)
    renamed: list[tuple[str, str]] = field(default_factory=list)
    dropped: dict[str, Reason] = field(default_factory=dict)
    added: dict[str, Reason] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    mismatched: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    normalisation: Normalisation | None = None

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
            if self.prefix == _TRUNK:  # the first line says it
                by_reason.pop(Reason.NOT_UNDER_PREFIX, None)
            for reason, group in by_reason.items():
                lines.append(
                    f'  {title} {len(group)}: {shorten(group)}' + (f' ({reason})' if reason else '')
                )
        lines += [f'  {mismatch}' for mismatch in self.mismatches()]
        if self.normalisation is not None:
            lines.append(f'  images: {self.normalisation} ({self.normalisation.source})')
        lines += [f'  note: {note}' for note in self.notes]
        return '\n'.join(map(printable, lines))  # keys are text of the file

    def mismatches(self) -> list[str]:
        """Return a line of text for each key of another shape."""
        line = 'shape mismatch: {} is {} in the checkpoint, {} in the model'
        return [line.format(key, *shapes) for key, shapes in self.mismatched.items()]


class CheckpointError(RuntimeError, InputError):
    """Raised for a checkpoint that cannot be read, is not recognised, or does not fit the model.

    Args:
        message: The problem and the cure.
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


class FetchError(CheckpointError):
    """Raised for weights that cannot be fetched; the message says where to put the file."""


@contextmanager
def naming_file(checkpoint: str | PathLike[str]) -> Iterator[None]:
    """Context that adds the file to the message of a :class:`CheckpointError`."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(
            f'checkpoint {str(checkpoint)!r}: {error}', report=error.report
        ) from error
