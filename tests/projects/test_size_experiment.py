"""The experiment in miniature, with an interruption; its analysis on synthetic results."""

import functools
import math
import shutil
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pandas as pd
import pytest
import torch
from mmengine.optim import OptimWrapper

pytest.importorskip('mmpretrain')
timm = pytest.importorskip('timm')
scipy_stats = pytest.importorskip('scipy.stats')

from distilled_classifier import model, views  # noqa: E402
from distilled_classifier.views import TEACHER  # noqa: E402
from positional_encoding.claims import (  # noqa: E402
    REFUTED,
    SUPPORTED,
    UNDECIDED,
    UNTESTED,
)
from project_images import write_image  # noqa: E402
from size_experiment import experiment, run  # noqa: E402
from size_experiment.analysis import CONTRASTS, analyse, changes  # noqa: E402
from size_experiment.experiment import add_row, read_rows  # noqa: E402
from size_experiment.images import sealed_images, sealed_labels, write_lists  # noqa: E402
from size_experiment.protocol import (  # noqa: E402
    FINAL,
    PLAN,
    POSITIONS,
    RATE,
    ROWS,
    Run,
    choose_row,
    order,
    plan_digest,
    rates_to_try,
)
from size_experiment.report import verdict_text  # noqa: E402

SMALL = PLAN | dict(
    arch=dict(embed_dims=32, depth=2, num_heads=2, mlp_ratio=2),
    taps=[0, 1],
    train_size=16,
    sizes=[16, 32],
    seeds=[0, 1],
    rates=[1e-3],
    rate_limits=[1e-3, 1e-3],
    rate_epochs=2,
    epochs=3,
    steps=1,
    batch_size=4,
    views=1,
    teacher_size=32,
    held_out_every=2,
    dense_sizes=[0.5, 1.0],
    dense_iterations=4,
)
NARROW = """
model = dict(
    neck=dict(out_channels=32), decode_head=dict(in_channels=[32] * 4, channels=32))
train_dataloader = dict(batch_size=1)
"""


# -- the protocol
# --------------------------------------------------------------------------------------------------


@pytest.fixture
def data(tmp_path):
    """Twenty labelled images, and as many sealed ones: the class is the brightness."""
    rng = np.random.default_rng(0)
    for label in range(10):
        for number in range(2):
            for folder, side in (('data/imagenette/train', 32), ('sealed', 48)):
                pixels = rng.integers(0, 128, (side, side, 3)) + 12 * label
                write_image(tmp_path / f'{folder}/n{label}/{number}.webp', pixels)
    with ZipFile(tmp_path / 'sealed.zip', 'w') as archive:
        for file in sorted((tmp_path / 'sealed').rglob('*.webp')):
            archive.write(file, file.relative_to(tmp_path))
    return tmp_path / 'data'


@pytest.fixture
def call(data, scenes, tmp_path, monkeypatch):
    """The command line with a small plan and all data: ``call(stage, *words)``."""
    rng = np.random.default_rng(1)
    for number in range(4):
        file = data / f'tiny-imagenet-100/train/n0/{number}.jpeg'
        write_image(file, rng.integers(0, 128, (32, 32, 3)))
    scenes.rename(data / 'camvid')
    torch.manual_seed(1)
    torch.save(timm.create_model(TEACHER).state_dict(), tmp_path / 'teacher.pth')
    teacher = functools.cache(views.read_teacher)
    for module in (views, model):
        monkeypatch.setattr(module, 'read_teacher', teacher)
    for name, narrow in (('classifier', ''), ('segmentor', NARROW)):
        text = f'_base_ = {str(run.CONFIGS / name) + ".py"!r}\n{narrow}'
        (tmp_path / f'{name}.py').write_text(text)
    monkeypatch.setattr(run, 'CONFIGS', tmp_path)
    monkeypatch.setattr(run, 'PLAN', SMALL)
    monkeypatch.setattr(experiment, 'SHIPPED_SIZES', (56,))
    monkeypatch.chdir(tmp_path)
    for page in ('page.md', 'evidence.md'):
        marks = '<!-- size-experiment: begin -->\n<!-- size-experiment: end -->\n'
        Path(page).write_text(marks)
    options = dict(
        work='--sealed sealed.zip --teacher teacher.pth --rows rows.csv',
        read='--sealed sealed.zip --rows rows.csv --out sealed.csv',
        report='--rows rows.csv --out sealed.csv --page page.md --evidence evidence.md',
    )
    return lambda stage, *words: run.main([stage, *options[stage].split(), *words])


