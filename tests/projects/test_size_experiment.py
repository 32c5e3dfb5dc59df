"""The planned experiment in miniature, with a kill and a resume, and its analysis on synthetic
numbers.
"""

import functools
import math
import multiprocessing
import os
import signal
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pandas as pd
import pytest
import torch
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from PIL import Image

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
from size_experiment import experiment, training  # noqa: E402
from size_experiment.analysis import CONTRASTS, analyse, changes  # noqa: E402
from size_experiment.experiment import (  # noqa: E402
    CONFIGS,
    Files,
    SizeExperiment,
    add_row,
    read_rows,
    read_sealed,
)
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
from size_experiment.report import write_report  # noqa: E402
from size_experiment.training import PartSampler  # noqa: E402

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


@HOOKS.register_module(force=True)
class KillInSecondEpoch(Hook):
    def after_train_iter(self, runner, *args, **kwargs):
        if runner.iter == 1:
            os.kill(os.getpid(), signal.SIGKILL)


class KilledExperiment(SizeExperiment):
    """Its first run is killed within the second epoch."""

    def config(self, run):
        # In this process alone: yapf takes longer than the run.
        Config.pretty_text = property(lambda self: str(self._cfg_dict.to_dict()))
        cfg = super().config(run)
        cfg.custom_hooks.append(dict(type='KillInSecondEpoch'))
        return cfg


def write_image(file, side, label, rng, suffix):
    pixels = rng.integers(0, 128, (side, side, 3), dtype=np.uint8) + np.uint8(12 * label)
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(file.with_suffix(suffix))


@pytest.fixture
def files(tmp_path, scenes):
    """Twenty labelled images, four others, twenty sealed ones, and a teacher of random weights."""
    rng = np.random.default_rng(0)
    data = tmp_path / 'data'
    for label in range(10):
        for number in range(2):
            write_image(data / f'imagenette/train/n{label}/{number}', 32, label, rng, '.webp')
            write_image(tmp_path / f'sealed/n{label}/{number}', 48, label, rng, '.webp')
    for number in range(4):
        write_image(data / f'tiny-imagenet-100/train/n0/{number}', 32, 0, rng, '.jpeg')
    scenes.rename(data / 'camvid')
    for file in (data / 'camvid').rglob('*.*'):
        if int(file.stem) >= 4:
            file.unlink()
    with ZipFile(tmp_path / 'sealed.zip', 'w') as archive:
        for file in sorted((tmp_path / 'sealed').rglob('*.webp')):
            archive.write(file, file.relative_to(tmp_path))
    torch.manual_seed(1)
    torch.save(timm.create_model(TEACHER).state_dict(), tmp_path / 'teacher.pth')
    return Files(data, tmp_path / 'sealed.zip', tmp_path / 'teacher.pth', tmp_path / 'runs.csv')


def make(folder, files, **options):
    configs = {name: CONFIGS / f'{name}.py' for name in ('classifier', 'segmentor')}
    return SizeExperiment(folder, SMALL, configs, files, **options)


@pytest.fixture
def cached_teacher(monkeypatch):
    """Build the teacher once, and do not collect garbage for each data set."""
    monkeypatch.setattr('gc.collect', lambda *args: 0)
    teacher = functools.cache(views.read_teacher)
    for module in (views, model):
        monkeypatch.setattr(module, 'read_teacher', teacher)


@pytest.mark.usefixtures('cached_teacher')
def test_the_protocol_in_miniature_with_a_kill_and_a_resume(tmp_path, files, monkeypatch, capfd):
    files.check()
    one = make(tmp_path / 'work', files)
    assert len(one.pending()[0]) == len(POSITIONS)
    one.runs = len(POSITIONS)
    one.work()
    assert set(read_rows(files.rows)['stage']) == {RATE}

    # The first final run is killed within its second epoch, and goes on from the first.
    whole = make(tmp_path / 'whole', Files(*[*vars(files).values()][:3], tmp_path / 'whole.csv'))
    (tmp_path / 'whole.csv').write_bytes(files.rows.read_bytes())
    whole.runs = 1
    whole.work()
    final = make(tmp_path / 'work', files)
    first = final.pending()[0][0]
    assert first == Run(FINAL, 'none', 0, 1e-3)
    killed = KilledExperiment(final.folder, SMALL, final.configs, files)
    process = multiprocessing.get_context('spawn').Process(target=killed.work)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert final.record(first) is None
    final.work()
    assert (
        'resumed epoch: 1, iter: 1' in (tmp_path / 'work' / first.name / 'console.log').read_text()
    )
    assert f'{first.name}: epoch 3 of 3' in capfd.readouterr().err

    rows = read_rows(files.rows)
    assert order(rows, SMALL) == ([], 0)
    assert len(rows) == len(POSITIONS) + len(ROWS) * 2
    (uninterrupted,) = (
        read_rows(tmp_path / 'whole.csv').query('stage == "final"').to_dict('records')
    )
    resumed = final.record(first)
    measured = [name for name in resumed if name.startswith(('held', 'answers', 'miou'))]
    assert len(measured) == 6
    assert {name: resumed[name] for name in measured} == {
        name: uninterrupted[name] for name in measured
    }
    assert set(rows['plan']) == {plan_digest(SMALL)}
    assert rows['commits'].str.len().ge(40).all() and rows['torch'].notna().all()
    assert set(rows['precision']) == {'bfloat16'}

    # The trunk of the segmentor is that of the classifier.
    trunk = torch.load(tmp_path / 'work' / first.name / 'weights.pth')['state_dict']
    dense = torch.load(tmp_path / 'work' / first.name / 'segmentor/weights.pth')['state_dict']
    shared = [name for name in trunk if name in dense]
    assert len(shared) > 20
    assert all(torch.equal(trunk[name], dense[name]) for name in shared)

    monkeypatch.setattr(experiment, 'SHIPPED', {})
    out = tmp_path / 'sealed.csv'
    sealed = read_sealed(files.rows, files.sealed, SMALL, out)
    assert len(sealed) == len(ROWS) * 2 * 2
    with pytest.raises(FileExistsError, match='are read once'):
        read_sealed(files.rows, files.sealed, SMALL, out)
    check_report(rows, pd.read_csv(out), tmp_path)


