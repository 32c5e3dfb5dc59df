"""docs/example_masks.md: its commands print such lines, and masks become what its table says."""

import re
from pathlib import Path

import cv2
import numpy as np
import pytest
from own_data_sets import class_folders
from pages import ROOT, blocks, run_commands
from PIL import Image

from cpvt_backbones.toolboxes import read_config

pytestmark = pytest.mark.full

PAGE = 'docs/example_masks.md'
STREET = np.array([[128, 64, 128], [70, 130, 180]], np.uint8)  # colours of road and sky


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write_pair(name, values, *, folder='', suffix='png', palette=False):
    """A random image and its mask, as ``images/NAME.jpg`` and ``masks/NAME.png``."""
    images, masks = (Path(one, folder) for one in ('images', 'masks'))
    for path in (images, masks):
        path.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(0).integers(0, 256, (*values.shape[:2], 3), np.uint8)
    Image.fromarray(pixels).save(images / f'{name}.jpg')
    mask = Image.fromarray(values)
    if palette:
        mask.putpalette([9, 99, 199, 7, 77, 177, 5, 55, 155])
    mask.save(masks / f'{name}.{suffix}')


def cells(count, seed):
    """Class indices of 6 x 8 cells of 8 px; each class occurs."""
    found = np.random.default_rng(seed).integers(0, count, 48).astype(np.uint8)
    found[:count] = range(count)
    return found.reshape(6, 8).repeat(8, 0).repeat(8, 1)


def objects(seed):
    values = np.zeros((48, 64), np.uint8)
    for number in range(1 + seed % 3):
        values[8:40, 8 + 16 * number : 20 + 16 * number] = number + 1
    return values


def blurred(seed):
    return cv2.GaussianBlur(100 * cells(3, seed), (0, 0), 1.5)


# Row of the table: masks, classes.txt, further options, and the classes or a word of the refusal.
ROWS = {
    '0 and 255': (lambda i: 255 * cells(2, i), 'a b', '', ['a', 'b']),
    '0, 1, 2 and also 255': (
        lambda i: np.array([0, 1, 2, 255], np.uint8)[cells(4, i)],
        'a b c',
        '',
        ['a', 'b', 'c'],
    ),
    '1, 2, 3, where 0 is no class': (
        lambda i: cells(4, i),
        'none a b c',
        '--ignore 0',
        ['a', 'b', 'c'],
    ),
    'a palette': (lambda i: cells(3, i), 'a b c', '', ['a', 'b', 'c']),
    'RGB colours': (
        lambda i: STREET[cells(2, i)],
        'road,128,64,128 sky,70,130,180',
        '',
        ['road', 'sky'],
    ),
    'colours without `classes.txt`': (
        lambda i: STREET[cells(2, i)],
        '',
        '',
        ['class_4682b4', 'class_804080'],
    ),
    'JPEG, or edges blurred by resizing': (blurred, '', '', 'masks with blurred edges'),
    'a number for each object': (objects, '', '', 'the format instances reads them'),
}


def test_the_table_has_each_of_these_rows():
    text = (ROOT / PAGE).read_text().partition('\n## Your own masks\n')[2].partition('\n## ')[0]
    assert re.findall(r'^\| (.+?) \|', text, re.MULTILINE)[2:] == [*ROWS]


@pytest.mark.parametrize('row', ROWS)
def test_masks_become_what_the_table_says(row, call, refused):
    draw, names, options, wanted = ROWS[row]
    for i in range(10):
        write_pair(i, draw(i), palette=row == 'a palette')
    words = ['make_config', 'masks', 'images', 'masks', '--out', 'a.py', *options.split()]
    if names:
        Path('classes.txt').write_text(names.replace(' ', '\n'))
        words += ['--classes', 'classes.txt']
    if isinstance(wanted, str):
        assert wanted in refused(*words)
        write_pair(0, cells(2, 0), suffix='jpg')
        Path('masks/0.png').unlink()
        assert row.startswith('a number') or 'masks as JPEG' in refused(*words)
        return
    call(*words)
    assert list(read_config('a.py').classes) == wanted


def write_streets():
    """Drawn cells as ``camvid/images`` and ``camvid/labels``, with a thin pole in each."""
    for folder, count in (('train', 8), ('val', 2), ('test', 3)):
        for i in range(count):
            classes = cells(12, i)
            classes[classes == 2] = 0
            classes[:, 20:22] = 2
            write_pair(f'0001TP_{i}', classes, folder=folder)
    Path('camvid').mkdir()
    Path('images').rename('camvid/images')
    Path('masks').rename('camvid/labels')
    (names,) = re.findall(r'^sky\n.+?^\.\.\.$', (ROOT / PAGE).read_text(), re.DOTALL | re.MULTILINE)
    others = 'pavement tree sign fence car pedestrian bicyclist'.split()
    Path('classes.txt').write_text('\n'.join([*names.splitlines()[:-1], *others]))


def test_the_commands_print_such_lines(call, capsys):
    """On small data, so that numbers may be others; without the estimate, which takes seconds."""
    pytest.importorskip('mmseg')
    pytest.importorskip('mmpretrain')
    write_streets()
    for part in ('train', 'val'):
        class_folders(Path('imagenette', part), (('n01440764', 3), ('n02102040', 3)))
    Path('demo/photos').mkdir(parents=True)
    Image.new('RGB', (64, 48)).save('demo/photos/street.jpg')
    capsys.readouterr()
    printed = ''
    for language, text in blocks(PAGE)[2:]:
        if language == 'bash':
            run_commands(text.replace('--length 800', '--length 2'), call)
            printed = one_space(''.join(capsys.readouterr()))
            continue
        for line in text.splitlines():
            if not line.startswith('training: '):
                assert re.search(pattern_of(line), printed), f'{line}\nis not in\n{printed}'


def one_space(text):
    return re.sub(r'[ \n]+', ' ', text)


def pattern_of(line):
    """Any number in place of each, and any text in place of three dots."""
    text = re.escape(one_space(line))
    return re.sub(r'\d[\d.,\\]*', r'[\\d.,]+', text).replace(re.escape('...'), '.*?')
