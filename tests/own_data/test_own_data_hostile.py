"""Labels and images that cost too much or break readers: each is refused in one line."""

import json
import os
import struct
import zlib

import pytest
from own_data_sets import CocoSet, MaskSet, YoloSet, class_folders, has, photo, voc_pair

DEEP = '[' * 200_000 + ']' * 200_000
FAR = [0, 0, 1e9, 0, 1e9, 1e9, 0, 1e9]


def change_coco(coco, change):
    """A COCO file whose first image, object and category are changed."""
    change(coco.images[0], coco.annotations[0], coco.categories[0])
    return coco


CASES = {
    'a far polygon': (
        lambda image, one, kind: one.update(segmentation=[FAR]),
        'polygons of points more than 10 image sides away',
    ),
    'a polygon far to the left': (
        lambda image, one, kind: one.update(segmentation=[[-2e7, 5, 40, 5, 40, 30]]),
        'polygons of points more than 10 image sides away',
    ),
    'a box of a large number': (
        lambda image, one, kind: one.update(bbox=[1, 2, 10**400, 9]),
        'bbox is not four finite numbers',
    ),
    'a name of megabytes': (
        lambda image, one, kind: image.update(file_name='x' * 5_000_000),
        'file names that are not paths ... 5000000 bytes long',
    ),
    'a surrogate in a name': (
        lambda image, one, kind: image.update(file_name='\ud83d.png'),
        'file names that are not paths ... invalid Unicode',
    ),
    'a zero byte in a name': (
        lambda image, one, kind: image.update(file_name='0\0.png'),
        'file names that are not paths ... zero byte',
    ),
    'a class of megabytes': (
        lambda image, one, kind: kind.update(name='x' * 5_000_000),
        'class names of more than 200 characters',
    ),
    'a class with a surrogate': (
        lambda image, one, kind: kind.update(name='a\udcff'),
        'class names with line breaks, control characters or invalid Unicode',
    ),
    'a class with a line break': (
        lambda image, one, kind: kind.update(name='a\nused 9 images'),
        'class names with line breaks, control characters or invalid Unicode',
    ),
    'a size of an image that overflows': (
        lambda image, one, kind: image.update(width=10**400),
        'width and height',
    ),
}


@pytest.mark.parametrize('case', CASES)
@pytest.mark.parametrize('form', ['coco', pytest.param('instances', marks=pytest.mark.full)])
def test_values_of_coco(case, form, coco, refuse):
    change, words = CASES[case]
    coco.add_outlines()
    line = refuse(*change_coco(coco, change).arguments(form))
    assert has(line, words) and len(line) < 5000


@pytest.mark.parametrize(
    ('text', 'words'),
    [
        (f'{{"images": {DEEP}}}', 'nested too deep'),
        (f'{{"images": [{"9" * 5000}]}}', 'is not JSON: Exceeds the limit'),
        ('{"a": ' * 100_000 + '1' + '}' * 100_000, 'nested too deep'),
    ],
)
@pytest.mark.parametrize('form', [['coco'], []])
def test_texts_of_coco(text, words, form, coco, refuse, tmp_path):
    coco.write().write_text(text)
    assert words in refuse(*form, tmp_path / 'all.json', coco.photos)


ALIASES = 'a0: &a0 [x, x]\n' + ''.join(
    f'a{i + 1}: &a{i + 1} [{", ".join([f"*a{i}"] * 9)}]\n' for i in range(9)
)


