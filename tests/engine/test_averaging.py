"""Averaged weights: any length of a training, and the better of both as best."""

import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from mmengine.config import Config
from mmengine.evaluator import BaseMetric
from mmengine.model import BaseModel, BaseTTAModel
from mmengine.registry import DATASETS, METRICS, MODELS, RUNNERS
from torch import nn

from cpvt_backbones.checkpoints import CheckpointError, load_weights
from cpvt_backbones.engine import WarmupEMAHook

LENGTHS = (1, 2, 3, 20, 240, 1_360)
RATE = 0.125


# -- the average by length -------------------------------------------------------------------------


def averages(hook, length):
    """Averages of the iteration's number, and of a weight that is 1 after the first one only."""
    model = nn.Module()
    model.iteration = nn.Parameter(torch.zeros((), dtype=torch.double))
    model.first = nn.Parameter(torch.zeros(()))
    runner = SimpleNamespace(model=model, iter=0, max_iters=length)
    hook.before_run(runner)
    hook.before_train(runner)
    for iteration in range(length):
        model.iteration.data.fill_(iteration + 1)
        model.first.data.fill_(iteration == 0)
        runner.iter = iteration
        hook.after_train_iter(runner, batch_idx=iteration)
    average = hook.ema_model.module
    return average.iteration.item(), average.first.item()


CASES = [(length, momentum) for length in LENGTHS for momentum in (4e-5, 1e-3, 3e-3)]


@pytest.mark.parametrize(('length', 'momentum'), [*CASES, (20_000, 1e-3)])
def test_the_average_is_recent_for_any_length(length, momentum):
    iteration, first = averages(WarmupEMAHook(momentum=momentum), length)
    age = length - iteration
    # A mean age of an eleventh of the length, or of 1 / momentum after the warm-up.
    assert age <= min(length / 11, 1 / momentum)
    if length > 2:
        assert first < 0.02
    # It is an average: of a tenth of the length, if the momentum allows.
    assert length < 20 or age >= 0.8 * min(length / 11, 1 / momentum)


# -- trainings of one weight, which is also the score ----------------------------------------------


