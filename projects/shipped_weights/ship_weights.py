"""Put trained weights into the package: fp16 safetensors, an entry in the index, a model card.

    python projects/shipped_weights/ship_weights.py NAME CONFIG CHECKPOINT \\
        --commit COMMIT --about 'CPVT-Ti-GAP, ten classes of ImageNet' \\
        --purpose 'Photographs of its ten classes' --not-for 'Any other class' \\
        --data '9,469 training images' --terms 'ImageNet: research only' \\
        --picture 'A church at two sizes with its class, and top-1 accuracy by image size'
    cpvt resolution-sweep --models NAME --sizes 112px 160px --out sweep.csv

The first command again, with --sizes sweep.csv, writes the card: the accuracy in it was measured
with the shipped (fp16) file.
"""

import argparse
import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from cpvt import command_line as cli
from cpvt_backbones import weights
from cpvt_backbones.weights import ShippedWeights, find_shipped, sha256_of

if TYPE_CHECKING:
    from mmengine.config import Config

    from cpvt_backbones.analysis.resolution import SweepRow

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 12_000_000
NAME = re.compile(r'[a-z0-9_]+-[a-z0-9_]+')
LABELS = {'accuracy/top1': 'top-1, %', 'coco/bbox_mAP': 'box AP, %', 'mIoU': 'mIoU, %'}


def card(
    entry: ShippedWeights,
    rows: 'list[SweepRow]',
    *,
    purpose: str,
    not_for: str,
    data: str,
    terms: str,
    picture: str,
    commit: str,
    recipe: str | None = None,
    decided: str | None = None,
) -> str:
    """The model card.

    ``purpose`` says which images the model is for, ``not_for`` what it must not be used for.
    ``picture`` says what the picture that docs/site/cards.py draws of the model shows.
    ``recipe`` says what trained the model, by default its config and what that starts from;
    ``decided`` what was decided by scores on the same images, which makes these development scores.
    """
    from cpvt_backbones.analysis.resolution import GOOD, good_sizes, main_metric
    from cpvt_backbones.toolboxes import read_config

    metric = main_metric(rows)
    label = LABELS.get(metric, metric)
    lines = [
        f'| {row.size} | {row.width:.0f} x {row.height:.0f} | {in_percent(row, metric):.4g} |'
        for row in rows
    ]
    cfg = read_config(ROOT / entry.config)
    pixels = cfg.model.get('data_preprocessor') or cfg.data_preprocessor
    arguments = ',\n    '.join(f'{key}={value!r}' for key, value in entry.backbone.items())
    start, origin = cfg.model.backbone.get('init_cfg'), 'random weights'
    if start is not None:
        first = find_shipped(start.checkpoint)
        origin = f'`{first.name}` (SHA-256 `{first.sha256[:12]}...`)'
        terms += f'. It starts from `{first.name}`, whose terms hold too (see its card)'
    recipe = recipe or f'`{entry.config}`, from {origin}'
    names = entry.dataset_meta.get('classes', ())
    classes = f'\n**Classes.** {", ".join(names)}.\n' if names else ''
    drawn = f'../../docs/figures/card_{entry.name}'
    if any('Resize' in step['type'] for step in cfg.test_dataloader.dataset.pipeline):
        size, side = 'are scaled to the test scale, row `1` of the table below', ''
    else:
        size, side = 'keep their own size, which the recipe does not change', '--long-side 480 '
    status = f'**Development scores.** {decided}.\n\n' if decided else ''
    return f"""# {entry.name}

{entry.about}.

<picture>
<source media="(prefers-color-scheme: dark)" srcset="{drawn}_dark.webp">
<img src="{drawn}.webp" width="480" alt="{picture}">
</picture>

**For.** {purpose}.

**Not for.** {not_for}.
{classes}
**Use.** Predict on a folder of images. They {size};
`--long-side` sets another size.

```bash
cpvt infer {entry.name} photos/ \\
    {side}--out-dir out/{entry.name.rpartition('-')[2]}
```

To put a head of your own on the backbone, write in a config:

```python
dict(
    {arguments},
    init_cfg='{entry.name}',
)
```

Normalise RGB images with mean {list(pixels.mean)} and standard deviation
{list(pixels.std)}.

**Accuracy** of this file on {rows[0].images} images, without fine-tuning at any size. Row `1`
has the test scale of its config; the others are larger or smaller.

| size | mean px | {label} |
| --- | --- | ---: |
{chr(10).join(lines)}

**Sizes.** Stay at {good_sizes(rows)}.
There the metric is at least {GOOD:.0%} of its best.

{status}**Data.** {data}.

**Terms.** {terms}.

**Recipe.** {recipe}, at commit {commit}.

**File.** fp16 safetensors, {entry.file.stat().st_size / 1e6:.1f} MB, SHA-256
`{entry.sha256}`.
"""


def in_percent(row: 'SweepRow', metric: str) -> float:
    """A metric as the card has it: mmdet reports box AP as a share of 1."""
    return row.metrics[metric] * (100 if metric == 'coco/bbox_mAP' else 1)


