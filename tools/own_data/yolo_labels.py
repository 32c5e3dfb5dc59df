"""YOLO's label files: a class index and a box, or a polygon, a line, in shares of the image's
sides.
"""

from pathlib import Path

from .coco import Coco
from .files import read_lines
from .images import Size
from .outlines import box_of_polygons
from .report import Fault, Report

SLACK = 0.01  # by which a share may exceed 0 to 1


def label_file(image: Path) -> Path:
    """Where the labels of an image are: in ``labels`` beside ``images``, or beside the image."""
    beside = image.with_suffix('.txt')
    parts = [*beside.parts]
    for index in range(len(parts) - 2, -1, -1):
        if parts[index] == 'images':
            parts[index] = 'labels'
            apart = Path(*parts)
            if apart.is_file() and beside.is_file():
                raise Fault('refused', 'images with two label files', f'{apart}, {beside}')
            return beside if beside.is_file() else apart
    return beside


def read_labels(file: Path, size: Size, classes: int, report: Report) -> list[Coco]:
    """Annotations of a label file, without ids.

    Args:
        file: The label file.
        size: Width and height of the image, px.
        classes: Number of classes.
        report: Gets lines that are refused.
    """
    found = []
    for number, line in enumerate(read_lines(file), 1):
        try:
            found.append(_read_line(line, size, classes))
        except Fault as fault:
            report.add_fault(fault, f'{file}: line {number}')
    return found


def _read_line(line: str, size: Size, classes: int) -> Coco:
    """An object of ``CLASS X Y WIDTH HEIGHT`` (of the centre), or ``CLASS X Y X Y X Y ...``."""
    words = line.split()
    try:
        numbers = [float(word) for word in words]
    except ValueError:
        raise Fault('refused', 'lines with words that are no numbers', line[:40]) from None
    count = len(numbers) - 1
    if count != 4 and (count < 6 or count % 2):
        reason = 'lines of neither CLASS X Y WIDTH HEIGHT nor CLASS X Y X Y X Y ...'
        raise Fault('refused', reason, f'{len(numbers)} numbers')
    if not numbers[0].is_integer() or not 0 <= numbers[0] < classes:
        raise Fault('refused', f'classes outside 0 to {classes - 1}', words[0])
    shares = numbers[1:]
    if not all(-SLACK <= share <= 1 + SLACK for share in shares):
        raise Fault('refused', 'coordinates that are no shares of 0 to 1', line[:40])
    width, height = size
    scaled = [round(share * (width, height)[index % 2], 4) for index, share in enumerate(shares)]
    one: Coco = dict(category_id=int(numbers[0]))
    if count == 4:
        x, y, box_width, box_height = scaled
        one['bbox'] = [
            round(x - box_width / 2, 4),
            round(y - box_height / 2, 4),
            box_width,
            box_height,
        ]
    else:
        one.update(bbox=box_of_polygons([scaled]), segmentation=[scaled])
    return one
