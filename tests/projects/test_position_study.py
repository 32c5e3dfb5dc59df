"""The study of position encodings: its stages train, resume and record small."""

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
import pytest
import torch
from filelock import FileLock
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.registry import HOOKS, MODELS

pytest.importorskip('mmpretrain')
pytest.importorskip('mmseg')

from positional_encoding import objects, run
from positional_encoding.classify import Classification, ClassifyRun, epochs_within
from positional_encoding.runs import RunFolder, current_commit, read_records, write_json
from positional_encoding.splits import write_splits
from positional_encoding.transfer import STARTS, Transfer
from positional_encoding.variants import (
    ENCODINGS,
    TASKS,
    VARIANTS,
    classify_config,
    data_options,
    transfer_config,
)

from cpvt_backbones import CPVT
from cpvt_backbones.analysis.complexity import build_model
from cpvt_backbones.checkpoints import read_checkpoint
from cpvt_backbones.toolboxes import read_config

ROOT = Path(__file__).resolve().parents[2]
POSITIONS = {'peg': dict(type='PEG', after_blocks=(0,)), 'learned': dict(type='Learned')}


def weights_of(folder):
    return read_checkpoint(folder / 'weights.pth')['state_dict']


# -- folders of runs
# --------------------------------------------------------------------------------------------------


class Run(NamedTuple):
    seed: int

    @property
    def name(self):
        return f'run_{self.seed}'


class Folder(RunFolder):
    """Three runs that train nothing."""

    def pending(self):
        return [one for one in map(Run, range(3)) if self.record(one) is None], 0

    def _train(self, run):
        record = dict(run=run._asdict(), config='width=8')
        write_json(self.folder / run.name / 'record.json', record)
        return record


def test_runs_are_shared_between_processes_and_bound_to_their_plan(tmp_path):
    plan, trained = dict(sizes=[1, 2]), []

    def done(run, record):
        trained.append(run.seed)
        if run.seed == 2:  # the other process ends too
            write_json(tmp_path / 'run_0/record.json', dict(run=Run(0)._asdict(), config='width=9'))

    with FileLock(tmp_path / '.run_0.lock'):
        Folder(tmp_path, plan).work(done=done, patience=0.01)
    assert trained == [1, 2]
    assert Folder(tmp_path, None).left() == 0
    with pytest.raises(ValueError, match='seeds 0 and 1 of .* were trained with different configs'):
        read_records(tmp_path)
    with pytest.raises(ValueError, match=r'was begun with .*\[1, 2\].* got .*use another folder'):
        Folder(tmp_path, dict(sizes=[1]))
    with pytest.raises(FileNotFoundError, match='no study was begun in .*elsewhere'):
        Folder(tmp_path / 'elsewhere', None)


def test_the_commit_marks_changed_files_anywhere_in_the_repository(tmp_path):
    def git(*words):
        author = ['-c', 'user.name=a', '-c', 'user.email=a']
        subprocess.run(['git', *author, *words], cwd=tmp_path, check=True)

    (tmp_path / 'inner').mkdir()
    (tmp_path / 'outer.py').write_text('1')
    assert current_commit(tmp_path) == ''
    git('init', '-q')
    git('add', '.')
    git('commit', '-qm', 'one')
    clean = current_commit(tmp_path / 'inner')
    assert len(clean) == 40
    (tmp_path / 'outer.py').write_text('2')
    assert current_commit(tmp_path / 'inner') == f'{clean}+'


# -- classification
# --------------------------------------------------------------------------------------------------


@HOOKS.register_module(force=True)
class KillInSecondEpoch(Hook):
    def after_train_iter(self, runner, *args, **kwargs):
        if runner.iter == 6:
            os.kill(os.getpid(), signal.SIGKILL)


def work(stage):
    """Target of a process that imports this module, and so registers the hook above."""
    stage.work()


