"""Squash Imagenette's images to squares of one size, as configs/imagenette and
the study of position encodings take them.

    python projects/shipped_weights/make_imagenette.py imagenette2

The argument is the unpacked download, with train/ and val/. Training images become 128 x 128 px and
validation images 224 x 224 px: the 2,000 that configs/imagenette/val_images.txt names, on which
every figure of this project is measured. --val-images N takes others, N of each class, evenly
spaced by name. Interrupt it at any time; the same command goes on.
"""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import cv2
from rich.progress import track

from cpvt import command_line as cli

SIDES = {'train': 128, 'val': 224}
SUFFIXES = ('.jpeg', '.jpg', '.png', '.webp')
LISTED = Path(__file__).resolve().parents[2] / 'configs/imagenette/val_images.txt'
"""The validation images that are measured: a line ``<WordNet id>/<name without suffix>`` each."""


def images_in(folder: Path) -> list[Path]:
    """Images of a class, by name."""
    files = sorted(file for file in folder.iterdir() if file.suffix.lower() in SUFFIXES)
    for one, other in pairwise(files):
        if one.stem == other.stem:
            raise cli.UsageError(f'source: {str(folder)!r} has two images named {one.stem!r}')
    return files


def evenly(files: Sequence[Path], limit: int) -> list[Path]:
    """At most ``limit`` of the files, at even distances."""
    if len(files) <= limit:
        return list(files)
    return [files[index * len(files) // limit] for index in range(limit)]


def listed(files: Sequence[Path], source: Path) -> list[Path]:
    """The files that :data:`LISTED` names; ``ValueError`` if one of them is missing."""
    found = {name_of(file): file for file in files}
    names = LISTED.read_text(encoding='utf-8').split()
    missing = [name for name in names if name not in found]
    if missing:
        raise cli.UsageError(
            f'source: {source} lacks {len(missing)} of the {len(names)} images of {LISTED}, '
            f'the first is {missing[0]}; --val-images N takes others'
        )
    return [found[name] for name in names]


def name_of(file: Path) -> str:
    """``<WordNet id>/<name without suffix>``."""
    return f'{file.parent.name}/{file.stem}'


def choose(source: Path, split: str, limit: int | None) -> list[Path]:
    """The images of a split: all of ``train``; of ``val`` the listed ones, or ``limit`` a class.

    Raises:
        ValueError: There are none, or a listed one is missing.
    """
    folders = sorted(path for path in (source / split).glob('*') if path.is_dir())
    classes = [images_in(folder) for folder in folders]
    files = [file for images in classes for file in images]
    if not files:
        raise cli.UsageError(f'source: there are no images in {source / split}/<class>')
    if split == 'train':
        return files
    if limit is None:
        return listed(files, source / split)
    return [file for images in classes for file in evenly(images, limit)]


def write_list(source: Path, target: Path) -> None:
    """Write the names of all validation images."""
    folders = sorted(path for path in (source / 'val').glob('*') if path.is_dir())
    names = [name_of(file) for folder in folders for file in images_in(folder)]
    if not names:
        raise cli.UsageError(f'source: there are no images in {source}/val/<class>')
    target.write_text('\n'.join(names) + '\n', encoding='utf-8')
    print(f'{target}: {len(names)} images of {len(folders)} classes')


def squash(source: Path, target: Path, side: int) -> None:
    """Write an image as WebP of side x side px."""
    image = cv2.imread(str(source), cv2.IMREAD_COLOR)
    if image is None:
        raise cli.UsageError(f'source: {str(source)!r} cannot be read as an image')
    from cpvt_backbones.checkpoints import atomic_write

    _, content = cv2.imencode(
        '.webp', cv2.resize(image, (side, side), interpolation=cv2.INTER_AREA)
    )
    with atomic_write(target) as file:
        file.write(content.tobytes())


def main(argv: Sequence[str] | None = None) -> None:
    parser = cli.make_parser(__doc__)
    parser.add_argument('source', type=Path, help='folder with {train,val}/<WordNet id>')
    parser.add_argument('destination', type=Path, nargs='?', default=Path('data/imagenette'))
    about = f'validation images of a class, evenly spaced by name; default: those of {LISTED.name}'
    parser.add_argument('--val-images', type=cli.positive, metavar='N', help=about)
    about = 'write the names of the validation images of SOURCE to FILE, and convert nothing'
    parser.add_argument('--list-val', type=Path, metavar='FILE', help=about)
    args = parser.parse_args(argv)
    if args.list_val:
        return write_list(args.source, args.list_val)
    chosen = {split: choose(args.source, split, args.val_images) for split in SIDES}
    for split, files in chosen.items():
        side, destination = SIDES[split], args.destination / split
        for file in track(files, f'{split}, {side} x {side} px'):
            target = destination / file.parent.name / f'{file.stem}.webp'
            if not target.exists():
                squash(file, target, side)
        classes = len({file.parent.name for file in files})
        print(f'{destination}: {len(files)} images of {classes} classes, {side} x {side} px')


if __name__ == '__main__':
    cli.run(main, interrupted='interrupted; the same command resumes')