@pytest.mark.parametrize(
    ('text', 'words'),
    [
        (f'{ALIASES}names: *a9\n', 'aliases'),
        (f'names: {DEEP}\n', 'nested too deep'),
        ('names: !!python/object/apply:os.system [touch ran]\n', 'classes outside 0 to 0'),
    ],
)
def test_texts_of_yolo(text, words, yolo, refuse, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (yolo.folder / 'data.yaml').write_text(f'train: images/train\nval: images/val\n{text}')
    assert words in refuse('yolo', yolo.folder)
    assert not (tmp_path / 'ran').exists()


@pytest.mark.parametrize('size', ['inf', '-inf', 'nan', '1e400', '9' * 5000])
def test_sizes_of_voc(size, voc, refuse):
    voc_pair(voc, 3, width=size)
    assert has(refuse('voc', voc), 'refused ... sizes that are not numbers ... 3.xml')


def png_of(width, height):
    """A PNG of a kilobyte whose header has this size."""

    def chunk(kind, content):
        checksum = struct.pack('>I', zlib.crc32(kind + content))
        return struct.pack('>I', len(content)) + kind + content + checksum

    header = struct.pack('>IIBBBBB', width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(b'\0' * 100_000)
    signature = b'\x89PNG\r\n\x1a\n'
    return signature + chunk(b'IHDR', header) + chunk(b'IDAT', pixels) + chunk(b'IEND', b'')


def jpeg_of(tmp_path, width, height):
    photo(tmp_path / 'small.jpg')
    content = bytearray((tmp_path / 'small.jpg').read_bytes())
    start = content.index(b'\xff\xc0') + 5
    content[start : start + 4] = struct.pack('>HH', height, width)
    return bytes(content)


@pytest.mark.parametrize('form', ['coco', 'folders', 'masks', 'yolo', 'voc', 'a mask'])
def test_images_that_do_not_fit_into_memory(form, refuse, tmp_path, request):
    """Known by their headers: nothing is decoded."""
    png = png_of(60_000, 60_000)
    if form == 'folders':
        target = class_folders(tmp_path / 'photos') / 'cat/cat0.png'
        arguments = ['folders', tmp_path / 'photos']
    elif form in ('masks', 'a mask'):
        masks = MaskSet(tmp_path)
        target = (masks.images if form == 'masks' else masks.masks) / '0.png'
        arguments = masks.arguments
    elif form == 'yolo':
        target = YoloSet(tmp_path).folder / 'images/train/train0.png'
        arguments = ['yolo', tmp_path / 'yolo']
    elif form == 'voc':
        arguments = ['voc', request.getfixturevalue('voc')]
        target = tmp_path / 'voc/JPEGImages/0.png'
    else:
        coco = CocoSet(tmp_path)
        del coco.images[0]['width']
        arguments, target = coco.arguments(), coco.photos / '0.png'
        png = jpeg_of(tmp_path, 65_535, 65_535)
    target.write_bytes(png)
    line = refuse(*arguments)
    assert has(line, 'of memory to decode'), line


@pytest.mark.parametrize('where', ['image', 'mask', 'yolo label', 'coco', 'class image'])
@pytest.mark.timeout(60)
def test_pipes_are_not_read(where, refuse, tmp_path):
    """They would wait for ever."""
    if where in ('image', 'mask'):
        masks = MaskSet(tmp_path)
        path, arguments = getattr(masks, f'{where}s') / '0.png', masks.arguments
    elif where == 'yolo label':
        path, arguments = YoloSet(tmp_path).folder / 'labels/train/train0.txt', None
        arguments = ['yolo', tmp_path / 'yolo']
    elif where == 'coco':
        arguments = CocoSet(tmp_path).arguments()
        path = arguments[1]
    else:
        path = class_folders(tmp_path / 'photos') / 'dog/dog0.png'
        arguments = ['folders', tmp_path / 'photos']
    path.unlink()
    os.mkfifo(path)
    assert has(refuse(*arguments), 'not ... regular file')


def test_a_set_within_limits_is_read(coco, table):
    """An outline may leave its image, and a name may have hundreds of bytes."""
    coco.add_outlines()
    coco.annotations[0]['segmentation'] = [[-60, 5, 24, 5, 24, 21, 4, 21]]
    coco.categories[0]['name'] = '長' * 200
    assert 'data accepted' in table(*coco.arguments('instances'))
    assert json.loads((coco.folder / 'mine/data.json').read_text())
