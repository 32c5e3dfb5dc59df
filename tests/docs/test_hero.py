"""The first picture of README: what it says of padding is what its models compute."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.full
def test_padding_changes_what_the_picture_says(monkeypatch):
    pytest.importorskip('mmseg')
    monkeypatch.syspath_prepend(ROOT / 'docs/site')
    import hero

    peer, ours = hero.Segmentors().changed(1)
    assert not any(changed.any() for changed in ours)
    text = (ROOT / 'README.md').read_text(encoding='utf-8')
    (said,) = re.findall(r'figures/padding\.webp" alt="[^"]+? ([\d.]+) %', text)
    assert float(hero.share(peer).split()[0]) == pytest.approx(float(said), abs=0.3)
