"""test.py: test-time augmentation, and checkpoints that do or do not fit."""

import json
import pickle

import numpy as np
import pytest
import torch
from mmengine.config import Config
from PIL import Image
from tiny_configs import ROOT, TASKS, lively_model, save, segmentation
from torch import nn

from cpvt_backbones.checkpoints import load_weights, loading

SHIPPED = {'mmdet': 'coco_detection', 'mmseg': 'ade20k'}
SMALL_SCALES = [dict(type='Resize', scale=scale, keep_ratio=True) for scale in ((60, 40), (90, 90))]
AS_IT_IS = [dict(type='Resize', scale_factor=1.0, keep_ratio=True)]


def tta_config(config, scope, folder, *, scales, flips):
    """A demo config with the tta_pipeline of this package's base configs, at scales that fit tiny
    images.
    """
    pipeline = Config.fromfile(ROOT / f'configs/_base_/datasets/{SHIPPED[scope]}.py').tta_pipeline
    steps = pipeline[-1].transforms
    steps[0] = scales
    flip = next(i for i, step in enumerate(steps) if step[0]['type'] == 'RandomFlip')
    steps[flip] = [step for step in steps[flip] if step['prob'] in flips]
    if scales is AS_IT_IS:
        steps[:] = [step for step in steps if step[0]['type'] != 'ResizeToMultiple']
    for step in steps:
        step[0].pop('reduce_zero_label', None)
    path = folder / f'tta_{len(scales)}_{len(flips)}.py'
    path.write_text(f'_base_ = {str(config)!r}\n{Config(dict(tta_pipeline=pipeline)).pretty_text}')
    return path


def metrics(work_dir):
    (path,) = work_dir.glob('*/*.json')
    return json.loads(path.read_text().splitlines()[-1])


@pytest.fixture
def trained(request, scenes, tmp_path):
    """Scope, config, its options, and a checkpoint of it."""
    scope = getattr(request, 'param', 'mmseg')
    pytest.importorskip(scope)
    config, options = TASKS[scope](scenes, tmp_path)
    return scope, config, options, save(lively_model(config, options), tmp_path / 'model.pth')


both_scopes = pytest.mark.parametrize('trained', ['mmdet', 'mmseg'], indirect=True)


@both_scopes
def test_tta_gives_metrics(trained, scenes, tmp_path, call):
    """A segmentor that predicts background everywhere has the background's share of the pixels as
    accuracy.
    """
    scope, config, options, checkpoint = trained
    if scope == 'mmseg':
        content = torch.load(checkpoint)
        content['state_dict']['decode_head.conv_seg.bias'][0] = 1e3
        torch.save(content, checkpoint)
    config = tta_config(config, scope, tmp_path, scales=SMALL_SCALES, flips=(0.0, 1.0))
    work_dir = tmp_path / 'work'
    call('test', config, checkpoint, '--tta', '--work-dir', work_dir, '--cfg-options', *options)
    found = metrics(work_dir)
    if scope == 'mmseg':
        labels = [
            np.asarray(Image.open(path)) for path in (scenes / 'heldout_37x61' / 'labels').iterdir()
        ]
        background = 100 * np.mean([label == 0 for label in labels])
        assert 50 < background < 100
        assert found['aAcc'] == pytest.approx(background, abs=0.0051)
    else:
        assert 0 <= found['coco/bbox_mAP_50'] <= 1


@pytest.mark.parametrize('kind', ['the same classes in another order', 'other classes'])
def test_other_classes_are_refused(trained, kind, tmp_path, call, refused):
    """They have the right shapes, and would be scored as the classes of the test set."""
    _, config, options, checkpoint = trained
    cfg = Config.fromfile(str(config))
    classes = list(cfg.test_dataloader.dataset.metainfo.classes)
    others = [*classes[1:], classes[0]] if 'order' in kind else ['x', *classes[1:]]
    content = torch.load(checkpoint)
    work = ['--work-dir', tmp_path / 'work']
    arguments = ['test', config, checkpoint, *work, '--cfg-options', *options]
    torch.save(dict(content, meta=dict(dataset_meta=dict(classes=others))), checkpoint)
    assert f'it has {kind}: (' in refused(*arguments)
    torch.save(dict(content, meta=dict(dataset_meta=dict(classes=tuple(classes)))), checkpoint)
    call(*arguments)


def answers(scope, path):
    """Predictions of each image, in order."""
    if scope == 'mmseg':
        return [np.asarray(Image.open(mask)) for mask in sorted(path.iterdir())]
    found = []
    for image in pickle.loads(path.read_bytes()):
        instances = image['pred_instances']
        order = instances['scores'].argsort(descending=True, stable=True)
        found.append(np.column_stack([instances['scores'][order], instances['bboxes'][order]]))
    return found


