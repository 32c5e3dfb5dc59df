"""The small tools, and the less usual options of train.py and test.py."""

import argparse
import hashlib
import json
import os
import pickle
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import Config, DictAction
from mmengine.logging import HistoryBuffer
from PIL import Image
from test_command_lines import CLASSIFIER, ROOT, TASKS, classification, detection, segmentation
from torch import nn

from cpvt_backbones.analysis.complexity import build_model, measure_complexity
from cpvt_backbones.checkpoints import load_weights, pretrained
from cpvt_backbones.engine import launch
from cpvt_backbones.engine.launch import read_config


@pytest.fixture
def unformatted(monkeypatch):
    """Configs are written as they come: to format one takes longer than to run a tiny model."""
    monkeypatch.setattr('yapf.yapflib.yapf_api.FormatCode', lambda text, **_: (text, True))


def parsed(options):
    parser = argparse.ArgumentParser()
    parser.add_argument('--cfg-options', nargs='+', action=DictAction)
    return parser.parse_args(['--cfg-options', *options]).cfg_options


def lively_model(config, options=('log_level=INFO',)):
    """A config's model whose answers depend on the image."""
    torch.manual_seed(0)
    model = build_model(read_config(config, cfg_options=parsed(options)))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, parameter[0].numel() ** -0.5)
            elif name.endswith('cls.bias'):
                parameter.zero_()  # half of RetinaNet's anchors are sure of something
            elif name.endswith('conv_seg.bias'):
                parameter[0] = 2.0  # a good part of each picture is background
    return model


def save(model, path, **more):
    torch.save(dict(state_dict=model.state_dict(), **more), path)
    return path


# -- get_flops.py ------------------------------------------------------------------------------------------------------


@pytest.fixture
def classifier(tmp_path):
    config = tmp_path / 'classifier.py'
    config.write_text(CLASSIFIER.replace('{root}', str(tmp_path)))
    return config


WIDER = ['model.backbone.arch.embed_dims=128', 'model.head.in_channels=128']


