"""The tutorials, block by block, on small data."""

import ast
import json

import numpy as np
import pytest
from pages import blocks, run_page
from PIL import Image

from cpvt_backbones import MultiScaleCPVT
from cpvt_backbones.checkpoints import public_backbone, write_checkpoint
from cpvt_backbones.toolboxes import read_config
from cpvt_backbones.weights import shipped_weights

pytestmark = pytest.mark.full

SCENES = {
    '--train 128x128:200': '--train 128x128:12',
    '--length 400': '--length 2',
    'iter_400': 'iter_2',
}


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def predictions(folder, name):
    return json.loads((folder / f'out/{name}/predictions.json').read_text())


def test_detector_from_coco(call, tmp_path):
    pytest.importorskip('mmdet')
    few = {**SCENES, '--heldout 128x128:50': '--heldout 128x128:4'}
    page = run_page('docs/tutorials/detector_coco.md', call, few)
    assert len(page['coco']['categories']) == 10
    assert len([*(tmp_path / 'out/detector/vis').iterdir()]) == 4
    assert predictions(tmp_path, 'detector') is not None


def test_autolabel(call, tmp_path):
    pytest.importorskip('mmdet')
    few = {**SCENES, '--heldout 128x128:50': '--heldout 128x128:4'}
    # After two iterations, scores are below the least that the model reports.
    few['--score-thr 0.5'] = '--score-thr 0 --cfg-options model.test_cfg.score_thr=0.0'
    run_page('docs/tutorials/autolabel.md', call, few)
    count = {}
    for name in ('first', 'second'):
        train = json.loads((tmp_path / f'mine/{name}/train.json').read_text())
        count[name] = len(train['images']), len(train['annotations'])
    found = json.loads((tmp_path / 'labels/predictions.json').read_text())
    assert count['second'][0] == count['first'][0] + 4
    assert count['first'][1] < count['second'][1] <= count['first'][1] + len(found)


@pytest.mark.slow
def test_detector_from_voc(call, tmp_path):
    pytest.importorskip('mmdet')
    few = {**SCENES, '--heldout 128x128:50': '--heldout 128x128:4'}
    run_page('docs/tutorials/detector_voc.md', call, few)

    def boxes(*files):
        contents = [json.loads((tmp_path / file).read_text()) for file in files]
        return sorted(one['bbox'] for content in contents for one in content['annotations'])

    converted = boxes('mine/voc/train.json', 'mine/voc/val.json')
    assert converted == boxes('data/digits/train_128x128/instances.json')
    assert len([*(tmp_path / 'out/voc/vis').iterdir()]) == 4


def test_segmentor(call, tmp_path):
    pytest.importorskip('mmseg')
    few = {'--train 128x128:200': '--train 128x128:12'}
    few |= {'--heldout 128x128:50': '--heldout 128x128:4'}
    few |= {'--length 150': '--length 2', 'iter_150': 'iter_2'}
    run_page('docs/tutorials/segmentor.md', call, few)
    assert len(predictions(tmp_path, 'segmentor')) == 4
    masks = [np.asarray(Image.open(file)) for file in (tmp_path / 'data/masks').iterdir()]
    assert len(masks) == 12 and {*np.unique(masks)} == {0, 255}


def write_scene(path, classes, layout, *, missing):
    """Write a scene of 12 bits whose bands depend on the class, without data in ``missing``."""
    rasterio = pytest.importorskip('rasterio')
    path.parent.mkdir(parents=True, exist_ok=True)
    height, width = classes.shape
    rng = np.random.default_rng(list(path.name.encode()))
    levels = np.array([[300, 700, 1500], [400, 1100, 1900], [350, 900, 2600], [120, 3000, 3500]])
    pixels = levels[:, classes] + rng.integers(-90, 90, (4, height, width))
    pixels[:, missing] = 0
    place = dict(crs='EPSG:32633', transform=rasterio.Affine(10, 0, 499980, 0, -10, 4650000))
    size = dict(count=4, height=height, width=width, dtype='uint16', nodata=0)
    with rasterio.open(path, 'w', driver='GTiff', **size, **place, **layout) as file:
        file.write(pixels.astype(np.uint16))
    return dict(driver='GTiff', height=height, width=width, count=1, **place)


