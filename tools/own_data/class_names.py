"""Names of classes, in a file of the user."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .files import read_lines

NUMBER = r'(\d{1,3})'
NAME_FIRST = re.compile(rf'(.*\S)[\s,:]+{NUMBER}[\s,]+{NUMBER}[\s,]+{NUMBER}(?::.*)?')
NUMBERED = re.compile(r'(\d+)[\s,:]+(.*\S)')
COLOUR_FIRST = re.compile(rf'{NUMBER}[\s,]+{NUMBER}[\s,]+{NUMBER}[\s,]+(.*\S)')


@dataclass(frozen=True)
class ClassNames:
    """Names of classes of a file, and the RGB colour of each, or none."""

    file: Path
    names: list[str]
    colours: list[tuple[int, int, int]]


def read_classes(file: Path) -> ClassNames:
    """Names of classes, one a line, and their colours, if each line has three numbers up to 255
    too.

    A line is ``NAME``, ``NAME RED GREEN BLUE`` or ``RED GREEN BLUE NAME``; commas may separate,
    too, as may the colons of CVAT's labelmap.txt. Names may be numbered from 0. ``# `` begins a
    comment.
    """
    lines = [line for line in read_lines(file) if not line.startswith('# ')]
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
            names.append(name.rstrip(',:'))
            colours.append((red, green, blue))
    if colours and len(colours) < len(lines):
        raise ValueError(
            f'classes: {file} must have a colour in all lines or in none, got {lines[:3]}'
        )
    names = names or _unnumbered(lines)
    entries: dict[str, list[Any]] = dict(name=names, colour=colours)
    for kind, found in entries.items():
        if len({*found}) < len(found):
            twice = next(one for one in found if found.count(one) > 1)
            raise ValueError(f'classes: {file} must have each {kind} once, got {twice!r} twice')
    if not names:
        raise ValueError(f'classes: {file} must have the name of a class a line, got none')
    return ClassNames(file, names, colours)


def _unnumbered(lines: list[str]) -> list[str]:
    """Names without their numbers, and without the heading of such a table.

    Roboflow writes ``Pixel Value, Class``, ``0, background``, ``1, cat``.
    """
    for rows in (lines, lines[1:]):
        found = [match for line in rows if (match := NUMBERED.fullmatch(line))]
        if found and [match[1] for match in found] == [str(i) for i in range(len(rows))]:
            return [match[2] for match in found]
    return lines
