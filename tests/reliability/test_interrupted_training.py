"""A training that is killed at any moment, or meets a full disk, resumes and ends with the weights
of a whole one.
"""

import os
import random
import resource
import shutil
import signal
import sys
from functools import partial
from pathlib import Path

import pytest

if sys.platform != 'linux':
    pytest.skip('the harness forks', allow_module_level=True)

import torch
from filelock import FileLock
from mmengine.evaluator import BaseMetric
from mmengine.registry import METRICS
from runs import (
    CHUNK,
    EPOCHS,
    LENGTH,
    STEP,
    NoisyImages,
    Process,
    ReliabilityModel,
    config,
    final_state,
    train,
)
from tiny import assert_equal_leaves, only

from cpvt_backbones.engine.checkpoint_hook import EXIT_PREEMPTED, INTERRUPTED, POINTER

SETTINGS = {
    'iterations': dict(),
    'iterations, validation': dict(validate=True),
    'iterations, workers': dict(workers=2),
    'epochs, accumulated gradients': dict(by_epoch=True, accumulate=3),
    'epochs, averaged weights': dict(by_epoch=True, validate=True, average=True),
    'persistent workers': dict(by_epoch=True, validate=True, workers=2, persistent=True),
    'two processes': dict(by_epoch=True, validate=True, processes=2),
    'mixed precision': dict(by_epoch=True, accumulate=3, average=True, amp=True),
    'strategy, epochs': dict(
        by_epoch=True, validate=True, average=True, workers=2, strategy='SingleDeviceStrategy'
    ),
    'strategy, iterations': dict(accumulate=3, validate=True, strategy='SingleDeviceStrategy'),
    'FSDP of two processes': dict(
        by_epoch=True, validate=True, processes=2, strategy='ResumableFSDPStrategy'
    ),
}


def run(folder: Path, *, resume: bool = True, **options) -> Process:
    log = folder.with_suffix('.log')
    return Process(lambda: train(config(folder, **options), resume=resume), log)


def stopped(folder: Path, steps: int, *, signal_number: int = signal.SIGKILL, **options) -> int:
    """Exit code of a training that gets a signal in its iteration ``steps``."""
    process = run(folder, **options)
    assert process.wait(STEP, steps)
    process.kill(signal_number)
    process.go_on()
    return process.finish()


@pytest.fixture(scope='session')
def whole(tmp_path_factory):
    """Final states of uninterrupted trainings, by setting."""
    states = {}

    def of(setting):
        if setting not in states:
            folder = tmp_path_factory.mktemp('whole') / 'run'
            assert run(folder, **SETTINGS[setting]).finish() == 0, folder.with_suffix(
                '.log'
            ).read_text()
            states[setting] = final_state(folder)
        return states[setting]

    return of


def assert_resumes(folder, expected, **options):
    """Without a word: nothing of the config or the checkpoint is another."""
    assert run(folder, **options).finish() == 0, folder.with_suffix('.log').read_text()
    assert_equal_leaves(expected, final_state(folder))
    assert 'resume: ' not in folder.with_suffix('.log').read_text()


def kill_and_resume(folder, expected, kills, *, event=STEP, **options):
    """Kill a training at the given occurrences of an event, each time resumed, then let it end.

    If it ends before a kill, that is the first one of the next training.
    """
    kills, rounds = [*kills], 0
    while kills:
        rounds += 1
        run_folder = folder / f'round_{rounds}'
        while kills:
            process = run(run_folder, **options)
            if not process.wait(event, kills[0]):
                assert process.finish() == 0, run_folder.with_suffix('.log').read_text()
                break
            process.kill()
            assert process.finish() == -signal.SIGKILL
            del kills[0]
        assert_resumes(run_folder, expected, **options)


MANY = pytest.param(15, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])


def moments(first, count, most):
    return [*first, *random.Random(count).choices(range(1, most + 1), k=count - len(first))]


@pytest.mark.parametrize('kills', [2, MANY], ids=['few', 'many'])
@pytest.mark.parametrize(
    'setting', only('epochs, averaged weights', 'strategy, iterations', of=SETTINGS)
)
def test_killed_trainings_end_as_whole_ones(setting, kills, whole, tmp_path):
    """Killed after the first validation, when its checkpoint was saved again, then in a later one.

    By epochs, that is the last one. Without validation, killed in two iterations.
    """
    options = SETTINGS[setting]
    first = [11, 5]
    if options.get('validate'):  # of eight batches, with averaged weights twice
        iterations = 8 if options.get('by_epoch') else 4
        first = [iterations + 8 * (1 + options.get('average', False)) + 2, 11]
    kill_and_resume(tmp_path, whole(setting), moments(first, kills, 14), **options)


