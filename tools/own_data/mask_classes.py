"""Which values of masks are classes, and what they are called."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from .class_names import read_classes
from .mask_codes import COLOUR, GREY, IGNORE, rgb_of
from .mask_doubts import ask_about, compare_names, refuse_instances, refuse_two_codes
from .mask_values import MaskFacts, Values, as_indices, gather
from .report import Report

LARGEST = 254  # class index


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
    values = gather(facts)
    coloured = _are_colours(values, colours, report)
    if not coloured:
        facts = {path: as_indices(one) for path, one in facts.items()}
        values = gather(facts)
        refuse_two_codes(facts, report)
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
        compare_names(values, names, order, left_out, classes, report)
    elif len(order) <= LARGEST + 1 and not refuse_instances(facts, report, coloured):
        ask_about(values, {*order} - left_out, report)
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


def _indices(seen: Collection[int], names: int, ignore: Collection[int]) -> list[int]:
    """Values that are class indices: one a name, or up to the highest that a mask has."""
    if seen == {0, IGNORE} and names in (0, 2) and not ignore:
        return [0, IGNORE]
    if names:
        return [*range(names)]
    found = {*seen} - {IGNORE, *ignore}
    return [*range(max(found, default=0) + 1)]


def _default_name(order: Sequence[int], index: int) -> str:
    value = order[index]
    return f'class_{value & 0xFFFFFF:06x}' if value >= COLOUR else f'class_{index}'


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
