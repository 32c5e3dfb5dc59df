"""Command line of the study: mistakes are reported before anything is trained."""

import importlib
import json
from pathlib import Path
from shutil import copytree

import cv2
import numpy as np
import pandas as pd
import pytest
import torch
from mmengine.registry import MODELS, DefaultScope

pytest.importorskip('mmpretrain')

from positional_encoding import objects
from positional_encoding.report import objects_report
from positional_encoding.splits import write_splits
from positional_encoding.variants import VARIANTS, classify_config, data_options

from cpvt_backbones.analysis.complexity import build_model
from cpvt_backbones.toolboxes import read_config


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
        (
            ['classify', '--data', 'data', '--epochs', '1'],
            FileNotFoundError,
            'distilled needs data/teachers/',
        ),
        (
            ['classify', '--data', 'data', '--variants', 'none'],
            ValueError,
            '--epochs or --budget: .* has no runs yet',
        ),
        (
            ['classify', '--data', 'other', '--epochs', '1'],
            ValueError,
            '--data: there are no images in other/train',
        ),
        (
            ['transfer'],
            ValueError,
            'no finished run .*peg-0-5-gap_seed-0; train it with `classify`',
        ),
        (['report'], ValueError, 'has no finished run'),
    ],
)
def test_a_mistake_is_named_before_anything_is_written(call, tmp_path, arguments, error, message):
    with pytest.raises(error, match=message):
        call(*arguments)
    assert not (tmp_path / 'work_dirs').exists()


def test_a_stage_ends_with_its_report_and_can_be_repeated(call, tmp_path, capsys):
    arguments = [
        '--data',
        'data',
        '--batch-size',
        '8',
        '--variants',
        'none',
        '--seeds',
        '1',
        '--work-dir',
        'out',
    ]
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
    train, tune, test = (
        (tmp_path / f'meta/{name}.txt').read_text().splitlines()
        for name in ('train', 'tune', 'test')
    )
    assert len({*train, *tune, *test}) == 204
    assert {line.split()[0].split('/')[1] for line in train} == {'a', 'c'}
    assert tune[:4] == [f'train/a/a_{index}.JPEG 0' for index in (23, 48, 73, 98)]
    assert (
        test[:2] == ['train/a/a_4.JPEG 0', 'train/a/a_9.JPEG 0'] and test[-1] == 'val/c/c_1.JPEG 1'
    )
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


def test_tiny_imagenet_by_rates_and_objects(call, tmp_path, monkeypatch):
    boxes = []
    for split, count in (('train', 40), ('val', 2)):
        for name in 'abc':
            for index in range(count):
                file = tmp_path / 'tiny' / split / name / f'{name}_{index}.png'
                file.parent.mkdir(parents=True, exist_ok=True)
                cv2.imwrite(
                    str(file),
                    np.random.default_rng(index).integers(0, 256, (64, 64, 3), dtype=np.uint8),
                )
                boxes.append(f'{split}/{name}/{file.name}\t0\t0\t{index}\t{index}\n')
    words = (
        '--data-set tiny-imagenet --data tiny --epochs 1 --batch-size 8 --variants none --seeds 1'
        ' --work-dir out'
    )
    call('classify', *words.split())
    rows = json.loads(
        (tmp_path / 'out/classify-tiny-imagenet/none_seed-0/record.json').read_text()
    )['rows']
    assert [row['size'] for row in rows] == [32, 40, 48, 56, 64] and all(
        'tuning' in row for row in rows
    )
    assert 'trained at 32 px' in (tmp_path / 'out/report.md').read_text()
    again = '--work-dir out'.split()
    with pytest.raises(FileNotFoundError, match=r'data_root: tiny/boxes\.tsv is needed'):
        call('objects', *again)
    (tmp_path / 'tiny/boxes.tsv').write_text(boxes[0])
    with pytest.raises(
        ValueError, match=r'data_root: tiny/boxes\.tsv has no box of train/a/a_4\.png'
    ):
        call('objects', *again)
    (tmp_path / 'tiny/boxes.tsv').write_text(''.join(boxes))
    with pytest.raises(
        FileNotFoundError, match=r'--work-dir: none/classify-tiny-imagenet has no finished run'
    ):
        call('objects', '--work-dir', 'none')
    monkeypatch.setattr('positional_encoding.objects.EVERY', 1)
    call('objects', *again)
    found = json.loads(
        (tmp_path / 'out/classify-tiny-imagenet/none_seed-0/objects.json').read_text()
    )
    parts = [found[start : start + 3] for start in range(0, 15, 3)]
    assert [(part[0]['way'], part[0]['size']) for part in parts] == [
        ('resized', 32), ('resized', 48), ('resized', 64), ('padded', 48), ('padded', 64)
    ]  # fmt: skip
    for part, row in zip(parts, rows[::2], strict=False):
        assert [one['object'] for one in part] == ['small', 'middle', 'large']
        assert sum(one['images'] for one in part) == 20
        assert sum(one['correct'] for one in part) / 20 * 100 == pytest.approx(
            row['top1'], abs=1e-3
        )
    text = (tmp_path / 'out/report.md').read_text()
    assert '48 px, padded' in text and 'verdict' not in text, 'no claim is about one variant'


