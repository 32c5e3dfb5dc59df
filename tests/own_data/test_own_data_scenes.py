"""Scenes and masks as GeoTIFF: types of masks, pixels without data, places on the ground, tiles."""

from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from cpvt_backbones.toolboxes import read_config

rasterio = pytest.importorskip('rasterio')
pytest.importorskip('mmseg')
pytestmark = pytest.mark.full
SIZE = 48, 64  # height, width, px
PLACE = dict(crs='EPSG:32633', transform=rasterio.Affine(10, 0, 500000, 0, -10, 5000000))
OPTIONS = ['--bands', 4, 2, 1, '--range', 0, 4095, '--out', 'land.py']


def write(path, pixels, *, mask=None, **options):
    """Write (H, W) or (bands, H, W) as GeoTIFF, or as the driver of ``options``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    bands = pixels if pixels.ndim == 3 else pixels[None]
    size = dict(zip(('count', 'height', 'width'), bands.shape, strict=True))
    settings = dict(driver='GTiff', dtype=bands.dtype, **size) | PLACE | options
    inside = rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True)
    with inside, rasterio.open(path, 'w', **settings) as file:
        file.write(bands)
        if mask is not None:
            file.write_mask(mask)


def noise(seed, size=SIZE, bands=4):
    return np.random.default_rng(seed).integers(1, 4096, (bands, *size)).astype(np.uint16)


def classes(seed, size=SIZE, count=3):
    """Squares of 8 px of each class, uint8."""
    shape = -(-size[0] // 8), -(-size[1] // 8)
    squares = np.random.default_rng(seed + 99).integers(0, count, shape).astype(np.uint8)
    return squares.repeat(8, 0).repeat(8, 1)[: size[0], : size[1]]


@pytest.fixture
def data(tmp_path, monkeypatch):
    """Five scenes with masks; arguments of make_config.py."""
    monkeypatch.chdir(tmp_path)
    for i in range(5):
        write(Path(f'scenes/{i}.tif'), noise(i))
        write(Path(f'masks/{i}.tif'), classes(i))
    return ['make_config', 'masks', 'scenes', 'masks', *OPTIONS]


@pytest.fixture
def printed(call, capsys):
    """Run make_config.py and return what it prints, in one line."""

    def printed(*arguments):
        capsys.readouterr()
        call(*arguments)
        return ' '.join(capsys.readouterr().out.split())

    return printed


def written(name):
    return np.asarray(Image.open(f'land/masks/{name}.tif.png'))


# -- masks
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('dtype', 'options'),
    [
        ('float32', {}),
        ('float64', dict(nodata=-3.4028234663852886e38)),
        ('float32', dict(nodata=float('nan'))),
        ('int16', dict(nodata=-9999)),
        ('int8', dict(nodata=-1)),
        ('uint16', dict(nodata=65535)),
        ('uint32', dict(nodata=4294967295)),
        ('uint8', dict(nodata=255)),
        ('uint8', dict(nbits=4)),
        ('uint8', dict(nbits=2)),
        ('uint8', dict(compress='zstd', nodata=200)),
        ('int64', dict(nodata=-1)),
        ('uint8', dict(BIGTIFF='YES')),
        ('uint8', dict(tiled=True, blockxsize=16, blockysize=16, compress='lzw', predictor=2)),
        ('float32', dict(tiled=True, blockxsize=16, blockysize=16, compress='deflate')),
    ],
    ids=str,
)
def test_types_of_masks(data, printed, dtype, options):
    nodata = options.get('nodata')
    for i in range(5):
        values = classes(i).astype(dtype)
        if nodata is not None:
            values[:8, :16] = nodata
        write(Path(f'masks/{i}.tif'), values, **options)
    text = printed(*data, '--strict')
    wanted = classes(3)
    if nodata is not None:
        wanted[:8, :16] = 255
        assert 'no class: nodata, 4.17% of' in text or f'no class: value {nodata}, 4.17%' in text
    np.testing.assert_array_equal(written(3), wanted)
    assert read_config('land.py').classes == ('class_0', 'class_1', 'class_2')


def test_numbers_that_are_no_class_are_refused(data, refused):
    write(Path('masks/1.tif'), classes(1).astype(np.float32) / 2)
    assert 'masks with values that are not whole numbers: masks/1.tif (0.5)' in refused(*data)
    values = classes(1).astype(np.int16)
    values[:8, :8] = -9999
    write(Path('masks/1.tif'), values)
    wanted = 'masks with values outside 0 to 65535, which they do not declare as nodata'
    assert f'{wanted}: masks/1.tif (-9999 to 2)' in refused(*data)


def test_a_class_that_is_declared_as_nodata_is_asked_about(data, printed, refused):
    """Tools that rasterise shapes declare 0, and mean the background."""
    for i in range(5):
        write(Path(f'masks/{i}.tif'), classes(i), nodata=0)
    line = refused(*data)
    assert 'masks that declare a class as nodata: --ignore 0 leaves it out' in line
    assert 'value 0 (' in line and 'in 5 masks' in line
    Path('classes.txt').write_text('background\nwater\nforest')
    named = [*data, '--classes', 'classes.txt']
    assert 'declare a class as nodata' in refused(*named)
    printed(*named, '--ignore', 0)
    np.testing.assert_array_equal(written(2), classes(2) - np.uint8(1))  # 0 becomes 255
    assert read_config('land.py').classes == ('water', 'forest')
    Path('classes.txt').write_text('background 0 0 0\nwater 1 1 1\nforest 2 2 2')
    printed(*named, '--overwrite')
    np.testing.assert_array_equal(written(2), classes(2))


def test_masks_larger_than_the_limit_of_pillow(data, printed, monkeypatch):
    for i in range(5):
        Path(f'masks/{i}.tif').unlink()
        Image.fromarray(classes(i)).save(f'masks/{i}.png')
    monkeypatch.setattr(Image, 'MAX_IMAGE_PIXELS', 1000)
    assert 'used 4 training images' in printed(*data)
    assert Image.MAX_IMAGE_PIXELS == 1000


@pytest.mark.parametrize('nodata', [0, 9])
def test_nodata_of_object_masks_is_no_object(tmp_path, nodata):
    from cpvt_backbones.own_data import Report
    from cpvt_backbones.own_data.read.instances import read_instances

    for i in range(2):
        objects = np.full(SIZE, nodata, np.uint8)
        objects[4:20, 4:20], objects[30:40, 30:50] = 1, 2
        write(tmp_path / f'scenes/{i}.tif', noise(i))
        write(tmp_path / f'masks/{i}.tif', objects, nodata=nodata)
    split = read_instances(tmp_path / 'scenes', tmp_path / 'masks', Report())
    assert len(split.coco['annotations']) == 4


# -- scenes
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('how', ['nodata', 'mask', 'one band'])
def test_pixels_without_data_are_of_no_class(data, printed, how):
    inside = np.ones(SIZE, bool)
    inside[:12] = False
    for i in range(5):
        pixels = noise(i)
        bands = slice(1, 2) if how == 'one band' else slice(None)
        if how != 'mask':
            pixels[bands, :12] = 0
        options = dict(mask=inside) if how == 'mask' else dict(nodata=0)
        write(Path(f'scenes/{i}.tif'), pixels, **options)
    text = printed(*data)
    wanted = classes(1)
    if how != 'one band':
        wanted[:12] = 255
    np.testing.assert_array_equal(written(1), wanted)
    said = 'pixels without data in the images: 25.00%; they have no class'
    assert (said in text) == (how != 'one band')


def test_values_outside_the_mask_of_a_scene_do_not_count(data, printed):
    """Mean and standard deviation, and the range that is found, are of pixels with data."""
    inside = np.ones(SIZE, bool)
    inside[:, :32] = False
    for i in range(5):
        pixels = noise(i)
        pixels[:, :, :32] = 60000
        write(Path(f'scenes/{i}.tif'), pixels, mask=inside)
    assert 'are clipped' not in printed(*data)
    assert max(read_config('land.py').model.data_preprocessor.mean) < 140


@pytest.mark.parametrize(
    ('change', 'reason'),
    [
        (dict(transform=rasterio.Affine(10, 0, 500004, 0, -10, 5000000)), ''),
        (dict(transform=rasterio.Affine(10, 0, 500010, 0, -10, 5000000)), 'corners are 1 px away'),
        (dict(transform=rasterio.Affine(20, 0, 500000, 0, -20, 5000000)), 'another georeference'),
        (dict(crs='EPSG:32634'), 'another georeference than their image: warp them to its grid'),
        (dict(crs=None, transform=None), ''),
        (dict(crs=None), ''),
    ],
    ids=str,
)
def test_masks_of_another_place_are_refused(data, printed, refused, change, reason):
    write(Path('masks/2.tif'), classes(2), **change)
    if reason:
        line = refused(*data)
        assert reason in line and 'scenes/2.tif (mask masks/2.tif' in line
    else:
        assert 'data accepted' in printed(*data)


def fields(size):
    """Three large regions, uint8."""
    found = np.zeros(size, np.uint8)
    found[:, size[1] // 3 :] = 1
    found[size[0] // 2 :] = 2
    return found


def test_large_scenes_are_cut_into_tiles(tmp_path, printed, monkeypatch):
    """Whatever the width of the classes: the scale of a scene is that of the ground."""
    monkeypatch.chdir(tmp_path)
    size = 700, 1300
    for i in range(3):
        write(Path(f'scenes/{i}.tif'), noise(i, size), nodata=0)
        write(Path(f'masks/{i}.tif'), fields(size))
    text = printed('make_config', 'masks', 'scenes', 'masks', *OPTIONS)
    wanted = 'georeferenced images of more than 480 px: the config trains on 12 tiles of 640 px'
    assert wanted in text
    assert '--scale native --tile-size 480 --overlap 120 --max-pixels 230400' in text
    data = read_config('land.py').train_dataloader.dataset
    names = Path(data.ann_file).read_text().split()
    assert len(names) == 12
    prefix = data.data_prefix
    tile = np.load(Path(prefix.img_path, '1.tif_60_480.npy'))
    rows, columns = slice(60, 700), slice(480, 1120)
    np.testing.assert_array_equal(tile, np.moveaxis(noise(1, size), 0, 2)[rows, columns])
    labels = cv2.imread(str(Path(prefix.seg_map_path, '1.tif_60_480.npy.png')), -1)
    np.testing.assert_array_equal(labels, fields(size)[rows, columns])
