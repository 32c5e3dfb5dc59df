"""Time prediction with a shipped model by every route, from the bare forward call to the tool with
pictures, in turns.

    python benchmarks/pipeline.py --images data/camvid/images/test --rounds 3 \\
        --out docs/benchmarks/pipeline.csv
    python benchmarks/pipeline.py retinanet_cpvt_tiny_gap-bccd \\
        --images data/bccd/test --out bccd.csv

Without --images, on generated ones of 480 x 360 px. `cpu_ms` is processor time an image, of all
threads. `beside_ms` is what of it is spent outside the backbone, neck and head: the main thread's
processor time in these, times the threads of torch, is taken off. `share` is the images a second
over those of the bare forward call of the same round. The last two rows are one process each, and
compare with the import.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from PIL import Image

# For `benchmarks`, where this file runs as a script.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.measure import describe_machine
from cpvt.command_line import keep_memory, make_parser, positive, run
from cpvt_backbones.inference import Inferencer, find_images, predict_to_folder, read_image
from cpvt_backbones.plain import DTYPES
from cpvt_backbones.toolboxes import find_toolbox, read_config
from cpvt_backbones.weights import find_shipped, shipped_weights

ROOT = Path(__file__).resolve().parents[1]
BARE, IMPORT = 'bare forward', 'import of torch and the toolbox'
PREDICT = 'bare predict'  # the forward call and what the toolbox makes of it: boxes after NMS


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = make_parser(__doc__)
    default = 'semantic_fpn_cpvt_tiny_gap-camvid'
    parser.add_argument(
        'model', nargs='?', choices=sorted(shipped_weights()), default=default, metavar='NAME'
    )
    parser.add_argument('--images', type=Path, help='folder of images')
    parser.add_argument('--count', type=positive, default=40, help='images of a round')
    parser.add_argument('--dtypes', nargs='+', choices=DTYPES, default=['float32', 'bfloat16'])
    parser.add_argument('--device', default='cpu')
    parser.add_argument('--rounds', type=positive, default=3)
    parser.add_argument(
        '--out', type=Path, default=Path('work_dirs/benchmark/pipeline.csv'), help='CSV'
    )
    return parser.parse_args(argv)


def write_scenes(folder: Path, count: int) -> Path:
    """Smooth random images, JPEG."""
    rng = np.random.default_rng(0)
    for i in range(count):
        colours = Image.fromarray(rng.integers(0, 256, (18, 24, 3), np.uint8))
        colours.resize((480, 360), Image.Resampling.BICUBIC).save(folder / f'{i}.jpg', quality=92)
    return folder


def routes_of(inferencer: Inferencer, files: list[Any]) -> dict[str, Callable[[Path], object]]:
    """Functions that predict on all files, by their name; each is given a new folder."""
    predictor: Any = inferencer.predictor
    arrays = [read_image(file) for file in files]
    batches = []
    for array in arrays:
        (batch,) = predictor._inferencer.preprocess([inferencer.sizing(array)], batch_size=1)
        batch = batch[1] if predictor.task == 'detection' else batch
        batches.append(predictor.model.data_preprocessor(batch, False))

    def forward(_: Path) -> None:
        with torch.no_grad():
            for batch in batches:
                predictor.model(batch['inputs'], mode='tensor')

    def predict(_: Path) -> None:
        with torch.no_grad():
            for batch in batches:
                predictor.model(**batch, mode='predict')

    return {
        BARE: forward,
        PREDICT: predict,
        'predict, arrays': lambda _: inferencer.predict(arrays),
        'predict, files': lambda _: inferencer.predict(files),
        'predict, files, pictures': lambda _: inferencer.predict(files, vis=True),
        'tool, no pictures': lambda out: predict_to_folder(
            inferencer, files, out_dir=out, vis=False, progress=False
        ),
        'tool, pictures': lambda out: predict_to_folder(
            inferencer, files, out_dir=out, progress=False
        ),
    }


class ForwardClock:
    """Adds up the processor seconds of a model's forward call: of the calling thread, times torch's
    threads.
    """

    def __init__(self, predictor: Any) -> None:
        self.seconds, model = 0.0, predictor.model
        heads = [
            getattr(model, name)
            for name in ('head', 'bbox_head', 'decode_head')
            if getattr(model, name, None)
        ]
        for owner, name in ((model, 'extract_feat'), *((head, 'forward') for head in heads)):
            setattr(owner, name, self._timed(getattr(owner, name)))

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **options: Any) -> Any:
            start = time.thread_time()
            try:
                return call(*args, **options)
            finally:
                self.seconds += (time.thread_time() - start) * torch.get_num_threads()

        return timed


def processor_seconds(who: int = resource.RUSAGE_SELF) -> float:
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


def measure_starts(model: str, package: str, file: Any, rounds: int) -> list[dict[str, Any]]:
    """Seconds of a process that imports torch and the toolbox, and of the tool on one image."""
    rows = []
    for number in range(rounds):
        with tempfile.TemporaryDirectory() as out:
            tool = [
                str(ROOT / 'tools' / 'infer.py'),
                model,
                str(file),
                '--out-dir',
                out,
                '--device',
                'cpu',
            ]
            imports = f'import torch, {package}.{"models" if package == "mmpretrain" else "apis"}'
            for route, words in ((IMPORT, ['-c', imports]), ('tool, one image', tool)):
                start, before = time.perf_counter(), processor_seconds(resource.RUSAGE_CHILDREN)
                subprocess.run([sys.executable, *words], check=True, capture_output=True, cwd=ROOT)
                cpu = processor_seconds(resource.RUSAGE_CHILDREN) - before
                seconds = time.perf_counter() - start
                rows.append(
                    dict(dtype='', route=route, round=number, ms=1e3 * seconds, cpu_ms=1e3 * cpu)
                )
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    """Measure; write the CSV and a table."""
    args = parse_args(argv)
    keep_memory()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        files = find_images(args.images or write_scenes(Path(folder), args.count))[: args.count]
        cfg = read_config(find_shipped(args.model).config_file)
        routes, clocks = {}, {}
        for dtype in args.dtypes:
            inferencer = Inferencer(cfg=cfg, checkpoint=args.model, device=args.device, dtype=dtype)
            clocks[dtype] = ForwardClock(inferencer.predictor)
            for name, route in routes_of(inferencer, files).items():
                routes[dtype, name] = route
        order = list(routes)
        for number in range(-1, args.rounds):  # the first warms up
            for place, (dtype, name) in enumerate(reversed(order) if number % 2 else order):
                clock = clocks[dtype]
                start, before, clock.seconds = time.perf_counter(), processor_seconds(), 0.0
                routes[dtype, name](Path(folder, f'{number}-{place}'))
                ms, cpu_ms = (
                    1e3 * (time.perf_counter() - start),
                    1e3 * (processor_seconds() - before),
                )
                times = dict(ms=ms, cpu_ms=cpu_ms, beside_ms=cpu_ms - 1e3 * clock.seconds)
                if number >= 0:
                    rows.append(
                        dict(dtype=dtype, route=name, round=number)
                        | {k: v / len(files) for k, v in times.items()}
                    )
        rows += measure_starts(args.model, find_toolbox(cfg).package, files[0], args.rounds)
    table = pd.DataFrame(rows)
    keys = ['dtype', 'round']
    base = table[table['route'].isin([BARE, IMPORT])][[*keys, 'ms']]
    table = table.merge(base, on=keys, suffixes=('', '_of_base'))
    table['share'] = table.pop('ms_of_base') / table['ms']
    table = table.assign(
        model=args.model,
        images=len(files),
        machine=describe_machine(args.device),
        cores=os.cpu_count(),
    )
    args.out.parent.mkdir(parents=True, exist_ok=True)
    table.to_csv(args.out, index=False)
    values = table.groupby(['dtype', 'route'], sort=False)[['ms', 'cpu_ms', 'beside_ms', 'share']]
    cells = values.agg(
        lambda v: f'{v.median():.2f} ({v.min():.2f} to {v.max():.2f})' if v.notna().all() else ''
    ).reset_index()
    text = (
        f'{args.model}; {table["machine"][0]}; medians of {args.rounds} rounds'
        ' (lowest-highest).\n\n'
    )
    text += cells.to_markdown(index=False) + '\n'
    print(f'{text}\nwritten: {args.out}')


if __name__ == '__main__':
    run(main)
