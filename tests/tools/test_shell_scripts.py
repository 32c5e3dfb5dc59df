"""dist_train.sh and slurm_train.sh: the command that they start."""

import os
import subprocess
from pathlib import Path

import pytest
from tiny_configs import ROOT


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
    return subprocess.run(
        [str(script), *arguments], env=environment, capture_output=True, text=True
    )


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
    result = run_script(
        'dist_train.sh', 'my config.py', '8', *options, folder=python.parent, **environment
    )
    assert result.returncode == 0 and not result.stderr
    args = launched(result.stdout)
    assert (args.nnodes, args.node_rank, args.nproc_per_node) == ('1', 0, '8')
    assert (args.master_addr, args.master_port) == ('127.0.0.1', 29500)
    assert Path(args.training_script).samefile(ROOT / 'tools/train.py')
    assert args.training_script_args == ['my config.py', '--launcher', 'pytorch', *options]


def test_dist_train_on_several_machines(tmp_path):
    python = fake(tmp_path / 'bin', 'python')
    machines = dict(NNODES='4', NODE_RANK='2', MASTER_ADDR='10.0.0.7', PORT='29512')
    args = launched(
        run_script('dist_train.sh', 'c.py', '2', folder=python.parent, **machines).stdout
    )
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
    result = run_script(
        'slurm_train.sh', 'gpu', 'my job', 'c.py', *options, folder=srun.parent, **more
    )
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
