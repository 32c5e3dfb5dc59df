"""Rules for the values of masks: which are classes, and their names."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import cv2
import numpy as np

from ..dataset import Finding, check_names
from ..read.masks import (
    COLOUR,
    GREY,
    IGNORE,
    ClassNames,
    MaskedImages,
    MaskFacts,
    in_one_piece,
    read_mask,
    rgb_of,
)

LARGEST = 254  # class index
RARE = 1e-4  # share of all pixels: a value that must be named
INSTANCES = 3  # values in at least one mask of instance numbers
SAMPLE = 20  # masks that are searched for instances and blurred edges
EDGE_VALUES = 4  # minimum share of blurred masks
MANY = 32  # share of values that a class map has in some square of 3 x 3 px
MOST_IGNORED = 0.5  # share of all pixels with 255, unless --ignore 255 confirms it
SHOWN = 10  # values of an option


@dataclass
class Values:
    """All values of a set of masks.

    Args:
        pixels: Number of pixels of each value.
        files: Number of pixels in each mask that has the value.
        nodata: Values that a mask has and declares as ``nodata``.
        missing: Number of pixels without data, whose value is not a class index.
    """

    pixels: Counter[int] = field(default_factory=Counter)
    files: dict[int, Counter[Path]] = field(default_factory=dict)
    nodata: set[int] = field(default_factory=set)
    missing: int = 0

    def describe(self, value: int) -> str:
        """Format a value as ``value 9 (12 px, 0.03%, masks/3.png)``."""
        files = self.files[value]
        ((most, _),) = files.most_common(1)
        where = f'{most}' if len(files) == 1 else f'in {len(files)} masks, most in {most}'
        count = self.pixels[value]
        return f'{name_of(value)} ({count} px, {self._part(count):.2%}, {where})'

    def share(self, value: int) -> str:
        """Format a value as ``value 9, 12.34% of the pixels``."""
        return f'{name_of(value)}, {self.percent(self.pixels[value])}'

    def percent(self, count: int) -> str:
        """Format a number of pixels as ``12.34% of the pixels``."""
        return f'{self._part(count):.2%} of the pixels'

    def _part(self, count: int) -> float:
        return count / (self.pixels.total() + self.missing)


def name_of(value: int) -> str:
    """Format a value as ``value 9`` or ``colour (10, 20, 30)``."""
    return f'colour {rgb_of(value)}' if value >= COLOUR else f'value {value}'


def gather(facts: Mapping[Path, MaskFacts]) -> Values:
    """Collect the values of all masks."""
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
    """Convert a grey mask stored as RGB to class indices."""
    values = Counter[int]()
    for value, count in facts.values.items():
        values[value & 0xFF if value >= COLOUR else value] += count
    return replace(facts, values=values)


@dataclass
class MaskClasses:
    """Classes of masks.

    Args:
        names: Names of the classes; none if values are refused.
        table: Class index of each value in the masks.
        shares: Lines of the report: the share of each class, and of pixels without class.
        findings: Entries of the report: refused values, and notes.
    """

    names: list[str] = field(default_factory=list)
    table: dict[int, int] = field(default_factory=dict)
    shares: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def find_classes(masks: MaskedImages, *, ignore: Collection[int] = ()) -> MaskClasses:
    """Find the classes of masks.

    255 is a class if all masks together have only the values 0 and 255, or if it is named with its
    colour, 255 255 255; otherwise it is not. A value that masks declare as ``nodata`` is not a
    class unless its colour is named. If it would otherwise be a class, it is refused.

    Args:
        masks: The masks, which are judged only if all can be read. Without names from the user,
            classes are named by their value or colour.
        ignore: Values without class; for classes with colours, their numbers from 0.
    """
    facts, named = masks.facts, masks.named
    if not facts or any(one.size is None for one in facts.values()):
        return MaskClasses()
    values = gather(facts)
    # Grey RGB images hold class indices.
    coloured = any(len({*rgb_of(value)}) > 1 for value in values.pixels if value >= COLOUR)
    found = refuse_indices(values) if coloured else []
    if not coloured:
        facts = {path: as_indices(one) for path, one in facts.items()}
        values = gather(facts)
    order = _order(values, named, {*ignore, *values.nodata}, coloured=coloured)
    left_out = {order[i] if i < len(order) else i for i in ignore}
    of_colours = coloured or bool(named and named.colours)
    mistakes = [] if of_colours else refuse_nodata_class(values, order, left_out)
    left_out |= values.nodata - {*order}
    mistakes = mistakes or _find_mistakes(
        facts, values, order, left_out, named=named, of_colours=of_colours
    )
    found += mistakes
    if any(outcome == 'refused' for outcome, *_ in mistakes):
        return MaskClasses(findings=found)
    kept = [i for i, value in enumerate(order) if value not in left_out]
    table = {order[i]: new for new, i in enumerate(kept)}
    names = [named.names[i] if named else _default_name(order[i]) for i in kept]
    if named:
        found += check_names(names, str(named.file))
    shares = _list_classes(values, names, table)
    found += refuse_shares(values, names, table, left_out)
    if not coloured:  # grey images are stored as RGB, too
        table |= {COLOUR + GREY * value: i for value, i in table.items() if value < COLOUR}
    return MaskClasses(names, table, shares, found)


def _order(
    values: Values, named: ClassNames | None, ignore: Collection[int], *, coloured: bool
) -> list[int]:
    """Return the values that are classes, in the order of the classes."""
    if named and named.colours:
        return [_code_of(colour, coloured=coloured) for colour in named.colours]
    if coloured:
        # Names without colours cannot be assigned to colours.
        return [] if named else sorted(values.pixels)
    if {*values.pixels} == {0, IGNORE} and IGNORE not in ignore:
        return [0, IGNORE]
    if named:
        return [*range(len(named.names))]
    found = {*values.pixels} - {IGNORE, *ignore}
    return [*range(max(found, default=0) + 1)]


def _code_of(colour: tuple[int, int, int], *, coloured: bool) -> int:
    red, green, blue = colour
    is_index = not coloured and red == green == blue
    return red if is_index else COLOUR + (red << 16) + (green << 8) + blue


def _find_mistakes(
    facts: Mapping[Path, MaskFacts],
    values: Values,
    order: Sequence[int],
    left_out: Collection[int],
    *,
    named: ClassNames | None,
    of_colours: bool,
) -> list[Finding]:
    """Refuse values that must be mistakes, by the first rule that applies, or note some."""
    is_complete = named is not None and {*values.pixels} <= {*order, *left_out}
    found = [] if of_colours else refuse_palettes(facts)
    if not found and not is_complete:
        found = refuse_blurred(facts)
    if not found and not of_colours:
        found = refuse_two_codes(facts, {*order, *left_out})
    if found:
        return found
    if named:
        return compare_names(values, named, order, left_out)
    if len(order) > LARGEST + 1:
        reason = (
            f'more than {LARGEST + 1} classes: are these instance numbers, or were colours blended?'
        )
        return [('refused', reason, values.describe(max(values.pixels)))]
    found = refuse_instances(facts, of_colours)
    return found or refuse_unlikely_values(values, order, left_out)


def _default_name(value: int) -> str:
    return f'class_{value & 0xFFFFFF:06x}' if value >= COLOUR else f'class_{value}'


def _list_classes(values: Values, names: Sequence[str], table: Mapping[int, int]) -> list[str]:
    """Describe value and share of each class, and of pixels without class."""
    lines = [f'{index:7} {names[index]}: {values.share(value)}' for value, index in table.items()]
    for value in sorted({*values.pixels} - {*table}):
        lines.append(f'{"-":>7} no class: {values.share(value)}')
    if values.missing:
        lines.append(f'{"-":>7} no class: nodata, {values.percent(values.missing)}')
    return lines


def refuse_indices(values: Values) -> list[Finding]:
    """Refuse class indices among colours."""
    reason = 'masks of class indices among masks in colours'
    indices = sorted(value for value in values.pixels if value < COLOUR)
    return [('refused', reason, values.describe(value)) for value in indices]


def compare_names(
    values: Values, named: ClassNames, order: Sequence[int], left_out: Collection[int]
) -> list[Finding]:
    """Refuse values without a name; otherwise note names without a value."""
    known = {*order, *left_out} if named.colours else {*order, IGNORE, *left_out}
    unnamed = sorted({*values.pixels} - known)
    found = []
    if unnamed:
        reason = (
            f'values of masks without a name in {named.file}: {_cure(unnamed, named, left_out)}'
        )
        found = [('refused', reason, values.describe(value)) for value in unnamed]
    if [*order] == [0, IGNORE] and len(named.names) != 2:
        reason = 'masks of 0 and 255 have two classes; --ignore 255 leaves 255 out'
        found.append(('refused', reason, f'{named.file} names {len(named.names)}'))
    if found:
        return found
    return [
        ('note', 'classes that no mask has', name)
        for value, name in zip(order, named.names, strict=False)
        if value not in values.pixels and value not in left_out
    ]


def _cure(unnamed: Sequence[int], named: ClassNames, left_out: Collection[int]) -> str:
    """Say how to leave out values without a name, which are sorted, or how to name them."""
    first, last, count = unnamed[0], unnamed[-1], len(named.names)
    end = count + len(unnamed)
    lines = f'line {end}' if len(unnamed) == 1 else f'lines {count + 1} to {end}'
    ignore = f'if they are no class, {_ignore({*unnamed, *left_out})}'
    if named.colours:
        name_them = f'add {lines}, such as {_line_of(last)!r}'
        if count <= first and last < COLOUR:
            return f'{ignore}; else {name_them}'
        # Smaller numbers, and those of colours, mean lines.
        return f'{name_them}; if they are no class, also {_ignore(range(count, end))}'
    if last >= COLOUR:
        return f'give each line the colour of its class, such as {_line_of(last)!r}'
    is_next = last == end - 1
    return f'{ignore}; else {f"add {lines} to it" if is_next else _how_to_name(last)}'


def _how_to_name(last: int) -> str:
    """Say how to name values of which the largest is ``last``."""
    text = f'list the names of all values from 0 to {last}'
    if last <= IGNORE:
        text += (
            f', or give each line the value of its class three times, such as {_line_of(last)!r}'
        )
    return text


def _ignore(values: Iterable[int]) -> str:
    """Return the option that leaves values out, shortened if there are many."""
    texts = [str(value) for value in sorted(values)]
    more = ' ...' if len(texts) > SHOWN else ''
    return f'--ignore {" ".join(texts[:SHOWN])}{more}'


def _line_of(value: int) -> str:
    """Return a line of class names for a value or colour; a value is written as a grey colour."""
    colour = rgb_of(value) if value >= COLOUR else (value,) * 3
    return f'road {" ".join(map(str, colour))}'


def refuse_unlikely_values(
    values: Values, order: Sequence[int], left_out: Collection[int]
) -> list[Finding]:
    """Refuse values with few pixels or none, although a higher value occurs."""
    refused = []
    total = values.pixels.total()
    known = {*order} & {*values.pixels} - {*left_out}
    missing = [value for value in order if value not in values.pixels and value not in left_out]
    if missing:
        above = sorted(value for value in known if value > missing[0])
        reason = f'values with gaps: in --classes, {_how_to_name(above[-1])}'
        if len(above) == 1 and missing[0] > 1:
            reason += f'; if {above[0]} is no class, {_ignore({*above, *left_out})}'
        text = ', '.join(map(str, sorted(values.pixels)))
        refused.append(('refused', reason, f'the masks have {text}, but no {missing[0]}'))
    rare = sorted(value for value in known if value and values.pixels[value] < RARE * total)
    for value in rare:
        reason = (
            f'values of fewer than {RARE:.2%} of the pixels: if they are no class,'
            f' {_ignore({*rare, *left_out})}; else name all values in --classes'
        )
        refused.append(('refused', reason, values.describe(value)))
    return refused


def refuse_nodata_class(
    values: Values, order: Sequence[int], left_out: Collection[int]
) -> list[Finding]:
    """Refuse classes whose value masks declare as ``nodata``.

    Some tools declare 0 and mean the background.
    """
    found = []
    for value in sorted(values.nodata & {*order} - {*left_out}):
        reason = (
            f'masks that declare a class as nodata: --ignore {value} leaves it out; in --classes,'
            f' the line {_line_of(value)!r} makes it a class'
        )
        found.append(('refused', reason, values.describe(value)))
    return found


def refuse_instances(facts: Mapping[Path, MaskFacts], coloured: bool) -> list[Finding]:
    """Refuse masks that number the objects of an image.

    Such masks have values 1 to k, each in one piece, where k differs between images.
    """
    counts = {}
    for path, one in facts.items():
        found = {*one.values} - {0}
        if coloured or found != {*range(1, len(found) + 1)}:
            return []
        counts[path] = len(found)
    if len({*counts.values()}) < 2 or max(counts.values()) < INSTANCES:
        return []
    numbered = [path for path, count in counts.items() if count]
    sample = sorted(numbered, key=lambda path: -counts[path])[:SAMPLE]
    pieces = []
    for path in sample:
        codes = read_mask(path).codes & 0xFF
        pieces += [in_one_piece(codes == value) for value in range(1, counts[path] + 1)]
    if np.mean(pieces) < 0.8:
        return []
    reason = (
        'masks that number objects from 1: the format instances reads them; for classes, name them'
        ' in classes'
    )
    return [('refused', reason, str(path)) for path in sample]


def refuse_palettes(facts: Mapping[Path, MaskFacts]) -> list[Finding]:
    """Refuse values whose palette colours differ between masks.

    The values mean nothing if a program chooses a palette for each file.
    """
    seen: dict[int, dict[tuple[int, ...], Path]] = {}
    for path, one in facts.items():
        for value in one.values:
            if value < len(one.colours):
                seen.setdefault(value, {}).setdefault(one.colours[value], path)
    reason = (
        'values whose colours differ from palette to palette: in --classes, give each line the'
        " colour of its class, such as 'road 128 64 0', or its value three times, such as"
        " 'road 9 9 9'"
    )
    found = []
    for value, colours in seen.items():
        if len(colours) > 1:
            first, second, *_ = (f'{colour} in {path}' for colour, path in colours.items())
            found.append(('refused', reason, f'{name_of(value)}: {first}, {second}'))
    return found


def refuse_two_codes(facts: Mapping[Path, MaskFacts], known: Collection[int]) -> list[Finding]:
    """Refuse masks with 0 and 255 beside masks with other values, such as predicted class maps.

    There, 255 could mean a class or no class. It means no class if it is ``known``, or if more
    masks have it beside other values than alone.
    """
    if IGNORE in known:
        return []
    alone, beside, others = [], 0, 0
    for path, one in facts.items():
        found = {*one.values} - {0}
        if found == {IGNORE}:
            alone.append(path)
        elif IGNORE in found:
            beside += 1
        elif found:
            others += 1
    if not others + beside or len(alone) <= beside:
        return []
    reason = (
        'masks of 0 and 255 beside masks of 0 and 1, or of more values: use the same values in all;'
        ' --ignore 255 says that 255 is not a class'
    )
    return [('refused', reason, str(path)) for path in alone]


def refuse_blurred(facts: Mapping[Path, MaskFacts]) -> list[Finding]:
    """Refuse masks whose values are mostly on edges, as after smooth resizing."""
    sample = sorted(facts, key=lambda path: -len(facts[path].values))[:SAMPLE]
    inside: set[int] = set()
    found: dict[Path, set[int]] = {}
    for path in sample:
        if len(facts[path].values) <= 2:  # nothing between two values
            continue
        codes = read_mask(path).codes.astype(np.float64)  # exact, and OpenCV takes it
        kernel = np.ones((3, 3), np.uint8)
        flat = cv2.erode(codes, kernel) == cv2.dilate(codes, kernel)
        inside |= {*np.unique(codes[flat]).astype(int).tolist()}
        found[path] = {*np.unique(codes).astype(int).tolist()}
    seen = set().union(*found.values())
    edges = seen - inside
    if len(edges) < EDGE_VALUES or len(edges) <= len(seen) / 2:
        return []
    if not inside and len(seen) <= MANY:  # drawn in lines or single pixels
        return []
    reason = (
        'masks with blurred edges, which give values that are not classes: draw and resize them'
        ' without smoothing (nearest neighbour); of photographs: images and masks are swapped'
    )
    return [
        (
            'refused',
            reason,
            f'{path} ({len(values & edges)} of its {len(values)} values are only on edges)',
        )
        for path, values in found.items()
        if values & edges
    ]


def refuse_shares(
    values: Values,
    names: Sequence[str],
    table: Mapping[int, int],
    left_out: Collection[int],
) -> list[Finding]:
    """Refuse masks from which nothing can be learned: one class, or most pixels without class."""
    found = []
    total = values.pixels.total()
    ignored = values.pixels[IGNORE] if IGNORE not in {*table, *left_out} else 0
    if ignored > MOST_IGNORED * total:
        reason = 'most pixels have no class (255); --ignore 255 says that this is meant'
        found.append(('refused', reason, values.share(IGNORE)))
    used = [value for value in table if values.pixels[value]]
    if len(used) < 2:
        only = [f'{names[table[value]]} ({name_of(value)})' for value in used]
        reason = 'masks of one class, from which nothing is learned'
        found.append(('refused', reason, ', '.join(only) or 'no pixel has a class'))
    return found
