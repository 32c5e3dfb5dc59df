"""Dense transfer stage: reproducible, every run tested at every size, from the weights that it
names.
"""

from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from mmengine.config import Config

pytest.importorskip('mmseg')

from positional_encoding.runs import read_records
from positional_encoding.transfer import STARTS, Transfer
from positional_encoding.variants import ENCODINGS, TASKS, classify_config, transfer_config

from cpvt_backbones import CPVT
from cpvt_backbones.checkpoints import read_checkpoint

BACKBONE = dict(
    arch=dict(embed_dims=16, depth=2, num_heads=2, mlp_ratio=2),
    patch_size=8,
    with_cls_token=False,
    img_size=40,
)
POSITIONS = {'peg': dict(type='PEG', after_blocks=(0,)), 'learned': dict(type='Learned')}


@pytest.fixture
def config(tmp_path):
    """Config of a segmentor, and four images of three classes."""
    rng = np.random.default_rng(0)
    for folder in ('images', 'labels'):
        (tmp_path / 'data' / folder).mkdir(parents=True)
    for index in range(4):
        label = rng.integers(0, 3, (33 + index, 50), dtype=np.uint8)
        cv2.imwrite(str(tmp_path / f'data/labels/{index}.png'), label)
        cv2.imwrite(
            str(tmp_path / f'data/images/{index}.png'), np.repeat(label[..., None] * 80, 3, axis=2)
        )
    load = [dict(type='LoadImageFromFile'), dict(type='LoadAnnotations')]
    dataset = dict(
        type='BaseSegDataset',
        data_root=str(tmp_path / 'data'),
        img_suffix='.png',
        data_prefix=dict(img_path='images', seg_map_path='labels'),
        metainfo=dict(classes=('a', 'b', 'c'), palette=[(0, 0, 0), (9, 9, 9), (99, 99, 99)]),
    )
    crop = dict(type='RandomCrop', crop_size=(32, 40))
    pixels = dict(mean=[127.5] * 3, std=[60.0] * 3, size=(32, 40), test_cfg=dict(size_divisor=8))
    head = dict(
        type='FCNHead',
        in_channels=16,
        channels=16,
        num_convs=0,
        concat_input=False,
        num_classes=3,
        in_index=0,
    )
    return dict(
        default_scope='mmseg',
        custom_imports=dict(imports=['cpvt_backbones']),
        log_level='ERROR',
        model=dict(
            type='EncoderDecoder',
            data_preprocessor=dict(type='SegDataPreProcessor', bgr_to_rgb=True, **pixels),
            backbone=dict(type='CPVT', **BACKBONE),
            decode_head=head,
            test_cfg=dict(mode='whole'),
        ),
        train_dataloader=dict(
            batch_size=2,
            num_workers=0,
            sampler=dict(type='InfiniteSampler', shuffle=True),
            dataset={**dataset, 'pipeline': [*load, crop, dict(type='PackSegInputs')]},
        ),
        test_dataloader=dict(
            batch_size=1,
            num_workers=0,
            sampler=dict(type='DefaultSampler', shuffle=False),
            dataset={**dataset, 'pipeline': [*load, dict(type='PackSegInputs')]},
        ),
        test_evaluator=dict(type='IoUMetric', iou_metrics=['mIoU']),
        train_cfg=dict(type='IterBasedTrainLoop', max_iters=3, val_interval=3),
        test_cfg=dict(),
        optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.1)),
        default_hooks=dict(checkpoint=dict(type='CheckpointHook', by_epoch=False, interval=1)),
    )


@pytest.fixture
def parts(tmp_path, config, write_config):
    """A config for each encoding, and a classifier's weights for each encoding and seed."""
    configs, pretrained = {}, {}
    for encoding, position in POSITIONS.items():
        config['model']['backbone']['position'] = position
        configs['camvid', encoding] = write_config(encoding, config)
        classifier = CPVT(
            **{**BACKBONE, 'img_size': 16}, position=position
        )  # its table has another grid
        for seed in (0, 5):
            weights = {
                f'backbone.{key}': value + seed for key, value in classifier.state_dict().items()
            }
            pretrained[encoding, seed] = tmp_path / f'{encoding}_{seed}.pth'
            torch.save(dict(state_dict=weights), pretrained[encoding, seed])
    return configs, pretrained


@pytest.fixture
def stage(parts, tmp_path):
    def make(folder, *, seeds=(0,), encodings=('peg',), sizes=(1.0, 1.5)):
        configs = {key: path for key, path in parts[0].items() if key[1] in encodings}
        return Transfer(tmp_path / folder, dict(sizes=sizes, images=3), configs, parts[1], seeds)

    return make


def test_a_seed_reproduces_its_results_also_after_an_interruption(stage, tmp_path):
    first, again = stage('first'), stage('again')
    left = []
    first.work(done=lambda run, record: left.append(first.left()))
    assert left == [1, 0]
    # An interrupted run starts again.
    broken = tmp_path / 'again/camvid_peg_scratch_seed-0'
    broken.mkdir(parents=True)
    (broken / 'iter_2.pth').write_text('half a file')
    (broken / 'sizes.csv').write_text('half')
    again.work()
    records = read_records(first.folder)
    assert [record['rows'] for record in read_records(again.folder)] == [
        record['rows'] for record in records
    ]
    assert [tuple(record['run'].values()) for record in records] == [
        ('camvid', 'peg', 'pretrained', 0),
        ('camvid', 'peg', 'scratch', 0),
    ]
    for record in records:
        assert [(row['size'], row['metric'], row['images']) for row in record['rows']] == [
            (1.0, 'mIoU', 3),
            (1.5, 'mIoU', 3),
        ]
        assert (
            "'type': 'FCNHead'" in record['config']
            and record['environment']['PyTorch']
            and record['commits']
        )
    assert not list(first.folder.glob('*/iter_*.pth'))


def test_pretrained_runs_start_from_the_weights_of_their_seed(stage, parts, tmp_path):
    for path in parts[0].values():
        with path.open('a') as file:
            file.write("\noptim_wrapper['optimizer']['lr'] = 0.0\n")
    stage('still', seeds=[5], encodings=list(POSITIONS), sizes=(1.0,)).work()
    for encoding in POSITIONS:
        wanted = read_checkpoint(parts[1][encoding, 5])['state_dict']
        for start in STARTS:
            weights = tmp_path / f'still/camvid_{encoding}_{start}_seed-5/weights.pth'
            found = read_checkpoint(weights)['state_dict']
            same = [
                torch.equal(found[name], value)
                for name, value in wanted.items()
                if found[name].dim() == 4
            ]
            assert all(same) if start == 'pretrained' else not any(same)
        # A table takes the grid of the crops, not of the classifier.
        tables = [value for name, value in found.items() if 'pos_embed' in name]
        assert [table.shape[1] for table in tables] == ([25] if encoding == 'learned' else [])


def test_missing_weights_are_named(parts, tmp_path):
    with pytest.raises(FileNotFoundError, match="pretrained: there is no file '.*nowhere.pth'"):
        Transfer(tmp_path, {}, parts[0], {('peg', 0): Path('nowhere.pth')}, [0])


def test_the_trunk_is_that_of_the_classifier():
    for encoding, variant in ENCODINGS.items():
        classifier = Config.fromfile(classify_config(variant)).model.backbone
        for task in TASKS:
            found = Config.fromfile(transfer_config(task, encoding)).model.backbone
            assert found.arch == classifier.arch
            assert {**classifier.position, **found.position} == classifier.position
