"""A checkpoint that does not fit the training is refused in one line, before it is loaded."""

from copy import deepcopy

import pytest
import torch
from short_runs import Regression, run
from torch import nn

from cpvt_backbones.checkpoints import CheckpointError
from cpvt_backbones.engine import ResumableFlexibleRunner, ResumableRunner, WarmupEMAHook
from cpvt_backbones.engine.training_checks import check_checkpoint

ITERATIONS = 10


@pytest.fixture(scope='module', params=[ResumableRunner, ResumableFlexibleRunner])
def stopped(request, tmp_path_factory):
    """A training of ten iterations, between two updates of the weights, and its checkpoint."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp('stopped')
    model = Regression(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Linear(2, 1)))
    model.unused = nn.Linear(2, 2)
    runner = run(
        folder,
        iterations=ITERATIONS + 1,
        kind=request.param,
        model=model,
        optimizer=dict(type='AdamW', lr=0.1, weight_decay=0.01),
        optim_wrapper=dict(
            accumulative_counts=3,
            paramwise_cfg=dict(norm_decay_mult=0.0, custom_keys={'layer': dict(lr_mult=0.5)}),
        ),
        schedule=[
            dict(type='CosineAnnealingLR', by_epoch=False, T_max=20, eta_min=1e-4),
            dict(type='LinearLR', start_factor=0.1, by_epoch=False, end=4),
        ],
        hooks=[dict(type='WarmupEMAHook')],
    )
    runner._resume, runner._load_from = True, 'edited one.pth'
    return torch.load(folder / f'iter_{ITERATIONS}.pth', weights_only=False), runner


def put(*path, value):
    """A change that puts a value at a path in a checkpoint."""

    def change(content):
        for key in path[:-1]:
            content = content[key]
        content[path[-1]] = value(content[path[-1]]) if callable(value) else value

    return change


def drop(*path):
    """A change that takes the entry at a path away."""

    def change(content):
        for key in path[:-1]:
            content = content[key]
        del content[path[-1]]

    return change


NAN = float('nan')
GROUP, STATE = ('optimizer', 'param_groups', 0), ('optimizer', 'state', 0)
AVERAGE, WEIGHT = 'ema_state_dict', 'layer.0.weight'


def of_nan(value):
    return torch.full_like(value, NAN)


def cut(value):
    return value[:-1]


# Change, words of the message.
MISFITS = [
    (drop('meta'), 'no training to resume'),
    (drop('meta', 'iter'), 'no training to resume'),
    (drop('state_dict', WEIGHT), f'state_dict has no {WEIGHT}'),
    (put('state_dict', WEIGHT, value=cut), 'other shapes of'),
    (put('state_dict', WEIGHT, value=of_nan), 'NaN'),
    (drop(AVERAGE), 'no ema_state_dict'),
    (drop(AVERAGE, f'module.{WEIGHT}'), f'ema_state_dict has no module.{WEIGHT}'),
    (put(AVERAGE, f'module.{WEIGHT}', value=cut), rf'module.{WEIGHT} must have the shape \(2, 3\)'),
    (put(AVERAGE, f'module.{WEIGHT}', value=of_nan), f'module.{WEIGHT} is NaN'),
    (drop('optimizer'), 'no optimizer state'),
    (put('optimizer', 'param_groups', value=cut), 'has . parameter groups, AdamW here'),
    (put(*GROUP, 'params', value=cut), 'group 0 of its optimizer has 0 parameters, here 1'),
    (drop(*GROUP, 'betas'), 'its optimizer is not AdamW: it has no betas'),
]


@pytest.mark.parametrize('number', range(len(MISFITS)))
def test_a_checkpoint_that_does_not_fit_is_refused_by_its_entry(number, stopped):
    change, match = MISFITS[number]
    content = deepcopy(stopped[0])
    change(content)
    with pytest.raises(CheckpointError, match=match) as caught:
        check_checkpoint(stopped[1], content)
    assert 'edited one.pth' in str(caught.value) and '\n' not in str(caught.value)


SAME = {
    'nothing': lambda content: None,
    'no seed': put('meta', 'seed', value=None),
    'a parameter without gradients': drop(*STATE),
    'switches of another version of torch': drop(*GROUP, 'fused'),
    'another schedule': drop('param_schedulers', 0),
    'more in meta': put('meta', 'experiment_name', value=7),
}


@pytest.mark.parametrize('name', SAME)
def test_what_a_resume_can_go_on_from_is_accepted(name, stopped):
    content = deepcopy(stopped[0])
    SAME[name](content)
    check_checkpoint(stopped[1], content)


def test_an_average_without_its_hook_is_refused(stopped, monkeypatch):
    content, runner = stopped
    hooks = [hook for hook in runner.hooks if not isinstance(hook, WarmupEMAHook)]
    monkeypatch.setattr(runner, '_hooks', hooks)
    with pytest.raises(CheckpointError, match='this training has no EMA hook'):
        check_checkpoint(runner, deepcopy(content))


@pytest.mark.parametrize('kind', ['SGD', 'RMSprop', 'Adagrad', 'Adadelta', 'NAdam', 'Adafactor'])
def test_another_optimizer_is_refused_by_an_option_that_it_lacks(kind, stopped):
    content, runner = stopped
    model = nn.Linear(2, 2)
    other = getattr(torch.optim, kind)(model.parameters(), lr=0.1)
    changed = deepcopy(content)
    for group in changed['optimizer']['param_groups']:
        for key in ('betas', 'eps', 'weight_decay', 'lr'):
            group.pop(key)
        group.update({key: value for key, value in other.defaults.items()})
    if kind == 'NAdam':  # it has the options of AdamW, and more
        check_checkpoint(runner, changed)
        return
    with pytest.raises(CheckpointError, match='its optimizer is not AdamW: it has no betas'):
        check_checkpoint(runner, changed)
