"""A training warns of a learning rate that its schedule leaves too high or too low."""

import pytest
from mmengine.optim import OptimWrapper
from mmengine.runner import Runner
from short_runs import Numbered, Regression, run
from torch.optim import SGD

from cpvt_backbones.engine import ResumableFlexibleRunner, ResumableRunner, TrainingCheckHook

WARMUP = dict(type='LinearLR', start_factor=0.1, by_epoch=False, begin=0, end=2)


def poly(end, **options):
    return dict(type='PolyLR', by_epoch=False, begin=2, end=end, **options)


def steps(*milestones, **options):
    return dict(type='MultiStepLR', milestones=list(milestones), **options)


def told(warnings):
    return [line for line in warnings if line.startswith('param_scheduler: ')]


@pytest.mark.parametrize(
    ('schedule', 'length', 'message'),
    [
        (
            [WARMUP, poly(160)],
            dict(iterations=20),
            'PolyLR ends at iteration 160, but the training ends at 20, so the learning rate has'
            ' not fully fallen by then; write end=20',
        ),
        (
            [WARMUP, dict(poly(160), begin=5)],
            dict(iterations=4),
            'PolyLR ends at iteration 160, but the training ends at 4, so the learning rate has'
            ' not fully fallen by then; write end=4 and a smaller begin',
        ),
        (
            [WARMUP, steps(1, end=2)],
            dict(epochs=3),
            'MultiStepLR ends at epoch 2, but the training ends at 3, so the learning rate stays'
            ' the same from then on; write end=3 and milestones to match',
        ),
        (
            [dict(type='CosineAnnealingLR', begin=0, end=2, convert_to_iter_based=True)],
            dict(epochs=3),
            'CosineAnnealingLR ends at epoch 2, but the training ends at 3, so the learning rate'
            ' stays the same from then on; write end=3',
        ),
        (
            [steps(1, 30)],
            dict(epochs=2),
            'MultiStepLR has a milestone at epoch 30, but the training ends at 2, so the learning'
            ' rate has not fully fallen by then; write milestones below 2',
        ),
        (
            [WARMUP, steps(8, 11, end=12)],
            dict(iterations=4),
            'MultiStepLR counts epochs, but the training counts iterations, so the learning rate'
            ' does not change; write by_epoch=False and end=4',
        ),
    ],
)
def test_a_schedule_that_ends_with_another_training_is_told_once(
    schedule, length, message, tmp_path, warnings
):
    run(tmp_path, schedule=schedule, **length)
    assert told(warnings) == [f'param_scheduler: {message}']


@pytest.mark.parametrize(
    ('schedule', 'length'),
    [
        ([], dict(iterations=4)),
        ([WARMUP], dict(iterations=4)),
        ([dict(WARMUP, end=9)], dict(iterations=4)),
        ([dict(type='ConstantLR', by_epoch=False, begin=0, end=2)], dict(iterations=4)),
        ([WARMUP, poly(4)], dict(iterations=4)),
        ([dict(WARMUP, end=9), poly(4)], dict(iterations=4)),
        ([WARMUP, dict(type='CosineAnnealingLR', begin=1)], dict(epochs=2)),
        ([dict(type='ExponentialLR', gamma=0.9, end=10**9)], dict(epochs=1)),
        ([steps(1, end=12)], dict(epochs=2)),
        ([steps(1, 2)], dict(epochs=2)),
        (
            [
                dict(type='CosineAnnealingLR', begin=0, end=1),
                dict(type='ConstantLR', factor=1, begin=1, end=2),
            ],
            dict(epochs=2),
        ),
        (
            [dict(type='PolyMomentum', by_epoch=False, begin=0, end=2), poly(4)],
            dict(iterations=4),
        ),
        ([dict(type='ReduceOnPlateauLR', monitor='score', end=9)], dict(epochs=1, validate=True)),
        ([poly(9)], dict(iterations=0)),
    ],
    ids=[
        'none',
        'warm-up',
        'long warm-up',
        'constant warm-up',
        'poly',
        'decay after a warm-up that does not end',
        'by default',
        'without an end',
        'reached milestones',
        'milestone at the end',
        'constant at the end',
        'momentum',
        'metric',
        'no iteration',
    ],
)
def test_warmups_and_schedules_that_end_with_the_training_are_not_told(
    schedule, length, tmp_path, warnings
):
    run(tmp_path, schedule=schedule, **length)
    assert not told(warnings)


@pytest.mark.parametrize('kind', [ResumableRunner, ResumableFlexibleRunner, Runner])
def test_a_resumed_training_is_told_of_the_schedule_that_it_has(kind, tmp_path, warnings):
    """mmengine's own runner takes the end from the checkpoint, the others from the config."""
    hooks = [TrainingCheckHook()] if kind is Runner else []
    options = dict(kind=kind, hooks=hooks)
    run(tmp_path, iterations=10, schedule=[poly(10)], **options)
    assert not told(warnings)
    run(tmp_path, iterations=20, schedule=[poly(20)], resume=True, **options)
    assert len(told(warnings)) == (kind is Runner)
    warnings.clear()
    run(tmp_path, iterations=30, schedule=[poly(10)], resume=True, **options)
    (line,) = told(warnings)
    assert 'PolyLR ends at iteration 10, but the training ends at 30' in line


class TwoOptimizers(Regression):
    def train_step(self, data, optim_wrapper):
        losses = self(**self.data_preprocessor(data, True))
        optim_wrapper['second'].update_params(losses['loss'])
        return losses


@pytest.mark.parametrize('ends', [(4, 4), (4, 9), (9, 9)])
def test_schedules_of_several_optimizers(ends, tmp_path, warnings):
    model = TwoOptimizers()
    first, second = (OptimWrapper(SGD(model.parameters(), lr=0.1)) for _ in range(2))
    runner = ResumableRunner(
        model=model,
        work_dir=str(tmp_path),
        train_dataloader=dict(
            batch_size=2,
            dataset=Numbered(),
            sampler=dict(type='InfiniteSampler'),
            collate_fn=dict(type='pseudo_collate'),
        ),
        train_cfg=dict(by_epoch=False, max_iters=4),
        optim_wrapper=dict(first=first, second=second),
        param_scheduler=dict(first=[poly(ends[0])], second=poly(ends[1])),
        default_scope='mmengine',
        log_level='WARNING',
        experiment_name=f'two_optimizers_{ends}',
    )
    runner.train()
    assert len(told(warnings)) == (ends != (4, 4))
