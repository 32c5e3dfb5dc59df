"""Every block of docs/bridges.md; make test-peers has the packages that .venv lacks."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip('timm', '1.0.3')
ROOT = Path(__file__).parents[1]
PAGE = ROOT / 'docs' / 'bridges.md'
BLOCKS = re.findall(
    r'^## (.*?)\n|^```python\n(.*?)^```', PAGE.read_text(encoding='utf-8'), re.MULTILINE | re.DOTALL
)
OPTIONAL = """
    accelerate captum lightning mmpretrain mmseg peft pytorch_grad_cam segmentation_models_pytorch
    transformers
""".split()


def blocks():
    section = 'opening'
    for title, block in BLOCKS:
        if title:
            section = title
        else:
            slow = section == "torchvision's detectors"
            yield pytest.param(block, id=section, marks=pytest.mark.full if slow else [])


@pytest.mark.parametrize('block', list(blocks()))
def test_the_page(block):
    for library in OPTIONAL:
        if re.search(rf'^(import|from) {library}\b', block, re.MULTILINE):
            pytest.importorskip(library, exc_type=ImportError)
    exec(compile(block, str(PAGE), 'exec'), {})


@pytest.mark.full
def test_the_command_that_runs_timms_scripts(tmp_path):
    """A stand-in for timm's train.py, which is in no package, finds the models of this one."""
    text = PAGE.read_text(encoding='utf-8')
    (block,) = re.findall(r'^```bash\n(.*?)^```', text, re.MULTILINE | re.DOTALL)
    train, validate = block.replace('\\\n', '').strip().splitlines()
    python, *arguments = shlex.split(train)
    assert python == 'python' and shlex.split(validate)[1:3] == arguments[:2]
    (tmp_path / 'train.py').write_text(
        'import sys, timm; print(sys.argv[1], timm.is_model(sys.argv[3]))'
    )
    result = subprocess.run(
        [sys.executable, *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, 'PYTHONPATH': str(ROOT)},
    )
    assert result.stdout == 'FOLDER True\n', result.stderr
