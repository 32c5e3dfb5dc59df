"""Heads and assigners that leave ignored objects out, against mmdet's own and by hand."""

import copy
import logging

import numpy as np
import pytest
import torch
from mmdet.models.dense_heads import DETRHead
from mmdet.models.task_modules.assigners import MaxIoUAssigner
from mmdet.structures import DetDataSample
from mmdet.structures.mask import BitmapMasks
from mmdet.utils import register_all_modules
from mmengine.hub import get_config
from mmengine.registry import MODELS, TASK_UTILS, init_default_scope
from mmengine.structures import InstanceData

from cpvt_backbones.engine.labels import note_ignored

SIZE = (100, 200)  # height and width of the image, px
IGNORED = [120.0, 20.0, 180.0, 80.0]
LABELLED = [10.0, 20.0, 70.0, 80.0]


@pytest.fixture(autouse=True)
def _mmdet():
    register_all_modules(init_default_scope=False)
    init_default_scope('mmdet')


def objects(*boxes):
    return InstanceData(
        bboxes=torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4),
        labels=torch.zeros(len(boxes), dtype=torch.long),
        masks=BitmapMasks([mask(box) for box in boxes], *SIZE),
    )


def mask(box):
    x1, y1, x2, y2 = map(int, box)
    drawn = np.zeros(SIZE, np.uint8)
    drawn[y1:y2, x1:x2] = 1
    return drawn


PRIORS = [
    LABELLED,
    IGNORED,
    [130.0, 30.0, 150.0, 50.0],  # inside the ignored object
    [90.0, 20.0, 150.0, 80.0],  # half of it inside, not more
    [92.0, 20.0, 152.0, 80.0],  # more than half
    [0.0, 0.0, 200.0, 100.0],  # far larger
    [80.0, 0.0, 110.0, 20.0],  # beside
]
ON_IGNORED = [False, True, True, False, True, False, False]


def assign(kind, labelled, ignored, priors=PRIORS):
    options = dict(pos_iou_thr=0.5, neg_iou_thr=0.4, min_pos_iou=0.4)
    assigner = TASK_UTILS.build(dict(type=kind, **options))
    given = InstanceData(priors=torch.tensor(priors, dtype=torch.float32).reshape(-1, 4))
    return assigner.assign(given, objects(*labelled), ignored)


@pytest.mark.parametrize('labelled', [[LABELLED], []], ids=['beside another', 'alone'])
def test_priors_on_ignored_objects_do_not_count(labelled):
    found = assign('IgnoreAwareMaxIoUAssigner', labelled, objects(IGNORED)).gt_inds
    rest = assign('MaxIoUAssigner', labelled, None).gt_inds
    assert found.tolist() == [
        -1 if on_ignored else other
        for on_ignored, other in zip(ON_IGNORED, rest.tolist(), strict=True)
    ]


def test_labelled_objects_within_an_ignored_region_keep_their_priors():
    crowd = objects([0.0, 0.0, 200.0, 100.0])
    found = assign('IgnoreAwareMaxIoUAssigner', [LABELLED, IGNORED], crowd).gt_inds
    assert found[:2].tolist() == [1, 2]
    assert (found[2:] <= 0).all()


@pytest.mark.parametrize('ignored', [None, objects()], ids=['none', 'empty'])
def test_without_ignored_objects_the_assigner_is_mmdets(ignored):
    for priors in (PRIORS, []):
        found = assign('IgnoreAwareMaxIoUAssigner', [LABELLED], ignored, priors)
        theirs = assign('MaxIoUAssigner', [LABELLED], None, priors)
        assert torch.equal(found.gt_inds, theirs.gt_inds)
    assert issubclass(TASK_UTILS.get('IgnoreAwareMaxIoUAssigner'), MaxIoUAssigner)


def head_of(config, part):
    model = get_config(config).model
    head = dict(model[part], train_cfg=model.train_cfg, test_cfg=model.test_cfg)
    if config.startswith('mmdet::dino'):
        head.update(num_pred_layer=7, as_two_stage=True)
    return head


def shares(box):
    """Centre, width and height, as shares of the image."""
    x1, y1, x2, y2 = box
    height, width = SIZE
    return [(x1 + x2) / 2 / width, (y1 + y2) / 2 / height, (x2 - x1) / width, (y2 - y1) / height]


META = dict(img_shape=SIZE, batch_input_shape=(128, 256), pad_shape=(128, 256), ori_shape=SIZE)


