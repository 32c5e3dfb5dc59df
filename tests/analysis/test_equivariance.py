"""Equivariance error: 0 for convolutions, large for absolute positions."""

import math

import numpy as np
import pytest
import torch
from PIL import Image
from tiny import COLUMN
from torch import nn

from cpvt.plots import draw_equivariance
from cpvt_backbones.analysis.equivariance import (
    EquivarianceRow,
    measure_equivariance,
    measure_invariance,
)
from tools.equivariance import ENCODINGS, build_untrained, synthetic_images


class Convolutions(nn.Module):
    """A patch embedding, a padded 3 x 3 convolution and an optional position table.

    The last of two maps. ``cut`` leaves its border out.
    """

    def __init__(self, *, table=0.0, cut=0):
        super().__init__()
        self.embed, self.conv = nn.Conv2d(3, 12, 8, stride=8), nn.Conv2d(12, 6, 3, padding=1)
        self.table = table * torch.randn(1, 6, 10, 10)
        self.inner = slice(cut, 10 - cut)

    def forward(self, images):
        patches = self.embed(images)
        maps = torch.randn_like(patches), self.conv(patches) + self.table
        return tuple(found[:, :, self.inner, self.inner] for found in maps)


@pytest.fixture(scope='module')
def images():
    return synthetic_images(3, 128)


def test_convolution_has_no_error_at_whole_patches(images):
    rows = measure_equivariance(Convolutions(), images, size=80, shifts=[0, 8, 40, 16])
    assert [row.shift for row in rows] == [0, 8, 40, 16]
    assert all(row.error < 1e-5 and row.spread < 1e-5 for row in rows)


def test_a_map_without_its_border_has_a_stride_of_its_own(images):
    unpadded = Convolutions(cut=1)
    rows = measure_equivariance(unpadded, images, size=80, shifts=[8, 16], stride=8)
    assert all(row.error < 1e-5 for row in rows)
    with pytest.raises(ValueError, match=r'shifts must leave cells to compare: 48 px'):
        measure_equivariance(unpadded, images, size=80, shifts=[48], stride=8)


def test_position_table_has_an_error(images):
    models = [Convolutions(table=std) for std in (0.01, 5.0)]
    small, large = (measure_equivariance(m, images, size=80, shifts=[8])[0] for m in models)
    assert 1e-3 < small.error < 0.2
    assert large.error == pytest.approx(math.sqrt(2), rel=0.2)  # unrelated tables


def test_error_of_a_ramp():
    """A map of column indices, independent of the image: a shift by one cell gives a difference of
    1 everywhere.
    """
    ramp = torch.arange(8.0).expand(1, 1, 8, 8)

    def model(crops):
        return (ramp + 0 * crops[:, :1, ::4, ::4],)

    (row,) = measure_equivariance(model, torch.zeros(2, 3, 36, 36), size=32, shifts=[4])
    error = pytest.approx(1 / np.std(np.arange(8)))
    assert row == EquivarianceRow(shift=4, error=error, spread=0.0)


def test_linear_maps_are_interpolated_between_patches():
    """Interpolation between cells is exact for features linear in position, not for noise."""
    pool = nn.AvgPool2d(4)

    def error(images, shift):
        return measure_equivariance(lambda x: (pool(x),), images, size=32, shifts=[shift])[0].error

    for shift in (1, 2, 3, 5, 7):
        assert error(torch.arange(64.0).expand(1, 3, 64, 64), shift) < 1e-5
    assert 0.3 < error(torch.randn(1, 3, 64, 64), 2) < 1.5


def test_spread_is_the_deviation_over_images(images):
    model = Convolutions(table=0.3)
    single = [measure_equivariance(model, image[None], size=80, shifts=[8])[0] for image in images]
    assert all(row.spread == 0 for row in single)
    (row,) = measure_equivariance(model, images, size=80, shifts=[8])
    errors = [row.error for row in single]
    assert row.error == pytest.approx(np.mean(errors))
    assert row.spread == pytest.approx(np.std(errors), rel=1e-3)


def test_errors_of_the_encodings():
    """Away from the border PEG is as equivariant as no encoding; tables are not."""
    error = {}
    for name in ENCODINGS:
        model = build_untrained(name, size=80, arch=COLUMN)
        rows = measure_equivariance(model, synthetic_images(3, 112), size=80, shifts=[16, 32])
        error[name] = np.array([row.error for row in rows])
    # Without encoding: content that entered and left the crop, through global attention.
    assert max(error['none']) < 0.1 and max(error['PEG']) < 0.1
    assert all(error['Learned'] > 5 * error['PEG']) and all(error['SinCos'] > 3 * error['PEG'])


