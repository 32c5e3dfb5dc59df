"""Code on every page fits the site's column: 75 characters, so that nothing is cut off."""

import re

import pytest
from pages import ROOT

FOLDERS = ('docs', 'configs', 'demo', 'projects', 'cpvt_backbones/weights')
PAGES = sorted(
    [*ROOT.glob('*.md'), *(page for one in FOLDERS for page in (ROOT / one).rglob('*.md'))]
)
COLUMNS = 75
# Output of a command, which prints a case a line.
OUTPUT = {'docs/export.md': 'batch [13]   boxes, px: '}


@pytest.mark.parametrize('page', [page.relative_to(ROOT).as_posix() for page in PAGES])
def test_code_fits_the_column(page):
    text = (ROOT / page).read_text(encoding='utf-8')
    blocks = re.findall(r'^( *)```.*?\n(.*?)^\1```', text, re.DOTALL | re.MULTILINE)
    assert len(blocks) * 2 == len(re.findall('^ *```', text, re.MULTILINE))
    lines = [line.removeprefix(indent) for indent, block in blocks for line in block.splitlines()]
    allowed = OUTPUT.get(page, '$^')
    wide = [line for line in lines if len(line) > COLUMNS and not re.search(allowed, line)]
    assert wide == []