@pytest.mark.parametrize(
    ('shape', 'height', 'width'), [([], 224, 224), ([96], 96, 96), (['128', '200'], 128, 200)], ids=str
)
def test_get_flops(classifier, call, capsys, shape, height, width):
    pytest.importorskip('mmpretrain')
    call('get_flops', classifier, *(['--shape', *shape] if shape else []), '--cfg-options', *WIDER)
    printed = capsys.readouterr().out
    assert f'{height} x {width} px' in printed
    found = {name: float(value) for name, value in re.findall(r'^(\w+) +([\d.]+) [MG]\b', printed, re.M)}
    cells, dim = (height // 8) * (width // 8), 128
    layers = cells * (3 * 64 * dim + 9 * dim + 4 * dim**2 + 2 * 2 * dim**2) + 2 * dim  # patches, PEG, block, head
    block = 4 * dim**2 + 4 * dim + 2 * 2 * dim**2 + 3 * dim + 2 * 2 * dim
    weights = (3 * 64 + 1) * dim + 10 * dim + block + 2 * dim + 2 * dim + 2
    assert found['parameters'] == round(weights / 1e6, 2)
    assert found['layers'] == pytest.approx(layers / 1e9, abs=0.0051)
    assert found['attention'] == pytest.approx(2 * cells**2 * dim / 1e9, abs=0.0051)


def test_get_flops_wants_a_shape(classifier, call, capsys):
    for shape in (['0'], ['1', '2', '3']):
        with pytest.raises(SystemExit):
            call('get_flops', classifier, '--shape', *shape)
        assert '--shape must be a side, or height and width, in pixels, got' in capsys.readouterr().err


# -- print_config.py ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('name', ['demo/retinanet_multiscale-cpvt_digits', 'imagenet/cpvt-s_8xb256_in1k'])
def test_what_print_config_prints_is_the_config(name, tmp_path, call, capsys):
    path = ROOT / f'configs/{name}.py'
    scope = Config.fromfile(path).default_scope
    pytest.importorskip(scope)
    call('print_config', path, '--cfg-options', 'train_dataloader.batch_size=13', 'model.backbone.patch_size=32')
    copy = tmp_path / 'copy.py'
    copy.write_text(capsys.readouterr().out)
    assert not re.search(r'^_base_\b', copy.read_text(), re.M)
    printed, wanted = Config.fromfile(copy), Config.fromfile(path)
    assert printed.train_dataloader.batch_size == 13
    assert printed.model.backbone.patch_size == 32
    wanted.train_dataloader.batch_size, wanted.model.backbone.patch_size = 13, 32
    for key in ('model', 'train_dataloader', 'optim_wrapper', 'default_scope', 'test_evaluator'):
        assert printed[key] == wanted[key], key


# -- browse_dataset.py -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(('scope', 'number'), [('mmdet', None), ('mmdet', 3), ('mmseg', 2), ('mmpretrain', 3)])
def test_browse_dataset(scope, number, scenes, tmp_path, call, unformatted):
    pytest.importorskip(scope)
    config, options = TASKS[scope](scenes, tmp_path)
    if scope == 'mmpretrain':  # a picture is called what its file is called
        for index, path in enumerate(sorted((tmp_path / 'images').rglob('*.png'))):
            path.rename(path.with_name(f'image_{index}.png'))
    out = tmp_path / 'shown'
    limit = [] if number is None else ['--number', number]
    call('browse_dataset', config, '--output-dir', out, *limit, '--cfg-options', *options)
    pictures = [path for path in out.iterdir() if path.suffix in ('.png', '.jpg')]
    assert len(pictures) == (number or 8)
    for picture in pictures if scope != 'mmpretrain' else ():
        shown = np.asarray(Image.open(picture).convert('RGB')).astype(int)
        plain = np.asarray(Image.open(scenes / 'train_48x64' / 'images' / picture.name).convert('RGB')).astype(int)
        assert shown.shape == plain.shape
        assert np.abs(shown - plain).max() > 30  # labels are drawn
        # ... over the picture itself; what mmseg calls background is painted black, and shows through by a fifth.
        assert np.median(np.abs(shown - plain * (0.2 if scope == 'mmseg' else 1.0))) < 20


def test_browse_dataset_wants_a_number(scenes, tmp_path, call, capsys):
    pytest.importorskip('mmdet')
    config, _ = detection(scenes, tmp_path)
    with pytest.raises(SystemExit):
        call('browse_dataset', config, '--output-dir', tmp_path, '--number', 0)
    assert '--number must be at least 1, got 0' in capsys.readouterr().err


# -- publish_checkpoint.py ---------------------------------------------------------------------------------------------


@pytest.fixture
def training_checkpoint(tmp_path):
    """As mmengine's Runner leaves it."""
    state = {
        'backbone.blocks.0.weight': torch.randn(4, 4),
        'backbone.bn.num_batches_tracked': torch.tensor(7),
        'head.weight': torch.randn(2, 4),
    }
    momentum = dict(state={0: dict(exp_avg=torch.randn(64, 64))}, param_groups=[dict(lr=0.1, params=[0])])
    hub = dict(log_scalars=dict(loss=HistoryBuffer()), runtime_info={}, resumed_keys={})
    path = tmp_path / 'epoch_12.pth'
    torch.save(dict(state_dict=state, optimizer=momentum, message_hub=hub, meta=dict(epoch=12, seed=np.int64(3))), path)
    (tmp_path / 'last_checkpoint').write_text(str(path))
    return path, state


def published(folder):
    (path,) = folder.iterdir()
    assert path.stem.rpartition('-')[2] == hashlib.sha256(path.read_bytes()).hexdigest()[:8]
    return path


@pytest.mark.parametrize('from_folder', [False, True])
def test_publishing_keeps_the_weights_alone(training_checkpoint, from_folder, tmp_path, call, capsys):
    source, state = training_checkpoint
    folder = tmp_path / 'out'
    call('publish_checkpoint', source.parent if from_folder else source, folder / 'model.pth')
    path = published(folder)
    assert re.fullmatch(r'model-[0-9a-f]{8}\.pth', path.name)
    assert str(path) in capsys.readouterr().out
    content = torch.load(path, weights_only=True)
    assert content.keys() == {'state_dict', 'meta'}
    assert content['state_dict'].keys() == state.keys()
    assert all(torch.equal(content['state_dict'][key], value) for key, value in state.items())
    assert path.stat().st_size < source.stat().st_size - 4 * 64 * 64 / 2


@pytest.mark.parametrize('suffix', ['.pth', '.pt', '.safetensors'])
def test_publishing_half_a_backbone(training_checkpoint, suffix, tmp_path, call):
    if suffix == '.safetensors':
        pytest.importorskip('safetensors')
    source, state = training_checkpoint
    call('publish_checkpoint', source, tmp_path / 'out' / f'model{suffix}', '--backbone', '--half')
    path = published(tmp_path / 'out')
    if suffix == '.safetensors':
        from safetensors.torch import load_file

        weights = load_file(path)
    else:
        weights = torch.load(path, weights_only=True)['state_dict']
    assert weights.keys() == {'blocks.0.weight', 'bn.num_batches_tracked'}
    assert torch.equal(weights['blocks.0.weight'], state['backbone.blocks.0.weight'].half())
    assert weights['bn.num_batches_tracked'] == 7
    assert weights['bn.num_batches_tracked'].dtype == torch.int64


def test_publishing_twice_gives_one_name_and_other_weights_another(training_checkpoint, tmp_path, call):
    source, state = training_checkpoint
    folder = tmp_path / 'out'
    call('publish_checkpoint', source, folder / 'model.pth')
    call('publish_checkpoint', source, folder / 'model.pth')
    published(folder)
    state['head.weight'] += 1
    torch.save(dict(state_dict=state), source)
    call('publish_checkpoint', source, folder / 'model.pth')
    assert len(list(folder.iterdir())) == 2


def test_publishing_leaves_files_of_that_name_alone(training_checkpoint, call):
    source, _ = training_checkpoint
    before = source.read_bytes()
    call('publish_checkpoint', source, source)
    assert source.read_bytes() == before
    assert [path.name for path in source.parent.glob('epoch_12-*.pth')]


@pytest.mark.parametrize(
    ('content', 'destination', 'options', 'message'),
    [
        (dict(state_dict={'head.weight': torch.ones(1)}), 'out.pth', ['--backbone'], 'has no weights under backbone.'),
        (dict(state_dict={}), 'out.pth', [], 'holds no weights'),
        (dict(state_dict={'head.weight': torch.ones(1)}), 'out.zip', [], 'destination must end in one of .pth, .pt'),
        (None, 'out.pth', [], 'there is no file or folder'),
    ],
)
def test_nothing_to_publish(content, destination, options, message, tmp_path, call, capsys):
    source = tmp_path / 'source.pth'
    if content is not None:
        torch.save(content, source)
    with pytest.raises(SystemExit) as stop:
        call('publish_checkpoint', source, tmp_path / destination, *options)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / destination).exists() and not list(tmp_path.glob('out-*'))