def test_the_commands_run_small_and_an_interrupted_run_ends_with_the_same_row(
    call, interrupted, monkeypatch
):
    call('work', '--runs', str(len(POSITIONS)))
    assert set(read_rows(Path('rows.csv'))['stage']) == {RATE}

    # The first final run is interrupted within its second epoch, and goes on from the first.
    shutil.copy('rows.csv', 'whole.csv')
    # The rates may be of another kind of processor.
    others = read_rows(Path('whole.csv')).assign(kind='another')
    others.to_csv('whole.csv', index=False)
    call('work', '--runs', '1', '--rows', 'whole.csv', '--work-dir', 'whole')
    with interrupted(OptimWrapper, 'update_params', 2):
        call('work')
    assert set(read_rows(Path('rows.csv'))['stage']) == {RATE}
    call('work', '--runs', '1')
    first = Run(FINAL, 'none', 0, 1e-3)
    folder = Path('work_dirs/size_experiment', first.name)
    assert 'resumed epoch: 1, iter: 1' in (folder / 'console.log').read_text()
    resumed, whole = (read_rows(Path(f'{name}.csv')).iloc[-1] for name in ('rows', 'whole'))
    assert tuple(resumed[[*Run._fields]]) == first
    measured = [name for name in resumed.index if name.startswith(('held', 'answers', 'miou'))]
    assert len(measured) == 6 and resumed[measured].equals(whole[measured])
    assert resumed['plan'] == plan_digest(SMALL) and resumed['precision'] == 'bfloat16'
    assert len(resumed['commits']) >= 40 and resumed['torch']

    # The trunk of the segmentor is that of the classifier.
    trunk, dense = (
        torch.load(folder / name)['state_dict'] for name in ('weights.pth', 'segmentor/weights.pth')
    )
    shared = [name for name in trunk if name in dense]
    assert len(shared) > 20 and all(torch.equal(trunk[name], dense[name]) for name in shared)

    check_refusals(call, monkeypatch)
    check_reading(call, resumed, monkeypatch)
    call('report')
    page, evidence = Path('page.md').read_text(), Path('evidence.md').read_text()
    assert page.count('PEG at 0-5 minus RoPE') == 2 and '| cpvt_tiny_gap-imagenette |' in page
    assert '(evidence/size_experiment.png)' in evidence
    for name in ('size_experiment', 'size_experiment_narrow'):
        assert Path(f'evidence/{name}.png').stat().st_size > 5000
    means = pd.read_csv('sealed.csv').groupby(['row', 'size'])['top1'].mean()
    cells = [cell.strip() for cell in evidence.split('| no encoding')[1].split('|')]
    assert cells[1:4] == [f'{means["none", 16]:.1f}', f'{means["none", 32]:.1f}', '']


def check_refusals(call, monkeypatch):
    """All runs are of one plan, and those of a stage of one kind of processor; a report needs a
    final run of each encoding.
    """
    with pytest.raises(ValueError, match=r"no final run is finished of \['peg', 'rope', 'table'\]"):
        call('report')
    with monkeypatch.context() as patch:
        patch.setattr(experiment, 'kind_of_processor', lambda: 'another')
        with pytest.raises(ValueError, match='--any-processor: the finished final runs are of'):
            call('work')
        patch.setattr(run, 'PLAN', SMALL | dict(epochs=4))
        with pytest.raises(ValueError, match='--rows: .* has rows of the plans'):
            call('work', '--any-processor', '--work-dir', 'other')