def test_weights_fit_through_every_wrapper(tmp_path, monkeypatch):
    """With several GPUs and test-time augmentation a model is wrapped twice."""

    class Wrapper(nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

    monkeypatch.setattr(loading, 'is_model_wrapper', lambda model: isinstance(model, Wrapper))
    model = nn.Linear(3, 2)
    path = str(save(nn.Linear(3, 2), tmp_path / 'linear.pth'))
    load_weights(Wrapper(Wrapper(model)), path)
    assert torch.equal(model.weight, torch.load(path)['state_dict']['weight'])
    with pytest.raises(ValueError, match='does not fit'):
        load_weights(Wrapper(Wrapper(nn.Linear(4, 2))), path)


@both_scopes
def test_tta_without_any_augmentation_changes_nothing(trained, tmp_path, call):
    """The wrapped model has the checkpoint's weights too; with flips the predictions do change."""
    scope, config, options, checkpoint = trained
    same = tta_config(config, scope, tmp_path, scales=AS_IT_IS, flips=(0.0,))
    flipped = tta_config(config, scope, tmp_path, scales=AS_IT_IS, flips=(0.0, 1.0))
    if scope == 'mmdet':  # as the model's own test_cfg has it
        options = [*options, 'tta_model.tta_cfg.max_per_img=400']
    found = []
    for index, arguments in enumerate(([config], [same, '--tta'], [flipped, '--tta'])):
        out = tmp_path / (f'masks_{index}' if scope == 'mmseg' else f'{index}.pkl')
        path, *flags = arguments
        flags += ['--out', out, '--work-dir', tmp_path / f'work_{index}']
        call('test', path, checkpoint, *flags, '--cfg-options', *options)
        found.append(answers(scope, out))
    plain, wanted_same, other = found
    assert len(plain) == 2 and all(len(answer) and answer.std() > 0 for answer in plain)
    for left, right in zip(plain, wanted_same, strict=True):
        assert left.shape == right.shape and np.abs(left.astype(float) - right).max() <= 1e-3
    assert any(
        left.shape != right.shape or np.abs(left.astype(float) - right).max() > 1e-3
        for left, right in zip(plain, other, strict=True)
    )


def test_tta_needs_a_pipeline(trained, tmp_path, refused):
    _, config, options, checkpoint = trained
    work = ['--work-dir', tmp_path / 'work']
    line = refused('test', config, checkpoint, '--tta', *work, '--cfg-options', *options)
    assert line == 'error: tta: the config has no tta_pipeline'


@pytest.mark.parametrize(
    ('fault', 'tta'),
    [('lacks', False), ('shape', False), ('empty', False), ('lacks', True)],
    ids=str,
)
def test_a_checkpoint_that_does_not_fit(trained, fault, tta, tmp_path, refused):
    scope, config, options, checkpoint = trained
    content = torch.load(checkpoint)
    state = content['state_dict']
    key = 'backbone.blocks.0.mlp.fc1.weight'
    if fault == 'lacks':
        del state[key]
        message = f'it lacks 1 of {len(state) + 1} weights: {key}'
    elif fault == 'shape':
        state[key] = state[key][:, :-1].clone()
        message = f'weights have other shapes ((64, 15), not (64, 16)): {key}'
    else:
        message = 'is empty'
        state.clear()
    torch.save(content, checkpoint)
    flags = ['--work-dir', tmp_path / 'work']
    if tta:
        config = tta_config(config, scope, tmp_path, scales=AS_IT_IS, flips=(0.0,))
        flags.append('--tta')
    line = refused('test', config, checkpoint, *flags, '--cfg-options', *options)
    assert f"checkpoint '{checkpoint}'" in line and message in line
    assert not list((tmp_path / 'work').glob('*/*.json'))


def test_checkpoints_that_fit(scenes, tmp_path, call):
    """Weights under DistributedDataParallel's prefix, alone in their file, or beside others."""
    pytest.importorskip('mmseg')
    config, options = segmentation(scenes, tmp_path)
    state = lively_model(config, options).state_dict()
    forms = dict(
        plain=dict(state_dict=state),
        wrapped=dict(state_dict={f'module.{key}': value for key, value in state.items()}),
        bare=dict(state),
        with_more=dict(state_dict={**state, 'auxiliary_head.conv_seg.weight': torch.ones(1)}),
    )
    found = {}
    for form, content in forms.items():
        torch.save(content, tmp_path / f'{form}.pth')
        arguments = [tmp_path / f'{form}.pth', '--work-dir', tmp_path / form]
        call('test', config, *arguments, '--cfg-options', *options)
        found[form] = {
            key: value for key, value in metrics(tmp_path / form).items() if 'time' not in key
        }
    assert found['plain']['mIoU'] > 0
    assert all(values == found['plain'] for values in found.values())
