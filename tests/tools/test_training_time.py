"""What a person is told of a training's time: real steps, on a clock that images and steps set."""

import re
from functools import partial

import pytest
import torch
from mmengine.dataset import BaseDataset
from mmengine.model import BaseModel
from mmengine.runner import Runner
from tiny import only
from tiny_configs import TASKS, classification, parsed

from cpvt_backbones.analysis.training_time import TrainingTime, estimate_training
from cpvt_backbones.engine import launch
from cpvt_backbones.engine.time_left import TimeLeftHook
from cpvt_backbones.toolboxes import read_config

LOAD, STEP, VAL = 0.5, 3.0, 1.0  # s per image
ITERATIONS, BATCH, PASSES = 50, 4, 2
LENGTH = [
    f'train_cfg.max_iters={ITERATIONS}',
    f'train_cfg.val_interval={ITERATIONS // PASSES}',
    f'train_dataloader.batch_size={BATCH}',
]
NO_VALIDATION = f'train_cfg.val_begin={10 * ITERATIONS}'
STEPS = ITERATIONS * BATCH * (LOAD + STEP)  # s of all training steps


@pytest.fixture
def clock(monkeypatch):
    """Function that returns the time; each training step must be real, and is counted."""
    prepare, step, val_step = BaseDataset.prepare_data, BaseModel.train_step, BaseModel.val_step

    def clock():
        return clock.now

    def prepare_data(self, index):
        clock.now += LOAD
        return prepare(self, index)

    def train_step(self, data, optim_wrapper):
        clock.now += clock.durations[clock.steps % len(clock.durations)] * len(data['inputs'])
        before = torch.cat([parameter.flatten() for parameter in self.parameters()])
        losses = step(self, data, optim_wrapper)
        after = torch.cat([parameter.flatten() for parameter in self.parameters()])
        assert losses['loss'].isfinite() and not torch.equal(before, after)
        clock.steps += 1
        return losses

    def validate(self, data):
        clock.now += VAL * len(data['inputs'])
        assert not self.training and not torch.is_grad_enabled()
        return val_step(self, data)

    clock.now, clock.steps, clock.durations = 0.0, 0, [STEP]
    monkeypatch.setattr(BaseDataset, 'prepare_data', prepare_data)
    monkeypatch.setattr(BaseModel, 'train_step', train_step)
    monkeypatch.setattr(BaseModel, 'val_step', validate)
    return clock


@pytest.fixture
def config(scenes, tmp_path):
    """Function that reads the tiny config of a toolbox."""

    def config(scope, *options):
        pytest.importorskip(scope)
        file, tiny = TASKS[scope](scenes, tmp_path)
        return read_config(file, cfg_options=parsed([*tiny, *LENGTH, *options]))

    return config


def validation_of(cfg):
    """Seconds of all validations."""
    images = len(Runner.build_dataloader(cfg.val_dataloader).dataset)
    return PASSES * images * (LOAD + VAL)


@pytest.mark.parametrize('scope', only(of=list(TASKS)))
def test_training_and_validation_are_estimated(config, clock, scope, recwarn):
    cfg = config(scope)
    recwarn.clear()
    found = estimate_training(cfg, clock=clock, limit=100.0)
    assert not recwarn.list  # of mmseg's losses, which the training itself repeats
    seconds = STEPS + validation_of(cfg)
    assert (found.low, found.high) == pytest.approx((0.9 * seconds, 1.1 * seconds))
    # Batches of four take 14 s, and the first step does not count.
    assert (clock.steps, found.steps) == (9, 8)


def test_no_weights_are_loaded(config, clock):
    absent = ['load_from=absent.pth', 'model.backbone.init_cfg=timm://absent']
    assert estimate_training(config('mmdet', *absent), clock=clock).steps == 2


def test_one_step_after_the_first_gives_a_wide_range(config, clock):
    """The first one starts workers and prepares buffers. The next takes three times the limit."""
    clock.durations = [9.0, STEP]
    found = estimate_training(config('mmdet', NO_VALIDATION), clock=clock, limit=14 / 3)
    assert (clock.steps, found.steps) == (2, 1)
    assert (found.low, found.high) == pytest.approx((0.5 * STEPS, 1.5 * STEPS))