@pytest.mark.full
def test_fsdp_resumes_no_classes_in_another_order_and_no_other_layers(tmp_path):
    """Its processes have parts of the weights, so a checkpoint is compared in another way."""
    options, folder = SETTINGS['FSDP of two processes'], tmp_path / 'run'
    stopped(folder, 12, **options)
    assert (folder / 'epoch_1.pth').is_file()

    def changed(change):
        change()
        train(config(folder, **options), resume=True)

    def rename():
        NoisyImages.metainfo = dict(classes=('b', 'a'))

    def grow():
        ReliabilityModel.depth = 3

    wanted = {
        rename: 'the same classes in another order',
        grow: 'state_dict has no backbone.blocks.2',
    }
    for change, text in wanted.items():
        process = Process(partial(changed, change), log := tmp_path / f'{change.__name__}.log')
        assert process.finish() == 1
        assert text in log.read_text()


@pytest.mark.full
def test_validation_and_workers_draw_none_of_the_trainings_numbers(whole):
    plain = whole('iterations')['state_dict']
    for setting in ('iterations, validation', 'iterations, workers'):
        assert_equal_leaves(plain, whole(setting)['state_dict'])


@pytest.mark.full
@pytest.mark.parametrize('kills', [1, MANY], ids=['few', 'many'])
@pytest.mark.parametrize('setting', ['iterations', 'epochs, averaged weights'])
def test_trainings_killed_while_they_save_end_as_whole_ones(setting, kills, whole, tmp_path):
    kills = moments((20,), kills, 24)
    kill_and_resume(tmp_path, whole(setting), kills, event=CHUNK, **SETTINGS[setting])


@pytest.mark.full
@pytest.mark.parametrize(
    ('setting', 'number'),
    [('iterations', signal.SIGTERM), ('epochs, accumulated gradients', signal.SIGINT)],
)
def test_a_signal_saves_and_exits(setting, number, whole, tmp_path):
    """After the iteration at hand, within an epoch too, with the code that schedulers requeue."""
    folder, options = tmp_path / 'run', SETTINGS[setting]
    for steps in (3, 9):
        assert stopped(folder, steps, signal_number=number, **options) == EXIT_PREEMPTED
    assert (folder / POINTER).read_text().endswith('.pth')
    assert_resumes(folder, whole(setting), **options)
    assert not (folder / INTERRUPTED).exists()


@pytest.mark.full
@pytest.mark.parametrize('setting', ['iterations, validation', 'epochs, averaged weights'])
def test_a_signal_ends_a_validation_whose_iteration_is_saved(setting, whole, tmp_path):
    """A resume repeats the validation."""
    folder, options = tmp_path / 'run', SETTINGS[setting]
    in_validation = (LENGTH if options.get('by_epoch') else 4) + 2
    exit_code = stopped(folder, in_validation, signal_number=signal.SIGTERM, **options)
    assert exit_code == EXIT_PREEMPTED
    assert not (folder / INTERRUPTED).exists()  # which the next iteration would have saved
    assert run(folder, **options).finish() == 0, folder.with_suffix('.log').read_text()
    assert_equal_leaves(whole(setting), final_state(folder))


@pytest.mark.full
@pytest.mark.parametrize(
    ('setting', 'number'),
    [('persistent workers', signal.SIGTERM), ('iterations, workers', signal.SIGINT)],
)
def test_a_signal_to_the_whole_process_group_saves_and_exits(setting, number, whole, tmp_path):
    """As a scheduler or a terminal sends it, to the workers too."""
    folder = tmp_path / 'run'
    process = run(folder, **SETTINGS[setting])
    assert process.wait(STEP, 5)
    os.killpg(process.pid, number)
    process.go_on()
    assert process.finish() == EXIT_PREEMPTED, folder.with_suffix('.log').read_text()
    assert (folder / INTERRUPTED).is_file()
    assert_resumes(folder, whole(setting), **SETTINGS[setting])


@pytest.mark.full
@pytest.mark.parametrize(('before', 'after'), [(1, 2), (2, 1)])
def test_a_resume_with_another_number_of_processes_goes_on_by_samples(before, after, tmp_path):
    folder, log = tmp_path / 'run', tmp_path / 'run.log'
    # Two processes agree to stop after ten iterations.
    stopped(folder, 5, signal_number=signal.SIGTERM, by_epoch=True, processes=before)
    assert (folder / INTERRUPTED).is_file()
    resumed = run(folder, by_epoch=True, processes=after, batch_size=4)
    assert resumed.finish() == 0, log.read_text()
    content = torch.load(folder / f'epoch_{EPOCHS}.pth', weights_only=False)
    assert content['meta']['iter'] == EPOCHS * LENGTH // 4
    assert len(content['message_hub']['runtime_info']['random_states']) == after


