"""A study's rows can be trusted: repeatable, resumable, each with the record of its run, rates chosen as promised."""

import json
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from filelock import FileLock

pytest.importorskip('mmpretrain')

from cpvt_backbones.analysis.study import Plan, Run, Study
from cpvt_backbones.analysis.study_rows import Row, read_rows, write_rows, write_runs

ROOT = Path(__file__).resolve().parents[2]
CONFIG = """
_base_ = '{root}/configs/_base_/studies/positional_encoding.py'
data_preprocessor = dict(num_classes=2, batch_augments=dict(augments=dict(size=32)))
model = dict(
    backbone=dict(
        arch=dict(embed_dims=32, depth=2, num_heads=2, mlp_ratio=2), patch_size=8, img_size=32, position={position}),
    head=dict(in_channels=32, num_classes=2))
val_dataloader = dict(batch_size=4)
test_dataloader = val_dataloader
"""
POSITIONS = {'peg': "dict(type='PEG')", 'learned': "dict(_delete_=True, type='Learned')"}


@pytest.fixture
def plan(tmp_path):
    rng = np.random.default_rng(0)
    for split, count, side in (('train', 8, 36), ('val', 5, 48)):
        for label in range(2):
            folder = tmp_path / 'data' / split / str(label)
            folder.mkdir(parents=True)
            for index in range(count):
                image = rng.integers(0, 128, (side, side, 3), dtype=np.uint8) + np.uint8(60 * label)
                cv2.imwrite(str(folder / f'{index}.png'), image)
    return Plan(
        epochs=3,
        batch_size=4,
        train_size=32,
        sizes=(32, 40),
        rate_factors=(1.0, 2.0),
        tuned=('learned',),
        data_root=str(tmp_path / 'data'),
    )


@pytest.fixture
def study(plan, tmp_path):
    configs = {}
    for name, position in POSITIONS.items():
        configs[name] = tmp_path / f'{name}.py'
        configs[name].write_text(CONFIG.format(root=ROOT, position=position))

    def make(folder, plan=plan):
        return Study(folder=tmp_path / folder, configs=configs, plan=plan)

    return make


def test_one_seed_gives_one_row_and_a_resumed_run_gives_it_too(study):
    wanted = [('peg', [4])]
    whole, again, broken = study('whole'), study('again'), study('broken')
    whole.work(wanted)
    again.work(wanted)

    class PowerCut(Exception):
        pass

    def cut(run, steps):
        cut.left -= steps
        if cut.left < 0:
            raise PowerCut

    cut.left = 6  # within the second of three epochs of four iterations
    with pytest.raises(PowerCut):
        broken.work(wanted, progress=cut)
    assert not broken.rows()
    told = []
    study('broken', plan=None).work(wanted, progress=lambda run, steps: told.append(steps))
    assert told[0] == 4  # what it found done
    assert sum(told) == pytest.approx(whole.plan.training_steps(16) + whole.plan.test_steps(10))

    rows = whole.rows()
    assert [row.size for row in rows] == [32, 40]
    assert rows == again.rows() == broken.rows()
    weights = [torch.load(s.folder / 'runs/peg_seed-4/weights.pth') for s in (whole, again, broken)]
    for name, value in weights[0].items():
        assert torch.equal(value, weights[1][name]), name
        assert torch.equal(value, weights[2][name]), name


def test_every_row_has_its_record(study, tmp_path):
    one = study('one')
    one.work([('peg', [0, 1])])
    rows = read_rows(one.folder / 'results.csv')
    assert sorted(rows, key=repr) == sorted(one.rows(), key=repr)
    records = one.records()
    assert {(r['variant'], r['seed']) for r in records} == {(row.variant, row.seed) for row in rows}
    for record in records:
        assert "type='PEG'" in record['config']
        assert f'seed={record["seed"]}' in record['config']
        assert record['machine']['torch']
        assert record['commits'].split()
    write_runs(records, tmp_path / 'runs.csv')
    assert len((tmp_path / 'runs.csv').read_text().splitlines()) == 3