@pytest.fixture
def classifiers(write_config):
    """Configs of two tiny classifiers."""
    arch = dict(embed_dims=32, depth=2, num_heads=2, mlp_ratio=2)
    base = str(ROOT / 'projects/positional_encoding/configs/_base_/classifier.py')
    augments = dict(augments=dict(size=32))
    configs = {}
    for name, position in POSITIONS.items():
        backbone = dict(arch=arch, patch_size=8, img_size=32)
        backbone['position'] = dict(position, _delete_=True)
        content = dict(
            _base_=base,
            data_preprocessor=dict(num_classes=2, batch_augments=augments),
            model=dict(backbone=backbone, head=dict(in_channels=32, num_classes=2)),
            val_dataloader=dict(batch_size=4),
            test_dataloader=dict(batch_size=4),
        )
        configs[name] = write_config(name, content)
    return configs


@pytest.fixture
def plan(image_folders):
    plan = dict(epochs=3, batch_size=4, sizes=[32, 40], amp_dtype=None)
    return dict(plan, data_root=str(image_folders))


@pytest.fixture
def stage(plan, classifiers, tmp_path):
    def make(folder, plan=plan, **seeds):
        rates = dict(peg=(1.0,), learned=(1.0, 2.0))
        return Classification(tmp_path / folder, plan, classifiers, seeds, rates)

    return make


def test_a_seed_reproduces_its_results_and_so_does_a_killed_run_that_resumes(stage, classifiers):
    whole, broken = stage('whole', peg=[4]), stage('broken', peg=[4])
    whole.work()
    text = classifiers['peg'].read_text()
    imports = ["'cpvt_backbones'", "'cpvt_backbones.engine.decoded'"]
    classifiers['peg'].write_text(
        f'{text}\ncustom_imports = dict(imports=[{", ".join(imports)}])\n'
        'custom_hooks = [dict(type="KillInSecondEpoch")]\n'
    )
    process = multiprocessing.get_context('spawn').Process(target=work, args=(broken,))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert not read_records(broken.folder)
    classifiers['peg'].write_text(text)
    stage('broken', plan=None, peg=[4]).work()
    assert 'resumed epoch: 1, iter: 4' in (broken.folder / 'peg_seed-4/console.log').read_text()

    (record,), (other,) = read_records(whole.folder), read_records(broken.folder)
    assert record['rows'] == other['rows']
    assert [row['size'] for row in record['rows']] == [32, 40]
    at_training_size, larger = record['rows']
    assert 0 < at_training_size['shift_error'] < 2 and larger['shift_error'] is None
    assert "'type': 'PEG'" in record['config'] and record['commits'].split()
    assert record['environment']['PyTorch'] and record['environment']['processor']
    found = weights_of(broken.folder / 'peg_seed-4')
    expected = weights_of(whole.folder / 'peg_seed-4')
    assert all(value.equal(found[name]) for name, value in expected.items())
    assert not list(broken.folder.glob('*/epoch_*.pth'))


def finish(stage, run, **result):
    """Write the record of a run that was not trained."""
    record = dict(run=run._asdict(), rows=[dict(size=32, **result)])
    write_json(stage.folder / run.name / 'record.json', record)


def test_the_best_rate_of_the_first_seed_is_used_for_all_seeds(stage):
    one = stage('rates', peg=[0, 1], learned=[0, 1])
    first = [ClassifyRun('peg', 0), ClassifyRun('learned', 0, 1.0), ClassifyRun('learned', 0, 2.0)]
    assert one.pending() == ([*first, ClassifyRun('peg', 1)], 1)
    rates = [one.config(run).optim_wrapper.optimizer.lr for run in first[1:]]
    assert rates[1] == 2 * rates[0]
    finish(one, first[1], top1=50.0)
    assert one.best_rate('learned') is None
    finish(one, first[2], top1=60.0)
    assert one.pending() == ([first[0], ClassifyRun('peg', 1), ClassifyRun('learned', 1, 2.0)], 0)
    for one_run, tuning in zip(first[1:], (0.6, 0.5), strict=True):  # on images not tested
        finish(one, one_run, top1=one_run.rate_factor, tuning=tuning)
    assert one.best_rate('learned') == 1.0


def test_a_budget_counts_training_and_tests(plan, monkeypatch):
    monkeypatch.setattr('positional_encoding.classify.seconds_per_iteration', lambda *_: 0.5)
    # A run has 4 iterations an epoch, and its tests cost 10 / 4 * (1 + 1.25 ** 2) / 3 = 2.1
    # iterations.
    budget = dict(config=Path(), plan=plan, runs=2, train=16, val=10)
    assert epochs_within(14.2 / 60, **budget) == 3
    assert epochs_within(14.1 / 60, **budget) == 2
    with pytest.raises(ValueError, match='--budget: one epoch of 2 runs takes about 0 minutes'):
        epochs_within(0.05, **budget)


