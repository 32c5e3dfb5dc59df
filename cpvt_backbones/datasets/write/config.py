"""Write a config that inherits a shipped recipe, from the values of a user's data.

mmengine substitutes ``{{...}}`` in the source of a config before Python parses it, so that a class
name or path in the source could run as code. Numbers stand in the source; all text of the data
stands in a JSON file, as ``own_data``, which the config inherits.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from pprint import pformat
from typing import Any

from cpvt_backbones import __version__
from cpvt_backbones.checkpoints import Normalisation, atomic_write
from cpvt_backbones.errors import InputError
from cpvt_backbones.toolboxes import READ_KEYS, dicts_of
from cpvt_backbones.value_range import ValueRange
from cpvt_backbones.weights import repository_file, shipped_weights

from ..decide.weights import Pretrained
from ..decide.whole import ORIGIN, WholeModel
from ..files import RECIPE
from ..read.masks import IGNORE, no_class_of
from .data import write_json

TEXTS = 'data.json'  # beside the recipe
SAFE_STEM = re.compile(r'\w[\w .+=@,-]*')
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
# Anchors at this scale: the smallest of the data's boxes, and the shapes (height / width).
anchors = dict(octave_base_scale={anchor:.3g}, ratios={ratios})
model = dict(
    {backbone}{preprocessor}bbox_head=dict(num_classes=len(classes), anchor_generator=anchors),
{crowded})
"""
INSTANCES = """heads = ('bbox_head', 'mask_head')
model = dict(
    {backbone}{preprocessor}rpn_head=dict(anchor_generator=dict(scales=[{anchor:.3g}])),
    roi_head={{head: dict(num_classes=len(classes)) for head in heads}},
{crowded})
"""
OBJECTS = """load_from = _base_.own_data.load_from
train_pipeline = _base_.train_pipeline
train_pipeline[2].scale = scale
train_pipeline[3].crop_size = scale
train_pipeline[4] = dict(type='RandomFlip', prob=0.5)
test_pipeline = _base_.test_pipeline
test_pipeline[1].scale = scale
{loading}metainfo = dict(classes=classes)
train_set = dict(data_root='', ann_file=_base_.own_data.train, metainfo=metainfo)
train_set['data_prefix'] = dict(img=_base_.own_data.train_images)
train_set['filter_cfg'] = None  # train on images without objects, too
val_set = dict(data_root='', ann_file=_base_.own_data.val, metainfo=metainfo)
val_set['data_prefix'] = dict(img=_base_.own_data.val_images)
val_evaluator = dict(ann_file=_base_.own_data.val{proposals})
"""
SEGMENTOR = """void = {void}
model = dict(
    {backbone}data_preprocessor=dict({normalisation}seg_pad_val=void),
    decode_head=dict(num_classes=len(classes), ignore_index=void),
)
load_from = _base_.own_data.load_from
train_pipeline = _base_.train_pipeline
{train_size}
train_pipeline[3] = dict(type='RandomCrop', crop_size={crop}, cat_max_ratio=0.75, ignore_index=void)
test_pipeline = _base_.test_pipeline
{test_size}{loading}{deep}prefix = dict(img_path=_base_.own_data.images)
prefix['seg_map_path'] = _base_.own_data.masks
# The lists have the suffixes of the images; the map of a.jpg is a.jpg.png.
options = dict(data_root='', data_prefix=prefix, img_suffix='', metainfo=dict(classes=classes))
train_set = dict(ann_file=_base_.own_data.train, **options)
val_set = dict(ann_file=_base_.own_data.val, **options)
val_evaluator = dict(ignore_index=void)
"""
# Of a segmentor: how images get the size that it is trained and tested at, whole or as tiles.
AT_SCALE = dict(
    train_size='train_pipeline[2].scale = scale',
    test_size="test_pipeline.insert(1, dict(type='Resize', scale=scale, keep_ratio=True))\n",
)
AT_OWN_SIZE = dict(
    train_size="train_pipeline[2] = dict(type='Resize', scale_factor=1.0)  # the images' own scale",
    test_size='',
)
DEEP_MAPS = """load_map = dict(type='LoadClassMap')  # of 16 bits; mmseg's own reads 8
train_pipeline[1] = load_map
test_pipeline = [load_map if 'Annotations' in step['type'] else step for step in test_pipeline]
"""
CLASSIFIER = """model = dict(
    {backbone}head=dict({head}num_classes=len(classes)),
)
data_preprocessor = dict({normalisation}num_classes=len(classes))
load_from = _base_.own_data.load_from
train_pipeline = _base_.train_pipeline
train_pipeline[1].update(scale=scale, backend={backend!r})
resize = dict(type='ResizeEdge', scale=scale * 8 // 7, backend={backend!r}, interpolation='bicubic')
test_pipeline = _base_.test_pipeline
test_pipeline[1:2] = [resize, dict(type='CenterCrop', crop_size=scale)]
{loading}metainfo = dict(classes=classes)
options = dict(data_root=_base_.own_data.images, data_prefix='', metainfo=metainfo)
train_set = dict(ann_file=_base_.own_data.train, **options)
val_set = dict(ann_file=_base_.own_data.val, **options)
val_evaluator = dict(topk=(1,))
"""
BEGINNING = """# Written by cpvt make-config: {about}.
# The names and paths of the data are in data.json; they stand in no Python source.
_base_ = ['./{stem}/{recipe}', './{stem}/{texts}']
work_dir = '{work_dir}'
classes = tuple(_base_.own_data.classes)
scale = {scale}
"""
ENDING = """{rates}test_evaluator = {test_evaluator}
train_dataloader = dict(dataset=dict(pipeline=train_pipeline, **train_set))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline, **val_set))
test_dataloader = val_dataloader
"""
ITERATIONS = """max_iters = {length}
end = max(max_iters, 2)
train_cfg = dict(max_iters=max_iters, val_interval=max_iters)
# At least five checkpoints, from which an interrupted training goes on, and ten lines of the log.
default_hooks = dict(
    checkpoint=dict(interval=min(500, max(1, max_iters // 5)){best}),
    logger=dict(interval=min(50, max(1, max_iters // 10))),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=end // 10 + 1),
    dict(type='CosineAnnealingLR', eta_min={least}, by_epoch=False, begin=end // 10 + 1, end=end),
]
"""
EPOCHS = """train_dataloader['batch_size'] = {batch}
max_epochs = {length}
end = max(max_epochs, 2)
train_cfg = dict(max_epochs=max_epochs, val_interval=1)
by_epoch = dict(by_epoch=True, convert_to_iter_based=True)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, begin=0, end=1, **by_epoch),
    dict(type='CosineAnnealingLR', eta_min={least}, begin=1, end=end, **by_epoch),
]
"""
REMOVE_COLOUR = """colour = ('PhotoMetricDistortion', 'ColorJitter')  # of RGB only
train_pipeline = [step for step in train_pipeline if step['type'] not in colour]
"""
# Of a classifier, the share of each class that is right, too: the other toolboxes print a table.
CLASS_SCORES = """[
    dict(type='Accuracy', topk=(1,)),
    dict(type='SingleLabelMetric', items=['recall'], average=None),
]"""
# Of weights of elsewhere: wider models learn at lower rates.
COLUMN_RATES = """# The rate of the head; those of the backbone fall towards its first blocks.
optim_wrapper = dict(
    constructor='LayerDecayOptimWrapperConstructor',
    optimizer=dict(lr={lr:.2g}),
    paramwise_cfg=dict(layer_decay_rate=0.75),
)
"""
PYRAMID_RATES = """optim_wrapper = dict(optimizer=dict(lr={lr:.2g}))
"""
TEMPLATES = {
    'detector': BEGINNING + DETECTOR + OBJECTS + ENDING + ITERATIONS,
    'instance segmentor': BEGINNING + INSTANCES + OBJECTS + ENDING + ITERATIONS,
    'segmentor': BEGINNING + SEGMENTOR + ENDING + ITERATIONS,
    'classifier': BEGINNING + CLASSIFIER + ENDING + EPOCHS,
}


