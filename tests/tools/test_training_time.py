"""The estimate of a training's time: real steps, on a clock that images and steps set forward."""

import pytest
import torch
from mmengine.dataset import BaseDataset
from mmengine.model import BaseModel
from tiny import only
from tiny_configs import TASKS, parsed

from cpvt_backbones.analysis.training_time import estimate_training
from cpvt_backbones.toolboxes import read_config

LOAD, STEP = 0.5, 3.0  # s per image
ITERATIONS, BATCH = 50, 4
LENGTH = ['train_cfg.max_iters=50', 'train_dataloader.batch_size=4']


@pytest.fixture
def clock(monkeypatch):
    """Function that returns the time; each step must be real, and is counted."""
    prepare, step = BaseDataset.prepare_data, BaseModel.train_step

    def clock():
        return clock.now

    def prepare_data(self, index):
        clock.now += LOAD
        return prepare(self, index)

    def train_step(self, data, optim_wrapper):
        clock.now += STEP * len(data['inputs'])
        before = torch.cat([parameter.flatten() for parameter in self.parameters()])
        loss = step(self, data, optim_wrapper)['loss']
        after = torch.cat([parameter.flatten() for parameter in self.parameters()])
        assert loss.isfinite() and not torch.equal(before, after)
        clock.steps += 1

    clock.now, clock.steps = 0.0, 0
    monkeypatch.setattr(BaseDataset, 'prepare_data', prepare_data)
    monkeypatch.setattr(BaseModel, 'train_step', train_step)
    return clock


@pytest.fixture
def config(scenes, tmp_path):
    """Function that reads the tiny config of a toolbox."""

    def config(scope, *options):
        pytest.importorskip(scope)
        file, tiny = TASKS[scope](scenes, tmp_path)
        return read_config(file, cfg_options=parsed([*tiny, *LENGTH, *options]))

    return config


@pytest.mark.parametrize('scope', only(of=list(TASKS)))
def test_three_steps_give_the_time_of_all(config, clock, scope, recwarn):
    cfg = config(scope)
    recwarn.clear()
    found = estimate_training(cfg, limit=100.0, clock=clock)
    assert not recwarn.list  # of mmseg's losses, which the training itself repeats
    assert found.seconds == ITERATIONS * BATCH * (LOAD + STEP)
    assert (found.iterations, found.steps, found.images) == (ITERATIONS, 3, BATCH)
    assert clock.steps == 5  # with two small ones before them


def test_no_weights_are_loaded(config, clock):
    absent = ['load_from=absent.pth', 'model.backbone.init_cfg=timm://absent']
    assert estimate_training(config('mmdet', *absent), limit=100.0, clock=clock).steps == 3


@pytest.mark.parametrize(('limit', 'steps'), [(14.0, 2), (13.0, 1)])
def test_small_steps_stand_for_whole_ones_beyond_the_limit(config, clock, limit, steps):
    """Two images take 7 s, and a batch of four 14 s."""
    found = estimate_training(config('mmdet'), limit=limit, clock=clock)
    assert clock.steps == steps and found.images == 2 and not found.is_bound
    assert found.seconds == ITERATIONS * BATCH * (LOAD + STEP)


def test_a_forward_pass_beyond_the_limit_is_cut_off(config, clock):
    found = estimate_training(config('mmdet'), limit=5.0, clock=clock)
    assert found.is_bound and clock.steps == 0
    assert found.about.startswith('more than 12 min on this machine (')


def test_workers_share_the_cores_with_the_step(config, clock):
    found = estimate_training(config('mmdet', 'train_dataloader.num_workers=2'), clock=clock)
    load = LOAD / torch.get_num_threads()
    assert found.seconds == pytest.approx(ITERATIONS * BATCH * (load + STEP))


def test_epochs_are_counted_by_their_batches(call, own_data, clock):
    """Ten images, of which every fifth is for validation."""
    call('make_config', *own_data('folders'), '--out', 'a.py', '--length', '7')
    cfg = read_config('a.py')
    assert estimate_training(cfg, clock=clock).iterations == 7 * (
        8 // cfg.train_dataloader.batch_size
    )


def test_make_config_prints_the_time(call, own_data, capsys, monkeypatch):
    data = own_data('folders')
    call('make_config', *data, '--out', 'a.py', estimate=True)
    *_, line, train, _, _ = capsys.readouterr().out.splitlines()
    assert line.startswith('training: about ') and ' on this machine (' in line
    assert line.endswith('validation and start-up are not included') and 'train' in train

    def train_step(*arguments, **options):
        raise torch.OutOfMemoryError('GPU out of memory.\nTried to allocate 2 GiB')

    monkeypatch.setattr(BaseModel, 'train_step', train_step)
    call('make_config', *data, '--out', 'b.py', estimate=True)
    *_, line, train, _, _ = capsys.readouterr().out.splitlines()
    reason = 'GPU out of memory. Tried to allocate 2 GiB'
    assert line == f'training time not estimated, because a step failed: {reason}'
    assert 'train' in train
