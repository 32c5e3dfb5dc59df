"""Edits of a checkpoint: each is refused in one line that names the entry, before it is loaded."""

from copy import deepcopy

import pytest
import torch
from mmengine.model import BaseModel
from mmengine.runner import Runner
from torch import nn

from cpvt_backbones.checkpoints import CheckpointError
from cpvt_backbones.engine import DurableCheckpointHook
from cpvt_backbones.engine.training_checks import check_checkpoint

ITERATIONS, BATCH, ACCUMULATED = 10, 2, 3


class Model(BaseModel):
    def __init__(self):
        super().__init__()
        self.head = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))
        self.unused = nn.Linear(2, 2)

    def forward(self, inputs, mode):
        loss = self.head(torch.stack(inputs)).square().mean()
        return dict(loss=loss) if mode == 'loss' else [loss]


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 2 * BATCH

    def __getitem__(self, index):
        return dict(inputs=torch.full((3,), float(index)))


@pytest.fixture(scope='module')
def stopped(tmp_path_factory):
    """A training of ten iterations, between two updates of the weights, and its checkpoint."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp('stopped')
    schedule = dict(type='CosineAnnealingLR', by_epoch=False, T_max=20, eta_min=1e-4)
    collate = dict(type='pseudo_collate')
    sampler = dict(type='InfiniteSampler', shuffle=True)
    runner = Runner(
        Model(),
        str(folder),
        train_dataloader=dict(
            batch_size=BATCH, dataset=Data(), sampler=sampler, collate_fn=collate
        ),
        train_cfg=dict(by_epoch=False, max_iters=ITERATIONS + 1),
        optim_wrapper=dict(
            optimizer=dict(type='AdamW', lr=0.1, weight_decay=0.01),
            accumulative_counts=ACCUMULATED,
            paramwise_cfg=dict(norm_decay_mult=0.0, custom_keys={'head': dict(lr_mult=0.5)}),
        ),
        param_scheduler=[schedule, dict(type='LinearLR', start_factor=0.1, by_epoch=False, end=4)],
        default_hooks=dict(checkpoint=DurableCheckpointHook(interval=ITERATIONS, by_epoch=False)),
        custom_hooks=[dict(type='WarmupEMAHook')],
        randomness=dict(seed=0),
        default_scope='mmengine',
        log_level='WARNING',
    )
    runner.train()
    runner._resume, runner._load_from = True, 'edited one.pth'
    runner.message_hub.update_info('best_score', 0.5)
    content = torch.load(folder / f'iter_{ITERATIONS}.pth', weights_only=False)
    content['message_hub']['runtime_info']['best_score'] = 0.5
    return content, runner


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


NAN, HUGE = float('nan'), 10**400
META, HUB = ('meta',), ('message_hub',)
INFO, SCALARS = (*HUB, 'runtime_info'), (*HUB, 'log_scalars')
GROUP, STATE = ('optimizer', 'param_groups', 0), ('optimizer', 'state', 0)
SCHEDULE = ('param_schedulers', 0)
RANDOM, AVERAGE = (*INFO, 'random_states', 0), ('ema_state_dict',)
WEIGHT = 'head.0.weight'
FIRST = (*INFO, 'accumulated_gradients', 0, WEIGHT)


def of_nan(value):
    return torch.full_like(value, NAN)


def cut(value):
    return value[:-1]


def whole(value):
    return value.long()


def unequal(history):
    history = deepcopy(history)
    history._count_history = history._count_history[:-1]
    return history


def with_python(number):
    return lambda state: (state[0], (number, *state[1][1:]), state[2])


def with_position(number):
    return lambda state: (*state[:2], number, *state[3:])


# Path, value, words of the message.
EDITS = [
    # the counts
    (drop('meta'), 'no training to resume'),
    (put('meta', value=[]), 'no training to resume'),
    (drop(*META, 'iter'), 'no training to resume'),
    (drop(*META, 'epoch'), 'meta.epoch must be an integer of at least 0, got None'),
    (put(*META, 'epoch', value=True), 'meta.epoch'),
    (put(*META, 'iter', value=-3), 'meta.iter'),
    (put(*META, 'iter', value=10**9), 'of iter 1000000000, beyond train_cfg.max_iters=11'),
    (put(*META, 'iter', value=HUGE), 'meta.iter'),
    (put(*META, 'seed', value='x'), 'meta.seed must be an integer in'),
    (put(*META, 'seed', value=2**33), 'meta.seed'),
    # the weights
    (drop('state_dict'), 'edited one.pth'),
    (put('state_dict', value={}), 'edited one.pth'),
    (drop('state_dict', WEIGHT), f'state_dict has no {WEIGHT}'),
    (put('state_dict', WEIGHT, value=cut), 'other shapes of'),
    (put('state_dict', WEIGHT, value=of_nan), 'NaN'),
    (put('state_dict', WEIGHT, value=whole), 'int64'),
    (put('state_dict', WEIGHT, value=3), WEIGHT),
    # their average
    (drop('ema_state_dict'), 'no ema_state_dict'),
    (put('ema_state_dict', value=[1]), 'ema_state_dict must be a dict'),
    (drop(*AVERAGE, f'module.{WEIGHT}'), f'ema_state_dict has no module.{WEIGHT}'),
    (drop(*AVERAGE, 'steps'), 'ema_state_dict.steps'),
    (put(*AVERAGE, 'steps', value=torch.tensor(2**62)), 'ema_state_dict.steps'),
    (put(*AVERAGE, 'steps', value=torch.tensor([1, 2])), 'ema_state_dict.steps'),
    (put(*AVERAGE, f'module.{WEIGHT}', value=cut), rf'module.{WEIGHT} has the shape \(1, 3\)'),
    (put(*AVERAGE, f'module.{WEIGHT}', value=of_nan), f'module.{WEIGHT} is NaN'),
    (put(*AVERAGE, f'module.{WEIGHT}', value=whole), f'module.{WEIGHT} is of type torch.int64'),
    (put(*AVERAGE, f'module.{WEIGHT}', value='x'), f'module.{WEIGHT} must be a tensor'),
    # the message hub
    (drop('message_hub'), 'message_hub must be a dict'),
    (put('message_hub', value=[1]), 'message_hub must be a dict'),
    (drop(*HUB, 'runtime_info'), 'message_hub must be a dict'),
    (put(*HUB, 'resumed_keys', value='x'), 'message_hub must be a dict'),
    (put(*HUB, 'resumed_keys', 'iter', value='x'), "resumed_keys.iter must be a bool, got 'x'"),
    (put(*HUB, 'resumed_keys', 7, value=True), 'message_hub.resumed_keys has the key 7'),
    (put(*INFO, 3, value=1), 'message_hub.runtime_info has the key 3'),
    (put(*SCALARS, 3, value=1), 'message_hub.log_scalars has the key 3'),
    (put(*SCALARS, 'train/loss', value='x'), 'log_scalars.train/loss must be the history'),
    (put(*SCALARS, 'train/loss', value=unequal), 'log_scalars.train/loss must be the history'),
    (put(*INFO, 'best_score', value=NAN), 'best_score must be a number'),
    (put(*INFO, 'best_score_mAP', value=None), 'best_score_mAP must be a number'),
    # the data
    (put(*INFO, 'data_progress', value='x'), 'data_progress must hold the counts'),
    (put(*INFO, 'data_progress', 'samples', value=10 * 2**20), 'data_progress must hold'),
    (put(*INFO, 'data_progress', 'batch', value=0), 'data_progress must hold'),
    (put(*INFO, 'data_progress', value=dict(samples=9, batch=2**40)), 'data_progress must hold'),
    # random numbers
    (put(*INFO, 'random_states', value='x'), 'the random states are damaged .*a list is wanted'),
    (put(*INFO, 'random_states', value=['x']), 'the random states are damaged'),
    (drop(*RANDOM, 'torch'), "the random states are damaged .*'torch'"),
    (put(*RANDOM, 'torch', value=cut), 'the random states are damaged'),
    (put(*RANDOM, 'python', value=with_python(2**200)), 'the random states are damaged'),
    (put(*RANDOM, 'numpy', value=with_position(10**6)), 'the position 1000000 of NumPy'),
    (put(*RANDOM, 'cuda', value=None), 'the random states are damaged'),
    # gradients that are being accumulated
    (put(*INFO, 'accumulated_gradients', value='x'), 'accumulated_gradients must be a list'),
    (put(*INFO, 'accumulated_gradients', 0, 'x', value=1), "an entry 'x' of no parameter"),
    (put(*FIRST, value=cut), f'gradient of {WEIGHT} has the shape'),
    (put(*FIRST, value=of_nan), f'gradient of {WEIGHT} is NaN'),
    (put(*FIRST, value='x'), f'gradient of {WEIGHT} must be a tensor'),
    # the optimizer
    (drop('optimizer'), 'no optimizer state'),
    (put('optimizer', value=[]), 'optimizer must be a dict'),
    (put('optimizer', 'param_groups', value=[]), 'has 0 groups of parameters, AdamW here'),
    (put('optimizer', 'param_groups', value=7), 'optimizer must be a dict'),
    (put(*GROUP, 'params', value=[]), 'group 0 of its optimizer has other parameters'),
    (put(*GROUP, 'params', value=lambda all_: ['x', *all_[1:]]), 'must number its parameters'),
    (put(*GROUP, 'params', value=lambda all_: [1] * len(all_)), 'must number its parameters|other'),
    (drop(*GROUP, 'betas'), 'another one than AdamW: it has no betas'),
    (put(*GROUP, 'lr', value=NAN), 'lr of its optimizer must be finite'),
    (put(*GROUP, 'lr', value=-1.0), 'AdamW refuses the options of group 0.*learning rate'),
    (put(*GROUP, 'betas', value=(5, 5)), 'AdamW refuses the options of group 0.*beta'),
    (put(*GROUP, 'eps', value=-1), 'AdamW refuses the options of group 0.*epsilon'),
    (put('optimizer', 'base_param_settings', value=3), 'base_param_settings must hold its lr'),
    (put('optimizer', 'state', value=[]), 'optimizer.state must be a dict'),
    (put('optimizer', 'state', value={}), 'optimizer.state is empty'),
    (put('optimizer', 'state', 99, value={}), 'optimizer.state has an entry 99 of no parameter'),
    (put(*STATE, value=3), 'optimizer.state has an entry 0 of no parameter'),
    (drop(*STATE, 'exp_avg'), 'exp_avg of parameter 0 in its optimizer is missing'),
    (drop(*STATE, 'step'), 'step of parameter 0 in its optimizer is missing'),
    (put(*STATE, 'exp_avg', value=3), 'exp_avg of parameter 0 in its optimizer must be a tensor'),
    (put(*STATE, 'exp_avg', value=cut), 'exp_avg of parameter 0 .* has the shape'),
    (put(*STATE, 'exp_avg_sq', value=of_nan), 'exp_avg_sq of parameter 0 .* is NaN'),
    (put(*STATE, 'step', value=torch.tensor(-1.0)), 'step of parameter 0 .* at least 0, got -1'),
    (put(*STATE, 'step', value=torch.ones(7, 7)), 'step of parameter 0 .* finite number'),
    # the schedules
    (drop('param_schedulers'), 'param_schedulers must be a list of dicts, got None'),
    (put('param_schedulers', value='x'), 'param_schedulers must be'),
    (put('param_schedulers', value=[]), 'it has 0 param_schedulers, this training 2'),
    (put(*SCHEDULE, value=7), 'param_schedulers must be'),
    (put(*SCHEDULE, value={}), r'param_schedulers\[0\] is another schedule than CosineAnnealing'),
    (put(*SCHEDULE, 'step', value=3), r'param_schedulers\[0\] is another .* differs in step'),
    (put(*SCHEDULE, '_get_value', value=3), 'differs in _get_value'),
    (put(*SCHEDULE, '_global_step', value='x'), r'param_schedulers\[0\]._global_step'),
    (put(*SCHEDULE, '_global_step', value=-7), r'param_schedulers\[0\]._global_step'),
    (put(*SCHEDULE, 'last_step', value=HUGE), r'param_schedulers\[0\].last_step'),
    (put(*SCHEDULE, 'eta_min', value=NAN), r'param_schedulers\[0\].eta_min'),
    (put(*SCHEDULE, '_last_value', value=3), r'param_schedulers\[0\]._last_value must be a list'),
    (put(*SCHEDULE, 'by_epoch', value='x'), r'param_schedulers\[0\].by_epoch'),
]


@pytest.mark.parametrize('number', range(len(EDITS)))
def test_an_edited_checkpoint_is_refused_by_its_entry(number, stopped):
    change, match = EDITS[number]
    content = deepcopy(stopped[0])
    change(content)
    with pytest.raises(CheckpointError, match=match) as caught:
        check_checkpoint(stopped[1], content)
    assert 'edited one.pth' in str(caught.value) and '\n' not in str(caught.value)


SAME = {
    'nothing': lambda content: None,
    'no seed': put(*META, 'seed', value=None),
    'no note of the data': drop(*INFO, 'data_progress'),
    'no random states': drop(*INFO, 'random_states'),
    'no gradients': put(*INFO, 'accumulated_gradients', value=None),
    'a parameter without gradients': drop(*STATE),
    'switches of another version of torch': drop(*GROUP, 'fused'),
    'a count of an older torch': put(*STATE, 'step', value=3.0),
    'more in meta': put(*META, 'experiment_name', value=7),
    'a batch of many processes': put(
        *INFO, 'data_progress', value=dict(samples=32768 * ITERATIONS, batch=32768)
    ),
}


@pytest.mark.parametrize('name', SAME)
def test_what_a_resume_can_go_on_from_is_accepted(name, stopped):
    content = deepcopy(stopped[0])
    SAME[name](content)
    check_checkpoint(stopped[1], content)


@pytest.mark.parametrize('kind', ['SGD', 'RMSprop', 'Adagrad', 'Adadelta', 'NAdam', 'Adafactor'])
def test_the_state_of_any_optimizer_is_compared_with_its_own(kind):
    """What an optimizer keeps of a parameter is learned from a step of the same optimizer."""
    from mmengine.optim import OptimWrapper

    from cpvt_backbones.engine import resume_checks
    from cpvt_backbones.errors import InputError

    options = dict(momentum=0.9) if kind == 'SGD' else {}
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Linear(4, 5), nn.LayerNorm(5))
    wrapper = OptimWrapper(getattr(torch.optim, kind)(model.parameters(), lr=0.1, **options))
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    wrapper.step()
    state = wrapper.state_dict()
    resume_checks._check_optimizer(state, wrapper)
    for key in state['state'][0]:
        for value in ('x', of_nan):
            other = deepcopy(state)
            put('state', 0, key, value=value)(other)
            with pytest.raises(InputError, match=f'{key} of parameter 0 in its optimizer'):
                resume_checks._check_optimizer(other, wrapper)
