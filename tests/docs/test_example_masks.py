"""docs/example_masks.md: its commands print such lines, and masks become what its table says."""

import json
import re
import subprocess
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from own_data_sets import class_folders
from pages import ROOT, SMALL, blocks, run_commands
from PIL import Image

from cpvt_backbones.analysis.training_time import TrainingTime
from cpvt_backbones.toolboxes import read_config

pytestmark = pytest.mark.full

PAGE = 'docs/example_masks.md'
(LINKS,) = (text for _, text in blocks(PAGE) if text.startswith('for mask in'))
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


def test_the_commands_print_such_lines(call, capsys):
    """With two iterations, so that numbers after the first command may be others."""
    pytest.importorskip('mmseg')
    pytest.importorskip('mmpretrain')
    Path('demo').symlink_to(ROOT / 'demo')
    for part in ('train', 'val'):
        class_folders(Path('imagenette', part), (('n01440764', 3), ('n02102040', 3)))
    capsys.readouterr()
    printed, is_exact = '', False
    for language, text in blocks(PAGE)[2:]:
        if text == LINKS:
            continue
        if language == 'bash':
            run_commands(text.replace('--length 300', '--length 2'), call)
            printed = one_space(''.join(capsys.readouterr()))
            is_exact = 'make-config masks demo/' in text
            continue
        for line in text.splitlines():
            if line.startswith('training: '):  # not estimated in a test
                assert_is_an_estimate(line)
                continue
            pattern = pattern_of(line, is_exact=is_exact)
            assert re.search(pattern, printed), f'{line}\nis not in\n{printed}'


def test_links_to_the_masks_of_cityscapes(call, refused, capsys):
    mask = np.array([0, 1, 255], np.uint8)[cells(3, 0)]
    for part in ('train', 'val'):
        for kind in ('leftImg8bit', 'gtFine_labelTrainIds', 'gtFine_color'):
            path = Path(kind.partition('_')[0], part, 'ulm', f'ulm_000000_{kind}.png')
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(STREET[mask % 2] if kind == 'leftImg8bit' else mask).save(path)
    Path('classes.txt').write_text('road\nsidewalk\n')
    words = '--classes', 'classes.txt', '--no-estimate', '--out'
    masks = ('make_config', 'masks', 'leftImg8bit')
    assert 'images without a mask' in refused(*masks, 'gtFine', *words, 'refused.py')
    links, command = re.split('(?=^cpvt )', LINKS, flags=re.MULTILINE)
    subprocess.run(['bash', '-c', links], check=True)
    run_commands(command, call)
    assert list(read_config('mine/streets.py').classes) == ['road', 'sidewalk']


def test_the_split_of_mmsegs_folders(call, capsys):
    """Also ADE20K's names are kept; of others, every fifth image is for validation."""
    splits = (('train', 'val', 7), ('training', 'validation', 7), ('first', 'second', 8))
    for first, second, used in splits:
        for i in range(10):
            folder = first if i < 7 else second
            write_pair(f'{first}{i}', cells(4, i), folder=f'{first}_data/{folder}')
        call(
            *('make_config', 'masks', f'images/{first}_data', f'masks/{first}_data'),
            *('--ignore', '0', '--no-estimate', '--out', f'{first}.py'),
        )
        assert f'{used} training images' in one_space(capsys.readouterr().out)
        assert list(read_config(f'{first}.py').classes) == ['class_1', 'class_2', 'class_3']


def test_the_names_on_the_page_are_those_of_the_masks():
    assert blocks(PAGE)[1][1] == (ROOT / 'demo/cell_masks/classes.txt').read_text()


def test_the_scores_on_the_page_are_those_of_its_class_maps(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / 'docs/site')
    import cell_masks

    scores = cell_masks.iou(cell_masks.names())
    assert len(cell_masks.names()) == len([*cell_masks.MAPS.iterdir()]) == 20
    text = (ROOT / PAGE).read_text()
    for name, score in zip(cell_masks.CLASSES, scores, strict=True):
        (said,) = re.findall(rf'^\| +{name} +\| +([\d.]+) \|', text, re.MULTILINE)
        assert float(said) == pytest.approx(score, abs=0.006)
    (said,) = re.findall(r'^Iter\(test\) \[20/20\].* mIoU: ([\d.]+)', text, re.MULTILINE)
    assert float(said) == pytest.approx(scores.mean(), abs=0.006)


def code_of_improve(part):
    """The Python block of docs/improve.md that has this text."""
    (code,) = (code for _, code in blocks('docs/improve.md') if part in code)
    return code


