"""make_config.py: a config that trains, from each form of a user's own data."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cpvt_backbones.analysis.complexity import build_model
from cpvt_backbones.toolboxes import read_config

ROOT = Path(__file__).resolve().parents[2]
RNG = np.random.default_rng(0)


def pictures(folder, names, size=(64, 48)):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(RNG.integers(0, 255, (size[1], size[0], 3), np.uint8)).save(path)


def made(call, tmp_path, *arguments):
    """The config that the tool writes, and its data sets."""
    from mmengine.registry import DATASETS, init_default_scope

    call('make_config', *arguments, '--out', tmp_path / 'mine.py', '--overwrite')
    assert len((tmp_path / 'mine.py').read_text().splitlines()) <= 44
    cfg = read_config(tmp_path / 'mine.py')
    init_default_scope(cfg.default_scope)
    sets = [DATASETS.build(loader.dataset) for loader in (cfg.train_dataloader, cfg.val_dataloader)]
    assert sets[0].metainfo['classes'] == sets[1].metainfo['classes']
    return cfg, *sets


def test_coco_and_its_split(call, tmp_path, refused):
    pytest.importorskip('mmdet')
    pictures(tmp_path / 'images', [f'{i}.jpg' for i in range(10)], size=(640, 480))
    images = [dict(id=i, file_name=f'{i}.jpg') for i in range(10)]
    boxes = [
        dict(id=i, image_id=i, category_id=9 if i % 2 else 4, bbox=[8, 8, 60 + i, 30 + i])
        for i in range(10)
    ]
    content = dict(
        images=images,
        annotations=boxes,
        categories=[dict(id=9, name='cat'), dict(id=4, name='dog')],
    )
    file = tmp_path / 'all.json'
    file.write_text(json.dumps(content))
    cfg, train, val = made(call, tmp_path, 'coco', file, tmp_path / 'images')
    assert (len(train), len(val)) == (8, 2)
    assert cfg.model.bbox_head.num_classes == 2 and cfg.load_from == 'retinanet_cpvt_tiny_gap-bccd'
    assert train.metainfo['classes'] == ('dog', 'cat')  # by their ids
    assert cfg.scale == (320, 240) == tuple(cfg.test_dataloader.dataset.pipeline[1].scale)
    assert train[0]['inputs'].shape[0] == 3 and cfg.train_cfg.max_iters == 80
    cfg, train, val = made(
        call, tmp_path, 'coco', file, tmp_path / 'images', '--val', file, '--weights', 'timm://x'
    )
    assert (len(train), len(val)) == (10, 10)
    assert cfg.load_from is None and cfg.model.backbone.init_cfg.checkpoint == 'timm://x'
    (tmp_path / 'images/3.jpg').unlink()
    command = ['make_config', 'coco', file, tmp_path / 'images', '--out', tmp_path / 'a.py']
    assert '3.jpg (there is no such file)' in refused(*command)
    file.write_text('{}')
    assert "is no COCO JSON: 'images' must be a list" in refused(*command)
    assert 'coco takes 2 paths' in refused('make_config', 'coco', file, '--out', tmp_path / 'a.py')


def write_indices(path, values, mode):
    array = np.resize(np.array(values, np.uint8), (48, 64))
    if mode == 'colour':
        array = np.stack([array * 20, array, 255 - array], axis=-1)
    if mode == 'grey':
        array = np.repeat(array[..., None], 3, axis=2)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path)


@pytest.mark.parametrize('mode', ['index', 'grey', 'colour'])
def test_masks(call, tmp_path, refused, mode):
    pytest.importorskip('mmseg')
    names = [f'{part}/{i}' for part in ('train', 'val') for i in range(3)]
    pictures(tmp_path / 'images', [f'{name}.jpg' for name in names])
    for name in names:
        write_indices(tmp_path / f'masks/{name}_mask.png', [0, 1, 2, 3, 3], mode)
    classes = tmp_path / 'classes.txt'
    colours = [f' {20 * i} {i} {255 - i}' if mode == 'colour' else '' for i in range(4)]
    classes.write_text(
        '\n'.join(
            f'{name}{colours[i]}' for i, name in enumerate(('sky', 'void', 'big tree', 'road'))
        )
    )
    data = ['masks', tmp_path / 'images', tmp_path / 'masks']
    cfg, train, val = made(call, tmp_path, *data, '--classes', classes, '--ignore', '1')
    assert train.metainfo['classes'] == ('sky', 'big tree', 'road') and (len(train), len(val)) == (
        3,
        3,
    )
    assert cfg.model.decode_head.num_classes == 3 and cfg.scale == (64, 48)
    labels = np.asarray(Image.open(tmp_path / 'mine/masks/val/2.jpg.png'))
    assert labels.ravel()[:5].tolist() == [0, 255, 1, 2, 2]
    assert train[0]['data_samples'].gt_sem_seg.shape is not None
    cfg, train, _ = made(call, tmp_path, *data, '--length', '1')
    assert len(train.metainfo['classes']) == 4
    assert all(schedule.begin < schedule.end for schedule in cfg.param_scheduler)
    classes.write_text('sky\nroad')
    out = ['--out', tmp_path / 'a.py']
    line = refused('make_config', *data, '--classes', classes, *out)
    assert f'values of masks without a name in {classes}' in line and '_mask.png)' in line
    (tmp_path / 'masks/val/1_mask.png').unlink()
    assert f'images without a mask: {tmp_path}/images/val/1.jpg' in refused(
        'make_config', *data, *out
    )


def test_each_mask_belongs_to_the_image_of_its_name(call, tmp_path, refused):
    pytest.importorskip('mmseg')
    numbers = (1, 2, 3, 10, 11)
    pictures(tmp_path / 'images', [f'img_{i}.png' for i in numbers])
    for i in numbers:
        write_indices(tmp_path / f'masks/img_{i}_mask.png', [i % 2], 'index')
    data = ['masks', tmp_path / 'images', tmp_path / 'masks', '--out', tmp_path / 'a.py']
    call('make_config', *data)
    for i in numbers:
        written = Image.open(tmp_path / f'a/masks/img_{i}.png.png')
        assert np.unique(np.asarray(written)).tolist() == [i % 2], i
    (tmp_path / 'masks/img_1_mask.png').unlink()
    wanted = f'images without a mask: {tmp_path}/images/img_1.png'
    assert wanted in refused('make_config', *data, '--overwrite')
    for name in ('img_1-a', 'img_1_b'):
        write_indices(tmp_path / f'masks/{name}.png', [1], 'index')
    wanted = 'img_1.png (img_1-a.png, img_1_b.png)'
    assert wanted in refused('make_config', *data, '--overwrite')
    pictures(tmp_path / 'images', ['img_1_b.png'])
    call('make_config', *data, '--overwrite')


@pytest.mark.parametrize('count', [2, 11, 12])
def test_the_loss_has_the_classes_of_the_data(call, tmp_path, count):
    """The base config weighs the eleven classes of its own data set."""
    torch = pytest.importorskip('torch')
    pytest.importorskip('mmseg')
    from mmengine.registry import MODELS

    pictures(tmp_path / 'images', [f'{i}.jpg' for i in range(5)])
    for i in range(5):
        write_indices(tmp_path / f'masks/{i}.png', range(count), 'index')
    cfg, train, _ = made(call, tmp_path, 'masks', tmp_path / 'images', tmp_path / 'masks')
    assert cfg.model.decode_head.num_classes == len(train.metainfo['classes']) == count
    loss = cfg.model.decode_head.loss_decode
    assert 'class_weight' not in loss
    target = torch.arange(count).reshape(1, 1, count)
    assert MODELS.build(loss)(torch.zeros(1, count, 1, count), target, ignore_index=255).isfinite()


def test_an_edited_config_is_kept_and_weights_must_exist(call, tmp_path, refused):
    pytest.importorskip('mmpretrain')
    pictures(tmp_path / 'photos', [f'{kind}/{i}.jpg' for kind in ('cat', 'dog') for i in range(3)])
    out = tmp_path / 'a.py'
    command = ['make_config', 'folders', tmp_path / 'photos', '--out', out]
    assert "--weights: there is no file 'nope.pth'" in refused(*command, '--weights', 'nope.pth')
    assert not out.exists()
    out.write_text('# mine')
    assert '--overwrite replaces it' in refused(*command)
    assert out.read_text() == '# mine'
    call(*command, '--overwrite')
    assert out.read_text() != '# mine'


@pytest.mark.parametrize(
    ('heights', 'ratios'),
    [([20], [0.89, 1.12]), ([20, 21], [0.92, 1.15]), ([10, 40], [0.5, 2.0]), ([60], [2.68, 3.35])],
)
def test_the_shipped_detector_fits_the_anchors(call, tmp_path, heights, ratios):
    """It has two ratios; equal ones would double each anchor."""
    pytest.importorskip('mmdet')
    from cpvt_backbones.checkpoints import read_checkpoint
    from cpvt_backbones.checkpoints.pretrained import check_loaded

    pictures(tmp_path / 'images', [f'{i}.jpg' for i in range(10)], size=(64, 96))
    images = [dict(id=i, file_name=f'{i}.jpg') for i in range(10)]
    sides = [heights[i // 2 % len(heights)] for i in range(10)]
    boxes = [dict(id=i, image_id=i, category_id=1, bbox=[8, 8, 20, sides[i]]) for i in range(10)]
    file = tmp_path / 'all.json'
    content = dict(images=images, annotations=boxes, categories=[dict(id=1, name='a')])
    file.write_text(json.dumps(content))
    cfg, *_ = made(call, tmp_path, 'coco', file, tmp_path / 'images')
    assert cfg.model.bbox_head.anchor_generator.ratios == pytest.approx(ratios, abs=0.02)
    model = build_model(cfg)
    check_loaded(read_checkpoint(cfg.load_from), model, cfg.load_from, other_classes=True)


def test_binary_masks(call, tmp_path):
    pytest.importorskip('mmseg')
    pictures(tmp_path / 'images', [f'{i}.jpg' for i in range(5)])
    for i in range(5):
        write_indices(tmp_path / f'masks/{i}.png', [0, 255], 'index')
    _, train, _ = made(call, tmp_path, 'masks', tmp_path / 'images', tmp_path / 'masks')
    assert len(train.metainfo['classes']) == 2
    assert np.unique(np.asarray(Image.open(tmp_path / 'mine/masks/0.jpg.png'))).tolist() == [0, 1]


@pytest.mark.parametrize('parts', [('',), ('train/', 'val/')])
def test_class_folders(call, tmp_path, refused, parts):
    pytest.importorskip('mmpretrain')
    names = [
        f'{part}{kind}/{i} b.jpg' for part in parts for kind in ('cat', 'dog') for i in range(5)
    ]
    pictures(tmp_path / 'photos', names, size=(200, 180))
    cfg, train, val = made(call, tmp_path, 'folders', tmp_path / 'photos', '--weights', 'none')
    assert (len(train), len(val)) == ((8, 2) if parts == ('',) else (10, 10))
    assert train.metainfo['classes'] == ('cat', 'dog') and cfg.scale == 160
    assert {int(val[i]['data_samples'].gt_label) for i in range(len(val))} == {0, 1}
    assert cfg.model.head.num_classes == 2 and cfg.load_from is None
    cfg, *_ = made(call, tmp_path, 'folders', tmp_path / 'photos', '--length', '1')
    assert all(schedule.begin < schedule.end for schedule in cfg.param_scheduler)
    assert val[0]['inputs'].shape[1:] == (160, 160)
    assert cfg.train_dataloader.batch_size == len(train) // 2  # an epoch has whole batches only
    (tmp_path / 'empty').mkdir()
    command = ['make_config', 'folders', tmp_path / 'empty', '--out', tmp_path / 'a.py']
    assert 'data: no .bmp or' in refused(*command)


# Each training is a process that has not imported this package; they share mmengine's imports.
FRESH_PROCESSES = """
import os, sys
from mmengine.config import Config
from mmengine.runner import Runner
for config in sys.argv[1:]:
    assert 'cpvt_backbones' not in sys.modules
    child = os.fork()
    if child == 0:
        Runner.from_cfg(Config.fromfile(config)).train()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, config