# -- the shell scripts -------------------------------------------------------------------------------------------------


def fake(folder, name):
    """A program that prints its arguments, one a line."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    path.chmod(0o755)
    return path


def run_script(name, *arguments, folder, **environment):
    kept = {key: os.environ[key] for key in ('HOME', 'LANG') if key in os.environ}
    environment = {**kept, 'PATH': f'{folder}:{os.environ["PATH"]}', **environment}
    script = ROOT / 'tools' / name
    assert os.access(script, os.X_OK)
    return subprocess.run([str(script), *arguments], env=environment, capture_output=True, text=True)


def launched(output):
    """What torch.distributed.run understands of a command line."""
    from torch.distributed.run import get_args_parser

    module, name, *rest = output.splitlines()
    assert (module, name) == ('-m', 'torch.distributed.run')
    return get_args_parser().parse_args(rest)


@pytest.mark.parametrize('named', [True, False], ids=['PYTHON', 'PATH'])
def test_dist_train_on_one_machine(named, tmp_path):
    python = fake(tmp_path / 'bin', 'my_python' if named else 'python')
    environment = dict(PYTHON=str(python)) if named else {}
    options = ['--amp', '--cfg-options', 'a.b=c d', 'taps=[1,2]']
    result = run_script('dist_train.sh', 'my config.py', '8', *options, folder=python.parent, **environment)
    assert result.returncode == 0 and not result.stderr
    args = launched(result.stdout)
    assert (args.nnodes, args.node_rank, args.nproc_per_node) == ('1', 0, '8')
    assert (args.master_addr, args.master_port) == ('127.0.0.1', 29500)
    assert Path(args.training_script).samefile(ROOT / 'tools/train.py')
    assert args.training_script_args == ['my config.py', '--launcher', 'pytorch', *options]


def test_dist_train_on_several_machines(tmp_path):
    python = fake(tmp_path / 'bin', 'python')
    machines = dict(NNODES='4', NODE_RANK='2', MASTER_ADDR='10.0.0.7', PORT='29512')
    args = launched(run_script('dist_train.sh', 'c.py', '2', folder=python.parent, **machines).stdout)
    assert (args.nnodes, args.node_rank, args.nproc_per_node) == ('4', 2, '2')
    assert (args.master_addr, args.master_port) == ('10.0.0.7', 29512)
    assert args.training_script_args == ['c.py', '--launcher', 'pytorch']


def slurm(output):
    """srun's options, and the command behind them."""
    words = output.splitlines()
    start = next(i for i, word in enumerate(words) if word.endswith('python'))
    return words[:start], words[start:]


