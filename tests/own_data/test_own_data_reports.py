"""Labels as users' tools and machines wrote them, in the forms of public bug reports."""

import csv
import json
from pathlib import Path
from unicodedata import normalize

import numpy as np
import pytest
from own_data_sets import (
    assert_used,
    class_folders,
    photo,
    read_json,
    write_photos,
)
from PIL import Image

from cpvt_backbones.engine.class_names import check_folders
from cpvt_backbones.inference.outputs import read_ids, write_csv
from cpvt_backbones.own_data import Report
from cpvt_backbones.own_data.check.checks import original_of, split_names
from cpvt_backbones.text import csv_text, printable

VOC = """<annotation><size><width>64</width><height>48</height></size>{}</annotation>"""
OBJECT = """<object><name>cat</name><bndbox><xmin>{}</xmin><ymin>{}</ymin><xmax>{}</xmax>
<ymax>{}</ymax></bndbox></object>"""


@pytest.mark.parametrize(
    ('first', 'expected', 'noted'),
    [
        ((0, 0, 8, 8), [[0, 0, 8, 8], [20, 20, 8, 8]], True),
        ((9, 0, 18, 8), [[9, 0, 9, 8], [20, 20, 8, 8]], True),
        ((1, 1, 8, 8), [[0, 0, 8, 8], [19, 19, 9, 9]], False),
    ],
)
def test_a_corner_of_0_says_that_voc_boxes_count_from_0(
    first, expected, noted, voc, table, tmp_path
):
    """In all files, also in those without one."""
    text = VOC.format(OBJECT.format(*first) + OBJECT.format(20, 20, 28, 28))
    (voc / 'Annotations/0.xml').write_text(text)
    (voc / 'Annotations/1.xml').write_text(VOC.format(OBJECT.format(20, 20, 28, 28)))
    printed = table('voc', voc)
    assert ('boxes with a corner of 0' in printed) == noted
    content = read_json(tmp_path / 'mine/train.json')
    names = {one['id']: one['file_name'] for one in content['images']}
    boxes = {}
    for one in content['annotations']:
        boxes.setdefault(names[one['image_id']], []).append(one['bbox'])
    assert boxes['JPEGImages/0.png'] == expected
    assert boxes['JPEGImages/1.png'] == expected[1:]


@pytest.mark.parametrize('hot', [0, 1, 3])
def test_single_bright_pixels_hide_no_12_bits(hot, coco, table):
    for i in range(10):
        values = np.random.default_rng(i).integers(0, 4096, (48, 64)).astype(np.uint16)
        if i < hot:
            values[5, 5] = 65535
        Image.fromarray(values).save(coco.photos / f'{i}.png')
    printed = table(*coco.arguments())
    assert 'altered       10 images of 16 bits' in printed and 'give --range LOW HIGH' in printed


def test_a_dark_photograph_among_bright_ones_is_no_12_bits(coco, table):
    for i in range(10):
        most = 4096 if i == 3 else 65536
        values = np.random.default_rng(i).integers(0, most, (48, 64)).astype(np.uint16)
        Image.fromarray(values).save(coco.photos / f'{i}.png')
    assert 'images of 16 bits' not in table(*coco.arguments())


def test_copies_of_one_image_are_on_one_side(coco, table):
    names = [f'p{i // 2}_jpg.rf.{"ab"[i % 2]}.png' for i in range(10)]
    for image, name in zip(coco.images, names, strict=True):
        (coco.photos / image['file_name']).rename(coco.photos / name)
        image['file_name'] = name
    printed = table(*coco.arguments())
    sides = [{original_of(one['file_name']) for one in coco.read(part)['images']} for part in PARTS]
    assert not sides[0] & sides[1] and sides[1] == {'p4_jpg'}
    assert 'copies of one image, by the same name before .rf., stay on one side' in printed
    coco.images, rest = coco.images[:5], coco.images[5:]
    coco.annotations, others = coco.annotations[:10], coco.annotations[10:]
    train = coco.write('train.json')
    coco.images, coco.annotations = rest, others
    printed = table('coco', train, coco.photos, '--val', coco.write('val.json'), coco.photos)
    assert 'before .rf., in training and validation: p2_jpg.rf.b.png = p2_jpg.rf.a.png' in printed


PARTS = ('train', 'val')


def test_frames_of_one_clip_are_noted():
    names = [f'clip{i // 5}_frame_{i % 5:04d}.jpg' for i in range(20)]
    assert split_names(names, Report()) == (
        [name for name in names if name[-5] != '4'],
        [name for name in names if name[-5] == '4'],
    )


def test_frames_of_one_clip_on_both_sides_are_noted(coco, table):
    for i, image in enumerate(coco.images):
        name = f'clip{i // 5}_frame_{i:04d}.png'
        (coco.photos / image['file_name']).rename(coco.photos / name)
        image['file_name'] = name
    printed = table(*coco.arguments())
    assert 'note           2 frames of one clip in training and validation' in printed