def write_file(name: str, checkpoint: str, cfg: 'Config') -> Path:
    """Write the model's weights in fp16, without those that only its training had.

    The same weights give the same bytes.
    """
    from cpvt_backbones.analysis.complexity import build_model
    from cpvt_backbones.checkpoints import load_weights, write_checkpoint

    model = build_model(cfg)
    load_weights(model, checkpoint)
    state = {k: v.half() if v.is_floating_point() else v for k, v in model.state_dict().items()}
    file = weights.FOLDER / f'{name}.safetensors'
    if (size := sum(value.nbytes for value in state.values())) > LIMIT:
        raise cli.UsageError(
            f'checkpoint: {checkpoint!r} takes {size / 1e6:.1f} MB in fp16, more than 12 MB'
        )
    # safetensors does not keep the order of metadata entries.
    write_checkpoint(state, file, meta={})
    return file


def ship(args: argparse.Namespace) -> Path:
    """Write the file, its entry in the index and, with ``--sizes``, its card; returns the file."""
    from cpvt_backbones.analysis.resolution import SweepModel, fingerprint, good_sizes, read_rows
    from cpvt_backbones.checkpoints import atomic_write, config_normalisation
    from cpvt_backbones.toolboxes import read_config

    if not NAME.fullmatch(args.name):
        raise cli.UsageError(
            'name must be <model>-<data> in lower case, as cpvt_tiny_gap-imagenette, got'
            f' {args.name!r}'
        )
    config = Path(args.config).resolve()
    if not config.is_relative_to(ROOT / 'configs'):
        raise cli.UsageError(
            f'config must be in {ROOT / "configs"}, so that it is shipped too, got {args.config!r}'
        )
    # Building a model changes its config.
    file = write_file(args.name, args.checkpoint, read_config(config))
    file.with_suffix('.md').unlink(missing_ok=True)  # of the previous file
    cfg = read_config(config)
    backbone = cfg.model.backbone.to_dict()
    backbone.pop('init_cfg', None)
    name = config.relative_to(ROOT).as_posix()
    index = weights.INDEX
    entries = json.loads(index.read_text(encoding='utf-8')) if index.is_file() else {}
    entries[args.name] = dict(
        about=args.about, backbone=backbone, config=name, sha256=sha256_of(file)
    )
    beside = cfg.get('data_preprocessor')
    normalisation = config_normalisation(cfg.model.get('data_preprocessor') or beside)
    if normalisation is not None and normalisation.rgb:
        values = dict(mean=[*normalisation.mean], std=[*normalisation.std])
        entries[args.name] |= values
    named = (
        dict(classes=args.classes) if args.classes else cfg.test_dataloader.dataset.get('metainfo')
    )
    if named:
        entries[args.name]['dataset_meta'] = named

    def write_index() -> None:
        with atomic_write(index) as stream:
            stream.write((json.dumps(dict(sorted(entries.items())), indent=1) + '\n').encode())

    write_index()
    if args.sizes:
        measured = fingerprint(SweepModel(args.name, cfg, args.name))
        rows = [
            row for row in read_rows(args.sizes) if (row.model, row.source) == (args.name, measured)
        ]
        if not rows:
            raise cli.UsageError(
                f'sizes: {str(args.sizes)!r} has no rows of {args.name!r}, this file and this'
                ' config'
            )
        entries[args.name]['sizes'] = asdict(good_sizes(rows))
        write_index()
        text = card(
            find_shipped(args.name),
            rows,
            purpose=args.purpose,
            not_for=args.not_for,
            data=args.data,
            terms=args.terms,
            picture=args.picture,
            commit=args.commit,
            recipe=args.recipe,
            decided=args.decided,
        )
        file.with_suffix('.md').write_text(text, encoding='utf-8')
    return file


def main(argv: Sequence[str] | None = None) -> None:
    parser = cli.make_parser(__doc__)
    parser.add_argument('name', help='<model>-<data>')
    parser.add_argument('config', help='config of the whole model')
    parser.add_argument('checkpoint', help='its trained weights')
    parser.add_argument('--commit', required=True, help='of the code that trained them')
    parser.add_argument(
        '--recipe', help='what trained them; default: the config and what it starts from'
    )
    parser.add_argument('--about', required=True, help='one line for a listing')
    parser.add_argument('--purpose', required=True, help='which images the model is for')
    parser.add_argument('--not-for', required=True, help='what it must not be used for')
    parser.add_argument('--data', required=True, help='what it was trained on')
    about = 'what was decided by scores on the images of --sizes, such as to ship this file'
    parser.add_argument('--decided', metavar='TEXT', help=about)
    parser.add_argument('--terms', required=True, help="the data's terms")
    parser.add_argument('--picture', required=True, help="alt text of the card's picture")
    parser.add_argument(
        '--classes',
        nargs='+',
        help="names in order; default: those of the config's data set, if any",
    )
    parser.add_argument(
        '--sizes',
        type=Path,
        help='CSV of a resolution sweep with rows of NAME; without it, no card',
    )
    args = parser.parse_args(argv)
    file = ship(args)
    print(f'{file}  {file.stat().st_size / 1e6:.1f} MB')
    if not args.sizes:
        print(
            f'next: tools/resolution_sweep.py --models {args.name}, then this command again with'
            ' --sizes'
        )


if __name__ == '__main__':
    cli.run(main)
