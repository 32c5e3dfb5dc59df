"""Command line of the study: mistakes are reported before anything is trained."""

import importlib
import json
from pathlib import Path
from shutil import copytree

import cv2
import numpy as np
import pytest
import torch
from mmengine.registry import MODELS

pytest.importorskip('mmpretrain')

from positional_encoding.splits import write_splits
from positional_encoding.variants import VARIANTS, classify_config, data_options

from cpvt_backbones.engine.launch import read_config


@pytest.fixture
def call(monkeypatch, tmp_path, image_folders):
    for split in ('train', 'val'):
        for label in range(2, 10):  # as many classes as the configs of the study have
            copytree(image_folders / split / str(label % 2), image_folders / split / str(label))
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


def test_the_lists_of_tiny_imagenet_are_a_rule(tmp_path):
    for split, count in (('train', 100), ('val', 2)):
        for name in 'dacb':
            for index in range(count):
                file = tmp_path / split / name / f'{name}_{index}.JPEG'
                file.parent.mkdir(parents=True, exist_ok=True)
                file.touch()
    assert write_splits(tmp_path) == dict(train=152, tune=8, test=44)
    train, tune, test = ((tmp_path / f'meta/{name}.txt').read_text().splitlines() for name in ('train', 'tune', 'test'))
    assert len({*train, *tune, *test}) == 204
    assert {line.split()[0].split('/')[1] for line in train} == {'a', 'c'}
    assert tune[:4] == [f'train/a/a_{index}.JPEG 0' for index in (23, 48, 73, 98)]
    assert test[:2] == ['train/a/a_4.JPEG 0', 'train/a/a_9.JPEG 0'] and test[-1] == 'val/c/c_1.JPEG 1'
    with pytest.raises(ValueError, match='there are no images in'):
        write_splits(tmp_path / 'meta')


@pytest.mark.parametrize('name', VARIANTS)
def test_every_variant_has_64_tokens_on_tiny_imagenet(name):
    cfg = read_config(classify_config(name), cfg_options=data_options('tiny-imagenet'))
    model = MODELS.build(cfg.model.backbone)
    grids = []
    model.blocks[0].register_forward_hook(lambda module, inputs, output: grids.append(inputs[2]))
    size = cfg.data_preprocessor.batch_augments.augments['size']
    model(torch.zeros(2, 3, size, size))
    assert grids == [(8, 8)]
    assert cfg.model.head.num_classes == cfg.data_preprocessor.num_classes == 50
    assert cfg.test_dataloader.dataset.ann_file != cfg.train_dataloader.dataset.ann_file


def test_tiny_imagenet_has_accuracies_to_choose_rates_by(call, tmp_path):
    for split, count in (('train', 40), ('val', 2)):
        for name in 'abc':
            for index in range(count):
                file = tmp_path / 'tiny' / split / name / f'{name}_{index}.png'
                file.parent.mkdir(parents=True, exist_ok=True)
                cv2.imwrite(str(file), np.full((64, 64, 3), index, np.uint8))
    words = '--data-set tiny-imagenet --data tiny --epochs 1 --batch-size 8 --variants none --seeds 1 --work-dir out'
    call('classify', *words.split())
    rows = json.loads((tmp_path / 'out/classify-tiny-imagenet/none_seed-0/record.json').read_text())['rows']
    assert [row['size'] for row in rows] == [32, 40, 48, 56, 64] and all('tuning' in row for row in rows)
    assert 'trained at 32 px' in (tmp_path / 'out/report.md').read_text()
