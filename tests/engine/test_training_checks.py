"""Starting from a model of other classes, and heads whose number of classes is not that of the
data.
"""

import logging
import re
from types import SimpleNamespace

import pytest
import tiny
import torch
from mmengine.registry import MODELS
from mmengine.runner import BaseLoop, Runner
from mmengine.runner.checkpoint import _load_checkpoint_to_model
from tiny import ONE_BLOCK
from torch import nn

from cpvt_backbones.checkpoints import CheckpointError, check_loaded, mmengine_loader
from cpvt_backbones.checkpoints.classes import keep_rows
from cpvt_backbones.engine.training_checks import (
    TrainingCheckHook,
    check_checkpoint,
    check_objects,
)
from cpvt_backbones.toolboxes import check_neck

COLUMN = dict(type='MultiScaleCPVT', **ONE_BLOCK)
BUILDERS = {
    'bbox_head.retina_cls': lambda **options: tiny.retinanet(
        dict(COLUMN, out_indices=(1, 2, 3)), **options
    ),
    'decode_head.conv_seg': lambda **options: tiny.semantic_fpn(COLUMN, **options),
    'head.fc': lambda **options: tiny.image_classifier(
        dict(type='CPVT', with_cls_token=False, out_type='avg_featmap', **ONE_BLOCK), **options
    ),
}


@pytest.fixture(params=BUILDERS)
def layer(request):
    return request.param


def content_of(model):
    return dict(
        state_dict={f'module.{key}': value.clone() for key, value in model.state_dict().items()},
        meta={},
    )


def test_the_class_layer_stays_random_and_is_named(layer, caplog):
    model = tiny.build(BUILDERS[layer](classes=5))
    content = content_of(tiny.build(BUILDERS[layer](classes=3)))
    with pytest.raises(CheckpointError, match=f"'a.pth'.*other shapes of.*{layer}.weight"):
        check_loaded(content, model, 'a.pth')
    with caplog.at_level(logging.INFO, logger='current'):
        check_loaded(content, model, 'a.pth', other_classes=True)
    for key, value in model.state_dict().items():
        same = torch.equal(content['state_dict'][f'module.{key}'], value)
        assert same or not key.startswith(layer), key
    # mmengine, which loads it next, has nothing to report.
    caplog.clear()
    _load_checkpoint_to_model(model, content)
    assert not caplog.records


def meta_of(names):
    return dict(iter=3, dataset_meta=dict(classes=names))


@pytest.mark.parametrize(
    ('names', 'kind'),
    [
        ('cab', 'the same classes in another order'),
        ('abx', 'other classes'),
        ('abcd', 'other classes'),
    ],
)
def test_classes_of_the_same_name_keep_their_rows(layer, names, kind, monkeypatch):
    """The others start from random weights. No shape shows which they are."""
    model = tiny.build(BUILDERS[layer](classes=3))
    before = tiny.build(BUILDERS[layer](classes=len(names)))
    content = dict(content_of(before), meta=meta_of(tuple(names)))
    told = []
    monkeypatch.setattr(mmengine_loader, 'print_log', lambda message, logger: told.append(message))
    check_checkpoint(Running(model, 'abc'), content)
    lists = f'{kind}: ({", ".join(names)}), the config has (a, b, c), so {layer} starts from random'
    assert len(told) == 1 and lists in told[0]
    for key, value in before.state_dict().items():
        found = content['state_dict'][f'module.{key}']
        if not key.startswith(layer):
            assert torch.equal(found, value), key
            continue
        for row, name in enumerate('abc'):
            source = value[names.index(name)] if name in names else model.state_dict()[key][row]
            assert torch.equal(found[row], source)
    kept = [name for name in 'abc' if name in names]
    new = 'c' if 'c' not in names else 'none'
    assert told[0].endswith(f'but for the rows of {", ".join(kept)}; new are {new}')
    content = dict(content_of(before), meta=meta_of(tuple(names)))
    with pytest.raises(CheckpointError, match=rf'{kind}: .*give metainfo.classes'):
        check_checkpoint(Running(model, 'abc', resume=True), content)
    with pytest.raises(CheckpointError, match=kind):
        check_loaded(content, model, 'a.pth', classes=['a', 'b', 'c'])


