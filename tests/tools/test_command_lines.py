"""train.py, test.py and infer.py on one config of each toolbox, with a model of a few thousand weights."""

import json
import pickle
import re
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from mmengine.config import Config
from PIL import Image

from cpvt_backbones.datasets.decoded import DecodedDataset
from cpvt_backbones.engine.launch import TOOLBOXES

ROOT = Path(__file__).resolve().parents[2]
TINY = [
    'model.backbone.arch.embed_dims=16',
    'model.backbone.arch.depth=1',
    'model.backbone.position.after_blocks=(0,)',
    'train_cfg.max_iters=2',
    'train_cfg.val_interval=2',
    'default_hooks.checkpoint.interval=1',
]
WORKERLESS = [
    f'{part}_dataloader.{option}'
    for part in ('train', 'val', 'test')
    for option in ('num_workers=0', 'persistent_workers=False')
]
CLASSIFIER = """
custom_imports = dict(imports=['cpvt_backbones'])
default_scope = 'mmpretrain'
model = dict(
    type='ImageClassifier',
    backbone=dict(type='CPVT', arch=dict(embed_dims=16, depth=1, num_heads=2, mlp_ratio=2), patch_size=8,
                  with_cls_token=False, out_type='avg_featmap', position=dict(type='PEG', after_blocks=(0,))),
    head=dict(type='LinearClsHead', num_classes=2, in_channels=16, loss=dict(type='CrossEntropyLoss')))
data_preprocessor = dict(mean=[127.5] * 3, std=[127.5] * 3, to_rgb=True, num_classes=2)
loader = dict(batch_size=2, num_workers=0, collate_fn=dict(type='default_collate'))
data = dict(type='CustomDataset', data_root=r'{root}', classes=['dark', 'light'])
load, pack = dict(type='LoadImageFromFile'), dict(type='PackInputs')
train_dataloader = dict(
    **loader, sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(**data, pipeline=[load, dict(type='RandomCrop', crop_size=24), pack]))
val_dataloader = dict(
    **loader, sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        **data, pipeline=[load, dict(type='ResizeEdge', scale=32), dict(type='CenterCrop', crop_size=24), pack]))
test_dataloader = val_dataloader
val_evaluator = test_evaluator = dict(type='Accuracy', topk=1)
optim_wrapper = dict(optimizer=dict(type='AdamW', lr=1e-3))
train_cfg = dict(type='IterBasedTrainLoop', max_iters=2, val_interval=2)
val_cfg, test_cfg = dict(), dict()
default_hooks = dict(checkpoint=dict(type='CheckpointHook', by_epoch=False, interval=1))
log_processor = dict(by_epoch=False)
visualizer = dict(type='UniversalVisualizer', vis_backends=[dict(type='LocalVisBackend')])
"""


def detection(scenes, folder):
    heldout = scenes / 'heldout_37x61'
    options = [
        f'train_dataloader.dataset.data_root={scenes / "train_48x64"}',
        'model.neck.in_channels=[16,16,16]',
        'model.test_cfg.score_thr=0.0',
        'train_dataloader.batch_size=2',
    ]
    for part in ('val', 'test'):
        options.append(f'{part}_dataloader.dataset.data_root={heldout}')
        options.append(f'{part}_evaluator.ann_file={heldout / "instances.json"}')
    return ROOT / 'configs/demo/retinanet_multiscale-cpvt_digits.py', [*TINY, *WORKERLESS, *options]


def segmentation(scenes, folder):
    options = [
        f'train_dataloader.dataset.data_root={scenes / "train_48x64"}',
        'model.neck.in_channels=[8,16,16,16]',
        'train_dataloader.batch_size=2',
    ]
    options += [f'{part}_dataloader.dataset.data_root={scenes / "heldout_37x61"}' for part in ('val', 'test')]
    return ROOT / 'configs/demo/semantic-fpn_multiscale-cpvt_digits.py', [*TINY, *WORKERLESS, *options]


