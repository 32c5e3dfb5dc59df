"""Boxes of which many do not fit their outlines or their images: are they what they are read as?"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .boxes import ROUNDING, overhang
from .coco import Coco
from .outlines import Box, box_of_outline
from .report import Report

MANY = 0.1  # of all boxes
FEWEST = 3  # boxes that reach out of their image, to be many
SLACK = 3.0  # px between a side of a box and its outline, or SLACK_SHARE of the longer side
SLACK_SHARE = 0.05


def _corners(box: Box) -> Box:
    return [box[0], box[1], box[2] - box[0], box[3] - box[1]]


def _swapped(box: Box) -> Box:
    return [box[1], box[0], box[3], box[2]]


def _centred(box: Box) -> Box:
    return [box[0] - box[2] / 2, box[1] - box[3] / 2, box[2], box[3]]


# What four numbers may be in place of left, top, width, height.
READINGS: dict[str, Callable[[Box], Box]] = {
    'corners x1, y1, x2, y2': _corners,
    'top, left, height, width (x and y swapped)': _swapped,
    'centre x, centre y, width, height': _centred,
}


@dataclass(frozen=True)
class _Case:
    where: str
    box: Box
    size: tuple[int, int]  # of the image
    extent: Box | None  # of the outline


@dataclass
class BoxDoubts:
    """The boxes of a part that reach out of their image, and those that differ from their outlines.

    Args:
        count: Boxes.
        with_outline: Boxes of objects with an outline.
    """

    count: int = 0
    with_outline: int = 0
    outside: list[_Case] = field(default_factory=list)
    misfits: list[_Case] = field(default_factory=list)

    def add(self, box: Box, image: Coco, outline: Any, where: str) -> None:
        """Compare a box as given with its image and outline (``None``: it has none)."""
        self.count += 1
        size = image['width'], image['height']
        extent = box_of_outline(outline) if outline is not None else None
        case = _Case(where, box, size, extent)
        if overhang(box, *size) > ROUNDING:
            self.outside.append(case)
        if extent is not None:
            self.with_outline += 1
            if not _fits_outline(box, case):
                self.misfits.append(case)

    def report(self, report: Report) -> None:
        """Refuse boxes of which a tenth are in doubt; note or clip fewer."""
        misread = self._report_misfits(report)
        many = not misread and len(self.outside) >= max(FEWEST, MANY * self.count)
        reason = 'boxes are clipped to their image'
        if many:
            guess = _guess(self.outside, _fits_image)
            reason = f'boxes that reach out of their image, a tenth of all or more{guess}'
        for case in self.outside:
            if not many and not _reaches_in(case):  # skipped, which is reported elsewhere
                continue
            detail = f'{case.box} in {case.size[0]} x {case.size[1]}'
            report.add('refused' if many else 'altered', reason, f'{case.where} ({detail})')

    def _report_misfits(self, report: Report) -> bool:
        many = bool(self.misfits) and len(self.misfits) >= MANY * self.with_outline
        reason = 'boxes that differ from their outlines: the box counts'
        if many:
            guess = _guess(self.misfits, _fits_outline)
            reason = f'boxes that differ from their outlines, a tenth of all or more{guess}'
        for case in self.misfits:
            extent = [round(side, 1) for side in case.extent or []]
            detail = f'box {case.box}, its outline is in {extent}'
            report.add('refused' if many else 'note', reason, f'{case.where} ({detail})')
        return many


def _fits_outline(box: Box, case: _Case) -> bool:
    """True if the sides of a box are those of the outline, both clipped to the image."""
    if case.extent is None:
        return False
    slack = max(SLACK, SLACK_SHARE * max(case.extent[2:]))
    pairs = zip(_sides(box, case.size), _sides(case.extent, case.size), strict=True)
    return all(abs(one - other) <= slack for one, other in pairs)


def _sides(box: Box, size: tuple[int, int]) -> list[float]:
    """Left, top, right and bottom, within the image."""
    sides = [box[0], box[1], box[0] + box[2], box[1] + box[3]]
    return [min(max(side, 0.0), float(size[i % 2])) for i, side in enumerate(sides)]


def _reaches_in(case: _Case) -> bool:
    left, top, right, bottom = _sides(case.box, case.size)
    return right > left and bottom > top


def _fits_image(box: Box, case: _Case) -> bool:
    return min(box[2:]) > 0 and overhang(box, *case.size) <= ROUNDING


def _guess(cases: list[_Case], fits: Callable[[Box, _Case], bool]) -> str:
    """What boxes may be, as the end of a sentence: the reading by which nearly all fit."""
    for name, read in READINGS.items():
        if sum(fits(read(case.box), case) for case in cases) >= (1 - MANY) * len(cases):
            return f'. Are these {name}? COCO has left, top, width, height'
    return '. Are they of other or resized images? If they are meant, correct them in the file'
