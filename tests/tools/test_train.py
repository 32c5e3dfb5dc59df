"""train.py: mixed precision, weights to start from."""

import errno
import shlex
from types import SimpleNamespace

import pytest
import torch
from mmengine.optim import OptimWrapper
from mmengine.registry import RUNNERS
from mmengine.runner import Runner
from tiny import only
from tiny_configs import classification
from torch import nn

from cpvt_backbones.analysis.complexity import build_model
from cpvt_backbones.engine import launch
from cpvt_backbones.toolboxes import read_config

pytest.importorskip('mmpretrain')


@pytest.fixture
def classifier(tmp_path):
    return classification(None, tmp_path)[0]


@pytest.fixture
def built():
    """Configs of the runners that trainings with ``runner_type=Idle`` build, which do nothing."""
    configs = []

    class Idle:
        @classmethod
        def from_cfg(cls, cfg):
            configs.append(cfg)
            return cls()

        def train(self):
            pass

    RUNNERS.register_module('Idle', module=Idle)
    yield configs
    RUNNERS.module_dict.pop('Idle')


@pytest.mark.parametrize(
    ('flags', 'kind', 'dtype', 'scale'),
    [
        ('', 'OptimWrapper', None, None),
        ('--amp', 'AmpOptimWrapper', 'float16', 'dynamic'),
        ('--amp --amp-dtype float16', 'AmpOptimWrapper', 'float16', 'dynamic'),
        ('--amp --amp-dtype bfloat16', 'AmpOptimWrapper', 'bfloat16', 1.0),
    ],
)
def test_amp_dtype_on_a_gpu(
    flags, kind, dtype, scale, classifier, tmp_path, call, monkeypatch, built
):
    monkeypatch.setattr(launch, 'get_device', lambda: 'cuda')
    work = ['--work-dir', tmp_path / 'work']
    call('train', classifier, *flags.split(), *work, '--cfg-options', 'runner_type=Idle')
    wrapper = built[0].optim_wrapper
    assert wrapper.get('type', 'OptimWrapper') == kind
    assert (wrapper.get('dtype'), wrapper.get('loss_scale')) == (dtype, scale)
    assert wrapper.optimizer.lr == 1e-3


@pytest.mark.parametrize('loader', ['train_dataloader', 'val_dataloader'])
def test_missing_data_end_a_training_before_weights_are_sought(loader, classifier, refused, call):
    options = ['--cfg-options', f'{loader}.dataset.data_root=data/none', 'load_from=absent.pth']
    line = refused('train', classifier, *options, f'{loader}.dataset.ann_file=list.txt')
    assert line.endswith(f"error: {loader}.dataset.data_root: there is no folder 'data/none'")
    with pytest.raises(TypeError, match="unexpected keyword argument 'num_clases'"):
        call('train', classifier, *options, 'model.head.num_clases=3')


@pytest.mark.parametrize('flags', only(of=[[], ['--amp']]))
def test_mixed_precision_of_a_config_falls_back_on_a_cpu(
    flags, classifier, tmp_path, call, monkeypatch, capsys
):
    """mmengine's own wrapper asks for a GPU; mmseg's base of PoolFormer, for one, names it."""
    monkeypatch.setattr(launch, 'get_device', lambda: 'cpu')
    wrapper = ['optim_wrapper.type=AmpOptimWrapper', 'optim_wrapper.dtype=float16']
    place = ['--work-dir', tmp_path / 'work', '--no-progress']
    call('train', classifier, *flags, *place, '--cfg-options', *wrapper)
    told = 'no GPU was found; mixed precision is in bfloat16' in ''.join(capsys.readouterr())
    assert told == (not flags)
    assert [*(tmp_path / 'work').glob('*.pth')]


@pytest.mark.parametrize(
    ('flags', 'message'),
    [
        ('--amp-dtype float16', "error: --amp-dtype must be 'bfloat16' on a CPU, got 'float16'"),
        ('--amp --amp-dtype float8', "invalid choice: 'float8'"),
        (
            '--amp --cfg-options optim_wrapper.type=DeepSpeedOptimWrapper',
            "amp: optim_wrapper.type must be 'OptimWrapper', got 'DeepSpeedOptimWrapper'",
        ),
    ],
)
def test_other_precisions_are_refused(flags, message, classifier, refused, monkeypatch):
    monkeypatch.setattr(launch, 'get_device', lambda: 'cpu')
    assert message in refused('train', classifier, *flags.split())


