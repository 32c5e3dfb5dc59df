"""Images whose thinnest class, or smallest objects, would vanish at the scale of training are cut
into tiles.
"""

import json
import re
import shlex

import cv2
import numpy as np
import pytest
from PIL import Image

from cpvt_backbones.engine import LoadRange
from cpvt_backbones.toolboxes import read_config

OPTIONS = '--scale native --tile-size 480 --overlap 120 --max-pixels 230400'
ONE_PROCESS = [
    f'{part}_dataloader.{option}'
    for part in ('train', 'val')
    for option in ('num_workers=0', 'persistent_workers=False')
]


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Function that writes an image of noise, and its mask with lines of some px."""
    monkeypatch.chdir(tmp_path)

    def write(name, size, thickness, *, void_from=None, deep=False):
        rng = np.random.default_rng(list(name.encode()))
        width, height = size
        coarse = rng.integers(0, 255, (9, 16) if deep else (9, 16, 3)).astype(np.uint8)
        image = cv2.resize(coarse, size)
        lines = ((np.arange(width) + 50) % 100 < thickness).astype(np.uint8)
        mask = np.repeat(lines[None], height, axis=0)
        if void_from is not None:
            mask[:, void_from:] = 255
        if deep:
            image = image * np.uint16(16)
        for folder, pixels in (('images', image), ('masks', mask)):
            path = tmp_path / folder / f'{name}.png'
            path.parent.mkdir(exist_ok=True)
            assert cv2.imwrite(str(path), pixels)

    return write


@pytest.fixture
def made(call, capsys):
    """Function that makes ``mine.py``; returns what is printed."""

    def made(*data, options=()):
        call('make_config', *(data or ('masks', 'images', 'masks')), '--out', 'mine.py', *options)
        return ' '.join(capsys.readouterr().out.split())

    return made


def dataset(part):
    """The data set of a config's dataloader."""
    from mmengine.registry import DATASETS, init_default_scope

    config = read_config('mine.py')
    init_default_scope(config.default_scope)
    return DATASETS.build(config[f'{part}_dataloader'].dataset)


def tiles(folder, part='train'):
    """Name of the image, top, left and file name of each tile of a part."""
    found = []
    for name in (folder / f'mine/{part}.txt').read_text().splitlines():
        source, top, left = re.fullmatch(r'(.+)_(\d+)_(\d+)\.\w+', name).groups()
        found.append((source, int(top), int(left), name))
    return found


def read(path):
    array = np.load(path) if path.suffix == '.npy' else cv2.imread(str(path), -1)
    assert array is not None, path
    return array


@pytest.mark.full
def test_thin_classes_are_trained_on_in_tiles(write, made, tmp_path):
    pytest.importorskip('mmseg')
    for i in range(5):
        write(f'{i}', (1500, 700), 6, void_from=860 if i == 0 else None)
    printed = made()
    assert 'thinnest class, class_1: 6.0 px in the images, 1.9 px if shrunk to 480 px' in printed
    found = {part: tiles(tmp_path, part) for part in ('train', 'val')}
    # Two rows of three tiles to train on, of four to validate on. The right of one has no class.
    sources = {part: [one[0] for one in found[part]] for part in found}
    for i in range(5):
        counts = tuple(sources[part].count(f'{i}.png') for part in ('train', 'val'))
        assert counts in ([(4, 0), (0, 4)] if i == 0 else [(6, 0), (0, 8)])
    assert f'the config trains on {len(found["train"])} tiles of 640 px' in printed
    assert printed.endswith(OPTIONS)
    sides = [640] * len(found['train']) + [480] * len(found['val'])
    both = [*found['train'], *found['val']]
    for (source, top, left, name), side in zip(both, sides, strict=True):
        window = slice(top, top + side), slice(left, left + side)
        whole = read(tmp_path / f'mine/masks/{source}.png')
        classes = read(tmp_path / f'mine/tiles/masks/{name}.png')
        np.testing.assert_array_equal(classes, whole[window])
        assert classes.shape == (side, side) and (classes != 255).any()
        difference = cv2.absdiff(
            read(tmp_path / f'mine/tiles/images/{name}'),
            read(tmp_path / f'images/{source}')[window],
        )
        assert difference.mean() < 3  # of JPEG
    config = read_config('mine.py')
    assert config.model.test_cfg.mode == 'whole'  # exported files need it
    train, val = dataset('train')[0], dataset('val')[0]
    assert train['inputs'].shape == (3, 480, 480)
    assert val['inputs'].shape == (3, 480, 480)