def classification(scenes, folder):
    for name, level in (('dark', 40), ('light', 200)):
        (folder / 'images' / name).mkdir(parents=True)
        for i in range(2):
            Image.new('RGB', (30 + i, 27), (level, level, level)).save(folder / 'images' / name / f'{i}.png')
    config = folder / 'classifier.py'
    config.write_text(CLASSIFIER.replace('{root}', str(folder / 'images')))
    return config, ['log_level=INFO']


TASKS = {'mmdet': detection, 'mmseg': segmentation, 'mmpretrain': classification}


@pytest.fixture
def photos(tmp_path):
    """A folder with images of odd sizes, and one file that is no image."""
    folder = tmp_path / 'photos'
    folder.mkdir()
    rng = np.random.default_rng(0)
    for name, (height, width) in {'odd.png': (31, 53), 'tall.jpg': (97, 20), 'odd.jpg': (40, 40)}.items():
        Image.fromarray(rng.integers(0, 255, (height, width, 3), np.uint8)).save(folder / name)
    (folder / 'notes.txt').write_text('no image')
    return folder


@pytest.mark.parametrize('scope', TASKS)
def test_train_resume_test_infer(scope, scenes, photos, tmp_path, call):
    pytest.importorskip(scope)
    config, options = TASKS[scope](scenes, tmp_path)
    work_dir = tmp_path / 'work'

    call('train', config, '--work-dir', work_dir, '--cfg-options', *options)
    assert (work_dir / 'iter_2.pth').is_file()
    before = torch.load(work_dir / 'iter_2.pth', weights_only=False)['state_dict']

    # One more iteration from the newest checkpoint, not three from nothing.
    longer = ['train_cfg.max_iters=3', 'train_cfg.val_interval=3']
    call('train', config, '--work-dir', work_dir, '--resume', '--cfg-options', *options, *longer)
    (last_log,) = sorted(work_dir.glob('*/*.log'))[-1:]
    assert re.search(r'resumed epoch: 0, iter: 2', last_log.read_text())
    checkpoint = work_dir / 'iter_3.pth'
    after = torch.load(checkpoint, weights_only=False)['state_dict']
    assert before.keys() == after.keys()
    assert any(not torch.equal(before[name], after[name]) for name in before)

    out = tmp_path / ('masks' if scope == 'mmseg' else 'predictions.pkl')
    shown = tmp_path / 'shown'
    call(
        'test', config, checkpoint, '--work-dir', work_dir, '--out', out, '--show-dir', shown, '--cfg-options', *options
    )
    if scope == 'mmseg':
        assert sorted(path.name for path in out.iterdir()) == ['000000.png', '000001.png']
        assert np.asarray(Image.open(out / '000000.png')).shape == (37, 61)
    else:
        assert len(pickle.loads(out.read_bytes())) == (4 if scope == 'mmpretrain' else 2)
    assert len([path for path in shown.rglob('*') if path.suffix in ('.png', '.jpg')]) >= 2

    results = tmp_path / 'results'
    call(
        'infer',
        photos,
        config,
        checkpoint,
        '--out-dir',
        results,
        '--device',
        'cpu',
        '--score-threshold',
        '0',
        '--cfg-options',
        *options,
    )
    predictions = json.loads((results / 'predictions.json').read_text())
    listed = {
        Path(image['file_name']).name: image for image in json.loads((results / 'images.json').read_text())['images']
    }
    assert list(listed) == ['odd.jpg', 'odd.png', 'tall.jpg']
    assert sorted(path.name for path in (results / 'vis').iterdir()) == ['odd.png', 'odd_2.png', 'tall.png']
    tall = [entry for entry in predictions if entry['image_id'] == listed['tall.jpg']['id']]
    if scope == 'mmdet':
        assert tall
        assert all(
            x >= 0 and y >= 0 and x + w <= 20.001 and y + h <= 97.001 for x, y, w, h in (e['bbox'] for e in tall)
        )
    elif scope == 'mmseg':
        assert np.asarray(Image.open(results / tall[0]['seg_map'])).shape == (97, 20)
    else:
        assert tall[0]['class'] == ['dark', 'light'][tall[0]['label']]
    if scope != 'mmpretrain':
        assert Image.open(results / 'vis' / 'tall.png').size == (20, 97)


