"""Write a config that inherits a shipped recipe, from the values of a user's data."""

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from pprint import pformat
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cpvt_backbones.value_range import ValueRange

RECIPES = {
    'detector': 'configs/bccd/retinanet_cpvt-tiny-gap_bccd.py',
    'instance segmentor': 'configs/_base_/recipes/instances_own_data.py',
    'segmentor': 'configs/camvid/semantic-fpn_cpvt-tiny-gap_camvid.py',
    'classifier': 'configs/imagenette/cpvt-6-blocks_imagenette.py',
}
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
DETECTOR = """\
# Anchors of the data's boxes at this scale: the smallest, and the shapes (height / width).
anchors = dict(octave_base_scale={anchor:.3g}, ratios={ratios})
model = dict({backbone}bbox_head=dict(num_classes=len(classes), anchor_generator=anchors))
"""
INSTANCES = """heads = ('bbox_head', 'mask_head')
model = dict(
    {backbone}rpn_head=dict(anchor_generator=dict(scales=[{anchor:.3g}])),
    roi_head={{head: dict(num_classes=len(classes)) for head in heads}},
)
"""
OBJECTS = """load_from = {load_from!r}
train_pipeline = _base_.train_pipeline
train_pipeline[2].scale = scale
train_pipeline[3].crop_size = scale
train_pipeline[4] = dict(type='RandomFlip', prob=0.5)
test_pipeline = _base_.test_pipeline
test_pipeline[1].scale = scale
{loading}metainfo = dict(classes=classes)
train_set = dict(data_root='', ann_file={train!r}, metainfo=metainfo)
train_set['data_prefix'] = dict(img={train_images!r})
train_set['filter_cfg'] = None  # train on images without objects, too
val_set = dict(data_root='', ann_file={val!r}, metainfo=metainfo)
val_set['data_prefix'] = dict(img={val_images!r})
val_evaluator = dict(ann_file={val!r})
"""
SEGMENTOR = """void = 255
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
{loading}metainfo = dict(classes=classes)
paths = dict(data_root='', data_prefix=dict(img_path={images!r}, seg_map_path={masks!r}))
options = dict(**paths, img_suffix={suffix!r}, metainfo=metainfo)
train_set, val_set = (dict(ann_file=file, **options) for file in ({train!r}, {val!r}))
val_evaluator = dict(ignore_index=void)
"""
CLASSIFIER = """model = dict(
    backbone=dict({init}arch='tiny', img_size=scale),
    head=dict(num_classes=len(classes)),
)
data_preprocessor = dict(num_classes=len(classes))
load_from = {load_from!r}
train_pipeline = _base_.train_pipeline
train_pipeline[1].scale = scale
resize = dict(type='ResizeEdge', scale=scale * 8 // 7, backend='pillow', interpolation='bicubic')
test_pipeline = _base_.test_pipeline
test_pipeline[1:2] = [resize, dict(type='CenterCrop', crop_size=scale)]
{loading}options = dict(data_root={images!r}, data_prefix='', metainfo=dict(classes=classes))
train_set, val_set = (dict(ann_file=file, **options) for file in ({train!r}, {val!r}))
val_evaluator = dict(topk=(1,))
"""
BEGINNING = """# Written by tools/make_config.py: {about}.
_base_ = {recipe!r}
work_dir = {work_dir!r}
classes = {classes!r}
scale = {scale}
"""
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
TEMPLATES = {
    'detector': BEGINNING + DETECTOR + OBJECTS + ENDING + ITERATIONS,
    'instance segmentor': BEGINNING + INSTANCES + OBJECTS + ENDING + ITERATIONS,
    'segmentor': BEGINNING + SEGMENTOR + ENDING + ITERATIONS,
    'classifier': BEGINNING + CLASSIFIER + ENDING + EPOCHS,
}


def write_config(task: str, values: Mapping[str, Any], file: Path) -> None:
    """Write a config, and the recipe that it inherits to the folder of its name.

    Args:
        task: A key of ``TEMPLATES``.
        values: Fields of the template, without ``recipe`` and ``work_dir``.
        file: The config.
    """
    from cpvt_backbones.checkpoints import atomic_write

    recipe = file.with_suffix('') / 'recipe.py'
    write_recipe(task, recipe)
    places = dict(recipe=f'./{recipe.parent.name}/{recipe.name}', work_dir=work_dir(file))
    text = TEMPLATES[task].format(**values, **places)
    with atomic_write(file) as target:
        target.write(text.encode())


def work_dir(config: Path) -> str:
    """Folder of the checkpoints, from the folder in which the training is started."""
    return f'work_dirs/{config.stem}'


def write_recipe(task: str, file: Path) -> None:
    """Write the recipe of a task, resolved, without its data and the variables of its files."""
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
    about = f'# The {task} of {RECIPES[task]}, cpvt_backbones {__version__}, without its data.\n'
    texts = [assignment(key, value) for key, value in kept.items()]
    with atomic_write(file) as target:
        target.write((about + ''.join(texts)).encode())


def assignment(name: str, value: Any) -> str:
    """A line of Python, wrapped at 100 columns, that gives a name to a plain value."""
    indent = ' ' * len(f'{name} = ')
    text = pformat(value, width=100 - len(indent), sort_dicts=False)
    return f'{name} = {text}\n'.replace('\n', f'\n{indent}').rstrip(' ')


def default_weights(task: str) -> str | None:
    """Name of the shipped weights of a task as a whole; ``None`` if none are shipped."""
    from cpvt_backbones.weights import shipped_weights

    folder = PurePosixPath(RECIPES[task]).parent
    for name, weights in shipped_weights().items():
        if PurePosixPath(weights.config).parent == folder:
            return name
    return None


def loading_of(value_range: 'ValueRange | None') -> str:
    """Lines of a config that read files by a range of values; empty without one."""
    if value_range is None:
        return ''
    low, high, dtype = value_range.low, value_range.high, value_range.dtype
    load = f"load = dict(type='LoadRange', low={low!r}, high={high!r}, dtype={dtype!r})"
    return f'{load}\ntrain_pipeline[0] = test_pipeline[0] = load\n'


def start(task: str, weights: str | None) -> dict[str, str | None]:
    """Fields of the template for the weights to start from.

    Args:
        task: A key of ``TEMPLATES``.
        weights: Shipped weights of the task as a whole, any other weights for the backbone,
            ``'none'``, or ``None`` for the default.
    """
    whole = default_weights(task)
    if weights is None:
        weights = whole or default_weights('classifier')
    if weights == whole:
        return dict(load_from=weights, init='', backbone='')
    if weights == 'none':
        init = 'init_cfg=None'
    else:
        init = f"init_cfg=dict(type='Pretrained', checkpoint={weights!r})"
    return dict(load_from=None, init=f'{init}, ', backbone=f'backbone=dict({init}), ')
