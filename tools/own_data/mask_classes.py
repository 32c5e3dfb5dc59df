"""Which values of masks are classes, and what they are called."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .class_names import ClassNames
from .mask_codes import COLOUR, GREY, IGNORE, rgb_of
from .mask_doubts import (
    ask_about,
    ask_about_nodata,
    compare_names,
    refuse_blurred,
    refuse_instances,
    refuse_palettes,
    refuse_shares,
    refuse_two_codes,
)
from .mask_values import MaskFacts, Values, as_indices, gather
from .report import Report

LARGEST = 254  # class index


@dataclass
class MaskClasses:
    """Names of the classes, and the index of the class of each value of the masks."""

    names: list[str] = field(default_factory=list)
    table: dict[int, int] = field(default_factory=dict)


def find_classes(
    facts: Mapping[Path, MaskFacts],
    report: Report,
    *,
    named: ClassNames | None,
    ignore: Collection[int],
) -> MaskClasses:
    """Find the classes of masks.

    255 is a class if all masks together have the values 0 and 255 only, and if it is named with its
    colour, 255 255 255; else it is no class. A value that masks declare as ``nodata`` is no class,
    unless its colour is named; if it would be a class without that, it is refused.

    Args:
        facts: Of each mask. Nothing is judged before all can be read.
        report: Gets the share of each class, and values that are refused.
        named: Names of the classes; without it they are called by their value or colour.
        ignore: Values that are no class; of classes with colours, their numbers from 0.
    """
    if not facts or any(one.size is None for one in facts.values()):
        return MaskClasses()
    values = gather(facts)
    coloured = _are_colours(values, report)
    if not coloured:
        facts = {path: as_indices(one) for path, one in facts.items()}
        values = gather(facts)
    order = _order(values, named, {*ignore, *values.nodata}, coloured=coloured)
    left_out = {order[i] if i < len(order) else i for i in ignore}
    of_colours = coloured or bool(named and named.colours)
    if not of_colours and ask_about_nodata(values, order, left_out, report):
        return MaskClasses()
    left_out |= values.nodata - {*order}
    if _refuse_values(facts, values, order, left_out, report, named=named, of_colours=of_colours):
        return MaskClasses()
    kept = [i for i, value in enumerate(order) if value not in left_out]
    table = {order[i]: new for new, i in enumerate(kept)}
    names = [named.names[i] if named else _default_name(order[i]) for i in kept]
    _list_classes(values, names, table, report)
    refuse_shares(values, names, table, left_out, report)
    if not coloured:  # grey images are stored as RGB, too
        table |= {COLOUR + GREY * value: i for value, i in table.items() if value < COLOUR}
    return MaskClasses(names, table)


def _order(
    values: Values, named: ClassNames | None, ignore: Collection[int], *, coloured: bool
) -> list[int]:
    """The values that are classes, in the order of the classes."""
    if named and named.colours:
        return [_code_of(colour, coloured=coloured) for colour in named.colours]
    if coloured:
        # Names without colours say nothing of which is which.
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


def _refuse_values(
    facts: Mapping[Path, MaskFacts],
    values: Values,
    order: Sequence[int],
    left_out: Collection[int],
    report: Report,
    *,
    named: ClassNames | None,
    of_colours: bool,
) -> bool:
    """Refuse values that cannot be meant as they are; true if there are any."""
    before = report.count('refused')
    if not of_colours and refuse_palettes(facts, report):
        return True
    is_complete = named is not None and {*values.pixels} <= {*order, *left_out}
    if not is_complete and refuse_blurred(facts, report):
        return True
    if not of_colours and refuse_two_codes(facts, {*order, *left_out}, report):
        return True
    if named:
        compare_names(values, named, order, left_out, report)
    elif len(order) <= LARGEST + 1 and not refuse_instances(facts, report, of_colours):
        ask_about(values, order, left_out, report)
    if len(order) > LARGEST + 1:
        most = max(values.pixels)
        reason = (
            f'more than {LARGEST + 1} classes: are these instance numbers, or were colours blended?'
        )
        report.add('refused', reason, values.describe(most))
    return report.count('refused') > before


def _default_name(value: int) -> str:
    return f'class_{value & 0xFFFFFF:06x}' if value >= COLOUR else f'class_{value}'


def _list_classes(
    values: Values, names: Sequence[str], table: Mapping[int, int], report: Report
) -> None:
    """Give the report the value and share of each class, and of the pixels without class."""
    for value, index in table.items():
        report.classes.append(f'{index:7} {names[index]}: {values.share(value)}')
    for value in sorted({*values.pixels} - {*table}):
        report.classes.append(f'{"-":>7} no class: {values.share(value)}')
    if values.missing:
        report.classes.append(f'{"-":>7} no class: {values.share_missing()}')


def _are_colours(values: Values, report: Report) -> bool:
    """True for masks in colours. Grey RGB images are class indices."""
    in_rgb = [value for value in values.pixels if value >= COLOUR]
    if not any(len({*rgb_of(value)}) > 1 for value in in_rgb):
        return False
    for value in sorted({*values.pixels} - {*in_rgb}):
        report.add(
            'refused', 'masks of class indices among masks in colours', values.describe(value)
        )
    return True
