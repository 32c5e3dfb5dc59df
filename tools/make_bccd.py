"""Convert BCCD (github.com/Shenggan/BCCD_Dataset) to the layout of configs/bccd: its own split, boxes as COCO JSON.

python tools/make_bccd.py BCCD_Dataset/BCCD            # the folder with Annotations, ImageSets and JPEGImages
"""

import json
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
from rich.progress import track

from cpvt_backbones.engine import command_line as cli

CLASSES = ('RBC', 'WBC', 'Platelets')
SPLITS = ('train', 'val', 'test')


def read_boxes(file: Path, *, width: int, height: int) -> list[dict[str, Any]]:
    """Boxes of a Pascal VOC file in COCO's form.

    Pascal VOC counts pixels from 1 and includes the last one. A box that leaves the image is clipped and reported.
    """
    boxes = []
    try:
        objects = list(ET.parse(file).iter('object'))
    except ET.ParseError as error:
        raise ValueError(f'source: {file} is not XML: {error}') from None
    for element in objects:
        name = element.findtext('name', '')
        if name not in CLASSES:
            raise ValueError(f'source: the classes of {file} must be among {CLASSES}, got {name!r}')
        corners = [float(element.findtext(f'bndbox/{side}') or 'nan') for side in ('xmin', 'ymin', 'xmax', 'ymax')]
        left, top = max(corners[0] - 1, 0), max(corners[1] - 1, 0)
        right, bottom = min(corners[2], width), min(corners[3], height)
        if not (left < right and top < bottom):
            raise ValueError(f'source: boxes of {file} must have pixels in its {width} x {height}, got {corners}')
        if [left + 1, top + 1, right, bottom] != corners:
            print(f'{file}: a box is clipped to the image, {corners}')
        w, h = right - left, bottom - top
        boxes.append(dict(category_id=CLASSES.index(name) + 1, bbox=[left, top, w, h], area=w * h, iscrowd=0))
    return boxes


def convert(source: Path, split: str, destination: Path) -> tuple[int, int]:
    """Copy a split's images and write its boxes; returns their numbers."""
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    names = (source / 'ImageSets/Main' / f'{split}.txt').read_text().split()
    target = destination / split
    target.mkdir(parents=True, exist_ok=True)
    for name in track(names, description=split):
        file = source / 'JPEGImages' / f'{name}.jpg'
        picture = cv2.imread(str(shutil.copyfile(file, target / file.name)))
        if picture is None:
            raise ValueError(f'source: {str(file)!r} cannot be read as an image')
        height, width = picture.shape[:2]
        images.append(dict(id=len(images) + 1, file_name=file.name, width=width, height=height))
        for box in read_boxes(source / 'Annotations' / f'{name}.xml', width=width, height=height):
            annotations.append(dict(id=len(annotations) + 1, image_id=len(images), **box))
    categories = [dict(id=number, name=name) for number, name in enumerate(CLASSES, 1)]
    from cpvt_backbones.checkpoints import atomic_write

    with atomic_write(destination / 'annotations' / f'{split}.json') as coco:
        coco.write(json.dumps(dict(images=images, annotations=annotations, categories=categories)).encode())
    return len(images), len(annotations)


def main(argv: Sequence[str] | None = None) -> None:
    parser = cli.make_parser(__doc__)
    parser.add_argument('source', type=Path, help='folder with Annotations, ImageSets and JPEGImages')
    parser.add_argument('destination', type=Path, nargs='?', default=Path('data/bccd'), help='default: %(default)s')
    args = parser.parse_args(argv)
    for split in SPLITS:
        images, boxes = convert(args.source, split, args.destination)
        print(f'{args.destination / split}: {images} images, {boxes} boxes')


if __name__ == '__main__':
    cli.run(main)
