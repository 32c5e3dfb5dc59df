"""Accuracy on small objects in large images: trained and predicted in tiles, or shrunk.

    python benchmarks/tiled_training.py --work-dir work_dirs/tiled
    python benchmarks/tiled_training.py --form masks --work-dir work_dirs/tiled

Generates scenes with squares and discs of 20 px, and the same scenes shrunk to the scale that
make_config.py would train at. Each set is trained and predicted by the tools alone:
make_config.py, train.py, infer.py. make_config.py chooses tiles for the large images by itself.
Of boxes, AP is printed; of masks, mIoU on the large images.
"""

import argparse
import contextlib
import io
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from cpvt import command_line as cli
from cpvt_backbones.errors import InputError

TOOLS = Path(cli.__file__).parent
CLASSES = ('square', 'disc')
COLOURS = ((60, 90, 200), (190, 120, 60))  # BGR
SIDES = 16, 25  # px of an object
# Of each form: size of a scene, its objects, the cells of px that they lie in, and the longer side
# that it is shrunk to.
FORMS = dict(
    coco=dict(width=6000, height=4000, objects=60, spacing=100, shrunk=640),
    masks=dict(width=1600, height=1600, objects=900, spacing=40, shrunk=480),
)
Coco = dict[str, Any]


def make_scene(
    rng: np.random.Generator, *, width: int, height: int, objects: int, spacing: int
) -> tuple[np.ndarray, np.ndarray, list[tuple[int, list[int]]]]:
    """An image, its class map, and the class and box (x, y, width, height) of each object.

    The image is (H, W, 3), uint8, BGR; its background has noise of three scales. The class map is
    (H, W), uint8: 0 background, then the classes. Objects lie apart, one in a cell of a grid.
    """
    image = np.full((height, width, 3), 40.0, np.float32)
    for cell, strength in ((400, 60), (30, 30), (1, 20)):
        shape = -(-height // cell), -(-width // cell), 3
        image += cv2.resize(rng.random(shape, np.float32) * strength, (width, height))
    classes = np.zeros((height, width), np.uint8)
    columns = width // spacing
    cells = rng.choice(columns * (height // spacing), objects, replace=False)
    found = []
    for cell in cells.tolist():
        label, side = int(rng.integers(2)), int(rng.integers(*SIDES))
        x, y = (
            spacing * place + int(rng.integers(spacing - side))
            for place in (cell % columns, cell // columns)
        )
        part = image[y : y + side, x : x + side]
        distance = np.abs(np.mgrid[:side, :side] - (side - 1) / 2)
        inside = np.ones((side, side), bool) if label == 0 else np.hypot(*distance) <= side / 2
        part[inside] = np.array(COLOURS[label]) + rng.normal(0, 15, (int(inside.sum()), 3))
        classes[y : y + side, x : x + side][inside] = label + 1
        found.append((label, [x, y, side, side]))
    return image.clip(0, 255).astype(np.uint8), classes, found


def write_split(
    folder: Path, split: str, seed: int, *, images: int, shrunk: int, **scene: int
) -> None:
    """Write scenes to ``folder/large`` and ``folder/shrunk``.

    Each has ``images`` and ``masks``, in subfolders by split, and COCO JSON.
    """
    rng = np.random.default_rng(seed)
    sets: dict[str, Coco] = {}
    categories = [dict(id=number, name=name) for number, name in enumerate(CLASSES, 1)]
    for name in ('large', 'shrunk'):
        sets[name] = dict(images=[], annotations=[], categories=categories)
        for kind in ('images', 'masks'):
            (folder / name / kind / split).mkdir(parents=True, exist_ok=True)
    for number in range(1, images + 1):
        image, classes, found = make_scene(rng, **scene)
        factor = shrunk / max(image.shape)
        size = tuple(round(side * factor) for side in image.shape[1::-1])
        small = cv2.resize(image, size, interpolation=cv2.INTER_AREA)
        few = cv2.resize(classes, size, interpolation=cv2.INTER_NEAREST)
        for name, pixels, labels, scale in (
            ('large', image, classes, 1.0),
            ('shrunk', small, few, factor),
        ):
            cv2.imwrite(str(folder / name / f'images/{split}/{number}.jpg'), pixels)
            cv2.imwrite(str(folder / name / f'masks/{split}/{number}.png'), labels)
            coco, (height, width) = sets[name], pixels.shape[:2]
            coco['images'].append(
                dict(id=number, file_name=f'{number}.jpg', width=width, height=height)
            )
            for label, box in found:
                sides = [scale * side for side in box]
                one: Coco = dict(id=len(coco['annotations']) + 1, image_id=number, iscrowd=0)
                one |= dict(category_id=label + 1, bbox=sides, area=sides[2] * sides[3])
                coco['annotations'].append(one)
    for name, coco in sets.items():
        (folder / name / f'{split}.json').write_text(json.dumps(coco))


def run(tool: str, *arguments: Any, folder: Path) -> str:
    """Run a tool in a folder; returns what it prints."""
    command = [sys.executable, str(TOOLS / f'{tool}.py'), *map(str, arguments)]
    options: Any = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    done = subprocess.run(command, cwd=folder, **options)
    if done.returncode:
        raise InputError(f'{tool}.py failed in {folder}:\n{done.stdout[-2000:]}')
    return done.stdout


def train_and_predict(
    folder: Path, data: Sequence[str], photos: str, *ways: Any, length: int, batch: int
) -> Path:
    """Make a config of ``data``, train, predict on ``photos``, and return the output folder."""
    written = ['--out', 'model.py', '--length', length]
    printed = run('make_config', *data, *written, folder=folder)
    # The tool prints the three commands to type; the last one predicts.
    words = printed.split('tools/infer.py', 1)[1].split()
    options = words[words.index('--out-dir') + 2 :]
    batches = f'train_dataloader.batch_size={batch}'
    run('train', 'model.py', '--cfg-options', batches, folder=folder)
    checkpoint = f'work_dirs/model/iter_{length}.pth'
    out = ['--out-dir', 'out', '--overwrite', '--no-vis']
    run('infer', 'model.py', checkpoint, photos, *out, *options, *ways, folder=folder)
    return folder / 'out'


def of_boxes(folder: Path, **training: int) -> dict[str, float]:
    """AP (IoU 0.5 to 0.95) and AP50 on the validation images of a set."""
    data = ['coco', 'train.json', 'images/train', '--val', 'val.json', 'images/val']
    ways = ['--score-thr', 0.001, '--ann', 'val.json']
    out = train_and_predict(folder, data, 'images/val', *ways, **training)
    return average_precision(folder / 'val.json', out / 'predictions.json')


def of_masks(folder: Path, **training: int) -> dict[str, float]:
    """mIoU of a set's model on the large validation images."""
    large = folder.resolve().parent / 'large'
    out = train_and_predict(
        folder, ['masks', 'images', 'masks'], str(large / 'images/val'), **training
    )
    return mean_iou(large / 'masks/val', out / 'pred')


def mean_iou(truth: Path, predictions: Path) -> dict[str, float]:
    """mIoU of class maps, over all images, and IoU of each class."""
    count = len(CLASSES) + 1
    pairs = np.zeros((count, count), np.int64)
    for file in sorted(truth.glob('*.png')):
        labels, found = (cv2.imread(str(path / file.name), -1) for path in (truth, predictions))
        assert labels is not None and found is not None
        both = labels.astype(np.int64) * count + found
        pairs += np.bincount(both.ravel(), minlength=count**2).reshape(count, count)
    right = pairs.diagonal()
    ious = right / np.maximum(pairs.sum(0) + pairs.sum(1) - right, 1)
    named = dict(zip(('background', *CLASSES), ious.tolist(), strict=True))
    return dict(mIoU=float(ious.mean()), **named)


def average_precision(truth: Path, predictions: Path) -> dict[str, float]:
    """AP and AP50 of COCO results."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    if not json.loads(predictions.read_text()):
        return dict(AP=0.0, AP50=0.0)
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO(str(truth))
        evaluation = COCOeval(coco, coco.loadRes(str(predictions)), 'bbox')
        evaluation.params.maxDets = [1, 100, 1000]  # of the objects of an image
        evaluation.evaluate()
        evaluation.accumulate()
    precision = evaluation.eval['precision'][..., 0, -1]  # (IoU, recall, class), of all areas
    return dict(AP=float(precision.mean()), AP50=float(precision[0].mean()))


def main(argv: Sequence[str] | None = None) -> None:
    parser = cli.make_parser(__doc__)
    add = parser.add_argument
    add('--work-dir', type=Path, required=True, help='new folder for images, models, predictions')
    add('--form', choices=FORMS, default='coco', help='boxes (default) or masks')
    add('--length', type=cli.positive, default=120, help='iterations; default: %(default)s')
    add('--batch-size', type=cli.positive, default=2, metavar='N', help='default: %(default)s')
    for name, unit in (('width', 'px '), ('height', 'px '), ('objects', '')):
        defaults = ' or '.join(str(scene[name]) for scene in FORMS.values())
        add(f'--{name}', type=cli.positive, help=f'{unit}of an image; default: {defaults}')
    args: argparse.Namespace = parser.parse_args(argv)
    if args.work_dir.exists():
        raise InputError(f'--work-dir: {str(args.work_dir)!r} exists; name a new folder')
    scene = dict(FORMS[args.form])
    for name in ('width', 'height', 'objects'):
        scene[name] = getattr(args, name) or scene[name]
    for seed, (split, images) in enumerate((('train', 4), ('val', 2))):
        write_split(args.work_dir, split, seed, images=images, **scene)
    measure = of_boxes if args.form == 'coco' else of_masks
    for name in ('shrunk', 'large'):
        found = measure(args.work_dir / name, length=args.length, batch=args.batch_size)
        print(f'{name}: {", ".join(f"{key} {value:.3f}" for key, value in found.items())}')


if __name__ == '__main__':
    cli.run(main)