@pytest.mark.parametrize(
    ('environment', 'tasks', 'per_node'),
    [
        ({}, '8', '8'),
        (dict(GPUS='16'), '16', '8'),
        (dict(GPUS='2'), '2', '2'),
        (dict(GPUS='16', GPUS_PER_NODE='4'), '16', '4'),
    ],
    ids=str,
)
def test_slurm_train(environment, tasks, per_node, tmp_path):
    srun = fake(tmp_path / 'bin', 'srun')
    more = dict(CPUS_PER_TASK='5', SRUN_ARGS='--time 1-0 --exclusive', **environment)
    options = ['--resume', '--cfg-options', 'a.b=c d']
    result = run_script('slurm_train.sh', 'gpu', 'my job', 'c.py', *options, folder=srun.parent, **more)
    assert result.returncode == 0 and not result.stderr
    words, command = slurm(result.stdout)
    pairs = dict(zip(words, words[1:], strict=False))
    assert pairs['-p'] == 'gpu' and pairs['--job-name'] == 'my job'
    assert pairs['--ntasks'] == tasks and pairs['--ntasks-per-node'] == per_node
    assert pairs['--gres'] == f'gpu:{per_node}' and pairs['--cpus-per-task'] == '5'
    assert words[-3:] == ['--time', '1-0', '--exclusive']
    assert command[:2] == ['python', '-u'] and Path(command[2]).samefile(ROOT / 'tools/train.py')
    assert command[3:] == ['c.py', '--launcher', 'slurm', *options]


@pytest.mark.parametrize(
    ('name', 'arguments', 'usage'),
    [
        ('dist_train.sh', ['config.py'], 'tools/dist_train.sh CONFIG 8'),
        ('slurm_train.sh', ['gpu', 'job'], 'tools/slurm_train.sh PARTITION JOB_NAME CONFIG'),
    ],
)
def test_a_script_without_its_arguments_says_how_to_call_it(name, arguments, usage, tmp_path):
    fake(tmp_path / 'bin', 'python')
    srun = fake(tmp_path / 'bin', 'srun')
    result = run_script(name, *arguments, folder=srun.parent)
    assert result.returncode == 2 and not result.stdout
    assert usage in result.stderr and '#' not in result.stderr


# -- test.py: test-time augmentation -----------------------------------------------------------------------------------

