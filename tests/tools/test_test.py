"""test.py: test-time augmentation, and checkpoints that do or do not fit."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.runner import Runner
from PIL import Image
from tiny import only
from tiny_configs import ROOT, TASKS, lively_model, save
from torch import nn

from cpvt_backbones.analysis import worst_images
from cpvt_backbones.checkpoints import load_weights, whole_model

SHIPPED = {'mmdet': 'coco_detection', 'mmseg': 'ade20k'}
SMALL_SCALES = [dict(type='Resize', scale=scale, keep_ratio=True) for scale in ((60, 40), (90, 90))]
AS_IT_IS = [dict(type='Resize', scale_factor=1.0, keep_ratio=True)]


class Trained:
    """A tiny config and a checkpoint of it, and test.py on them."""

    def __init__(self, scope, scenes, folder, call, refused):
        self.scope, self.folder, self.work = scope, folder, folder / 'work'
        self.config, self.options = TASKS[scope](scenes, folder)
        self.checkpoint = save(lively_model(self.config, self.options), folder / 'model.pth')
        self.call, self.refused = call, refused

    def arguments(self, *flags, config=None):
        files = ['test', config or self.config, self.checkpoint]
        return [*files, '--work-dir', self.work, *flags, '--cfg-options', *self.options]

    def content(self):
        return torch.load(self.checkpoint)

    def tta_config(self, *, scales, flips):
        """The config with the tta_pipeline of this package's base configs, at other scales."""
        base = ROOT / f'configs/_base_/datasets/{SHIPPED[self.scope]}.py'
        pipeline = Config.fromfile(base).tta_pipeline
        steps = pipeline[-1].transforms
        steps[0] = scales
        flip = next(i for i, step in enumerate(steps) if step[0]['type'] == 'RandomFlip')
        steps[flip] = [step for step in steps[flip] if step['prob'] in flips]
        if scales is AS_IT_IS:
            steps[:] = [step for step in steps if step[0]['type'] != 'ResizeToMultiple']
        for step in steps:
            step[0].pop('reduce_zero_label', None)
        path = self.folder / f'tta_{len(scales)}_{len(flips)}.py'
        text = Config(dict(tta_pipeline=pipeline)).pretty_text
        path.write_text(f'_base_ = {str(self.config)!r}\n{text}')
        return path

    def answers(self, *flags, config=None):
        """Predictions of each image, in order."""
        name = (config or self.config).stem
        out = self.folder / (name if self.scope == 'mmseg' else f'{name}.pkl')
        self.call(*self.arguments(*flags, '--out', out, config=config))
        if self.scope == 'mmseg':
            return [np.asarray(Image.open(mask)) for mask in sorted(out.iterdir())]
        found = []
        for image in pickle.loads(out.read_bytes()):
            instances = image['pred_instances']
            order = instances['scores'].argsort(descending=True, stable=True)
            columns = instances['scores'][order], instances['bboxes'][order]
            found.append(np.column_stack(columns))
        return found


@pytest.fixture
def trained(request, scenes, tmp_path, call, refused):
    scope = getattr(request, 'param', 'mmseg')
    pytest.importorskip(scope)
    return Trained(scope, scenes, tmp_path, call, refused)


both_scopes = pytest.mark.parametrize('trained', ['mmdet', 'mmseg'], indirect=True)


@both_scopes
def test_tta_gives_metrics(trained, scenes):
    """A segmentor that predicts background everywhere has the background's share of the pixels as
    accuracy.
    """
    if trained.scope == 'mmseg':
        content = trained.content()
        content['state_dict']['decode_head.conv_seg.bias'][0] = 1e3
        torch.save(content, trained.checkpoint)
    config = trained.tta_config(scales=SMALL_SCALES, flips=(0.0, 1.0))
    trained.call(*trained.arguments('--tta', config=config))
    (log,) = trained.work.glob('*/*.json')
    found = json.loads(log.read_text().splitlines()[-1])
    if trained.scope == 'mmdet':
        assert 0 <= found['coco/bbox_mAP_50'] <= 1
        return
    files = (scenes / 'heldout_37x61' / 'labels').iterdir()
    background = 100 * np.mean([np.asarray(Image.open(path)) == 0 for path in files])
    assert 50 < background < 100
    assert found['aAcc'] == pytest.approx(background, abs=0.0051)


