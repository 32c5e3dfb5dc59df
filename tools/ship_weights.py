"""Put trained weights into the package: fp16 safetensors, an entry in the index, a model card.

python tools/ship_weights.py cpvt_tiny_gap-imagenette configs/imagenette/cpvt-tiny-gap_imagenette.py \\
    work_dirs/cpvt-tiny-gap_imagenette/epoch_30.pth --sizes work_dirs/sweep/cpvt-tiny-gap.csv \\
    --about 'CPVT-Ti-GAP, ten classes of ImageNet at 112 px' \\
    --data 'Imagenette2, 9,469 training images of 128 px' --terms 'ImageNet: non-commercial research'
The accuracy comes from the CSV of tools/resolution_sweep.py, measured with the shipped (fp16) file.
"""

import argparse
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import torch
from _common import ROOT

from cpvt_backbones import weights
from cpvt_backbones.analysis.files import write_whole
from cpvt_backbones.analysis.provenance import commit
from cpvt_backbones.analysis.resolution import Row, main_metric, read_rows
from cpvt_backbones.checkpoints import CheckpointError, read_checkpoint, write_checkpoint
from cpvt_backbones.engine.launch import read_config

LIMIT = 12_000_000
NAME = re.compile(r'[a-z0-9_]+-[a-z0-9_]+')


def card(name: str, entry: dict[str, Any], rows: list[Row], *, data: str, terms: str, megabytes: float) -> str:
    """The model card."""
    metric = main_metric(rows)
    lines = [f'| {row.size} | {row.width:.0f} x {row.height:.0f} | {row.metrics[metric]:.4g} |' for row in rows]
    return f"""# {name}

{entry['about']}. fp16 safetensors, {megabytes:.1f} MB, SHA-256 `{entry['sha256']}`.

**Data.** {data}.

**Terms.** {terms}.

**Recipe.** `{entry['config']}`, from random weights unless it says otherwise.

**Commit.** {commit()}.

**Accuracy**, the file itself, {rows[0].images} test images, no fine-tuning at any size:

| relative size | mean px | {metric} |
| --- | --- | ---: |
{chr(10).join(lines)}
"""


def ship(args: argparse.Namespace) -> Path:
    """Write the file, its entry and, once it has been measured, its card; the file's path."""
    if not NAME.fullmatch(args.name):
        raise ValueError(f'name must be <model>-<data> in lower case, as cpvt_tiny_gap-imagenette, got {args.name!r}')
    config = Path(args.config).resolve()
    if not config.is_relative_to(ROOT / 'configs'):
        raise ValueError(f'config must be in {ROOT / "configs"}, so that it is shipped too, got {args.config!r}')
    checkpoint = read_checkpoint(args.checkpoint)
    state = checkpoint.get('state_dict', checkpoint)
    state = {k: v.half() if v.is_floating_point() else v for k, v in state.items() if isinstance(v, torch.Tensor)}
    file = weights.FOLDER / f'{args.name}.safetensors'
    with write_whole(file) as unfinished:
        whole = unfinished.with_suffix('.safetensors')
        write_checkpoint(state, whole, meta=dict(config=config.relative_to(ROOT).as_posix()))
        whole.replace(unfinished)
    size = file.stat().st_size
    if size > LIMIT:
        file.unlink()
        raise ValueError(f'checkpoint: {args.checkpoint!r} takes {size / 1e6:.1f} MB in fp16, more than 12 MB')
    backbone = read_config(config).model.backbone.to_dict()
    backbone.pop('init_cfg', None)
    entry = dict(
        about=args.about,
        backbone=backbone,
        config=config.relative_to(ROOT).as_posix(),
        sha256=hashlib.sha256(file.read_bytes()).hexdigest(),
    )
    index = weights.FOLDER / 'index.json'
    entries = json.loads(index.read_text(encoding='utf-8')) if index.is_file() else {}
    entries[args.name] = entry
    with write_whole(index) as unfinished:
        unfinished.write_text(json.dumps(dict(sorted(entries.items())), indent=1) + '\n', encoding='utf-8')
    if args.sizes:
        rows = [row for row in read_rows(args.sizes) if row.model == args.name]
        if not rows:
            raise ValueError(f'sizes: {str(args.sizes)!r} has no rows of the model {args.name!r}')
        text = card(args.name, entry, rows, data=args.data, terms=args.terms, megabytes=size / 1e6)
        file.with_suffix('.md').write_text(text, encoding='utf-8')
    return file


def main() -> None:
    """Read the command line, ship."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('name', help='<model>-<data>')
    parser.add_argument('config', help='config of the whole model')
    parser.add_argument('checkpoint', help='its trained weights')
    parser.add_argument('--about', required=True, help='one line for a listing')
    parser.add_argument('--data', required=True, help='what it was trained on')
    parser.add_argument('--terms', required=True, help="the data's terms")
    parser.add_argument('--sizes', type=Path, help='CSV of a resolution sweep with rows of NAME; without it, no card')
    args = parser.parse_args()
    try:
        file = ship(args)
    except (CheckpointError, FileNotFoundError, ValueError) as error:
        parser.error(str(error))
    print(f'{file}  {file.stat().st_size / 1e6:.1f} MB')
    if not args.sizes:
        print(f'next: tools/resolution_sweep.py --models {args.name}={args.config}:{file}, then again with --sizes')


if __name__ == '__main__':
    main()
