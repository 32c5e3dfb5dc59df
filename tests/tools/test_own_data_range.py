"""Images of more than 8 bits: training and prediction see the same range of values as 0 to 255."""

import json
import re
from pathlib import Path

import cv2
import numpy as np
import pytest
import shape_data
from torch.nn.modules.module import register_module_forward_pre_hook

from cpvt_backbones import CPVT, MultiScaleCPVT
from cpvt_backbones.engine import LoadRange
from cpvt_backbones.inference import ImageError
from cpvt_backbones.inference.windows import open_image
from cpvt_backbones.value_range import ValueRange

SIZE = 48, 64  # height, width, px
ONE_PROCESS = [
    f'{part}_dataloader.{option}'
    for part in ('train', 'val')
    for option in ('num_workers=0', 'persistent_workers=False')
]
TWELVE = ValueRange(low=0, high=4095, dtype='uint16')


def save(path, pixels):
    """Write an RGB or grey array in the format of the suffix, with its own values."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == '.npy':
        np.save(path, pixels)
    else:
        bgr = pixels[..., ::-1] if pixels.ndim == 3 else pixels
        assert cv2.imwrite(str(path), bgr)
    return path


def values(seed, low, high, dtype, *shape):
    return np.random.default_rng(seed).integers(low, high, (*SIZE, *shape)).astype(dtype)


@pytest.mark.parametrize('suffix', ['.png', '.tif', '.npy'])
@pytest.mark.parametrize('shape', [(), (3,)])
def test_training_and_prediction_read_the_same_scaled_values(tmp_path, suffix, shape):
    if suffix == '.tif':
        pytest.importorskip('rasterio')
    pixels = values(0, 0, 5000, np.uint16, *shape)
    path = save(tmp_path / f'a{suffix}', pixels)
    wanted = np.rint(np.clip(pixels.astype(float), 100, 4000) * (255 / 3900) - 100 * (255 / 3900))
    wanted = np.broadcast_to(np.atleast_3d(wanted)[..., ::-1], (*SIZE, 3))
    numbers = dict(low=100, high=4000, dtype='uint16')
    trained = LoadRange(**numbers)(dict(img_path=str(path)))
    assert trained['img'].dtype == np.uint8 and trained['ori_shape'] == SIZE
    np.testing.assert_allclose(trained['img'], wanted, atol=1)  # rounding of exact halves
    read = open_image(path, name='a', value_range=ValueRange(**numbers))
    np.testing.assert_array_equal(read, trained['img'])
    given = pixels[..., ::-1] if shape else pixels  # arrays are BGR
    read = open_image(given, name='array', value_range=ValueRange(**numbers))
    np.testing.assert_array_equal(read, trained['img'])


@pytest.mark.parametrize('nodata', [-9999.0, float('nan')])
def test_windows_and_missing_pixels_of_tiff(tmp_path, nodata):
    rasterio = pytest.importorskip('rasterio')
    pixels = values(1, -20, 60, np.float32, 3) / 10
    pixels[3:9, 5:30] = nodata
    path = tmp_path / 'a.tif'
    options = dict(driver='GTiff', height=SIZE[0], width=SIZE[1], count=3, dtype='float32')
    with rasterio.open(path, 'w', **options, nodata=nodata) as file:
        file.write(np.moveaxis(pixels, 2, 0))
    value_range = ValueRange(low=-1.5, high=4.5, dtype='float32')
    whole = open_image(path, name='a', value_range=value_range)
    assert not whole[3:9, 5:30].any() and whole.max() == 255
    large = open_image(path, name='a', read_limit=100, value_range=value_range)
    assert large.shape == whole.shape
    np.testing.assert_array_equal(large[2:20, 3:40], whole[2:20, 3:40])


@pytest.mark.parametrize(
    'pixels, reason',
    [
        (values(0, 0, 99, np.uint8), 'values of uint8; the other images have uint16'),
        (values(0, 0, 99, np.uint16, 4), '1 band (grey) or 3 (RGB) are accepted, got 4'),
        (values(0, 0, 99, np.uint16, 2, 2), '(H, W) or (H, W, bands) is accepted'),
    ],
)
def test_other_files_are_refused_by_name(tmp_path, pixels, reason):
    path = save(tmp_path / 'a.npy', pixels)
    with pytest.raises(ValueError, match=re.escape(f'{path}: {reason}')):
        LoadRange(**TWELVE.settings)(dict(img_path=str(path)))
    with pytest.raises(ImageError, match=re.escape(reason)):
        open_image(path, name='a', value_range=TWELVE)


def test_objects_in_a_numpy_file_are_not_run(tmp_path):
    path = tmp_path / 'a.npy'
    np.save(path, np.array([print], object), allow_pickle=True)
    with pytest.raises(ImageError, match='not an array of numbers'):
        open_image(path, name='a', value_range=TWELVE)


@pytest.mark.parametrize('bad', [float('nan'), float('inf')])
def test_values_that_are_not_finite_are_refused(bad):
    pixels = np.ones(SIZE, np.float32)
    pixels[1, 2] = bad
    value_range = ValueRange(low=0, high=1, dtype='float32')
    with pytest.raises(ImageError, match='NaN or infinite values'):
        open_image(pixels, name='a', value_range=value_range)


@pytest.mark.parametrize(
    'change', [dict(low=4095), dict(high=float('inf')), dict(dtype='int8'), dict(low='0')]
)
def test_arguments_are_checked(change):
    with pytest.raises(ValueError, match='must be'):
        ValueRange(**TWELVE.settings | change)


# -- from files to predictions
# --------------------------------------------------------------------------------------------------


@pytest.fixture
def data(tmp_path, monkeypatch):
    """Scenes with 12 bits in 16; arguments of make_config.py for each form."""
    monkeypatch.chdir(tmp_path)
    for split, count in (('train', 8), ('val', 4)):
        scenes = shape_data.make_split(0, split, count, objects=2)
        shape_data.class_maps(tmp_path / 'masks' / split, scenes)
        shape_data.coco_json(tmp_path / f'{split}.json', scenes)
        for scene in scenes:
            deep = scene.image.astype(np.uint16) * 16
            save(tmp_path / 'images' / split / f'{scene.name}.png', deep)
            save(tmp_path / 'photos' / split / str(scene.labels[0]) / f'{scene.name}.png', deep)
    pictures = ['images/train', '--val', 'val.json', 'images/val']
    return dict(
        coco=['coco', 'train.json', *pictures],
        masks=['masks', 'images', 'masks'],
        folders=['folders', 'photos'],
    )


@pytest.fixture
def seen():
    """Images that backbones get, by whether they train: normalised, (3, H, W)."""
    images = {True: [], False: []}

    def record(module, args):
        if isinstance(module, (CPVT, MultiScaleCPVT)):
            images[module.training] += [image.numpy().copy() for image in args[0]]

    hook = register_module_forward_pre_hook(record)
    yield images
    hook.remove()


# Each form of data: test_own_data_bands.py.
def test_a_model_sees_the_same_in_training_and_prediction(data, seen, call, capsys):
    pytest.importorskip('mmpretrain')
    call('make_config', *data['folders'], '--out', 'deep.py', '--length', 1, '--range', 0, 4095)
    assert '16 bits' not in capsys.readouterr().out
    call('train', 'deep.py', '--cfg-options', *ONE_PROCESS)
    trained, validated = seen[True], {image.tobytes() for image in seen[False]}
    assert max(image.max() for image in trained) > 2  # of the upper 8 bits -1.7
    seen[False].clear()
    pictures = 'photos/val/*/*.png'
    out = ['--out-dir', 'out', '--device', 'cpu']
    call('infer', 'deep.py', 'work_dirs/deep/epoch_1.pth', pictures, *out)
    predicted = {image.tobytes() for image in seen[False]}
    assert len(predicted) == 4 and predicted <= validated


@pytest.mark.parametrize(
    'limits, reason',
    [
        ((4095, 0), 'range must be two finite numbers, LOW below HIGH, got 4095.0 and 0.0'),
        ((5000, 9000), '--range 5000 9000: all values are outside, they are 0 to 4080'),
    ],
)
def test_a_wrong_range_is_refused(data, refused, limits, reason):
    assert reason in refused('make_config', *data['coco'], '--out', 'deep.py', '--range', *limits)
    assert not Path('deep.py').exists()


def test_clipped_values_and_wide_ranges_are_noted(data, call, capsys):
    arguments = ['make_config', *data['coco'], '--out', 'deep.py', '--overwrite', '--range']
    call(*arguments, 100, 3000)
    assert 'note 12 values outside of --range 100 3000 are clipped' in _text(capsys)
    call(*arguments, 0, 65535)
    assert 'values of 0 to 4080 only: give a smaller range' in _text(capsys)


def test_8_bits_among_12_are_counted(data, call, refused, capsys):
    dark = np.random.default_rng(0).integers(0, 255, (shape_data.HEIGHT, shape_data.WIDTH))
    file = save(Path('images/train/train_1.png'), dark.astype(np.uint16))
    arguments = ['make_config', *data['coco'], '--out', 'deep.py', '--range', 0, 4095]
    call(*arguments)
    wanted = 'altered 1 images within a sixteenth of --range 0 4095, nearly black: have they fewer'
    assert f'{wanted} bits?: {file}' in _text(capsys)
    assert 'refused by strict' in refused(*arguments, '--overwrite', '--strict')


def test_a_mixed_folder_is_refused_by_name(data, call, capsys):
    file = save(Path('images/train/train_1.png'), np.zeros((72, 64), np.uint8))
    with pytest.raises(SystemExit):
        call('make_config', *data['coco'], '--out', 'deep.py', '--range', 0, 4095)
    assert f'{file} (values of uint8; the other images have uint16)' in _text(capsys)


def _text(capsys):
    return ' '.join(capsys.readouterr().out.split())


def test_numpy_files_need_a_range(data, call, capsys):
    for path in Path('images').rglob('*.png'):
        save(path.with_suffix('.npy'), cv2.imread(str(path), cv2.IMREAD_UNCHANGED)[..., ::-1])
        path.unlink()
    arguments = ['make_config', *data['masks'], '--out', 'deep.py', '--length', 1]
    with pytest.raises(SystemExit):
        call(*arguments)
    assert '3 bands of uint16: give --range LOW HIGH' in _text(capsys)
    call(*arguments, '--range', 0, 4095)
    assert 'used 8 training images' in _text(capsys)


def test_tiles_keep_the_values(data, call):
    """Objects of 9 px at the scale of 640 px are trained on in tiles."""
    pixels = np.random.default_rng(0).integers(0, 4096, (1400, 1400, 3)).astype(np.uint16)
    images = [dict(id=i, file_name=f'{i}.png', width=1400, height=1400) for i in range(2)]
    boxes = [dict(id=i, image_id=i, category_id=1, bbox=[30, 40, 20, 20]) for i in range(2)]
    content = dict(images=images, annotations=boxes, categories=[dict(id=1, name='dot')])
    Path('all.json').write_text(json.dumps(content))
    for image in images:
        save(Path('large', image['file_name']), pixels)
    call('make_config', 'coco', 'all.json', 'large', '--out', 'cut.py', '--range', 0, 4095)
    (tile,) = Path('cut/tiles/train').glob('*_0_0.npy')
    read = LoadRange(**TWELVE.settings)
    whole = read(dict(img_path='large/0.png'))['img']
    np.testing.assert_array_equal(read(dict(img_path=str(tile)))['img'], whole[:640, :640])
    assert "type='LoadRange'" in Path('cut.py').read_text()
