"""TIFF and JPEG 2000 files read by windows: kinds of pixels, missing data, refusals."""

import sys

import numpy as np
import pytest
from PIL import Image
from raster_files import write_tiff

from cpvt_backbones.images import ImageError, find_images, read_image, windows
from cpvt_backbones.images.reading import to_8_bits
from cpvt_backbones.images.value_range import ValueRange

pytest.importorskip('rasterio')


def test_a_chosen_band_is_no_transparency(tmp_path):
    """GDAL takes a fourth band of 8 bits for alpha, such as near infrared, which is 0 on water."""
    pixels = np.zeros((4, 40, 50), np.uint8)
    path = write_tiff(tmp_path / 'a.tif', pixels, photometric='rgb', ALPHA='YES')
    value_range = ValueRange(low=0, high=255, dtype='uint8', bands=(1, 2, 4))
    assert windows.open_scene(path).missing((0, 40), (0, 50)).all()
    assert windows.open_scene(path, value_range).missing((0, 40), (0, 50)) is None


def test_kinds_of_pixels(tmp_path):
    rng = np.random.default_rng(0)
    rgba = rng.integers(0, 256, (4, 90, 70), np.uint8)
    deep = rng.integers(0, 65536, (3, 90, 70)).astype(np.uint16)
    for name, bands, layout in (
        ('grey', rgba[:1], {}),
        ('strips', rgba[:1], dict(tiled=False, blockysize=4)),
        ('rgba', rgba, dict(photometric='rgb')),
        ('deep', deep[:1], {}),
        ('deep_rgb', deep, dict(photometric='rgb')),
    ):
        path = write_tiff(tmp_path / f'{name}.tif', bands, **layout)
        image = windows.open_image(path, name=name, read_limit=10)
        assert image.shape == (90, 70, 3)
        expected = read_image(path)[10:75, 3:70]
        np.testing.assert_array_equal(image[10:75, 3:70], expected, err_msg=name)
    # Pillow is not asked to read this one.
    lossless = dict(quality='100', reversible='yes', tiled=False, compress=None)
    lossless['driver'] = 'JP2OpenJPEG'
    path = write_tiff(tmp_path / 'a.jp2', rgba[:3], **lossless)
    assert path in find_images(tmp_path)
    image = windows.open_image(path, name='', read_limit=None)
    np.testing.assert_array_equal(image[:90, :70][..., ::-1], np.moveaxis(rgba[:3], 0, 2))


def test_refusals(tmp_path, monkeypatch):
    def refused(path, words, limit=10):
        with pytest.raises(ImageError, match=words):
            windows.open_image(path, name=str(path), read_limit=limit)

    grey = np.zeros((1, 90, 70), np.uint8)
    Image.fromarray(grey[0]).save(tmp_path / 'grey.png')
    refused(tmp_path / 'grey.png', 'more than read_limit=10; decoding takes')
    for mode in ('P', 'CMYK'):
        Image.new(mode, (9, 9)).save(tmp_path / f'{mode}.tif')
        refused(tmp_path / f'{mode}.tif', r'grey or RGB, got \d bands of uint8, (palette|cmyk)')
    Image.fromarray(255 - grey[0]).save(tmp_path / 'white.tif', tiffinfo={262: 0})
    Image.fromarray(grey[0]).save(tmp_path / 'turned.tif', tiffinfo={274: 6})
    refused(tmp_path / 'turned.tif', 'more than read_limit=10; decoding takes .* memory$')
    five = write_tiff(tmp_path / 'five.tif', np.zeros((5, 9, 9), np.uint8))
    refused(five, 'got 5 bands of uint8', None)
    refused(write_tiff(tmp_path / 'float.tif', grey.astype(np.float32)), 'got 1 bands of float32')
    monkeypatch.setattr(windows, 'BLOCK_BYTES', 5000)
    strip = write_tiff(tmp_path / 'strip.tif', grey, tiled=False, blockysize=90)
    refused(strip, 'blocks of 70 x 90 px, too large .*; write it in tiles: gdal_translate')
    assert windows.open_image(strip, name='', read_limit=None).shape == (90, 70, 3)
    monkeypatch.setitem(sys.modules, 'rasterio', None)
    refused(strip, 'reading by windows, a range or bands needs rasterio: pip install rasterio')


@pytest.mark.parametrize('layout', [dict(tiled=True), dict(tiled=False, blockysize=7)])
def test_planes_of_16_bits(tmp_path, layout):
    """Without compression, Pillow decodes colours to other values, and fails on grey."""
    pixels = np.random.default_rng(0).integers(0, 1 << 16, (3, 90, 70), np.uint16)
    layout = layout | dict(interleave='band')
    expected = np.moveaxis(pixels[::-1] >> 8, 0, 2)
    plain = write_tiff(tmp_path / 'plain.tif', pixels, **layout, compress='none', photometric='RGB')
    packed = write_tiff(tmp_path / 'packed.tif', pixels, **layout, photometric='RGB')
    grey = write_tiff(tmp_path / 'grey.tif', pixels[:1], **layout, compress='none')
    for file in (plain, grey):
        with pytest.raises(ImageError, match='not compressed, in planes: Pillow does not read it'):
            read_image(file)
    image = windows.open_image(plain, name='')
    np.testing.assert_array_equal(image[:90, :70], expected)
    np.testing.assert_array_equal(read_image(packed), expected)
    image = windows.open_image(grey, name='')
    np.testing.assert_array_equal(image[:90, :70][..., 0], to_8_bits(pixels[0]))


def test_values_that_pillow_takes_for_others_are_refused(tmp_path):
    grey = np.full((1, 9, 7), 200, np.uint16)
    white = write_tiff(tmp_path / 'white.tif', grey, photometric='MINISWHITE')
    with pytest.raises(ImageError, match='16 bits in which 0 is white .* BlackIsZero'):
        windows.open_image(white, name='')
    for dtype in ('int8', 'int16', 'int32'):
        signed = write_tiff(tmp_path / f'{dtype}.tif', np.full((1, 9, 7), -5, dtype))
        with pytest.raises(ImageError, match='signed values have no agreed range; 8 and 16 bits'):
            windows.open_image(signed, name='')
