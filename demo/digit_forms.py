"""Write the labels of digit scenes in another form: Pascal VOC, masks of the digits, or one folder
of cut-out digits for each class.

    python demo/digit_scenes.py --root data/digits --train 128x128:200
    python demo/digit_forms.py voc data/digits/train_128x128 data/voc
    python demo/digit_forms.py masks data/digits/train_128x128 data/masks
    python demo/digit_forms.py folders data/digits/train_128x128 data/photos \\
        --classes 3 5 8
"""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from digit_scenes import DIGITS
from PIL import Image

from cpvt.command_line import make_parser, run

Scene = tuple[Path, list[dict[str, Any]]]


def read_scenes(source: Path) -> list[Scene]:
    """Image file and objects, with ``name`` and ``bbox``, of each scene of a set."""
    coco = json.loads((source / 'instances.json').read_text())
    names = {category['id']: category['name'] for category in coco['categories']}
    objects: dict[int, list[dict[str, Any]]] = {image['id']: [] for image in coco['images']}
    for one in coco['annotations']:
        objects[one['image_id']].append(dict(one, name=names[one['category_id']]))
    return [
        (source / 'images' / image['file_name'], objects[image['id']]) for image in coco['images']
    ]


def write_voc(scenes: list[Scene], target: Path) -> None:
    """Write each image, and an XML file of its boxes beside it."""
    target.mkdir(parents=True)
    for file, objects in scenes:
        annotation = ElementTree.Element('annotation')
        for one in objects:
            x, y, width, height = one['bbox']
            # VOC counts pixels from 1.
            corners = dict(xmin=x + 1, ymin=y + 1, xmax=x + width, ymax=y + height)
            entry = ElementTree.SubElement(annotation, 'object')
            ElementTree.SubElement(entry, 'name').text = one['name']
            box = ElementTree.SubElement(entry, 'bndbox')
            for key, value in corners.items():
                ElementTree.SubElement(box, key).text = str(value)
        (target / file.name).write_bytes(file.read_bytes())
        ElementTree.ElementTree(annotation).write(target / f'{file.stem}.xml')


def write_masks(source: Path, target: Path) -> None:
    """Write a mask of each image: 255 on any digit, otherwise 0."""
    target.mkdir(parents=True)
    for file in sorted((source / 'labels').iterdir()):
        Image.open(file).point(lambda label: 255 * (label > 0)).save(target / file.name)


def write_folders(scenes: list[Scene], target: Path, classes: list[str]) -> None:
    """Cut out the digits of some classes, into one folder for each class."""
    for name in classes:
        (target / name).mkdir(parents=True)
    for file, objects in scenes:
        image = Image.open(file)
        for one in objects:
            if one['name'] in classes:
                x, y, width, height = one['bbox']
                crop = image.crop((x, y, x + width, y + height))
                crop.save(target / one['name'] / f'{one["id"]}.png')


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument('form', choices=('voc', 'masks', 'folders'))
    parser.add_argument('source', type=Path, help='set of digit_scenes.py')
    parser.add_argument('target', type=Path, help='new folder')
    parser.add_argument(
        '--classes', nargs='+', choices=DIGITS, default=DIGITS, help='of folders; default: all'
    )
    args = parser.parse_args()
    if args.form == 'masks':
        write_masks(args.source, args.target)
    elif args.form == 'voc':
        write_voc(read_scenes(args.source), args.target)
    else:
        write_folders(read_scenes(args.source), args.target, list(args.classes))
    print(args.target)


if __name__ == '__main__':
    run(main)
