"""Classification stage: reproducible, resumable, and with the learning rates that the plan asks
for.
"""

import multiprocessing
import os
import signal
from pathlib import Path

import pytest
from mmengine.hooks import Hook
from mmengine.registry import HOOKS

pytest.importorskip('mmpretrain')

from positional_encoding.classify import Classification, ClassifyRun, epochs_within
from positional_encoding.runs import read_records, write_json

from cpvt_backbones.checkpoints import read_checkpoint

ROOT = Path(__file__).resolve().parents[2]
POSITIONS = {'peg': dict(type='PEG'), 'learned': dict(_delete_=True, type='Learned')}


@HOOKS.register_module(force=True)
class KillInSecondEpoch(Hook):
    def after_train_iter(self, runner, *args, **kwargs):
        if runner.iter == 6:
            os.kill(os.getpid(), signal.SIGKILL)


def work(stage):
    """Target of a process that imports this module, and so registers the hook above."""
    stage.work()


@pytest.fixture
def plan(image_folders):
    return dict(
        epochs=3, batch_size=4, sizes=[32, 40], data_root=str(image_folders), amp_dtype=None
    )


@pytest.fixture
def configs(write_config):
    backbone = dict(
        arch=dict(embed_dims=32, depth=2, num_heads=2, mlp_ratio=2), patch_size=8, img_size=32
    )
    loader = dict(batch_size=4)
    return {
        name: write_config(
            name,
            dict(
                _base_=str(ROOT / 'projects/positional_encoding/configs/_base_/classifier.py'),
                data_preprocessor=dict(num_classes=2, batch_augments=dict(augments=dict(size=32))),
                model=dict(
                    backbone={**backbone, 'position': position},
                    head=dict(in_channels=32, num_classes=2),
                ),
                val_dataloader=loader,
                test_dataloader=loader,
            ),
        )
        for name, position in POSITIONS.items()
    }


@pytest.fixture
def stage(plan, configs, tmp_path):
    def make(folder, plan=plan, **seeds):
        rates = dict(peg=(1.0,), learned=(1.0, 2.0))
        return Classification(tmp_path / folder, plan, configs, seeds or {'peg': [0]}, rates)

    return make


def test_a_seed_reproduces_its_results_and_so_does_a_killed_run_that_resumes(stage, configs):
    whole, again, broken = (
        stage('whole', peg=[4]),
        stage('again', peg=[4]),
        stage('broken', peg=[4]),
    )
    whole.work()
    again.work()
    text = configs['peg'].read_text()
    configs['peg'].write_text(
        f'{text}\ncustom_imports = dict(imports=["cpvt_backbones",'
        ' "cpvt_backbones.engine.decoded"])\ncustom_hooks = [dict(type="KillInSecondEpoch")]'
    )
    process = multiprocessing.get_context('spawn').Process(target=work, args=(broken,))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert not read_records(broken.folder)
    configs['peg'].write_text(text)
    stage('broken', plan=None, peg=[4]).work()
    assert 'resumed epoch: 1, iter: 4' in (broken.folder / 'peg_seed-4/console.log').read_text()

    (record,) = read_records(whole.folder)
    assert [row['size'] for row in record['rows']] == [32, 40]
    weights = read_checkpoint(whole.folder / 'peg_seed-4/weights.pth')['state_dict']
    for other in (again, broken):
        assert read_records(other.folder)[0]['rows'] == record['rows']
        found = read_checkpoint(other.folder / 'peg_seed-4/weights.pth')['state_dict']
        assert all(value.equal(found[name]) for name, value in weights.items())
        assert not list(other.folder.glob('*/epoch_*.pth'))


def test_a_record_holds_config_commit_environment_and_shift_error(stage):
    one = stage('one', peg=[0, 1])
    one.work()
    records = read_records(one.folder)
    assert [record['run'] for record in records] == [
        ClassifyRun('peg', seed)._asdict() for seed in (0, 1)
    ]
    for record in records:
        assert "'type': 'PEG'" in record['config']
        assert record['commits'].split()
        assert record['environment']['PyTorch'] and record['environment']['processor']
        at_training_size, larger = record['rows']
        assert 0 < at_training_size['shift_error'] < 2 and larger['shift_error'] is None


def finish(stage, run, **result):
    """Write the record of a run that was not trained."""
    write_json(
        stage.folder / run.name / 'record.json',
        dict(run=run._asdict(), rows=[dict(size=32, **result)]),
    )


def test_the_best_rate_of_the_first_seed_is_used_for_all_seeds(stage):
    one = stage('rates', peg=[0, 1], learned=[0, 1])
    assert one.left() == 5  # two, two, and one more rate
    first = [ClassifyRun('peg', 0), ClassifyRun('learned', 0, 1.0), ClassifyRun('learned', 0, 2.0)]
    assert one.pending() == ([*first, ClassifyRun('peg', 1)], 1)
    finish(one, first[1], top1=50.0)
    assert one.best_rate('learned') is None
    finish(one, first[2], top1=60.0)
    assert one.pending() == ([first[0], ClassifyRun('peg', 1), ClassifyRun('learned', 1, 2.0)], 0)
    assert one.best_rate('peg') == 1.0
    for run, tuning in zip(first[1:], (0.6, 0.5), strict=True):  # on images that are not tested
        finish(one, run, top1=run.rate_factor, tuning=tuning)
    assert one.best_rate('learned') == 1.0


def test_the_rate_factor_scales_the_learning_rate(stage):
    one = stage('optimizer')
    plain, twice = (
        one.config(ClassifyRun('learned', 0, factor)).optim_wrapper.optimizer.lr
        for factor in (1.0, 2.0)
    )
    assert twice == 2 * plain


def test_a_budget_counts_training_and_tests(plan, monkeypatch):
    monkeypatch.setattr(
        'positional_encoding.classify.seconds_per_iteration', lambda config, batch_size, size: 0.5
    )
    # A run has 4 iterations an epoch, and its tests cost 10 / 4 * (1 + 1.25 ** 2) / 3 = 2.1
    # iterations.
    budget = dict(config=Path(), plan=plan, runs=2, train=16, val=10)
    assert epochs_within(14.2 / 60, **budget) == 3
    assert epochs_within(14.1 / 60, **budget) == 2
    with pytest.raises(
        ValueError, match='--budget: one epoch of 2 runs takes about 0 minutes, got 0.05'
    ):
        epochs_within(0.05, **budget)