@pytest.mark.parametrize(
    'meta', [{}, meta_of(()), meta_of(['a', 'b', 'c']), dict(iter=3, CLASSES=('a', 'b', 'c'))]
)
def test_the_same_or_unknown_names_keep_the_class_layer(layer, meta, monkeypatch):
    monkeypatch.delattr(mmengine_loader, 'print_log')  # nothing to say
    model, before = (tiny.build(BUILDERS[layer](classes=3)) for _ in range(2))
    content = dict(content_of(before), meta=meta)
    check_checkpoint(Running(model, 'abc'), content)
    check_checkpoint(Running(model, None), dict(content_of(before), meta=meta_of('xyz')))
    for key, value in before.state_dict().items():
        assert torch.equal(content['state_dict'][f'module.{key}'], value)


def test_other_names_without_a_known_class_layer_are_refused():
    class Head(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.bbox_head = torch.nn.ModuleDict(dict(heatmap=torch.nn.Linear(2, 3)))
            self.rpn_head = torch.nn.ModuleDict(dict(rpn_cls=torch.nn.Linear(2, 3)))

    content = dict(content_of(Head()), meta=meta_of('abx'))
    with pytest.raises(
        CheckpointError, match='other classes: .* the layer .* is not known, .* cannot start anew'
    ):
        check_loaded(content, Head(), 'a.pth', other_classes=True, classes=['a', 'b', 'c'])


def test_another_difference_is_an_error(layer):
    width = 24 if layer != 'head.fc' else None
    options = {'backbone.arch.embed_dims': 32} if width is None else dict(width=width)
    content = content_of(tiny.build(BUILDERS[layer](classes=3, **options)))
    with pytest.raises(CheckpointError, match='it does not fit the model: other shapes of'):
        check_loaded(content, tiny.build(BUILDERS[layer](classes=5)), 'a.pth', other_classes=True)


def test_another_kind_of_model_is_refused_with_its_parts(layer):
    other = next(name for name in BUILDERS if name != layer)
    model = tiny.build(BUILDERS[layer](classes=3))
    content = content_of(tiny.build(BUILDERS[other](classes=3)))
    has, wants = other.split('.')[0], layer.split('.')[0]
    parts = f"it has {has}.*, the model {wants}.*; .* init_cfg=.* prefix='backbone.'"
    with pytest.raises(CheckpointError, match=f"'a.pth': it is of another kind of model: {parts}"):
        check_loaded(content, model, 'a.pth', other_classes=True)


class Running(Runner):
    """As far as the hook looks."""

    param_schedulers = None

    def __init__(self, model, classes, *, training=True, resume=False):
        self.model, self._load_from, self._resume = model, 'a.pth', resume
        self.cfg = {}
        self._train_loop = Loop(classes) if training else None

    train_dataloader = property(lambda self: self._train_loop.dataloader)


class Loop(BaseLoop):
    def __init__(self, classes):
        data = type(
            'Data',
            (torch.utils.data.Dataset,),
            dict(metainfo=dict(classes=classes), __len__=lambda _: 1),
        )()
        self.dataloader = torch.utils.data.DataLoader(data)

    def run(self):
        raise NotImplementedError


def test_only_a_new_training_may_have_other_classes(layer):
    model, before = tiny.build(BUILDERS[layer](classes=5)), tiny.build(BUILDERS[layer](classes=3))
    check_checkpoint(Running(model, 'abcde'), content_of(before))
    for options in (dict(training=False), dict(resume=True)):
        content = dict(content_of(before), meta=dict(iter=3))
        with pytest.raises(CheckpointError, match='other shapes'):
            check_checkpoint(Running(model, 'abcde', **options), content)


def test_classes_that_a_strategy_did_not_show_are_compared(layer):
    """DeepSpeed loads a checkpoint without a call of the hooks; the message hub has its classes."""
    running = Running(tiny.build(BUILDERS[layer](classes=3)), 'cab', resume=True)
    info = dict(data_progress=dict(classes=['a', 'b', 'c']))
    running.message_hub = SimpleNamespace(runtime_info=info)
    with pytest.raises(CheckpointError, match='the same classes in another order'):
        TrainingCheckHook().before_train(running)
    info['data_progress']['classes'] = ['c', 'a', 'b']
    TrainingCheckHook().before_train(running)


def test_another_number_of_classes_is_refused_with_its_key(layer):
    model = tiny.build(BUILDERS[layer](classes=3))
    TrainingCheckHook().before_train(Running(model, 'abc'))
    TrainingCheckHook().before_train(Running(model, None))
    head = layer.split('.')[0]
    message = (
        rf'model.{head}.num_classes must be 6, the number of train_dataloader.*classes \(a, b, c,'
        r' d, e, ...\), got 3'
    )
    with pytest.raises(ValueError, match=message):
        TrainingCheckHook().before_train(Running(model, 'abcdef'))


def test_a_neck_must_take_the_channels_of_the_backbone(layer):
    config = BUILDERS[layer](classes=3)
    check_neck(tiny.build(config))
    if 'neck' not in config:
        return
    given = config['neck']['in_channels']
    for wrong in ([*given[:-1], given[-1] + 1], given[1:]):
        message = re.escape(
            f'must be {given}, the channels of the maps of model.backbone, got {wrong}'
        )
        other = tiny.build({**config, 'neck': {**config['neck'], 'in_channels': wrong}})
        with pytest.raises(ValueError, match=f'model.neck.in_channels {message}'):
            check_neck(other)
        with pytest.raises(ValueError, match=message):
            TrainingCheckHook().before_run(Running(other, 'abc'))


def test_a_list_of_necks_and_one_that_takes_the_coarsest_map_first():
    pytest.importorskip('mmdet')
    import mmdet.models  # noqa: F401

    fpn = dict(type='mmdet.FPN', in_channels=[24, 48], out_channels=8, num_outs=2)
    bfp = dict(type='mmdet.BFP', in_channels=8, num_levels=2, refine_level=1)
    yolo = dict(type='mmdet.YOLOV3Neck', num_scales=2, in_channels=[48, 24], out_channels=[24, 8])
    model = nn.Module()
    model.backbone = nn.Module()
    model.backbone.out_channels = (24, 48)
    for neck in ([fpn, bfp], [fpn], yolo):
        model.neck = MODELS.build(neck)
        check_neck(model, dict(neck=neck))
        check_neck(model)
        model.backbone.out_channels = (24, 64)
        wanted = r'\[64, 24\]' if neck is yolo else r'\[24, 64\]'
        with pytest.raises(ValueError, match=f'model.neck.in_channels must be {wanted}'):
            check_neck(model, dict(neck=neck))
        model.backbone.out_channels = (24, 48)


@pytest.mark.parametrize(
    ('head', 'wanted'),
    [
        (dict(in_channels=[24, 48, 64, 80], in_index=[0, 1, 2, 3]), None),
        (dict(in_channels=[24, 48, 64, 80]), None),
        (dict(in_channels=[24, 64], in_index=[0, 2], input_transform='resize_concat'), None),
        (dict(in_channels=64, in_index=2), None),
        (dict(in_channels=80), None),
        (dict(in_channels=[8], in_index=[4]), None),  # the head's own error
        (dict(kernel_generate_head=dict(in_channels=2048)), None),
        ([dict(in_channels=80), dict(in_channels=64, in_index=2)], None),
        (
            dict(in_channels=[256, 512, 1024, 2048]),
            r'must be \[24, 48, 64, 80\], .* got \[256',
        ),
        (dict(in_channels=[24, 48], in_index=[0, 2]), r'must be \[24, 64\], .* got \[24, 48\]'),
        (dict(in_channels=1024, in_index=2), r'must be 64 of \[24, 48, 64, 80\], .* got 1024'),
        (dict(in_channels=2048), r'must be 80 of \[24, 48, 64, 80\], .* got 2048'),
        ([dict(in_channels=80), dict(in_channels=2048)], 'must be 80 of .* got 2048'),
    ],
)
def test_a_head_without_a_neck_must_take_the_channels_of_the_backbone(head, wanted):
    model = nn.Module()
    model.backbone = nn.Module()
    model.backbone.out_channels = (24, 48, 64, 80)
    for name in ('decode_head', 'auxiliary_head', 'panoptic_head'):
        if wanted is None:
            check_neck(model, {name: head})
        else:
            with pytest.raises(ValueError, match=rf'model.{name}(\.1)?\.in_channels {wanted}'):
                check_neck(model, {name: head})


class Objects:
    """Images as mmdet's data sets hold them; a number is the flag of an object."""

    ann_file = 'train.json'

    def __init__(self, *images):
        self.images = images

    def __len__(self):
        return len(self.images)

    def get_data_info(self, index):
        return dict(instances=[dict(ignore_flag=flag) for flag in self.images[index]])


def test_a_detector_without_any_object_is_not_trained():
    """As with a class name that no annotation has: mmdet reads every image, and no object."""
    message = "none of the 2 images of 'train.json' has an object of the classes \\(racoon\\)"
    for nothing in (Objects([], []), Objects([], [1, 1])):
        with pytest.raises(ValueError, match=message):
            check_objects(nothing, ['racoon'])
    for data in (Objects([], [1, 0]), Objects(), [1, 2]):
        check_objects(data, ['racoon'])


@pytest.mark.parametrize(
    ('layer', 'rows', 'kept'),
    [
        ('bbox_head.retina_cls', lambda c: 3 * c, lambda c, old: [c, c + old, c + 2 * old]),
        ('roi_head.bbox_head.fc_cls', lambda c: c + 1, lambda c, old: [c]),
        ('roi_head.bbox_head.fc_reg', lambda c: 4 * c, lambda c, old: [*range(4 * c, 4 * c + 4)]),
        ('roi_head.bbox_head.fc_reg', lambda c: 4, None),
        ('roi_head.mask_head.conv_logits', lambda c: c, lambda c, old: [c]),
        ('decode_head.conv_seg', lambda c: 2 * c, None),
    ],
)
def test_rows_of_a_class(layer, rows, kept):
    """Of anchors, with a background, four offsets; not of a box for all classes."""
    theirs, ours = list('abcdefg'), list('xfb')
    stored = torch.arange(float(rows(7)))[:, None]
    own = -1 - torch.arange(float(rows(3)))[:, None]
    before = own.clone()
    found = keep_rows(f'{layer}.weight', own, stored, ours, theirs)
    assert found == ([] if kept is None else ['f', 'b'])
    if kept is None:
        assert torch.equal(own, before)
        return
    for index, name in enumerate(ours):
        places = kept(index, 3)
        source = before[places]
        if name in theirs:
            source = stored[kept(theirs.index(name), 7)]
        assert torch.equal(own[places], source)
    if 'fc_cls' in layer:
        assert own[-1] == stored[-1]


def test_class_tokens_of_a_segmenter(monkeypatch):
    """Its classes are vectors, (1, classes, C), and a norm over the classes."""
    pytest.importorskip('mmseg')
    head = dict(
        type='mmseg.SegmenterMaskTransformerHead',
        in_channels=16,
        channels=16,
        embed_dims=16,
        num_layers=1,
        num_heads=2,
        in_index=0,
    )

    def segmenter(classes):
        backbone = dict(type='CPVT', **ONE_BLOCK)
        model = tiny.build(
            dict(
                type='mmseg.EncoderDecoder',
                backbone=backbone,
                decode_head={**head, 'num_classes': classes},
            )
        )
        return tiny.randomise(model)

    model, before = segmenter(3), segmenter(4)
    content = dict(content_of(before), meta=meta_of(tuple('dbxa')))
    told = []
    monkeypatch.setattr(mmengine_loader, 'print_log', lambda message, logger: told.append(message))
    check_checkpoint(Running(model, 'abc'), content)
    assert 'so decode_head.cls_emb, decode_head.mask_norm starts from random' in told[0]
    assert told[0].endswith('but for the rows of a, b; new are c')
    for name, rows in (('cls_emb', lambda x: x[0]), ('mask_norm.weight', lambda x: x)):
        key = f'decode_head.{name}'
        found = rows(content['state_dict'][f'module.{key}'])
        stored, own = rows(before.state_dict()[key]), rows(model.state_dict()[key])
        assert torch.equal(found, torch.stack((stored[3], stored[1], own[2])))