def write_config(
    task: str,
    numbers: Mapping[str, Any],
    texts: Mapping[str, Any],
    file: Path,
    whole: WholeModel | None = None,
) -> None:
    """Write a config, and the recipe and JSON file that it inherits to the folder of its name.

    Args:
        task: A key of ``TEMPLATES``.
        numbers: Fields of the template, without text of the data or of weights.
        texts: Names and paths of the data, and the weights: plain data for the JSON file.
        file: The config, of a name that :func:`check_out` accepts.
        whole: The model, in place of the recipe's.

    Raises:
        InputError: A text has ``{{`` or is not Unicode, or the config, loaded again, has other
            values.
    """
    own_data = json.loads(json.dumps(texts))  # tuples become lists
    for where, text in _texts_of(own_data, ''):
        check_text(text, where)
    folder = file.with_suffix('')
    write_recipe(task, folder / RECIPE, whole)
    write_json(dict(own_data=own_data), folder / TEXTS, indent=2)
    names = dict(stem=folder.name, recipe=RECIPE, texts=TEXTS, work_dir=work_dir(file))
    names['test_evaluator'] = CLASS_SCORES if task == 'classifier' else 'val_evaluator'
    if task == 'segmentor':
        names |= AT_SCALE if numbers['whole'] else AT_OWN_SIZE
        void = no_class_of(len(own_data['classes']))
        names |= dict(void=str(void), deep='' if void == IGNORE else DEEP_MAPS)
    names |= _crowded(task, numbers.get('detections'))
    source = TEMPLATES[task].format(**{**numbers, **names})
    with atomic_write(file) as target:
        target.write(source.encode())
    try:
        _compare(file, own_data)
    except Exception:
        file.unlink()
        raise