def test_satellite(call, capsys, tmp_path):
    """The map has the place and size of the scene, and no class where that has no data."""
    rasterio = pytest.importorskip('rasterio')
    pytest.importorskip('mmseg')
    tiled = dict(tiled=True, blockxsize=32, blockysize=32)
    layouts = [{}, dict(BIGTIFF='YES'), dict(tiled, compress='lzw'), dict(interleave='band')]
    rng = np.random.default_rng(0)
    for i in range(10):
        classes = rng.integers(0, 3, (6, 6)).repeat(16, 0).repeat(16, 1)
        missing = np.zeros(classes.shape, bool)
        missing[:, : 16 * (i == 2)] = True
        name = f'forêt {i}.tif'
        path = tmp_path / f'data/scenes/{name}'
        place = write_scene(path, classes, layouts[i % 4], missing=missing)
        classes[-8:] = 255
        (tmp_path / 'data/masks').mkdir(exist_ok=True)
        place |= dict(dtype='float32' if i % 2 else 'uint8', nodata=255)
        with rasterio.open(tmp_path / f'data/masks/{name}', 'w', **place) as file:
            file.write(classes, 1)
    classes = rng.integers(0, 3, (10, 13)).repeat(20, 0).repeat(20, 1)
    missing = np.add(*np.indices(classes.shape)) < 150
    large = tmp_path / 'data/large/region.tif'
    write_scene(large, classes, dict(tiled, compress='deflate'), missing=missing)
    few = {'--length 400': '--length 2', 'iter_400': 'iter_2'}
    few['--out-dir out/land'] = '--out-dir out/land --read-limit 10000'
    run_page('docs/tutorials/satellite.md', call, few, capsys)
    # Small scenes keep their scale, because a large one is seen at its own.
    assert read_config('mine/land.py').scale == (96, 96)
    with rasterio.open(tmp_path / 'out/land/pred/region.tif') as file:
        found = file.read(1)
        assert file.shape == (200, 260) and file.crs.to_epsg() == 32633
        assert file.transform.c == 499980
    np.testing.assert_array_equal(found == 255, missing)
    assert found[~missing].max() < 3
    # A scene of one pixel, read as a whole.
    dot = tmp_path / 'dot.tif'
    write_scene(dot, np.zeros((1, 1), int), {}, missing=np.zeros((1, 1), bool))
    model = ['mine/land.py', 'work_dirs/land/iter_2.pth']
    call('infer', *model, dot, '--scale', 'native', '--out-dir', 'one')
    with rasterio.open(tmp_path / 'one/pred/dot.tif') as file:
        assert file.shape == (1, 1) and file.read(1).max() < 3


@pytest.mark.slow
def test_classifier(call, tmp_path):
    pytest.importorskip('mmpretrain')
    few = {
        '--train 128x128:1000': '--train 128x128:40',
        '--heldout 128x128:50': '--heldout 128x128:20',
        '--length 10': '--length 2',
        'epoch_10': 'epoch_2',
    }
    run_page('docs/tutorials/classifier.md', call, few)
    assert {one['class'] for one in predictions(tmp_path, 'classifier')} <= {'3', '5', '8'}


@pytest.mark.slow
def test_public_weights(call, tmp_path):
    """With random weights in place of those that the name would fetch, under their name, which says
    the model.
    """
    pytest.importorskip('mmpretrain')
    timm = pytest.importorskip('timm')
    name = 'deit_tiny_patch16_224.fb_in1k'
    weights = timm.create_model(name.partition('.')[0]).state_dict()
    write_checkpoint(weights, tmp_path / f'{name}.safetensors', meta={})
    for kind in ('ash', 'birch'):
        (tmp_path / f'photos/{kind}').mkdir(parents=True)
        for i in range(5):
            photo = Image.new('RGB', (130, 120), (40 * i, 40, 200))
            photo.save(tmp_path / f'photos/{kind}/{i}.png')
    few = {
        f'timm://{name}': f'{tmp_path}/{name}.safetensors',
        '--length 10': '--length 2',
        'epoch_10': 'epoch_2',
    }
    page = run_page('docs/tutorials/finetune.md', call, few)
    assert page['model'] and (tmp_path / 'work_dirs/deit/epoch_2.pth').is_file()


def test_config_of_own_classes(tmp_path):
    pytest.importorskip('mmdet')
    code = blocks('docs/tutorials/finetune.md')
    (block,) = (text for _, text in code if text.startswith('# three_classes.py'))
    (tmp_path / 'mine.py').write_text(block)
    cfg = read_config(tmp_path / 'mine.py')
    assert cfg.model.bbox_head.num_classes == 3
    assert cfg.model.backbone.init_cfg.checkpoint == 'timm://twins_pcpvt_small.in1k'
    for part in ('train', 'val'):
        dataset = cfg[f'{part}_dataloader'].dataset
        assert dataset.metainfo.classes == ('car', 'person', 'tree')
        assert dataset.data_root + dataset.ann_file == f'data/mine/{part}.json'
        assert dataset.data_prefix.img == f'{part}/'
    assert cfg.test_evaluator.ann_file == cfg.val_evaluator.ann_file == 'data/mine/val.json'


def test_arguments_of_public_weights():
    """The printed ones are those of the code, and the config of DINOv3 has them."""
    (printed,) = (
        text for _, text in blocks('docs/tutorials/finetune.md') if text.startswith("{'type'")
    )
    (config,) = (text for _, text in blocks('docs/evidence.md') if text.startswith('model ='))
    backbone = eval(config.partition('=')[2])['backbone']
    arguments = public_backbone(backbone.pop('init_cfg'))
    assert ast.literal_eval(printed) == arguments
    assert backbone.pop('type') == MultiScaleCPVT.__name__
    defaults = dict(patch_size=16, img_size=224)
    assert backbone == {
        name: value
        for name, value in arguments.items()
        if name != 'type' and value != defaults.get(name)
    }
    MultiScaleCPVT(**backbone)


@pytest.mark.slow
def test_onnx(call, tmp_path):
    pytest.importorskip('onnxruntime')
    pytest.importorskip('mmpretrain')
    photo = np.random.default_rng(0).integers(0, 255, (160, 160, 3), np.uint8)
    Image.fromarray(photo).save(tmp_path / 'photo.jpg')
    page = run_page('docs/tutorials/onnx.md', call, {})
    assert page['about']['classes'] == list(
        shipped_weights()['cpvt_tiny_gap-imagenette'].dataset_meta['classes']
    )
    assert page['scores'].shape == (1, 10) and predictions(tmp_path, 'photo')