@pytest.mark.full
def test_a_second_interrupt_stops_at_once(tmp_path):
    folder = tmp_path / 'run'
    process = run(folder)
    assert process.wait(STEP, 2)
    process.kill(signal.SIGINT)
    process.go_on()
    assert process.wait(CHUNK, 1)
    process.kill(signal.SIGINT)
    assert process.finish() == 1
    assert 'KeyboardInterrupt' in folder.with_suffix('.log').read_text()
    assert not list(folder.glob('*.pth'))


@pytest.mark.full
def test_a_full_disk_loses_no_checkpoint(whole, tmp_path):
    folder = tmp_path / 'run'
    stopped(folder, 7)
    before = (folder / 'iter_4.pth').read_bytes()

    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2,) * 2)
        train(config(folder), resume=True)

    process = Process(limited, tmp_path / 'full.log')
    assert process.finish() == 1
    assert 'File too large' in (tmp_path / 'full.log').read_text()
    assert [path.name for path in folder.glob('*.pth*')] == ['iter_4.pth']
    assert (folder / 'iter_4.pth').read_bytes() == before
    assert_resumes(folder, whole('iterations'))


@pytest.fixture(scope='module')
def stopped_with_two(tmp_path_factory):
    """A work directory with the checkpoints of iterations 8 and 12."""
    folder = tmp_path_factory.mktemp('two') / 'run'
    stopped(folder, 14, max_keep_ckpts=2)
    assert sorted(path.name for path in folder.glob('*.pth')) == ['iter_12.pth', 'iter_8.pth']
    return folder


@pytest.fixture
def two_kept(stopped_with_two, tmp_path):
    """A copy of it, elsewhere."""
    return Path(shutil.copytree(stopped_with_two, tmp_path / 'moved'))


@pytest.mark.full
def test_a_moved_work_directory_resumes_from_its_last_readable_checkpoint(two_kept, whole):
    newest = two_kept / 'iter_12.pth'
    newest.write_bytes(newest.read_bytes()[:1000])
    assert_resumes(two_kept, whole('iterations'), max_keep_ckpts=2)


@pytest.mark.full
def test_no_silent_start_from_zero(two_kept):
    for path in two_kept.glob('*.pth'):
        path.write_bytes(b'')
    assert run(two_kept).finish() == 1
    log = two_kept.with_suffix('.log').read_text()
    assert 'none of the checkpoints in' in log and 'can be read' in log


@pytest.mark.full
def test_a_second_training_in_the_work_directory_is_refused(tmp_path):
    folder = tmp_path / 'run'
    first = run(folder)
    assert first.wait(STEP, 1)
    second = Process(lambda: train(config(folder)), tmp_path / 'second.log')
    assert second.finish() == 1
    assert f'another training runs in {str(folder)!r}' in (tmp_path / 'second.log').read_text()
    first.go_on()
    assert first.finish() == 0


@pytest.mark.full
def test_a_training_that_fails_releases_the_signals_and_the_folder(tmp_path):
    folder = tmp_path / 'run'

    def failed():
        before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
        cfg = config(folder)
        cfg.train_dataloader.collate_fn = dict(
            type='pseudo_collate'
        )  # which the model does not take
        with pytest.raises(TypeError):
            train(cfg)
        assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
        with FileLock(folder / '.lock', blocking=False):
            pass

    process = Process(failed, tmp_path / 'log')
    while process.wait(STEP, 1):
        process.go_on()
    assert process.finish() == 0, (tmp_path / 'log').read_text()


@METRICS.register_module()
class RisingMetric(BaseMetric):
    """A metric that improves at every validation."""

    default_prefix = 'test'
    score = 0

    def process(self, data_batch, data_samples):
        self.results.append(1)

    def compute_metrics(self, results):
        self.score += 1
        return dict(score=self.score)


@pytest.mark.full
def test_the_previous_best_checkpoint_is_deleted_after_the_next_is_written(tmp_path):
    folder, log = tmp_path / 'run', tmp_path / 'log'

    def validated():
        remove = os.remove

        def remove_and_print(path):
            print('removes', Path(path).name, 'of', *sorted(f.name for f in folder.glob('best_*')))
            remove(path)

        os.remove = remove_and_print
        cfg = config(folder, validate=True)
        cfg.val_evaluator.type = 'RisingMetric'
        cfg.train_cfg.val_interval = 6
        train(cfg)

    assert Process(validated, log).finish() == 0, log.read_text()
    first, second, third = (f'best_test_score_iter_{step}.pth' for step in (6, 12, 16))
    removals = {line for line in log.read_text().splitlines() if line.startswith('removes best_')}
    assert removals == {
        f'removes {first} of {second} {first}',
        f'removes {second} of {second} {third}',
    }
    assert [file.name for file in folder.glob('best_*')] == [third]