def check_report(rows, sealed, folder):
    """Both pages are filled, and the chart is drawn."""
    page, evidence = folder / 'page.md', folder / 'evidence.md'
    for file in (page, evidence):
        file.write_text('<!-- size-experiment: begin -->\n<!-- size-experiment: end -->\n')
    text = write_report(rows, sealed, SMALL, page, evidence)
    assert text in page.read_text()
    assert text.count('PEG at 0-5 minus RoPE') == 2
    assert '(evidence/size_experiment.png)' in evidence.read_text()
    assert (folder / 'evidence/size_experiment.png').stat().st_size > 5000


def test_a_run_on_another_kind_of_processor_or_of_another_plan_is_refused(tmp_path, files):
    rows = dict(stage=RATE, form='none', seed=9, rate=1e-3, held_16=50.0, held_32=40.0)
    add_row(files.rows, rows | dict(plan=plan_digest(SMALL), kind='another'))
    with pytest.raises(ValueError, match=r"--any-processor: the finished runs are of \['another'"):
        make(tmp_path / 'work', files)
    make(tmp_path / 'work', files, any_processor=True)
    add_row(files.rows, rows | dict(plan='0', kind='another'))
    with pytest.raises(ValueError, match='--rows: .* has rows of the plans'):
        make(tmp_path / 'work', files, any_processor=True)


def test_no_sealed_class_is_read_before_all_runs_are_finished(tmp_path, files, monkeypatch):
    monkeypatch.setattr(
        experiment, 'sealed_labels', lambda file: pytest.fail('the classes were read')
    )
    with pytest.raises(ValueError, match='has no finished run'):
        read_sealed(files.rows, files.sealed, SMALL, tmp_path / 'out.csv')
    row = dict(stage=RATE, form='none', seed=9, rate=1e-3, held_16=50.0, held_32=40.0)
    add_row(files.rows, row)
    with pytest.raises(ValueError, match='lacks 12 runs'):
        read_sealed(files.rows, files.sealed, SMALL, tmp_path / 'out.csv')
    with pytest.raises(FileNotFoundError, match='--sealed: there is no'):
        Files(files.data, tmp_path / 'none.zip', files.teacher, files.rows).check()


def test_the_order_of_the_sealed_images_does_not_tell_their_classes(files):
    labels = sealed_labels(files.sealed)
    assert sorted(labels) == sorted([*range(10)] * 2) and labels != sorted(labels)
    # The class is the brightness of the image.
    brightness = [image.mean() for image in sealed_images(files.sealed)]
    by_class = pd.DataFrame(dict(label=labels, brightness=brightness)).groupby('label').mean()
    assert by_class['brightness'].is_monotonic_increasing


def test_lists_hold_out_every_nth_image_of_a_class(tmp_path, files):
    train, held = write_lists(files.data / 'imagenette', tmp_path / 'lists', 2)
    assert train.read_text().splitlines() == [f'n{label}/0.webp {label}' for label in range(10)]
    assert held.read_text().splitlines() == [f'n{label}/1.webp {label}' for label in range(10)]
    with pytest.raises(ValueError, match='too few images'):
        write_lists(files.data / 'imagenette', tmp_path / 'lists', 3)


def test_epochs_pass_over_all_samples_before_one_comes_again():
    sampler = PartSampler(range(10), length=4, seed=3)
    seen = []
    for epoch in range(5):
        sampler.set_epoch(epoch)
        seen += list(sampler)
        assert len(sampler) == 4
    assert sorted(seen[:10]) == sorted(seen[10:]) == [*range(10)]
    assert seen[:10] != seen[10:]
    sampler.set_epoch(3)
    assert list(sampler) == seen[12:16]
    assert list(PartSampler(range(10), length=4, seed=4)) != seen[:4]


def test_the_progress_line_names_the_end_of_the_run_and_of_those_after_it(capsys, monkeypatch):
    hook = training.ProgressLine('peg', epochs_after=60)
    clock = iter([100.0, 160.0])
    monkeypatch.setattr(training.time, 'monotonic', lambda: next(clock))

    class Runner:
        epoch, max_epochs = 4, 20

    hook.before_train_epoch(Runner)
    hook.after_train_epoch(Runner)
    assert capsys.readouterr().err == (
        'peg: epoch 5 of 20, 60 s; trained in 15 min; the runs after it take 1.0 h of one core\n'
    )


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


def test_fewer_seeds_are_no_answer():
    results = synthetic()
    with pytest.raises(ValueError, match=r"missing: \[\('rope', 2, 128\)\]"):
        analyse(results.iloc[:-1], 64, [0, 1, 2])


def test_the_configs_of_shipped_classifiers_take_the_shipped_weights():
    for name, config in experiment.SHIPPED.items():
        shipped = experiment.shipped_classifier(name, config)
        image = np.zeros((48, 48, 3), np.uint8)
        assert experiment.answer(shipped, [image], 56)[0] in range(10)
        assert Path(config).suffix == '.py'
