"""Squash Imagenette's images to squares of one size, as configs/imagenette and projects/positional_encoding take them.

python tools/make_imagenette.py imagenette2            # the unpacked download, with train/ and val/
Training images become 128 x 128 px and validation images 224 x 224 px, 200 of each class, evenly spaced by name.
Interrupt it at any time; the same command goes on.
"""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import cv2
from rich.progress import track

from cpvt_backbones.engine import command_line as cli

SIDES = {'train': 128, 'val': 224}
SUFFIXES = ('.jpeg', '.jpg', '.png', '.webp')


def choose(folder: Path, limit: int | None) -> list[Path]:
    """Images of a class, at most ``limit``, evenly spaced by name."""
    files = sorted(file for file in folder.iterdir() if file.suffix.lower() in SUFFIXES)
    for one, other in pairwise(files):
        if one.stem == other.stem:
            raise ValueError(f'source: {str(folder)!r} has two images named {one.stem!r}')
    if limit is None or len(files) <= limit:
        return files
    return [files[index * len(files) // limit] for index in range(limit)]


def squash(source: Path, target: Path, side: int) -> None:
    """Write an image as WebP of side x side px."""
    image = cv2.imread(str(source), cv2.IMREAD_COLOR)
    if image is None:
        raise ValueError(f'source: {str(source)!r} cannot be read as an image')
    from cpvt_backbones.checkpoints import atomic_write

    _, content = cv2.imencode('.webp', cv2.resize(image, (side, side), interpolation=cv2.INTER_AREA))
    with atomic_write(target) as file:
        file.write(content.tobytes())


def main(argv: Sequence[str] | None = None) -> None:
    parser = cli.make_parser(__doc__)
    parser.add_argument('source', type=Path, help='folder with {train,val}/<WordNet id>')
    parser.add_argument('destination', type=Path, nargs='?', default=Path('data/imagenette'))
    parser.add_argument('--val-images', type=cli.positive, default=200, help='validation images of a class')
    args = parser.parse_args(argv)
    for split, side in SIDES.items():
        source, destination = args.source / split, args.destination / split
        folders = sorted(path for path in source.glob('*') if path.is_dir())
        files = [file for folder in folders for file in choose(folder, args.val_images if split == 'val' else None)]
        if not files:
            raise ValueError(f'source: there are no images in {source}/<class>')
        for file in track(files, f'{split}, {side} x {side} px'):
            target = destination / file.parent.name / f'{file.stem}.webp'
            if not target.exists():
                squash(file, target, side)
        print(f'{destination}: {len(files)} images of {len(folders)} classes, {side} x {side} px')


if __name__ == '__main__':
    cli.run(main, interrupted='interrupted; the same command resumes')
