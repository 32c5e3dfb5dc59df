"""Convert BCCD (github.com/Shenggan/BCCD_Dataset) to the layout of configs/bccd: its own split, boxes as COCO JSON.

python tools/make_bccd.py BCCD_Dataset/BCCD            # the folder with Annotations, ImageSets and JPEGImages
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

from own_data import read_voc, write_json

from cpvt_backbones.engine import command_line as cli

CLASSES = ('RBC', 'WBC', 'Platelets')
SPLITS = ('train', 'val', 'test')


def main(argv: Sequence[str] | None = None) -> None:
    parser = cli.make_parser(__doc__)
    parser.add_argument('source', type=Path, help='folder with Annotations, ImageSets and JPEGImages')
    parser.add_argument('destination', type=Path, nargs='?', default=Path('data/bccd'), help='default: %(default)s')
    args = parser.parse_args(argv)
    for split in SPLITS:
        names = (args.source / 'ImageSets/Main' / f'{split}.txt').read_text().split()
        coco = read_voc(args.source, names, classes=CLASSES)
        target = args.destination / split
        target.mkdir(parents=True, exist_ok=True)
        for image in coco['images']:
            file = args.source / image['file_name']
            image['file_name'] = shutil.copyfile(file, target / file.name).name
        write_json(coco, args.destination / 'annotations' / f'{split}.json')
        print(f'{target}: {len(coco["images"])} images, {len(coco["annotations"])} boxes')


if __name__ == '__main__':
    cli.run(main)
