"""Write a ready config for your own data.

    cpvt make-config my_data/ --out mine/config.py
    cpvt make-config coco train.json images/ --val val.json images/ \\
        --out mine/detector.py
    cpvt make-config voc VOCdevkit/VOC2007 --out mine/detector.py
    cpvt make-config yolo data.yaml --out mine/detector.py
    cpvt make-config instances train.json images/ \\
        --out mine/instances.py
    cpvt make-config masks images/ masks/ --classes classes.txt \\
        --out mine/segmentor.py
    cpvt make-config folders photos/ --out mine/classifier.py

The format is detected if it is not named, as in the first line.

The config has classes, paths, split, scale, schedule and weights to start from. It inherits a
shipped recipe, which is written to the folder of its name: keep the two together. Boxes, masks
and lists of images are converted to the same folder; images stay where they are.

Then: cpvt train CONFIG, cpvt test and cpvt infer with its checkpoint. Without --val,
the data are split by their folders or lists train and val, or else every fifth image is for
validation. The formats: docs/own_data.md.
"""

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cpvt import command_line as cli
from cpvt.command_line import plain

if TYPE_CHECKING:
    from cpvt_backbones.own_data import Form

# Numbers of paths that each format takes.
PATHS = dict(coco=(2,), voc=(1,), yolo=(1,), instances=(1, 2), masks=(2,), folders=(1,))
LEAST_SIDE = 32  # px
# Formats that have an option.
FORMS_OF = dict(
    val=('coco', 'instances'),
    add=('coco', 'voc', 'yolo', 'instances'),
    classes=('masks', 'instances'),
    ignore=('masks',),
    crowd=('coco', 'instances'),
)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = cli.make_parser(__doc__)
    parser.add_argument(
        'data',
        nargs='+',
        metavar='[FORMAT] PATH',
        help='coco: JSON IMAGES; voc: FOLDER; yolo: FOLDER or YAML; instances: JSON IMAGES, IMAGES'
        ' MASKS or a YOLO folder; masks: IMAGES MASKS; folders: FOLDER; without FORMAT, it is'
        ' detected',
    )
    parser.add_argument(
        '--val',
        nargs='+',
        type=Path,
        metavar='JSON',
        help='coco, instances: JSON [IMAGES] for validation',
    )
    parser.add_argument(
        '--add',
        type=Path,
        metavar='FOLDER',
        help='boxes, instances: output folder of cpvt infer whose objects are added to training',
    )
    parser.add_argument(
        '--classes',
        type=Path,
        help='masks: file with one class name per line, and its colour; instances: names of the'
        ' folders of masks',
    )
    parser.add_argument(
        '--ignore', nargs='+', type=cli.natural, default=[], help='masks: values to leave out'
    )
    parser.add_argument(
        '--crowd',
        choices=('ignore', 'objects'),
        help='coco, instances: annotations with iscrowd are regions to ignore (default, with a'
        ' note), or objects, such as the brush masks of CVAT',
    )
    parser.add_argument(
        '--range',
        nargs=2,
        type=float,
        metavar=('LOW', 'HIGH'),
        help='values of 16- or 32-bit images that become 0 and 255: 0 4095 for 12 bits',
    )
    parser.add_argument(
        '--bands',
        nargs='+',
        type=cli.positive,
        metavar='N',
        help='bands of the files, counted from 1, that become the channels: 4 2 1',
    )
    parser.add_argument(
        '--weights',
        help='name of a published model, loaded with neck and heads if it fits the task; file or'
        ' name of weights for the backbone; or none (default: shipped weights)',
    )
    parser.add_argument('--length', type=cli.positive, help='iterations (for a classifier: epochs)')
    parser.add_argument(
        '--side',
        type=cli.positive,
        metavar='PX',
        help='longer side of training images, without tiles (default: by the data)',
    )
    parser.add_argument('--out', type=Path, required=True, help='the config, FILE.py')
    parser.add_argument(
        '--strict', action='store_true', help='refuse data of which anything is skipped or altered'
    )
    parser.add_argument(
        '--skip-damaged',
        action='store_true',
        help='leave out images that cannot be read, with their labels, and count them',
    )
    parser.add_argument(
        '--no-decode', action='store_true', help='read only the headers of images (huge data sets)'
    )
    parser.add_argument(
        '--overwrite', action='store_true', help='replace the config of an earlier call'
    )
    parser.add_argument(
        '--no-estimate',
        action='store_true',
        help='do not time training steps, which takes 10 to 20 s; more if one step does',
    )
    parser.checks.append(check)
    return parser.parse_args(argv)


