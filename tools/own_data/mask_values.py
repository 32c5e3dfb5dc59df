"""The values of a set of masks, counted."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .images import Size
from .mask_codes import COLOUR, rgb_of


@dataclass(frozen=True)
class MaskFacts:
    """Width and height of a mask, ``None`` if it cannot be read, and the number of pixels of each
    value.
    """

    size: Size | None
    values: Mapping[int, int]


@dataclass
class Values:
    """All values of a set of masks: number of pixels, and pixels in each mask that has the
    value.
    """

    pixels: Counter[int] = field(default_factory=Counter)
    files: dict[int, Counter[Path]] = field(default_factory=dict)

    def describe(self, value: int) -> str:
        """A value as ``value 9 (12 px, masks/3.png)``."""
        files = self.files[value]
        ((most, _),) = files.most_common(1)
        where = f'{most}' if len(files) == 1 else f'in {len(files)} masks, most in {most}'
        return f'{name_of(value)} ({self.pixels[value]} px, {where})'

    def share(self, value: int) -> str:
        """A value as ``value 9, 12.34% of the pixels``."""
        return f'{name_of(value)}, {self.pixels[value] / self.pixels.total():.2%} of the pixels'


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
    return values


def as_indices(facts: MaskFacts) -> MaskFacts:
    """Class indices of a grey mask that is stored as RGB."""
    values = Counter[int]()
    for value, count in facts.values.items():
        values[value & 0xFF if value >= COLOUR else value] += count
    return MaskFacts(facts.size, values)
