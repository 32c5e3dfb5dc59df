"""Time, memory and agreement on large images, beside sahi (detection) and mmsegmentation's slide
inference.

python benchmarks/large_images.py --sizes 2000 5000 10000 20000 --out docs/benchmarks/large.csv
--docs docs/scale.md python benchmarks/large_images.py --systems ours_segmentation --sizes 50000
--limit 4 --out docs/benchmarks/large.csv

Tiles of 1024 px that overlap by 256. The detector finds bright rectangles, so that its boxes are
known and its cost is small; the segmentor is one windowed CPVT block of random weights. Every row
runs in a process of its own: CPU seconds (user and system) a megapixel, and peak memory above that
after the first tile. Agreement: F1 of the boxes with the true rectangles (IoU 0.5), or the share of
pixels with our class. A row that exceeds --limit GiB above its start names the limit. Rows that
--out has stay as they are.
"""

import json
import os
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

sys.path.insert(
    0, str(Path(__file__).resolve().parents[1])
)  # for `benchmarks`, where this file runs as a script

from benchmarks import fill_marked, processor
from cpvt_backbones.analysis.tables import read_table, write_table
from cpvt_backbones.engine.command_line import make_parser, positive, run
from cpvt_backbones.inference import Inferencer
from cpvt_backbones.inference.windows import read_map

TILE, OVERLAP, CELL = 1024, 256, 96
SYSTEMS = ('ours_detection', 'sahi', 'ours_segmentation', 'mmseg_slide')


def rectangle(row: int, column: int) -> tuple[int, int, int, int, int]:
    """Left, top, right, bottom in px, and channel, of the rectangle in a cell of ``CELL`` px."""
    left, top = column * CELL + 5 + row % 7, row * CELL + 5 + column % 11
    return (
        left,
        top,
        left + 12 + (3 * row + column) % 60,
        top + 10 + (row + 5 * column) % 50,
        (row + column) % 3,
    )


