"""Images with other bands than RGB: training, prediction and exported files see the same."""

import json
import re
from pathlib import Path

import cv2
import numpy as np
import pytest
import shape_data
import tiny_configs
import torch
from mmengine.registry import MODELS
from torch.nn.modules.module import register_module_forward_pre_hook

from cpvt_backbones import CPVT, MultiScaleCPVT
from cpvt_backbones.engine import LoadRange
from cpvt_backbones.export import ExportedModel
from cpvt_backbones.inference import ImageError
from cpvt_backbones.inference.drawing import make_preview
from cpvt_backbones.inference.sizes import resize
from cpvt_backbones.inference.windows import open_image
from cpvt_backbones.toolboxes import read_config
from cpvt_backbones.value_range import ValueRange

SIZE = 48, 64  # height, width, px
ONE_PROCESS = [
    f'{part}_dataloader.{option}'
    for part in ('train', 'val')
    for option in ('num_workers=0', 'persistent_workers=False')
]


def save(path, pixels, **options):
    """Write (H, W) or (H, W, bands) in the format of the suffix, with its own values."""
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
    path = save(tmp_path / f'a{suffix}', pixels)
    numbers = dict(low=0, high=255, dtype=np.dtype(dtype).name, bands=bands)
    order = bands[::-1] if len(bands) == 3 else bands  # three are BGR
    trained = LoadRange(**numbers)(dict(img_path=str(path)))
    wanted = pixels[..., [band - 1 for band in order]].astype(np.uint8)
    np.testing.assert_array_equal(trained['img'], wanted)
    value_range = ValueRange(**numbers)
    for source in (path, pixels):  # arrays have all bands of the file
        read = open_image(source, name='a', value_range=value_range)
        np.testing.assert_array_equal(read, trained['img'])
    if suffix == '.tif':
        windows = open_image(path, name='a', read_limit=100, value_range=value_range)
        np.testing.assert_array_equal(windows[2:9, 5:20], wanted[2:9, 5:20])
        assert resize(windows, (32, 24))[:24, :32].shape == (24, 32, len(bands))
    assert resize(read, (32, 24)).shape == (24, 32, len(bands))


@pytest.mark.parametrize(
    'shape, reason',
    [
        ((*SIZE, 3), 'band 4 is missing: the file has 3'),
        ((13, 40, 40), '(H, W, bands) is accepted, got (13, 40, 40): move the axis'),
    ],
)
def test_files_without_a_band_are_refused_by_name(tmp_path, shape, reason):
    path = save(tmp_path / 'a.npy', np.zeros(shape, np.uint8))
    numbers = dict(low=0, high=255, dtype='uint8', bands=(4, 2))
    with pytest.raises(ValueError, match=re.escape(f'{path}: {reason}')):
        LoadRange(**numbers)(dict(img_path=str(path)))
    with pytest.raises(ImageError, match=re.escape(reason)):
        open_image(path, name='a', value_range=ValueRange(**numbers))


@pytest.mark.parametrize('bands', [(), (0, 1), (2, 2), (1.0,), tuple(range(1, 130))])
def test_bands_are_checked(bands):
    with pytest.raises(ValueError, match='bands must be 1 to 128 different numbers'):
        ValueRange(low=0, high=255, dtype='uint8', bands=bands)


@pytest.mark.parametrize('channels, shown', [(1, (0, 0, 0)), (2, (0, 0, 0)), (13, (0, 1, 2))])
def test_a_picture_shows_the_first_three_bands(channels, shown):
    pixels = values(0, np.uint8, channels)
    np.testing.assert_array_equal(make_preview(pixels), pixels[..., list(shown)])


# -- from files to predictions
# --------------------------------------------------------------------------------------------------


def bands_of(image, count):
    """Bands made of the colours of an RGB image, each another one."""
    rng = np.random.default_rng(0)
    mixed = image.astype(float) @ rng.dirichlet(np.ones(3), count).T
    return np.rint(mixed)


