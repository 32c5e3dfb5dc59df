"""What a person sees of a training: the bar on a terminal, TensorBoard.

And what an issue report needs.
"""

import contextlib
import os
import pty
import re
import runpy
import sys
import threading

import pytest
import torch
from mmengine.registry import MODELS
from tiny_configs import classification

from cpvt_backbones.toolboxes import read_config

pytest.importorskip('mmpretrain')


@pytest.fixture
def classifier(tmp_path):
    return classification(None, tmp_path)[0]


@contextlib.contextmanager
def terminal(monkeypatch, shown):
    """A terminal as stdout; collects in ``shown`` what it shows."""
    master, slave = pty.openpty()

    def read():
        with contextlib.suppress(OSError):  # the other end is closed
            while part := os.read(master, 65536):
                shown.append(part.decode())

    thread = threading.Thread(target=read)
    thread.start()
    with os.fdopen(slave, 'w') as stdout, monkeypatch.context() as patch:
        patch.setattr(sys, 'stdout', stdout)
        patch.setenv('TERM', 'xterm')
        yield
    thread.join()
    os.close(master)


@pytest.mark.parametrize('flags', [[], ['--no-progress']], ids=len)
def test_bar_with_the_time_left_below_the_log(flags, classifier, call, tmp_path, monkeypatch):
    shown = []
    with terminal(monkeypatch, shown):
        call('train', classifier, *flags, '--work-dir', tmp_path / 'work')
    shown = ''.join(shown)
    assert '[2/2]' in shown  # mmengine's log
    assert bool(re.search(r'training.*2/2.*left', shown)) is not bool(flags)
    (log,) = (tmp_path / 'work').glob('*/*.log')
    assert '━' not in log.read_text()


def test_a_file_as_stdout_gets_a_summary_without_a_bar(classifier, call, capsys, tmp_path):
    """The rest is in the log file and in TensorBoard."""
    pytest.importorskip('tensorboard')
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    backends = 'LocalVisBackend', 'TensorboardVisBackend'
    classifier.write_text(classifier.read_text().replace(*backends))
    work, start = tmp_path / 'work', tmp_path / 'start.pth'
    backbone = MODELS.build(read_config(classifier).model.backbone)
    torch.save(backbone.state_dict(), start)
    named = ['--cfg-options', f'model.backbone.init_cfg={start}']
    call('train', classifier, '--work-dir', work, *named)
    printed = ''.join(capsys.readouterr())
    assert '[2/2]' in printed and '━' not in printed and '\x1b[?25' not in printed
    before = printed.split('Iter(train)')[0]
    (log,) = work.glob('*/*.log')
    assert len(before.splitlines()) < 30
    assert 'ImageClassifier with CPVT' in before and f'weights: {start}' in before
    assert 'classes: 2 (dark, light)' in before and f'work directory: {work}' in before
    assert f'log file: {log}' in before
    for text in ('System environment:', 'Config:\n', 'Hooks will be executed'):
        assert text not in before and text in log.read_text()
    (events,) = work.rglob('events.out.tfevents*')
    recorded = EventAccumulator(str(events))
    recorded.Reload()
    assert {'loss', 'lr', 'accuracy/top1'} <= set(recorded.Tags()['scalars'])


def test_python_m_prints_what_an_issue_report_needs(capsys):
    import cpvt_backbones
    from cpvt_backbones.weights import shipped_weights

    runpy.run_module('cpvt_backbones', run_name='__main__')
    out = capsys.readouterr().out
    rows = dict(re.findall(r'^(\w+) +(.*)$', out, re.MULTILINE))
    versions = rows['cpvt_backbones'], rows['torch']
    assert versions == (cpvt_backbones.__version__, torch.__version__)
    assert rows['operators'] and rows['device']
    assert all(name in out for name in ('mmdet', 'mmseg', 'mmpretrain', *shipped_weights()))
