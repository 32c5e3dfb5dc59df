"""Lists of Tiny ImageNet's images: training, choice of learning rates, and test."""

from pathlib import Path

from torchvision.datasets.folder import IMG_EXTENSIONS

from cpvt_backbones.checkpoints import atomic_write

TEST_EVERY, TUNE_EVERY = 5, 20
"""Every fifth training image of a class is tested; of the others, every twentieth is for
the choice of rates.
"""


def write_splits(root: Path) -> dict[str, int]:
    """Write ``meta/{train,tune,test}.txt``, a path and a class a line, and return the numbers of
    images.

    Every other class in the order of their names is taken. The published validation images are test
    images too: the published test images have no labels.

    Args:
        root: Folder with {train,val}/<WordNet id>.

    Raises:
        ValueError: There are no images.
    """
    lists: dict[str, list[str]] = dict(train=[], tune=[], test=[])
    for label, folder in enumerate(
        sorted(path for path in (root / 'train').glob('*') if path.is_dir())[::2]
    ):
        held = images(folder)[TEST_EVERY - 1 :: TEST_EVERY]
        rest = [file for file in images(folder) if file not in held]
        tuned = rest[TUNE_EVERY - 1 :: TUNE_EVERY]
        kept = [file for file in rest if file not in tuned]
        held += images(root / 'val' / folder.name)
        for name, files in dict(train=kept, tune=tuned, test=held).items():
            lists[name] += [f'{file.relative_to(root).as_posix()} {label}' for file in files]
    if not lists['train'] or not lists['test']:
        raise ValueError(
            f'--data: there are no images in {root}/train/<class> and {root}/val/<class>'
        )
    for name, lines in lists.items():
        with atomic_write(root / 'meta' / f'{name}.txt') as stream:
            stream.write('\n'.join([*lines, '']).encode())
    return {name: len(lines) for name, lines in lists.items()}


def images(folder: Path) -> list[Path]:
    """Images of a class, by the length of their names, then by name: their numbers are not
    padded.
    """
    found = (file for file in folder.glob('*') if file.suffix.lower() in IMG_EXTENSIONS)
    return sorted(found, key=lambda file: (len(file.name), file.name))