# -- dense transfer
# --------------------------------------------------------------------------------------------------

TRUNK = dict(
    arch=dict(embed_dims=16, depth=2, num_heads=2, mlp_ratio=2),
    patch_size=8,
    with_cls_token=False,
    img_size=40,
)
SEGMENTOR = """
default_scope = 'mmseg'
custom_imports = dict(imports=['cpvt_backbones'])
log_level = 'ERROR'
pixels = dict(mean=[127.5] * 3, std=[60.0] * 3, size=(32, 40), test_cfg=dict(size_divisor=8))
model = dict(
    type='EncoderDecoder',
    data_preprocessor=dict(type='SegDataPreProcessor', bgr_to_rgb=True, **pixels),
    backbone=dict(type='CPVT', position={position!r}, **{trunk!r}),
    decode_head=dict(type='FCNHead', in_channels=16, channels=16, num_convs=0, concat_input=False,
        num_classes=3, in_index=0),
    test_cfg=dict(mode='whole'))
load = [dict(type='LoadImageFromFile'), dict(type='LoadAnnotations')]
pack = dict(type='PackSegInputs')
data = dict(type='BaseSegDataset', data_root={root!r}, img_suffix='.jpg',
    data_prefix=dict(img_path='images/train', seg_map_path='labels/train'),
    metainfo=dict(classes=('a', 'b', 'c'), palette=[(0, 0, 0), (9, 9, 9), (99, 99, 99)]))
train_dataloader = dict(batch_size=2, num_workers=0,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(**data, pipeline=[*load, dict(type='RandomCrop', crop_size=(32, 40)), pack]))
test_dataloader = dict(batch_size=1, num_workers=0,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(**data, pipeline=[*load, pack]))
test_evaluator = dict(type='IoUMetric', iou_metrics=['mIoU'])
train_cfg = dict(type='IterBasedTrainLoop', max_iters=3, val_interval=3)
test_cfg = dict()
optim_wrapper = dict(optimizer=dict(type='SGD', lr={rate}))
default_hooks = dict(checkpoint=dict(type='CheckpointHook', by_epoch=False, interval=1))
"""


@pytest.fixture
def transfer(scenes, tmp_path):
    """Makes a stage; a classifier's weights for each encoding and seed are there."""
    for file in (scenes / 'labels/train').iterdir():
        labels = cv2.imread(str(file), cv2.IMREAD_GRAYSCALE)
        cv2.imwrite(str(file), labels % 3)
    pretrained = {}
    for encoding, position in POSITIONS.items():
        model = CPVT(**{**TRUNK, 'img_size': 16}, position=position)  # its table has another grid
        for seed in (0, 5):
            state = {}
            for key, value in model.state_dict().items():
                # A grid's size is an integer.
                state[f'backbone.{key}'] = value + seed if value.is_floating_point() else value
            pretrained[encoding, seed] = tmp_path / f'{encoding}_{seed}.pth'
            torch.save(dict(state_dict=state), pretrained[encoding, seed])

    def make(folder, *, seeds=(0,), encodings=('peg',), sizes=(1.0, 1.5), rate=0.1):
        configs = {}
        for encoding in encodings:
            values = dict(position=POSITIONS[encoding], trunk=TRUNK, root=str(scenes), rate=rate)
            configs['camvid', encoding] = tmp_path / f'{folder}_{encoding}.py'
            configs['camvid', encoding].write_text(SEGMENTOR.format(**values))
        plan = dict(sizes=sizes, images=3)
        return Transfer(tmp_path / folder, plan, configs, pretrained, seeds)

    make.pretrained = pretrained
    return make


