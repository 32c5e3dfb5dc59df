"""Images read by windows: predictions equal to those of images in memory, georeference."""

import json

import cv2
import numpy as np
import pytest
from folder_runs import run, snapshot
from hypothesis import given
from hypothesis import strategies as st
from local_models import BlockDetector, BlockInstances, LocalSegmentor
from raster_files import TRANSFORM, write_tiff

from cpvt_backbones.inference import Inferencer, read_image, sizes
from cpvt_backbones.inference.predictions import decode_mask, encode_mask
from cpvt_backbones.inference.sizes import Resized

rasterio = pytest.importorskip('rasterio')
pytest.importorskip('shapely')
BOUNDS = dict(max_pixels=64 * 64 * 2, tile_size=64, overlap=20)


@pytest.fixture(scope='module')
def picture():
    """Smooth blobs, (H, W, 3), BGR."""
    noise = np.random.default_rng(0).integers(0, 256, (12, 16, 3), np.uint8)
    return cv2.resize(noise, (330, 240), interpolation=2)


@pytest.fixture(scope='module')
def scene(picture, tmp_path_factory):
    path = tmp_path_factory.mktemp('scene') / 'scene.tif'
    return write_tiff(path, np.moveaxis(picture[..., ::-1], 2, 0), georeference=True)


@given(sizes=st.tuples(*[st.integers(1, 60)] * 4), seed=st.integers(0, 99), data=st.data())
def test_parts_of_a_resized_image_are_those_of_opencv(sizes, seed, data):
    """To one grey level: OpenCV's arithmetic differs between processors."""
    height, width, new_height, new_width = sizes
    image = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    top, left = (data.draw(st.integers(0, side - 1)) for side in (new_height, new_width))
    bottom = data.draw(st.integers(top + 1, new_height))
    right = data.draw(st.integers(left + 1, new_width))
    whole = cv2.resize(image, (new_width, new_height), interpolation=cv2.INTER_LINEAR)
    whole = whole[top:bottom, left:right]
    part = Resized(image, (new_width, new_height))[top:bottom, left:right]
    assert np.abs(part.astype(int) - whole).max() <= 1


@pytest.mark.parametrize('scale', ['native', 0.61, 1.37, (100, 120), (40, 60)])
@pytest.mark.parametrize('kind', [LocalSegmentor, BlockDetector, BlockInstances])
def test_predictions_are_those_of_the_image_in_memory(
    kind, scale, picture, scene, monkeypatch, tmp_path
):
    monkeypatch.setattr(sizes, 'WINDOW_PIXELS', 5000)
    models = [kind(), kind()]
    expected, _ = Inferencer(predictor=models[0], scale=scale, **BOUNDS)(str(scene))
    by_windows = Inferencer(predictor=models[1], scale=scale, read_limit=100, **BOUNDS)
    ((_, result),) = by_windows.stream([scene], map_dir=tmp_path)
    actual = result.prediction
    assert models[0].forwards == models[1].forwards
    assert actual.pop('crs') == 'EPSG:32633' and actual.pop('transform') == TRANSFORM
    if 'seg_map' not in actual:
        assert expected['boxes']
        # Pixels at a threshold may differ by a grey level on other processors; on none at native
        # size.
        assert actual == expected or scale != 'native'
        assert len(actual['boxes']) == len(expected['boxes'])
        return
    with rasterio.open(actual['seg_map']) as file:
        assert file.crs.to_string() == 'EPSG:32633' and file.transform[:6] == TRANSFORM
        assert file.profile['tiled']
        differing = (file.read(1) != expected['seg_map']).mean()
    # After scaling, values near a class's threshold may be one grey level apart.
    assert differing <= (0 if scale == 'native' else 5e-3)
    assert len(np.unique(expected['seg_map'])) > 2


