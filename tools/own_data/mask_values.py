"""Rules for the values of masks: which are classes, and what they are called."""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .files import read_lines
from .images import Size
from .mask_codes import COLOUR, GREY, IGNORE, in_one_piece, read_codes, rgb_of
from .report import Report

RARE = 1e-4  # of all pixels: a value that must be named
LARGEST = 254  # class index
INSTANCES = 3  # values that at least one mask of instance numbers has
SAMPLE = 20  # masks in which instances are looked for
NUMBER = r'(\d{1,3})'
NAME_FIRST = re.compile(rf'(.*\S)[\s,]+{NUMBER}[\s,]+{NUMBER}[\s,]+{NUMBER}')
COLOUR_FIRST = re.compile(rf'{NUMBER}[\s,]+{NUMBER}[\s,]+{NUMBER}[\s,]+(.*\S)')


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
        name = f'colour {rgb_of(value)}' if value >= COLOUR else f'value {value}'
        files = self.files[value]
        ((most, _),) = files.most_common(1)
        where = f'{most}' if len(files) == 1 else f'in {len(files)} masks, most in {most}'
        return f'{name} ({self.pixels[value]} px, {where})'


def read_classes(file: Path) -> tuple[list[str], list[tuple[int, int, int]]]:
    """Names of classes, one a line, and their colours, if each line has three numbers up to 255
    too.

    A line is ``NAME``, ``NAME RED GREEN BLUE`` or ``RED GREEN BLUE NAME``; commas may separate,
    too.
    """
    lines = read_lines(file)
    names, colours = [], []
    for line in lines:
        first, last = NAME_FIRST.fullmatch(line), COLOUR_FIRST.fullmatch(line)
        if first:
            name, numbers = first[1], (first[2], first[3], first[4])
        elif last:
            name, numbers = last[4], (last[1], last[2], last[3])
        else:
            continue
        red, green, blue = (int(number) for number in numbers)
        if max(red, green, blue) <= 255:
            names.append(name.rstrip(','))
            colours.append((red, green, blue))
    if colours and len(colours) < len(lines):
        raise ValueError(
            f'classes: {file} must have a colour in all lines or in none, got {lines[:3]}'
        )
    names = names or lines
    entries: dict[str, list[Any]] = dict(name=names, colour=colours)
    for kind, found in entries.items():
        if len({*found}) < len(found):
            twice = next(one for one in found if found.count(one) > 1)
            raise ValueError(f'classes: {file} must have each {kind} once, got {twice!r} twice')
    if not names:
        raise ValueError(f'classes: {file} must have the name of a class a line, got none')
    return names, colours


def find_classes(
    facts: Mapping[Path, MaskFacts],
    report: Report,
    *,
    classes: Path | None,
    ignore: Collection[int],
) -> tuple[list[str], dict[int, int]]:
    """Names of the classes, and the class index of each value of the masks that is in a class.

    Args:
        facts: Of each mask.
        report: Gets values that are refused: without name, or to be asked about.
        classes: File of names; without it classes are called by their index or colour.
        ignore: Indices that are no class.
    """
    names, colours = read_classes(classes) if classes else ([], [])
    values = _gather(facts)
    coloured = _are_colours(values, colours, report)
    if not coloured:
        facts = {path: _as_indices(one) for path, one in facts.items()}
        values = _gather(facts)
        _refuse_two_codes(facts, report)
    seen = {*values.pixels}
    if coloured and classes:
        # Names without colours say nothing of which is which.
        order = [COLOUR + (red << 16) + (green << 8) + blue for red, green, blue in colours]
    elif coloured:
        order = sorted(seen)
    else:
        order = _indices(seen, len(names), ignore)
    left_out = {order[i] for i in ignore if i < len(order)} if coloured else {*ignore}
    if classes:
        _compare_names(values, names, order, left_out, classes, report)
    elif len(order) <= LARGEST + 1 and not _refuse_instances(facts, report, coloured):
        _ask_about(values, {*order} - left_out, report)
    if len(order) > LARGEST + 1:
        most = max(values.pixels)
        reason = (
            f'more than {LARGEST + 1} classes: are these instance numbers, or were colours blended?'
        )
        report.add('refused', reason, values.describe(most))
        return [], {}
    kept = [i for i in range(len(order)) if i not in ignore]
    table = {order[i]: new for new, i in enumerate(kept)}
    if not coloured:
        table |= {
            COLOUR + GREY * value: index for value, index in table.items()
        }  # grey images stored as RGB
    return [names[i] if names else _default_name(order, i) for i in kept], table