@pytest.mark.slow
def test_a_segmentor_is_reproduced_after_an_interruption(transfer, tmp_path):
    first, again = transfer('first'), transfer('again')
    first.work()
    broken = tmp_path / 'again/camvid_peg_scratch_seed-0'
    broken.mkdir(parents=True)
    (broken / 'iter_2.pth').write_text('half a file')
    (broken / 'sizes.csv').write_text('half')
    again.work()
    records, others = read_records(first.folder), read_records(again.folder)
    assert [record['rows'] for record in others] == [record['rows'] for record in records]
    assert [record['run']['start'] for record in records] == ['pretrained', 'scratch']
    for record in records:
        rows = [(row['size'], row['metric'], row['images']) for row in record['rows']]
        assert rows == [(1.0, 'mIoU', 3), (1.5, 'mIoU', 3)]
    assert not list(first.folder.glob('*/iter_*.pth'))


@pytest.mark.slow
def test_pretrained_segmentors_start_from_the_weights_of_their_seed(transfer, tmp_path):
    transfer('still', seeds=[5], encodings=['learned'], sizes=(1.0,), rate=0.0).work()
    wanted = read_checkpoint(transfer.pretrained['learned', 5])['state_dict']
    for start in STARTS:
        found = weights_of(tmp_path / f'still/camvid_learned_{start}_seed-5')
        kernels = [name for name, value in wanted.items() if value.dim() == 4 and name in found]
        same = [torch.equal(found[name], wanted[name]) for name in kernels]
        assert same and (all(same) if start == 'pretrained' else not any(same))
        # A table takes the grid of the crops, not of the classifier.
        assert found['backbone.pos_embed.0'].shape[1] == 25
    transfer.pretrained['peg', 5].unlink()
    with pytest.raises(FileNotFoundError, match=r"pretrained: there is no file '.*peg_5.pth'"):
        transfer('missing', seeds=[5])


def test_the_trunk_of_a_dense_model_is_that_of_its_classifier():
    for encoding, variant in ENCODINGS.items():
        classifier = Config.fromfile(classify_config(variant)).model.backbone
        for task in TASKS:
            found = Config.fromfile(transfer_config(task, encoding)).model.backbone
            assert found.arch == classifier.arch
            assert {**classifier.position, **found.position} == classifier.position


# -- command line
# --------------------------------------------------------------------------------------------------


@pytest.fixture
def call(monkeypatch, tmp_path, image_folders):
    """The command line, beside data of as many classes as the configs of the study have."""
    for split in ('train', 'val'):
        for label in range(2, 10):
            folder = image_folders / split
            shutil.copytree(folder / str(label % 2), folder / str(label))
    monkeypatch.chdir(tmp_path)
    return lambda words: run.main(words.split())


@pytest.mark.parametrize(
    ('words', 'message'),
    [
        ('classify --data data --epochs 1', 'distilled needs data/teachers/'),
        ('classify --data data --variants none', '--epochs or --budget: .* has no runs yet'),
        ('classify --data other --epochs 1', '--data: there are no images in other/train'),
        ('transfer', 'no finished run .*peg-0-5-gap_seed-0; train it with `classify`'),
        ('report', 'has no finished run'),
    ],
)
def test_a_mistake_is_named_before_anything_is_written(call, tmp_path, words, message):
    with pytest.raises((FileNotFoundError, ValueError), match=message):
        call(words)
    assert not (tmp_path / 'work_dirs').exists()


def write_tiny_imagenet(folder, classes, count):
    """Images of 64 px and, for each, a line of ``boxes.tsv``."""
    boxes = []
    for split, images in (('train', count), ('val', 2)):
        for name in classes:
            for index in range(images):
                file = folder / split / name / f'{name}_{index}.png'
                file.parent.mkdir(parents=True, exist_ok=True)
                noise = np.random.default_rng(index).integers(0, 256, (64, 64, 3), dtype=np.uint8)
                cv2.imwrite(str(file), noise)
                boxes.append(f'{split}/{name}/{file.name}\t0\t0\t{index}\t{index}\n')
    return boxes


