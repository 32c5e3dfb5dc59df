"""What is shipped is found by its name, is the model that was trained, and has a card with what was measured."""

import importlib
import sys
from pathlib import Path

import pytest
import torch
from mmengine.registry import MODELS, init_default_scope

pytest.importorskip('mmpretrain')
pytest.importorskip('safetensors')

from cpvt_backbones import CPVT, weights
from cpvt_backbones.analysis.resolution import Row, write_rows
from cpvt_backbones.engine.launch import read_config

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / 'configs/positional_encoding/peg-0-5-gap_imagenette.py'
TOLD = ['--about', 'A small column', '--data', 'Ten classes', '--terms', 'Research only']


@pytest.fixture
def run(tmp_path, monkeypatch):
    """The tool as from the command line, into an empty package; and a model to ship."""
    (tmp_path / 'package').mkdir()
    monkeypatch.setattr(weights, 'FOLDER', tmp_path / 'package')
    monkeypatch.syspath_prepend(str(ROOT / 'tools'))
    tool = importlib.import_module('ship_weights')
    cfg = read_config(CONFIG)
    init_default_scope('mmpretrain')
    model = MODELS.build(cfg.model).eval()
    torch.save(dict(state_dict=model.state_dict(), optimizer=torch.zeros(9)), tmp_path / 'epoch_1.pth')

    def call(name='small-toys', *options, config=CONFIG):
        monkeypatch.setattr(
            sys, 'argv', ['ship_weights', name, str(config), str(tmp_path / 'epoch_1.pth'), *TOLD, *options]
        )
        tool.main()

    call.model, call.tool, call.folder = model, tool, tmp_path
    return call


def test_it_is_found_by_its_name_and_its_card_says_what_was_measured(run, capsys):
    run()
    assert 'resolution_sweep.py --models small-toys=' in capsys.readouterr().out
    shipped = CPVT.from_pretrained('small-toys').eval()
    images = torch.randn(1, 3, 40, 56)
    torch.testing.assert_close(shipped(images)[0], run.model.backbone.eval()(images)[0], atol=2e-2, rtol=2e-2)
    assert not list((run.folder / 'package').glob('*.md'))

    rows = [
        Row(name, size, 200, side, side, 0.1, 5.0, 'cpu', 'x', {'accuracy/top1': top1})
        for name, size, side, top1 in (
            ('small-toys', '1', 112, 71.5),
            ('small-toys', '2', 224, 68.25),
            ('other', '1', 9, 1.0),
        )
    ]
    write_rows(run.folder / 'sizes.csv', rows)
    run('small-toys', '--sizes', str(run.folder / 'sizes.csv'))
    card = (run.folder / 'package/small-toys.md').read_text()
    for said in ('Data', 'Ten classes', 'Terms', 'Research only', 'Recipe', CONFIG.name, 'Commit', 'Accuracy'):
        assert said in card
    assert '| 1 | 112 x 112 | 71.5 |\n| 2 | 224 x 224 | 68.25 |\n' in card
    assert weights.find_shipped('small-toys').sha256 in card
    run('second-toys')
    assert list(weights.shipped_weights()) == ['second-toys', 'small-toys']


def test_what_is_wrong_is_named(run, capsys, monkeypatch):
    def refused(*arguments, **options):
        with pytest.raises(SystemExit):
            run(*arguments, **options)
        return capsys.readouterr().err

    assert "name must be <model>-<data> in lower case, as cpvt_tiny_gap-imagenette, got 'Toys'" in refused('Toys')
    outside = run.folder / 'model.py'
    outside.write_text(CONFIG.read_text())
    assert 'config must be in' in refused(config=outside)
    write_rows(run.folder / 'sizes.csv', [Row('other', '1', 1, 9, 9, 0.1, 5.0, 'cpu', 'x', {'accuracy/top1': 1.0})])
    assert "has no rows of the model 'small-toys'" in refused('small-toys', '--sizes', str(run.folder / 'sizes.csv'))
    monkeypatch.setattr(run.tool, 'LIMIT', 1000)
    assert 'more than 12 MB' in refused('large-toys')
    assert not (weights.FOLDER / 'large-toys.safetensors').exists()