@pytest.fixture
def darknet(tmp_path):
    """CVAT's YOLO 1.1: lists of images with a folder that is not there."""
    pytest.importorskip('mmdet')
    folder = tmp_path / 'cvat'
    for part, count in (('train', 6), ('valid', 4)):
        for i in range(count):
            photo(folder / f'obj_{part}_data/{part}{i}.png')
            (folder / f'obj_{part}_data/{part}{i}.txt').write_text('1 0.5 0.5 0.25 0.5')
        lines = [f'data/obj_{part}_data/{part}{i}.png\n' for i in range(count)]
        (folder / f'{part}.txt').write_text(''.join(lines))
    (folder / 'obj.names').write_text('cat\ndog\n')
    (folder / 'obj.data').write_text(
        'classes = 2\ntrain = data/train.txt\nvalid = data/valid.txt\nnames = data/obj.names\n'
        'backup = backup/\n'
    )
    return folder


@pytest.mark.parametrize('form', [['yolo'], []])
def test_the_split_of_cvats_yolo(form, darknet, table, tmp_path):
    assert_used(table(*form, darknet), 6, 4)
    for part, count in (('train', 6), ('valid', 4)):
        content = read_json(tmp_path / f'mine/{part.removesuffix("id")}.json')
        names = {one['file_name'].rpartition('/')[2] for one in content['images']}
        assert names == {f'{part}{i}.png' for i in range(count)}
        assert {one['category_id'] for one in content['annotations']} == {1}


@pytest.mark.parametrize(
    ('file', 'text', 'words'),
    [
        ('obj.data', 'classes = 2\nnames = data/obj.names', 'must name a list of images as train'),
        ('obj.data', 'classes = 3\ntrain = data/train.txt', 'has classes = 3'),
        ('obj.data', 'train = data/other.txt', "names 'data/other.txt', but there is no"),
        (
            'train.txt',
            'data/obj_train_data/train0.png\ndata/obj_train_data/none.png',
            'none.png (there is no such file)',
        ),
    ],
)
def test_faults_of_cvats_yolo(file, text, words, darknet, refuse):
    (darknet / file).write_text(text)
    assert words in refuse('yolo', darknet)


def ring(outer, inner):
    left, top, right, bottom = outer
    outline = [[left, top, right, top, right, bottom, left, bottom]]
    left, top, right, bottom = inner
    return [*outline, [left, top, right, top, right, bottom, left, bottom]]


@pytest.mark.parametrize(
    ('outline', 'area', 'noted'),
    [
        (ring((5, 5, 45, 45), (15, 15, 25, 25)), 1600, True),
        (ring((5, 5, 25, 25), (15, 15, 35, 35)), 700, False),
        (ring((5, 5, 15, 15), (30, 30, 40, 40)), 200, False),
    ],
)
def test_a_hole_drawn_as_a_polygon_is_filled_and_noted(outline, area, noted, coco, table):
    """The area is that of the union, as pycocotools draws it."""
    coco.add_outlines()
    for one in coco.annotations[:2]:
        one['segmentation'] = outline
        one.pop('bbox')
    printed = table(*coco.arguments('instances'))
    assert ('polygons within another of the same object' in printed) == noted
    found = [one['area'] for one in coco.read('train')['annotations'][:2]]
    assert found == [area, area]


OTHER = 'names in another case, or with accents in another Unicode form'


@pytest.mark.parametrize(
    ('disk', 'label'),
    [
        (normalize('NFD', 'é{}.png'), normalize('NFC', 'é{}.png')),
        (normalize('NFC', 'é{}.png'), normalize('NFD', 'é{}.png')),
        ('im{}.png', 'im{}.PNG'),
        ('Im{}.png', 'im{}.png'),
        ('a/im{}.png', 'A/im{}.PNG'),
    ],
)
@pytest.mark.parametrize('form', [['coco'], []])
def test_names_of_coco_in_another_spelling(form, disk, label, coco, table, tmp_path):
    for i, image in enumerate(coco.images):
        target = tmp_path / 'data/photos' / disk.format(i)
        target.parent.mkdir(parents=True, exist_ok=True)
        (coco.photos / image['file_name']).rename(target)
        image['file_name'] = label.format(i)
    coco.photos.rmdir()
    coco.folder = tmp_path / 'data'
    file = coco.write('labels.json')
    data = ['coco', file, tmp_path / 'data/photos'] if form else [tmp_path / 'data']
    printed = table(*data)
    assert_used(printed, 8, 2)
    assert f'altered       10 {OTHER}' in printed and 'that no JSON file lists' not in printed
    names = {one['file_name'] for one in read_json(tmp_path / 'mine/train.json')['images']}
    assert names < {disk.format(i) for i in range(10)}