"""


@pytest.fixture
def own_data(tmp_path):
    """Function that writes ten images of two classes; returns the arguments of make_config.py."""

    def of_boxes():
        names = [f'{i}.png' for i in range(10)]
        pictures(tmp_path / 'images', names)
        images = [dict(id=i, file_name=name) for i, name in enumerate(names)]
        box = [8, 8, 20, 20]
        boxes = [dict(id=i, image_id=i, category_id=i % 2 + 1, bbox=box) for i in range(10)]
        categories = [dict(id=1, name='a cat'), dict(id=2, name='élan')]
        content = dict(images=images, annotations=boxes, categories=categories)
        (tmp_path / 'all.json').write_text(json.dumps(content))
        return ['coco', tmp_path / 'all.json', tmp_path / 'images']

    def of_masks():
        pictures(tmp_path / 'images', [f'{i}.png' for i in range(10)])
        for i in range(10):
            write_indices(tmp_path / f'masks/{i}.png', [0, 1, 1], 'index')
        return ['masks', tmp_path / 'images', tmp_path / 'masks']

    def of_folders():
        pictures(
            tmp_path / 'photos', [f'{kind}/{i}.png' for kind in ('a b', 'ü') for i in range(5)]
        )
        return ['folders', tmp_path / 'photos']

    return dict(coco=of_boxes, masks=of_masks, folders=of_folders)


def test_mmengine_alone_trains_the_configs(call, tmp_path, own_data):
    """In processes that import this package only because the config names it, after a move."""
    configs = []
    for kind, toolbox in dict(coco='mmdet', masks='mmseg', folders='mmpretrain').items():
        pytest.importorskip(toolbox)
        first, moved = tmp_path / f'first {kind}', tmp_path / f'my {kind}'
        call('make_config', *own_data[kind](), '--out', first / f'{kind}.py', '--length', '1')
        text = (first / f'{kind}/recipe.py').read_text()
        for foreign in ('data/bccd', 'data/camvid', 'data/imagenette', 'RBC', 'bicyclist'):
            assert foreign not in text
        assert 'class_weight' not in text
        first.rename(moved)
        # The lists of images are beside the config, and have moved with it.
        config = moved / f'{kind}.py'
        config.write_text(config.read_text().replace(str(first), str(moved)))
        configs.append(str(config))
    path = os.pathsep.join([str(ROOT), os.environ.get('PYTHONPATH', '')])
    command = [sys.executable, '-c', FRESH_PROCESSES, *configs]
    subprocess.run(command, env={**os.environ, 'PYTHONPATH': path}, cwd=tmp_path, check=True)
    for saved in ('coco/iter_1.pth', 'masks/iter_1.pth', 'folders/epoch_1.pth'):
        assert (tmp_path / 'work_dirs' / saved).is_file()
