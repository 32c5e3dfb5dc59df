"""Small photographs of coloured shapes on noise, with two classes, in each form that make_config.py
reads.
"""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image
from pycocotools import mask as coco_mask

# A space, accents and letters that are not Latin.
CLASSES = ('bleu carré', 'große Ωρα')
HEIGHT, WIDTH = 64, 72  # px
COLOURS = np.array([(40, 80, 220), (230, 150, 40)])


class Scene(NamedTuple):
    """An image and its objects."""

    name: str  # file name without suffix
    image: np.ndarray  # RGB, uint8 (H, W, 3)
    labels: list[int]  # index in CLASSES of each object
    masks: list[np.ndarray]  # bool (H, W) of each object; they are disjoint

    @property
    def boxes(self) -> list[list[int]]:
        """x, y, width, height of each object, px."""
        found = []
        for mask in self.masks:
            rows, columns = (np.flatnonzero(mask.any(axis)) for axis in (1, 0))
            size = [int(columns[-1] - columns[0]) + 1, int(rows[-1] - rows[0]) + 1]
            found.append([int(columns[0]), int(rows[0]), *size])
        return found


def make_scene(rng: np.random.Generator, name: str, labels: list[int]) -> Scene:
    """A square of the first class or a disc of the second, one in each column of the image."""
    image = rng.normal(110, 30, (HEIGHT, WIDTH, 3))
    rows, columns = np.mgrid[:HEIGHT, :WIDTH]
    masks = []
    step = WIDTH // len(labels)
    for index, label in enumerate(labels):
        radius = int(rng.integers(9, 14))
        left = index * step
        x = int(rng.integers(left + radius, left + step - radius))
        y = int(rng.integers(radius, HEIGHT - radius))
        distances = np.abs(columns - x), np.abs(rows - y)
        mask = np.maximum(*distances) < radius if label == 0 else np.hypot(*distances) < radius
        image[mask] = COLOURS[label] + rng.normal(0, 20, (int(mask.sum()), 3))
        masks.append(mask)
    return Scene(name, image.clip(0, 255).astype(np.uint8), labels, masks)


def make_split(seed: int, split: str, count: int, *, objects: int) -> list[Scene]:
    """``count`` scenes with as many objects of each class."""
    rng = np.random.default_rng([seed, len(split)])
    labels = [[(index + i) % len(CLASSES) for i in range(objects)] for index in range(count)]
    return [make_scene(rng, f'{split}_{index}', row) for index, row in enumerate(labels)]


def write_images(folder: Path, scenes: list[Scene]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for scene in scenes:
        Image.fromarray(scene.image).save(folder / f'{scene.name}.png')


def coco_json(file: Path, scenes: list[Scene], *, masks: bool = False) -> Path:
    """Write boxes, or boxes and masks (run lengths), as COCO JSON."""
    images, annotations = [], []
    for number, scene in enumerate(scenes, 1):
        size = dict(height=HEIGHT, width=WIDTH)
        images.append(dict(id=number, file_name=f'{scene.name}.png', **size))
        for label, box, mask in zip(scene.labels, scene.boxes, scene.masks, strict=True):
            ids = dict(id=len(annotations) + 1, image_id=number, category_id=label + 1)
            one = dict(**ids, bbox=box, area=int(mask.sum()), iscrowd=0)
            if masks:
                runs = coco_mask.encode(np.asfortranarray(mask))
                one['segmentation'] = dict(size=runs['size'], counts=runs['counts'].decode())
            annotations.append(one)
    categories = [dict(id=number, name=name) for number, name in enumerate(CLASSES, 1)]
    content = dict(images=images, annotations=annotations, categories=categories)
    file.write_text(json.dumps(content), encoding='utf-8')
    return file


def class_maps(folder: Path, scenes: list[Scene]) -> None:
    """Masks of class indices: 0 background, then the classes."""
    folder.mkdir(parents=True)
    for scene in scenes:
        Image.fromarray(class_map(scene)).save(folder / f'{scene.name}.png')


def class_map(scene: Scene) -> np.ndarray:
    """uint8 (H, W)."""
    indices = np.zeros((HEIGHT, WIDTH), np.uint8)
    for label, mask in zip(scene.labels, scene.masks, strict=True):
        indices[mask] = label + 1
    return indices