def test_thirds_and_their_table(tmp_path):
    (tmp_path / 'meta').mkdir()
    areas = [1, 49, 9, 25, 4, 36]
    names = [f'{index}.png' for index in range(6 * objects.EVERY)]
    (tmp_path / 'meta/test.txt').write_text(''.join(f'{name} 0\n' for name in names))
    sides = np.sqrt(areas).astype(int)
    boxes = [f'{name}\t2\t3\t{1 + k}\t{2 + k}\n' for name, k in zip(names[::3], sides, strict=True)]
    (tmp_path / 'boxes.tsv').write_text(''.join(boxes))
    groups = objects.group_images(tmp_path)
    assert [groups[name] for name in names[::3]] == [
        'small',
        'large',
        'middle',
        'middle',
        'small',
        'large',
    ]

    runs = [
        dict(variant=variant, seed=seed, rate_factor=1.0)
        for variant in ('rope', 'none')
        for seed in (0, 1)
    ]
    results = pd.DataFrame([run | dict(size=32, top1=50.0) for run in runs])
    rows = [
        run
        | dict(
            way=way,
            size=size,
            object=group,
            images=10 * (group != 'middle'),
            correct=correct + run['seed'],
        )
        for run in runs
        for way, size in (('resized', 32), ('resized', 64), ('padded', 64))
        for group, correct in dict(small=1, middle=0, large=5 + (way == 'padded')).items()
    ]
    lines = objects_report(pd.DataFrame(rows), results).splitlines()
    assert '10 small, 10 large' in lines[2]
    assert [cell.strip() for cell in lines[4].split('|')[1:-1]][2:] == [
        '32 px',
        '64 px',
        '64 px, padded',
    ]
    large = next(line for line in lines if 'RoPE' in line and 'large' in line)
    assert [cell.strip() for cell in large.split('|')[3:-1]] == [
        '55.0 ± 7.1',
        '55.0 ± 7.1',
        '65.0 ± 7.1',
    ]
    assert objects_report(pd.DataFrame(rows), results.assign(rate_factor=2.0)) == ''


def test_padding_keeps_the_object_and_its_place(monkeypatch, tmp_path):
    """A model that sums what it sees: a padded image is its small self, on the mean."""
    seen = []
    file = tmp_path / 'meta/test.txt'
    file.parent.mkdir()
    file.write_text('a.png 0\n')
    image = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    cv2.imwrite(str(tmp_path / 'a.png'), image)
    cfg = read_config(classify_config('none'), cfg_options=data_options('tiny-imagenet'))
    cfg.test_dataloader.dataset.data_root = str(tmp_path)
    torch.save({'state_dict': build_model(cfg).state_dict()}, tmp_path / 'weights.pth')
    hook = lambda module, inputs: seen.append(inputs[0])  # noqa: E731
    monkeypatch.setattr(objects, 'build_model', lambda cfg: hooked(build_model(cfg), hook))
    DefaultScope.get_instance('of_another_program', scope_name='mmengine')
    for side, canvas in ((32, 32), (32, 48)):
        assert list(objects.classify(cfg, tmp_path / 'weights.pth', side, canvas)) == [
            tmp_path / 'a.png'
        ]
    small, padded = seen
    assert torch.equal(padded[:, :, :32, :32], small) and padded.shape == (1, 3, 48, 48)
    assert padded[:, :, 32:].abs().max() < 0.5 / 57, 'the mean, rounded to a byte'


def hooked(model, hook):
    model.backbone.register_forward_pre_hook(hook)
    return model
