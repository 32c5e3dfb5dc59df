"""docs/own_data.md: the commands for each format, on small data. docs/improve.md."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from own_data_sets import YoloSet, class_folders, voc_pair
from pages import run_page
from PIL import Image

from cpvt_backbones.toolboxes import read_config

pytestmark = pytest.mark.full

PAGE, AFTER = 'docs/own_data.md', 'docs/improve.md'
STEPS = '3. Train, measure, predict'
# A short training that fetches nothing.
SHORT = {'--weights timm://twins_pcpvt_small.in1k': '--length 2'}
SHORT_BOXES = {'--weights retinanet_pvtv2_b0-coco': '--length 2'}
SCENES = Path('data/digits/train_128x128')
HELD_OUT = Path('data/digits/heldout_128x128')


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def digits(call):
    """Generated scenes in COCO's form, to train on and to predict."""
    sizes = ['--train', '128x128:12', '--heldout', '128x128:4']
    call('../demo/digit_scenes', '--root', 'data/digits', *sizes)
    shutil.copytree(HELD_OUT / 'images', 'photos')


def predictions(folder='out/model'):
    return json.loads(Path(folder, 'predictions.json').read_text())


def write_coco():
    """The scenes as the page names their files."""
    for scenes, labels, images in (
        (SCENES, 'train.json', 'images'),
        (HELD_OUT, 'val.json', 'val_images'),
    ):
        shutil.copytree(scenes / 'images', f'my_data/{images}')
        shutil.copy(scenes / 'instances.json', f'my_data/{labels}')


def test_detector(call, digits):
    pytest.importorskip('mmdet')
    write_coco()
    run_page(PAGE, call, SHORT_BOXES, parts=['COCO', STEPS])
    assert len([*Path('out/model/vis').iterdir()]) == 4
    assert predictions() is not None


@pytest.mark.parametrize('form', ['Pascal VOC', 'YOLO'])
def test_other_forms_of_boxes(form, call, tmp_path, capsys):
    """Their boxes become COCO JSON."""
    pytest.importorskip('mmdet')
    if form == 'YOLO':
        YoloSet(tmp_path).folder.rename('my_data')
    else:
        for number in range(10):
            voc_pair(Path('my_data'), number)
    run_page(PAGE, call, SHORT_BOXES, parts=[form])
    assert 'a small RetinaNet for CPUs, with an FPN of 64 channels' in capsys.readouterr().out
    cfg = read_config('mine/model.py')
    assert cfg.model.neck.out_channels == 64 and cfg.model.bbox_head.stacked_convs == 2
    assert cfg.classes == (('cat', 'dog') if form == 'YOLO' else ('cat',))
    train = json.loads(Path('mine/model/train.json').read_text())
    assert len(train['images']) == len(train['annotations']) == (5 if form == 'YOLO' else 8)


@pytest.mark.slow
def test_next_questions(call, digits):
    pytest.importorskip('mmdet')
    write_coco()
    run_page(PAGE, call, SHORT_BOXES, parts=['COCO', STEPS])
    one_more = json.loads(Path('my_data/train.json').read_text())
    one_more['categories'].insert(0, dict(id=99, name='new'))
    one_more['annotations'][0]['category_id'] = 99
    Path('more.json').write_text(json.dumps(one_more))
    few = {
        'train_cfg.val_interval=200': 'train_cfg.val_interval=1',
        'more_data/': 'coco more.json my_data/images --length 2',
        'torchrun --nproc-per-node 2 -m cpvt': 'cpvt',  # tests of several processes have their own
        '--launcher pytorch': '',
    }
    questions = (
        'Find the worst predictions',
        'See the loss curve',
        'Add a class',
        'Train the head alone',
        'Get the predictions as a table',
        'Use two GPUs',
    )
    shutil.rmtree('out/model')  # predictions of the model before these steps
    run_page(AFTER, call, few, parts=questions)
    assert Image.open('worst.jpg').width > 1900
    assert read_config('mine/more.py').load_from.endswith('.pth')
    assert Image.open('work_dirs/model/loss.png').width > 900
    assert Path('out/model/predictions.csv').read_text().startswith('image,')