def check_reading(call, row, monkeypatch):
    """The sealed classes are read once, and not before all runs are finished."""
    with monkeypatch.context() as patch:
        patch.setattr(experiment, 'sealed_labels', lambda file: pytest.fail('read'))
        with pytest.raises(ValueError, match='has no finished run'):
            call('read', '--rows', 'none.csv')
        with pytest.raises(ValueError, match='lacks 7 runs'):
            call('read')
    rng = np.random.default_rng(0)
    for number, other in enumerate(order(read_rows(Path('rows.csv')), SMALL)[0]):
        answers = {
            f'answers_{size}': 'a' + ''.join(map(str, rng.integers(0, 10, 20)))
            for size in SMALL['sizes']
        }
        add_row(Path('rows.csv'), dict(row) | other._asdict() | answers | dict(miou_1=number))
    call('read')
    rows, sealed = read_rows(Path('rows.csv')), pd.read_csv('sealed.csv')
    assert order(rows, SMALL) == ([], 0) and len(rows) == len(POSITIONS) + len(ROWS) * 2
    assert len(sealed) == len(ROWS) * 2 * 2 + 1
    labels, answers = sealed_labels(Path('sealed.zip')), row['answers_16'][1:]
    right = sum(int(digit) == label for digit, label in zip(answers, labels, strict=True))
    (found,) = sealed.query('row == "none" and seed == 0 and size == 16')['top1']
    assert found == pytest.approx(100 * right / 20)
    with pytest.raises(FileExistsError, match='are read once'):
        call('read')


def test_the_order_of_the_sealed_images_does_not_tell_their_classes(data):
    file = data.with_name('sealed.zip')
    labels = sealed_labels(file)
    assert sorted(labels) == sorted([*range(10)] * 2) and labels != sorted(labels)
    brightness = [image.mean() for image in sealed_images(file)]
    by_class = pd.DataFrame(dict(label=labels, brightness=brightness)).groupby('label').mean()
    assert by_class['brightness'].is_monotonic_increasing


def test_lists_hold_out_every_nth_image_of_a_class(data, tmp_path):
    lists = write_lists(data / 'imagenette', tmp_path / 'lists', 2)
    for number, file in enumerate(lists):
        expected = [f'n{label}/{number}.webp {label}' for label in range(10)]
        assert file.read_text().splitlines() == expected


# -- choices and verdicts
# --------------------------------------------------------------------------------------------------


def trial(form, rate, held, mean):
    entry = {f'held_{size}': mean for size in PLAN['sizes']} | {'held_64': held}
    return dict(stage=RATE, form=form, seed=9, rate=rate) | entry


def test_rates_are_tried_beyond_the_best_one_within_the_limits():
    assert rates_to_try({}, PLAN) == [5e-4, 1e-3, 2e-3]
    inside = {5e-4: 40.0, 1e-3: 50.0, 2e-3: 45.0}
    assert rates_to_try(inside, PLAN) == []
    assert rates_to_try(inside | {2e-3: 55.0}, PLAN) == [4e-3]
    assert rates_to_try(inside | {2e-3: 55.0, 4e-3: 60.0}, PLAN) == []
    assert rates_to_try(inside | {5e-4: 50.0}, PLAN) == [2.5e-4], 'of equals the lowest'


def test_a_row_gets_the_rate_best_at_the_training_size_and_rope_the_form_best_at_all_sizes():
    rates = PLAN['rates']
    trials = [
        trial(form, rate, held, 30.0)
        for form in ('none', 'table', 'peg')
        for rate, held in zip(rates, (40.0, 50.0, 45.0), strict=True)
    ]
    mixed = [trial('rope-mixed', rate, 60.0 + 10 * (rate == 1e-3), 20.0) for rate in rates]
    rows = pd.DataFrame(trials + mixed)
    ready, waiting = order(rows, PLAN)
    assert ready[:3] == [Run(RATE, 'rope-dinov3', 9, rate) for rate in rates]
    assert ready[3:6] == [Run(FINAL, form, 0, 1e-3) for form in ('none', 'table', 'peg')]
    assert waiting == 3 and len(ready) == 12
    scaled = [trial('rope-dinov3', rate, 40.0 + 10 * (rate == 1e-3), 40.0) for rate in rates]
    rows = pd.DataFrame(trials + mixed + scaled)
    choice = choose_row(rows, 'rope', PLAN)
    assert choice[:2] == ('rope-dinov3', 1e-3) and choice.mean == pytest.approx(42.0)
    assert order(rows, PLAN)[0][3] == Run(FINAL, 'rope-dinov3', 0, 1e-3)