def _crowded(task: str, count: int | None) -> dict[str, str]:
    """Fields of the template for images with many objects: ``count`` predictions an image."""
    if count is None:
        return dict(crowded='', proposals='', best='')
    limits = f'nms_pre={max(1000, 5 * count)}, max_per_img={2 * count}'
    crowded = f'    test_cfg=dict(nms_pre={max(1000, 5 * count)}, max_per_img={count}),\n'
    metric = 'bbox'
    if task == 'instance segmentor':
        metric = 'segm'
        crowded = (
            f'    train_cfg=dict(rpn_proposal=dict({limits})),\n'
            f'    test_cfg=dict(rpn=dict({limits}), rcnn=dict(max_per_img={count})),\n'
        )
    return dict(
        crowded=crowded,
        proposals=f', proposal_nums=(100, 300, {max(1000, count)})',
        best=f", save_best='coco/{metric}_mAP_50'",
    )


def check_out(file: Path) -> None:
    """``InputError`` for a name that does not stand in a config as it is."""
    if file.suffix != '.py':
        raise InputError(f'--out: must be FILE.py, got {str(file)!r:.200}')
    if not SAFE_STEM.fullmatch(file.stem):
        raise InputError(
            '--out: the name of the file may have letters, digits and . _ + = @ , - and spaces,'
            f' got {file.name!r:.200}'
        )
    check_text(str(file.absolute()), '--out')


def check_text(text: str, where: str) -> None:
    """``InputError`` for text that does not survive in configs.

    mmengine writes the values of a config as Python source to the folder of a training and to its
    checkpoints, where ``{{...}}`` is substituted when they are read.
    """
    if '{{' in text:
        raise InputError(
            f"{where}: {text!r:.200} has '{{{{', which mmengine substitutes in configs: rename it"
        )
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(f'{where}: {text!r:.200} is not valid Unicode: rename it') from None


def _texts_of(value: Any, where: str) -> Iterator[tuple[str, str]]:
    """Every text in plain data, with the keys that lead to it."""
    if isinstance(value, str):
        yield where, value
    elif isinstance(value, dict):
        for key, one in value.items():
            yield where, key
            yield from _texts_of(one, f'{where}.{key}' if where else key)
    elif isinstance(value, list):
        for one in value:
            yield from _texts_of(one, where)


def _compare(file: Path, own_data: Mapping[str, Any]) -> None:
    """``InputError`` if a config has other names and paths than were meant."""
    from mmengine.config import Config

    config = Config.fromfile(file, import_custom_modules=False)
    train, val = (config[f'{part}_dataloader'].dataset for part in ('train', 'val'))
    classes = tuple(own_data['classes'])
    pairs = [
        (config.own_data.to_dict(), own_data),
        (config.load_from, own_data['load_from']),
        (train.ann_file, own_data['train']),
        (val.ann_file, own_data['val']),
        (train.metainfo.classes, classes),
        (val.metainfo.classes, classes),
    ]
    for got, meant in pairs:
        if got != meant:
            raise InputError(f'--out: {file} would have {got!r:.200} for {meant!r:.200}')


def work_dir(config: Path) -> str:
    """Folder of the checkpoints, from the folder in which the training is started."""
    return f'work_dirs/{config.stem}'


def write_recipe(task: str, file: Path, whole: WholeModel | None = None) -> None:
    """Write the recipe of a task, resolved, without its data and the variables of its files.

    ``whole`` replaces its model.
    """
    from mmengine.config import Config

    # Not its custom_imports: they import the toolbox.
    recipe = Config.fromfile(repository_file(RECIPES[task]), import_custom_modules=False).to_dict()
    pipelines = ('train_pipeline', 'test_pipeline')
    kept = {key: value for key, value in recipe.items() if key in READ_KEYS or key in pipelines}
    for part in dicts_of([value for key, value in kept.items() if key not in pipelines]):
        for key in OF_ITS_DATA:
            part.pop(key, None)
    about = f'# The {task} of {RECIPES[task]}, cpvt_backbones {__version__}, without its data.\n'
    if whole is not None:
        kept[ORIGIN] = whole.name
        kept['model'] = whole.model
        if whole.data_preprocessor is not None:
            kept['data_preprocessor'] = whole.data_preprocessor
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
    folder = PurePosixPath(RECIPES[task]).parent
    for name, weights in shipped_weights().items():
        if PurePosixPath(weights.config).parent == folder:
            return name
    return None


