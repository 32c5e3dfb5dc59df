"""Set-up: the Dockerfile runs what a user types; the scripts refuse what they do not know.

Slow: a whole set-up.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest
from tiny_configs import ROOT

SHELL_TOOLS = 'awk bash cat dirname env grep rm sed touch uname'.split()


def set_up(*arguments, **environment):
    script = ROOT / 'tools' / 'setup_env.sh'
    return subprocess.run(
        [script, *arguments], capture_output=True, text=True, env={**os.environ, **environment}
    )


def test_the_dockerfile_runs_the_commands_of_the_readme():
    lines = (ROOT / 'Dockerfile').read_text().splitlines()
    assert len(lines) <= 25
    installing = re.findall(r'^make (\w+)', (ROOT / 'README.md').read_text(encoding='utf-8'), re.M)[
        :2
    ]
    assert installing == ['setup', 'demo']
    assert sum(line.startswith('RUN make setup') for line in lines) == 1
    assert json.loads(lines[-1].removeprefix('CMD ')) == ['make', 'demo']
    for target in installing:
        assert subprocess.run(['make', '-n', target], cwd=ROOT, capture_output=True).returncode == 0


def test_unknown_operators_are_refused(tmp_path):
    result = set_up(sys.executable, OPERATORS='cuda', CPVT_VENV=str(tmp_path / 'venv'))
    assert result.returncode == 1 and result.stderr.splitlines() == [
        "[setup] OPERATORS must be torchvision or compiled, got 'cuda'"
    ]
    assert not (tmp_path / 'venv').exists()


def test_an_old_python_is_refused(tmp_path):
    result = set_up('/bin/false', CPVT_VENV=str(tmp_path / 'venv'))
    assert (
        result.returncode == 1
        and 'Python 3.10 or newer is needed' in result.stderr.splitlines()[-1]
    )


@pytest.mark.slow
def test_without_a_compiler_and_interrupted(tmp_path):
    """With no compiler on PATH and no cached wheel of mmcv.

    A second run mends what a kill has left half installed.
    """
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
    )
    environment['UV_CACHE_DIR'] = os.environ.get('UV_CACHE_DIR', os.path.expanduser('~/.cache/uv'))
    python = os.path.realpath(sys.executable)
    for seconds in (3, 15, 30):
        script = [ROOT / 'tools' / 'setup_env.sh', python]
        with subprocess.Popen(
            script, env={**os.environ, **environment}, start_new_session=True
        ) as running:
            try:
                running.wait(seconds)
            except subprocess.TimeoutExpired:
                os.killpg(running.pid, signal.SIGKILL)
    result = set_up(python, **environment)
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stderr.splitlines()[-1].endswith('operators: torchvision')
    code = 'import cpvt_backbones, mmdet.models, mmcv.ops; print(mmcv._ext.__file__)'
    found = subprocess.run(
        [venv / 'bin' / 'python', '-c', code], capture_output=True, text=True, cwd=tmp_path
    )
    assert found.stdout.strip().endswith('operators.py'), found.stderr