def test_labels_of_a_model(call, digits):
    pytest.importorskip('mmdet')
    write_coco()
    shutil.copytree('my_data/val_images', 'more_images')
    few = {
        f'--out mine/{name}.py': f'--out mine/{name}.py --length 2' for name in ('first', 'second')
    }
    # After two iterations, scores are below the least that the model reports.
    few['--score-thr 0.5'] = '--score-thr 0 --cfg-options model.test_cfg.score_thr=0.0'
    run_page(AFTER, call, few, parts=['Label more images with the model'])
    count = {}
    for name in ('first', 'second'):
        train = json.loads(Path(f'mine/{name}/train.json').read_text())
        count[name] = len(train['images']), len(train['annotations'])
    found = predictions('labels')
    assert count['second'][0] == count['first'][0] + 4
    assert count['first'][1] < count['second'][1] <= count['first'][1] + len(found)


def test_segmentor(call, digits):
    pytest.importorskip('mmseg')
    shutil.copytree(SCENES / 'images', 'my_data/images')
    Path('my_data/masks').mkdir()
    for file in (SCENES / 'labels').iterdir():
        digits_only = Image.open(file).point(lambda label: 255 * (label > 0))
        digits_only.save(f'my_data/masks/{file.name}')
    Path('classes.txt').write_text('background\ndigit\n')
    run_page(PAGE, call, SHORT, parts=['Masks', STEPS])
    assert len(predictions()) == 4
    masks = [np.asarray(Image.open(file)) for file in Path('my_data/masks').iterdir()]
    assert len(masks) == 12 and {*np.unique(masks)} == {0, 255}
    assert list(read_config('mine/model.py').classes) == ['background', 'digit']


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


def test_satellite(call, tmp_path):
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
        path = tmp_path / f'my_data/scenes/{name}'
        place = write_scene(path, classes, layouts[i % 4], missing=missing)
        classes[-8:] = 255
        (tmp_path / 'my_data/masks').mkdir(exist_ok=True)
        place |= dict(dtype='float32' if i % 2 else 'uint8', nodata=255)
        with rasterio.open(tmp_path / f'my_data/masks/{name}', 'w', **place) as file:
            file.write(classes, 1)
    classes = rng.integers(0, 3, (10, 13)).repeat(20, 0).repeat(20, 1)
    missing = np.add(*np.indices(classes.shape)) < 150
    large = tmp_path / 'my_data/large/region.tif'
    write_scene(large, classes, dict(tiled, compress='deflate'), missing=missing)
    Path('classes.txt').write_text('water\nforest\nfield\n')
    tiles = {'--tile-size 480 --overlap 120': '--tile-size 96 --overlap 24'}
    tiles['--max-pixels 230400'] = '--max-pixels 9216 --read-limit 10000'
    run_page(PAGE, call, SHORT | tiles, parts=['Satellite'])
    # Small scenes keep their scale, because a large one is seen at its own.
    assert read_config('mine/model.py').scale == (96, 96)
    with rasterio.open(tmp_path / 'out/model/pred/region.tif') as file:
        found = file.read(1)
        assert file.shape == (200, 260) and file.crs.to_epsg() == 32633
        assert file.transform.c == 499980
    np.testing.assert_array_equal(found == 255, missing)
    assert found[~missing].max() < 3
    # A scene of one pixel, read as a whole.
    dot = tmp_path / 'dot.tif'
    write_scene(dot, np.zeros((1, 1), int), {}, missing=np.zeros((1, 1), bool))
    model = ['mine/model.py', 'work_dirs/model/iter_2.pth']
    call('infer', *model, dot, '--scale', 'native', '--out-dir', 'one')
    with rasterio.open(tmp_path / 'one/pred/dot.tif') as file:
        assert file.shape == (1, 1) and file.read(1).max() < 3


@pytest.mark.slow
def test_classifier(call, tmp_path):
    pytest.importorskip('mmpretrain')
    class_folders(tmp_path / 'my_data')
    shutil.copytree(tmp_path / 'my_data/cat', 'photos')
    run_page(PAGE, call, SHORT, parts=['Class folders', STEPS])
    assert len(predictions()) == 5
    assert {one['class'] for one in predictions()} <= {'cat', 'dog'}