SHIPPED = {'mmdet': 'coco_detection', 'mmseg': 'ade20k'}
SMALL_SCALES = [dict(type='Resize', scale=scale, keep_ratio=True) for scale in ((60, 40), (90, 90))]
AS_IT_IS = [dict(type='Resize', scale_factor=1.0, keep_ratio=True)]


def tta_config(config, scope, folder, *, scales, flips):
    """A demo config with the shipped pipeline of its toolbox, at scales that fit tiny pictures."""
    pipeline = Config.fromfile(ROOT / f'configs/_base_/datasets/{SHIPPED[scope]}.py').tta_pipeline
    steps = pipeline[-1].transforms
    steps[0] = scales
    flip = next(i for i, step in enumerate(steps) if step[0]['type'] == 'RandomFlip')
    steps[flip] = [step for step in steps[flip] if step['prob'] in flips]
    if scales is AS_IT_IS:
        steps[:] = [step for step in steps if step[0]['type'] != 'ResizeToMultiple']
    for step in steps:
        step[0].pop('reduce_zero_label', None)
    path = folder / f'tta_{len(scales)}_{len(flips)}.py'
    path.write_text(f'_base_ = {str(config)!r}\n{Config(dict(tta_pipeline=pipeline)).pretty_text}')
    return path


def metrics(work_dir):
    (path,) = work_dir.glob('*/*.json')
    return json.loads(path.read_text().splitlines()[-1])


@pytest.fixture(params=['mmdet', 'mmseg'])
def trained(request, scenes, tmp_path, unformatted):
    """Scope, config, its options, and a checkpoint of it."""
    pytest.importorskip(request.param)
    config, options = TASKS[request.param](scenes, tmp_path)
    return request.param, config, options, save(lively_model(config, options), tmp_path / 'model.pth')


def test_tta_gives_metrics(trained, scenes, tmp_path, call):
    """Of a segmentor that sees background everywhere, the right share of the pixels."""
    scope, config, options, checkpoint = trained
    if scope == 'mmseg':
        content = torch.load(checkpoint)
        content['state_dict']['decode_head.conv_seg.bias'][0] = 1e3
        torch.save(content, checkpoint)
    config = tta_config(config, scope, tmp_path, scales=SMALL_SCALES, flips=(0.0, 1.0))
    work_dir = tmp_path / 'work'
    call('test', config, checkpoint, '--tta', '--work-dir', work_dir, '--cfg-options', *options)
    found = metrics(work_dir)
    if scope == 'mmseg':
        labels = [np.asarray(Image.open(path)) for path in (scenes / 'heldout_37x61' / 'labels').iterdir()]
        background = 100 * np.mean([label == 0 for label in labels])
        assert 50 < background < 100
        assert found['aAcc'] == pytest.approx(background, abs=0.0051)
    else:
        assert 0 <= found['coco/bbox_mAP_50'] <= 1


def answers(scope, path):
    """What was predicted for each image, in their order."""
    if scope == 'mmseg':
        return [np.asarray(Image.open(mask)) for mask in sorted(path.iterdir())]
    found = []
    for image in pickle.loads(path.read_bytes()):
        instances = image['pred_instances']
        order = instances['scores'].argsort(descending=True, stable=True)
        found.append(np.column_stack([instances['scores'][order], instances['bboxes'][order]]))
    return found