@pytest.fixture
def data(tmp_path, monkeypatch):
    """Arguments of make_config.py for each form, of files of other bands."""
    monkeypatch.chdir(tmp_path)
    for split, count in (('train', 8), ('val', 4)):
        scenes = shape_data.make_split(0, split, count, objects=2)
        shape_data.class_maps(tmp_path / 'masks' / split, scenes)
        file = shape_data.coco_json(tmp_path / f'{split}.json', scenes)
        file.write_text(file.read_text(encoding='utf-8').replace('.png', '.tif'), encoding='utf-8')
        for scene in scenes:
            name, label = f'{split}/{scene.name}', scene.labels[0]
            save(Path(f'tiffs/{name}.tif'), bands_of(scene.image, 4).astype(np.uint8))
            save(Path(f'arrays/{name}.npy'), bands_of(scene.image, 13).astype(np.float32) / 255)
            deep = (bands_of(scene.image, 1) * 16).astype(np.uint16)
            save(Path(f'photos/{split}/{label}/{scene.name}.png'), deep)
    pictures = ['tiffs/train', '--val', 'val.json', 'tiffs/val']
    everything = [*range(1, 14)]
    return dict(
        coco=['coco', 'train.json', *pictures, '--bands', 4, 1, 2, 3],
        masks=['masks', 'arrays', 'masks', '--bands', *everything, '--range', 0, 1],
        folders=['folders', 'photos', '--bands', 1, '--range', 0, 4095],
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


@pytest.mark.parametrize(
    'form, toolbox, channels, pictures',
    [
        ('coco', 'mmdet', 4, 'tiffs/val'),
        ('masks', 'mmseg', 13, 'arrays/val'),
        ('folders', 'mmpretrain', 1, 'photos/val/*/*.png'),
    ],
)
def test_a_model_sees_the_same_in_training_and_prediction(
    data, seen, call, capsys, form, toolbox, channels, pictures
):
    pytest.importorskip(toolbox)
    call('make_config', *data[form], '--out', 'bands.py', '--length', 1)
    assert 'mean and standard deviation are of the training images' in capsys.readouterr().out
    call('train', 'bands.py', '--cfg-options', *ONE_PROCESS)
    assert f'fitted to {channels} channels, from 3' in capsys.readouterr().out
    assert {image.shape[0] for image in seen[True]} == {channels}
    trained = np.concatenate([image.reshape(channels, -1) for image in seen[True]], axis=1)
    assert abs(trained).mean() < 2 and trained.std(axis=1).min() > 0.3  # normalised, each band
    validated = {image.tobytes() for image in seen[False]}
    seen[False].clear()
    unit = 'epoch' if form == 'folders' else 'iter'
    checkpoint = f'work_dirs/bands/{unit}_1.pth'
    out = ['--device', 'cpu', '--out-dir']
    call('infer', 'bands.py', checkpoint, pictures, *out, 'out')
    predicted = {image.tobytes() for image in seen[False]}
    assert len(predicted) == 4 and predicted <= validated
    assert len([*Path('out/vis').iterdir()]) == 4


@pytest.fixture
def small_model(tmp_path, monkeypatch):
    """A classifier of 13 bands and its config; a folder of two arrays."""
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
        save(Path(f'images/{seed}.npy'), values(seed, np.float32, 13) / 249)
    return ['small.py', 'small.pth']


def test_an_exported_file_gets_the_pixels_that_the_model_gets(small_model, seen, call, monkeypatch):
    out = ['--device', 'cpu', '--no-vis', '--out-dir']
    call('infer', *small_model, 'images', *out, 'out')
    sizes = ['--verify-sizes', '17x33', '--verify-batches', 1, '--format', 'torch_export']
    call('export', *small_model, '--out', 'small.pt2', *sizes, '--verify-images', 'images')
    given = []

    def run(self, images, run=ExportedModel.run):
        given.append(_normalised(self.metadata, images[0]).tobytes())
        return run(self, images)

    monkeypatch.setattr(ExportedModel, 'run', run)
    predicted = {image.tobytes() for image in seen[False]}
    call('infer', 'small.pt2', 'images', *out, 'exported')
    assert len({*given}) == 2 and {*given} <= predicted
    results = [Path(folder, 'predictions.json').read_text() for folder in ('out', 'exported')]
    scores = [[one['score'] for one in json.loads(text)] for text in results]
    np.testing.assert_allclose(*scores, atol=1e-5)


def _normalised(metadata, pixels):
    """What the file computes from pixels (C, H, W)."""
    mean, std = (np.array(metadata[key], np.float32)[:, None, None] for key in ('mean', 'std'))
    return (pixels.astype(np.float32) - mean) / std


def test_photographs_are_refused_by_a_model_of_other_bands(small_model, call, capsys):
    photo = save(Path('photo.jpg'), values(0, np.uint8, 3))
    with pytest.raises(SystemExit):
        call('infer', *small_model, photo, '--out-dir', 'out')
    assert 'photo.jpg: band 13 is missing: the file has 3' in capsys.readouterr().out


def test_tools_that_show_rgb_features_refuse_other_images(small_model, refused):
    photo = save(Path('photo.png'), values(0, np.uint8, 3))
    assert 'cfg reads images by LoadRange' in refused('feature_maps', *small_model, photo)
    assert 'cfg reads images by LoadRange' in refused('attention_maps', *small_model, photo)


def test_the_page_refuses_models_of_other_images(small_model):
    for package in ('skimage', 'sklearn'):
        pytest.importorskip(package)
    from app_views import Model

    model = Model('small', read_config(small_model[0]), small_model[1], 'cpu')
    with pytest.raises(ValueError, match='the page takes RGB images of 8 bits; small reads others'):
        model.predictor  # noqa: B018, loads


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


def test_wrong_bands_are_refused(data, call, capsys):
    def refused(*arguments):
        with pytest.raises(SystemExit) as stop:
            call('make_config', *arguments, '--out', 'bands.py')
        assert stop.value.code == 2
        found = capsys.readouterr()
        return ' '.join((found.out + found.err).split())

    coco = data['coco'][:-5]
    assert 'bands must be 1 to 128 different numbers' in refused(*coco, '--bands', 1, 1)
    found = refused(*coco, '--bands', 5)
    assert 'tiffs/train/train_0.tif (band 5 is missing: the file has 4)' in found
    assert 'has values of float32: give --range LOW HIGH, too' in refused(*data['masks'][:-3])


@pytest.mark.parametrize(
    'dtype, count, options, fault',
    [
        (np.uint8, 4, dict(photometric='RGB'), '4 bands of uint8: give --bands with numbers from'),
        (np.uint16, 4, dict(photometric='RGB'), '4 bands of uint16: give --range LOW HIGH and --b'),
        (np.uint16, 13, {}, '13 bands of uint16: give --range LOW HIGH and --bands with'),
        (np.uint8, 2, {}, '2 bands of uint8: give --bands'),
        (np.float32, 1, {}, 'give --range LOW HIGH'),
        (np.float32, 3, {}, '3 bands of float32: give --range LOW HIGH'),
        (np.int16, 1, {}, 'give --range LOW HIGH'),
        (np.uint8, 3, dict(photometric='RGB'), ''),
        (np.uint16, 1, {}, ''),
    ],
)
@pytest.mark.parametrize('decode', [False, True])
def test_a_tiff_of_other_bands_names_the_options(tmp_path, dtype, count, options, fault, decode):
    from own_data.images import inspect_image

    path = save(tmp_path / 'a.tif', values(0, dtype, count), **options)
    found = inspect_image(path, decode=decode).fault
    assert fault in found and bool(fault) == bool(found)


@pytest.mark.parametrize('opacity', [255, 254])
def test_transparent_pixels_are_noted(data, call, capsys, opacity):
    for path in Path('tiffs').rglob('*.tif'):
        pixels = np.full((shape_data.HEIGHT, shape_data.WIDTH, 4), 255, np.uint8)
        pixels[3, 5, 3] = opacity
        save(path, pixels, photometric='RGB', ALPHA='YES')
    call('make_config', *data['coco'][:-5], '--out', 'bands.py')
    text = ' '.join(capsys.readouterr().out.split())
    noted = '12 transparent pixels: training sees their colour, prediction white' in text
    assert noted == (opacity < 255)


def test_yolo_labels_of_images_of_other_bands(data, call, capsys):
    for number in range(10):
        save(Path(f'yolo/images/{number}.npy'), values(number, np.uint8, 5))
        Path('yolo/labels').mkdir(exist_ok=True)
        Path(f'yolo/labels/{number}.txt').write_text('0 0.5 0.25 0.5 0.25')
    Path('yolo/classes.txt').write_text('thing')
    call('make_config', 'yolo', 'yolo', '--bands', 5, 1, '--out', 'bands.py')
    (box, *_) = json.loads(Path('bands/train.json').read_text())['annotations']
    assert box['bbox'] == [16, 6, 32, 12]  # of 64 x 48 px
    assert 'used           8 training objects' in capsys.readouterr().out


def test_mean_and_std_are_those_of_the_pixels_with_data(tmp_path):
    from own_data import Part, mean_and_std

    pixels = [values(seed, np.uint16, 5) * np.arange(1, 6, dtype=np.uint16) for seed in (1, 2)]
    images = []
    for number, array in enumerate(pixels):
        array[:20, 5:40] = 9999
        save(tmp_path / f'{number}.tif', array, nodata=9999)
        images.append(dict(file_name=f'{number}.tif'))
    value_range = ValueRange(low=0, high=2550, dtype='uint16', bands=(5, 1, 3))
    found = mean_and_std(Part(dict(images=images), tmp_path, ''), value_range)
    for index, band in enumerate(value_range.bands):
        seen = np.concatenate([array[..., band - 1].ravel() for array in pixels])
        seen = np.rint(seen[seen != 9999] / 10)
        wanted = seen.mean(), seen.std()
        np.testing.assert_allclose([column[index] for column in found], wanted, rtol=1e-3)


def test_a_constant_band_is_refused(data, refused):
    for path in Path('tiffs').rglob('*.tif'):
        pixels = np.zeros((shape_data.HEIGHT, shape_data.WIDTH, 2), np.uint8)
        pixels[..., 0] = np.random.default_rng(0).integers(0, 255, pixels.shape[:2])
        save(path, pixels)
    found = refused('make_config', *data['coco'][:-4], 1, 2, '--out', 'bands.py')
    assert 'band 2 has one value in the training images' in found
