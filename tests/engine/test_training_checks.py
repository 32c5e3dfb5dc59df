"""Starting from a model of other classes, and heads whose number of classes is not that of the data."""

import logging

import pytest
import tiny
import torch
from mmengine.runner import BaseLoop, Runner
from mmengine.runner.checkpoint import _load_checkpoint_to_model
from tiny import ONE_BLOCK

from cpvt_backbones.checkpoints import CheckpointError
from cpvt_backbones.checkpoints.pretrained import check_loaded
from cpvt_backbones.engine.training_checks import TrainingCheckHook

COLUMN = dict(type='MultiScaleCPVT', **ONE_BLOCK)
BUILDERS = {
    'bbox_head.retina_cls': lambda **options: tiny.retinanet(dict(COLUMN, out_indices=(1, 2, 3)), **options),
    'decode_head.conv_seg': lambda **options: tiny.semantic_fpn(COLUMN, **options),
    'head.fc': lambda **options: tiny.image_classifier(
        dict(type='CPVT', with_cls_token=False, out_type='avg_featmap', **ONE_BLOCK), **options
    ),
}


@pytest.fixture(params=BUILDERS)
def layer(request):
    return request.param


def content_of(model):
    return dict(state_dict={f'module.{key}': value.clone() for key, value in model.state_dict().items()}, meta={})


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


def test_another_difference_is_an_error(layer):
    width = 24 if layer != 'head.fc' else None
    options = {'backbone.arch.embed_dims': 32} if width is None else dict(width=width)
    content = content_of(tiny.build(BUILDERS[layer](classes=3, **options)))
    with pytest.raises(CheckpointError, match='it does not fit the model: other shapes of'):
        check_loaded(content, tiny.build(BUILDERS[layer](classes=5)), 'a.pth', other_classes=True)


def test_another_kind_of_model_is_refused_with_its_parts(layer):
    other = next(name for name in BUILDERS if name != layer)
    model, content = tiny.build(BUILDERS[layer](classes=3)), content_of(tiny.build(BUILDERS[other](classes=3)))
    parts = f"it has {other.split('.')[0]}.*, the model {layer.split('.')[0]}.*; .* init_cfg=.* prefix='backbone.'"
    with pytest.raises(CheckpointError, match=f"'a.pth': it is of another kind of model: {parts}"):
        check_loaded(content, model, 'a.pth', other_classes=True)


class Running(Runner):
    """As far as the hook looks."""

    def __init__(self, model, classes, *, training=True, resume=False):
        self.model, self._load_from, self._resume = model, 'a.pth', resume
        self._train_loop = Loop(classes) if training else None

    train_dataloader = property(lambda self: self._train_loop.dataloader)


class Loop(BaseLoop):
    def __init__(self, classes):
        data = type('Data', (torch.utils.data.Dataset,), dict(metainfo=dict(classes=classes), __len__=lambda _: 1))()
        self.dataloader = torch.utils.data.DataLoader(data)

    def run(self):
        raise NotImplementedError


def test_only_a_new_training_may_have_other_classes(layer):
    model, before = tiny.build(BUILDERS[layer](classes=5)), tiny.build(BUILDERS[layer](classes=3))
    TrainingCheckHook().after_load_checkpoint(Running(model, 'abcde'), content_of(before))
    for options in (dict(training=False), dict(resume=True)):
        content = dict(content_of(before), meta=dict(iter=3))
        with pytest.raises(CheckpointError, match='other shapes'):
            TrainingCheckHook().after_load_checkpoint(Running(model, 'abcde', **options), content)


def test_another_number_of_classes_is_refused_with_its_key(layer):
    model = tiny.build(BUILDERS[layer](classes=3))
    TrainingCheckHook().before_train(Running(model, 'abc'))
    TrainingCheckHook().before_train(Running(model, None))
    head = layer.split('.')[0]
    message = (
        rf'model.{head}.num_classes must be 6, the number of train_dataloader.*classes \(a, b, c, d, e, ...\), got 3'
    )
    with pytest.raises(ValueError, match=message):
        TrainingCheckHook().before_train(Running(model, 'abcdef'))
