"""AP of a detector of small objects in large images: trained and predicted in tiles, or shrunk.

    python benchmarks/tiled_training.py --work-dir work_dirs/tiled

Generates scenes of 6000 x 4000 px with squares and discs of 20 px, and the same scenes shrunk to
640 px. Each set is trained and predicted by the tools alone: make_config.py, train.py, infer.py.
make_config.py chooses tiles for the large images by itself.
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

sys.path.append(str(Path(__file__).resolve().parents[1] / 'tools'))  # for command_line

import command_line as cli
import cv2
import numpy as np

TOOLS = Path(cli.__file__).parent
CLASSES = ('square', 'disc')
COLOURS = ((60, 90, 200), (190, 120, 60))  # BGR
SHRUNK = 640  # px, the longer side
SIDES = 16, 25  # px of an object
Coco = dict[str, Any]


def make_scene(
    rng: np.random.Generator, *, width: int, height: int, objects: int
) -> tuple[np.ndarray, list[tuple[int, list[int]]]]:
    """An image (H, W, 3), uint8, BGR, and the class and box (x, y, width, height) of each object.

    The background has noise of three scales. Objects lie apart, one in a cell of a grid.
    """
    image = np.full((height, width, 3), 40.0, np.float32)
    for cell, strength in ((400, 60), (30, 30), (1, 20)):
        shape = -(-height // cell), -(-width // cell), 3
        image += cv2.resize(rng.random(shape, np.float32) * strength, (width, height))
    columns = width // 100
    cells = rng.choice(columns * (height // 100), objects, replace=False)
    found = []
    for cell in cells.tolist():
        label, side = int(rng.integers(2)), int(rng.integers(*SIDES))
        x, y = (
            100 * place + int(rng.integers(100 - side))
            for place in (cell % columns, cell // columns)
        )
        part = image[y : y + side, x : x + side]
        distance = np.abs(np.mgrid[:side, :side] - (side - 1) / 2)
        inside = np.ones((side, side), bool) if label == 0 else np.hypot(*distance) <= side / 2
        part[inside] = np.array(COLOURS[label]) + rng.normal(0, 15, (int(inside.sum()), 3))
        found.append((label, [x, y, side, side]))
    return image.clip(0, 255).astype(np.uint8), found


def write_split(folder: Path, split: str, seed: int, *, images: int, **scene: int) -> None:
    """Write scenes to ``folder/large`` and ``folder/shrunk``, with COCO JSON beside them."""
    rng = np.random.default_rng(seed)
    sets: dict[str, Coco] = {}
    categories = [dict(id=number, name=name) for number, name in enumerate(CLASSES, 1)]
    for name in ('large', 'shrunk'):
        sets[name] = dict(images=[], annotations=[], categories=categories)
        (folder / name / split).mkdir(parents=True, exist_ok=True)
    for number in range(1, images + 1):
        image, found = make_scene(rng, **scene)
        factor = SHRUNK / max(image.shape)
        size = tuple(round(side * factor) for side in image.shape[1::-1])
        small = cv2.resize(image, size, interpolation=cv2.INTER_AREA)
        for name, pixels, scale in (('large', image, 1.0), ('shrunk', small, factor)):
            cv2.imwrite(str(folder / name / split / f'{number}.jpg'), pixels)
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
        raise ValueError(f'{tool}.py failed in {folder}:\n{done.stdout[-2000:]}')
    return done.stdout


def train_and_predict(folder: Path, *, length: int, batch: int) -> dict[str, float]:
    """AP (IoU 0.5 to 0.95) and AP50 on the validation images of a set."""
    data = ['train.json', 'train', '--val', 'val.json', 'val']
    written = ['--out', 'model.py', '--length', length]
    printed = run('make_config', 'coco', *data, *written, folder=folder)
    # The tool prints the three commands to type; the last one predicts.
    words = printed.split('tools/infer.py', 1)[1].split()
    options = words[words.index('out') + 1 :]
    batches = f'train_dataloader.batch_size={batch}'
    run('train', 'model.py', '--cfg-options', batches, folder=folder)
    checkpoint = f'work_dirs/model/iter_{length}.pth'
    out = ['--out-dir', 'out', '--overwrite', '--no-vis', '--score-thr', 0.001]
    run('infer', 'model.py', checkpoint, 'val', *out, *options, '--ann', 'val.json', folder=folder)
    return average_precision(folder / 'val.json', folder / 'out/predictions.json')


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
    add('--length', type=cli.positive, default=120, help='iterations; default: %(default)s')
    add('--batch-size', type=cli.positive, default=2, metavar='N', help='default: %(default)s')
    add('--width', type=cli.positive, default=6000, help='px; default: %(default)s')
    add('--height', type=cli.positive, default=4000, help='px; default: %(default)s')
    add('--objects', type=cli.positive, default=60, help='of an image; default: %(default)s')
    args: argparse.Namespace = parser.parse_args(argv)
    if args.work_dir.exists():
        raise ValueError(f'--work-dir: {str(args.work_dir)!r} exists; name a new folder')
    scene = dict(width=args.width, height=args.height, objects=args.objects)
    for seed, (split, images) in enumerate((('train', 4), ('val', 2))):
        write_split(args.work_dir, split, seed, images=images, **scene)
    for name in ('shrunk', 'large'):
        found = train_and_predict(args.work_dir / name, length=args.length, batch=args.batch_size)
        print(f'{name}: AP {found["AP"]:.3f}, AP50 {found["AP50"]:.3f}')


if __name__ == '__main__':
    cli.run(main)
