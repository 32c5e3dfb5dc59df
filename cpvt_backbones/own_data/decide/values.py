"""Values of the JSON file that the bases in ``configs/_base_/own_data`` read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from cpvt_backbones.checkpoints import Normalisation
from cpvt_backbones.images.value_range import ValueRange
from cpvt_backbones.weights import shipped_weights

from ..read.masks import IGNORE, no_class_of
from .weights import Pretrained
from .whole_model import WholeModel

# Models of the tasks, with their optimizer and hooks.
RECIPES = {
    'detector': 'configs/bccd/retinanet_cpvt-tiny-gap_bccd.py',
    'instance segmentor': 'configs/_base_/own_data/mask_rcnn.py',
    'segmentor': 'configs/camvid/semantic-fpn_cpvt-tiny-gap_camvid.py',
    'classifier': 'configs/imagenette/cpvt-6-blocks_imagenette.py',
}
Values = dict[str, Any]


@dataclass(frozen=True)
class Start:
    """Weights from which a model starts, with their settings.

    Args:
        load_from: Name or file of weights of a whole model; ``None`` for random heads.
        model: Values of ``model`` that differ from the recipe's.
        rates: Values of ``optim_wrapper`` that differ from the recipe's.
        least_rate: Learning rate at the end.
        has_queries: The model has queries instead of anchors.
    """

    load_from: str | None
    model: Values
    rates: Values
    least_rate: float
    has_queries: bool = False


def values_of(
    task: str,
    texts: Mapping[str, Any],
    fields: Mapping[str, Any],
    start: Start,
    *,
    value_range: ValueRange | None = None,
    normalisation: Normalisation | None = None,
) -> Values:
    """Return the values of a config: numbers, which users change, and then names and paths.

    Args:
        task: A key of ``RECIPES``.
        texts: Names and paths of the data.
        fields: Numbers of :class:`.settings.Settings`.
        start: Weights from which the model starts.
        value_range: Conversion of images of more than 8 bits.
        normalisation: Mean and standard deviation of each channel; ``None`` for the recipe's.
    """
    count = len(texts['classes'])
    channels = 3 if value_range is None else value_range.channels
    load = dict(type='LoadImageFromFile')
    if value_range is not None:
        load = dict(type='LoadRange', **value_range.settings)
    preprocessor = _preprocessor(task, channels, normalisation)
    values: Values = dict(
        scale=fields['scale'],
        least_rate=start.least_rate,
        optim_wrapper=start.rates,
        load_from=start.load_from,
        load=load,
        is_rgb=normalisation is None or channels == 3,
    )
    model = dict(start.model)
    if task == 'classifier':
        values |= dict(max_epochs=fields['length'], batch_size=fields['batch'])
        # Pillow resizes RGB.
        values['backend'] = 'pillow' if values['is_rgb'] else 'cv2'
        values['data_preprocessor'] = dict(preprocessor, num_classes=count)
        model['head'] = dict(model.get('head', {}), num_classes=count)
    elif task == 'segmentor':
        values |= _of_segmentor(count, fields)
        model['data_preprocessor'] = dict(preprocessor, seg_pad_val=values['void'])
        model['decode_head'] = dict(num_classes=count, ignore_index=values['void'])
    else:
        values |= _of_objects(task, fields)
        if preprocessor:
            model['data_preprocessor'] = preprocessor
        if start.has_queries:
            model |= _queries_of_objects(count, fields)
        else:
            model |= _heads_of_objects(task, count, fields)
    return values | dict(model=model) | dict(texts)


def _preprocessor(task: str, channels: int, normalisation: Normalisation | None) -> Values:
    """Return values of the data preprocessor that differ from the recipe's."""
    if normalisation is None:
        return {}
    values: Values = dict(mean=[*normalisation.mean], std=[*normalisation.std])
    if channels != 3 or not normalisation.rgb:
        values['to_rgb' if task == 'classifier' else 'bgr_to_rgb'] = False
    if task == 'segmentor' and channels not in (1, 3):  # mmseg's own takes these
        values['type'] = 'ValidSizesSegDataPreProcessor'
    return values


def _of_segmentor(count: int, fields: Mapping[str, Any]) -> Values:
    void = no_class_of(count)
    reader = 'LoadAnnotations' if void == IGNORE else 'LoadClassMap'  # mmseg's reads 8 bits
    return dict(
        crop=fields['crop'],
        max_iters=fields['length'],
        is_tiled=fields['is_tiled'],
        void=void,
        load_map=dict(type=reader),
        checkpoint={},
    )


