"""The trainings of the tutorials at their printed length reach what the pages say."""

import os
import re
import shlex
import subprocess
import sys

import pytest
from pages import ROOT, blocks

RESULTS = {
    'detector_coco': ('mmdet', 'bbox_mAP', r'box AP is ([\d.]+)', 5),
    'detector_voc': ('mmdet', 'bbox_mAP', r'box AP is ([\d.]+)', 5),
    'segmentor': ('mmseg', 'mIoU', r'mean is ([\d.]+) %', 6),
    'classifier': ('mmpretrain', 'top1', r'accuracy: ([\d.]+) %', 3),
}
"""Toolbox and metric, the figure in the text in percent, and how far a training on another
processor may be below it.
"""


def run(words, folder):
    """Output of a command of the page."""
    script = str(ROOT / words[1])
    environment = os.environ | dict(PYTHONPATH=str(ROOT))
    done = subprocess.run(
        [sys.executable, script, *words[2:]],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize('name', RESULTS)
def test_the_tutorial_reaches_what_it_says(name, tmp_path, monkeypatch):
    toolbox, metric, stated, below = RESULTS[name]
    pytest.importorskip(toolbox)
    page = f'docs/tutorials/{name}.md'
    said = float(re.search(stated, (ROOT / page).read_text(encoding='utf-8'))[1])
    monkeypatch.chdir(tmp_path)
    found = []
    for language, text in blocks(page):
        if language == 'python' and 'write_text' in text:
            exec(compile(text, page, 'exec'))
        if language != 'bash':
            continue
        for line in text.replace('\\\n', ' ').splitlines():
            if words := shlex.split(line, comments=True):
                output = run(words, tmp_path)
                if words[1] == 'tools/test.py':
                    found += re.findall(rf'{metric}: ([\d.]+)', output)
    percent = float(found[-1]) * (100 if metric == 'bbox_mAP' else 1)  # mmdet prints shares of 1
    assert percent >= said - below, found
    print(f'{page}: {metric} {percent:g}, the page says {said:g}')
