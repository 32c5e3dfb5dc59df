"""The study of position encodings: its commands run small, and its data follow a rule."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.optim import OptimWrapper
from project_images import write_image

pytest.importorskip('mmpretrain')
pytest.importorskip('mmseg')

from positional_encoding import objects, run, variants
from positional_encoding.runs import read_records
from positional_encoding.splits import write_splits
from positional_encoding.variants import (
    ENCODINGS,
    TASKS,
    VARIANTS,
    classify_config,
    transfer_config,
)

from benchmarks import plots
from cpvt_backbones.checkpoints import read_checkpoint

CLASSIFIER = """
_base_ = '{base}/classifier.py'
data_preprocessor = dict(num_classes=2, batch_augments=dict(augments=dict(size={side})))
backbone = dict(arch=dict(embed_dims=32, depth=2, num_heads=2, mlp_ratio=2), patch_size=8,
    img_size={side}, with_cls_token=False, out_type='avg_featmap', position={position})
model = dict(backbone=backbone, head=dict(in_channels=32, num_classes=2))
"""
# In place of a dense task. The learning rate is 0: it ends with the weights that it starts from.
TRANSFER = """
train_dataloader = dict(batch_size=4, dataset=dict(data_root='data'))
pipeline = [dict(type='Resize', scale=(40, 40)), dict(type='PackInputs')]
test_dataloader = dict(dataset=dict(data_root='data', pipeline=pipeline))
train_cfg = dict(max_epochs=1)
optim_wrapper = dict(optimizer=dict(lr=0.0))
param_scheduler = []
"""
POSITIONS = {
    'none': None,
    'peg-0-5-gap': dict(type='PEG', after_blocks=(0,), _delete_=True),
    'learned-gap': dict(type='Learned', _delete_=True),
}


@pytest.fixture
def call(monkeypatch, tmp_path, image_folders):
    """The command line, with tiny configs beside ``data`` and ``tiny``."""
    configs, base = tmp_path / 'configs', variants.CONFIGS / '_base_'
    for folder in ('_base_', 'classify', 'transfer'):
        (configs / folder).mkdir(parents=True)
    shutil.copy(base / 'tiny-imagenet.py', configs / '_base_')
    for name, position in POSITIONS.items():
        text = CLASSIFIER.format(base=base, side=32, position=position)
        (configs / f'classify/{name}_imagenette.py').write_text(text)
    for encoding, variant in ENCODINGS.items():
        text = CLASSIFIER.format(base=base, side=40, position=POSITIONS[variant]) + TRANSFER
        (configs / f'transfer/semantic-fpn_{encoding}_camvid.py').write_text(text)
    boxes = []
    for name in ('train/a', 'train/b', 'train/c', 'val/a', 'val/c'):
        for index in range(25 if name.startswith('train') else 2):
            file = f'{name}/{name[-1]}_{index}.png'
            noise = np.random.default_rng(index).integers(0, 256, (64, 64, 3))
            write_image(tmp_path / 'tiny' / file, noise)
            boxes.append(f'{file}\t0\t0\t{index}\t{index}\n')
    (tmp_path / 'tiny/boxes.tsv').write_text(''.join(boxes))
    monkeypatch.setattr(variants, 'CONFIGS', configs)
    monkeypatch.setitem(variants.DATA_SETS, 'imagenette', [32, 40])
    monkeypatch.setitem(variants.DATA_SETS, 'tiny-imagenet', [32, 40, 48])
    monkeypatch.setattr(objects, 'EVERY', 1)
    monkeypatch.setattr(run, 'TRANSFER_SIZES', [1.0])
    monkeypatch.setattr(plots, 'save_figure', lambda figure, path: path.touch())
    monkeypatch.chdir(tmp_path)
    return lambda words: run.main([*words.split(), '--work-dir', 'work'])


def record_of(folder):
    return json.loads(Path(folder, 'record.json').read_text())


def weights_of(folder):
    return read_checkpoint(Path(folder, 'weights.pth'))['state_dict']


def test_the_commands_run_small_and_an_interrupted_run_ends_with_the_same_numbers(
    call, interrupted
):
    train = 'classify --data data --epochs 2 --batch-size 4 --seeds 1 --variants peg-0-5-gap'
    call(f'{train} learned-gap')
    run_folder, whole = Path('work/classify/peg-0-5-gap_seed-0'), Path('whole')
    run_folder.rename(whole)
    with interrupted(OptimWrapper, 'update_params', 6):  # within the second epoch
        call(train)
    assert len(read_records(run_folder.parent)) == 1
    call('classify --data data --seeds 1 --variants peg-0-5-gap')
    assert 'resumed epoch: 1, iter: 4' in (run_folder / 'console.log').read_text()
    record = record_of(run_folder)
    assert record == record_of(whole)
    expected, found = weights_of(whole), weights_of(run_folder)
    assert all(value.equal(found[name]) for name, value in expected.items())
    assert [row['size'] for row in record['rows']] == [32, 40]
    assert 0 < record['rows'][0]['shift_error'] < 2 and record['rows'][1]['shift_error'] is None
    assert "'type': 'PEG'" in record['config'] and record['commits'].split()
    assert record['environment']['PyTorch'] and record['environment']['processor']
    with pytest.raises(ValueError, match='was begun with'):
        call(f'{train} --epochs 3')

    call('transfer --seeds 1 --tasks semantic-fpn --images 3')
    check_transfer(Path('work'))
    call(
        'classify --data-set tiny-imagenet --data tiny --epochs 1 --batch-size 4 --seeds 1'
        ' --variants none'
    )
    call('objects')
    check_objects(Path('work/classify-tiny-imagenet/none_seed-0'))
    report = Path('work/report.md').read_text()
    assert all(part in report for part in ('PEG at 0-5, GAP', 'Semantic FPN', '48 px, padded'))
    drawn = {path.stem for path in Path('work').glob('*.png')}
    wide = {'sizes', 'variants', 'dense_transfer', 'tiny_imagenet_sizes'}
    assert drawn == wide | {'sizes_narrow', 'tiny_imagenet_sizes_narrow'}  # for phones


def check_transfer(work):
    """Of two starts, one has the weights of the classifier of its encoding and seed."""
    for encoding, variant in ENCODINGS.items():
        wanted = weights_of(work / f'classify/{variant}_seed-0')
        kernels = [name for name, value in wanted.items() if value.dim() == 4]
        for start in ('pretrained', 'scratch'):
            folder = work / f'transfer/semantic-fpn_{encoding}_{start}_seed-0'
            (row,) = record_of(folder)['rows']
            assert row['size'] == 1.0 and row['images'] == 3
            found = weights_of(folder)
            same = [torch.equal(found[name], wanted[name]) for name in kernels]
            assert same and (all(same) if start == 'pretrained' else not any(same))
            if encoding == 'learned':  # the grid of the config, not of the classifier
                assert found['backbone.pos_embed.0'].shape[1] == 25


def check_objects(folder):
    """Thirds by the size of the object add up to the accuracy of the run."""
    found, rows = json.loads((folder / 'objects.json').read_text()), record_of(folder)['rows']
    assert all('tuning' in row for row in rows)
    ways = ('resized', 32, rows[0]['top1']), ('resized', 48, rows[2]['top1']), ('padded', 48, None)
    for start, (way, size, top1) in zip((0, 3, 6), ways, strict=True):
        part = found[start : start + 3]
        assert {(one['way'], one['size']) for one in part} == {(way, size)}
        assert [one['object'] for one in part] == ['small', 'middle', 'large']
        assert sum(one['images'] for one in part) == 14
        correct = sum(one['correct'] for one in part)
        assert top1 is None or 100 * correct / 14 == pytest.approx(top1, abs=1e-3)


def test_variants_and_dense_models_have_the_trunk_of_their_configs():
    folder = classify_config('none').parent
    assert {classify_config(name) for name in VARIANTS} == set(folder.glob('*.py'))
    for encoding, variant in ENCODINGS.items():
        classifier = Config.fromfile(classify_config(variant)).model.backbone
        for task in TASKS:
            found = Config.fromfile(transfer_config(task, encoding)).model.backbone
            assert found.arch == classifier.arch
            assert {**classifier.position, **found.position} == classifier.position


def test_the_lists_of_tiny_imagenet_are_a_rule(tmp_path):
    for split, count in (('train', 100), ('val', 2)):
        for name in 'dacb':
            (tmp_path / split / name).mkdir(parents=True)
            for index in range(count):
                (tmp_path / split / name / f'{name}_{index}.JPEG').touch()
    assert write_splits(tmp_path) == dict(train=152, tune=8, test=44)
    train, tune, test = (
        (tmp_path / f'meta/{name}.txt').read_text().splitlines()
        for name in ('train', 'tune', 'test')
    )
    assert len({*train, *tune, *test}) == 204
    assert {line.split()[0].split('/')[1] for line in train} == {'a', 'c'}
    assert tune[:4] == [f'train/a/a_{index}.JPEG 0' for index in (23, 48, 73, 98)]
    assert test[:2] == ['train/a/a_4.JPEG 0', 'train/a/a_9.JPEG 0']
    assert test[-1] == 'val/c/c_1.JPEG 1'
