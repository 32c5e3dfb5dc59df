"""What is shipped is found by its name, is the model that was trained, and has a card with what was
measured.
"""

import importlib
import sys
from pathlib import Path

import pytest
import torch
from mmengine.registry import MODELS, init_default_scope

pytest.importorskip('mmpretrain')
pytest.importorskip('safetensors')

from cpvt_backbones import CPVT, weights
from cpvt_backbones.analysis.resolution import SweepModel, SweepRow, fingerprint, write_rows
from cpvt_backbones.checkpoints import load_weights, read_checkpoint
from cpvt_backbones.engine import command_line
from cpvt_backbones.engine.launch import read_config
from cpvt_backbones.inference import GoodSizes

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / 'configs/imagenette/cpvt-6-blocks_imagenette.py'
TOLD = [
    '--commit',
    'abc123',
    '--about',
    'A small column',
    '--data',
    'Ten classes',
    '--terms',
    'Research only',
]


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
    torch.save(
        dict(state_dict=model.state_dict(), optimizer=torch.zeros(9)), tmp_path / 'epoch_1.pth'
    )

    def call(name='small-toys', *options, config=CONFIG):
        monkeypatch.setattr(
            sys,
            'argv',
            ['ship_weights', name, str(config), str(tmp_path / 'epoch_1.pth'), *TOLD, *options],
        )
        command_line.run(tool.main)

    call.model, call.tool, call.folder = model, tool, tmp_path
    return call


def test_it_is_found_by_its_name_and_its_card_says_what_was_measured(run, capsys):
    run()
    assert 'resolution_sweep.py --models small-toys,' in capsys.readouterr().out
    shipped = CPVT.from_pretrained('small-toys').eval()
    images = torch.randn(1, 3, 40, 56)
    torch.testing.assert_close(
        shipped(images)[0], run.model.backbone.eval()(images)[0], atol=2e-2, rtol=2e-2
    )
    assert not list((run.folder / 'package').glob('*.md'))

    measured = fingerprint(SweepModel('small-toys', read_config(CONFIG), 'small-toys'))
    rows = [
        SweepRow(
            name, size, 200, side, side, 0.1, 5.0, 'cpu', source, {'accuracy/top1': top1}, zoom=0.5
        )
        for name, size, side, source, top1 in (
            ('small-toys', '1', 112, measured, 71.5),
            ('small-toys', '2', 224, measured, 68.25),
            ('other', '1', 9, measured, 1.0),
            ('small-toys', '3', 336, 'the weights before', 12.0),
        )
    ]
    write_rows(run.folder / 'sizes.csv', rows)
    decided = ['--decided', 'Two recipes were compared on them']
    run('small-toys', '--recipe', '`other.py`', '--sizes', str(run.folder / 'sizes.csv'), *decided)
    card = (run.folder / 'package/small-toys.md').read_text()
    assert '**Recipe.** `other.py`, at commit abc123.' in card
    assert '**Development scores.** Two recipes were compared on them.\n' in card
    run('small-toys', '--sizes', str(run.folder / 'sizes.csv'))
    card = (run.folder / 'package/small-toys.md').read_text()
    assert 'Development scores' not in card
    for said in (
        'Data',
        'Ten classes',
        'Terms',
        'Research only',
        'Recipe',
        CONFIG.name,
        'Accuracy',
        'small-toys PHOTOS',
    ):
        assert said in card
    assert '| 1 | 112 x 112 | 71.5 |\n| 2 | 224 x 224 | 68.25 |\n' in card and '| 12 |' not in card
    assert 'from random weights, at commit abc123' in card
    assert 'at least 90% of its best at 1 to 2 times the test scale (112 to 224 px' in card
    assert GoodSizes.of('small-toys') == GoodSizes(
        1.0, 2.0, side=112.0, zoom=0.5, metric='accuracy/top1'
    )
    assert weights.find_shipped('small-toys').sha256 in card
    run('small-toys')
    assert not list((run.folder / 'package').glob('*.md'))  # that card may not be true any more
    run('second-toys')
    assert list(weights.shipped_weights()) == ['second-toys', 'small-toys']


