"""Finding and reading images: supported files and arrays, and errors that name the file and the
reason.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from bad_files import BAD, GOOD, picture, write_folder, write_huge_header
from PIL import EpsImagePlugin, Image, ImageFile

from cpvt_backbones.inference import IMAGE_SUFFIXES, ImageError, find_images, read_image
from cpvt_backbones.plain import READ_LIMIT


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp('reading') / 'images')


@pytest.mark.parametrize('name', BAD)
def test_a_bad_file_is_refused_with_its_reason(folder, name):
    with pytest.raises(ImageError) as refusal:
        read_image(folder / name)
    assert refusal.value.source == str(folder / name)
    assert refusal.value.reason.startswith(BAD[name])
    assert str(refusal.value) == f'{folder / name}: {refusal.value.reason}'


@pytest.mark.parametrize('name', GOOD)
def test_a_good_file_is_bgr_of_8_bits(folder, name):
    image = read_image(str(folder / name))
    assert image.shape == (*GOOD[name][::-1], 3)
    assert image.dtype == np.uint8 and image.flags.c_contiguous


@pytest.mark.parametrize(('name', 'tolerance'), [('photo.jpg', 6), ('cmyk.jpg', 12)])
def test_colours_are_kept(folder, name, tolerance):
    difference = np.abs(read_image(folder / name)[..., ::-1].astype(int) - picture())
    assert difference.max() <= tolerance


def test_transparent_pixels_are_blended_on_white(folder, tmp_path):
    """Of every kind of transparency, files and arrays."""
    rng = np.random.default_rng(0)
    rgba = rng.integers(0, 256, (30, 40, 4), np.uint8)
    rgba[0, :3] = [[9, 9, 9, 0], [9, 9, 9, 255], [0, 0, 0, 128]]
    share = rgba[..., 3:] / 255
    wanted = np.rint(rgba[..., 2::-1] * share + 255 * (1 - share))
    image = Image.fromarray(rgba)
    for kind, name in (('RGBA', 'a.png'), ('RGBA', 'a.tif'), ('RGBA', 'a.webp'), ('LA', 'b.png')):
        image.convert(kind).save(tmp_path / name, lossless=True)
        found = read_image(tmp_path / name)
        assert found[0, :3, 0].tolist() == [255, 9, 127], name
        if kind == 'RGBA':
            assert np.abs(found - wanted).max() <= 1, name
    assert np.abs(read_image(np.dstack((rgba[..., 2::-1], rgba[..., 3]))) - wanted).max() <= 1
    one = Image.fromarray(np.array([[0, 1]], np.uint8))
    one.putpalette([10, 20, 30, 40, 50, 60])
    one.save(tmp_path / 'p.png', transparency=1)
    assert read_image(tmp_path / 'p.png').tolist() == [[[30, 20, 10], [255, 255, 255]]]
    key = Image.fromarray(np.array([[[1, 2, 3], [4, 5, 6]]], np.uint8))
    key.save(tmp_path / 'key.png', transparency=(4, 5, 6))
    assert read_image(tmp_path / 'key.png').tolist() == [[[3, 2, 1], [255, 255, 255]]]


def test_exif_orientation_is_applied(folder):
    # Orientation 6: the file's first row is the upright image's right side.
    upright = np.rot90(read_image(folder / 'photo.jpg'), -1).astype(int)
    assert np.abs(read_image(folder / 'turned.jpg') - upright).max() <= 6


@pytest.mark.parametrize('orientation', range(1, 9))
@pytest.mark.parametrize('kind', ['L', 'I;16', 'RGB', 'CMYK', 'P'])
def test_exif_orientation_of_a_tiff_that_is_not_compressed(tmp_path, kind, orientation):
    """The same as of a compressed one."""
    values = np.random.default_rng(0).integers(0, 256, (4, 6, 3), dtype=np.uint8)
    image = Image.fromarray(values[..., 0] * np.uint16(257))
    if kind != 'I;16':
        image = Image.fromarray(values).convert(kind)
    exif = Image.Exif()
    exif[0x0112] = orientation
    for name, compression in (('plain', None), ('packed', 'tiff_lzw')):
        image.save(tmp_path / f'{name}.tif', compression=compression, exif=exif)
    plain, packed = (read_image(tmp_path / f'{name}.tif') for name in ('plain', 'packed'))
    assert plain.shape == ((4, 6, 3) if orientation < 5 else (6, 4, 3))
    assert np.array_equal(plain, packed)


def test_first_frame_of_an_animation(folder):
    assert (read_image(folder / 'animated.gif') == (252, 3, 60)).all()


def test_16_bits_keep_their_range(folder, tmp_path):
    values = np.arange(1200).reshape(30, 40) * 54
    expected = np.round(values / 257).astype(np.uint8)
    three = np.repeat(expected[..., None], 3, axis=2)
    np.testing.assert_array_equal(read_image(folder / 'grey_16.png'), three)
    for grey in (expected, expected[..., None]):  # arrays of 8 bits, too
        np.testing.assert_array_equal(read_image(grey), three)
    (tmp_path / 'grey_16.pgm').write_bytes(b'P5 40 30 65535\n' + values.astype('>u2').tobytes())
    np.testing.assert_array_equal(read_image(tmp_path / 'grey_16.pgm')[..., 1], expected)
    assert READ_LIMIT == 2 * Image.MAX_IMAGE_PIXELS
    array = np.array([[0, 128, 129, 257, 65535]], np.uint16)
    assert read_image(array)[0, :, 0].tolist() == [0, 0, 1, 1, 255]
    assert read_image(array.astype('>u2'))[0, :, 2].tolist() == [0, 0, 1, 1, 255]
    assert read_image(np.matrix([[7, 9]], np.uint8)).tolist() == [[[7] * 3, [9] * 3]]


@pytest.mark.parametrize(
    ('array', 'reason'),
    [
        (np.full((4, 4, 3), np.nan), 'uint8 and uint16 are accepted, got float64 with NaN in it'),
        (np.zeros((4, 4, 3), np.float32), r'got float32; \(255 \* array\)\.round\(\)\.astype'),
        (np.zeros((4, 4), np.int64), 'uint8 and uint16 are accepted, got int64'),
        (np.zeros((0, 4, 3), np.uint8), r'no pixels: the shape is \(0, 4, 3\)'),
        (
            np.zeros((3, 40, 50), np.uint8),
            r'shapes \(H, W\) and \(H, W, 1 or 3 or 4\) are accepted, got \(3, 40, 50\)',
        ),
        (np.zeros(4, np.uint8), r'got \(4,\)'),
        (None, 'a path or a numpy array is accepted, got NoneType'),
        (
            Image.new('RGB', (4, 4)),
            r"got Image; np\.asarray\(image\.convert\('RGB'\)\)",
        ),
    ],
)
def test_a_bad_array_is_refused_with_its_reason(array, reason):
    with pytest.raises(ImageError, match=f'^array 3: .*{reason}'):
        read_image(array, name='array 3')


@pytest.mark.parametrize('url', ['https://example.org/a.jpg', 's3://bucket/a.jpg', 'file:///a.jpg'])
def test_a_url_is_refused(url):
    words = 'URLs are not fetched; download the file and give its path'
    calls = (read_image, url), (read_image, Path(url)), (find_images, url), (find_images, [url])
    for call, source in calls:
        with pytest.raises(ImageError, match=words):
            call(source)


def test_paths_that_are_no_files_are_refused(tmp_path):
    os.mkfifo(tmp_path / 'pipe.png')
    for path, words in (
        (tmp_path / 'none.png', 'there is no such file'),
        (tmp_path / 'pipe.png', 'not a regular file'),
        ('a\0b.png', 'null'),
    ):
        with pytest.raises(ImageError, match=words):
            read_image(path)


def test_read_limit_replaces_pillows_limit(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(Image, 'MAX_IMAGE_PIXELS', 10)
    with ThreadPoolExecutor(4) as threads:
        shapes = list(threads.map(lambda _: read_image(folder / 'photo.jpg').shape, range(80)))
    assert set(shapes) == {(30, 40, 3)}
    assert Image.MAX_IMAGE_PIXELS == 10, "other users' setting is theirs"
    assert read_image(folder / 'photo.jpg', read_limit=1200).shape == (30, 40, 3)
    with pytest.raises(ImageError, match='40 x 30 is 1200 pixels, more than read_limit=1199'):
        read_image(folder / 'photo.jpg', read_limit=1199)
    # Refused by the header, before memory for the pixels is allocated.
    bomb = write_huge_header(tmp_path / 'bomb.png')
    for options, limit in ((dict(read_limit=500_000_000), 500_000_000), ({}, READ_LIMIT)):
        words = f'30000 x 30000 is 900000000 pixels, more than read_limit={limit}; .* 6.3 GB'
        with pytest.raises(ImageError, match=words):
            read_image(bomb, **options)


def test_only_decoders_of_the_documented_formats_are_reached(tmp_path, monkeypatch):
    """Pillow opens PostScript with Ghostscript, independent of the suffix."""
    started = []
    monkeypatch.setattr(EpsImagePlugin, 'Ghostscript', lambda *args, **kwargs: started.append(args))
    header = '%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n'
    (tmp_path / 'x.png').write_text(header)
    with Image.open(tmp_path / 'x.png') as opened:
        assert opened.format == 'EPS'
    Image.new('RGB', (8, 8)).save(tmp_path / 'y.png', format='TGA')
    for name in ('x.png', 'y.png'):
        with pytest.raises(ImageError, match=r'accepted format \(BMP, GIF, JPEG, PNG, PPM, TIFF'):
            read_image(tmp_path / name)
    assert not started


@pytest.mark.parametrize('suffix', IMAGE_SUFFIXES)
def test_every_listed_suffix_has_a_decoder(tmp_path, suffix):
    picture_file = tmp_path / f'image{suffix}'
    Image.fromarray(picture()[..., 0] if suffix == '.pgm' else picture()).save(picture_file)
    assert read_image(picture_file).shape == (30, 40, 3)


def test_first_image_of_a_multi_picture_jpeg(tmp_path):
    """Written by phones; a separate format in Pillow."""
    first, second = Image.new('RGB', (9, 7), (200, 0, 0)), Image.new('RGB', (9, 7))
    first.save(tmp_path / 'phone.jpg', format='MPO', save_all=True, append_images=[second])
    assert abs(int(read_image(tmp_path / 'phone.jpg')[0, 0, 2]) - 200) < 5


def test_truncated_files_are_refused_whatever_else_is_set(folder, monkeypatch):
    monkeypatch.setattr(ImageFile, 'LOAD_TRUNCATED_IMAGES', True)
    with pytest.raises(ImageError, match='truncated'):
        read_image(folder / 'truncated.jpg')
    assert ImageFile.LOAD_TRUNCATED_IMAGES


def test_an_image_larger_than_a_band(tmp_path):
    """Pixels are copied in bands of rows."""
    image = np.random.default_rng(0).integers(0, 255, (1500, 3001, 3), np.uint8)
    Image.fromarray(image[..., ::-1]).save(tmp_path / 'large.bmp')
    np.testing.assert_array_equal(read_image(tmp_path / 'large.bmp'), image)


def test_folders_patterns_and_lists(folder, tmp_path):
    (folder / 'notes.txt').write_text('no image')
    assert [image.name for image in find_images(folder)] == sorted([*BAD, *GOOD])
    deep = tmp_path / 'a' / 'b'
    deep.mkdir(parents=True)
    for name in ('a/1.png', 'a/b/2.PNG', 'a/b/3.jpg', 'a/[x].png'):
        Image.new('L', (2, 2)).save(tmp_path / name)
    array = np.zeros((2, 2), np.uint8)
    found = find_images(
        [tmp_path / 'a/*.png', array, str(tmp_path / '**/*.*'), tmp_path / 'a/[x].png']
    )
    assert found[2] is array
    names = [image.name for image in found if image is not array]
    assert names == ['1.png', '[x].png', '1.png', '[x].png', '2.PNG', '3.jpg', '[x].png']
    assert find_images(folder / 'dangling.png') == [folder / 'dangling.png']
    for nothing, words in (
        (tmp_path / 'none.png', 'there is no file or folder'),
        (tmp_path / '*.gif', 'no image .* matches'),
        (tmp_path, 'no image .* in folder'),
    ):
        with pytest.raises(FileNotFoundError, match=words):
            find_images([folder, nothing])


def test_a_pattern_enters_each_folder_once(tmp_path):
    """Links to the folder itself, to one above, between two folders, and to one elsewhere."""
    elsewhere = tmp_path / 'elsewhere'
    for folder in (tmp_path / 'in/a/b', tmp_path / 'in/c', tmp_path / 'in/.hidden', elsewhere):
        folder.mkdir(parents=True)
        Image.new('L', (3, 2)).save(folder / 'x.png')
    for link, target in (
        ('a/self', '.'),
        ('a/again', '.'),
        ('a/b/up', '../..'),
        ('c/to_a', '../a'),
        ('out', elsewhere),
    ):
        (tmp_path / 'in' / link).symlink_to(target)
    expected = [tmp_path / 'in' / name for name in ('a/b/x.png', 'c/x.png', 'out/x.png')]
    assert find_images(str(tmp_path / 'in/**/*.png')) == expected
    assert find_images(str(tmp_path / 'in/**')) == expected
    assert find_images(str(tmp_path / '**/b/*.png')) == expected[:1]
    (tmp_path / 'in/out_again').symlink_to(elsewhere)
    assert len(find_images(str(tmp_path / 'in/**/*.png'))) == 3