@pytest.mark.parametrize('tool', ['train', 'test', 'infer'])
@pytest.mark.parametrize(
    ('text', 'message'),
    [
        ('model = dict()', 'default_scope is missing from the config'),
        ("default_scope = 'mmtext'", "default_scope is 'mmtext'"),
    ],
)
def test_a_config_of_no_known_toolbox(tool, text, message, tmp_path, call, capsys):
    config = tmp_path / 'config.py'
    config.write_text(text)
    with pytest.raises(SystemExit) as stop:
        call(tool, *(['image.png'] if tool == 'infer' else []), config, *([] if tool == 'train' else ['x.pth']))
    assert stop.value.code == 2
    words = capsys.readouterr().err
    assert message in words
    assert all(repr(name) in words for name in TOOLBOXES)


@pytest.mark.parametrize('tool', ['train', 'test', 'infer'])
def test_no_such_config(tool, call, capsys):
    with pytest.raises(SystemExit):
        call(tool, *(['image.png'] if tool == 'infer' else []), 'none.py', *([] if tool == 'train' else ['x.pth']))
    assert "config: there is no file 'none.py'" in capsys.readouterr().err


def test_no_such_checkpoint_or_image(scenes, photos, tmp_path, call, capsys):
    pytest.importorskip('mmpretrain')
    config, _ = classification(scenes, tmp_path)
    with pytest.raises(FileNotFoundError, match=r"checkpoint: there is no file 'none.pth'"):
        call('test', config, 'none.pth')
    with pytest.raises(FileNotFoundError, match=r"resume: there is no file 'none.pth'"):
        call('train', config, '--resume', 'none.pth', '--work-dir', tmp_path / 'work')


def test_wrong_options_are_named(scenes, tmp_path, call, capsys):
    pytest.importorskip('mmpretrain')
    config, _ = classification(scenes, tmp_path)
    with pytest.raises(ValueError, match=r'auto_scale_lr: the config has no auto_scale_lr.base_batch_size'):
        call('train', config, '--auto-scale-lr', '--work-dir', tmp_path / 'work')
    (tmp_path / 'model.pth').write_bytes(b'')
    with pytest.raises(ValueError, match=r"out: mmpretrain writes predictions to a .pkl or .pickle file, got 'x.json'"):
        call('test', config, tmp_path / 'model.pth', '--out', 'x.json')


def test_work_dir_is_the_command_lines_then_the_configs_then_the_name(tmp_path):
    from cpvt_backbones.engine.launch import read_config

    pytest.importorskip('mmpretrain')
    config = tmp_path / 'my_model.py'
    config.write_text("default_scope = 'mmpretrain'")
    assert read_config(config).work_dir == str(Path('work_dirs', 'my_model'))
    config.write_text("default_scope = 'mmpretrain'\nwork_dir = 'mine'")
    assert read_config(config).work_dir == 'mine'
    assert read_config(config, work_dir='given').work_dir == 'given'


