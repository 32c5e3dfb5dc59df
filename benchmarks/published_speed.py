"""Time and memory of published models on this processor, for the tables of docs/models.md.

python benchmarks/published_speed.py [NAME ...]
python benchmarks/published_speed.py --memory [NAME ...]

The second line measures the memory alone, and keeps the times. Memory is the peak of what a call
after the first asks of torch's allocator.

A call is the trunk, the neck and the heads of one image, without the post-processing: 800 x 1344 px
of a detector, 512 x 512 px of a segmentor, 224 x 224 px of a classifier, 384 x 384 px if its name
has 384. Weights are random: they do not change the time. Rows of other models are kept.
"""

import csv
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from mmengine.registry import MODELS, init_default_scope
from mmengine.structures import BaseDataElement

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # for `benchmarks`, where this file runs as a script

from benchmarks.in_turns import machine, milliseconds, time_in_turns  # noqa: E402
from benchmarks.published_models import shape_of  # noqa: E402
from cpvt import command_line as cli  # noqa: E402
from cpvt_backbones.analysis.memory import peak_memory  # noqa: E402
from cpvt_backbones.errors import InputError  # noqa: E402
from cpvt_backbones.toolboxes import read_config  # noqa: E402
from cpvt_backbones.weights import PublishedWeights, published_weights  # noqa: E402

FILE = ROOT / 'docs' / 'benchmarks' / 'published.csv'
COLUMNS = ('name', 'height', 'width', 'ms', 'threads', 'machine', 'mib')
CALLS = 5  # after one that warms up


def build(entry: PublishedWeights) -> tuple[Callable[[], object], tuple[int, int]]:
    """A call of a model with random weights, and the size (height, width) of its image."""
    cfg = read_config(entry.config_file)
    init_default_scope(cfg.default_scope)
    model = MODELS.build(cfg.model).eval()
    for key, buffer in model.named_buffers():
        if key.endswith('attn_mask_probs'):
            buffer.zero_()  # EoMT masks no attention after its training
    height, width = shape_of(entry.name)
    image = torch.rand(1, 3, height, width)
    shape = dict(img_shape=(height, width), scale_factor=(1.0, 1.0))
    samples = [BaseDataElement(metainfo=shape)]  # two-stage heads ask for it
    return partial(model, image, samples, mode='tensor'), (height, width)


def measure(entry: PublishedWeights, threads: int, row: dict[str, object]) -> dict[str, object]:
    """Row of the table for a model: the median of a few calls, and their memory.

    row: An earlier one whose time is kept; empty to measure the time.
    """
    call, (height, width) = build(entry)
    with torch.inference_mode():
        if not row:
            times = time_in_turns({'call': call}, CALLS)
            row = dict(name=entry.name, height=height, width=width)
            row |= dict(ms=round(milliseconds(times['call'])), threads=threads, machine=machine())
        else:
            call()
        return row | dict(mib=round(peak_memory(call, 'cpu')))


def read(file: Path) -> dict[str, dict[str, object]]:
    """Rows by name; none without a file."""
    if not file.is_file():
        return {}
    with file.open(encoding='utf-8', newline='') as stream:
        return {row['name']: dict(row) for row in csv.DictReader(stream)}


def main(argv: Sequence[str] | None = None) -> None:
    parser = cli.make_parser(__doc__)
    parser.add_argument('names', nargs='*', metavar='NAME', help='default: all')
    parser.add_argument('--threads', type=cli.positive, default=2)
    parser.add_argument('--memory', action='store_true', help='keep the times of the table')
    parser.add_argument('--out', type=Path, default=FILE, help='the table')
    args = parser.parse_args(argv)
    if not args.out.parent.is_dir():
        raise InputError(f'out: {str(args.out.parent)!r} is not a folder')
    entries = published_weights()
    for name in args.names:
        if name not in entries:
            raise InputError(f'names: {name!r} is not a published model{cli.did_you_mean(name)}')
    import cpvt_backbones  # noqa: F401  (registers the models)

    torch.set_num_threads(args.threads)
    for name in args.names or entries:
        rows = read(args.out)
        kept = rows.get(name, {}) if args.memory else {}
        rows[name] = measure(entries[name], args.threads, kept)
        print(name, rows[name]['ms'], 'ms,', rows[name]['mib'], 'MiB', flush=True)
        with args.out.open('w', encoding='utf-8', newline='') as stream:
            writer = csv.DictWriter(stream, COLUMNS)
            writer.writeheader()
            writer.writerows(rows[known] for known in entries if known in rows)


if __name__ == '__main__':
    cli.run(main)
