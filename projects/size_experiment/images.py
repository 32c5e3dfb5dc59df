"""Images of the experiment: training and held-out lists, the sealed test set, and answers of a
model.
"""

import hashlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import torch
from PIL import Image
from torchvision.datasets.folder import IMG_EXTENSIONS

from cpvt_backbones.checkpoints import atomic_write


def write_lists(root: Path, folder: Path, every: int) -> tuple[Path, Path]:
    """Write ``train.txt`` and ``held_out.txt``, a path and a class a line.

    Of each class every ``every``-th image by name is held out.

    Args:
        root: Imagenette, with ``train/<WordNet id>``.
        folder: Of the lists.
        every: At least 2.

    Raises:
        ValueError: There are no images.
    """
    kept: list[str] = []
    held: list[str] = []
    classes = sorted(path for path in (root / 'train').glob('*') if path.is_dir())
    for label, folder_of_class in enumerate(classes):
        files = sorted(
            file for file in folder_of_class.glob('*') if file.suffix.lower() in IMG_EXTENSIONS
        )
        for number, file in enumerate(files, 1):
            line = f'{folder_of_class.name}/{file.name} {label}'
            (kept if number % every else held).append(line)
    if not kept or not held:
        raise ValueError(f'--data: there are too few images in {root}/train/<class>')
    lists = folder / 'train.txt', folder / 'held_out.txt'
    for file, lines in zip(lists, (kept, held), strict=True):
        with atomic_write(file) as stream:
            stream.write('\n'.join([*lines, '']).encode())
    return lists


def listed_images(root: Path, file: Path) -> tuple[list[np.ndarray], list[int]]:
    """Pixels, RGB (H, W, 3), and classes of a list's images."""
    pixels, labels = [], []
    for line in file.read_text().splitlines():
        name, label = line.rsplit(' ', 1)
        with Image.open(root / 'train' / name) as opened:
            pixels.append(np.asarray(opened.convert('RGB')))
        labels.append(int(label))
    return pixels, labels


def sealed_images(file: Path) -> list[np.ndarray]:
    """Pixels, RGB (H, W, 3), in the order of :func:`sealed_labels`, which does not tell their
    classes.
    """
    return [pixels for pixels, _ in _sealed(file)]


def sealed_labels(file: Path) -> list[int]:
    """Classes in the order of the SHA-256 of the images' files."""
    return [label for _, label in _sealed(file)]


def _sealed(file: Path) -> list[tuple[np.ndarray, int]]:
    with ZipFile(file) as archive:
        names = [name for name in archive.namelist() if name.lower().endswith(IMG_EXTENSIONS)]
        classes = sorted({name.split('/')[-2] for name in names})
        contents = [(archive.read(name), classes.index(name.split('/')[-2])) for name in names]
    contents.sort(key=lambda content: hashlib.sha256(content[0]).hexdigest())
    found = []
    for data, label in contents:
        with Image.open(io.BytesIO(data)) as opened:
            found.append((np.asarray(opened.convert('RGB')), label))
    return found


@torch.inference_mode()
def answer(
    model: Any, images: Sequence[np.ndarray], side: int, *, batch_size: int = 64
) -> list[int]:
    """The class that a classifier of mmpretrain gives each image at a size, in fp32.

    Args:
        model: With its data preprocessor, which takes BGR.
        images: RGB (H, W, 3); each is resized to a square, bicubic, without aliasing.
        side: Of the square in px.
        batch_size: Images at once.
    """
    model.eval()
    found: list[int] = []
    for start in range(0, len(images), batch_size):
        squares = [
            np.asarray(Image.fromarray(image).resize((side, side), Image.Resampling.BICUBIC))
            for image in images[start : start + batch_size]
        ]
        pixels = torch.from_numpy(np.stack(squares)[..., ::-1].copy()).permute(0, 3, 1, 2)
        inputs = model.data_preprocessor(dict(inputs=pixels), training=False)['inputs']
        found += model(inputs, mode='tensor').argmax(dim=1).tolist()
    return found


def accuracy(answers: Sequence[int], labels: Sequence[int]) -> float:
    """Top-1 accuracy in percent."""
    right = [given == label for given, label in zip(answers, labels, strict=True)]
    return round(100 * sum(right) / len(right), 3)
