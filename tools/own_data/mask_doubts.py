"""Values of masks that are refused: they have no name, or may be mistakes."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np

from .mask_codes import IGNORE, in_one_piece, read_codes
from .mask_values import MaskFacts, Values
from .report import Report

RARE = 1e-4  # of all pixels: a value that must be named
INSTANCES = 3  # values that at least one mask of instance numbers has
SAMPLE = 20  # masks in which instances are looked for


def compare_names(
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


def ask_about(values: Values, order: Collection[int], report: Report) -> None:
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


def refuse_two_codes(facts: Mapping[Path, MaskFacts], report: Report) -> None:
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
