"""Pages of the guide can be read: short sentences, short cells, and no seed that is hidden."""

import re
from pathlib import Path

import pytest

from cpvt_backbones import CPVT, PEG, PyramidCPVT

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / 'docs'
# The reference, generated tables, studies, what changed, and the README, which has its own tests.
OTHERS = ('api/', 'docs/benchmarks/', 'docs/evidence/', 'projects/', 'CHANGELOG', 'overview')
NAV = re.findall(r'[\w./-]+\.md', (DOCS / 'mkdocs.yml').read_text())
PAGES = [page for page in NAV if not page.startswith(OTHERS)]
PAGES.append('docs/benchmarks/details.md')  # written by hand, beside generated ones
PAGES[PAGES.index('index.md')] = 'docs/site/index.md'
STUDIES = [page for page in NAV if page.startswith('docs/evidence/')]


def plain(text):
    """Text without the addresses of links and without marks; a link or code counts as a word."""
    text = re.sub(r'`[^`]*`', 'code', text)
    text = re.sub(r'!?\[([^]]*)\]\([^)]*\)', r'\1', text)
    return re.sub(r'<[^>]*>|\*\*', '', text)


def words(text):
    """Number of words, those with a letter or a digit."""
    return len([word for word in text.split() if re.search(r'\w', word)])


def prose(page):
    """Sentences of a page outside code, tables and headings."""
    text = re.sub(r'^```.*?^```', '', (ROOT / page).read_text(), flags=re.DOTALL | re.MULTILINE)
    lines = [line for line in text.splitlines() if not line.startswith(('|', '#', '!['))]
    blocks = re.split(r'\n\s*\n|\n(?=\s*(?:-|\d+\.) )', '\n'.join(lines))
    return [
        ' '.join(sentence.split())
        for block in blocks
        for sentence in re.split(r'(?<=[.!?])\s+', plain(block))
    ]


def cells(page):
    """Cells of the tables of a page."""
    lines = [line for line in (ROOT / page).read_text().splitlines() if line.startswith('|')]
    return [cell.strip() for line in lines for cell in plain(line).strip('|').split('|')]


@pytest.mark.parametrize('page', [*PAGES, *STUDIES])
def test_no_sentence_has_more_than_25_words(page):
    assert [sentence for sentence in prose(page) if words(sentence) > 25] == []


@pytest.mark.parametrize('page', PAGES)
def test_no_cell_has_more_than_15_words(page):
    assert [cell for cell in cells(page) if words(cell) > 15] == []


def choices():
    """Rows of "What to choose": the cells of each."""
    part = (DOCS / 'evidence.md').read_text().partition('## What to choose')[2]
    lines = [line for line in part.partition('\n## ')[0].splitlines() if line.startswith('| ')]
    return [[cell.strip() for cell in line.strip('|').split('|')] for line in lines[2:]]


def test_what_to_choose_has_a_study_for_each_row_that_trained_weights_do_not_decide():
    """The first two rows need no figure: they are what the weights were trained with."""
    rows = choices()
    decided = [why for *_, why in rows if 'trained with' in why]
    assert len(rows) == 7 and [why for *_, why in rows[:2]] == decided
    for *_, why in rows[2:]:
        assert 'evidence/' in why and '](' in why


def test_what_to_choose_has_lines_of_config_that_build_a_backbone():
    default, *written = (config for _, _, config, _ in choices())
    assert default.startswith('nothing') and 'PEG' in default
    assert any(isinstance(layer, PEG) for layer in PyramidCPVT(arch='tiny').modules())
    for config in written:
        (line,) = re.findall(r'`(position=.+)`', config)
        CPVT(arch='tiny', **eval(f'dict({line})'))
