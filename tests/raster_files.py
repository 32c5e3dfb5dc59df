"""Files of any bands and type of values."""

import warnings

import cv2
import numpy as np
import pytest

SIZE = 48, 64  # height, width, px
TRANSFORM = (10.0, 0.0, 500000.0, 0.0, -10.0, 5000000.0)


def write_raster(path, pixels, **options):
    """Write (H, W) or (H, W, bands) in the format of the suffix, with its own values.

    ``options`` are those of a TIFF.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == '.npy':
        np.save(path, pixels)
    elif path.suffix == '.tif':
        rasterio = pytest.importorskip('rasterio')
        bands = np.moveaxis(np.atleast_3d(pixels), 2, 0)
        options |= dict(zip(('count', 'height', 'width'), bands.shape, strict=True))
        with rasterio.open(path, 'w', driver='GTiff', dtype=bands.dtype, **options) as file:
            file.write(bands)
    else:
        order = {1: [0], 3: [2, 1, 0], 4: [2, 1, 0, 3]}[np.atleast_3d(pixels).shape[2]]
        assert cv2.imwrite(str(path), np.atleast_3d(pixels)[..., order])
    return path


def values(seed, dtype, bands):
    return np.random.default_rng(seed).integers(0, 250, (*SIZE, bands)).astype(dtype)


def write_tiff(path, bands, *, georeference=False, **layout):
    """Write (bands, H, W); tiled by default."""
    rasterio = pytest.importorskip('rasterio')
    place = dict(crs='EPSG:32633', transform=rasterio.Affine(*TRANSFORM)) if georeference else {}
    layout = dict(driver='GTiff', tiled=True, blockxsize=64, blockysize=64, compress='lzw') | layout
    size = dict(count=len(bands), height=bands.shape[1], width=bands.shape[2], dtype=bands.dtype)
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        with rasterio.open(path, 'w', **size, **layout, **place) as file:
            file.write(bands)
    return path
