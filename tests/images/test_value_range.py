"""Files of other bands or more than 8 bits: training and prediction read the same pixels."""

import re

import numpy as np
import pytest
import torch
from mmengine.registry import MODELS
from raster_files import SIZE, values, write_raster

from cpvt_backbones.engine import LoadRange
from cpvt_backbones.images.value_range import ValueRange
from cpvt_backbones.images.windows import open_image
from cpvt_backbones.inference import ImageError
from cpvt_backbones.inference.sizes import resize

TWELVE = ValueRange(low=0, high=4095, dtype='uint16')


def load(path, value_range):
    """Pixels as training reads them."""
    return LoadRange(**value_range.settings)(dict(img_path=str(path)))['img']


@pytest.mark.parametrize(
    'suffix, dtype, count, bands',
    [
        ('.tif', np.uint8, 4, (1, 2, 3, 4)),
        ('.tif', np.uint16, 6, (4, 2, 1)),
        ('.npy', np.float32, 13, (13, 2, 3, 4, 8)),
        ('.npy', np.uint8, 13, tuple(range(1, 14))),
        ('.png', np.uint8, 4, (4, 3)),
        ('.png', np.uint16, 1, (1,)),
        ('.png', np.uint8, 3, (2,)),
    ],
)
def test_chosen_bands_are_the_channels(tmp_path, suffix, dtype, count, bands):
    pixels = values(0, dtype, count)
    path = write_raster(tmp_path / f'a{suffix}', pixels)
    value_range = ValueRange(low=0, high=255, dtype=np.dtype(dtype).name, bands=bands)
    order = bands[::-1] if len(bands) == 3 else bands  # three are BGR
    trained = load(path, value_range)
    wanted = pixels[..., [band - 1 for band in order]].astype(np.uint8)
    np.testing.assert_array_equal(trained, wanted)
    for source in (path, pixels):  # arrays have all bands of the file
        read = open_image(source, name='a', value_range=value_range)
        np.testing.assert_array_equal(read, trained)
    if suffix == '.tif':
        windows = open_image(path, name='a', read_limit=100, value_range=value_range)
        np.testing.assert_array_equal(windows[2:9, 5:20], wanted[2:9, 5:20])
        assert resize(windows, (32, 24))[:24, :32].shape == (24, 32, len(bands))
    assert resize(read, (32, 24)).shape == (24, 32, len(bands))


@pytest.mark.parametrize('suffix', ['.png', '.tif', '.npy'])
@pytest.mark.parametrize('shape', [(), (3,)], ids=['grey', 'RGB'])
def test_values_in_the_range_are_scaled_to_8_bits(tmp_path, suffix, shape):
    pixels = np.random.default_rng(0).integers(0, 5000, (*SIZE, *shape)).astype(np.uint16)
    path = write_raster(tmp_path / f'a{suffix}', pixels)
    wanted = np.rint(np.clip(pixels.astype(float), 100, 4000) * (255 / 3900) - 100 * (255 / 3900))
    wanted = np.broadcast_to(np.atleast_3d(wanted)[..., ::-1], (*SIZE, 3))
    value_range = ValueRange(low=100, high=4000, dtype='uint16')
    trained = load(path, value_range)
    assert trained.dtype == np.uint8
    np.testing.assert_allclose(trained, wanted, atol=1)  # rounding of exact halves
    for source in (path, pixels[..., ::-1] if shape else pixels):  # arrays are BGR
        read = open_image(source, name='a', value_range=value_range)
        np.testing.assert_array_equal(read, trained)


@pytest.mark.parametrize('nodata', [-9999.0, float('nan')])
def test_pixels_without_data_are_black_in_windows_too(tmp_path, nodata):
    pixels = np.random.default_rng(1).integers(-20, 60, (*SIZE, 3)).astype(np.float32) / 10
    pixels[3:9, 5:30] = nodata
    path = write_raster(tmp_path / 'a.tif', pixels, nodata=nodata)
    value_range = ValueRange(low=-1.5, high=4.5, dtype='float32')
    whole = open_image(path, name='a', value_range=value_range)
    assert not whole[3:9, 5:30].any() and whole.max() == 255
    large = open_image(path, name='a', read_limit=100, value_range=value_range)
    assert large.shape == whole.shape
    np.testing.assert_array_equal(large[2:20, 3:40], whole[2:20, 3:40])


BANDS = ValueRange(low=0, high=255, dtype='uint8', bands=(4, 2))


@pytest.mark.parametrize(
    'value_range, dtype, shape, reason',
    [
        (BANDS, np.uint8, (*SIZE, 3), 'band 4 is missing: the file has 3'),
        (BANDS, np.uint8, (13, 40, 40), '(H, W, bands) is accepted, got (13, 40, 40): move'),
        (TWELVE, np.uint8, SIZE, 'values of uint8; the other images have uint16'),
        (TWELVE, np.uint16, (*SIZE, 4), '1 band (grey) or 3 (RGB) are accepted, got 4'),
        (TWELVE, np.uint16, (*SIZE, 2, 2), '(H, W) or (H, W, bands) is accepted'),
    ],
)
def test_other_files_are_refused_by_name(tmp_path, value_range, dtype, shape, reason):
    path = write_raster(tmp_path / 'a.npy', np.zeros(shape, dtype))
    with pytest.raises(ValueError, match=re.escape(f'{path}: {reason}')):
        load(path, value_range)
    with pytest.raises(ImageError, match=re.escape(reason)):
        open_image(path, name='a', value_range=value_range)


def test_objects_in_a_numpy_file_are_not_run(tmp_path):
    np.save(tmp_path / 'a.npy', np.array([print], object), allow_pickle=True)
    with pytest.raises(ImageError, match='not an array of numbers'):
        open_image(tmp_path / 'a.npy', name='a', value_range=TWELVE)


@pytest.mark.parametrize('bad', [float('nan'), float('inf')])
def test_values_that_are_not_finite_are_refused(bad):
    pixels = np.ones(SIZE, np.float32)
    pixels[1, 2] = bad
    with pytest.raises(ImageError, match='NaN or infinite values'):
        open_image(pixels, name='a', value_range=ValueRange(low=0, high=1, dtype='float32'))


@pytest.mark.parametrize(
    'change, words',
    [
        *((dict(bands=bands), 'bands must be 1 to 128 different numbers')
          for bands in ((), (0, 1), (2, 2), (1.0,), tuple(range(1, 130)))),
        (dict(low=4095), 'must be'),
        (dict(high=float('inf')), 'must be'),
        (dict(dtype='int8'), 'must be'),
        (dict(low='0'), 'must be'),
    ],
)  # fmt: skip
def test_arguments_are_checked(change, words):
    with pytest.raises(ValueError, match=words):
        ValueRange(**TWELVE.settings | change)


def test_a_preprocessor_refuses_other_channels():
    pytest.importorskip('mmdet')
    from cpvt_backbones.engine import preprocessors  # noqa: F401, registers

    settings = dict(type='ValidSizesDetDataPreprocessor', mean=[1.0] * 4, std=[2.0] * 4)
    preprocessor = MODELS.build(settings)
    batch = dict(inputs=[torch.full((4, 8, 8), 5.0)])
    assert preprocessor(batch)['inputs'].unique().tolist() == [2.0]
    with pytest.raises(ValueError, match='mean has 4 values, the images have 3 channels'):
        preprocessor(dict(inputs=[torch.zeros(3, 8, 8)]))
    with pytest.raises(ValueError, match='std must have 4 values as mean, got 2'):
        MODELS.build(dict(settings, std=[1.0, 2.0]))