def test_the_range_follows_the_differences_of_the_steps(config, clock):
    """The standard error of 50 steps of 1.5 and 3.5 s, twice, to either side."""
    clock.durations = [1.0, 3.0]
    found = estimate_training(config('mmdet', NO_VALIDATION), clock=clock, limit=1000.0)
    middle, error = 2.5, (50 / 49 / 50) ** 0.5
    ends = [ITERATIONS * BATCH * (middle + sign * 2 * error) for sign in (-1, 1)]
    assert found.steps == 50 and (found.low, found.high) == pytest.approx(ends)


@pytest.mark.parametrize(
    ('durations', 'limit', 'steps', 'narrow'),
    [
        ([1.0], 5.0, 2, True),  # one step gives a wide range, two equal ones do not
        ([1.0, 3.0], 30.0, 7, True),  # steps of 6 and 14 s
        ([1.0, 3.0], 15.0, 5, False),  # ends after 45 s
    ],
)
def test_more_steps_are_timed_while_the_range_is_wide(
    config, clock, durations, limit, steps, narrow
):
    clock.durations = durations
    found = estimate_training(config('mmdet', NO_VALIDATION), clock=clock, limit=limit)
    assert found.steps == steps and (found.high <= 2 * found.low) == narrow


def test_workers_load_beside_the_steps(config, clock):
    """A step waits for its batch only if the workers are slower."""
    workers = [f'{part}_dataloader.num_workers=1' for part in ('train', 'val')]
    found = estimate_training(config('mmdet', *workers, NO_VALIDATION), clock=clock)
    assert (found.low + found.high) / 2 == pytest.approx(ITERATIONS * BATCH * STEP)


def test_epochs_are_counted_by_their_batches(call, own_data, clock):
    """Ten images, of which every fifth is for validation after each epoch."""
    call('make_config', *own_data('folders'), '--out', 'a.py', '--length', '7')
    options = [f'{part}_dataloader.num_workers=0' for part in ('train', 'val')]
    options += [f'{part}_dataloader.persistent_workers=False' for part in ('train', 'val')]
    found = estimate_training(read_config('a.py', cfg_options=parsed(options)), clock=clock)
    assert (found.low + found.high) / 2 == pytest.approx(7 * (8 * (LOAD + STEP) + 2 * (LOAD + VAL)))


@pytest.mark.parametrize(
    ('low', 'high', 'text'),
    [
        (45, 55, '45 to 55 s'),
        (588, 718, '9.8 to 12 min'),
        (5 * 3600, 6.1 * 3600, '5.0 to 6.1 h'),
        (3 * 86400, 3.02 * 86400, '3.0 days'),
        (28, 150, '0.5 to 2.5 min'),
    ],
)
def test_the_time_is_told_as_a_range(low, high, text):
    about = TrainingTime(low, high, 1, '2 CPU threads').about
    assert about == f'about {text} with validation on this machine (2 CPU threads), by 1 step'


def test_make_config_prints_the_time(call, own_data, capsys, monkeypatch):
    data = own_data('folders')
    call('make_config', *data, '--out', 'a.py', estimate=True)
    *_, line, _, train, _, _ = capsys.readouterr().out.splitlines()
    assert line.startswith('training: about ') and ' with validation on this machine (' in line
    assert re.search(r', by \d+ steps?$', line) and 'train' in train

    def train_step(*arguments, **options):
        raise torch.OutOfMemoryError('GPU out of memory.\nTried to allocate 2 GiB')

    monkeypatch.setattr(BaseModel, 'train_step', train_step)
    call('make_config', *data, '--out', 'b.py', estimate=True)
    *_, line, _, train, _, _ = capsys.readouterr().out.splitlines()
    reason = 'GPU out of memory. Tried to allocate 2 GiB'
    assert line == f'training time not estimated, because a step failed: {reason}'
    assert 'train' in train