@pytest.mark.full
def test_classes_that_are_thick_enough_are_not(write, made, tmp_path):
    """Lines of 20 px have 6.4 px in images of 480 px."""
    pytest.importorskip('mmseg')
    for i in range(5):
        write(f'{i}', (1500, 700), 20)
    printed = made()
    assert 'class_1: 20.0 px in the images, 6.4 px in training (images of 480 px)' in printed
    assert 'scale of training: 480 x 224 px, 32% of the images' in printed
    assert '--tile-size' not in printed and not (tmp_path / 'mine/tiles').exists()
    assert read_config('mine.py').scale == (480, 224)
    made(options=['--side', '90', '--overwrite'])  # lines of 1.2 px
    cfg = read_config('mine.py')
    assert cfg.scale == (90, 42) and cfg.train_dataloader.dataset.pipeline[3].crop_size == (32, 64)
    assert not (tmp_path / 'mine/tiles').exists()


def test_small_and_large_images(write, made, tmp_path):
    """The lines of the large images would vanish at the scale of the median image."""
    torch = pytest.importorskip('torch')
    pytest.importorskip('mmseg')
    from mmengine.registry import MODELS

    for i in range(9):
        write(f'{i}', (200, 150) if i < 6 else (1500, 700), 6)
    assert 'tiles of 640 px' in made()
    train = dataset('train')
    samples = [train[i] for i in range(len(train))]
    shapes = {tuple(sample['inputs'].shape) for sample in samples}
    assert shapes == {(3, 150, 200), (3, 480, 480)}
    config = read_config('mine.py')
    batch = [next(s for s in samples if s['inputs'].shape[1] == side) for side in (150, 480)]
    preprocessor = MODELS.build(config.model.data_preprocessor)
    padded = preprocessor(
        dict(inputs=[s['inputs'] for s in batch], data_samples=[s['data_samples'] for s in batch]),
        training=True,
    )
    assert padded['inputs'].shape == (2, 3, 480, 480)
    labels = padded['data_samples'][0].gt_sem_seg.data[0]
    assert (labels[150:] == 255).all() and (labels[:, 200:] == 255).all()
    assert not torch.any(labels[:150, :200] == 255)


@pytest.mark.full
def test_tiles_keep_the_values_of_12_bits(write, made, tmp_path):
    pytest.importorskip('mmseg')
    for i in range(4):
        write(f'{i}', (700, 500), 4, deep=True)
    assert printed_tiles(made(options=['--range', '0', '4095'])) > 3
    load = LoadRange(low=0, high=4095, dtype='uint16')
    for source, top, left, name in tiles(tmp_path):
        tile = tmp_path / f'mine/tiles/images/{name}'
        assert tile.suffix == '.npy'
        image, whole = (
            load(dict(img_path=str(path)))['img'] for path in (tile, tmp_path / 'images' / source)
        )
        np.testing.assert_array_equal(image, whole[top : top + 640, left : left + 640])
    assert dataset('train')[0]['inputs'].shape == (3, 480, 480)


def printed_tiles(printed):
    """Number of tiles that the config trains on."""
    return int(re.search(r'trains on (\d+) tiles', printed)[1])


