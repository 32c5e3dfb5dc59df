"""Images a second of the shipped models, files in and files out.

Hours and cost of a million images.

python benchmarks/million.py --out docs/benchmarks/million.csv --docs docs/scale.md

Photos are JPEG of 640 x 480 px, made from docs/demo.jpg. Each process has one thread and predicts
on all photos; the rates of processes that run at the same time are added. Their start is not
counted.
"""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(
    0, str(Path(__file__).resolve().parents[1])
)  # for `benchmarks`, where this file runs as a script

from benchmarks import fill_marked, processor
from cpvt_backbones.analysis.tables import read_table, write_table
from cpvt_backbones.engine.command_line import make_parser, positive, run
from cpvt_backbones.weights import find_shipped, shipped_weights

MILLION, PROCESSES = 1_000_000, (1, 16, 256)
DEMO = Path(__file__).resolve().parents[1] / 'docs' / 'demo.jpg'


def rate(name: str, dtype: str, photos: Path, out: Path) -> float:
    """Images a second of one process."""
    import torch

    from cpvt_backbones.inference import Inferencer, find_images, predict_to_folder
    from cpvt_backbones.toolboxes import read_config

    torch.set_num_threads(1)
    cfg = read_config(find_shipped(name).config_file)
    inferencer = Inferencer(cfg=cfg, checkpoint=name, device='cpu', dtype=dtype)
    images = [image for image in find_images(photos) if isinstance(image, Path)]
    options: dict[str, Any] = dict(vis=False, progress=False)
    predict_to_folder(inferencer, images[:1], out_dir=out / 'first', **options)
    start = time.perf_counter()
    summary = predict_to_folder(inferencer, images, out_dir=out / 'all', **options)
    return summary.predicted / (time.perf_counter() - start)


def table(path: Path, price: float) -> str:
    """The CSV as Markdown."""
    records = read_table(path)
    hours = ' | '.join(f'hours, {count} process{"es" if count > 1 else ""}' for count in PROCESSES)
    lines = [f'{records[0]["machine"]}; a process has one core. Cost at {price:g} a core hour.', '']
    lines += [f'| model | dtype | images a second and process | {hours} | core hours | cost |']
    lines += ['| --- | --- |' + ' ---: |' * (len(PROCESSES) + 3)]
    for record in records:
        each = float(record['images_per_second']) / int(record['processes'])
        cells = ' | '.join(f'{MILLION / each / count / 3600:,.1f}' for count in PROCESSES)
        core_hours = MILLION / each / 3600
        cost = f'{core_hours:,.0f} | {core_hours * price:,.2f}'
        lines.append(f'| `{record["model"]}` | {record["dtype"]} | {each:.2f} | {cells} | {cost} |')
    return '\n'.join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument(
        '--models', nargs='+', choices=sorted(shipped_weights()), default=sorted(shipped_weights())
    )
    parser.add_argument('--dtypes', nargs='+', default=['float32'], help='of tools/infer.py')
    parser.add_argument('--images', type=positive, default=100, help='of each process')
    parser.add_argument(
        '--processes', type=positive, default=os.cpu_count(), help='at the same time'
    )
    parser.add_argument('--price', type=float, default=0.05, help='of a core hour')
    parser.add_argument('--out', type=Path, default=Path('work_dirs/million.csv'), help='CSV')
    parser.add_argument(
        '--docs', type=Path, metavar='FILE', help='page whose part million becomes the table'
    )
    parser.add_argument(
        '--measure', nargs=4, help='internal: MODEL DTYPE PHOTOS OUT of one process'
    )
    args = parser.parse_args(argv)
    if args.measure:
        name, dtype, photos, out = args.measure
        print(rate(name, dtype, Path(photos), Path(out)))
        return
    import torch
    from PIL import Image

    if args.docs:
        args.docs.stat()  # there, before an hour of work
    rows: list[dict[str, Any]] = []
    with TemporaryDirectory() as folder:
        photo = Image.open(DEMO).convert('RGB').resize((640, 480))
        for index in range(args.images):
            (Path(folder) / 'photos').mkdir(exist_ok=True)
            photo.save(Path(folder, 'photos', f'{index}.jpg'), quality=90)
        environment = dict(os.environ, OMP_NUM_THREADS='1')
        for name in args.models:
            for dtype in args.dtypes:
                command = [sys.executable, __file__, '--measure', name, dtype, f'{folder}/photos']
                outputs = [f'{folder}/{name}_{dtype}_{number}' for number in range(args.processes)]
                started = [
                    subprocess.Popen(
                        [*command, out], stdout=subprocess.PIPE, text=True, env=environment
                    )
                    for out in outputs
                ]
                found = [float(process.communicate()[0].splitlines()[-1]) for process in started]
                setting = dict(
                    model=name, dtype=dtype, processes=args.processes, images=args.images
                )
                rows.append(
                    dict(
                        setting,
                        images_per_second=sum(found),
                        machine=f'{processor()}, torch {torch.__version__}',
                    )
                )
                print(rows[-1], flush=True)
                write_table(args.out, rows)
    if args.docs:
        fill_marked(args.docs, 'million', table(args.out, args.price))


if __name__ == '__main__':
    run(main)