def synthetic(table_lead=4.0, peg=0.0, table=-10.0, rope=-8.0, noise=0.3):
    """Results at three sizes: each row changes alike up and down, its seeds by ``noise``."""
    lead = dict(none=0.0, table=table_lead, peg=6.0, rope=5.0)
    change = dict(none=-2.0, table=table, peg=peg, rope=rope)
    return pd.DataFrame(
        [
            dict(row=row, seed=seed, size=size, value=60.0 + lead[row] + off)
            for row in ROWS
            for seed in range(3)
            for size, off in (
                (32, change[row] + noise * (seed - 1) + 1),
                (64, 0.0),
                (128, change[row] + noise * (seed - 1) - 1),
            )
        ]
    )


def test_contrasts_pool_the_variance_of_all_rows_and_are_corrected():
    results = synthetic()
    assert changes(results, 64)['table'] == pytest.approx([-10.3, -10.0, -9.7])
    found = analyse(results, 64, [0, 1, 2])
    assert found.lead == pytest.approx(4.0)
    assert found.outcomes['peg'].mean == pytest.approx(2.0)
    assert found.outcomes['table'].mean == pytest.approx(-8.0)
    assert [(one.left, one.right) for one in found.contrasts] == list(CONTRASTS)
    # Eight degrees of freedom; the standard deviation of every row is 0.3.
    error = 0.3 * math.sqrt(2 / 3)
    first = found.contrasts[0]
    half = scipy_stats.t.ppf(0.975, 8) * error
    assert first.difference[:3] == pytest.approx((2.0, 2.0 - half, 2.0 + half))
    assert first.difference.p_value == pytest.approx(2 * scipy_stats.t.sf(2.0 / error, 8))
    p_values = sorted(one.difference.p_value for one in found.contrasts)
    assert sorted(one.p_value for one in found.contrasts)[0] == pytest.approx(3 * p_values[0])


@pytest.mark.parametrize(
    ('options', 'verdict'),
    [
        (dict(), SUPPORTED),
        (dict(table_lead=1.9), UNTESTED),
        (dict(rope=-0.1), UNDECIDED),
        (dict(rope=5.0), REFUTED),
        (dict(table=5.0, rope=-0.1), REFUTED),
        (dict(noise=9.0), UNDECIDED),
    ],
)
def test_verdict(options, verdict):
    assert analyse(synthetic(**options), 64, [0, 1, 2]).verdict == verdict


def test_a_claim_that_was_not_tested_says_why():
    found = analyse(synthetic(table_lead=1.9), 64, [0, 1, 2])
    assert verdict_text(found).endswith('from 2 points above no encoding, and has +1.9.')
    assert verdict_text(analyse(synthetic(), 64, [0, 1, 2])).endswith('**supported**.')


def test_the_pages_say_what_the_rows_say(tmp_path):
    pages = [Path(run.__file__).with_name('README.md'), run.EVIDENCE.with_suffix('.md')]
    copies = [shutil.copy(page, tmp_path) for page in pages]
    run.main(['report', '--page', str(copies[0]), '--evidence', str(copies[1])])
    assert [Path(copy).read_text() for copy in copies] == [page.read_text() for page in pages]


def test_fewer_seeds_are_no_answer():
    results = synthetic()
    with pytest.raises(ValueError, match=r"missing: \[\('rope', 2, 128\)\]"):
        analyse(results.iloc[:-1], 64, [0, 1, 2])
