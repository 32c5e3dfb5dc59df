"""Run exported files of the shipped models in reduced precision; compare accuracy, time and size.

    python benchmarks/precision.py --data DATA --out docs/benchmarks/precision.csv \\
        --docs docs/export.md

DATA has the folders ``bccd``, ``camvid`` and ``imagenette`` as the configs expect them. The images
are those on which the configs test. Of each image all routes are timed one after the other, on one
thread. The routes are the file in float32 in ONNX Runtime and in OpenVINO, there also in bfloat16,
and the int8 copies for both. OpenVINO's copy is calibrated on training images, and what is not int8
in it runs in bfloat16.
"""

import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import pandas as pd
import torch
from mmengine.config import Config
from PIL import Image
from rich.progress import track

from benchmarks import fill_marked, instructions, processor
from cpvt.command_line import make_parser, positive, run
from cpvt_backbones.export import ExportedModel, export, graph_of
from cpvt_backbones.export.int8 import calibration_inputs, compare, quantise, total_of
from cpvt_backbones.inference import Inferencer, ToolboxPredictor
from cpvt_backbones.weights import repository_file, shipped_weights

CALIBRATION_IMAGES = 40
SUFFIXES = ('.png', '.jpg', '.jpeg', '.webp')


class Boxes:
    """Box AP at IoU 0.5 on the test images of the blood cells."""

    metric = 'box AP50'

    def __init__(self, folder: Path) -> None:
        self._annotations = folder / 'annotations' / 'test.json'
        content = json.loads(self._annotations.read_text(encoding='utf-8'))
        self._ids = [image['id'] for image in content['images']]
        self._categories = [category['id'] for category in content['categories']]
        self.images = [find(folder, image['file_name'], 'test') for image in content['images']]
        self.training = files_in(folder / 'train')
        self._found: list[dict[str, Any]] = []

    def add(self, index: int, prediction: dict[str, Any]) -> None:
        """Keep the boxes of one image."""
        for (x1, y1, x2, y2), score, label in zip(
            prediction['boxes'], prediction['scores'], prediction['labels'], strict=True
        ):
            self._found.append(
                dict(
                    image_id=self._ids[index],
                    category_id=self._categories[label],
                    bbox=[x1, y1, x2 - x1, y2 - y1],
                    score=score,
                )
            )

    def value(self) -> float:
        """The metric, 0 to 100."""
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval

        with contextlib.redirect_stdout(None):
            truth = COCO(self._annotations)
            evaluation = COCOeval(truth, truth.loadRes(self._found), 'bbox')
            evaluation.evaluate()
            evaluation.accumulate()
            evaluation.summarize()
        return 100 * float(evaluation.stats[1])


class ClassMaps:
    """mIoU on the test images of the street scenes."""

    metric = 'mIoU'
    void = 11  # the value behind the eleven classes

    def __init__(self, folder: Path) -> None:
        self.images = files_in(folder / 'images' / 'test')
        self.training = files_in(folder / 'images' / 'train')
        self._labels = folder / 'labels' / 'test'
        self._pairs = np.zeros((256, 256), np.int64)

    def add(self, index: int, prediction: dict[str, Any]) -> None:
        """Count the pixels of one image by true and found class."""
        with Image.open(self._labels / f'{self.images[index].stem}.png') as file:
            truth = np.asarray(file)
        pairs = truth.astype(np.int64).ravel() * 256 + prediction['seg_map'].ravel()
        self._pairs += np.bincount(pairs, minlength=256**2).reshape(256, 256)

    def value(self) -> float:
        """The metric, 0 to 100; void is not counted."""
        pairs = self._pairs[: self.void]
        both = np.diag(pairs)
        union = pairs.sum(0)[: self.void] + pairs.sum(1) - both
        return 100 * float(np.mean(both / union))


class Classes:
    """Accuracy on the validation images of ten classes of ImageNet."""

    metric = 'top-1'

    def __init__(self, folder: Path) -> None:
        self.images = files_in(folder / 'val')
        self.training = files_in(folder / 'train')
        self._names = sorted({image.parent.name for image in self.images})
        self._right: list[bool] = []

    def add(self, index: int, prediction: dict[str, Any]) -> None:
        """Compare the class of one image."""
        wanted = self._names.index(self.images[index].parent.name)
        self._right.append(prediction['label'] == wanted)

    def value(self) -> float:
        """The metric, 0 to 100."""
        return 100 * float(np.mean(self._right))


Test = Boxes | ClassMaps | Classes
TESTS: dict[str, tuple[str, type[Test]]] = {
    'cpvt_tiny_gap-imagenette': ('imagenette', Classes),
    'retinanet_cpvt_tiny_gap-bccd': ('bccd', Boxes),
    'semantic_fpn_cpvt_tiny_gap-camvid': ('camvid', ClassMaps),
}


def files_in(folder: Path) -> list[Path]:
    """Images of a folder and its folders; FileNotFoundError if there is none."""
    found = sorted(path for path in folder.rglob('*') if path.suffix.lower() in SUFFIXES)
    if not found:
        raise FileNotFoundError(f'--data: there are no images in {str(folder)!r}')
    return found


def find(folder: Path, name: str, split: str) -> Path:
    """An image of a COCO file: below the folder, or below that of the split."""
    return folder / name if (folder / name).is_file() else folder / split / name


