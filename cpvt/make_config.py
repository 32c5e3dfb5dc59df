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

Without a name of the form, as in the first line, it is recognised.

The config has classes, paths, split, scale, schedule and weights to start from. It inherits a
shipped recipe, which is written to the folder of its name: keep the two together. Boxes, masks
and lists of images are converted to the same folder; images stay where they are.

Then: cpvt train CONFIG, cpvt test and cpvt infer with its checkpoint. Without --val,
the data are split by their folders or lists train and val, or else every fifth image is for
validation. The forms: docs/own_data.md.
"""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

# Until own_data is part of the package, it lies beside the scripts, of a clone or installed ones.
sys.path.append(str(Path(__file__).resolve().parents[1] / 'tools'))
sys.path.append(str(Path(__file__).resolve().parents[1] / 'cpvt_backbones/.mim/tools'))

from cpvt import command_line as cli

if TYPE_CHECKING:
    from own_data import Form, Part, Report, Settings

# The task of each form, and the numbers of paths that it takes.
KINDS = dict(
    coco=('detector', (2,)),
    voc=('detector', (1,)),
    yolo=('detector', (1,)),
    instances=('instance segmentor', (1, 2)),
    masks=('segmentor', (2,)),
    folders=('classifier', (1,)),
)
# The forms that have an option.
FORMS_OF = dict(
    val=('coco', 'instances'),
    add=('coco', 'voc', 'yolo', 'instances'),
    classes=('masks', 'instances'),
    ignore=('masks',),
)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = cli.make_parser(__doc__)
    parser.add_argument(
        'data',
        nargs='+',
        metavar='[FORM] PATH',
        help='coco: JSON IMAGES; voc: FOLDER; yolo: FOLDER or YAML; instances: JSON IMAGES, IMAGES'
        ' MASKS or a YOLO folder; masks: IMAGES MASKS; folders: FOLDER; the form is recognised if'
        ' left out',
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
        help='boxes, instances: output folder of cpvt infer, whose objects are trained on, too',
    )
    parser.add_argument(
        '--classes',
        type=Path,
        help='masks: file with the name of a class a line, and its colour; instances: names of the'
        ' folders of masks',
    )
    parser.add_argument(
        '--ignore', nargs='+', type=cli.natural, default=[], help='masks: values to leave out'
    )
    parser.add_argument(
        '--range',
        nargs=2,
        type=float,
        metavar=('LOW', 'HIGH'),
        help='values that become 0 and 255, of images of 16 or 32 bits: 0 4095 for 12 bits',
    )
    parser.add_argument(
        '--bands',
        nargs='+',
        type=cli.positive,
        metavar='N',
        help='bands of the files, from 1, that are the channels of the model: 4 2 1',
    )
    parser.add_argument(
        '--weights',
        help='file or name of weights for the backbone, or none (default: shipped weights)',
    )
    parser.add_argument('--length', type=cli.positive, help='iterations (of a classifier: epochs)')
    parser.add_argument('--out', type=Path, required=True, help='the config, FILE.py')
    parser.add_argument(
        '--strict', action='store_true', help='refuse data of which anything is skipped or altered'
    )
    parser.add_argument(
        '--no-decode', action='store_true', help='read only the headers of images (huge data sets)'
    )
    parser.add_argument(
        '--overwrite', action='store_true', help='replace the config of an earlier call'
    )
    return parser.parse_args(argv)


def form_of(args: argparse.Namespace) -> 'tuple[str, Form]':
    """The form as named or recognised, and the form of the files: of instances, one of several."""
    from own_data import Form, must_exist, recognise

    named = args.data[0] if args.data[0] in KINDS else None
    paths = [Path(path) for path in args.data[bool(named) :]]
    if named in (None, 'instances') and paths:
        form = recognise(paths)
        read_as = [form.kind, *form.data, *(['--val', *form.val] if form.val else [])]
        print(f'The data are read as: {" ".join(map(str, read_as))}')
    else:
        form = Form(named or '', paths)
    for path in paths:
        must_exist(path, 'data')
    kind = named or form.kind
    form.val = args.val or form.val
    counts = KINDS[kind][1]
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
    for option in ('val', 'add', 'classes'):
        given = getattr(args, option) or []
        for path in given if isinstance(given, list) else [given]:
            must_exist(path, f'--{option}')
    return kind, form


def read_objects(kind: str, form: 'Form', report: 'Report', classes: Path | None) -> 'list[Part]':
    """Objects of a detector or instance segmentor, not yet checked."""
    from own_data import (
        note_unlisted,
        read_coco,
        read_instances,
        read_voc,
        read_yolo,
        report_left_out,
    )

    if form.kind == 'coco':
        file, root = form.data
        parts = [read_coco(file, root)]
        if form.val:
            parts.append(read_coco(form.val[0], form.val[-1] if len(form.val) > 1 else root))
        note_unlisted(parts, report)
        report_left_out(form.left_out, report)
        return parts
    if form.kind == 'yolo':
        return read_yolo(form.data[0], report)
    if form.kind == 'voc' and kind == 'voc':
        return read_voc(form.data[0], report)
    if form.kind == 'masks':
        return [read_instances(form.data[0], form.data[1], report, classes=classes)]
    raise cli.UsageError(
        f'data: form instances takes COCO JSON with outlines, YOLO polygons, or images and masks,'
        f' got {form.kind}'
    )


def settings_of(kind: str, form: 'Form', args: argparse.Namespace, folder: Path) -> 'Settings':
    """Read and check the data, convert them, and choose scale and schedule."""
    from own_data import (
        Report,
        check,
        choose_range,
        class_settings,
        fields_of,
        map_settings,
        mean_and_std,
        object_settings,
        read_folders,
        read_masks,
        read_predictions,
        write_sheet,
    )

    report = Report()
    task = KINDS[kind][0]

    masks = None
    if task == 'classifier':
        parts = [read_folders(form.data[0], report)]
    elif task == 'segmentor':
        images, maps = form.data
        masks = read_masks(images, maps, report, classes=args.classes, ignore=args.ignore)
        parts = [masks.part]
    else:
        parts = read_objects(kind, form, report, args.classes)
    value_range = None
    if args.range or args.bands:
        value_range = choose_range(parts[0], args.range, args.bands)
    parts = check(
        parts,
        report,
        decode=not args.no_decode,
        strict=args.strict,
        file=folder / 'check.csv',
        outlines=kind == 'instances',
        added=read_predictions(args.add) if args.add else None,
        value_range=value_range,
    )
    normalisation = mean_and_std(parts[0], value_range) if value_range and args.bands else None
    if task == 'classifier':
        settings = class_settings(parts, folder)
    elif masks is not None:
        settings = map_settings(masks, parts, folder, value_range=value_range)
    else:
        settings = object_settings(task, parts, folder, value_range=value_range)
    settings.fields |= fields_of(task, value_range, normalisation)
    if normalisation:
        settings.remarks.append(
            f'bands {", ".join(map(str, args.bands))}: mean and standard deviation are of the'
            ' training images'
        )
    sheet = write_sheet(task, settings.texts, folder / 'sheet.jpg', value_range=value_range)
    settings.remarks.append(f'images with their labels, to look at before training: {sheet}')
    return settings


def check_arguments(args: argparse.Namespace) -> None:
    """Refuse a config that would be replaced, or whose name cannot be written."""
    from own_data import check_out, refuse_links

    check_out(args.out)
    refuse_links(args.out.with_suffix(''))
    if args.out.exists() and not args.overwrite:
        raise cli.UsageError(
            f'--out: {str(args.out)!r} exists; --overwrite replaces it, with any changes made by'
            ' hand'
        )


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    from own_data import any_size, read_backbone, start, work_dir, write_config

    kind, form = form_of(args)
    check_arguments(args)
    task = KINDS[kind][0]
    pretrained = read_backbone(task, args.weights, in_channels=len(args.bands or 'RGB'))
    with any_size():
        settings = settings_of(kind, form, args, args.out.with_suffix(''))
    started, weights = start(
        task, args.weights, channels=settings.fields['channels'], pretrained=pretrained
    )
    fields = settings.fields | started | dict(about=settings.about)
    if pretrained is not None:
        settings.remarks.append(pretrained.remark)
    if args.length:
        fields['length'] = args.length
    write_config(task, fields, settings.texts | weights, args.out)
    classes = settings.classes
    names = 'class' if len(classes) == 1 else 'classes'
    print(f'{args.out}: {task} of {len(classes)} {names}, {settings.about}')
    for remark in settings.remarks:
        print(remark)
    unit = 'epoch' if task == 'classifier' else 'iter'
    config = shlex.quote(str(args.out))
    checkpoint = shlex.quote(f'{work_dir(args.out)}/{unit}_{fields["length"]}.pth')
    out_dir = f' --out-dir {shlex.quote(f"out/{args.out.stem}")}'
    print(f'{cli.command("train")} {config}')
    print(f'{cli.command("test")} {config} {checkpoint}')
    print(f'{cli.command("infer")} {config} {checkpoint} PHOTOS{out_dir}{settings.infer}')
