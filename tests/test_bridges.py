"""Every block of docs/bridges.md."""

import re
from pathlib import Path

import pytest

pytest.importorskip('timm', '1.0.3')
PAGE = Path(__file__).parents[1] / 'docs' / 'bridges.md'
BLOCKS = re.findall(
    r'^## (.*?)\n|^```python\n(.*?)^```', PAGE.read_text(encoding='utf-8'), re.MULTILINE | re.DOTALL
)


def blocks():
    for title, block in BLOCKS:
        if title:
            section = title
        else:
            yield pytest.param(block, id=section)


@pytest.mark.parametrize('block', list(blocks()))
def test_the_page(block):
    for library in ('segmentation_models_pytorch', 'transformers', 'peft', 'mmseg', 'mmpretrain'):
        if re.search(rf'^(import|from) {library}\b', block, re.MULTILINE):
            pytest.importorskip(library, exc_type=ImportError)
    exec(compile(block, str(PAGE), 'exec'), {})