@pytest.mark.parametrize(
    ('config', 'kind'),
    [
        ('mmdet::detr/detr_r50_8xb2-150e_coco.py', 'IgnoreAwareDETRHead'),
        ('mmdet::dino/dino-4scale_r50_8xb2-12e_coco.py', 'IgnoreAwareDINOHead'),
    ],
)
def test_unmatched_boxes_on_ignored_objects_do_not_count(config, kind):
    head = MODELS.build(head_of(config, 'bbox_head') | dict(type=kind))
    scores = torch.zeros(len(PRIORS), head.cls_out_channels)
    predictions = torch.tensor([shares(box) for box in PRIORS])
    targets = head._get_targets_single(
        scores, predictions, objects(LABELLED), META | dict(ignored=objects(IGNORED))
    )
    assert targets[1].tolist() == [float(not on) for on in ON_IGNORED]
    assert targets[4].tolist() == [0]  # the labelled object
    assert targets[5].tolist() == [i for i in range(1, len(PRIORS)) if not ON_IGNORED[i]]
    without = head._get_targets_single(scores, predictions, objects(LABELLED), META)
    assert without[1].tolist() == [1.0] * len(PRIORS)


MASK_HEADS = {
    'Mask2Former': lambda: (
        head_of('mmdet::mask2former/mask2former_r50_8xb2-lsj-50e_coco.py', 'panoptic_head')
        | dict(type='IgnoreAwareMask2FormerHead', num_queries=len(PRIORS))
    ),
    'EoMT': lambda: dict(type='EoMTHead', embed_dims=16, num_queries=len(PRIORS)),
}


@pytest.mark.parametrize('with_masks', [True, False])
@pytest.mark.parametrize('kind', MASK_HEADS)
def test_unmatched_masks_on_ignored_objects_do_not_count(kind, with_masks):
    head = MODELS.build(MASK_HEADS[kind]())
    labelled, ignored = objects(LABELLED), objects(IGNORED)
    if not with_masks:
        ignored = InstanceData(bboxes=ignored.bboxes, labels=ignored.labels)
    drawn = torch.zeros(len(PRIORS), 32, 64)  # stride 4 of the padded batch
    for index, (x1, y1, x2, y2) in enumerate(PRIORS):
        drawn[index, int(y1 // 4) : int(y2 // 4), int(x1 // 4) : int(x2 // 4)] = 1
    drawn[3] = 0  # nothing is predicted
    gt = InstanceData(labels=labelled.labels, masks=labelled.masks.to_tensor(torch.long, 'cpu'))
    gt.masks = torch.nn.functional.pad(gt.masks, (0, 56, 0, 28))
    targets = head._get_targets_single(
        torch.zeros(len(PRIORS), head.num_classes + 1),
        20 * drawn - 10,
        gt,
        META | dict(ignored=ignored),
    )
    assert targets[1].tolist() == [float(not on) for on in ON_IGNORED]
    assert targets[4].tolist() == [0]


def test_the_head_without_ignored_objects_has_the_losses_of_mmdets():
    config = head_of('mmdet::detr/detr_r50_8xb2-150e_coco.py', 'bbox_head')
    losses = []
    for kind in ('DETRHead', 'IgnoreAwareDETRHead'):
        torch.manual_seed(0)
        head = MODELS.build(copy.deepcopy(config) | dict(type=kind))
        head.init_weights()
        sample = DetDataSample(metainfo=META, gt_instances=objects(LABELLED))
        losses.append(head.loss(torch.rand(6, 1, 100, 256), [sample]))
    assert losses[0].keys() == losses[1].keys()
    for key, value in losses[0].items():
        assert torch.equal(value, losses[1][key]), key
    assert head.bg_cls_weight == 0.1
    assert isinstance(head, DETRHead)


@pytest.mark.parametrize(
    ('config', 'named'),
    [
        ('mmdet::retinanet/retinanet_r50_fpn_1x_coco.py', 'MaxIoUAssigner'),
        ('mmdet::cascade_rcnn/cascade-rcnn_r50_fpn_1x_coco.py', 'MaxIoUAssigner'),
        ('mmdet::fcos/fcos_r50-caffe_fpn_gn-head_1x_coco.py', 'FCOSHead'),
        ('mmdet::atss/atss_r50_fpn_1x_coco.py', 'ATSSAssigner'),
        ('mmdet::dino/dino-4scale_r50_8xb2-12e_coco.py', 'HungarianAssigner'),
    ],
)
def test_a_model_that_trains_ignored_objects_as_background_is_named_once(config, named, caplog):
    model = MODELS.build(get_config(config).model)
    logger = logging.getLogger('test_ignored')
    plain = DetDataSample(gt_instances=objects(LABELLED), ignored_instances=objects())
    assert not note_ignored(model, [plain], logger)
    assert not caplog.messages
    crowded = DetDataSample(gt_instances=objects(), ignored_instances=objects(IGNORED, LABELLED))
    assert note_ignored(model, [plain, crowded], logger)
    (message,) = caplog.messages
    assert message.startswith('2 objects') and f'background: {named} of the model' in message


def test_no_warning_for_a_model_that_leaves_ignored_objects_out(caplog):
    cfg = get_config('mmdet::mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py')
    for part in (cfg.model.train_cfg.rpn, cfg.model.train_cfg.rcnn):
        part.assigner.type = 'IgnoreAwareMaxIoUAssigner'
    sample = DetDataSample(ignored_instances=objects(IGNORED))
    assert note_ignored(MODELS.build(cfg.model), [sample], logging.getLogger('test_ignored'))
    assert not caplog.messages
