"""Write a ready config for your own data: classes, paths, split, scale, schedule and weights to
start from.

python tools/make_config.py my_data/ --out mine/config.py                      # its form is
recognised python tools/make_config.py coco train.json images/ --val val.json val_images/ --out
mine/detector.py python tools/make_config.py voc VOCdevkit/VOC2007 --out mine/detector.py        #
every .xml in the folder, its image python tools/make_config.py yolo data.yaml --out
mine/detector.py               # boxes or polygons; or a folder python tools/make_config.py masks
images/ masks/ --classes classes.txt --out mine/segmentor.py python tools/make_config.py folders
photos/ --out mine/classifier.py            # photos/<class>/*.jpg

A config that exists is replaced with --overwrite only. It inherits the shipped recipe of its task
from the folder of its name, so that mmengine alone reads it: keep the two together.

Then: tools/train.py CONFIG, tools/test.py and tools/infer.py with its checkpoint. Without --val,
the data are split by their folders or lists train and val, or else every fifth image is for
validation. Images stay where they are; boxes, masks in colours and lists of images are converted to
the folder of --out. docs/own_data.md has the formats.
"""

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path
from pprint import pformat
from typing import Any

import numpy as np
from own_data import (
    Part,
    Report,
    check,
    classes_of,
    read_coco,
    read_folders,
    read_masks,
    read_voc,
    read_yolo,
    recognise,
    write_class_maps,
    write_json,
)

from cpvt_backbones.engine import command_line as cli

WEIGHTS = dict(
    detector='retinanet_cpvt_tiny_gap-bccd',
    segmentor='semantic_fpn_cpvt_tiny_gap-camvid',
    classifier='cpvt_tiny_gap-imagenette',
)
RECIPES = dict(
    detector='configs/bccd/retinanet_cpvt-tiny-gap_bccd.py',
    segmentor='configs/camvid/semantic-fpn_cpvt-tiny-gap_camvid.py',
    classifier='configs/imagenette/cpvt-6-blocks_imagenette.py',
)
# Of a recipe's data sets, losses and dataloaders: what belongs to its data and not to the task.
OF_ITS_DATA = (
    'data_root',
    'ann_file',
    'data_prefix',
    'metainfo',
    'img_suffix',
    'pipeline',
    'class_weight',
)
TEMPLATES = dict(
    detector="""_base_ = {recipe!r}
work_dir = {work_dir!r}
classes = {classes!r}
scale = {scale}
# Anchors of the data's boxes at this scale: the smallest, and the shapes (height / width).
anchors = dict(octave_base_scale={anchor:.3g}, ratios={ratios})
model = dict({backbone}bbox_head=dict(num_classes=len(classes), anchor_generator=anchors))
load_from = {load_from!r}
train_pipeline = _base_.train_pipeline
train_pipeline[2].scale = scale
train_pipeline[3].crop_size = scale
train_pipeline[4] = dict(type='RandomFlip', prob=0.5)
test_pipeline = _base_.test_pipeline
test_pipeline[1].scale = scale
metainfo = dict(classes=classes)
train_set = dict(data_root='', ann_file={train!r}, metainfo=metainfo)
train_set['data_prefix'] = dict(img={train_images!r})
train_set['filter_cfg'] = None  # train on images without objects, too
val_set = dict(data_root='', ann_file={val!r}, metainfo=metainfo)
val_set['data_prefix'] = dict(img={val_images!r})
val_evaluator = dict(ann_file={val!r})
""",
    segmentor="""_base_ = {recipe!r}
work_dir = {work_dir!r}
classes = {classes!r}
void = 255
scale = {scale}
model = dict(
    {backbone}data_preprocessor=dict(seg_pad_val=void),
    decode_head=dict(num_classes=len(classes), ignore_index=void),
)
load_from = {load_from!r}
train_pipeline = _base_.train_pipeline
train_pipeline[2].scale = scale
train_pipeline[3] = dict(type='RandomCrop', crop_size={crop}, cat_max_ratio=0.75, ignore_index=void)
test_pipeline = _base_.test_pipeline
test_pipeline.insert(1, dict(type='Resize', scale=scale, keep_ratio=True))
metainfo = dict(classes=classes)
paths = dict(data_root='', data_prefix=dict(img_path={images!r}, seg_map_path={masks!r}))
options = dict(**paths, img_suffix={suffix!r}, metainfo=metainfo)
train_set, val_set = (dict(ann_file=file, **options) for file in ({train!r}, {val!r}))
val_evaluator = dict(ignore_index=void)
""",
    classifier="""_base_ = {recipe!r}
work_dir = {work_dir!r}
classes = {classes!r}
side = {side}
model = dict(backbone=dict({init}arch='tiny', img_size=side), head=dict(num_classes=len(classes)))
data_preprocessor = dict(num_classes=len(classes))
load_from = {load_from!r}
train_pipeline = _base_.train_pipeline
train_pipeline[1].scale = side
resize = dict(type='ResizeEdge', scale=side * 8 // 7, backend='pillow', interpolation='bicubic')
test_pipeline = _base_.test_pipeline
test_pipeline[1:2] = [resize, dict(type='CenterCrop', crop_size=side)]
options = dict(data_root={images!r}, data_prefix='', metainfo=dict(classes=classes))
train_set, val_set = (dict(ann_file=file, **options) for file in ({train!r}, {val!r}))
val_evaluator = dict(topk=(1,))
""",
)
ENDING = """test_evaluator = val_evaluator
train_dataloader = dict(dataset=dict(pipeline=train_pipeline, **train_set))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline, **val_set))
test_dataloader = val_dataloader
"""
ITERATIONS = """max_iters = {length}
end = max(max_iters, 2)
train_cfg = dict(max_iters=max_iters, val_interval=max_iters)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=end // 10 + 1),
    dict(type='CosineAnnealingLR', eta_min=1e-5, by_epoch=False, begin=end // 10 + 1, end=end),
]
"""
EPOCHS = """train_dataloader['batch_size'] = {batch}
max_epochs = {length}
end = max(max_epochs, 2)
train_cfg = dict(max_epochs=max_epochs, val_interval=1)
by_epoch = dict(by_epoch=True, convert_to_iter_based=True)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, begin=0, end=1, **by_epoch),
    dict(type='CosineAnnealingLR', eta_min=1e-5, begin=1, end=end, **by_epoch),
]
"""


