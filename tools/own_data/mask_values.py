"""The values of a set of masks, counted."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from .images import Size
from .mask_codes import COLOUR, rgb_of


@dataclass(frozen=True)
class MaskFacts:
    """What is known of a mask file.

    Args:
        size: Width and height, px; ``None`` if it cannot be read.
        values: Number of pixels of each value.
        nodata: The value that it declares as ``nodata``, if that may be a class index.
        missing: Number of pixels without data, whose value is no class index.
        colours: RGB colours of its indices, of a file with a palette.
    """

    size: Size | None
    values: Mapping[int, int]
    nodata: int | None = None
    missing: int = 0
    colours: Sequence[tuple[int, ...]] = ()


@dataclass
class Values:
    """All values of a set of masks.

    Args:
        pixels: Number of pixels of each value.
        files: Pixels in each mask that has the value.
        nodata: Values that a mask has and declares as ``nodata``.
        missing: Number of pixels without data, whose value is no class index.
    """

    pixels: Counter[int] = field(default_factory=Counter)
    files: dict[int, Counter[Path]] = field(default_factory=dict)
    nodata: set[int] = field(default_factory=set)
    missing: int = 0

    def describe(self, value: int) -> str:
        """A value as ``value 9 (12 px, masks/3.png)``."""
        files = self.files[value]
        ((most, _),) = files.most_common(1)
        where = f'{most}' if len(files) == 1 else f'in {len(files)} masks, most in {most}'
        return f'{name_of(value)} ({self.pixels[value]} px, {where})'

    def share(self, value: int) -> str:
        """A value as ``value 9, 12.34% of the pixels``."""
        return f'{name_of(value)}, {self._percent(self.pixels[value])}'

    def share_missing(self) -> str:
        """The pixels without data as ``nodata, 12.34% of the pixels``."""
        return f'nodata, {self._percent(self.missing)}'

    def _percent(self, count: int) -> str:
        return f'{count / (self.pixels.total() + self.missing):.2%} of the pixels'


def name_of(value: int) -> str:
    """A value as ``value 9`` or ``colour (10, 20, 30)``."""
    return f'colour {rgb_of(value)}' if value >= COLOUR else f'value {value}'


def gather(facts: Mapping[Path, MaskFacts]) -> Values:
    """The values of all masks."""
    values = Values()
    for path, one in facts.items():
        values.pixels.update(one.values)
        for value, count in one.values.items():
            values.files.setdefault(value, Counter())[path] = count
        if one.nodata is not None and one.nodata in one.values:
            values.nodata.add(one.nodata)
        values.missing += one.missing
    return values


def as_indices(facts: MaskFacts) -> MaskFacts:
    """Class indices of a grey mask that is stored as RGB."""
    values = Counter[int]()
    for value, count in facts.values.items():
        values[value & 0xFF if value >= COLOUR else value] += count
    return replace(facts, values=values)