def test_names_of_a_prediction_in_another_spelling(tmp_path):
    """``cpvt infer --ann``."""
    names = [normalize('NFC', 'é.png'), 'im.JPG', 'a.png', 'A.png']
    images = [dict(id=i, file_name=name) for i, name in enumerate(names)]
    file = tmp_path / 'ann.json'
    file.write_text(json.dumps(dict(images=images, categories=[dict(id=1, name='cat')])))
    paths = [Path('x') / name for name in (normalize('NFD', 'é.png'), 'im.jpg', 'a.png', 'A.png')]
    assert [*read_ids(file, paths, ['cat']).images.values()] == [0, 1, 2, 3]
    with pytest.raises(ValueError, match=r'has no image .*A.PNG'):
        read_ids(file, [Path('x/A.PNG')], ['cat'])


def test_two_files_that_agree_are_not_guessed(coco, refuse):
    for i, image in enumerate(coco.images[:2]):
        (coco.photos / image['file_name']).rename(coco.photos / f'{"aA"[i]}.png')
        image['file_name'] = 'a.PNG' if i else 'a.png'
    assert 'a.PNG (there is no such file)' in refuse(*coco.arguments())


def test_names_of_voc_in_another_spelling(voc, table):
    (voc / 'JPEGImages/0.png').rename(voc / normalize('NFD', 'JPEGImages/é.png'))
    (voc / 'Annotations/0.xml').rename(voc / normalize('NFC', 'Annotations/é.xml'))
    (voc / 'Annotations/1.xml').rename(voc / 'Annotations/IM.XML')
    (voc / 'JPEGImages/1.png').rename(voc / 'JPEGImages/im.PNG')
    lists = voc / 'ImageSets/Main'
    lists.mkdir(parents=True)
    names = [normalize('NFC', 'é'), 'Im.png', *map(str, range(2, 8))]
    (lists / 'train.txt').write_text('\n'.join(names), encoding='utf-8')
    (lists / 'val.txt').write_text('8\n9')
    printed = table('voc', voc)
    assert_used(printed, 8, 2)
    assert f'altered        2 {OTHER}' in printed


def test_names_of_yolo_lists_in_another_spelling(yolo, table):
    names = sorted((yolo.folder / 'images/train').iterdir())
    lines = [str(name).replace('.png', '.PNG') for name in names]
    (yolo.folder / 'train.txt').write_text('\n'.join(lines))
    yolo.yaml(train='train.txt')
    printed = table('yolo', yolo.folder / 'data.yaml')
    assert_used(printed, 5, 2)
    assert f'altered        5 {OTHER}' in printed


def test_names_of_masks_in_another_spelling(masks, table):
    (masks.images / '0.png').rename(masks.images / normalize('NFD', 'é.png'))
    (masks.masks / '0.png').rename(masks.masks / normalize('NFC', 'é.png'))
    (masks.images / '1.png').rename(masks.images / 'Im.PNG')
    (masks.masks / '1.png').rename(masks.masks / 'im_mask.png')
    printed = table(*masks.arguments)
    assert_used(printed, 4, 1)
    assert f'altered        2 {OTHER}' in printed


@pytest.mark.parametrize('count', [3, 4])
def test_keypoints_with_visibility_are_named(count, yolo, refuse):
    points = ' .5 .5 2' * (count - 1) + ' .45 .45 1'
    yolo.label('train/train1', '0 .5 .5 .2 .2' + points)
    line = refuse('yolo', yolo.folder)
    assert 'lines of boxes with keypoints, which are not read' in line and 'shares' not in line


def test_a_line_break_in_a_file_name(coco, table):
    for image in coco.images:
        name = f'new\nline{image["id"]}.png'
        (coco.photos / image['file_name']).rename(coco.photos / name)
        image['file_name'] = name
    printed = table(*coco.arguments())
    assert_used(printed, 8, 2)
    assert (coco.folder / 'mine/sheet.jpg').is_file()


@pytest.mark.parametrize('case', ['no object', 'one image', 'substituted', 'disk'])
def test_accepted_is_the_last_word(case, coco, call, capsys, tmp_path, monkeypatch):
    if case == 'no object':
        coco.annotations = []
    elif case == 'one image':
        coco.images, coco.annotations = coco.images[:1], coco.annotations[:2]
    elif case == 'substituted':
        coco.photos.rename(tmp_path / 'b {{ x }}')
        coco.photos = tmp_path / 'b {{ x }}'
    else:
        monkeypatch.setattr('cpvt_backbones.own_data.steps.write_sheet', lambda *_, **__: 1 / 0)
    with pytest.raises((SystemExit, ZeroDivisionError)):
        call('make_config', *coco.arguments(), '--out', tmp_path / 'mine.py')
    printed = capsys.readouterr()
    assert 'data accepted' not in printed.out
    words = {'no object': 'training images without any object', 'one image': 'for validation'}
    assert words.get(case, '') in printed.out


