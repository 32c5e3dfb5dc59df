"""The benchmark of the routes of prediction."""

import pandas as pd
import pytest

pytest.importorskip('mmpretrain')
from benchmarks import pipeline


def test_a_round_has_every_route(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(pipeline, 'keep_memory', lambda: None)
    starts = [
        dict(dtype='', route=route, round=0, ms=1.0, cpu_ms=1.0)
        for route in (pipeline.IMPORT, 'tool, one image')
    ]
    monkeypatch.setattr(pipeline, 'measure_starts', lambda *_: starts)
    out = tmp_path / 'pipeline.csv'
    options = ['--count', '2', '--rounds', '1', '--dtypes', 'float32', '--out', str(out)]
    pipeline.main(['cpvt_tiny_gap-imagenette', *options])
    rows = pd.read_csv(out)
    assert len(rows) == rows['route'].nunique() == 8
    assert set(rows['images']) == {2}
    routes = rows[rows['dtype'] == 'float32']
    assert routes[routes['route'] == pipeline.BARE]['share'].tolist() == [1]
    assert (rows['share'] > 0).all()
    assert len(routes) == 6 and (routes['beside_ms'] < routes['cpu_ms']).all(), (
        'the model is taken off'
    )
    assert rows[rows['dtype'].isna()]['beside_ms'].isna().all()
    assert (
        'tool, pictures' in out.with_suffix('.md').read_text()
        and 'tool, pictures' in capsys.readouterr().out
    )