@pytest.fixture
def told(clock, call, capsys, monkeypatch, tmp_path):
    """Function that trains on the clock; returns all that it prints, and the lines on the time."""
    monkeypatch.setattr(launch, 'TimeLeftHook', partial(TimeLeftHook, clock))

    def told(file, *options, resume=()):
        capsys.readouterr()
        words = [*resume, '--work-dir', tmp_path / 'work', '--cfg-options', *options]
        call('train', file, *words)
        printed = ''.join(capsys.readouterr())
        return printed, re.findall(r'(iteration \d.+ per iteration; .+)', printed)

    return told


@pytest.mark.parametrize('scope', only(of=list(TASKS)))
def test_a_training_says_after_its_first_steps_how_long_it_takes(scope, scenes, tmp_path, told):
    """Batches of four take 14 s. The second line adds the time of a validation."""
    pytest.importorskip(scope)
    file, tiny = TASKS[scope](scenes, tmp_path)
    length = ['train_cfg.max_iters=8', 'train_cfg.val_interval=4', LENGTH[2]]
    length.append('default_hooks.checkpoint.max_keep_ckpts=-1')
    _, lines = told(file, *tiny, *length)
    left = '56 to 68 s' if scope == 'mmpretrain' else '53 to 65 s'
    took = '6.0 s' if scope == 'mmpretrain' else '3.0 s'
    assert lines == [
        'iteration 2 of 8: 14 s per iteration; about 0.7 to 2.1 min left, plus 2 validations',
        f'iteration 4 of 8: 14 s per iteration; about {left} left, with 1 validation of {took}',
    ]
    _, lines = told(file, *tiny, *length, resume=['--resume', tmp_path / 'work/iter_5.pth'])
    (line,) = lines
    left = 'about 7.0 to 21 s left, plus 1 validation'
    assert line == f'iteration 7 of 8: 14 s per iteration; {left}'


def test_the_time_of_epochs(tmp_path, told):
    """Four images in batches of two: an epoch takes 14 s, its validation 6 s."""
    pytest.importorskip('mmpretrain')
    classifier, _ = classification(None, tmp_path)
    config = tmp_path / 'epochs.py'
    loop = dict(_delete_=True, by_epoch=True, max_epochs=3)
    in_epochs = "train_dataloader = dict(sampler=dict(type='DefaultSampler', shuffle=True))"
    config.write_text(f"_base_ = '{classifier.name}'\ntrain_cfg = {loop}\n{in_epochs}\n")
    _, lines = told(config, 'log_level=INFO')
    assert lines == [
        'iteration 2 of 6: 7 s per iteration; about 14 to 42 s left, plus 3 validations',
        'iteration 2 of 6: 7 s per iteration; about 20 to 60 s left, with 2 validations of 6.0 s',
    ]


@pytest.mark.full
def test_only_validations_are_left(clock, tmp_path, told):
    """The last step is the first that is timed. A training without validation has no line."""
    pytest.importorskip('mmpretrain')
    file, _ = classification(None, tmp_path)
    length = ['train_cfg.max_iters=2', 'train_cfg.val_interval=2', LENGTH[2]]
    _, lines = told(file, *length)
    assert lines == ['iteration 2 of 2: 14 s per iteration; 1 validation left']
    printed, lines = told(file, *length, NO_VALIDATION)
    assert not lines and 'per iteration' not in printed


@pytest.mark.parametrize(
    ('interval', 'begin', 'count'), only((3, 5, 2), of=[(3, 5, 2), (3, 1, 3), (7, 1, 1), (9, 8, 0)])
)
def test_validations_are_counted_as_mmengine_makes_them(interval, begin, count, tmp_path, told):
    pytest.importorskip('mmpretrain')
    file, _ = classification(None, tmp_path)
    length = ['train_cfg.max_iters=7', f'train_cfg.val_interval={interval}']
    options = [*length, f'train_cfg.val_begin={begin}', 'train_dataloader.batch_size=4']
    printed, (line, *_) = told(file, *options)
    assert len(re.findall(r'Iter\(val\).+accuracy', printed)) == count
    found = re.search(r'left(?:, plus (\d) validations?)?$', line)
    assert found is not None and int(found[1] or 0) == count
