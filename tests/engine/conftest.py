"""Trainings in processes of their own, and the warnings of trainings in this process."""

import json
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from mmengine.logging import MMLogger

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope='session')
def _fork_server():
    here = Path(__file__).parent
    path = os.pathsep.join([str(ROOT), str(here), os.environ.get('PYTHONPATH', '')])
    environment = {
        **os.environ,
        'PYTHONPATH': path,
        'OMP_NUM_THREADS': '1',
        'CUDA_VISIBLE_DEVICES': '',
    }
    server = subprocess.Popen(
        [sys.executable, '-W', 'ignore', str(here / 'fork_server.py')],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
        start_new_session=True,
    )
    yield server
    server.stdin.close()
    try:
        server.wait(timeout=30)
    except subprocess.TimeoutExpired:  # a run hangs
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


@pytest.fixture
def warnings(monkeypatch):
    """Texts of the warnings of runs; mmengine's loggers do not pass them on to the root."""
    texts = []
    original = MMLogger.callHandlers

    def keep_and_call(self, record):
        if record.levelno == logging.WARNING:
            texts.append(record.getMessage())
        original(self, record)

    monkeypatch.setattr(MMLogger, 'callHandlers', keep_and_call)
    return texts


@pytest.fixture
def train(_fork_server, tmp_path_factory):
    """Run tools/train.py in processes that know of each other: ``train('mmseg', config, '--resume',
    processes=2)``.

    Returns the exit codes, negative for a signal. Without ``exit_codes`` a run that fails fails the
    test.
    """

    def run(scope, *arguments, processes=1, exit_codes=None):
        folder = tmp_path_factory.mktemp('job')
        launcher = ['--launcher', 'pytorch'] if processes > 1 else []
        job = dict(
            scope=scope,
            processes=processes,
            folder=str(folder),
            arguments=[*map(str, arguments), *launcher],
        )
        print(json.dumps(job), file=_fork_server.stdin, flush=True)
        codes = json.loads(_fork_server.stdout.readline())
        printed = '\n'.join(
            f'{path.name}: {path.read_text()[-3000:]}' for path in sorted(folder.glob('*.txt'))
        )
        assert codes == (exit_codes or [0] * processes), printed
        return codes

    return run
