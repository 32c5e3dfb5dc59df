"""What a resumed training takes from its checkpoint, and what it refuses."""

import errno
import os

import pytest
import torch
from mmengine.hooks import CheckpointHook, Hook
from mmengine.runner import FlexibleRunner, Runner
from short_runs import SAMPLES, Damage, Numbered, Regression, Stop, StopAfter, run
from torch import nn

from cpvt_backbones.checkpoints import CheckpointError
from cpvt_backbones.engine import DurableCheckpointHook, ResumableFlexibleRunner, ResumableRunner
from cpvt_backbones.engine.training_checks import NotFiniteError

KINDS = [ResumableRunner, ResumableFlexibleRunner]


@pytest.mark.parametrize('batch_size', [1, 4, 8, 16, 5])
def test_a_resume_with_another_batch_size_starts_the_next_epoch_whole(batch_size, tmp_path):
    run(tmp_path, epochs=2)
    resumed = run(tmp_path, epochs=4, batch_size=batch_size, resume=True)
    length = -(-SAMPLES // batch_size)
    assert resumed.iter == 4 * length
    assert len(resumed.read) == 2 * SAMPLES
    for epoch in (resumed.read[:SAMPLES], resumed.read[SAMPLES:]):
        assert sorted(epoch) == list(range(SAMPLES))


@pytest.mark.parametrize(('batch_size', 'again'), [(1, 0), (2, 0), (3, 0), (4, 2), (8, 6)])
def test_within_an_epoch_a_resume_goes_on_after_the_samples_that_were_read(
    batch_size, again, tmp_path, warnings
):
    """Six samples of the second epoch were read, in the order of a whole training."""
    by_iteration = dict(interval=1, by_epoch=False)
    whole = run(tmp_path / 'whole', epochs=2)
    options = dict(epochs=2, checkpoint=by_iteration)
    broken = run(tmp_path / 'run', hooks=[StopAfter(11)], **options)
    assert broken.read == whole.read[:22]
    resumed = run(tmp_path / 'run', batch_size=batch_size, resume=True, **options)
    unread = whole.read[22 - again :]
    assert resumed.read[: len(unread)] == unread  # the last batch may be filled up
    said = [line for line in warnings if f'batches have {batch_size} samples, they had 2' in line]
    assert bool(said) == (batch_size != 2)
    assert all('goes on after 6 of its samples' in line for line in said)
    assert all((f'{again} of which are read again' in line) == bool(again) for line in said)


def test_by_iterations_a_resume_goes_on_by_samples(tmp_path):
    whole = run(tmp_path / 'whole', iterations=20)
    run(tmp_path / 'run', iterations=10)
    larger = run(tmp_path / 'run', iterations=13, batch_size=4, resume=True)
    assert larger.iter == 13
    assert larger.read == whole.read[20:32]
    again = run(tmp_path / 'run', iterations=17, resume=True)  # with the first batch size
    assert again.read == whole.read[32:40]


COSINE = dict(type='CosineAnnealingLR', by_epoch=False, eta_min=0.001)


def cosine(iterations):
    return [{**COSINE, 'T_max': iterations, 'end': iterations}]


def warm_cosine(iterations):
    warm = dict(type='LinearLR', start_factor=0.1, by_epoch=False, begin=0, end=4)
    return [warm, {**COSINE, 'T_max': iterations - 4, 'begin': 4, 'end': iterations}]


def steps(iterations):
    milestones = [iterations // 2, iterations * 3 // 4]
    return [dict(type='MultiStepLR', by_epoch=False, milestones=milestones, gamma=0.1)]


def poly_and_momentum(iterations):
    momentum = dict(type='CosineAnnealingMomentum', by_epoch=False, T_max=iterations, eta_min=0.5)
    return [dict(type='PolyLR', by_epoch=False, power=0.9, end=iterations), momentum]


@pytest.mark.parametrize('schedule', [cosine, warm_cosine, steps, poly_and_momentum])
def test_a_longer_training_has_the_rates_of_its_own_schedule(schedule, tmp_path, warnings):
    """Not those of the shorter schedule, which has ended."""
    whole = run(tmp_path / 'whole', iterations=40, schedule=schedule(40))
    run(tmp_path / 'run', iterations=20, schedule=schedule(20))
    longer = run(tmp_path / 'run', iterations=40, schedule=schedule(40), resume=True)
    assert list(longer.rates) == list(range(20, 40))
    for iteration, rate in longer.rates.items():
        assert rate == pytest.approx(whole.rates[iteration], rel=1e-9), iteration
    momentum = whole.optim_wrapper.optimizer.param_groups[0]['momentum']
    assert longer.optim_wrapper.optimizer.param_groups[0]['momentum'] == pytest.approx(momentum)
    wanted = "the learning rate schedule is not the one of the checkpoint; it is the config's"
    assert any(wanted in text for text in warnings)


@pytest.mark.parametrize('convert', [False, True], ids=['an epoch', 'an iteration'])
def test_a_longer_training_by_epochs(convert, tmp_path):
    def schedule(epochs):
        options = dict(T_max=epochs, by_epoch=True, end=epochs, convert_to_iter_based=convert)
        return [dict(type='CosineAnnealingLR', **options)]

    whole = run(tmp_path / 'whole', epochs=4, schedule=schedule(4))
    run(tmp_path / 'run', epochs=2, schedule=schedule(2))
    longer = run(tmp_path / 'run', epochs=4, schedule=schedule(4), resume=True)
    assert list(longer.rates) == list(range(16, 32))
    for iteration, rate in longer.rates.items():
        assert rate == pytest.approx(whole.rates[iteration], rel=1e-9), iteration


@pytest.mark.parametrize('schedule', [warm_cosine, poly_and_momentum])
def test_an_edited_schedule_is_made_again_from_the_config(schedule, tmp_path, warnings):
    options = dict(iterations=20, schedule=schedule(20))
    whole = run(tmp_path / 'whole', **options)
    content = torch.load(tmp_path / 'whole/iter_10.pth', weights_only=False)
    content['optimizer']['param_groups'][0]['lr'] = 0.7
    content['param_schedulers'][0].update(last_step=3, _global_step=5)
    torch.save(content, tmp_path / 'edited.pth')
    file = str(tmp_path / 'edited.pth')
    resumed = run(tmp_path / 'next', resume=True, load_from=file, **options)
    assert resumed.rates == {key: rate for key, rate in whole.rates.items() if key >= 10}
    assert torch.equal(resumed.model.layer.weight, whole.model.layer.weight)
    assert any('the learning rate schedule is not the one of the checkpoint' in w for w in warnings)


def test_a_config_without_a_seed_resumes_in_the_same_order(tmp_path):
    """The seed is drawn anew at each start, and the sampler has it before the checkpoint is
    read.
    """
    options = dict(epochs=2, seed=None, checkpoint=dict(interval=1, by_epoch=False))
    first = run(tmp_path, hooks=[StopAfter(11)], **options)
    second = run(tmp_path, resume=True, **options)
    order = first.read[:22] + second.read
    assert sorted(order[:16]) == sorted(order[16:32]) == list(range(16))


@pytest.mark.parametrize('kind', KINDS)
def test_other_classes_are_not_resumed(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(Numbered, 'metainfo', dict(classes=('a', 'b')), raising=False)
    run(tmp_path, epochs=1, kind=kind)
    monkeypatch.setattr(Numbered, 'metainfo', dict(classes=('b', 'a')))
    wanted = r'the same classes in another order: \(a, b\), the config has \(b, a\)'
    with pytest.raises(CheckpointError, match=wanted):
        run(tmp_path, epochs=2, kind=kind, resume=True)


@pytest.mark.parametrize('metric', ['score', 'auto'])
def test_a_best_checkpoint_that_a_kill_has_left_is_deleted(metric, tmp_path):
    """A kill after the next one was written and before the previous one was deleted."""

    class Killed(DurableCheckpointHook):
        def _delete_files(self, names):
            names = [*names]
            if any('best' in name for name in names):
                raise Stop
            super()._delete_files(names)

    options = dict(validate=True, optimizer=dict(type='SGD', lr=0.01))
    options |= dict(checkpoint=dict(save_best=metric, rule='greater'))
    other = tmp_path / 'run' / 'best_recall_epoch_1.pth'  # of another metric
    run(tmp_path / 'run', epochs=3, hook_type=Killed, **options)
    names = [file.name for file in sorted((tmp_path / 'run').glob('best_*'))]
    assert names == ['best_score_epoch_1.pth', 'best_score_epoch_2.pth']
    other.write_bytes((tmp_path / 'run' / names[0]).read_bytes())
    os.utime(other, (1, 1))
    run(tmp_path / 'run', epochs=3, resume=True, **options)
    left = {file.name for file in (tmp_path / 'run').glob('best_*')}
    assert left == {'best_score_epoch_3.pth', other.name}


@pytest.mark.parametrize('kind', [Runner, FlexibleRunner])
def test_with_mmengines_own_runner_data_and_schedule_go_on_as_mmengine_does(
    kind, tmp_path, warnings
):
    """Checkpoints are complete, rates are right, and the log says what is missing."""
    schedule = [dict(type='CosineAnnealingLR', T_max=8, by_epoch=True, begin=0, end=8)]
    options = dict(epochs=8, schedule=schedule, kind=kind, checkpoint=dict(max_keep_ckpts=-1))
    whole = run(tmp_path, **options)
    start = str(tmp_path / 'epoch_3.pth')
    resumed = run(tmp_path / 'resumed', resume=True, load_from=start, **options)
    assert [*resumed.rates] == [*range(24, 64)]
    for step, rate in resumed.rates.items():
        assert rate == pytest.approx(whole.rates[step], rel=1e-9)
    assert [line for line in warnings if "runner_type='ResumableRunner' ends with" in line]


@pytest.mark.parametrize('drop', [False, True], ids=['no dropout', 'dropout'])
@pytest.mark.parametrize('length', [dict(epochs=4), dict(iterations=20)], ids=['epochs', 'iters'])
def test_with_mmengines_own_hook_a_resume_reads_the_same_data(length, drop, tmp_path, warnings):
    """As ``cpvt train`` builds it for a stock config; only dropout draws other numbers."""

    def train(folder, **options):
        layer = nn.Sequential(nn.Dropout(), nn.Linear(3, 1)) if drop else nn.Linear(3, 1)
        kept = dict(max_keep_ckpts=-1)
        options |= dict(length, hook_type=CheckpointHook, checkpoint=kept)
        return run(folder, model=Regression(layer), **options)

    whole = train(tmp_path)
    start = tmp_path / ('epoch_2.pth' if 'epochs' in length else 'iter_10.pth')
    resumed = train(tmp_path / 'resumed', resume=True, load_from=str(start))
    assert resumed.read == whole.read[len(whole.read) // 2 :]
    assumed = [line for line in warnings if '10 batches of 2 samples count as read' in line]
    assert len(assumed) == ('iterations' in length)
    pairs = zip(whole.model.parameters(), resumed.model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs) == (not drop)


def test_a_training_of_mmengine_alone_goes_on_with_both_lines(tmp_path, warnings):
    """Weights, optimizer, schedule and order of the data; the file has no random states."""
    stock = dict(kind=Runner, hook_type=CheckpointHook, checkpoint=dict(max_keep_ckpts=-1))
    whole = run(tmp_path, epochs=4, **stock)
    start = str(tmp_path / 'epoch_2.pth')
    resumed = run(tmp_path / 'resumed', epochs=4, resume=True, load_from=start)
    assert resumed.rates == {step: whole.rates[step] for step in resumed.rates}
    assert resumed.read == whole.read[len(whole.read) // 2 :]
    pairs = zip(whole.model.parameters(), resumed.model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


@pytest.mark.parametrize('value', [float('nan'), float('inf')])
def test_a_loss_that_is_not_finite_ends_the_training(value, tmp_path):
    """With the images and the learning rate; the checkpoint before it stays, and resumes."""
    match = r'loss is (nan|inf) in iteration 15, at learning rate 0\.1, with the images '
    match += r"'photos/\d+.jpg', 'photos/\d+.jpg'; the checkpoints in .* are kept"
    with pytest.raises(NotFiniteError, match=match):
        run(tmp_path, iterations=20, hooks=[Damage(value, before=15)])
    assert [file.name for file in tmp_path.glob('*.pth')] == ['iter_10.pth']
    assert run(tmp_path, iterations=20, resume=True).iter == 20


def test_a_gradient_norm_that_is_not_finite_ends_the_training(tmp_path):
    class Overflow(Hook):
        def before_train_iter(self, runner, batch_idx, data_batch=None):
            if runner.iter == 6:
                runner.model.layer.weight.register_hook(lambda gradient: gradient * float('inf'))

    with pytest.raises(NotFiniteError, match='the gradient norm is (nan|inf) in iteration 7'):
        run(
            tmp_path,
            iterations=20,
            hooks=[Overflow()],
            optim_wrapper=dict(clip_grad=dict(max_norm=1.0)),
        )


def test_weights_that_are_not_finite_are_not_saved(tmp_path):
    """The loss of the iteration that spoils them was still finite."""
    with pytest.raises(NotFiniteError, match='layer.weight is NaN or infinite after iteration 10'):
        run(tmp_path, iterations=20, hooks=[Damage(float('nan'), after=10)])
    assert not list(tmp_path.glob('*.pth'))


@pytest.mark.parametrize('code', [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_trains_with_a_warning(code, tmp_path, monkeypatch, warnings):
    fcntl = pytest.importorskip('fcntl')

    def flock(*_):
        raise OSError(code, 'No locks available')

    monkeypatch.setattr(fcntl, 'flock', flock)
    assert run(tmp_path, iterations=10).iter == 10
    assert len([line for line in warnings if 'cannot be locked (No locks available)' in line]) == 1