def _of_objects(task: str, fields: Mapping[str, Any]) -> Values:
    values: Values = dict(max_iters=fields['length'], checkpoint={}, proposals=None)
    values['outlines'] = task == 'instance segmentor'
    if fields['detections']:
        metric = 'segm' if values['outlines'] else 'bbox'
        values['checkpoint'] = dict(save_best=f'coco/{metric}_mAP_50')
        values['proposals'] = (100, 300, max(1000, fields['detections']))
    return values


def _heads_of_objects(task: str, count: int, fields: Mapping[str, Any]) -> Values:
    """Return anchors, classes, and the number of predictions for images with many objects."""
    anchor = float(f'{fields["anchor"]:.3g}')
    most = fields['detections']
    kept = dict(nms_pre=max(1000, 5 * (most or 0)))
    if task == 'detector':
        # Anchors at this scale: the size of the smallest boxes, and the shapes (height / width).
        anchors = dict(octave_base_scale=anchor, ratios=fields['ratios'])
        model: Values = dict(bbox_head=dict(num_classes=count, anchor_generator=anchors))
        return model | (dict(test_cfg=dict(kept, max_per_img=most)) if most else {})
    heads = {head: dict(num_classes=count) for head in ('bbox_head', 'mask_head')}
    model = dict(rpn_head=dict(anchor_generator=dict(scales=[anchor])), roi_head=heads)
    if most:
        kept['max_per_img'] = 2 * most
        model['train_cfg'] = dict(rpn_proposal=kept)
        model['test_cfg'] = dict(rpn=kept, rcnn=dict(max_per_img=most))
    return model


def _queries_of_objects(count: int, fields: Mapping[str, Any]) -> Values:
    """Return classes, and the number of predictions for images with many objects."""
    model: Values = dict(panoptic_head=dict(num_things_classes=count))
    if fields['detections']:
        model['test_cfg'] = dict(max_per_image=fields['detections'])
    return model


def default_weights(task: str) -> str | None:
    """Return the name of shipped weights for a task; ``None`` if none are shipped."""
    folder = PurePosixPath(RECIPES[task]).parent
    for name, weights in shipped_weights().items():
        if PurePosixPath(weights.config).parent == folder:
            return name
    return None


def start_from(
    task: str,
    weights: str | None,
    *,
    scale: Any,
    channels: int = 3,
    pretrained: Pretrained | None = None,
    published: WholeModel | None = None,
) -> Start:
    """Choose the weights from which the model of a task starts.

    Args:
        task: A key of ``RECIPES``.
        weights: Shipped weights, ``'none'``, or ``None`` for the default. Weights of the same task
            are loaded as a whole, and others for the backbone only.
        scale: Training scale, for which a classifier's position embedding is made.
        channels: Channels of the images. Only backbone weights fit other numbers than 3.
        pretrained: The backbone of other weights than these.
        published: The published model of these weights.
    """
    if published is not None:
        rates, has_queries = _rates(published), published.has_queries
        return Start(published.weights, {}, rates, 0, has_queries)
    if pretrained is not None:
        return start_elsewhere(task, pretrained)
    whole = default_weights(task)
    if weights is None:
        weights = default_weights('classifier') if channels != 3 or whole is None else whole
    backbone: Values = {} if channels == 3 else dict(in_channels=channels)
    load_from = None
    if weights == whole and channels == 3:
        load_from = weights
    # A whole model includes the weights of the backbone.
    backbone['init_cfg'] = None if load_from or weights == 'none' else weights
    if task == 'classifier':
        backbone |= dict(arch='tiny', img_size=scale)
    return Start(load_from, dict(backbone=backbone) if backbone else {}, {}, 1e-5)


def start_elsewhere(task: str, pretrained: Pretrained, *, load_from: str | None = None) -> Start:
    """Return start and learning rates of a model with the backbone of other weights.

    Args:
        task: A key of ``RECIPES``.
        pretrained: The backbone.
        load_from: The checkpoint, if the whole model is loaded from it.
    """
    arguments = dict(pretrained.arguments)
    if load_from is not None:
        arguments['init_cfg'] = None
    channels: Sequence[int] = pretrained.out_channels
    model: Values = dict(backbone=dict(_delete_=True, **arguments))
    if task == 'classifier':
        model['head'] = dict(in_channels=channels[-1])
    else:
        model['neck'] = dict(in_channels=[*channels])
    return Start(load_from, model, _rates(pretrained), 0)


def _rates(model: Pretrained | WholeModel) -> Values:
    """Return learning rates of another model than the recipe's, whose rate is for 192 channels."""
    rate = float(f'{1e-3 * min(1.0, 192 / model.out_channels[-1]):.2g}')
    rates: Values = dict(optimizer=dict(lr=rate))
    if model.is_plain:
        # The rate of the head; rates of the backbone fall towards its first blocks.
        rates['constructor'] = 'LayerDecayOptimWrapperConstructor'
        rates['paramwise_cfg'] = dict(layer_decay_rate=0.75)
    return rates