def rectangles(side: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Those of a whole image."""
    return (rectangle(row, column) for row in range(side // CELL) for column in range(side // CELL))


def write_image(path: Path, side: int) -> None:
    """Write a tiled TIFF of texture with rectangles, band by band."""
    import rasterio

    warnings.filterwarnings('ignore', category=rasterio.errors.NotGeoreferencedWarning)
    texture = np.random.default_rng(0).integers(0, 16, (CELL, side, 3), np.uint8) * 6
    layout = dict(
        driver='GTiff',
        tiled=True,
        blockxsize=512,
        blockysize=512,
        compress='deflate',
        zlevel=1,
        count=3,
    )
    with rasterio.open(
        path, 'w', height=side, width=side, dtype='uint8', bigtiff='if_safer', **layout
    ) as file:
        for row in range(-(-side // CELL)):
            band = texture[: side - row * CELL].copy()
            for column in range(side // CELL if row < side // CELL else 0):
                left, top, right, bottom, channel = rectangle(row, column)
                band[top - row * CELL : bottom - row * CELL, left:right, channel] = 255
            file.write(
                np.moveaxis(band[..., ::-1], 2, 0),
                window=((row * CELL, row * CELL + len(band)), (0, side)),
            )


class Rectangles:
    """A detector of bright rectangles; a predictor for ``Inferencer``.

    ``texture`` (below 128) is not found.
    """

    task, classes, palette, fingerprint = 'detection', ('blue', 'green', 'red'), None, 'rectangles'

    def predict(self, images: list[np.ndarray]) -> list[dict[str, Any]]:
        """See ``Predictor``."""
        return [self.find(image) for image in images]

    def find(self, image: np.ndarray) -> dict[str, Any]:
        """Boxes, labels and scores of one image."""
        from scipy.ndimage import find_objects, label

        found = [
            (columns.start, rows.start, columns.stop, rows.stop, channel)
            for channel in range(3)
            for rows, columns in find_objects(label(image[..., channel] > 128)[0])
        ]
        table = np.array(found, np.float32).reshape(-1, 5)
        scores = np.full(len(table), 0.9, np.float32)
        return dict(boxes=table[:, :4], labels=table[:, 4].astype(int), scores=scores)


class Segmentor:
    """A segmentor of mmsegmentation with one windowed block of CPVT, random weights.

    A predictor for ``Inferencer``.
    """

    task, classes, palette, fingerprint = 'segmentation', tuple('abcdefgh'), None, 'segmentor'

    def __init__(self) -> None:
        from mmengine.config import ConfigDict
        from mmseg.registry import MODELS
        from mmseg.utils import register_all_modules

        import cpvt_backbones  # noqa: F401

        register_all_modules()
        torch.manual_seed(0)
        arch = dict(embed_dims=32, depth=1, num_heads=2, mlp_ratio=2.0)
        backbone = dict(
            type='CPVT', arch=arch, position=dict(type='PEG', after_blocks=(0,)), window_size=16
        )
        head = dict(
            type='FCNHead', in_channels=32, in_index=0, channels=32, num_convs=0, concat_input=False
        )
        head |= dict(dropout_ratio=0, num_classes=len(self.classes), align_corners=False)
        tiles = dict(mode='slide', crop_size=(TILE, TILE), stride=(TILE - OVERLAP, TILE - OVERLAP))
        backbone |= dict(with_cls_token=False, out_indices=(0,))
        model = dict(type='EncoderDecoder', backbone=backbone, decode_head=head, test_cfg=tiles)
        self.model = MODELS.build(
            ConfigDict(model, data_preprocessor=dict(type='SegDataPreProcessor'))
        ).eval()

    def inputs(self, images: Sequence[np.ndarray]) -> torch.Tensor:
        """Normalised batch."""
        return (torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).float() - 45) / 45

    @torch.inference_mode()
    def logits(self, images: list[np.ndarray]) -> torch.Tensor:
        """See ``Predictor``."""
        return self.model.encode_decode(
            self.inputs(images), [dict(img_shape=image.shape[:2]) for image in images]
        )

    def to_classes(self, logits: torch.Tensor) -> torch.Tensor:
        """See ``Predictor``."""
        return logits.argmax(0)


def ours(predictor: Any, folder: Path) -> Callable[[Path], Any]:
    """Our prediction, by windows."""
    options: dict[str, Any] = dict(
        read_limit=1, tile_size=TILE, overlap=OVERLAP, max_pixels=TILE**2
    )
    inferencer = Inferencer(predictor=predictor, scale='native', **options)

    def predict(path: Path) -> Any:
        ((_, result),) = inferencer.stream([path], map_dir=folder)
        if result.error is not None:
            raise result.error
        assert result.prediction is not None
        if 'seg_map' in result.prediction:
            return os.replace(result.prediction['seg_map'], folder / f'{path.stem}_map.tif')
        return np.column_stack([result.prediction['boxes'], result.prediction['labels']])

    return predict


def sahi_of(detector: Rectangles) -> Callable[[Path], np.ndarray]:
    """sahi's sliced prediction with its default merging."""
    from sahi.models.base import DetectionModel
    from sahi.predict import get_sliced_prediction
    from sahi.prediction import ObjectPrediction

    class Model(DetectionModel):
        def load_model(self) -> None:
            self.category_mapping = {str(i): name for i, name in enumerate(detector.classes)}

        def perform_inference(self, image: np.ndarray) -> None:
            self._original_predictions = [detector.find(image[..., ::-1])]

        def _create_object_prediction_list_from_original_predictions(
            self, shift_amount_list: Any = None, full_shape_list: Any = None
        ) -> None:
            shift, shape = (
                (value[0] if isinstance(value[0], list) else value)
                for value in (shift_amount_list or [0, 0], full_shape_list)
            )
            self._object_prediction_list_per_image = [
                [
                    ObjectPrediction(
                        bbox=box.tolist(),
                        category_id=int(label),
                        score=0.9,
                        category_name=detector.classes[label],
                        shift_amount=shift,
                        full_shape=shape,
                    )
                    for found in self._original_predictions
                    for box, label in zip(found['boxes'], found['labels'], strict=True)
                ]
            ]

    model = Model(device='cpu')
    share = OVERLAP / TILE
    options: dict[str, Any] = dict(
        slice_height=TILE, slice_width=TILE, perform_standard_pred=False, verbose=0
    )

    def predict(path: Path) -> np.ndarray:
        from cpvt_backbones.inference import read_image

        image = read_image(path, read_limit=None)[..., ::-1]
        found = get_sliced_prediction(
            image, model, overlap_height_ratio=share, overlap_width_ratio=share, **options
        ).object_prediction_list
        return np.array([[*one.bbox.to_xyxy(), one.category.id] for one in found]).reshape(-1, 5)

    return predict


def slide_of(segmentor: Segmentor, folder: Path) -> Callable[[Path], None]:
    """mmsegmentation's slide inference; the class map is written as a file of numpy."""

    @torch.inference_mode()
    def predict(path: Path) -> None:
        from cpvt_backbones.inference import read_image

        image = read_image(path, read_limit=None)
        logits = segmentor.model.slide_inference(
            segmentor.inputs([image]), [dict(img_shape=image.shape[:2])]
        )
        np.save(folder / f'{path.stem}_slide.npy', logits[0].argmax(0).to(torch.uint8).numpy())

    return predict


def f1(boxes: np.ndarray, side: int) -> float:
    """F1 of boxes (N, 5: with label) with the rectangles of an image."""
    import shapely  # type: ignore[import-untyped]

    truth = np.array(list(rectangles(side)), float)
    shapes = shapely.box(*boxes[:, :4].T)
    tree = shapely.STRtree(shapes)
    found, true = tree.query(shapely.box(*truth[:, :4].T))[::-1]
    shared = shapely.area(shapely.intersection(shapes[found], shapely.box(*truth[true, :4].T)))
    sizes = [(table[:, 2] - table[:, 0]) * (table[:, 3] - table[:, 1]) for table in (boxes, truth)]
    same = (shared >= 0.5 * (sizes[0][found] + sizes[1][true] - shared)) & (
        boxes[found, 4] == truth[true, 4]
    )
    return 2 * len(set(true[same])) / (len(boxes) + len(truth))


def status(field: str) -> float:
    """A field of /proc/self/status in MiB: VmRSS, VmHWM."""
    return (
        next(int(line.split()[1]) for line in open('/proc/self/status') if line.startswith(field))
        / 1024
    )


def measure(system: str, side: int, folder: Path, limit: float) -> dict[str, Any]:
    """Time and memory of one system on one image."""
    torch.set_num_threads(1)
    call = {
        'ours_detection': lambda: ours(Rectangles(), folder),
        'sahi': lambda: sahi_of(Rectangles()),
        'ours_segmentation': lambda: ours(Segmentor(), folder),
        'mmseg_slide': lambda: slide_of(Segmentor(), folder),
    }[system]()
    call(folder / 'first.tif')
    virtual = int(status('VmSize') * 2**20)
    resource.setrlimit(resource.RLIMIT_AS, (virtual + int(limit * 2**30), resource.RLIM_INFINITY))
    before, start, cpu = status('VmRSS'), time.perf_counter(), sum(os.times()[:2])
    result = call(folder / f'{side}.tif')
    row = dict(
        seconds=time.perf_counter() - start,
        cpu=sum(os.times()[:2]) - cpu,
        peak_mib=status('VmHWM') - before,
    )
    if result is not None:
        row['agreement'] = f1(result, side)
    elif system == 'mmseg_slide' and (folder / f'{side}_map.tif').exists():
        slide = np.load(folder / f'{side}_slide.npy', mmap_mode='r')
        row['agreement'] = float(
            (slide == read_map(folder / f'{side}_map.tif', height=side, width=side)).mean()
        )
    return row


def table(path: Path) -> str:
    """The CSV as Markdown: a row for each size, of each system CPU seconds a megapixel, peak
    memory, agreement.
    """
    records = read_table(path)
    systems = [name for name in SYSTEMS if any(record['system'] == name for record in records)]
    cells: dict[str, dict[str, str]] = {}
    for row in records:
        figures = (
            row['failure']
            if not row['cpu']
            else (
                f'{float(row["cpu"]) / (int(row["side"]) / 1000) ** 2:.3f} s,'
                f' {float(row["peak_mib"]):,.0f} MiB'
            )
        )
        shown = f', {float(row["agreement"]):.4f}' if row.get('agreement') else ''
        cells.setdefault(row['side'], {})[row['system']] = figures + shown
    lines = [
        (
            f'{records[0]["machine"]}, one thread. CPU seconds a megapixel, MiB above the first'
            ' tile, agreement.'
        ),
        '',
    ]
    lines += ['| px | ' + ' | '.join(systems) + ' |', '| ---: |' + ' --- |' * len(systems)]
    for side, row in cells.items():
        lines.append(
            f'| {int(side):,} | ' + ' | '.join(row.get(name, '') for name in systems) + ' |'
        )
    return '\n'.join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument(
        '--sizes', nargs='+', type=positive, default=[2000, 5000], metavar='SIDE', help='px'
    )
    parser.add_argument('--systems', nargs='+', choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument(
        '--limit',
        type=float,
        default=12,
        help='GiB of memory that a system may take, above its start',
    )
    parser.add_argument('--folder', type=Path, help='for the images; default: of temporary files')
    parser.add_argument('--out', type=Path, default=Path('work_dirs/large_images.csv'), help='CSV')
    parser.add_argument(
        '--docs', type=Path, metavar='FILE', help='page whose part large_images becomes the table'
    )
    parser.add_argument('--measure', help='internal: SYSTEM,SIDE,FOLDER of one row')
    args = parser.parse_args(argv)
    if args.measure:
        system, side, folder = args.measure.split(',')
        print(json.dumps(measure(system, int(side), Path(folder), args.limit)))
        return
    machine = f'{processor()}, torch {torch.__version__}'
    if args.docs:
        args.docs.stat()  # there, before an hour of work
    rows: list[dict[str, Any]] = list(read_table(args.out)) if args.out.exists() else []
    with TemporaryDirectory(dir=args.folder) as folder:
        write_image(Path(folder, 'first.tif'), TILE)
        for side in args.sizes:
            write_image(Path(folder, f'{side}.tif'), side)
            for system in args.systems:
                if any((row['system'], row['side']) == (system, str(side)) for row in rows):
                    continue
                command = [
                    sys.executable,
                    __file__,
                    '--limit',
                    str(args.limit),
                    '--measure',
                    f'{system},{side},{folder}',
                ]
                environment = dict(os.environ, OMP_NUM_THREADS='1', MALLOC_ARENA_MAX='1')
                process = subprocess.run(command, capture_output=True, text=True, env=environment)
                row = dict(system=system, side=side, cpu='')
                if process.returncode == 0:
                    row |= json.loads(process.stdout.splitlines()[-1])
                else:
                    last = (process.stderr.splitlines() or ['killed'])[-1]
                    memory = any(word in process.stderr for word in ('allocate', 'MemoryError'))
                    row['failure'] = f'more than {args.limit:g} GiB' if memory else last[:80]
                rows.append(dict(row, machine=machine))
                print(rows[-1], flush=True)
                write_table(args.out, rows)
            for file in Path(folder).glob(f'{side}*'):
                file.unlink()
    if args.docs:
        fill_marked(args.docs, 'large_images', table(args.out))


if __name__ == '__main__':
    run(main)
