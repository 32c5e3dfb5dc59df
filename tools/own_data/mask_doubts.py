"""Values of masks that are refused: they have no name, or may be mistakes."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import cv2
import numpy as np

from .class_names import ClassNames
from .mask_codes import IGNORE, in_one_piece, read_codes
from .mask_values import MaskFacts, Values, name_of
from .report import Report

RARE = 1e-4  # of all pixels: a value that must be named
INSTANCES = 3  # values that at least one mask of instance numbers has
SAMPLE = 20  # masks in which instances and blurred edges are looked for
EDGE_VALUES = 4  # of blurred masks, at least
MANY = 32  # values, of which a class map has one somewhere in a square of 3 x 3 px
MOST_IGNORED = 0.5  # of all pixels: 255, unless --ignore 255 says that it is meant
NAME_THEM = 'name all from 0 in --classes, or each with its colour (NAME 9 9 9 is the value 9)'


def compare_names(
    values: Values,
    named: ClassNames,
    order: Sequence[int],
    left_out: Collection[int],
    report: Report,
) -> None:
    """Refuse values without a name; note names without a value."""
    known = {*order, *left_out} if named.colours else {*order, IGNORE, *left_out}
    unnamed = sorted({*values.pixels} - known)
    reason = f'values of masks without a name in {named.file}'
    if named.colours:
        reason += ' (its colours are compared with those of the masks, grey ones with values)'
    elif unnamed:
        reason += f': {NAME_THEM}'
    for value in unnamed:
        report.add('refused', reason, values.describe(value))
    if [*order] == [0, IGNORE] and len(named.names) != 2:
        report.add(
            'refused',
            'masks of 0 and 255 have two classes; --ignore 255 leaves 255 out',
            f'{named.file} names {len(named.names)}',
        )
    elif not unnamed:
        for value, name in zip(order, named.names, strict=False):
            if value not in values.pixels and value not in left_out:
                report.add('note', 'classes that no mask has', name)


def ask_about(
    values: Values, order: Sequence[int], left_out: Collection[int], report: Report
) -> None:
    """Refuse values that may be mistakes: hardly a pixel, or none, although a higher value
    occurs.
    """
    total = values.pixels.total()
    missing = [value for value in order if value not in values.pixels and value not in left_out]
    if missing:
        found = ', '.join(str(value) for value in sorted(values.pixels))
        reason = f'values with gaps: {NAME_THEM}; --ignore leaves values out'
        report.add('refused', reason, f'the masks have {found}, but no {missing[0]}')
    for value in sorted({*order} & {*values.pixels} - {*left_out}):
        if value and values.pixels[value] < RARE * total:
            reason = (
                f'values of fewer than {RARE:.2%} of the pixels: name them in --classes, or leave'
                ' them out by --ignore'
            )
            report.add('refused', reason, values.describe(value))


def ask_about_nodata(
    values: Values, order: Sequence[int], left_out: Collection[int], report: Report
) -> bool:
    """Refuse a value that masks declare as ``nodata``, and that would be a class; true if there is
    one.

    Some tools declare 0, and mean the background.
    """
    doubtful = sorted(values.nodata & {*order} - {*left_out})
    for value in doubtful:
        reason = (
            f'masks that declare a class as nodata: --ignore {value} leaves it out; named with its'
            f' colour in --classes (NAME {value} {value} {value}), it is a class'
        )
        report.add('refused', reason, values.describe(value))
    return bool(doubtful)


def refuse_instances(facts: Mapping[Path, MaskFacts], report: Report, coloured: bool) -> bool:
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


def refuse_palettes(facts: Mapping[Path, MaskFacts], report: Report) -> bool:
    """Refuse values that palettes give other colours in other masks.

    Programs that choose the palette of each file leave no meaning to the values.
    """
    seen: dict[int, dict[tuple[int, ...], Path]] = {}
    for path, one in facts.items():
        for value in one.values:
            if value < len(one.colours):
                seen.setdefault(value, {}).setdefault(one.colours[value], path)
    reason = (
        'values whose colours differ from palette to palette: name each class in --classes with its'
        ' colour (NAME 128 64 0), or with its value (NAME 9 9 9 is the value 9)'
    )
    for value, colours in seen.items():
        if len(colours) > 1:
            first, second, *_ = (f'{colour} in {path}' for colour, path in colours.items())
            report.add('refused', reason, f'{name_of(value)}: {first}, {second}')
    return any(len(colours) > 1 for colours in seen.values())


def refuse_two_codes(
    facts: Mapping[Path, MaskFacts], known: Collection[int], report: Report
) -> bool:
    """Refuse masks of 0 and 255 beside masks of other values, such as predicted class maps.

    In these, 255 would be no class. It is taken as such if more masks have it beside other values
    than alone, and if it is ``known``.
    """
    if IGNORE in known:
        return False
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
        return False
    reason = (
        'masks of 0 and 255 beside masks of 0 and 1, or of more values: use the same values in all;'
        ' --ignore 255 says that 255 is no class'
    )
    for path in alone:
        report.add('refused', reason, str(path))
    return True


def refuse_blurred(facts: Mapping[Path, MaskFacts], report: Report) -> bool:
    """Refuse masks of which most values are only on edges, as smooth resizing leaves them."""
    sample = sorted(facts, key=lambda path: -len(facts[path].values))[:SAMPLE]
    inside: set[int] = set()
    found: dict[Path, set[int]] = {}
    for path in sample:
        if len(facts[path].values) <= 2:  # nothing between two values
            continue
        codes = read_codes(path).astype(np.float64)  # exact, and OpenCV takes it
        kernel = np.ones((3, 3), np.uint8)
        flat = cv2.erode(codes, kernel) == cv2.dilate(codes, kernel)
        inside |= {*np.unique(codes[flat]).astype(int).tolist()}
        found[path] = {*np.unique(codes).astype(int).tolist()}
    seen = set().union(*found.values())
    edges = seen - inside
    if len(edges) < EDGE_VALUES or len(edges) <= len(seen) / 2:
        return False
    if not inside and len(seen) <= MANY:  # drawn in lines or single pixels
        return False
    reason = (
        'masks with blurred edges, which give values that are no classes: draw and resize them'
        ' without smoothing (nearest neighbour); of photographs: images and masks are swapped'
    )
    for path, values in found.items():
        if values & edges:
            detail = f'{len(values & edges)} of its {len(values)} values are only on edges'
            report.add('refused', reason, f'{path} ({detail})')
    return True


def refuse_shares(
    values: Values,
    names: Sequence[str],
    table: Mapping[int, int],
    left_out: Collection[int],
    report: Report,
) -> None:
    """Refuse masks of which nothing can be learnt: of one class, or with most pixels of none."""
    total = values.pixels.total()
    ignored = values.pixels[IGNORE] if IGNORE not in {*table, *left_out} else 0
    if ignored > MOST_IGNORED * total:
        reason = 'most pixels are of no class (255); --ignore 255 says that this is meant'
        report.add('refused', reason, values.share(IGNORE))
    used = [value for value in table if values.pixels[value]]
    if len(used) < 2:
        found = [f'{names[table[value]]} ({name_of(value)})' for value in used]
        reason = 'masks of one class, of which nothing is learnt'
        report.add('refused', reason, ', '.join(found) or 'no pixel is of a class')
