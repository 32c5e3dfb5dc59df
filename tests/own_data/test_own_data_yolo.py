"""YOLO: boxes and polygons, layouts of folders and data.yaml, and faults."""

import shutil

import pytest
from own_data_sets import assert_used, has, photo, read_json


def test_boxes_and_polygons(yolo, table):
    yolo.label('train/train1', '0 0.25 0.25 0.75 0.25 0.75 0.5\n\n1 0.5 0.5 1 1\n')
    for place in (yolo.folder, yolo.folder / 'data.yaml'):
        printed = table(place, '--strict')
        assert f'Format: yolo {place}\n' in printed
        assert_used(printed, 5, 2)
        written = read_json(yolo.folder.parent / 'mine/train.json')
        first, second, third = written['annotations'][:3]
        assert (first['bbox'], first['category_id']) == ([24, 12, 16, 24], 1)
        assert (second['bbox'], second['category_id']) == ([16, 12, 32, 12], 0)
        assert (third['bbox'], third['category_id']) == ([0, 0, 64, 48], 1)
        assert second['segmentation'] == [[16, 12, 48, 12, 48, 24]] and second['area'] == 192


@pytest.mark.parametrize(
    ('line', 'reason'),
    [
        ('2 0.5 0.5 0.5 0.5', 'classes outside 0 to 1'),
        ('0.5 0.5 0.5 0.5 0.5', 'classes outside 0 to 1'),
        ('1 0.5 0.5 0.5', 'lines of neither CLASS X Y WIDTH HEIGHT nor'),
        ('1 0.5 0.5 0.5 0.5 0.9', 'lines of neither CLASS X Y WIDTH HEIGHT nor'),
        ('1 30 20 10 10', 'coordinates outside 0 to 1'),
        ('1 nan 0.5 0.1 0.1', 'coordinates outside 0 to 1'),
        ('dog 0.5 0.5 0.5 0.5', 'lines with words that are not numbers'),
    ],
)
def test_faults_of_lines(yolo, refuse, line, reason):
    yolo.label('train/train3', f'1 0.5 0.5 0.5 0.5\n{line}\n')
    text = refuse(yolo.folder)
    assert reason in text and f'{yolo.folder}/labels/train/train3.txt: line 2 (' in text


def test_missing_and_repeated_labels(yolo, table, refuse):
    (yolo.folder / 'labels/train/train3.txt').unlink()
    yolo.label('train/train2', '')
    yolo.label('train/nobody', '0 0.5 0.5 0.5 0.5')
    yolo.label('train/train1', '1 0.5 0.5 0.5 0.5\n1 0.5 0.5 0.5 0.5\n')
    printed = table(yolo.folder)
    for line in (
        'note 1 images without a label file: taken as images without objects',
        'skipped 1 text files without an image',
        'skipped 1 objects that are',
        'used 2 training images without objects',
    ):
        assert has(printed, line)
    folder = yolo.folder / 'images/train'
    photo(folder / 'images/a.png')
    (folder / 'images/a.txt').write_text('1 0.5 0.5 0.5 0.5')
    (folder / 'labels').mkdir()
    (folder / 'labels/a.txt').write_text('0 0.5 0.5 0.5 0.5')
    assert 'images with two label files' in refuse(yolo.folder)


def test_layouts_of_data_yaml(yolo, table):
    yolo.yaml(path='/nowhere', train='../images/train', names='{0: cat, 1: route 66}')  # Roboflow's
    assert_used(table(yolo.folder), 5, 2)
    for number in range(3):
        photo(yolo.folder / f'images/test/test{number}.png')
    yolo.yaml(test='[../images/test, none]', path='/nowhere')
    printed = table(yolo.folder)
    assert_used(printed, 5, 2)
    wanted = 'skipped 3 images outside the training and validation sets, such as test:'
    assert has(printed, f'{wanted} {yolo.folder}/images/test/test0.png')
    shutil.rmtree(yolo.folder / 'images/test')
    (yolo.folder / 'train.txt').write_text('images/train/train0.png\nimages/train/train1.png\n')
    yolo.yaml(train='train.txt', val='[images/val]', names='{1: dog, 0: cat}')
    assert_used(table(yolo.folder), 2, 2)


@pytest.mark.parametrize(
    ('values', 'fault'),
    [
        (dict(names='{1: cat}'), 'the keys of names'),
        (dict(names='[cat, ]]'), 'is not YAML'),
        (dict(names='[cat, ~]'), "must be text, got '~'"),
        (dict(names='[cat, [dog]]'), "must be text, got ['dog']"),
        (dict(names='[cat]\nnc: 2'), 'has nc: 2 and 1 names'),
        (dict(names='[cat, dog]\nkpt_shape: [17, 3]'), 'is of keypoints'),
        (dict(train='none'), "names 'none', but there is none of"),
        (dict(names='[cat'), 'is not YAML'),
    ],
    ids=str,
)
def test_faults_of_data_yaml(yolo, refuse, values, fault):
    yolo.yaml(**values)
    assert fault in refuse(yolo.folder)


def test_classes_txt_in_place_of_data_yaml(yolo, table, refuse, config):
    (yolo.folder / 'data.yaml').unlink()
    assert 'no data.yaml or classes.txt or obj.names' in refuse(yolo.folder)
    (yolo.folder / 'labels/classes.txt').write_text('\ufeffcat\nroute 66\n')
    assert_used(table(yolo.folder, '--strict'), 5, 2)
    assert config().classes == ('cat', 'route 66')


def test_labels_beside_the_images_are_of_the_upright_image(tmp_path, table):
    pytest.importorskip('mmdet')
    data = tmp_path / 'data'
    for i in range(5):
        photo(data / f'{i}.jpg', orientation=6)
        (data / f'{i}.txt').write_text('0 0.5 0.5 0.5 0.5')
    (data / 'classes.txt').write_text('cat\n')
    printed = table(data)
    assert 'Format: yolo' in printed and 'skipped' not in printed
    written = read_json(tmp_path / 'mine/train.json')
    assert [one['bbox'] for one in written['annotations']] == [[12, 16, 24, 32]] * 4
