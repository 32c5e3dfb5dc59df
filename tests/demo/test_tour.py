"""demo/tour.ipynb runs from top to bottom, and holds no outputs."""

import json
from pathlib import Path

import pytest
from PIL import Image

NOTEBOOK = Path(__file__).parents[2] / 'demo/tour.ipynb'
CODE = [
    cell
    for cell in json.loads(NOTEBOOK.read_text(encoding='utf-8'))['cells']
    if cell['cell_type'] == 'code'
]


def test_no_outputs_are_committed():
    assert all(not cell['outputs'] and cell['execution_count'] is None for cell in CODE)


@pytest.mark.full
def test_the_notebook_runs(monkeypatch, tmp_path, capsys):
    """Its cells in one namespace, as Jupyter runs them."""
    pytest.importorskip('mmseg')
    pytest.importorskip('mmdet')
    pytest.importorskip('mmpretrain')
    monkeypatch.setattr('tempfile.tempdir', str(tmp_path))
    namespace = {}
    for cell in CODE:
        exec(compile(''.join(cell['source']), NOTEBOOK.name, 'exec'), namespace)
    printed = capsys.readouterr().out
    assert "'road'" in printed
    assert '333 x 517 px -> (1, 192, 21, 33)' in printed
    assert 'RoPE' in printed and '0 parameters' in printed
    assert Image.open(namespace['WORK'] / 'mine/cells/sheet.jpg').width > 985
    assert namespace['picture'].ndim == 3