def test_what_is_wrong_is_named(run, capsys, monkeypatch):
    def refused(*arguments, **options):
        with pytest.raises(SystemExit):
            run(*arguments, **options)
        return capsys.readouterr().err

    assert (
        "name must be <model>-<data> in lower case, as cpvt_tiny_gap-imagenette, got 'Toys'"
        in refused('Toys')
    )
    outside = run.folder / 'model.py'
    outside.write_text(CONFIG.read_text())
    assert 'config must be in' in refused(config=outside)
    write_rows(
        run.folder / 'sizes.csv',
        [SweepRow('other', '1', 1, 9, 9, 0.1, 5.0, 'cpu', 'x', {'accuracy/top1': 1.0})],
    )
    assert "has no rows of 'small-toys', this file" in refused(
        'small-toys', '--sizes', str(run.folder / 'sizes.csv')
    )
    monkeypatch.setattr(run.tool, 'LIMIT', 1000)
    assert 'more than 12 MB' in refused('large-toys')
    assert not (weights.FOLDER / 'large-toys.safetensors').exists()


def test_the_same_weights_are_the_same_file(run):
    hashes = set()
    for _ in range(4):
        run()
        hashes.add(weights.find_shipped('small-toys').sha256)
    assert len(hashes) == 1


def test_a_file_that_is_too_large_leaves_the_one_before(run, monkeypatch):
    run()
    before = weights.find_shipped('small-toys').file.read_bytes()
    monkeypatch.setattr(run.tool, 'LIMIT', 1000)
    with pytest.raises(SystemExit):
        run()
    assert weights.find_shipped('small-toys').file.read_bytes() == before


def test_a_model_that_starts_from_another_says_so(run):
    run()
    config = ROOT / 'configs' / 'started_from_small_toys.py'
    start = dict(type='Pretrained', checkpoint='small-toys')
    try:
        config.write_text(
            f'_base_ = {str(CONFIG)!r}\nmodel = dict(backbone=dict(init_cfg={start!r}))\n'
        )
        run('tuned-toys', config=config)
        measured = fingerprint(SweepModel('tuned-toys', read_config(config), 'tuned-toys'))
        row = SweepRow(
            'tuned-toys',
            '1',
            200,
            112,
            112,
            0.1,
            5.0,
            'cpu',
            measured,
            {'accuracy/top1': 71.5},
            zoom=1.0,
        )
        write_rows(run.folder / 'sizes.csv', [row])
        run('tuned-toys', '--sizes', str(run.folder / 'sizes.csv'), config=config)
    finally:
        config.unlink()
    card = (run.folder / 'package/tuned-toys.md').read_text()
    assert f'from `small-toys` (SHA-256 `{weights.find_shipped("small-toys").sha256}`)' in card
    assert 'It starts from `small-toys`, whose terms hold too' in card
    assert 'init_cfg' not in weights.find_shipped('tuned-toys').backbone


def test_weights_that_only_the_training_had_are_left_out(run):
    state = dict(run.model.state_dict(), **{'to_teacher.weight': torch.ones(3)})
    torch.save(dict(state_dict=state), run.folder / 'epoch_1.pth')
    run()
    assert read_checkpoint('small-toys').keys() == run.model.state_dict().keys()


def test_weights_of_another_model_are_refused(run, capsys):
    torch.save(dict(state_dict=run.model.backbone.state_dict()), run.folder / 'epoch_1.pth')
    with pytest.raises(SystemExit):
        run()
    assert (
        'it does not fit the model: it lacks' in capsys.readouterr().err
        and not weights.shipped_weights()
    )


def test_the_toolboxes_load_it_by_name(run):
    """``load_from`` and ``tools/test.py`` go through mmengine, which knows neither names nor
    safetensors.
    """
    run()
    cfg = read_config(CONFIG)
    init_default_scope('mmpretrain')
    model = MODELS.build(cfg.model)
    load_weights(model, str(weights.shipped_file('small-toys')))
    for name, value in run.model.state_dict().items():
        assert torch.equal(model.state_dict()[name], value.half().float())