def open_test(name: str, data: Path) -> Test:
    """The test of a shipped model; ``FileNotFoundError`` without its images."""
    folder, kind = TESTS[name]
    return kind(data / folder)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure the shipped models and write the table."""
    parser = make_parser(__doc__)
    parser.add_argument('--data', type=Path, required=True, metavar='FOLDER')
    parser.add_argument('--out', type=Path, required=True, metavar='FILE.csv')
    parser.add_argument('--docs', type=Path, metavar='PAGE.md', help='page whose table is filled')
    parser.add_argument('--models', nargs='+', choices=TESTS, default=list(TESTS))
    parser.add_argument('--timed', type=positive, default=40, help='images; default: %(default)s')
    args = parser.parse_args(argv)
    if not args.out.parent.is_dir():
        raise NotADirectoryError(f'out: {str(args.out.parent)!r} is not a folder')
    for name in args.models:
        open_test(name, args.data)
    torch.set_num_threads(1)
    rows = [row for name in args.models for row in measure(name, args.data, timed=args.timed)]
    table = pd.DataFrame(rows)
    table.to_csv(args.out, index=False)
    print(table.to_string(index=False))
    if args.docs:
        fill_page(args.docs, table)


def measure(name: str, data: Path, *, timed: int) -> list[dict[str, Any]]:
    """A row for each route; the first one, float32 in ONNX Runtime, is what the others are
    compared with.
    """
    test = open_test(name, data)
    shipped = shipped_weights()[name]
    cfg = Config.fromfile(repository_file(shipped.config))
    predictor = ToolboxPredictor(cfg=cfg, checkpoint=name, device='cpu')
    settings: dict[str, Any] = dict(classes=predictor.classes, size_steps=predictor.size_steps)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, 'fp32.onnx')
        dynamic, static = Path(folder, 'dynamic.onnx'), Path(folder, 'static.onnx')
        export(graph_of(predictor.model), path, settings=settings)
        original = ExportedModel(path)
        quantise(path, dynamic)
        # Spread over the training images, which are sorted by class or scene.
        chosen = test.training[:: -(-len(test.training) // CALIBRATION_IMAGES)]
        inputs = calibration_inputs(original, chosen)
        quantise(path, static, runtime='openvino', calibration=inputs)
        routes = {
            'ONNX Runtime, fp32': (path, 'onnxruntime'),
            'ONNX Runtime, int8': (dynamic, 'onnxruntime'),
            'OpenVINO, fp32': (path, 'openvino'),
            'OpenVINO, bf16': (path, 'openvino-bfloat16'),
            'OpenVINO, int8 and bf16': (static, 'openvino-bfloat16'),
        }
        models = {
            route: ExportedModel(file, runtime=runtime) for route, (file, runtime) in routes.items()
        }
        images = test.images[:timed]
        ratios = time_ratios(models, images)
        rows = []
        for route, model in models.items():
            agreement = total_of(list(compare(model, original, images)))
            size = routes[route][0].stat().st_size / 2**20
            row = dict(
                model=name,
                route=route,
                metric=test.metric,
                value=round(score(model, name, data), 2),
                images=len(test.images),
                agreement=round(100 * agreement.share, 2),
                compared=len(images),
                time=round(ratios[route], 3),
                mib=round(size, 1),
                machine=f'{processor()}, {instructions()}',
                threads=torch.get_num_threads(),
            )
            rows.append(row)
    return rows


def score(model: ExportedModel, name: str, data: Path) -> float:
    """The metric of a file."""
    test = open_test(name, data)
    inferencer = Inferencer(predictor=model)
    for index, image in enumerate(track(test.images, f'{name}: {test.metric}')):
        prediction, _ = inferencer(image, score_thr=0.0)
        test.add(index, prediction)
    return test.value()


def time_ratios(models: dict[str, ExportedModel], images: Sequence[Path]) -> dict[str, float]:
    """Median over images of each route's time relative to the first one's, at the file's scale."""
    inferencers = {key: Inferencer(predictor=model) for key, model in models.items()}
    times: dict[str, list[float]] = {key: [] for key in models}
    for image in track(images, 'time'):
        for key, inferencer in inferencers.items():
            inferencer(image)  # memory for this size
            start = time.perf_counter()
            inferencer(image)
            times[key].append(time.perf_counter() - start)
    first = np.array(next(iter(times.values())))
    return {key: float(np.median(np.array(taken) / first)) for key, taken in times.items()}


def fill_page(page: Path, table: pd.DataFrame) -> None:
    """Write the table into the page, between its marks."""
    rows = ['| model, metric | route | value | agreement | time | MiB |']
    rows.append('| --- | --- | ---: | ---: | ---: | ---: |')
    for row in table.itertuples():
        rows.append(
            f'| {row.model}, {row.metric} | {row.route} | {row.value:.1f}'
            f' | {row.agreement:.1f} % | {row.time:.2f} | {row.mib} |'
        )
    packages = ', '.join(f'{name} {version(name)}' for name in ('onnxruntime', 'openvino'))
    where = f'Processor {table["machine"].iloc[0]}; one thread; {packages}.'
    fill_marked(page, 'precision', '\n'.join([where, '', *rows]))


if __name__ == '__main__':
    run(main)
