"""Pascal VOC: layouts of folders, lists of names, and faults."""

import pytest
from own_data_sets import HEIGHT, WIDTH, assert_used, has, photo, read_json, voc_label, voc_pair


@pytest.mark.parametrize('images', ['', 'pictures/'], ids=['beside the labels', 'in a folder'])
def test_labels_outside_annotations_and_difficult_objects(tmp_path, table, images):
    pytest.importorskip('mmdet')
    voc = tmp_path / 'voc'
    for i in range(10):
        voc_pair(voc, i, f'{images}{{}}.png', '{}.xml', difficult=int(i == 0))
    if not images:
        photo(voc / 'others/9.png')  # the image beside the label counts
    assert has(table('voc', voc), 'note 1 difficult objects are ignored')
    written = read_json(tmp_path / 'mine/train.json')['annotations']
    assert [one['iscrowd'] for one in written] == [1, 0, 0, 0, 0, 0, 0, 0]
    assert written[0]['bbox'] == [4, 5, 20, 25]


def test_files_of_one_name_in_two_parts_are_kept(tmp_path, table, refuse):
    pytest.importorskip('mmdet')
    voc, bottoms = tmp_path / 'voc', dict(train=30, valid=40)
    for part, bottom in bottoms.items():
        for i in range(3):
            voc_pair(voc / part, i, 'images/{}.png', 'labels/{}.xml', bottom=bottom)
    assert_used(table('voc', voc), 3, 3)
    for part, bottom in zip(('train', 'val'), bottoms.values(), strict=True):
        written = read_json(tmp_path / f'mine/{part}.json')
        assert {one['bbox'][3] for one in written['annotations']} == {bottom - 5}
    photo(voc / 'train/images/0.jpg')
    wanted = 'train/labels/0.xml (train/images/0.jpg, train/images/0.png)'
    assert wanted in refuse('voc', voc)


def test_folders_of_segmentation_are_no_labels_and_images_without_labels_skipped(voc, table):
    for i in range(10):
        photo(voc / f'SegmentationClass/{i}.png')
        photo(voc / f'AnnotationsVisualization/{i}.png')
    assert 'data accepted' in table('voc', voc, '--strict')
    (voc / 'Annotations/9.xml').unlink()
    wanted = f'skipped 1 images without a label file: {voc}/JPEGImages/9.png'
    assert has(table('voc', voc), wanted)


def test_faults_of_labels(voc, refuse):
    labels = voc / 'Annotations'
    voc_label(labels / '10.xml', bottom=3)
    line = refuse('voc', voc)
    assert 'label files without an image' in line and 'in the wrong order' not in line
    (labels / '10.xml').unlink()
    voc_label(labels / '0.xml', width=99)
    voc_label(labels / '1.xml', bottom=3)
    voc_label(labels / '2.xml', bottom='x')
    (labels / '3.xml').write_text('<annotation>')
    line = refuse('voc', voc)
    reasons = 'not those of the file', 'in the wrong order', 'without four numbers', 'are not XML'
    assert all(reason in line for reason in reasons)


def test_lists_have_names_with_spaces_and_a_byte_order_mark(tmp_path, table, refuse):
    pytest.importorskip('mmdet')
    voc = tmp_path / 'voc'
    for name in ('my photo 1', 'my photo 2', 'a', 'b.c', 'd'):
        voc_pair(voc, name)
    lists = voc / 'ImageSets/Main'
    lists.mkdir(parents=True)
    (lists / 'train.txt').write_bytes(b'\xef\xbb\xbfmy photo 1\r\nmy photo 2\r\nb.c\r\n')
    (lists / 'val.txt').write_text('a\n')
    printed = table('voc', voc)
    assert_used(printed, 3, 1)
    assert has(printed, 'skipped 1 images in none of train.txt, val.txt')
    (lists / 'val.txt').write_text('a\nnobody\n')
    wanted = f'names in a list without label file and image: {lists}/val.txt: nobody'
    assert wanted in refuse('voc', voc)


def test_boxes_before_exif_rotation_are_refused(voc, refuse, table):
    """They were cut from 4 to 2 px."""
    for i in range(10):
        (voc / f'JPEGImages/{i}.png').unlink()
        photo(voc / f'JPEGImages/{i}.jpg', orientation=6)
        voc_label(voc / f'Annotations/{i}.xml', width=HEIGHT, height=WIDTH, bottom=60)
    assert 'data accepted' in table('voc', voc, '--strict')
    voc_label(voc / 'Annotations/3.xml', width=HEIGHT, height=WIDTH, right=64, bottom=30)
    line = refuse('voc', voc)
    assert 'labels that fit the image only before its EXIF rotation' in line and str(voc) in line


def test_names_with_a_dot_and_links_in_a_circle_are_skipped(voc, table):
    voc_label(voc / 'Annotations/._1.xml')
    photo(voc / '.ipynb_checkpoints/1.png')
    elsewhere = (voc / 'JPEGImages').rename(voc.parent / 'elsewhere')
    (voc / 'images').symlink_to(elsewhere)
    (elsewhere / 'again').symlink_to(elsewhere)
    printed = table('voc', voc)
    assert 'names that begin with a dot' in printed
    assert '.ipynb_checkpoints' in printed and '._1.xml' in printed
    assert 'links to a folder that contains them' in printed
    assert_used(printed, 8, 2)


@pytest.mark.parametrize('names', [('train', 'valid'), ('train', 'test'), ('trainval', 'test')])
def test_lists_of_other_names_are_the_split(voc, table, names):
    lists = voc / 'ImageSets/Main'
    lists.mkdir(parents=True)
    for name, numbers in zip(names, (range(6), range(6, 10)), strict=True):
        (lists / f'{name}.txt').write_text(''.join(f'{i}\n' for i in numbers))
    assert_used(table('voc', voc), 6, 4)
    (lists / f'{names[1]}.txt').unlink()
    printed = table('voc', voc)
    wanted = f'lists of images that are not used, without train.txt and val.txt: {lists}'
    assert wanted in printed
    assert_used(printed, 8, 2)


def test_turned_boxes_of_cvat(voc, table, tmp_path):
    """CVAT writes the box as it is before it is turned."""
    label = voc / 'Annotations/0.xml'
    attribute = '<attributes><attribute><name>rotation</name><value>{}</value></attribute>'
    label.write_text(
        label.read_text().replace('</name>', f'</name>{attribute.format(90.0)}</attributes>', 1)
    )
    printed = table('voc', voc)
    assert 'altered        1 rotated boxes become the upright box around them' in printed
    first = read_json(tmp_path / 'mine/train.json')['annotations'][0]
    assert first['bbox'] == pytest.approx([1.5, 7.5, 25, 20])  # 20 x 25 px about (14, 17.5)
    assert first['attributes'] == dict(rotation=0.0)