@pytest.mark.skipif(torch.cuda.is_available(), reason='a GPU trains')
def test_layers_compute_in_bfloat16_on_a_cpu(classifier, tmp_path, call, monkeypatch, capfd):
    monkeypatch.setattr(launch, 'get_device', lambda: 'cpu')
    dtypes, work = {True: set(), False: set()}, tmp_path / 'work'

    def note(module, inputs, output):
        if isinstance(module, nn.Linear):
            dtypes[module.training].add(output.dtype)

    options = ['train_cfg.max_iters=1', 'train_cfg.val_interval=1']
    options += ['optim_wrapper.optimizer.weight_decay=0.1']
    options += ['optim_wrapper.paramwise_cfg.norm_decay_mult=0.0']
    with nn.modules.module.register_module_forward_hook(note):
        call('train', classifier, '--amp', '--work-dir', work, '--cfg-options', *options)
    assert dtypes[True] == {torch.bfloat16}
    # A line for each parameter, in the log file only.
    assert 'paramwise_options' not in ''.join(capfd.readouterr())
    assert 'paramwise_options' in next(work.glob('*/*.log')).read_text()
    state = torch.load(work / 'iter_1.pth', weights_only=False)['state_dict']
    assert {value.dtype for value in state.values() if value.is_floating_point()} == {torch.float32}


@pytest.mark.parametrize(
    ('value', 'start'), only(of=[(float('nan'), '--resume {}'), (1, '--cfg-options load_from={}')])
)
def test_weights_that_are_no_numbers_are_refused(value, start, classifier, tmp_path, refused):
    state = build_model(read_config(classifier)).state_dict()
    state['head.fc.bias'] = torch.full(state['head.fc.bias'].shape, value)
    file = tmp_path / 'w.pth'
    torch.save(dict(state_dict=state, meta=dict(epoch=0, iter=0)), file)
    work = ['--work-dir', tmp_path / 'work']
    line = refused('train', classifier, *work, *start.format(file).split())
    assert "w.pth': head.fc.bias " in line
    assert ('is of type torch.int64' if value == 1 else 'NaN or infinite') in line


def test_a_work_dir_that_cannot_be_written_is_named(classifier, tmp_path, refused):
    """A file in its place, or a folder that takes no files, as root too."""
    (tmp_path / 'file').touch()
    for folder in (tmp_path / 'file', '/proc/none'):
        assert str(folder) in refused('train', classifier, '--work-dir', folder)


def test_resume_from_a_work_directory_takes_the_newest_checkpoint(classifier, tmp_path, built):
    """The best one has no optimizer."""
    cfg = read_config(classifier, cfg_options=dict(runner_type='Idle'), work_dir=tmp_path / 'work')
    content = dict(state_dict=build_model(cfg).state_dict(), meta=dict(iter=2))
    for name in ('iter_2.pth', 'best_accuracy_iter_1.pth'):
        torch.save(content, tmp_path / name)
    launch.train(cfg, resume=str(tmp_path))
    (cfg,) = built
    assert (cfg.resume, cfg.load_from) == (True, str(tmp_path / 'iter_2.pth'))


@pytest.mark.parametrize('start', [None, 'w.pth'])
def test_resume_without_a_checkpoint_starts_from_the_weights_of_the_config(
    start, classifier, tmp_path, monkeypatch, built
):
    cfg = read_config(classifier, cfg_options=dict(runner_type='Idle'), work_dir=tmp_path / 'work')
    if start is not None:
        torch.save(dict(state_dict=build_model(cfg).state_dict()), tmp_path / start)
        cfg.load_from = str(tmp_path / start)
    said: list[str] = []
    monkeypatch.setattr(launch, 'print_log', lambda text, *_: said.append(text))
    launch.train(cfg, resume='auto')
    (cfg,) = built
    assert (cfg.resume, cfg.load_from) == (False, start and str(tmp_path / start))
    (line,) = said
    assert 'training starts from iteration 0, from' in line
    assert (str(tmp_path / start) if start else 'the weights that the model names') in line


@pytest.mark.full
def test_a_new_training_warns_of_the_checkpoints_of_an_earlier_one(classifier, tmp_path, call):
    work = tmp_path / 'work'
    line = f'{work} has iter_2.pth of an earlier training'
    for options, warned in ([], False), ([], True), (['--resume'], False):
        call('train', classifier, '--work-dir', work, *options)
        newest = max(work.glob('*/*.log'), key=lambda path: path.stat().st_mtime_ns)
        assert (line in newest.read_text()) == warned
        newest.unlink()  # a second training in the same second has the same log file


def test_a_new_training_warns_of_an_interrupted_one(classifier, tmp_path, call):
    work = tmp_path / 'work'
    work.mkdir()
    (work / 'interrupted.pth').touch()
    call('train', classifier, '--work-dir', work)
    (log,) = work.glob('*/*.log')
    line = f'{work} has interrupted.pth of an earlier training'
    (said,) = (one for one in log.read_text().splitlines() if line in one)
    assert 'interrupted.pth deleted; --resume continues it' in said