def test_the_confusion_matrix_of_docs_improve(capsys, monkeypatch):
    """That of the stored class maps; its diagonal is the recall on the page."""
    Path('mine/model/masks').mkdir(parents=True)
    Path('out').mkdir()
    Path('out/maps').symlink_to(ROOT / 'docs/evidence/cell_masks')
    names = [path.stem for path in Path('out/maps').iterdir()]
    Path('mine/model/val.txt').write_text('\n'.join(f'{name}.jpg' for name in names))
    classes = (ROOT / 'demo/cell_masks/classes.txt').read_text().splitlines()
    Path('mine/model/masks/classes.json').write_text(json.dumps(dict(classes=classes)))
    for name in names:
        mask = ROOT / f'demo/cell_masks/val/{name}.png'
        Path(f'mine/model/masks/{name}.jpg.png').symlink_to(mask)
    exec(compile(code_of_improve("'out/maps/"), 'docs/improve.md', 'exec'), {})
    printed = capsys.readouterr().out
    assert printed == code_of_improve('white cell  ')
    (shown,) = (text for _, text in blocks(PAGE) if '|  IoU  |  Acc  |' in text)
    recall = re.findall(r'([\d.]+) \|$', shown, re.MULTILINE)
    matrix = np.array([line[20:].split() for line in printed.splitlines()], float)
    assert matrix.diagonal() == pytest.approx([*map(float, recall)], abs=0.06)


def test_the_commands_of_docs_improve_for_masks(call, capsys):
    pytest.importorskip('mmseg')
    for i in range(10):
        write_pair(i, cells(3, i))
    call('make_config', 'masks', 'images', 'masks', '--length', '2', '--out', 'mine/model.py')
    call('train', 'mine/model.py', '--cfg-options', *SMALL)
    run_commands(code_of_improve('--out out/maps'), call)
    assert capsys.readouterr()
    exec(compile(code_of_improve("'out/maps/"), 'docs/improve.md', 'exec'), {})
    rows = [line[20:].split() for line in capsys.readouterr().out.splitlines()]
    assert np.array(rows, float).sum(1) == pytest.approx([100] * 3, abs=0.2)
    with Path('mine/model.py').open('a') as file:
        file.write(code_of_improve('tta_pipeline = '))
    call('test', 'mine/model.py', 'work_dirs/model/', '--tta', '--cfg-options', *SMALL)
    assert 'mIoU: ' in ''.join(capsys.readouterr())


def assert_is_an_estimate(line):
    pattern = r'about ([\d.]+) to ([\d.]+) min .*, by (\d+) steps'
    low, high, steps = re.search(pattern, line).groups()
    about = TrainingTime(60 * float(low), 60 * float(high), int(steps), '1 CPU thread').about
    assert line == f'training: {about}'


def one_space(text):
    return re.sub(r'[ \n]+', ' ', text)


def pattern_of(line, *, is_exact):
    """Any text in place of three dots and, if not exact, any number in place of each."""
    text = re.escape(one_space(line)).replace(re.escape('...'), '.*?')
    return text if is_exact else re.sub(r'\d[\d.,\\]*', r'[\\d.,]+', text)


def test_the_config_of_the_study_of_rates_trains(call):
    """With the page's first options; the schedule is the page's."""
    page = 'docs/evidence/one_gpu.md'
    texts = [text for _, text in blocks(page)]
    make, config, trainings = texts
    Path('demo').symlink_to(ROOT / 'demo')
    words = make.replace('\\\n', ' ').split()[1:]
    call('make_config', *words[1:], '--no-estimate')
    Path('mine/rate.py').write_text(config)
    (rate, count) = re.findall(r'--cfg-options (\S+lr=[\d.e-]+|\S+counts=\d)', trainings)[-2:]
    assert read_config(Path('mine/rate.py')).train_cfg.max_iters == 400
    short = ['train_cfg.max_iters=2', 'train_cfg.val_interval=2', 'train_dataloader.num_workers=0']
    short += ['train_dataloader.persistent_workers=False', 'train_dataloader.batch_size=2']
    call('train', 'mine/rate.py', '--cfg-options', rate, count, *short)
    saved = torch.load('work_dirs/rate/iter_2.pth', weights_only=False)
    assert {one['initial_lr'] for one in saved['optimizer']['param_groups']} == {7.5e-6}
    assert [one['end'] for one in saved['param_schedulers']] == [40, 400]