@pytest.mark.slow
def test_tiny_imagenet_is_trained_and_split_by_the_size_of_the_object(
    call, tmp_path, monkeypatch, capsys
):
    boxes = write_tiny_imagenet(tmp_path / 'tiny', 'abc', 25)
    words = 'classify --data-set tiny-imagenet --data tiny --batch-size 8 --variants none'
    words += ' --seeds 1 --work-dir out'
    call(f'{words} --epochs 1')
    assert 'none_seed-0: ' in capsys.readouterr().out
    call(words)  # continues with the plan of the folder, and there is nothing left
    assert f'{Path("out/classify-tiny-imagenet")}: 0 runs left' in capsys.readouterr().out
    with pytest.raises(ValueError, match='was begun with'):
        call(f'{words} --epochs 2')
    folder = tmp_path / 'out/classify-tiny-imagenet/none_seed-0'
    rows = json.loads((folder / 'record.json').read_text())['rows']
    assert [row['size'] for row in rows] == [32, 40, 48, 56, 64]
    assert all('tuning' in row for row in rows)
    for content, message in (
        (None, r'tiny/boxes\.tsv is needed'),
        (boxes[0], r'tiny/boxes\.tsv has no box of train/a/a_4\.png'),
    ):
        if content:
            (tmp_path / 'tiny/boxes.tsv').write_text(content)
        with pytest.raises((FileNotFoundError, ValueError), match=message):
            call('objects --work-dir out')
    (tmp_path / 'tiny/boxes.tsv').write_text(''.join(boxes))
    monkeypatch.setattr('positional_encoding.objects.EVERY', 1)
    call('objects --work-dir out')
    found = json.loads((folder / 'objects.json').read_text())
    parts = [found[start : start + 3] for start in range(0, 15, 3)]
    ways = [('resized', 32), ('resized', 48), ('resized', 64), ('padded', 48), ('padded', 64)]
    assert [(part[0]['way'], part[0]['size']) for part in parts] == ways
    for part, row in zip(parts, rows[::2], strict=False):
        assert [one['object'] for one in part] == ['small', 'middle', 'large']
        assert sum(one['images'] for one in part) == 14
        correct = sum(one['correct'] for one in part)
        assert correct / 14 * 100 == pytest.approx(row['top1'], abs=1e-3)
    assert '48 px, padded' in (tmp_path / 'out/report.md').read_text()


def test_a_padded_image_is_the_small_one_on_the_mean(monkeypatch, tmp_path):
    seen = []

    def hooked(cfg):
        model = build_model(cfg)
        model.backbone.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
        return model

    write_tiny_imagenet(tmp_path, 'a', 1)
    (tmp_path / 'meta').mkdir()
    (tmp_path / 'meta/test.txt').write_text('train/a/a_0.png 0\n')
    cfg = read_config(classify_config('none'), cfg_options=data_options('tiny-imagenet'))
    cfg.test_dataloader.dataset.data_root = str(tmp_path)
    torch.save({'state_dict': build_model(cfg).state_dict()}, tmp_path / 'weights.pth')
    monkeypatch.setattr(objects, 'build_model', hooked)
    for side, canvas in ((32, 32), (32, 48)):
        (file,) = objects.classify(cfg, tmp_path / 'weights.pth', side, canvas)
        assert file == tmp_path / 'train/a/a_0.png'
    small, padded = seen
    assert torch.equal(padded[:, :, :32, :32], small) and padded.shape == (1, 3, 48, 48)
    assert padded[:, :, 32:].abs().max() < 0.5 / 57, 'the mean, rounded to a byte'


# -- variants and data
# --------------------------------------------------------------------------------------------------


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
    assert test[:2] == ['train/a/a_4.JPEG 0', 'train/a/a_9.JPEG 0']
    assert test[-1] == 'val/c/c_1.JPEG 1'
    with pytest.raises(ValueError, match='there are no images in'):
        write_splits(tmp_path / 'meta')


def test_every_variant_has_its_config_and_64_tokens_on_tiny_imagenet():
    folder = classify_config('none').parent
    assert {classify_config(name) for name in VARIANTS} == set(folder.glob('*.py'))
    for name in VARIANTS:
        cfg = read_config(classify_config(name), cfg_options=data_options('tiny-imagenet'))
        model, grids = MODELS.build(cfg.model.backbone), []
        model.blocks[0].register_forward_hook(
            lambda module, inputs, output, grids=grids: grids.append(inputs[2])
        )
        size = cfg.data_preprocessor.batch_augments.augments['size']
        model(torch.zeros(2, 3, size, size))
        assert grids == [(8, 8)], name
        assert cfg.model.head.num_classes == cfg.data_preprocessor.num_classes == 50
        assert cfg.test_dataloader.dataset.ann_file != cfg.train_dataloader.dataset.ann_file