@MODELS.register_module()
class OneWeight(BaseModel):
    """A weight that grows by ``RATE`` an iteration, to which the picture's number adds nothing."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.register_buffer('count', torch.zeros(()))

    def forward(self, number, mode='tensor'):
        if mode == 'loss':
            self.count += 1
            return dict(loss=-self.weight + 0 * number.sum())
        return [self.weight.item()] * len(number)


@MODELS.register_module()
class MirroredWeight(BaseTTAModel):
    """Test-time augmentation that changes nothing."""

    def test_step(self, data):
        return self.module.test_step(data)

    def merge_preds(self, data_samples_list):
        raise NotImplementedError


@DATASETS.register_module()
class Numbers(torch.utils.data.Dataset):
    metainfo = dict(classes=('a',))

    def __len__(self):
        return 5

    def __getitem__(self, index):
        return dict(number=torch.tensor(float(index)))


@METRICS.register_module()
class WeightMetric(BaseMetric):
    """The weight as ``higher`` and as ``lower``; above ``limit`` nothing, or NaN."""

    def __init__(self, limit=float('inf'), beyond='nothing'):
        super().__init__()
        self.limit, self.beyond = limit, beyond

    def process(self, data_batch, data_samples):
        self.results += data_samples

    def compute_metrics(self, results):
        assert len(results) == 5
        score = sum(results) / len(results)
        if score > self.limit:
            return {} if self.beyond == 'nothing' else dict(higher=float('nan'), lower=score)
        return dict(higher=score, lower=score)


def config(work_dir, *, length=6, val=3, metric=None, checkpoint=None, **options):
    loader = dict(
        batch_size=2,
        num_workers=0,
        dataset=dict(type='Numbers'),
        collate_fn=dict(type='default_collate'),
    )
    in_order = dict(loader, sampler=dict(type='DefaultSampler', shuffle=False))
    saving = dict(type='DurableCheckpointHook', by_epoch=False, interval=2, max_keep_ckpts=-1)
    values = dict(
        model=dict(type='OneWeight'),
        train_dataloader=dict(loader, sampler=dict(type='InfiniteSampler', shuffle=True)),
        train_cfg=dict(by_epoch=False, max_iters=length, val_interval=val),
        optim_wrapper=dict(optimizer=dict(type='SGD', lr=RATE)),
        val_dataloader=in_order,
        val_cfg=dict(),
        val_evaluator=dict(type='WeightMetric', **(metric or {})),
        test_dataloader=in_order,
        test_cfg=dict(),
        test_evaluator=dict(type='WeightMetric'),
        default_hooks=dict(checkpoint=dict(saving, **(checkpoint or {}))),
        custom_hooks=[dict(type='WarmupEMAHook')],
        log_processor=dict(by_epoch=False),
        randomness=dict(seed=1),
        default_scope='mmengine',
        runner_type='ResumableRunner',
        work_dir=str(work_dir),
        experiment_name=f'averaging_{time.time_ns()}',  # mmengine keeps loggers by name
    )
    return Config({**values, **options})


def trained(cfg):
    runner = RUNNERS.build(cfg)
    runner.train()
    return runner


def log_of(folder):
    return '\n'.join(path.read_text() for path in sorted(Path(folder).rglob('*.log')))


def read(path):
    return torch.load(path, weights_only=False)


@pytest.mark.parametrize('key', ['higher', 'lower'])
def test_the_better_of_both_is_saved_as_best(key, tmp_path):
    rule = dict(higher='greater', lower='less')[key]
    runner = trained(config(tmp_path, checkpoint=dict(save_best=key, rule=rule)))
    last = read(tmp_path / 'iter_6.pth')
    raw = last['ema_state_dict']['module.weight'].item()
    averaged = last['state_dict']['weight'].item()
    assert raw == 6 * RATE and RATE < averaged < raw
    scores = runner.message_hub.log_scalars
    assert scores[f'val/{key}_raw'].current() == raw
    assert scores[f'val/{key}_averaged'].current() == pytest.approx(averaged)
    # `higher` grows: the last raw weights are best. `lower`: the first averaged weights.
    if key == 'higher':
        best = read(tmp_path / 'best_higher_iter_6.pth')
        assert best['state_dict']['weight'] == raw and 'ema_state_dict' not in best
        assert scores['val/higher'].current() == raw
    else:
        best = read(tmp_path / 'best_lower_iter_3.pth')
        assert best['state_dict']['weight'] < best['ema_state_dict']['module.weight'] == 3 * RATE
        assert scores['val/lower'].current() == pytest.approx(averaged)
    assert len(list(tmp_path.glob('best_*'))) == 1
    better = 'raw' if key == 'higher' else 'averaged'
    line = f'{averaged:.4g} with the averaged weights, {raw:.4g} with the raw weights'
    assert f'{key}: {line}; the {better} ones count' in log_of(tmp_path)
    # A checkpoint that is saved again during the validation stays complete.
    assert {'optimizer', 'ema_state_dict'} <= read(tmp_path / 'iter_6.pth').keys()
    assert last['message_hub']['runtime_info']['best_score'] == pytest.approx(
        best['state_dict']['weight'].item()
    )


def test_the_first_metric_is_compared_with_save_best_auto(tmp_path):
    trained(config(tmp_path, checkpoint=dict(save_best='auto', rule='less')))
    best = read(tmp_path / 'best_higher_iter_3.pth')
    assert best['state_dict']['weight'] < 3 * RATE


@pytest.mark.parametrize('beyond', ['nothing', 'nan'])
def test_weights_without_a_score_are_never_the_better(beyond, tmp_path):
    """As a detector that finds nothing: mmdet then gives no metrics at all."""
    # Between the average and the raw weights of iteration 6.
    metric = dict(limit=5.8 * RATE, beyond=beyond)
    saving = dict(save_best='higher', rule='greater')
    runner = trained(config(tmp_path, val=6, metric=metric, checkpoint=saving))
    best = read(tmp_path / 'best_higher_iter_6.pth')
    assert best['state_dict']['weight'] < 6 * RATE
    assert runner.message_hub.log_scalars['val/higher'].current() == pytest.approx(
        best['state_dict']['weight'].item()
    )


@pytest.mark.parametrize('beyond', ['nothing', 'nan'])
def test_no_score_at_all_ends_no_training(beyond, tmp_path):
    metric = dict(limit=-1, beyond=beyond)
    trained(config(tmp_path, metric=metric, checkpoint=dict(save_best='auto', rule='greater')))
    assert (tmp_path / 'iter_6.pth').is_file() and not list(tmp_path.glob('best_*'))


def test_without_save_best_the_average_alone_is_validated(tmp_path):
    runner = trained(config(tmp_path))
    assert runner.message_hub.log_scalars['val/higher'].current() < 6 * RATE
    assert 'raw weights' not in log_of(tmp_path)


@pytest.mark.parametrize('length', [1, 4])
def test_every_file_of_a_training_can_be_tested(length, tmp_path):
    saving = dict(save_best='higher', rule='greater')
    trained(config(tmp_path / 'run', length=length, checkpoint=saving))
    files = sorted((tmp_path / 'run').glob('*.pth'))
    assert {file.name for file in files} >= {f'iter_{length}.pth', f'best_higher_iter_{length}.pth'}
    for file in files:
        saved = read(file)['state_dict']['weight'].item()
        cfg = config(tmp_path / 'test', load_from=str(file))
        assert RUNNERS.build(cfg).test()['higher'] == pytest.approx(saved)
        # As tools/test.py does with --tta.
        model = dict(type='MirroredWeight', module=cfg.model)
        runner = RUNNERS.build(config(tmp_path / 'test', load_from=str(file), model=model))
        load_weights(runner.model, file)
        assert runner.test()['higher'] == pytest.approx(saved)


def test_a_resume_needs_the_average_of_its_hook(tmp_path):
    """Neither starts again from other weights, in silence."""
    trained(config(tmp_path, length=4, custom_hooks=[]))
    with pytest.raises(CheckpointError, match='it has no ema_state_dict, which the EMA hook'):
        trained(config(tmp_path, length=5, resume=True))
    trained(config(tmp_path / 'averaged', length=4))
    with pytest.raises(CheckpointError, match='this training has no EMA hook'):
        trained(config(tmp_path / 'averaged', length=5, resume=True, custom_hooks=[]))


def test_other_weights_to_start_from_reach_the_average(tmp_path):
    weights = dict(weight=torch.tensor(2.0), count=torch.tensor(0.0))
    torch.save(dict(state_dict=weights, meta={}), tmp_path / 'start.pth')
    trained(config(tmp_path, load_from=str(tmp_path / 'start.pth')))
    assert 2 < read(tmp_path / 'iter_2.pth')['state_dict']['weight'] <= 2 + 2 * RATE
    runner = RUNNERS.build(config(tmp_path, load_from=str(tmp_path / 'start.pth')))
    assert runner.test()['higher'] == 2