def test_make_imagenette(tmp_path, call, capsys):
    """Photographs of any size become what the data set of the study reads; what is there is left alone."""
    rng = np.random.default_rng(0)
    for split, count in (('train', 3), ('val', 5)):
        for name in ('n01', 'n02'):
            folder = tmp_path / 'raw' / split / name
            folder.mkdir(parents=True)
            for index in range(count):
                picture = rng.integers(0, 255, (60 + 10 * index, 90, 3), dtype=np.uint8)
                cv2.imwrite(str(folder / f'{index}.JPEG'), picture)
    call('make_imagenette', tmp_path / 'raw', tmp_path / 'made', '--val-images', '2')
    for split, names, side in (('train', '012', 128), ('val', '02', 224)):
        folder = str(tmp_path / 'made' / split)
        data = DecodedDataset(data_root=folder, cache_dir=str(tmp_path / 'cache'), extensions=('.webp',))
        assert [Path(data.get_data_info(i)['img_path']).stem for i in range(len(data))] == [*names, *names]
        assert [data.get_data_info(i)['gt_label'] for i in range(len(data))] == [0] * len(names) + [1] * len(names)
        assert data.get_data_info(0)['img'].shape == (side, side, 3)
    kept = tmp_path / 'made/train/n01/0.webp'
    kept.write_bytes(b'kept')
    call('make_imagenette', tmp_path / 'raw', tmp_path / 'made', '--val-images', '2')
    assert kept.read_bytes() == b'kept'
    for name, message in (('3.jpg', "n01/3.jpg' cannot be read"), ('0.jpg', "n01' has two images named '0'")):
        (tmp_path / 'raw/train/n01' / name).write_bytes(b'no picture')
        with pytest.raises(SystemExit):
            call('make_imagenette', tmp_path / 'raw', tmp_path / 'made')
        assert message in capsys.readouterr().err


VOC = """<annotation><object><name>WBC</name><bndbox><xmin>1</xmin><ymin>5</ymin><xmax>40</xmax><ymax>30</ymax></bndbox>
</object><object><name>{}</name><bndbox><xmin>7</xmin><ymin>7</ymin><xmax>{}</xmax><ymax>9</ymax></bndbox></object>
</annotation>"""


def test_make_bccd(tmp_path, call, capsys):
    """Pascal VOC's boxes, counted from 1 with the last pixel, become what mmdet's CocoDataset reads."""
    pytest.importorskip('mmdet')
    from mmdet.datasets import CocoDataset

    source, made = tmp_path / 'BCCD', tmp_path / 'made'
    for folder in ('Annotations', 'ImageSets/Main', 'JPEGImages'):
        (source / folder).mkdir(parents=True)
    for split, names in (('train', 'ab'), ('val', 'c'), ('test', 'd')):
        (source / 'ImageSets/Main' / f'{split}.txt').write_text('\n'.join(names) + '\n')
        for name in names:
            (source / 'Annotations' / f'{name}.xml').write_text(VOC.format('RBC', 7))
            cv2.imwrite(str(source / 'JPEGImages' / f'{name}.jpg'), np.zeros((30, 40, 3), np.uint8))
    call('make_bccd', source, made)
    assert f'{made / "train"}: 2 images, 4 boxes' in capsys.readouterr().out
    base = Config.fromfile(ROOT / 'configs/_base_/datasets/bccd.py')
    for split, count in (('train', 2), ('val', 1), ('test', 1)):
        data = CocoDataset(
            data_root=str(made),
            ann_file=f'annotations/{split}.json',
            data_prefix=dict(img=f'{split}/'),
            metainfo=base.metainfo,
            pipeline=[],
        )
        assert len(data) == count
        for index in range(count):
            info = data.get_data_info(index)
            assert cv2.imread(info['img_path']).shape == (30, 40, 3)
            found = {base.metainfo['classes'][one['bbox_label']]: one['bbox'] for one in info['instances']}
            assert found == dict(WBC=[0, 4, 40, 30], RBC=[6, 6, 7, 9])
    (source / 'Annotations/d.xml').write_text(VOC.format('RBC', 43))
    call('make_bccd', source, made)
    assert 'd.xml: a box is clipped to the image, [7.0, 7.0, 43.0, 9.0]' in capsys.readouterr().out.replace('\n', '')
    assert json.loads((made / 'annotations/test.json').read_text())['annotations'][1]['bbox'] == [6, 6, 34, 3]
    for name, right, message in (
        ('RBC', 6, 'must have pixels in its 40 x 30'),
        ('RBC', '', 'must have pixels'),
        ('dog', 9, "got 'dog'"),
    ):
        (source / 'Annotations/d.xml').write_text(VOC.format(name, right))
        with pytest.raises(SystemExit):
            call('make_bccd', source, made)
        assert message in capsys.readouterr().err