def test_a_training_ends_with_the_commands_that_use_its_model(
    classifier, photos, tmp_path, call, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    work, options = 'work dir', ['model.head.topk=(1,)']
    of_training = [
        'train_cfg.max_iters=1',
        'train_cfg.val_interval=1',
        'val_dataloader.batch_size=1',
    ]
    of_training += ['optim_wrapper.optimizer.lr=0.01', 'default_hooks.timer.type=IterTimerHook']
    call('train', classifier, '--work-dir', work, '--cfg-options', *of_training, *options)
    said, test, infer = capsys.readouterr().out.splitlines()[-3:]
    assert said == 'next:'
    names = dict(test='tools/test.py', infer='tools/infer.py')
    model = [str(classifier), work]
    given = ['--cfg-options', *options]
    assert shlex.split(test) == ['python', names['test'], *model, *given]
    out_dir = ['--out-dir', 'out/work dir']
    assert shlex.split(infer) == ['python', names['infer'], *model, 'PHOTOS', *out_dir, *given]
    call('test', *shlex.split(test)[2:])
    folder = next(photos.iterdir())
    call('infer', *[word.replace('PHOTOS', str(folder)) for word in shlex.split(infer)[2:]])
    assert (tmp_path / 'out/work dir/images.json').is_file()


@pytest.mark.parametrize(
    ('length', 'said'),
    [
        (dict(by_epoch=False, max_iters=1), '1 iteration'),
        pytest.param(
            dict(by_epoch=True, max_epochs=2), '2 epochs, 4 iterations', marks=pytest.mark.full
        ),
    ],
)
def test_the_log_says_how_long_it_trains_and_from_which_weights(
    length, said, classifier, tmp_path, call, capsys
):
    config = tmp_path / 'length.py'
    loop = dict(_delete_=True, **length, val_interval=1)
    ends = "train_dataloader = dict(sampler=dict(type='DefaultSampler', shuffle=True))"
    config.write_text(f"_base_ = '{classifier.name}'\ntrain_cfg = {loop}\n{ends}\n")
    call('train', config, '--work-dir', tmp_path / 'work')
    lines = ''.join(capsys.readouterr()).splitlines()
    assert f'length: {said}' in lines and 'weights: none, random initialisation' in lines


@pytest.mark.parametrize(
    ('option', 'advice'),
    [('max_keep_ckpt', "; did you mean 'max_keep_ckpts'?"), ('ema', '; accepted are interval, ')],
)
@pytest.mark.parametrize('kind', ['CheckpointHook', 'DurableCheckpointHook'])
def test_a_misspelt_option_of_checkpoints_ends_a_training_before_it_begins(
    kind, option, advice, classifier, tmp_path, refused
):
    """mmengine's hook keeps it for the first save, which fails."""
    hook = f'default_hooks.checkpoint.{option}=2', f'default_hooks.checkpoint.type={kind}'
    line = refused('train', classifier, '--work-dir', tmp_path / 'work', '--cfg-options', *hook)
    assert line.startswith(f'error: {kind} has no argument {option!r}{advice}')
    assert 'kwargs' not in line


def test_a_full_disk_names_the_checkpoint(classifier, tmp_path, refused, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, 'No space left on device')

    monkeypatch.setattr(launch.Runner, 'save_checkpoint', full)
    work = tmp_path / 'work'
    options = ['train_cfg.max_iters=1', 'train_cfg.val_interval=1']
    options += ['default_hooks.checkpoint.type=DurableCheckpointHook']
    line = refused('train', classifier, '--work-dir', work, '--cfg-options', *options)
    assert f"error: '{work}/iter_1.pth': No space left on device" in line
    assert not [*work.glob('.*.part')]


@pytest.mark.parametrize(
    ('changes', 'processes', 'factor'),
    [
        ({}, 1, 2 / 16),
        ({'optim_wrapper.accumulative_counts': 8}, 1, 1),
        ({'optim_wrapper.accumulative_counts': 3}, 1, 6 / 16),
        ({'optim_wrapper.accumulative_counts': 4}, 8, 4),
        ({}, 8, 1),
        ({'strategy.gradient_accumulation_steps': 8}, 1, 1),
        ({'strategy.gradient_accumulation_steps': None}, 1, 2 / 16),
    ],
)
def test_auto_scale_lr_counts_all_images_of_a_step(changes, processes, factor, classifier, built):
    """mmengine alone does not count the iterations that are accumulated."""
    options = {'runner_type': 'Idle', 'auto_scale_lr.base_batch_size': 16, **changes}
    launch.train(read_config(classifier, cfg_options=options), auto_scale_lr=True)
    (cfg,) = built
    runner = Runner.__new__(Runner)
    runner._train_dataloader, runner._world_size = dict(batch_size=2), processes
    runner.logger, runner.param_schedulers = SimpleNamespace(info=lambda text: None), []
    wrapper = OptimWrapper(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1))
    runner.scale_lr(wrapper, cfg.auto_scale_lr)
    assert wrapper.optimizer.param_groups[0]['lr'] == pytest.approx(0.1 * factor)