def check(args: argparse.Namespace) -> None:
    """Refuse missing paths, a config that would be replaced, and wrong numbers."""
    if args.out.exists() and not args.overwrite:
        raise cli.UsageError(
            f'--out: {str(args.out)!r} exists; --overwrite replaces it, with any changes made by'
            ' hand'
        )
    if args.out.suffix != '.py':
        raise cli.UsageError(f'--out: must be FILE.py, got {str(args.out)!r}')
    if args.weights not in (None, 'none'):
        cli.check_checkpoint(args.weights, '--weights')
    if args.side is not None and args.side < LEAST_SIDE:
        raise cli.UsageError(f'--side: must be at least {LEAST_SIDE} px, got {args.side}')
    named = args.data[0] in PATHS
    given = {'data': [Path(path) for path in args.data[named:]]}
    given |= {'--val': args.val or [], '--classes': [args.classes], '--add': [args.add]}
    for argument, paths in given.items():
        for path in paths:
            if path is not None:
                must_exist(path, argument)


def must_exist(path: Path, argument: str) -> None:
    """Refuse a missing path, and suggest the most similar name."""
    if path.exists():
        return
    beside = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
    similar = plain.most_similar(path.name, beside)
    hint = f'; did you mean {str(path.parent / similar[0])!r}?' if similar else ''
    raise cli.UsageError(f'{argument}: there is no file or folder {str(path)!r}{hint}')


def form_of(args: argparse.Namespace) -> 'tuple[str, Form]':
    """Return the named or detected format, and the format of the files, which differs for
    instances.
    """
    from cpvt_backbones.own_data import Form, recognise

    named = args.data[0] if args.data[0] in PATHS else None
    paths = [Path(path) for path in args.data[bool(named) :]]
    if named in (None, 'instances') and paths:
        form = recognise(paths)
        read_as = [form.kind, *form.data, *(['--val', *form.val] if form.val else [])]
        print(f'Format: {" ".join(map(str, read_as))}')
    else:
        form = Form(named or '', paths)
    kind = named or form.kind
    form.val = args.val or form.val
    counts = PATHS[kind]
    if len(paths) not in counts and named:
        wanted = ' or '.join(map(str, counts))
        hint = f'; for the folder of this name, write ./{kind}' if Path(kind).exists() else ''
        raise cli.UsageError(f'data: {kind} takes {wanted} paths, got {[*map(str, paths)]}{hint}')
    if form.kind == 'masks' and len(paths) == 2 and paths[0].samefile(paths[1]):
        raise cli.UsageError(f'data: images and masks must be in two folders, got {paths[0]} twice')
    for option, kinds in FORMS_OF.items():
        if getattr(args, option) and kind not in kinds:
            wanted = ' and '.join(kinds)
            raise cli.UsageError(f'--{option}: only {wanted} have it, the data are {kind}')
    return kind, form


def about_time(config: Path) -> str:
    """Describe how long the training of a config takes, or why that is unknown."""
    from cpvt_backbones.analysis.training_time import estimate_training
    from cpvt_backbones.toolboxes import read_config

    try:
        return f'training: {estimate_training(read_config(config)).about}'
    except Exception as error:  # the config is written, and may be for another machine
        reason = ' '.join(str(error).split()) or type(error).__name__
        return f'training time not estimated, because a step failed: {cli.text.printable(reason)}'


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    # Not at the top, because it imports PyTorch, which takes seconds.
    from cpvt_backbones.own_data import Request, make_config, work_dir

    kind, form = form_of(args)
    request = Request(
        kind=kind,
        form=form,
        out=args.out,
        classes=args.classes,
        ignore=args.ignore,
        crowd=args.crowd,
        limits=args.range,
        bands=args.bands,
        added=args.add,
        weights=args.weights,
        length=args.length,
        side=args.side,
        decode=not args.no_decode,
        strict=args.strict,
        skip_damaged=args.skip_damaged,
    )
    settings = make_config(request)
    classes = settings.classes
    names = 'class' if len(classes) == 1 else 'classes'
    print(f'{args.out}: {request.task} of {len(classes)} {names}, {settings.about}')
    for remark in settings.remarks:
        print(remark)
    if not args.no_estimate:
        print(about_time(args.out))
    config = shlex.quote(str(args.out))
    # Of its checkpoints, the commands take the best.
    trained = shlex.quote(f'{work_dir(args.out)}/')
    out_dir = f' --out-dir {shlex.quote(f"out/{args.out.stem}")}'
    cli.print_next(
        f'{cli.command("train")} {config}',
        f'{cli.command("test")} {config} {trained}',
        f'{cli.command("infer")} {config} {trained} PHOTOS{out_dir}{settings.infer}',
    )