def test_accepted_is_said(coco, table):
    assert 'data accepted' in table(*coco.arguments()).splitlines()


@pytest.mark.parametrize(('count', 'last'), [(20, 'c19'), (23, '... 3 more')])
def test_up_to_twenty_classes_are_listed(count, last):
    report = Report()
    report.classes = [f'{i:7} c{i}' for i in range(count)]
    lines = [line.split(maxsplit=1) for line in report.lines()]
    assert len(lines) == min(count, 21) and lines[19][1] == '19 c19'
    assert lines[-1][1].endswith(last) and report.is_long == (count > 20)


# -- names on the terminal and in tables
# --------------------------------------------------------------------------------------------------


def test_no_control_character_reaches_the_terminal(tmp_path, call, capsys):
    pytest.importorskip('mmpretrain')
    class_folders(tmp_path / 'photos', [('\x1b]0;title\x07\x1b[2Jx', 5), ('dog', 5)])
    with pytest.raises(SystemExit):
        call('make_config', 'folders', tmp_path / 'photos', '--out', tmp_path / 'mine.py')
    printed = capsys.readouterr()
    table = (tmp_path / 'mine/check.csv').read_text()
    for text in (printed.out, table):
        assert '\x1b' not in text and '\x07' not in text
        assert r'\x1b]0;title\x07' in text


def test_cells_that_a_spreadsheet_would_compute_are_text():
    rows = [('=1+1', '-2', -2, 1.5), ('a\rb', 'c\nd', '@x', '+y'), ('a "b"', 'ü', '', None)]
    text = csv_text(rows)
    assert text.splitlines()[0] == "'=1+1,'-2,-2,1.5"
    read = [*csv.reader(text.splitlines(keepends=True))]
    assert read[1] == ['a\rb', 'c\nd', "'@x", "'+y"]
    assert read[2] == ['a "b"', 'ü', '', '']


def test_the_table_of_predictions_has_a_row_a_box(tmp_path):
    """Whatever the names of files and classes are."""
    names = ['=1+1.png', 'a\rsafe.png', 'b\nc.png']
    images = [dict(id=i, file_name=name) for i, name in enumerate(names)]
    found = [dict(image_id=i, category_id=0, score=0.5, bbox=[1, 2, 3, 4]) for i in range(3)]
    categories = [dict(id=0, name='=HYPERLINK("http://x")')]
    (tmp_path / 'images.json').write_text(json.dumps(dict(images=images, categories=categories)))
    (tmp_path / 'predictions.json').write_text(json.dumps(found))
    with write_csv(tmp_path).open(newline='') as file:
        rows = [*csv.reader(file)]
    assert [row[0] for row in rows[1:]] == ["'=1+1.png", *names[1:]]
    assert {row[1] for row in rows[1:]} == {'\'=HYPERLINK("http://x")'}


def test_text_of_a_line():
    assert printable('a\x1b[31m\nb\x85') == r'a\x1b[31m\nb\x85'
    assert len(printable('x' * 10**6)) < 1100


@pytest.mark.parametrize('classes', [['a', 'b'], ('a', 'b', 'c', 'd')])
@pytest.mark.parametrize('key', ['classes', 'metainfo'])
def test_another_number_of_class_folders_than_classes(key, classes, tmp_path):
    for name in 'abc':
        write_photos(tmp_path / 'photos' / name, '0.png')
    given = dict(classes=classes) if key == 'classes' else dict(metainfo=dict(classes=classes))
    options = dict(type='CustomDataset', data_root=str(tmp_path), data_prefix='photos', **given)
    with pytest.raises(ValueError, match=rf'classes has {len(classes)} names .* has 3 folders'):
        check_folders(options, 'train_dataloader.dataset')
    check_folders(dict(options, ann_file='list.txt'), 'train_dataloader.dataset')
    (tmp_path / 'photos/c').rename(tmp_path / 'c')
    if len(classes) == 2:
        check_folders(options, 'train_dataloader.dataset')


def test_a_training_names_the_folders(photos, refused, tmp_path):
    """In place of mmpretrain's assertion."""
    data = f"dict(data_root={str(photos)!r}, classes=['cat'], pipeline=[])"
    (tmp_path / 'own.py').write_text(
        f"""_base_ = 'cpvt_backbones::imagenette/cpvt-6-blocks_imagenette.py'
train_dataloader = dict(dataset=dict(data_prefix='', **{data}))
work_dir = {str(tmp_path / 'run')!r}
"""
    )
    line = refused('train', tmp_path / 'own.py')
    assert 'classes has 1 names (cat), but' in line and '2 folders (cat, dog)' in line