def test_shift_errors_are_added_once_and_tell_a_table_from_nothing(study):
    one = study('shifts')
    one.work([('peg', [0]), ('learned', [0])])
    one.add_shift_errors(images=4)
    rows = one.rows()
    assert all((row.shift_error is None) == (row.size != 32) for row in rows)
    assert all(0 < row.shift_error < 2 for row in rows if row.size == 32)
    assert sorted(read_rows(one.folder / 'results.csv'), key=repr) == sorted(rows, key=repr)
    for weights in one.folder.glob('runs/*/weights.pth'):
        weights.unlink()
    one.add_shift_errors(images=4)  # nothing is left to measure
    assert one.rows() == rows


def fake(study, run, top1):
    """A finished run without the training."""
    folder = study.folder / 'runs' / run.name
    folder.mkdir(parents=True)
    row = dict(**run.__dict__, epochs=3, size=32, top1=top1, shift_error=None)
    config = f'epochs = 3\nseed={run.seed}'
    (folder / 'record.json').write_text(json.dumps({**run.__dict__, 'rows': [row], 'config': config}))


def test_seeds_of_a_variant_must_share_their_config(study):
    one = study('configs')
    for seed in (0, 1):
        fake(one, Run('peg', seed), top1=50.0)
    one.check_configs()
    record = one.folder / 'runs/peg_seed-1/record.json'
    record.write_text(record.read_text().replace('epochs = 3', 'epochs = 4'))
    with pytest.raises(ValueError, match='peg_seed-0 and peg_seed-1, trained with different configs'):
        one.check_configs()


def test_the_best_rate_of_the_first_seed_serves_all_seeds(study):
    one = study('rates')
    wanted = [('peg', [0, 1]), ('learned', [0, 1])]
    assert one.left(wanted) == 5  # two, two, and one more rate
    ready, waiting = one.pending(wanted)
    assert ready == [Run('peg', 0), Run('learned', 0, 1.0), Run('learned', 0, 2.0), Run('peg', 1)]
    assert waiting == 1
    fake(one, Run('learned', 0, 1.0), top1=50.0)
    assert one.best_rate('learned', [0, 1]) is None
    fake(one, Run('learned', 0, 2.0), top1=60.0)
    assert one.pending(wanted) == ([Run('peg', 0), Run('peg', 1), Run('learned', 1, 2.0)], 0)
    assert one.best_rate('peg', [0, 1]) == 1.0


def test_rates_reach_the_optimizer(study):
    one = study('optimizer')
    plain, twice = (one.config(Run('learned', 0, factor)).optim_wrapper.optimizer.lr for factor in (1.0, 2.0))
    assert twice == 2 * plain


def test_a_run_that_another_process_has_is_left_to_it(study):
    one = study('shared')
    folder = one.folder / 'runs' / Run('peg', 0).name
    folder.mkdir(parents=True)
    trained = []

    def done(run, record):
        trained.append(run)
        (folder / 'record.json').write_text(json.dumps(dict(rows=[])))  # the other one ends too

    with FileLock(folder / '.lock'):
        one.work([('peg', [0, 1])], done=done, patience=0.01)
    assert trained == [Run('peg', 1)]


def test_another_plan_is_refused(study, plan):
    study('begun')
    assert study('begun').plan == study('begun', plan=None).plan == plan
    with pytest.raises(ValueError, match='epochs=3.*epochs=4'):
        study('begun', plan=replace(plan, epochs=4))
    with pytest.raises(FileNotFoundError, match='no study'):
        study('elsewhere', plan=None)


@pytest.mark.parametrize(
    ('change', 'name'),
    [({'epochs': 0}, 'epochs'), ({'sizes': (24,)}, 'sizes'), ({'rate_factors': (2.0,)}, 'rate_factors')],
)
def test_a_bad_plan_names_the_argument(plan, change, name):
    with pytest.raises(ValueError, match=name):
        replace(plan, **change)


def test_rows_survive_the_csv(tmp_path):
    rows = [Row('peg', 0, 1.0, 3, 16, 50.125), Row('peg', 0, 1.0, 3, 24, 60.0, 0.25)]
    write_rows(rows, tmp_path / 'rows.csv')
    assert read_rows(tmp_path / 'rows.csv') == rows