@pytest.mark.full
def test_predicted_class_maps_have_the_size_of_the_images(write, made, call, tmp_path):
    """After one iteration, by the commands that are printed; and by mmseg's sliding window."""
    pytest.importorskip('mmseg')
    sizes = dict(zip('01234', [(700, 500)] * 4 + [(90, 70)], strict=True))
    for name, size in sizes.items():
        write(name, size, 4)
    printed = made(options=['--length', '1'])
    train, _, infer = (shlex.split(text)[1:] for text in printed.split('python tools/')[1:])
    call('train', *train, '--cfg-options', *ONE_PROCESS, 'train_dataloader.batch_size=2')
    infer[infer.index('PHOTOS')] = 'images'
    options = ['mode=slide', 'crop_size=[480,480]', 'stride=[360,360]']
    window = ['--overwrite', '--cfg-options', *(f'model.test_cfg.{one}' for one in options)]
    for further in ([], window):
        call('infer', *infer, *further)
        for name, size in sizes.items():
            assert Image.open(tmp_path / f'out/mine/pred/{name}.png').size == size


@pytest.mark.full
def test_small_objects_of_few_large_images(made, tmp_path, monkeypatch):
    """Objects of 20 px that have 4 px when their image has the size of the median image."""
    pytest.importorskip('mmdet')
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'images').mkdir()
    images, boxes = [], []
    for i in range(9):
        size = (1500, 900) if i >= 6 else (300, 200)
        pixels = np.random.default_rng(i).integers(0, 255, (*size[::-1], 3)).astype(np.uint8)
        cv2.imwrite(str(tmp_path / f'images/{i}.png'), pixels)
        images.append(dict(id=i, file_name=f'{i}.png', width=size[0], height=size[1]))
        boxes.append(dict(id=i, image_id=i, category_id=1, bbox=[30, 40, 20, 20]))
    content = dict(images=images, annotations=boxes, categories=[dict(id=1, name='dot')])
    (tmp_path / 'all.json').write_text(json.dumps(content))
    printed = made('coco', 'all.json', 'images')
    assert 'smallest objects, dot: side of 20 px in the images, 4 px if shrunk to 320 px' in printed
    assert '--scale native --tile-size 640' in printed
    printed = made('coco', 'all.json', 'images', options=['--side', '450', '--overwrite'])
    assert 'tile' not in printed and 'objects shrunk' not in printed
    cfg = read_config('mine.py')
    assert cfg.scale == (450, 300)  # 1.5 times the median image
    anchors = cfg.model.bbox_head.anchor_generator
    assert anchors.octave_base_scale == pytest.approx(1.5 * 20 / 8)


# -- how thin a class is
# --------------------------------------------------------------------------------------------------


def width_of(maps, factors=None):
    from cpvt_backbones.own_data.decide.settings import find_thinnest, measure

    return find_thinnest([measure(one) for one in maps], factors or [1.0] * len(maps))


def test_widths_of_lines_squares_and_discs():
    blank = np.zeros((300, 400), np.uint8)
    line, square, disc = blank.copy(), blank.copy(), blank.copy()
    line[:, 50:57] = 1
    square[20:60, 30:70] = 1
    disc[np.hypot(*(np.mgrid[:300, :400] - [[[150]], [[150]]])) < 50] = 1
    assert width_of([line]) == (1, 7, 7)
    assert width_of([square]) == (1, 20, 20)
    assert width_of([disc]).own == pytest.approx(0.39 * 100, rel=0.05)
    # At the border, a line of 7 px has one edge.
    line[:] = 0
    line[:, :7] = 1
    assert width_of([line]).own == 14


def test_the_thinnest_at_the_scale_of_training_counts():
    """A class of wide lines in a large image is thinner than one of thin lines in a small image."""
    small, large = np.zeros((100, 100), np.uint8), np.zeros((1000, 1000), np.uint8)
    small[:, 50:58] = 1
    large[:, 500:516] = 2
    assert width_of([small, large])[:2] == (1, 8)
    assert width_of([small, large], [1.0, 0.125]) == (2, 16, 2)


def test_no_class_is_not_the_thinnest():
    lines = np.zeros((100, 100), np.uint8)
    lines[:, ::2] = 255
    lines[:, 40:60] = 1
    thin = width_of([lines])
    assert thin.label == 0 and thin.own < 2  # 255 bounds a class, too
    assert width_of([np.full((9, 9), 3, np.uint8)]) is None