def _refuse_two_codes(facts: Mapping[Path, MaskFacts], report: Report) -> None:
    """Refuse masks of 0 and 255 beside masks of 0 and 1, such as predicted class maps.

    Together, 255 would be no class.
    """
    of_255 = [path for path, one in facts.items() if {*one.values} | {0} == {0, IGNORE}]
    of_1 = [path for path, one in facts.items() if {*one.values} | {0} == {0, 1}]
    others = [path for path, one in facts.items() if {*one.values} - {0}]
    if of_255 and of_1 and len(of_255) + len(of_1) == len(others):
        for path in of_255:
            reason = 'masks of 0 and 255 beside masks of 0 and 1: use the same values in all'
            report.add('refused', reason, str(path))


def _indices(seen: Collection[int], names: int, ignore: Collection[int]) -> list[int]:
    """Values that are class indices: one a name, or up to the highest that a mask has."""
    if seen == {0, IGNORE} and names in (0, 2) and not ignore:
        return [0, IGNORE]
    if names:
        return [*range(names)]
    found = {*seen} - {IGNORE, *ignore}
    return [*range(max(found, default=0) + 1)]


def _compare_names(
    values: Values,
    names: Sequence[str],
    order: Sequence[int],
    left_out: Collection[int],
    classes: Path,
    report: Report,
) -> None:
    """Refuse values without a name; note names without a value."""
    for value in sorted({*values.pixels} - {*order, IGNORE, *left_out}):
        report.add(
            'refused', f'values of masks without a name in {classes}', values.describe(value)
        )
    for value, name in zip(order, names, strict=False):
        if value not in values.pixels and value not in left_out:
            report.add('note', 'classes that no mask has', name)


def _default_name(order: Sequence[int], index: int) -> str:
    value = order[index]
    return f'class_{value & 0xFFFFFF:06x}' if value >= COLOUR else f'class_{index}'


def _gather(facts: Mapping[Path, MaskFacts]) -> Values:
    values = Values()
    for path, one in facts.items():
        values.pixels.update(one.values)
        for value, count in one.values.items():
            values.files.setdefault(value, Counter())[path] = count
    return values


def _are_colours(values: Values, colours: Sequence[tuple[int, int, int]], report: Report) -> bool:
    """True for masks in colours. Grey RGB images are class indices, unless colours are named."""
    in_rgb = [value for value in values.pixels if value >= COLOUR]
    if not in_rgb or not (colours or any(len({*rgb_of(value)}) > 1 for value in in_rgb)):
        return False
    for value in sorted({*values.pixels} - {*in_rgb}):
        report.add(
            'refused', 'masks of class indices among masks in colours', values.describe(value)
        )
    return True


def _as_indices(facts: MaskFacts) -> MaskFacts:
    """Class indices of a grey mask that is stored as RGB."""
    values = Counter[int]()
    for value, count in facts.values.items():
        values[value & 0xFF if value >= COLOUR else value] += count
    return MaskFacts(facts.size, values)


def _ask_about(values: Values, order: Collection[int], report: Report) -> None:
    """Refuse values that may be mistakes: hardly a pixel, or none, although a higher value
    occurs.
    """
    total = sum(values.pixels.values())
    answer = 'name them in classes, or leave values out by ignore'
    for value in sorted(order):
        if value not in values.pixels:
            report.add(
                'refused', f'values below the highest that no mask has: {answer}', f'value {value}'
            )
        elif value and values.pixels[value] < RARE * total:
            report.add(
                'refused',
                f'values of fewer than {RARE:.2%} of the pixels: {answer}',
                values.describe(value),
            )


def _refuse_instances(facts: Mapping[Path, MaskFacts], report: Report, coloured: bool) -> bool:
    """Refuse masks that number the objects of an image: 1 to k, each in one piece, k different
    between images.
    """
    counts = {}
    for path, one in facts.items():
        found = {*one.values} - {0}
        if coloured or found != {*range(1, len(found) + 1)}:
            return False
        counts[path] = len(found)
    if len({*counts.values()}) < 2 or max(counts.values()) < INSTANCES:
        return False
    sample = sorted((path for path in counts if counts[path]), key=lambda path: -counts[path])[
        :SAMPLE
    ]
    pieces = []
    for path in sample:
        codes = read_codes(path) & 0xFF
        pieces += [in_one_piece(codes == value) for value in range(1, counts[path] + 1)]
    if np.mean(pieces) < 0.8:
        return False
    reason = (
        'masks that number objects from 1: the form instances takes them; for classes, name them'
        ' in classes'
    )
    for path in sample:
        report.add('refused', reason, str(path))
    return True