def test_a_folder_has_the_map_as_tiff_and_resumes(scene, tmp_path):
    options = dict(read_limit=100, **BOUNDS)
    summary = run(LocalSegmentor(), [scene], tmp_path / 'out', inferencer=options)
    assert summary.predicted == 1 and not summary.failed
    (entry,) = json.loads((tmp_path / 'out/predictions.json').read_text())
    assert entry['seg_map'] == 'pred/scene.tif'
    (listed,) = json.loads((tmp_path / 'out/images.json').read_text())['images']
    assert listed['crs'] == 'EPSG:32633' and tuple(listed['transform']) == TRANSFORM
    written = snapshot(tmp_path / 'out')
    assert [name for name in sorted(written) if '/' in name] == ['pred/scene.tif', 'vis/scene.jpg']
    expected = tmp_path / 'in_memory'
    run(LocalSegmentor(), [scene], expected, inferencer=BOUNDS)
    assert written['vis/scene.jpg'] == (expected / 'vis/scene.jpg').read_bytes()
    again = LocalSegmentor()
    assert run(again, [scene], tmp_path / 'out', inferencer=options).found == 1
    assert not again.forwards
    assert snapshot(tmp_path / 'out') == written


def test_a_scene_read_as_a_whole_has_the_same_files(scene, tmp_path):
    for name, limit in (('windows', 100), ('whole', None)):
        options = dict(read_limit=limit, **BOUNDS)
        run(LocalSegmentor(), [scene], tmp_path / name, inferencer=options)
    assert snapshot(tmp_path / 'whole') == snapshot(tmp_path / 'windows')
    with rasterio.open(tmp_path / 'whole/pred/scene.tif') as file, rasterio.open(scene) as wanted:
        assert file.crs == wanted.crs and file.transform == wanted.transform
        assert file.shape == wanted.shape


@pytest.mark.parametrize('limit', [100, None])
@pytest.mark.parametrize('kind', ['nodata', 'mask', 'alpha', 'one band'])
def test_pixels_without_data_are_of_no_class(kind, limit, picture, tmp_path):
    bands = np.moveaxis(picture[..., ::-1], 2, 0).clip(1)
    missing = np.zeros(bands.shape[1:], bool)
    missing[50:130, 20:260] = True
    path, options = tmp_path / 'forêt d’hiver.tif', {}
    if kind in ('nodata', 'one band'):
        bands[: 1 if kind == 'one band' else 3, missing] = 0
        options['nodata'] = 0
    elif kind == 'alpha':
        bands = np.concatenate([bands, np.where(missing, 0, 255).astype(np.uint8)[None]])
        options |= dict(photometric='rgb', ALPHA='YES')
    write_tiff(path, bands, georeference=True, **options)
    if kind == 'mask':
        with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True), rasterio.open(path, 'r+') as file:
            file.write_mask(~missing)
    run(LocalSegmentor(), [path], tmp_path / 'out', inferencer=dict(read_limit=limit, **BOUNDS))
    with rasterio.open(tmp_path / f'out/pred/{path.stem}.tif') as file:
        found = file.read(1)
        assert file.nodata == 255
    wanted = missing & (kind != 'one band')
    np.testing.assert_array_equal(found == 255, wanted)
    assert found[~wanted].max() < 4
    if limit is None:
        prediction, drawn = Inferencer(predictor=LocalSegmentor(), **BOUNDS)(path, vis=True)
        np.testing.assert_array_equal(prediction['seg_map'], found)
        image = read_image(path)[..., ::-1]
        unchanged = (drawn[: len(image)] == image).all(axis=-1)  # without the legend
        assert unchanged[60:120, 100:250].all() == (kind != 'one band')


def test_a_damaged_file_leaves_no_map(scene, tmp_path):
    damaged = tmp_path / 'damaged.tif'
    content = scene.read_bytes()
    damaged.write_bytes(content[: len(content) // 3] + bytes(len(content) - len(content) // 3))
    options = dict(inferencer=dict(read_limit=100, **BOUNDS))
    summary = run(LocalSegmentor(), [damaged, scene], tmp_path / 'out', **options)
    assert summary.predicted == 1
    assert 'damaged' in summary.failed[str(damaged)]
    assert [file.name for file in (tmp_path / 'out/pred').iterdir()] == ['scene.tif']


@given(
    place=st.tuples(*[st.integers(0, 4)] * 4),
    size=st.tuples(*[st.integers(1, 9)] * 2),
    seed=st.integers(0, 99),
)
def test_encoded_masks_are_decoded_in_place(place, size, seed):
    top, left, below, beside = place
    mask = np.random.default_rng(seed).random(size) < 0.6
    whole = np.pad(mask, ((top, below), (left, beside)))
    height, width = whole.shape
    encoded = encode_mask(mask, top=top, left=left, height=height, width=width)
    np.testing.assert_array_equal(decode_mask(encoded, height=height, width=width), whole)
