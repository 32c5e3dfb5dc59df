"""Convert BCCD (github.com/Shenggan/BCCD_Dataset) to the layout of configs/bccd: its own split,
boxes as COCO JSON.

    python projects/shipped_weights/make_bccd.py BCCD_Dataset/BCCD

The argument is the folder with Annotations, ImageSets and JPEGImages.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

from cpvt import command_line as cli
from cpvt_backbones.own_data import Report
from cpvt_backbones.own_data.check.checks import check_splits
from cpvt_backbones.own_data.read.voc import read_voc
from cpvt_backbones.own_data.write.data import write_json

CLASSES = ('RBC', 'WBC', 'Platelets')
SPLITS = ('train', 'val', 'test')


def main(argv: Sequence[str] | None = None) -> None:
    parser = cli.make_parser(__doc__)
    parser.add_argument(
        'source', type=Path, help='folder with Annotations, ImageSets and JPEGImages'
    )
    parser.add_argument(
        'destination', type=Path, nargs='?', default=Path('data/bccd'), help='default: %(default)s'
    )
    args = parser.parse_args(argv)
    report = Report()
    read = read_voc(args.source, report, classes=CLASSES, lists=SPLITS, first_pixel=1)
    if len(read) != len(SPLITS):
        lists = ', '.join(f'{split}.txt' for split in SPLITS)
        raise FileNotFoundError(f'source: {str(args.source)!r} must have {lists} in ImageSets/Main')
    parts, _ = check_splits(read, report)
    report.finish()
    print('data accepted')
    for split, part in zip(SPLITS, parts, strict=True):
        target = args.destination / split
        target.mkdir(parents=True, exist_ok=True)
        for image in part.coco['images']:
            file = args.source / image['file_name']
            image['file_name'] = shutil.copyfile(file, target / file.name).name
        write_json(part.coco, args.destination / 'annotations' / f'{split}.json')
        counts = f'{len(part.coco["images"])} images, {len(part.coco["annotations"])} boxes'
        print(f'{target}: {counts}')


if __name__ == '__main__':
    cli.run(main)