def fields_of(
    task: str,
    value_range: ValueRange | None,
    normalisation: Normalisation | None,
) -> dict[str, str]:
    """Fields of the template for how images are read.

    Args:
        task: A key of ``TEMPLATES``.
        value_range: By what; ``None`` for images of 8 bits.
        normalisation: Mean and standard deviation of each channel; ``None`` for the recipe's.
    """
    fields = dict(loading='', channels='', normalisation='', preprocessor='', backend='pillow')
    channels = 3
    if value_range is not None:
        channels = value_range.channels
        arguments = ', '.join(f'{key}={value!r}' for key, value in value_range.settings.items())
        fields['loading'] = f"load = dict(type='LoadRange', {arguments})\n"
        fields['loading'] += 'train_pipeline[0] = test_pipeline[0] = load\n'
    if normalisation is None:
        return fields
    text = f'mean={[*normalisation.mean]}, std={[*normalisation.std]}, '
    if channels != 3 or not normalisation.rgb:
        text += 'to_rgb=False, ' if task == 'classifier' else 'bgr_to_rgb=False, '
    if channels != 3:
        fields['channels'] = f'in_channels={channels}, '
        fields['backend'] = 'cv2'  # Pillow resizes RGB
        fields['loading'] += REMOVE_COLOUR
    if task == 'segmentor' and channels not in (1, 3):  # mmseg's own takes these
        text += "type='ValidSizesSegDataPreProcessor', "
    fields['normalisation'] = text
    fields['preprocessor'] = f'data_preprocessor=dict({text[:-2]}),\n    '
    return fields


def start(
    task: str,
    weights: str | None,
    *,
    channels: str = '',
    pretrained: Pretrained | None = None,
    published: WholeModel | None = None,
) -> tuple[dict[str, str], dict[str, Any]]:
    """Fields of the template, and texts, for the weights to start from.

    Args:
        task: A key of ``TEMPLATES``.
        weights: Shipped weights, ``'none'``, or ``None`` for the default. Those of the task as a
            whole are loaded, of others the backbone.
        channels: The argument ``in_channels`` of the backbone, if it is not 3. Only a backbone's
            weights are fitted to it.
        pretrained: The backbone of other weights than these.
        published: The published model of these weights.
    """
    if published is not None:
        fields = dict(backbone='', head='', rates=_rates(published), least='0')
        return fields, dict(load_from=published.weights)
    if pretrained is not None:
        return start_elsewhere(task, pretrained)
    fields = dict(head='', rates='', least='1e-5')
    texts: dict[str, Any] = dict(load_from=None)
    whole = default_weights(task)
    if weights is None:
        weights = default_weights('classifier') if channels or whole is None else whole
    init = ''
    if weights == 'none':
        init = 'init_cfg=None'
    elif weights == whole and not channels:
        texts['load_from'] = weights
    else:
        init = 'init_cfg=_base_.own_data.init_cfg'
        texts['init_cfg'] = weights
    if task == 'classifier':
        init = f"{init}{', ' if init else ''}arch='tiny', img_size=scale"
    fields['backbone'] = f'backbone=dict({channels}{init}),\n    ' if init else ''
    return fields, texts


def start_elsewhere(task: str, pretrained: Pretrained) -> tuple[dict[str, str], dict[str, Any]]:
    """As :func:`start`, for a backbone that is not the recipe's, with its learning rates."""
    backbone = 'backbone=dict(_delete_=True, **_base_.own_data.backbone),\n    '
    channels = list(pretrained.out_channels)
    head = ''
    if task == 'classifier':
        head = f'in_channels={channels[-1]}, '
    else:
        backbone += f'neck=dict(in_channels={channels}),\n    '
    fields = dict(backbone=backbone, head=head, rates=_rates(pretrained), least='0')
    return fields, dict(load_from=None, backbone=pretrained.arguments)


def _rates(model: Pretrained | WholeModel) -> str:
    """Learning rates of a model that is not the recipe's, whose rate is for 192 channels."""
    rates = COLUMN_RATES if model.is_column else PYRAMID_RATES
    return rates.format(lr=1e-3 * min(1.0, 192 / model.out_channels[-1]))