def test_weights_fit_through_every_wrapper(tmp_path, monkeypatch):
    """On many GPUs a model that augments its tests is wrapped twice."""

    class Wrapper(nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

    monkeypatch.setattr(pretrained, 'is_model_wrapper', lambda model: isinstance(model, Wrapper))
    model = nn.Linear(3, 2)
    path = str(save(nn.Linear(3, 2), tmp_path / 'linear.pth'))
    load_weights(Wrapper(Wrapper(model)), path)
    assert torch.equal(model.weight, torch.load(path)['state_dict']['weight'])
    with pytest.raises(ValueError, match='does not fit'):
        load_weights(Wrapper(Wrapper(nn.Linear(4, 2))), path)


def test_tta_without_any_augmentation_changes_nothing(trained, tmp_path, call):
    """The weights are the checkpoint's there too; with flips, something does change."""
    scope, config, options, checkpoint = trained
    same = tta_config(config, scope, tmp_path, scales=AS_IT_IS, flips=(0.0,))
    flipped = tta_config(config, scope, tmp_path, scales=AS_IT_IS, flips=(0.0, 1.0))
    if scope == 'mmdet':
        options = [*options, 'tta_model.tta_cfg.max_per_img=400']  # as the model's own test_cfg has it
    found = []
    for index, arguments in enumerate(([config], [same, '--tta'], [flipped, '--tta'])):
        out = tmp_path / (f'masks_{index}' if scope == 'mmseg' else f'{index}.pkl')
        path, *flags = arguments
        work_dir = tmp_path / f'work_{index}'
        call('test', path, checkpoint, *flags, '--out', out, '--work-dir', work_dir, '--cfg-options', *options)
        found.append(answers(scope, out))
    plain, wanted_same, other = found
    assert len(plain) == 2 and all(len(answer) and answer.std() > 0 for answer in plain)
    for left, right in zip(plain, wanted_same, strict=True):
        assert left.shape == right.shape and np.abs(left.astype(float) - right).max() <= 1e-3
    assert any(
        left.shape != right.shape or np.abs(left.astype(float) - right).max() > 1e-3
        for left, right in zip(plain, other, strict=True)
    )


def test_tta_needs_a_pipeline(trained, tmp_path, call):
    _, config, options, checkpoint = trained
    with pytest.raises(ValueError, match=r'^tta: the config has no tta_pipeline$'):
        call('test', config, checkpoint, '--tta', '--work-dir', tmp_path / 'work', '--cfg-options', *options)


# -- test.py: checkpoints that do not fit ------------------------------------------------------------------------------


@pytest.mark.parametrize('tta', [False, True], ids=['plain', 'tta'])
@pytest.mark.parametrize('fault', ['lacks', 'shape', 'empty'])
def test_a_checkpoint_that_does_not_fit(trained, fault, tta, tmp_path, call):
    scope, config, options, checkpoint = trained
    content = torch.load(checkpoint)
    state = content['state_dict']
    key = 'backbone.blocks.0.mlp.fc1.weight'
    if fault == 'lacks':
        del state[key]
        said = rf'it lacks 1 of {len(state) + 1} weights: {re.escape(key)}$'
    elif fault == 'shape':
        state[key] = state[key][:, :-1].clone()
        said = rf'size mismatch for {re.escape(key)}'
    else:
        said = 'is empty'
        state.clear()
    torch.save(content, checkpoint)
    flags = []
    if tta:
        config, flags = tta_config(config, scope, tmp_path, scales=AS_IT_IS, flips=(0.0,)), ['--tta']
    with pytest.raises(ValueError, match=rf"checkpoint '{re.escape(str(checkpoint))}'.*{said}"):
        call('test', config, checkpoint, *flags, '--work-dir', tmp_path / 'work', '--cfg-options', *options)
    assert not list((tmp_path / 'work').glob('*/*.json'))


def test_checkpoints_that_fit(scenes, tmp_path, call, unformatted):
    """Weights under DistributedDataParallel's prefix, alone in their file, or beside others."""
    pytest.importorskip('mmseg')
    config, options = segmentation(scenes, tmp_path)
    state = lively_model(config, options).state_dict()
    forms = dict(
        plain=dict(state_dict=state),
        wrapped=dict(state_dict={f'module.{key}': value for key, value in state.items()}),
        bare=dict(state),
        with_more=dict(state_dict={**state, 'auxiliary_head.conv_seg.weight': torch.ones(1)}),
    )
    found = {}
    for form, content in forms.items():
        torch.save(content, tmp_path / f'{form}.pth')
        arguments = [tmp_path / f'{form}.pth', '--work-dir', tmp_path / form]
        call('test', config, *arguments, '--cfg-options', *options)
        found[form] = {key: value for key, value in metrics(tmp_path / form).items() if 'time' not in key}
    assert found['plain']['mIoU'] > 0
    assert all(values == found['plain'] for values in found.values())


# -- train.py: mixed precision -----------------------------------------------------------------------------------------


class Stopped(Exception):
    """Ends a training before it begins."""


@pytest.mark.parametrize(
    ('flags', 'kind', 'dtype', 'scale'),
    [
        ([], 'OptimWrapper', None, None),
        (['--amp'], 'AmpOptimWrapper', 'float16', 'dynamic'),
        (['--amp', '--amp-dtype', 'float16'], 'AmpOptimWrapper', 'float16', 'dynamic'),
        (['--amp', '--amp-dtype', 'bfloat16'], 'AmpOptimWrapper', 'bfloat16', 1.0),
    ],
    ids=str,
)
def test_amp_dtype(flags, kind, dtype, scale, classifier, tmp_path, call, monkeypatch):
    pytest.importorskip('mmpretrain')
    seen = []

    def stop(cfg):
        seen.append(cfg)
        raise Stopped

    monkeypatch.setattr(launch, '_build_runner', stop)
    with pytest.raises(Stopped):
        call('train', classifier, *flags, '--work-dir', tmp_path / 'work')
    wrapper = seen[0].optim_wrapper
    assert wrapper.get('type', 'OptimWrapper') == kind
    assert (wrapper.get('dtype'), wrapper.get('loss_scale')) == (dtype, scale)
    assert wrapper.optimizer.lr == 1e-3


def test_bfloat16_is_what_the_layers_compute_in(tmp_path, call, monkeypatch):
    pytest.importorskip('mmpretrain')
    from mmengine.optim.optimizer import amp_optimizer_wrapper

    config, _ = classification(None, tmp_path)
    # mmengine wants a GPU for it; a CPU multiplies in bfloat16 as well.
    monkeypatch.setattr(amp_optimizer_wrapper, 'is_cuda_available', lambda: True)
    dtypes = {True: set(), False: set()}

    def note(module, inputs, output):
        if isinstance(module, nn.Linear):
            dtypes[module.training].add(output.dtype)

    handle = nn.modules.module.register_module_forward_hook(note)
    try:
        flags = ['--amp', '--amp-dtype', 'bfloat16', '--work-dir', tmp_path / 'work']
        call('train', config, *flags, '--cfg-options', 'train_cfg.max_iters=1', 'train_cfg.val_interval=1')
    finally:
        handle.remove()
    assert dtypes[True] == {torch.bfloat16}
    state = torch.load(tmp_path / 'work/iter_1.pth', weights_only=False)['state_dict']
    assert {value.dtype for value in state.values() if value.is_floating_point()} == {torch.float32}


def test_an_unknown_amp_dtype(classifier, call, capsys):
    with pytest.raises(SystemExit):
        call('train', classifier, '--amp', '--amp-dtype', 'float8')
    assert "invalid choice: 'float8'" in capsys.readouterr().err
    pytest.importorskip('mmpretrain')
    with pytest.raises(ValueError, match=r"amp_dtype must be one of \('float16', 'bfloat16'\), got 'float8'"):
        launch.train(read_config(classifier), amp=True, amp_dtype='float8')


def test_amp_beside_a_precision_of_its_own(classifier, call):
    pytest.importorskip('mmpretrain')
    with pytest.raises(
        ValueError, match=r"amp: optim_wrapper.type must be 'OptimWrapper', got 'DeepSpeedOptimWrapper'"
    ):
        call('train', classifier, '--amp', '--cfg-options', 'optim_wrapper.type=DeepSpeedOptimWrapper')


def test_measured_complexity_is_what_get_flops_prints(classifier, call, capsys):
    pytest.importorskip('mmpretrain')
    found = measure_complexity(read_config(classifier), height=64, width=96)
    call('get_flops', classifier, '--shape', 64, 96)
    assert f'{found.parameters / 1e6:.2f} M' in capsys.readouterr().out
