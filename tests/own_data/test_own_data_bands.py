"""A user's images of other bands or more than 8 bits: the model sees the same in training,
prediction and exported files.

Reading such files: tests/images/test_value_range.py.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import shape_data
import tiny_configs
import torch
from raster_files import values, write_raster
from torch.nn.modules.module import register_module_forward_pre_hook

from cpvt_backbones import CPVT, MultiScaleCPVT
from cpvt_backbones.export import ExportedModel
from cpvt_backbones.images.value_range import ValueRange

pytestmark = pytest.mark.full


def bands_of(image, count):
    """Bands made of the colours of an RGB image, each another one."""
    rng = np.random.default_rng(0)
    mixed = image.astype(float) @ rng.dirichlet(np.ones(3), count).T
    return np.rint(mixed)


@pytest.fixture
def data(tmp_path, monkeypatch):
    """Arguments of make_config.py for each form: files of other bands, and RGB of 12 bits in 16."""
    monkeypatch.chdir(tmp_path)
    for split, count in (('train', 8), ('val', 4)):
        scenes = shape_data.make_split(0, split, count, objects=2)
        shape_data.class_maps(tmp_path / 'masks' / split, scenes)
        for suffix in ('png', 'tif'):
            file = shape_data.coco_json(tmp_path / f'{split}_{suffix}.json', scenes)
            text = file.read_text(encoding='utf-8').replace('.png', f'.{suffix}')
            file.write_text(text, encoding='utf-8')
        for scene in scenes:
            name = f'{split}/{scene.name}'
            label = f'{split}/{scene.labels[0]}/{scene.name}'
            for path, pixels in (
                (f'tiffs/{name}.tif', bands_of(scene.image, 4).astype(np.uint8)),
                (f'arrays/{name}.npy', bands_of(scene.image, 13).astype(np.float32) / 255),
                (f'grey/{label}.png', (bands_of(scene.image, 1) * 16).astype(np.uint16)),
                (f'deep/{name}.png', scene.image.astype(np.uint16) * 16),
                (f'photos/{label}.png', scene.image.astype(np.uint16) * 16),
            ):
                write_raster(Path(path), pixels)
    boxes = ['coco', 'train_tif.json', 'tiffs/train', '--val', 'val_tif.json', 'tiffs/val']
    deep = ['coco', 'train_png.json', 'deep/train', '--val', 'val_png.json', 'deep/val']
    return dict(
        coco=[*boxes, '--bands', 4, 1, 2, 3],
        masks=['masks', 'arrays', 'masks', '--bands', *range(1, 14), '--range', 0, 1],
        grey=['folders', 'grey', '--bands', 1, '--range', 0, 4095],
        photos=['folders', 'photos', '--range', 0, 4095],
        deep=deep,
    )


@pytest.fixture
def seen():
    """Images that backbones get, by whether they train: normalised, (C, H, W)."""
    images = {True: [], False: []}

    def record(module, args):
        if not isinstance(module, (CPVT, MultiScaleCPVT)):
            return
        if type(args[0]) is torch.Tensor:  # and not an exporter's
            images[module.training] += [image.numpy().copy() for image in args[0]]

    hook = register_module_forward_pre_hook(record)
    yield images
    hook.remove()


@pytest.fixture
def printed(capsys):
    """What was printed since, in one line."""
    return lambda: ' '.join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    'form, toolbox, channels, pictures',
    [
        ('coco', 'mmdet', 4, 'tiffs/val'),
        ('masks', 'mmseg', 13, 'arrays/val'),
        ('grey', 'mmpretrain', 1, 'grey/val/*/*.png'),
        ('photos', 'mmpretrain', 3, 'photos/val/*/*.png'),
    ],
)
def test_a_model_sees_the_same_in_training_and_prediction(
    data, seen, call, printed, form, toolbox, channels, pictures
):
    pytest.importorskip(toolbox)
    call('make_config', *data[form], '--out', 'bands.py', '--length', 1)
    text = printed()
    assert ('mean and standard deviation are those of the training images' in text) == (
        form != 'photos'
    )
    assert '16 bits' not in text
    call('train', 'bands.py', '--cfg-options', *tiny_configs.WORKERLESS)
    assert (f'fitted to {channels} channels, from 3' in printed()) == (channels != 3)
    assert {image.shape[0] for image in seen[True]} == {channels}
    trained = np.concatenate([image.reshape(channels, -1) for image in seen[True]], axis=1)
    # Normalised, each band; the upper 8 bits of 12 would be black.
    assert abs(trained).mean() < 2 and trained.std(axis=1).min() > 0.3
    validated = {image.tobytes() for image in seen[False]}
    seen[False].clear()
    unit = 'epoch' if toolbox == 'mmpretrain' else 'iter'
    checkpoint = f'work_dirs/bands/{unit}_1.pth'
    call('infer', 'bands.py', checkpoint, pictures, '--device', 'cpu', '--out-dir', 'out')
    predicted = {image.tobytes() for image in seen[False]}
    assert len(predicted) == 4 and predicted <= validated
    assert len([*Path('out/vis').iterdir()]) == 4


# -- a model of other bands
# --------------------------------------------------------------------------------------------------


@pytest.fixture
def small_model(tmp_path, monkeypatch):
    """A classifier of 13 bands and its config; a folder of two arrays, and a photograph."""
    pytest.importorskip('mmpretrain')
    monkeypatch.chdir(tmp_path)
    numbers = dict(low=0, high=1, dtype='float32', bands=[*range(13, 0, -1)])
    mean, std = np.linspace(90, 130, 13).tolist(), np.linspace(30, 60, 13).tolist()
    text = tiny_configs.CLASSIFIER.replace('{root}', 'images')
    for before, after in (
        ("dict(type='LoadImageFromFile')", f"dict(type='LoadRange', **{numbers})"),
        ("type='CPVT'", "type='CPVT', in_channels=13"),
        ('mean=[127.5] * 3, std=[127.5] * 3, to_rgb=True', f'mean={mean}, std={std}'),
    ):
        assert before in text
        text = text.replace(before, after)
    Path('small.py').write_text(text)
    tiny_configs.save(tiny_configs.lively_model('small.py'), tmp_path / 'small.pth')
    for seed in (1, 2):
        write_raster(Path(f'images/{seed}.npy'), values(seed, np.float32, 13) / 249)
    write_raster(Path('photo.png'), values(0, np.uint8, 3))
    return ['small.py', 'small.pth']


def test_an_exported_file_gets_the_pixels_that_the_model_gets(small_model, seen, call, monkeypatch):
    out = ['--device', 'cpu', '--no-vis', '--out-dir']
    call('infer', *small_model, 'images', *out, 'out')
    sizes = ['--verify-sizes', '17x33', '--verify-batches', 1, '--format', 'torch_export']
    call('export', *small_model, '--out', 'small.pt2', *sizes, '--verify-images', 'images')
    given = []

    def run(self, images, run=ExportedModel.run):
        mean, std = (
            np.array(self.metadata[key], np.float32)[:, None, None] for key in ('mean', 'std')
        )
        given.append(((images[0].astype(np.float32) - mean) / std).tobytes())
        return run(self, images)

    monkeypatch.setattr(ExportedModel, 'run', run)
    predicted = {image.tobytes() for image in seen[False]}
    call('infer', 'small.pt2', 'images', *out, 'exported')
    assert len({*given}) == 2 and {*given} <= predicted
    results = [Path(folder, 'predictions.json').read_text() for folder in ('out', 'exported')]
    scores = [[one['score'] for one in json.loads(text)] for text in results]
    np.testing.assert_allclose(*scores, atol=1e-5)


def test_photographs_are_refused_by_a_model_of_other_bands(small_model, call, printed):
    with pytest.raises(SystemExit):
        call('infer', *small_model, 'photo.png', '--out-dir', 'out')
    assert 'photo.png: band 13 is missing: the file has 3' in printed()


# -- the check of the data
# --------------------------------------------------------------------------------------------------

MAKE = ['--out', 'mine.py', '--overwrite']


@pytest.mark.parametrize(
    ('form', 'options', 'reason'),
    [
        ('coco', '--bands 1 1', 'bands must be 1 to 128 different numbers'),
        ('coco', '--bands 5', 'tiffs/train/train_0.tif (band 5 is missing: the file has 4)'),
        ('masks', '--bands 1 2', 'has values of float32: give --range LOW HIGH, too'),
        ('deep', '--range 4095 0', 'range must be two finite numbers, LOW below HIGH, got 4095.0'),
        ('deep', '--range 5000 9000', '--range 5000 9000: all values are outside, they are 0 to 4'),
    ],
)
def test_wrong_bands_and_ranges_are_refused(data, refused, form, options, reason):
    given = data[form]
    chosen = given[: given.index('--bands')] if '--bands' in given else given
    assert reason in refused('make_config', *chosen, *options.split(), *MAKE)
    assert not Path('mine.py').exists()


def test_a_constant_band_is_refused(data, refused):
    for path in Path('tiffs').rglob('*.tif'):
        pixels = np.zeros((shape_data.HEIGHT, shape_data.WIDTH, 2), np.uint8)
        pixels[..., 0] = np.random.default_rng(0).integers(0, 255, pixels.shape[:2])
        write_raster(path, pixels)
    found = refused('make_config', *data['coco'][:-4], 1, 2, *MAKE)
    assert 'band 2 has one value in the training images' in found


def test_a_file_of_another_type_is_refused_by_name(data, refused):
    file = write_raster(Path('deep/train/train_1.png'), np.zeros((72, 64), np.uint8))
    found = refused('make_config', *data['deep'], '--range', 0, 4095, *MAKE)
    assert f'{file} (values of uint8; the other images have uint16)' in ' '.join(found.split())


def test_mean_and_std_are_those_of_the_pixels_with_data(tmp_path):
    from cpvt_backbones.own_data import Split
    from cpvt_backbones.own_data.read.files import mean_and_std

    pixels = [values(seed, np.uint16, 5) * np.arange(1, 6, dtype=np.uint16) for seed in (1, 2)]
    images = []
    for number, array in enumerate(pixels):
        array[:20, 5:40] = 9999
        write_raster(tmp_path / f'{number}.tif', array, nodata=9999)
        images.append(dict(file_name=f'{number}.tif'))
    value_range = ValueRange(low=0, high=2550, dtype='uint16', bands=(5, 1, 3))
    found = mean_and_std(Split(dict(images=images), tmp_path, ''), value_range)
    for index, band in enumerate(value_range.bands):
        seen = np.concatenate([array[..., band - 1].ravel() for array in pixels])
        seen = np.rint(seen[seen != 9999] / 10)
        wanted = seen.mean(), seen.std()
        np.testing.assert_allclose([column[index] for column in found], wanted, rtol=1e-3)