def far(left, right):
    return left.shape != right.shape or np.abs(left.astype(float) - right).max() > 1e-3


@pytest.mark.parametrize('trained', only('mmseg', of=['mmdet', 'mmseg']), indirect=True)
def test_tta_without_any_augmentation_changes_nothing(trained):
    """The wrapped model has the checkpoint's weights too; with flips the predictions do change."""
    same = trained.tta_config(scales=AS_IT_IS, flips=(0.0,))
    flipped = trained.tta_config(scales=AS_IT_IS, flips=(0.0, 1.0))
    if trained.scope == 'mmdet':  # as the model's own test_cfg has it
        trained.options.append('tta_model.tta_cfg.max_per_img=400')
    plain = trained.answers()
    assert len(plain) == 2 and all(len(answer) and answer.std() > 0 for answer in plain)
    assert not any(map(far, plain, trained.answers('--tta', config=same)))
    assert any(map(far, plain, trained.answers('--tta', config=flipped)))


def test_tta_needs_a_pipeline(trained):
    line = trained.refused(*trained.arguments('--tta'))
    assert line == 'error: --tta: the config has no tta_pipeline'


@pytest.mark.parametrize('trained', ['mmdet'], indirect=True)
@pytest.mark.parametrize(('score_thr', 'nothing'), [(0.0, False), (1.1, True)])
def test_a_detector_without_any_box_says_so(trained, score_thr, nothing):
    trained.options.append(f'model.test_cfg.score_thr={score_thr}')
    trained.call(*trained.arguments())
    (log,) = trained.work.glob('*/*.log')
    assert ('the model has no box in any image' in log.read_text()) == nothing


@pytest.mark.parametrize('trained', ['mmdet', 'mmseg', 'mmpretrain'], indirect=True)
def test_worst_images_are_drawn_beside_their_labels(trained, tmp_path):
    file = tmp_path / 'new' / 'worst.jpg'
    trained.call(*trained.arguments('--worst', file))
    sheet = Image.open(file)
    images = 4 if trained.scope == 'mmpretrain' else 2
    assert sheet.format == 'JPEG' and sheet.width > 1900  # two images a row, twice each
    assert sheet.height > images / 2 * 250


def test_worst_images_are_a_jpeg(trained):
    line = trained.refused(*trained.arguments('--worst', 'worst.png'))
    assert line == "error: --worst: must be FILE.jpg, got 'worst.png'"


@pytest.mark.parametrize('trained', ['mmpretrain'], indirect=True)
@pytest.mark.parametrize(
    ('name', 'words'),
    [
        ('/proc/x/a.jpg', 'cannot be written'),
        ('file/a.jpg', 'cannot be written'),
        ('folder.jpg', 'cannot be written: it is a folder'),
        ('images/dark/a.jpg', 'whose files are the images of train_dataloader'),
    ],
)
def test_worst_images_that_cannot_be_written_are_refused_before_the_test(
    trained, name, words, monkeypatch
):
    monkeypatch.setattr(Runner, 'test', lambda _: pytest.fail('the test has begun'))
    (trained.folder / 'file').touch()
    (trained.folder / 'folder.jpg').mkdir()
    before = sorted(trained.folder.rglob('*'))
    line = trained.refused(*trained.arguments('--worst', trained.folder / name))
    assert line.startswith('error: worst: ') and words in line
    assert sorted(trained.folder.rglob('*')) == before


@pytest.mark.parametrize('trained', ['mmpretrain'], indirect=True)
def test_worst_images_never_end_a_test(trained, tmp_path, monkeypatch, capsys):
    """The disk may be full when the metrics are there."""

    def fail(_):
        raise OSError(28, 'No space left on device')

    monkeypatch.setattr(worst_images, 'contact_sheet', fail)
    file = tmp_path / 'worst.jpg'
    trained.call(*trained.arguments('--worst', file))
    printed = capsys.readouterr()
    lines = [line for line in (printed.out + printed.err).splitlines() if str(file) in line]
    assert len([line for line in lines if 'was not written: OSError: ' in line]) == 1
    assert 'accuracy/top1' in printed.out + printed.err and not file.exists()