def passes(images: int) -> float:
    """Times that a training sees its images: few through many images, at most 40."""
    return float(np.clip(8000 / images, 12, 40))


def median_size(part: Part) -> np.ndarray:
    """Width and height of the images, px."""
    return np.median([(image['width'], image['height']) for image in part.coco['images']], axis=0)


def checked(
    parts: Sequence[Part], report: Report, args: argparse.Namespace, folder: Path
) -> list[Part]:
    """Training and validation data, checked; the folder gets the report."""
    return check(
        parts, report, decode=not args.no_decode, strict=args.strict, file=folder / 'check.csv'
    )


def detector(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Values of the template: the class of the smallest objects gets 16 px, the image 320
    to 640.
    """
    train, val = detection_data(args, folder)
    coco = train.coco
    size = median_size(train)
    boxes = np.array(
        [(box['category_id'], *box['bbox'][2:]) for box in coco['annotations']], float
    ).reshape(-1, 3)
    boxes = boxes[(boxes[:, 1:] > 0).all(1)]
    if not len(boxes):
        raise ValueError('data: the training images have no boxes')
    sides = (boxes[:, 1] * boxes[:, 2]) ** 0.5
    small = min(np.quantile(sides[boxes[:, 0] == kind], 0.25) for kind in {*boxes[:, 0]})
    shapes = np.quantile(boxes[:, 2] / boxes[:, 1], (0.25, 0.75))
    factor = min(1.0, max(16 / small, 320 / size.max()), 640 / size.max())
    scale = [max(32, round(side * factor)) for side in size]
    anchor = max(small * factor / 8, 0.5)
    parts = dict(train=train, val=val)
    paths = {key: str(write_json(part.coco, folder / f'{key}.json')) for key, part in parts.items()}
    images = {f'{key}_images': str(part.root.resolve()) for key, part in parts.items()}
    classes = tuple(category['name'] for category in coco['categories'])
    ratios, count = anchor_ratios(*shapes), len(coco['images'])
    values = dict(
        classes=classes, scale=tuple(scale), anchor=anchor, ratios=ratios, size=size, count=count
    )
    return values | paths | images | dict(length=round(count * passes(count) / 4))


def anchor_ratios(low: float, high: float) -> list[float]:
    """Two ratios of anchors, height / width, which differ by at least a quarter.

    The shipped detector has two: with one, its weights would not fit. Two equal ones would double
    each anchor.
    """
    if high < 1.25 * low:
        centre = (low * high) ** 0.5
        low, high = centre / 1.25**0.5, centre * 1.25**0.5
    return [round(float(low), 2), round(float(high), 2)]


def write_list(names: Sequence[str], path: Path) -> str:
    """Write one name a line; returns the absolute path."""
    from cpvt_backbones.checkpoints import atomic_write

    with atomic_write(path) as file:
        file.write('\n'.join([*names, '']).encode())
    return str(path.resolve())


def segmentor(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Values of the template; class maps and lists of names are written to the folder."""
    images, masks = args.data
    report = Report()
    found = read_masks(images, masks, report, classes=args.classes, ignore=args.ignore)
    parts = dict(zip(('train', 'val'), checked([found.part], report, args, folder), strict=True))
    write_class_maps(found, [*parts.values()], folder / 'masks')
    size = median_size(parts['train'])
    scale = [max(32, round(side * min(1.0, 480 / size.max()))) for side in size]
    lists = {}
    for key, part in parts.items():
        lists[key] = write_list(
            [image['file_name'] for image in part.coco['images']], folder / f'{key}.txt'
        )
    crop = scale[1] * 2 // 3, scale[0] * 2 // 3
    values = dict(classes=tuple(found.classes), scale=tuple(scale), crop=crop, size=size)
    # The names in the lists have suffixes; that of a.jpg is a.jpg.png.
    paths = dict(images=str(images.resolve()), masks=str((folder / 'masks').resolve()), suffix='')
    count = len(parts['train'].coco['images'])
    return values | paths | lists | dict(count=count, length=round(count * passes(count) / 4))


def classifier(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Values of the template; lists of images and labels are written to the folder."""
    report = Report()
    parts = checked([read_folders(args.data[0], report)], report, args, folder)
    classes = classes_of(parts)
    lists = {}
    for key, part in zip(('train', 'val'), parts, strict=True):
        images = part.coco['images']
        lines = [f'{image["file_name"]} {classes.index(image["label"])}' for image in images]
        lists[key] = write_list(lines, folder / f'{key}.txt')
    size = median_size(parts[0])
    side = max([side for side in (112, 160, 224) if side <= size.min()], default=112)
    count = len(parts[0].coco['images'])
    # An epoch has whole batches only: at least two.
    batch = min(64, max(1, count // 2))
    values = dict(
        classes=tuple(classes),
        side=side,
        batch=batch,
        images=str(args.data[0].resolve()),
        size=size,
    )
    return values | lists | dict(count=count, length=round(passes(count)))


def detection_data(args: argparse.Namespace, folder: Path) -> list[Part]:
    """Training and validation data, checked."""
    report = Report()
    if args.kind == 'coco':
        file, root = args.data
        parts = [read_coco(file, root)]
        if args.val:
            parts.append(read_coco(args.val[0], args.val[-1] if len(args.val) > 1 else root))
    elif args.kind == 'voc':
        parts = read_voc(args.data[0], report)
    else:
        parts = read_yolo(args.data[0], report)
    return checked(parts, report, args, folder)


def assignment(name: str, value: Any) -> str:
    """A line of Python, wrapped at 100 columns, that gives a name to a plain value."""
    indent = ' ' * len(f'{name} = ')
    text = pformat(value, width=100 - len(indent), sort_dicts=False)
    return f'{name} = {text}\n'.replace('\n', f'\n{indent}').rstrip(' ')


def write_recipe(task: str, file: Path) -> None:
    """Write the shipped recipe of a task, resolved, without its data and without variables of its
    files.
    """
    from mmengine.config import Config

    from cpvt_backbones import __version__
    from cpvt_backbones.checkpoints import atomic_write
    from cpvt_backbones.toolboxes import READ_KEYS, dicts_of
    from cpvt_backbones.weights import repository_file

    # Not its custom_imports: they import the toolbox.
    recipe = Config.fromfile(repository_file(RECIPES[task]), import_custom_modules=False).to_dict()
    pipelines = ('train_pipeline', 'test_pipeline')
    kept = {key: value for key, value in recipe.items() if key in READ_KEYS or key in pipelines}
    for part in dicts_of([value for key, value in kept.items() if key not in pipelines]):
        for key in OF_ITS_DATA:
            part.pop(key, None)
    texts = [assignment(key, value) for key, value in kept.items()]
    about = f'# The {task} of {RECIPES[task]}, cpvt_backbones {__version__}, without its data.\n'
    with atomic_write(file) as target:
        target.write((about + ''.join(texts)).encode())


def start(task: str, weights: str) -> dict[str, str | None]:
    """The model to start from: shipped weights of the task as a whole, any other weights for the
    backbone.
    """
    if weights == WEIGHTS[task]:
        return dict(load_from=weights, init='', backbone='')
    init = (
        'init_cfg=None'
        if weights == 'none'
        else f"init_cfg=dict(type='Pretrained', checkpoint={weights!r})"
    )
    return dict(load_from=None, init=f'{init}, ', backbone=f'backbone=dict({init}), ')


KINDS = dict(
    coco=('detector', 2),
    voc=('detector', 1),
    yolo=('detector', 1),
    masks=('segmentor', 2),
    folders=('classifier', 1),
)


def name_form(args: argparse.Namespace) -> None:
    """Split the form from the paths, or recognise it.

    ``ValueError`` for options of another form.
    """
    if args.data[0] in KINDS:
        args.kind, *paths = args.data
        args.data = [Path(path) for path in paths]
    else:
        recognise_form(args)
    for option, kind in (('val', 'coco'), ('classes', 'masks'), ('ignore', 'masks')):
        if getattr(args, option) and args.kind != kind:
            raise ValueError(f'--{option}: only the form {kind} has it, the data are {args.kind}')


def recognise_form(args: argparse.Namespace) -> None:
    """Set the form and its paths from the files."""
    form = recognise([Path(path) for path in args.data])
    args.kind, args.data = form.kind, form.data
    args.val = args.val or form.val
    paths = [*form.data, *(['--val', *form.val] if form.val else [])]
    print(f'The data are read as: {" ".join(map(str, [form.kind, *paths]))}')


def main(argv: Sequence[str] | None = None) -> None:
    parser = cli.make_parser(__doc__)
    forms = (
        'coco: JSON IMAGES; voc: FOLDER; yolo: FOLDER or YAML; masks: IMAGES MASKS; folders: FOLDER'
    )
    text = f'form of the data and its paths ({forms}); the form is recognised if left out'
    parser.add_argument('data', nargs='+', metavar='[FORM] PATH', help=text)
    parser.add_argument(
        '--val', nargs='+', type=Path, metavar='JSON', help='coco: JSON [IMAGES] for validation'
    )
    parser.add_argument(
        '--classes', type=Path, help='masks: file with the name of a class a line, and its colour'
    )
    parser.add_argument(
        '--ignore', nargs='+', type=int, default=[], help='masks: classes (from 0) to leave out'
    )
    weights = 'file or name of weights for the backbone, or none (default: shipped weights)'
    parser.add_argument('--weights', help=weights)
    parser.add_argument('--length', type=cli.positive, help='iterations (of a classifier: epochs)')
    parser.add_argument(
        '--out',
        type=Path,
        required=True,
        help='the config; converted data get the folder of its name',
    )
    parser.add_argument(
        '--strict', action='store_true', help='refuse data of which anything is skipped or altered'
    )
    parser.add_argument(
        '--no-decode', action='store_true', help='read only the headers of images (huge data sets)'
    )
    parser.add_argument(
        '--overwrite', action='store_true', help='replace the config of an earlier call'
    )
    args = parser.parse_args(argv)
    name_form(args)
    from cpvt_backbones.checkpoints import (
        atomic_write,
        locate_checkpoint,
    )  # here, so that --help comes at once

    task, count = KINDS[args.kind]
    if len(args.data) != count or args.out.suffix != '.py':
        raise ValueError(
            f'{args.kind} takes {count} paths and --out FILE.py, got {[*map(str, args.data)]},'
            f' {args.out}'
        )
    if args.out.exists() and not args.overwrite:
        raise ValueError(
            f'--out: {str(args.out)!r} exists; --overwrite replaces it, with any changes made by'
            ' hand'
        )
    named = args.weights is None or args.weights == 'none' or '://' in args.weights
    if not named and not locate_checkpoint(args.weights).exists():
        fault = f'there is no file {args.weights!r}, and no shipped weights have this name'
        raise FileNotFoundError(f'--weights: {fault}')
    folder = args.out.with_suffix('')
    values = dict(detector=detector, segmentor=segmentor, classifier=classifier)[task](args, folder)
    values |= start(task, args.weights or WEIGHTS[task]) | (
        dict(length=args.length) if args.length else {}
    )
    write_recipe(task, folder / 'recipe.py')
    values |= dict(recipe=f'./{folder.name}/recipe.py', work_dir=f'work_dirs/{args.out.stem}')
    images = (
        f'{values["count"]} training images, median {values["size"][0]:.0f} x'
        f' {values["size"][1]:.0f} px'
    )
    text = TEMPLATES[task] + ENDING + (EPOCHS if task == 'classifier' else ITERATIONS)
    with atomic_write(args.out) as file:
        file.write(
            f'# Written by tools/make_config.py: {images}.\n{text.format(**values)}'.encode()
        )
    print(f'{args.out}: {task} of {len(values["classes"])} classes, {images}')
    unit = 'epoch' if task == 'classifier' else 'iter'
    config = shlex.quote(str(args.out))
    checkpoint = shlex.quote(f'{values["work_dir"]}/{unit}_{values["length"]}.pth')
    print(f'python tools/train.py {config}\npython tools/test.py {config} {checkpoint}')
    print(f'python tools/infer.py {config} {checkpoint} PHOTOS --out-dir out')


if __name__ == '__main__':
    cli.run(main)
