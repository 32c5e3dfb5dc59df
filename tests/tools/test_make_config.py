"""make_config.py: the config that it writes, and that it trains.

What is read, altered and refused: test_own_data_*.py.
"""

import json
import os
import subprocess
import sys

import pytest
from own_data_sets import class_folders, data_set, mask, write_coco, write_photos
from tiny import only
from tiny_configs import ROOT

from cpvt_backbones.analysis.complexity import build_model
from cpvt_backbones.toolboxes import read_config


@pytest.fixture
def made(call, tmp_path):
    """Function that makes a config; returns it and its data sets."""

    def made(*arguments):
        file = tmp_path / 'mine.py'
        call('make_config', *arguments, '--overwrite', '--out', file)
        assert len(file.read_text().splitlines()) <= 12
        cfg = read_config(file)
        sets = [data_set(cfg, part) for part in ('train', 'val')]
        assert sets[0].metainfo['classes'] == sets[1].metainfo['classes']
        return cfg, *sets

    return made


@pytest.fixture
def boxes(tmp_path):
    """Function that writes ten images with a box each; returns the arguments of make_config.py."""
    pytest.importorskip('mmdet')

    def boxes(size=(64, 48), heights=(20,), categories=((1, 'a cat'), (2, 'élan'))):
        names = [f'{i}.png' for i in range(10)]
        write_photos(tmp_path / 'images', *names, size=size)
        annotations = []
        for i in range(10):
            box = [8, 8, 20, heights[i // 2 % len(heights)]]
            kind = categories[i % len(categories)][0]
            annotations.append(dict(id=i, image_id=i, category_id=kind, bbox=box))
        images = [dict(id=i, file_name=name) for i, name in enumerate(names)]
        listed = [dict(id=id, name=name) for id, name in categories]
        file = write_coco(tmp_path / 'all.json', images, annotations, listed)
        return ['coco', file, tmp_path / 'images']

    return boxes


@pytest.fixture
def maps(tmp_path):
    """Function that writes masks of the classes 0 to ``count`` - 1; returns the arguments."""
    pytest.importorskip('mmseg')

    def maps(count=2):
        for part in ('train', 'val'):
            for i in range(3):
                write_photos(tmp_path / 'scans' / part, f'{i}.png')
                mask(tmp_path / f'masks/{part}/{i}.png', range(count))
        return ['masks', tmp_path / 'scans', tmp_path / 'masks']

    return maps


@pytest.fixture
def kinds(tmp_path):
    pytest.importorskip('mmpretrain')
    return ['folders', class_folders(tmp_path / 'photos', [('a b', 5), ('ü', 5)])]


@pytest.mark.full
def test_a_detector(boxes, made, refused, tmp_path):
    _, file, images = data = boxes((640, 480), [80], [(9, 'cat'), (4, 'dog')])
    cfg, train, val = made(*data)
    assert (len(train), len(val)) == (8, 2)
    assert cfg.model.bbox_head.num_classes == 2 and cfg.load_from == 'retinanet_cpvt_tiny_gap-bccd'
    assert train.metainfo['classes'] == ('dog', 'cat')  # by their ids
    assert cfg.scale == (320, 240) == tuple(cfg.test_dataloader.dataset.pipeline[1].scale)
    assert train[0]['inputs'].shape[0] == 3 and cfg.train_cfg.max_iters == 80
    weights = 'timm://deit_small_patch16_224.fb_in1k'
    cfg, train, val = made(*data, '--val', file, '--weights', weights)
    assert (len(train), len(val)) == (10, 10)
    assert cfg.load_from is None and cfg.model.backbone.init_cfg == weights
    (images / '3.png').unlink()
    line = refused('make_config', *data, '--out', tmp_path / 'a.py')
    assert '3.png (there is no such file)' in line


@pytest.mark.parametrize(
    ('size', 'scale'),
    only(
        of=[
            ((40, 32), (320, 256)),
            ((96, 64), (320, 213)),
            ((320, 300), (320, 300)),
            ((500, 250), (400, 200)),
        ]
    ),
)
def test_small_images_are_enlarged(boxes, made, capsys, size, scale):
    """A patch of 16 px would hold too much of them."""
    cfg, train, _ = made(*boxes(size, [20], [(1, 'a')]))
    assert cfg.scale == scale
    factor = scale[0] / size[0]
    assert (f'add --scale {factor:.2f} to cpvt infer\n' in capsys.readouterr().out) == (factor > 1)
    resized = cfg.test_dataloader.dataset.pipeline[1]
    assert tuple(resized.scale) == scale and resized.keep_ratio
    side = min(20 * scale[0] / size[0], 32)  # of the objects, px; an anchor of scale 1 has 8 px
    base = cfg.model.bbox_head.anchor_generator.octave_base_scale
    assert 8 * base == pytest.approx(side, rel=0.02)


@pytest.mark.parametrize(
    ('heights', 'ratios'),
    only(
        of=[
            ([20], [0.89, 1.12]),
            ([20, 21], [0.92, 1.15]),
            ([10, 40], [0.5, 2.0]),
            ([60], [2.68, 3.35]),
        ]
    ),
)
def test_the_shipped_detector_fits_the_anchors(boxes, made, heights, ratios):
    """It has two ratios; equal ones would double each anchor."""
    from cpvt_backbones.checkpoints import check_loaded, read_checkpoint

    cfg, *_ = made(*boxes((64, 96), heights, [(1, 'a')]))
    assert cfg.model.bbox_head.anchor_generator.ratios == pytest.approx(ratios, abs=0.02)
    model = build_model(cfg)
    check_loaded(read_checkpoint(cfg.load_from), model, cfg.load_from, other_classes=True)


@pytest.mark.parametrize('count', only(of=[2, 11, 12]))
def test_a_segmentor_has_the_classes_of_the_data(maps, made, count):
    """The base config weighs the eleven classes of its own data set."""
    import torch
    from mmengine.registry import MODELS

    cfg, train, val = made(*maps(count), '--length', '1')
    assert (len(train), len(val)) == (3, 3) and cfg.scale == (320, 240)
    assert train[0]['data_samples'].gt_sem_seg.shape is not None
    assert cfg.model.decode_head.num_classes == len(train.metainfo['classes']) == count
    assert [schedule.end for schedule in cfg.param_scheduler] == [1]  # no decay after the end
    loss = cfg.model.decode_head.loss_decode
    assert 'class_weight' not in loss
    target = torch.arange(count).reshape(1, 1, count)
    assert MODELS.build(loss)(torch.zeros(1, count, 1, count), target, ignore_index=255).isfinite()


@pytest.mark.parametrize('parts', [('',), pytest.param(('train', 'val'), marks=pytest.mark.full)])
def test_a_classifier(tmp_path, made, parts):
    pytest.importorskip('mmpretrain')
    for part in parts:
        for kind in ('cat', 'dog'):
            names = [f'{i} b.jpg' for i in range(5)]
            write_photos(tmp_path / 'photos' / part / kind, *names, size=(200, 180))
    data = ['folders', tmp_path / 'photos', '--length', '1', '--weights', 'none']
    cfg, train, val = made(*data)
    assert (len(train), len(val)) == ((8, 2) if parts == ('',) else (10, 10))
    assert train.metainfo['classes'] == ('cat', 'dog') and cfg.scale == 160
    assert {int(val[i]['data_samples'].gt_label) for i in range(len(val))} == {0, 1}
    assert val[0]['inputs'].shape[1:] == (160, 160)
    assert cfg.model.head.num_classes == 2 and cfg.load_from is None
    assert [schedule.end for schedule in cfg.param_scheduler] == [1]  # no decay after the end
    assert cfg.train_dataloader.batch_size == len(train) // 2  # an epoch has whole batches only


def test_numbers_in_the_json_are_what_trains(boxes, made, tmp_path):
    """Scale and length stand once; pipelines, schedule and hooks follow."""
    cfg, *_ = made(*boxes())
    assert 'own' not in cfg and 'data' not in cfg
    file = tmp_path / 'mine/data.json'
    content = json.loads(file.read_text())
    content['own_data'] |= dict(scale=[96, 64], max_iters=1000)
    file.write_text(json.dumps(content))
    (tmp_path / 'mine.py').write_text(
        (tmp_path / 'mine.py').read_text() + 'model = dict(bbox_head=dict(feat_channels=8))\n'
    )
    changed = read_config(tmp_path / 'mine.py')
    steps = {step.type: step for step in changed.train_dataloader.dataset.pipeline}
    assert steps['RandomResize'].scale == steps['RandomCrop'].crop_size == (96, 64)
    assert changed.test_dataloader.dataset.pipeline[1].scale == (96, 64)
    assert changed.train_cfg.max_iters == changed.param_scheduler[-1].end == 1000
    assert changed.default_hooks.checkpoint.interval == 200
    head = changed.model.bbox_head
    assert (head.feat_channels, head.num_classes) == (8, cfg.model.bbox_head.num_classes)
    # mmengine's copy in the work directory, which is read again by --resume and inference
    changed.dump(tmp_path / 'copy.py')
    assert read_config(tmp_path / 'copy.py').to_dict() == changed.to_dict()


def test_an_edited_config_is_kept_and_weights_must_exist(call, tmp_path, refused, kinds):
    out = tmp_path / 'a.py'
    command = ['make_config', *kinds, '--out', out]
    line = refused(*command, '--weights', 'nope.pth')
    assert "--weights: there is no file or folder 'nope.pth'" in line
    assert not out.exists()
    out.write_text('# mine')
    assert '--overwrite replaces it' in refused(*command)
    assert out.read_text() == '# mine'
    call(*command, '--overwrite')
    assert out.read_text() != '# mine'


# Each training is a process that has not imported this package; they share the imports of what
# mmengine and the toolboxes need.
FRESH_PROCESSES = """
import os, sys
import cv2, matplotlib.pyplot, pycocotools.coco, scipy.optimize, torchvision
from mmengine.config import Config
from mmengine.registry import RUNNERS
for config in sys.argv[1:]:
    assert 'cpvt_backbones' not in sys.modules
    child = os.fork()
    if child == 0:
        cfg = Config.fromfile(config)
        for loader in (cfg.train_dataloader, cfg.val_dataloader):
            loader.update(num_workers=0, persistent_workers=False)
        RUNNERS.build(cfg).train()  # the one that runner_type names
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, config
"""


@pytest.mark.full
def test_mmengine_alone_trains_the_configs(call, tmp_path, boxes, maps, kinds):
    """In processes that import this package only because the config names it, after a move."""
    configs = []
    for kind, data in dict(coco=boxes(), masks=maps(), folders=kinds).items():
        first, moved = tmp_path / f'first {kind}', tmp_path / f'my {kind}'
        call('make_config', *data, '--out', first / f'{kind}.py', '--length', '1')
        text = (first / f'{kind}/recipe.py').read_text()
        for foreign in ('data/bccd', 'data/camvid', 'data/imagenette', 'RBC', 'bicyclist'):
            assert foreign not in text
        assert 'class_weight' not in text
        first.rename(moved)
        # The lists of images are beside the config, and have moved with it.
        paths = moved / kind / 'data.json'
        paths.write_text(paths.read_text().replace(str(first), str(moved)))
        configs.append(str(moved / f'{kind}.py'))
    path = os.pathsep.join([str(ROOT), os.environ.get('PYTHONPATH', '')])
    command = [sys.executable, '-c', FRESH_PROCESSES, *configs]
    subprocess.run(command, env={**os.environ, 'PYTHONPATH': path}, cwd=tmp_path, check=True)
    for saved in ('coco/iter_1.pth', 'masks/iter_1.pth', 'folders/epoch_1.pth'):
        assert (tmp_path / 'work_dirs' / saved).is_file()