# -- checkpoints
# --------------------------------------------------------------------------------------------------


def test_classes_in_another_order_are_refused(trained):
    """They have the right shapes, and would be scored as the classes of the test set."""
    cfg = Config.fromfile(str(trained.config))
    first, *others = cfg.test_dataloader.dataset.metainfo.classes
    for names in ((*others, first), (first, *others)):
        meta = dict(dataset_meta=dict(classes=names))
        torch.save(trained.content() | dict(meta=meta), trained.checkpoint)
        if names[0] == first:
            trained.call(*trained.arguments())
        else:
            line = trained.refused(*trained.arguments())
            assert 'it has the same classes in another order: (' in line


@pytest.mark.parametrize('trained', ['mmdet'], indirect=True)
def test_a_json_with_another_order_of_categories_is_refused(trained, tmp_path):
    """Its boxes would be scored as those of other classes."""
    cfg = Config.fromfile(str(trained.config))
    data = [option for option in trained.options if 'test_evaluator.ann_file=' in option]
    (truth,) = (option.partition('=')[2] for option in data)
    content = json.loads(Path(truth).read_text())
    content['categories'].reverse()
    turned = tmp_path / 'turned.json'
    turned.write_text(json.dumps(content))
    trained.options += [f'{key}.ann_file={turned}' for key in ('test_evaluator',)]
    names = cfg.test_dataloader.dataset.metainfo.classes
    order = f'number them as ({", ".join(reversed(names))})'
    assert f'test_evaluator: metainfo.classes is ({", ".join(names)})' in (
        line := trained.refused(*trained.arguments())
    )
    assert order in line
    trained.options.append(f'test_dataloader.dataset.ann_file={turned}')
    line = trained.refused(*trained.arguments())
    assert f'the categories of {str(turned)!r} {order}' in line


FC1 = 'backbone.blocks.0.mlp.fc1.weight'


@pytest.mark.parametrize(
    ('fault', 'tta', 'message'),
    [
        ('lacks', False, f'it lacks 1 of {{}} weights: {FC1}'),
        ('lacks', True, f'it lacks 1 of {{}} weights: {FC1}'),
        ('shape', False, f'weights have other shapes ((64, 15), not (64, 16)): {FC1}'),
        ('empty', False, 'is empty'),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused(trained, fault, tta, message):
    content = trained.content()
    state = content['state_dict']
    message = message.format(len(state))
    if fault == 'lacks':
        del state[FC1]
    elif fault == 'shape':
        state[FC1] = state[FC1][:, :-1].clone()
    else:
        state.clear()
    torch.save(content, trained.checkpoint)
    config = trained.tta_config(scales=AS_IT_IS, flips=(0.0,)) if tta else None
    line = trained.refused(*trained.arguments(*['--tta'] * tta, config=config))
    assert f"checkpoint '{trained.checkpoint}'" in line and message in line
    assert not list(trained.work.glob('*/*.json'))


class Wrapper(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module


@pytest.mark.parametrize('form', ['plain', 'wrapped', 'bare', 'with more'])
def test_weights_fit_through_every_wrapper(form, tmp_path, monkeypatch):
    """With several GPUs and test-time augmentation a model is wrapped twice."""
    monkeypatch.setattr(whole_model, 'is_model_wrapper', lambda model: isinstance(model, Wrapper))
    model, state = nn.Linear(3, 2), nn.Linear(3, 2).state_dict()
    contents = {
        'plain': dict(state_dict=state),
        'wrapped': dict(state_dict={f'module.{key}': value for key, value in state.items()}),
        'bare': dict(state),
        'with more': dict(state_dict={**state, 'auxiliary_head.weight': torch.ones(1)}),
    }
    path = str(tmp_path / 'linear.pth')
    torch.save(contents[form], path)
    load_weights(Wrapper(Wrapper(model)), path)
    assert torch.equal(model.weight, state['weight']) and torch.equal(model.bias, state['bias'])
    with pytest.raises(ValueError, match='does not fit'):
        load_weights(Wrapper(Wrapper(nn.Linear(4, 2))), path)