def test_a_shift_of_a_periodic_image_by_its_period_changes_nothing_without_encoding():
    """All cells are equal, so the error would have no scale: the features are compared."""
    repeated = synthetic_images(2, 16).repeat(1, 1, 8, 8)
    crops = [repeated[:, :, s : s + 80, s : s + 80] for s in (0, 16)]
    with torch.no_grad():
        same, moved = (
            [build_untrained(name, size=80, arch=COLUMN)(crop)[-1] for crop in crops]
            for name in ('none', 'Learned')
        )
    assert torch.allclose(*same, atol=1e-5)
    assert (moved[0][..., 1:, 1:] - moved[1][..., :-1, :-1]).abs().mean() > 0.1


def test_pooled_vectors_ignore_the_place_of_an_object_unless_the_encoding_is_absolute():
    error = {}
    for name in ('none', 'PEG', 'PEG-0-5', 'SinCos', 'Learned'):
        model = build_untrained(name, size=176, arch=COLUMN)
        rows = measure_invariance(
            lambda images, model=model: model(images)[-1].mean(dim=(2, 3)),
            synthetic_images(3, 32),
            size=176,
            shifts=[0, 16, 32],  # not at the border of 11 tokens
        )
        error[name] = [row.error for row in rows]
    assert all(errors[0] == 0 for errors in error.values())
    # Sums in another order: float32 rounding of some 100 terms, relative to an effect that is not
    # small.
    assert max(error['none'] + error['PEG']) < 1e-4
    assert error['Learned'][1] > 0.1 and error['SinCos'][1] > 0.02
    assert all(error['PEG'][n] < error['PEG-0-5'][n] < error['Learned'][n] for n in (1, 2))


def test_invariance_is_relative_to_the_effect_of_the_object():
    def column_of_brightest(images):
        return images.mean(dim=1).amax(dim=1).argmax(dim=1, keepdim=True).float()

    spots = torch.zeros(2, 3, 5, 5)
    spots[:, :, 2, 2] = 1.0  # column 12 of 20, and of 0 without it
    (row,) = measure_invariance(column_of_brightest, spots, size=25, shifts=[6])
    assert row == EquivarianceRow(shift=6, error=6 / 12, spread=0.0)
    for shifts in ([], [-1], [11]):
        with pytest.raises(ValueError, match=r'shifts must be one or more px in \[0, 10\]'):
            measure_invariance(column_of_brightest, spots, size=25, shifts=shifts)


@pytest.mark.parametrize(
    ('size', 'shifts', 'message'),
    [
        (100, [32], 'images must be at least'),
        (80, [], 'shifts must be one or more'),
        (80, [-8], 'shifts must be one or more'),
        (84, [8], 'size must be a multiple of the stride'),
        (32, [24], 'shifts must leave cells to compare: 24 px'),
    ],
)
def test_wrong_arguments_are_refused(size, shifts, message, images):
    with pytest.raises(ValueError, match=message):
        measure_equivariance(lambda x: (x[:, :, ::8, ::8],), images, size=size, shifts=shifts)


def test_command_line(call, refused, trained, tmp_path):
    path, checkpoint = trained('mmpretrain')
    photo, out = tmp_path / 'photo.png', tmp_path / 'out.csv'
    noise = np.random.default_rng(0).integers(0, 255, (70, 90, 3), np.uint8)
    Image.fromarray(noise).save(photo)
    common = ['--models', f'trained={path}:{checkpoint}', '--size', 48, '--shifts', 0, 8, 11]
    call('equivariance', *common, '--out', out, '--images', photo)
    head, *lines = out.read_text().splitlines()
    assert head == 'model,size,shift,error,spread'
    assert [line.rsplit(',', 2)[0] for line in lines] == [f'trained,48,{s}' for s in (0, 8, 11)]
    drawn = out.with_suffix('.png').read_bytes()
    call('equivariance', '--out', out)
    assert out.with_suffix('.png').read_bytes() == drawn
    out.write_text(out.read_text().replace(lines[1], 'trained,48,8,3.0,0'))
    draw_equivariance(out, tmp_path / 'other.png')
    assert (tmp_path / 'other.png').read_bytes() != drawn
    call('equivariance', *common, '--out', out, '--object', 24)
    names = [line.split(',')[0] for line in out.read_text().splitlines()[1:]]
    assert names == [f'trained {what}' for what in ('pooled', 'prediction') for _ in range(3)]
    small = ['--encodings', 'none', '--images', photo]
    assert 'images must be at least' in refused('equivariance', *small)
    assert "invalid choice: 'CAPE'" in refused('equivariance', '--encodings', 'CAPE')
