"""The shell scripts and the Dockerfile: the commands that they start, and what they refuse.

Slow: a whole set-up.
"""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_configs import ROOT

SHELL_TOOLS = 'bash cat dirname env grep rm sed touch uname'.split()
TRAIN = ROOT / 'tools/train.py'


def run_script(name, *words, **environment):
    script = str(ROOT / 'tools' / name)
    environment = {**os.environ, **environment}
    return subprocess.run([script, *words], capture_output=True, text=True, env=environment)


@pytest.fixture
def launched(tmp_path):
    """Run a launcher with programs that print their arguments; returns these, one a line."""
    folder = tmp_path / 'bin'
    folder.mkdir()
    for name in ('python', 'my_python', 'srun'):
        (folder / name).write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
        (folder / name).chmod(0o755)

    def launched(name, *words, **environment):
        path = f'{folder}:{os.environ["PATH"]}'
        if 'PYTHON' in environment:
            environment['PYTHON'] = str(folder / environment['PYTHON'])
        done = run_script(name, *words, **{'PATH': path, **environment})
        return done.stdout.splitlines() or done

    return launched


MACHINES = dict(NNODES='4', NODE_RANK='2', MASTER_ADDR='10.0.0.7', PORT='29512')


@pytest.mark.parametrize(
    ('environment', 'expected'),
    [
        (dict(PYTHON='my_python'), ('1', 0, '127.0.0.1', 29500)),
        (MACHINES, ('4', 2, '10.0.0.7', 29512)),
    ],
    ids=['one machine', 'four machines'],
)
def test_dist_train_starts_torchrun(launched, environment, expected):
    from torch.distributed.run import get_args_parser

    options = ['--amp', '--cfg-options', 'a.b=c d', 'taps=[1,2]']
    module, name, *rest = launched('dist_train.sh', 'my config.py', '8', *options, **environment)
    assert (module, name) == ('-m', 'torch.distributed.run')
    args = get_args_parser().parse_args(rest)
    assert (args.nnodes, args.node_rank, args.master_addr, args.master_port) == expected
    assert args.nproc_per_node == '8' and Path(args.training_script).samefile(TRAIN)
    assert args.training_script_args == ['my config.py', '--launcher', 'pytorch', *options]


@pytest.mark.parametrize(
    ('environment', 'tasks', 'per_node'),
    [({}, '8', '8'), (dict(GPUS='2'), '2', '2'), (dict(GPUS='16', GPUS_PER_NODE='4'), '16', '4')],
    ids=str,
)
def test_slurm_train_starts_srun(launched, environment, tasks, per_node):
    more = dict(CPUS_PER_TASK='5', SRUN_ARGS='--time 1-0 --exclusive', **environment)
    options = ['--resume', '--cfg-options', 'a.b=c d']
    words = launched('slurm_train.sh', 'gpu', 'my job', 'c.py', *options, **more)
    start = next(i for i, word in enumerate(words) if word.endswith('python'))
    command = words[start:]
    pairs = dict(zip(words, words[1:], strict=False))
    assert pairs['-p'] == 'gpu' and pairs['--job-name'] == 'my job'
    assert pairs['--ntasks'] == tasks and pairs['--ntasks-per-node'] == per_node
    assert pairs['--gres'] == f'gpu:{per_node}' and pairs['--cpus-per-task'] == '5'
    assert words[start - 3 : start] == ['--time', '1-0', '--exclusive']
    assert command[1] == '-u' and Path(command[2]).samefile(TRAIN)
    assert command[3:] == ['c.py', '--launcher', 'slurm', *options]


@pytest.mark.parametrize(
    ('name', 'words', 'usage'),
    [
        ('dist_train.sh', ['config.py'], 'tools/dist_train.sh CONFIG 8'),
        ('slurm_train.sh', ['gpu', 'job'], 'tools/slurm_train.sh PARTITION JOB_NAME CONFIG'),
    ],
)
def test_a_launcher_without_its_arguments_says_how_to_call_it(launched, name, words, usage):
    done = launched(name, *words)
    assert done.returncode == 2 and usage in done.stderr and '#' not in done.stderr


def test_setup_refuses_unknown_operators_and_an_old_python(tmp_path):
    venv = str(tmp_path / 'venv')
    done = run_script('setup_env.sh', sys.executable, OPERATORS='cuda', CPVT_VENV=venv)
    message = "[setup] OPERATORS must be torchvision or compiled, got 'cuda'"
    assert done.returncode == 1 and done.stderr.splitlines() == [message]
    done = run_script('setup_env.sh', '/bin/false', CPVT_VENV=venv)
    assert done.returncode == 1 and 'Python 3.10 or newer is needed' in done.stderr
    assert not (tmp_path / 'venv').exists()


@pytest.mark.slow
def test_setup_without_a_compiler_mends_what_a_kill_has_left(tmp_path):
    """With no compiler on PATH and no cached wheel of mmcv."""
    programs = tmp_path / 'bin'
    programs.mkdir()
    for name in SHELL_TOOLS:
        (programs / name).symlink_to(shutil.which(name))
    venv = tmp_path / 'venv'
    environment = dict(
        PATH=str(programs),
        XDG_CACHE_HOME=str(tmp_path / 'cache'),
        CPVT_VENV=str(venv),
        PIP_FIND_LINKS='',
        UV_CACHE_DIR=os.environ.get('UV_CACHE_DIR', os.path.expanduser('~/.cache/uv')),
    )
    python = os.path.realpath(sys.executable)
    script = [ROOT / 'tools' / 'setup_env.sh', python]
    for seconds in (3, 15, 30):
        with subprocess.Popen(
            script, env={**os.environ, **environment}, start_new_session=True
        ) as running:
            try:
                running.wait(seconds)
            except subprocess.TimeoutExpired:
                os.killpg(running.pid, signal.SIGKILL)
    done = run_script('setup_env.sh', python, **environment)
    assert done.returncode == 0, done.stderr[-3000:]
    ready, advice = done.stderr.splitlines()[-2:]
    assert ready.endswith('operators: torchvision') and str(venv) in advice
    code = 'import cpvt_backbones, mmdet.models, mmcv.ops; print(mmcv._ext.__file__)'
    command = [venv / 'bin' / 'python', '-c', code]
    found = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert found.stdout.strip().endswith('operators.py'), found.stderr
