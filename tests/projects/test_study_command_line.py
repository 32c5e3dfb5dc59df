"""Command line of the study: mistakes are reported before anything is trained."""

import importlib
import json
from pathlib import Path

import pytest

pytest.importorskip('mmpretrain')

from positional_encoding.variants import VARIANTS, classify_config


@pytest.fixture
def call(monkeypatch, tmp_path, image_folders):
    monkeypatch.chdir(tmp_path)
    run = importlib.import_module('positional_encoding.run')
    return lambda *arguments: run.main([*arguments])


def test_every_variant_has_its_config_and_every_config_its_variant():
    folder = classify_config('none').parent
    assert {classify_config(name) for name in VARIANTS} == set(folder.glob('*.py'))


@pytest.mark.parametrize(
    ('arguments', 'error', 'message'),
    [
        (['classify', '--data', 'data', '--epochs', '1'], FileNotFoundError, 'distilled needs data/teachers/'),
        (['classify', '--data', 'data', '--variants', 'none'], ValueError, '--epochs or --budget: .* has no runs yet'),
        (['classify', '--data', 'other', '--epochs', '1'], ValueError, '--data: there are no images in other/train'),
        (['transfer'], ValueError, 'no finished run .*peg-0-5-gap_seed-0; train it with `classify`'),
        (['report'], ValueError, 'has no finished run'),
    ],
)
def test_a_mistake_is_named_before_anything_is_written(call, tmp_path, arguments, error, message):
    with pytest.raises(error, match=message):
        call(*arguments)
    assert not (tmp_path / 'work_dirs').exists()


def test_a_stage_ends_with_its_report_and_can_be_repeated(call, tmp_path, capsys):
    arguments = ['--data', 'data', '--batch-size', '8', '--variants', 'none', '--seeds', '1', '--work-dir', 'out']
    call('classify', *arguments, '--epochs', '1')
    record = json.loads((tmp_path / 'out/classify/none_seed-0/record.json').read_text())
    assert [row['size'] for row in record['rows']] == [112, 128, 160, 192, 224]
    plan = json.loads((tmp_path / 'out/classify/plan.json').read_text())
    assert plan['epochs'] == record['rows'][0]['epochs'] == 1
    assert 'none_seed-0: ' in capsys.readouterr().out
    assert '| no encoding |' in (tmp_path / 'out/report.md').read_text()
    call('classify', *arguments)  # continues with the plan of the folder, and there is nothing left
    assert f'{Path("out/classify")}: 0 runs left' in capsys.readouterr().out
    with pytest.raises(ValueError, match='was begun with'):
        call('classify', *arguments, '--epochs', '2')
