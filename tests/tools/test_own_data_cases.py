"""Faults of a user's own data: each is refused, altered, skipped or noted by a stated rule, with
the file named.
"""

import json

import cv2
import numpy as np
import pytest
from PIL import Image

from cpvt_backbones.toolboxes import read_config

WIDTH, HEIGHT = 64, 48


def photo(path, size=(WIDTH, HEIGHT), *, orientation=1, seed=None):
    """Write a photograph of coarse noise, of its own for each path.

    ``size`` is before EXIF's rotation.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not hash(), which differs from process to process.
    rng = np.random.default_rng(list(str(path.name).encode()) if seed is None else seed)
    image = Image.fromarray(rng.integers(0, 255, (12, 16, 3), np.uint8)).resize(size)
    exif = image.getexif()
    if orientation != 1:
        exif[274] = orientation
    image.save(path, exif=exif)


@pytest.fixture
def out(tmp_path):
    return ['--out', tmp_path / 'mine.py', '--overwrite']


@pytest.fixture
def table(capsys, call):
    """Run make_config.py and return the lines that it prints."""

    def table(*arguments):
        capsys.readouterr()
        call('make_config', *arguments)
        return capsys.readouterr().out

    return table


class CocoSet:
    """Ten images with two boxes each, and a JSON file of them that a test changes."""

    def __init__(self, folder):
        self.folder = folder
        self.images = [
            dict(id=i, file_name=f'{i}.png', width=WIDTH, height=HEIGHT) for i in range(10)
        ]
        self.annotations = []
        for i in range(20):
            box = [4 + i, 5, 20, 16]
            self.annotations.append(dict(id=i, image_id=i // 2, category_id=i % 2 + 1, bbox=box))
        self.categories = [dict(id=1, name='cat'), dict(id=2, name='dog')]
        for image in self.images:
            photo(folder / 'images' / image['file_name'])

    def arguments(self, name='all.json'):
        content = dict(images=self.images, annotations=self.annotations, categories=self.categories)
        file = self.folder / name
        file.write_text(json.dumps(content))
        return ['coco', file, self.folder / 'images']

    def written(self):
        parts = [
            json.loads((self.folder / f'mine/{part}.json').read_text()) for part in ('train', 'val')
        ]
        both = {}
        for key in ('images', 'annotations'):
            both[key] = sorted(parts[0][key] + parts[1][key], key=lambda one: one['id'])
        return both, parts[0]['categories']


@pytest.fixture
def coco(tmp_path):
    pytest.importorskip('mmdet')
    return CocoSet(tmp_path)


def test_coco_without_faults(coco, table, out):
    printed = table(*coco.arguments(), *out, '--strict')
    assert 'read          10 images' in printed and 'read          20 objects' in printed
    assert (
        'used           8 training images' in printed
        and 'used           2 validation images' in printed
    )
    assert 'exit code 0' in printed
    assert 'skipped' not in printed and 'altered' not in printed and 'note' not in printed
    written, categories = coco.written()
    assert [one['bbox'] for one in written['annotations']] == [
        one['bbox'] for one in coco.annotations
    ]
    assert categories == coco.categories


NAN = float('nan')
RLE = dict(size=[HEIGHT, WIDTH], counts=[HEIGHT * 10 + 8, 16, HEIGHT * WIDTH - HEIGHT * 10 - 24])
# Changes of the first annotation (None removes a key), the outcome, and its reason.
FAULTS = {
    'negative': (dict(bbox=[9, 9, -3, 5]), 'refused', 'boxes of negative width or height'),
    'nan': (dict(bbox=[9, 9, NAN, 5]), 'refused', 'bbox is not four finite numbers'),
    'text': (dict(bbox=['9', 9, 9, 5]), 'refused', 'bbox is not four finite numbers'),
    'three': (dict(bbox=[9, 9, 9]), 'refused', 'bbox is not four finite numbers'),
    'empty': (dict(bbox=[]), 'refused', 'objects with neither bbox nor outline'),
    'missing': (dict(bbox=None), 'refused', 'objects with neither bbox nor outline'),
    'flat': (dict(bbox=[9, 9, 0, 5]), 'skipped', 'boxes of no width or height'),
    'thin': (dict(bbox=[9, 9, 0.5, 5]), 'skipped', 'boxes narrower or lower than 1 px'),
    'outside': (dict(bbox=[70, 9, 5, 5]), 'skipped', 'boxes outside their image'),
    'partly': (dict(bbox=[60, 9, 9, 5]), 'altered', 'boxes are clipped to their image'),
    'image': (dict(image_id=77), 'skipped', 'annotations of images that are not listed'),
    'no image': (dict(image_id=None), 'refused', 'annotations without image_id'),
    'text image': (dict(image_id='0'), 'altered', 'image_id as text'),
    'category': (dict(category_id=9), 'refused', 'annotations of categories that are not listed'),
    'text category': (dict(category_id='1'), 'altered', 'category_id as text'),
    'no category': (dict(category_id=None), 'refused', 'annotations without category_id'),
    'id': (dict(id=1), 'altered', 'annotation ids that are missing'),
    'no id': (dict(id=None), 'altered', 'annotation ids that are missing'),
    'twice': (dict(bbox=[5, 5, 20, 16], category_id=2), 'skipped', 'objects that are listed twice'),
    'iscrowd': (dict(iscrowd=2), 'refused', 'iscrowd is neither 0 nor 1'),
    'polygon': (
        dict(bbox=None, segmentation=[[4, 5, 24, 5, 24, 21]]),
        'altered',
        'bbox is derived',
    ),
    'rle': (dict(bbox=None, segmentation=RLE), 'altered', 'bbox is derived'),
    'line': (dict(segmentation=[[4, 5, 24, 5]]), 'altered', 'polygons of fewer than three points'),
    'rle size': (
        dict(segmentation=dict(size=[9, 9], counts=[81])),
        'refused',
        'RLE of another size',
    ),
    'rle sum': (
        dict(segmentation=dict(size=[HEIGHT, WIDTH], counts=[9])),
        'refused',
        'RLE whose counts',
    ),
}


@pytest.mark.parametrize('fault', FAULTS)
def test_faults_of_coco_objects(coco, table, refused, out, fault):
    change, outcome, reason = FAULTS[fault]
    first = {**coco.annotations[0], **change}
    coco.annotations[0] = {key: value for key, value in first.items() if value is not None}
    if outcome == 'refused':
        assert reason in refused('make_config', *coco.arguments(), *out)
        assert not (coco.folder / 'mine.py').exists()
        return
    printed = table(*coco.arguments(), *out)
    assert f'{outcome}        1 {reason}' in printed
    assert 'exit code 0' in printed
    written, _ = coco.written()
    assert len(written['annotations']) == (19 if outcome == 'skipped' else 20)
    assert [one['id'] for one in written['annotations']] == [
        *range(1, len(written['annotations']) + 1)
    ]
    assert reason in refused('make_config', *coco.arguments(), *out, '--strict')
    assert reason in (coco.folder / 'mine/check.csv').read_text()


def test_boxes_come_from_outlines(coco, table, out):
    coco.annotations[0].pop('bbox')
    coco.annotations[0]['segmentation'] = [[4, 5, 24, 5, 24, 21]]
    coco.annotations[1].pop('bbox')
    coco.annotations[1]['segmentation'] = RLE
    table(*coco.arguments(), *out)
    first, second, *_ = coco.written()[0]['annotations']
    assert (first['bbox'], first['area']) == ([4, 5, 20, 16], 160)
    assert (second['bbox'], second['area']) == ([10, 8, 1, 16], 16)


def test_a_clipped_box_lies_in_its_image(coco, table, out):
    coco.annotations[0]['bbox'] = [-6, 9, 12, 90]
    table(*coco.arguments(), *out)
    assert coco.written()[0]['annotations'][0]['bbox'] == [0, 9, 6, 39]


@pytest.mark.parametrize(
    ('change', 'reason'),
    [
        (dict(id=1), 'images with the id of another'),
        (dict(id=None), 'images without id'),
        (dict(file_name='1.png'), 'images that are listed twice'),
        (dict(file_name=None), 'images without file_name'),
        (dict(file_name='none.png'), 'images that cannot be read'),
        (dict(width=99), 'width and height are not those of the file'),
    ],
)
def test_faults_of_coco_images(coco, refused, out, change, reason):
    coco.images[0].update(change)
    assert reason in refused('make_config', *coco.arguments(), *out)


@pytest.mark.parametrize(
    ('change', 'reason'),
    [
        (dict(id=2), 'categories with the id of another'),
        (dict(id=None), 'categories without id'),
        (dict(name='dog'), 'categories with the name of another'),
        (dict(name=' '), 'categories without name'),
    ],
)
def test_faults_of_coco_categories(coco, refused, out, change, reason):
    coco.categories[0].update(change)
    assert reason in refused('make_config', *coco.arguments(), *out)


def test_ids_as_text_are_replaced(coco, table, out):
    for image in coco.images:
        image['id'] = f'a{image["id"]}'
    for one in coco.annotations:
        one.update(image_id=f'a{one["image_id"]}', category_id=f'c{one["category_id"]}')
    for category in coco.categories:
        category['id'] = f'c{category["id"]}'
    printed = table(*coco.arguments(), *out)
    assert 'image ids that are no integers are replaced' in printed
    assert 'category ids that are no integers are replaced' in printed
    written, categories = coco.written()
    assert [image['id'] for image in written['images']] == [*range(1, 11)]
    assert all(isinstance(one['image_id'], int) for one in written['annotations'])
    assert [category['id'] for category in categories] == [1, 2]


def test_categories_are_sorted_and_the_parent_of_roboflow_is_left_out(coco, table, out):
    coco.categories = [
        dict(id=2, name='dog', supercategory='animals'),
        dict(id=1, name='cat', supercategory='animals'),
        dict(id=0, name='animals', supercategory='none'),
        dict(id=7, name='unseen', supercategory='animals'),
    ]
    printed = table(*coco.arguments(), *out)
    assert 'altered        1 parent categories without objects are left out' in printed
    assert 'note           1 classes without a training object: unseen' in printed
    assert read_config(coco.folder / 'mine.py').classes == ('cat', 'dog', 'unseen')


def test_validation_is_matched_by_name(coco, table, refused, out):
    arguments = coco.arguments()
    coco.categories = [dict(id=1, name='dog'), dict(id=5, name='cat'), dict(id=9, name='none')]
    for one in coco.annotations:
        one['category_id'] = {1: 5, 2: 1}[one['category_id']]
    val = coco.arguments('val.json')[1]
    printed = table(*arguments, '--val', val, *out)
    assert 'categories are matched by name' in printed
    assert 'skipped        1 categories without objects that training lacks' in printed
    train, val_written = (
        json.loads((coco.folder / f'mine/{part}.json').read_text()) for part in ('train', 'val')
    )
    assert train['categories'] == val_written['categories']
    first = [one['category_id'] for one in train['annotations']]
    assert first == [one['category_id'] for one in val_written['annotations']]
    coco.annotations[0]['category_id'] = 9
    coco.arguments('val.json')
    wanted = 'categories with objects that training lacks'
    assert wanted in refused('make_config', *arguments, '--val', val, *out)


def test_images_without_objects_are_trained_on(coco, table, out):
    from mmengine.registry import DATASETS, init_default_scope

    coco.annotations = [one for one in coco.annotations if one['image_id'] in (0, 4)]
    printed = table(*coco.arguments(), *out)
    assert 'used           7 training images without objects' in printed
    cfg = read_config(coco.folder / 'mine.py')
    init_default_scope('mmdet')
    train = DATASETS.build(cfg.train_dataloader.dataset)
    assert len(train) == 8
    without = [index for index in range(8) if not train.get_data_info(index)['instances']]
    assert len(without) == 7
    # Nothing in the pipeline replaces such an image by another.
    for index in without:
        assert train[index]['data_samples'].img_id == train.get_data_info(index)['img_id']


def test_damaged_images_are_named_all_at_once(coco, refused, table, out):
    photo(coco.folder / 'images/2.jpg', (400, 300))
    whole = (coco.folder / 'images/2.jpg').read_bytes()
    for index, content in {2: whole[: len(whole) * 2 // 3], 5: b'no image', 6: b''}.items():
        coco.images[index]['file_name'] = f'{index}.jpg'
        (coco.folder / f'images/{index}.jpg').write_bytes(content)
    coco.images[2].update(width=400, height=300)
    line = refused('make_config', *coco.arguments(), *out)
    assert '3 refused: images that cannot be read' in line
    for index in (2, 5, 6):
        assert f'images/{index}.jpg (' in line
    coco.images = [image for image in coco.images if image['id'] not in (5, 6)]
    coco.annotations = [one for one in coco.annotations if one['image_id'] not in (5, 6)]
    assert 'exit code 0' in table(*coco.arguments(), *out, '--no-decode')


@pytest.mark.parametrize('size', ['stored', 'upright', 'missing'])
@pytest.mark.parametrize('labels', ['stored', 'upright', 'both', 'none'])
def test_orientation(coco, refused, table, out, size, labels):
    """A file of 64 x 48 px with orientation 6 is 48 x 64 px upright."""
    file = coco.folder / 'images/0.jpg'
    photo(file, (WIDTH, HEIGHT), orientation=6)
    assert cv2.imread(str(file)).shape[:2] == (WIDTH, HEIGHT)
    image = coco.images[0]
    image['file_name'] = '0.jpg'
    image.update(
        dict(stored={}, upright=dict(width=48, height=64), missing=dict(width=0, height=0))[size]
    )
    box = dict(stored=[40, 5, 20, 20], upright=[5, 40, 20, 20], both=[5, 5, 20, 20], none=None)[
        labels
    ]
    coco.annotations = [one for one in coco.annotations if one['image_id']]
    if box:
        coco.annotations.insert(0, dict(id=0, image_id=0, category_id=1, bbox=box))
    if labels == 'stored' or (labels == 'both' and size == 'stored'):
        line = refused('make_config', *coco.arguments(), *out)
        assert f'{file}' in line
        assert ('only before its EXIF rotation' if labels == 'stored' else 'fit both ways') in line
        return
    printed = table(*coco.arguments(), *out)
    assert ('width and height are turned as EXIF turns the image' in printed) == (size == 'stored')
    assert 'note           1 images turned by EXIF' in printed
    written, _ = coco.written()
    assert (written['images'][0]['width'], written['images'][0]['height']) == (48, 64)
    if box:
        assert written['annotations'][0]['bbox'] == box


def test_near_duplicates_are_named(coco, table, out):
    image = Image.open(coco.folder / 'images/4.png')  # the first of validation
    image.resize((80, 60)).save(coco.folder / 'images/7.jpg', quality=60)
    coco.images[7].update(file_name='7.jpg', width=80, height=60)
    printed = table(*coco.arguments(), *out)
    assert 'note           1 validation images that look like a training image' in printed
    assert f'{coco.folder}/images/4.png = {coco.folder}/images/7.jpg' in printed


def test_values_of_12_bits_are_noted(coco, table, out):
    rng = np.random.default_rng(0)
    for image in coco.images[:2]:
        cv2.imwrite(
            str(coco.folder / 'images' / image['file_name']),
            rng.integers(0, 4096, (48, 64), np.uint16),
        )
    printed = table(*coco.arguments(), *out)
    assert (
        'note           2 images of 16 bits with values of 0 to 4095 only, training sees 0 to 15'
        ' of 255' in printed
    )
    cv2.imwrite(str(coco.folder / 'images/2.png'), rng.integers(0, 65536, (48, 64), np.uint16))
    assert 'images of 16 bits' not in table(*coco.arguments(), *out)


VOC = """<annotation><size><width>{width}</width><height>{height}</height></size>
<object><name>cat</name><difficult>{difficult}</difficult>
<bndbox><xmin>5</xmin><ymin>6</ymin><xmax>24</xmax><ymax>{bottom}</ymax></bndbox></object></annotation>"""


def voc(path, *, width=WIDTH, height=HEIGHT, difficult=0, bottom=30):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(VOC.format(width=width, height=height, difficult=difficult, bottom=bottom))


def test_voc_difficult_objects_are_ignored(tmp_path, table, out):
    pytest.importorskip('mmdet')
    for i in range(10):
        photo(tmp_path / f'voc/{i}.png')
        voc(tmp_path / f'voc/{i}.xml', difficult=int(i == 0))
    printed = table('voc', tmp_path / 'voc', *out)
    assert 'note           1 difficult objects are ignored' in printed
    written = json.loads((tmp_path / 'mine/train.json').read_text())
    assert [one['iscrowd'] for one in written['annotations']] == [1, 0, 0, 0, 0, 0, 0, 0]
    assert written['annotations'][0]['bbox'] == [4, 5, 20, 25]


def test_voc_files_of_equal_names_are_kept(tmp_path, table, refused, out):
    pytest.importorskip('mmdet')
    for part in ('train', 'valid'):
        for i in range(3):
            photo(tmp_path / f'voc/{part}/images/{i}.png')
            voc(tmp_path / f'voc/{part}/labels/{i}.xml', bottom=30 if part == 'train' else 40)
    printed = table('voc', tmp_path / 'voc', *out)
    assert (
        'used           3 training images' in printed
        and 'used           3 validation images' in printed
    )
    for part, bottom in (('train', 30), ('val', 40)):
        written = json.loads((tmp_path / f'mine/{part}.json').read_text())
        assert {one['bbox'][3] for one in written['annotations']} == {bottom - 5}
    photo(tmp_path / 'voc/train/images/0.jpg')
    line = refused('make_config', 'voc', tmp_path / 'voc', *out)
    assert 'train/labels/0.xml (train/images/0.jpg, train/images/0.png)' in line


def test_voc_faults(tmp_path, table, refused, out):
    pytest.importorskip('mmdet')
    for i in range(10):
        photo(tmp_path / f'voc/JPEGImages/{i}.png')
        photo(tmp_path / f'voc/SegmentationClass/{i}.png')
        voc(tmp_path / f'voc/Annotations/{i}.xml')
    data = ['voc', tmp_path / 'voc', *out]
    assert 'exit code 0' in table(*data, '--strict')
    (tmp_path / 'voc/Annotations/9.xml').unlink()
    assert (
        f'skipped        1 images without a label file: {tmp_path}/voc/JPEGImages/9.png'
        in table(*data)
    )
    voc(tmp_path / 'voc/Annotations/10.xml')
    assert 'label files without an image' in refused('make_config', *data)
    voc(tmp_path / 'voc/Annotations/10.xml', bottom=3)
    assert 'corners are in the wrong order' not in refused('make_config', *data)
    (tmp_path / 'voc/Annotations/10.xml').unlink()
    voc(tmp_path / 'voc/Annotations/0.xml', width=99)
    voc(tmp_path / 'voc/Annotations/1.xml', bottom=3)
    voc(tmp_path / 'voc/Annotations/2.xml', bottom='x')
    (tmp_path / 'voc/Annotations/3.xml').write_text('<annotation>')
    line = refused('make_config', *data)
    for reason in (
        'not those of the file',
        'in the wrong order',
        'without four numbers',
        'that are not XML',
    ):
        assert reason in line


def test_voc_names_with_spaces_in_lists(tmp_path, table, refused, out):
    pytest.importorskip('mmdet')
    names = ['my photo 1', 'my photo 2', 'a', 'b.c', 'd']
    for name in names:
        photo(tmp_path / f'voc/JPEGImages/{name}.png')
        voc(tmp_path / f'voc/Annotations/{name}.xml')
    lists = tmp_path / 'voc/ImageSets/Main'
    lists.mkdir(parents=True)
    (lists / 'train.txt').write_bytes(b'\xef\xbb\xbfmy photo 1\r\nmy photo 2\r\nb.c\r\n')
    (lists / 'val.txt').write_text('a\n')
    printed = table('voc', tmp_path / 'voc', *out)
    assert (
        'used           3 training images' in printed
        and 'used           1 validation images' in printed
    )
    assert 'skipped        1 images in none of train.txt, val.txt' in printed
    (lists / 'val.txt').write_text('a\nnobody\n')
    line = refused('make_config', 'voc', tmp_path / 'voc', *out)
    assert f'names in a list without label file and image: {lists}/val.txt: nobody' in line


def test_voc_in_stored_orientation_is_refused(tmp_path, refused, table, out):
    """Boxes were cut from 4 to 2 px."""
    pytest.importorskip('mmdet')
    for i in range(10):
        photo(tmp_path / f'voc/{i}.jpg', (WIDTH, HEIGHT), orientation=6)
        voc(tmp_path / f'voc/{i}.xml', width=HEIGHT, height=WIDTH, bottom=60)
    assert 'exit code 0' in table('voc', tmp_path / 'voc', *out, '--strict')
    text = (tmp_path / 'voc/3.xml').read_text()
    (tmp_path / 'voc/3.xml').write_text(text.replace('>24<', '>64<').replace('>60<', '>30<'))
    line = refused('make_config', 'voc', tmp_path / 'voc', *out)
    assert (
        'labels that fit the image only before its EXIF rotation: draw them on the upright image:'
        f' {tmp_path}' in line
    )


def test_dot_names_and_links(tmp_path, table, out):
    pytest.importorskip('mmdet')
    for i in range(10):
        photo(tmp_path / f'elsewhere/{i}.png')
        voc(tmp_path / f'voc/{i}.xml')
    voc(tmp_path / 'voc/._1.xml')
    photo(tmp_path / 'voc/.ipynb_checkpoints/1.png')
    (tmp_path / 'voc/images').symlink_to(tmp_path / 'elsewhere')
    (tmp_path / 'elsewhere/again').symlink_to(tmp_path / 'elsewhere')
    printed = table('voc', tmp_path / 'voc', *out)
    assert (
        'names that begin with a dot' in printed
        and '.ipynb_checkpoints' in printed
        and '._1.xml' in printed
    )
    assert 'links to a folder that contains them' in printed
    assert 'used           8 training images' in printed


def mask(path, values, size=(WIDTH, HEIGHT), dtype=np.uint8):
    path.parent.mkdir(parents=True, exist_ok=True)
    array = np.resize(np.array(values, dtype), (size[1], size[0], *np.shape(values)[1:]))
    cv2.imwrite(str(path), array)


class MaskSet:
    """Five images with masks of two classes."""

    def __init__(self, folder):
        self.folder = folder
        for i in range(5):
            photo(folder / f'images/{i}.png')
            mask(folder / f'masks/{i}.png', [0, 1, 1])

    def arguments(self):
        return [
            'masks',
            self.folder / 'images',
            self.folder / 'masks',
            '--out',
            self.folder / 'mine.py',
            '--overwrite',
        ]

    def written(self, name):
        return np.asarray(Image.open(self.folder / f'mine/masks/{name}.png'))


@pytest.fixture
def masks(tmp_path):
    pytest.importorskip('mmseg')
    return MaskSet(tmp_path)


def test_masks_without_faults(masks, table):
    printed = table(*masks.arguments(), '--strict')
    assert 'used           4 training images' in printed and 'exit code 0' in printed
    assert masks.written('3.png').ravel()[:4].tolist() == [0, 1, 1, 0]


def test_images_of_one_name_and_of_several_kinds(masks, table, refused):
    """`.jpg` beside `.png` in one folder, and the suffix in the mask's name."""
    from mmengine.registry import DATASETS, init_default_scope

    photo(masks.folder / 'images/a.jpg')
    mask(masks.folder / 'masks/a_mask.png', [1, 0])
    printed = table(*masks.arguments())
    assert 'used           5 training images' in printed
    init_default_scope('mmseg')
    for loader in ('train_dataloader', 'val_dataloader'):
        data = DATASETS.build(read_config(masks.folder / 'mine.py')[loader].dataset)
        for index in range(len(data)):
            name = data.get_data_info(index)['img_path'].rpartition('/')[2]
            wanted = [1, 0, 1, 0] if name == 'a.jpg' else [0, 1, 1, 0]
            assert (
                cv2.imread(data.get_data_info(index)['seg_map_path'], -1).ravel()[:4].tolist()
                == wanted
            )
    photo(masks.folder / 'images/a.png')
    line = refused('make_config', *masks.arguments())
    assert 'images of one name, whose masks cannot be told apart' in line
    assert 'images/a.jpg' in line and 'images/a.png' in line
    (masks.folder / 'masks/a_mask.png').unlink()
    mask(masks.folder / 'masks/a.jpg.png', [1, 0])
    mask(masks.folder / 'masks/a.png.png', [0, 1])
    table(*masks.arguments())
    assert masks.written('a.jpg').ravel()[:2].tolist() == [1, 0]
    assert masks.written('a.png').ravel()[:2].tolist() == [0, 1]


def test_masks_that_are_left_over(masks, table):
    mask(masks.folder / 'masks/0_edges.png', [0, 9])
    mask(masks.folder / 'masks/other.png', [0, 9])
    printed = table(*masks.arguments())
    assert 'skipped        1 masks beside one of the name of the image: 0_edges.png' in printed
    assert 'skipped        1 masks without an image: other.png' in printed


def test_masks_and_orientation(masks, table, refused):
    (masks.folder / 'images/0.png').unlink()
    file = masks.folder / 'images/0.jpg'
    photo(file, (WIDTH, HEIGHT), orientation=6)
    line = refused('make_config', *masks.arguments())
    assert (
        'masks of the image before its EXIF rotation' in line
        and str(file) in line
        and 'masks/0.png' in line
    )
    mask(masks.folder / 'masks/0.png', [0, 1, 1], (HEIGHT, WIDTH))
    assert 'exit code 0' in table(*masks.arguments())
    assert masks.written('0.jpg').shape == cv2.imread(str(file)).shape[:2]
    mask(masks.folder / 'masks/1.png', [0, 1, 1], (10, 9))
    assert 'masks of another size than their image' in refused('make_config', *masks.arguments())


@pytest.mark.parametrize('named', [False, True])
def test_masks_of_more_than_8_bits(masks, refused, table, named):
    """A value of 300 became class 44."""
    mask(masks.folder / 'masks/1.png', [0, 300], dtype=np.uint16)
    (masks.folder / 'classes.txt').write_text('a\nb\n')
    classes = ['--classes', masks.folder / 'classes.txt'] if named else []
    line = refused('make_config', *masks.arguments(), *classes)
    assert f'value 300 (1536 px, {masks.folder}/masks/1.png)' in line
    mask(masks.folder / 'masks/1.png', [0, 1], dtype=np.uint16)
    table(*masks.arguments(), *classes)
    assert masks.written('1.png').ravel()[:4].tolist() == [0, 1, 0, 1]


def test_jpeg_masks_are_refused(masks, refused):
    (masks.folder / 'masks/1.png').unlink()
    mask(masks.folder / 'masks/1.jpg', [0, 255])
    line = refused('make_config', *masks.arguments())
    assert f'masks as JPEG, which changes their values: use PNG: {masks.folder}/masks/1.jpg' in line


def test_values_without_a_name(masks, refused, table):
    array = cv2.imread(str(masks.folder / 'masks/2.png'), -1)
    array[3, 4:7] = 9
    cv2.imwrite(str(masks.folder / 'masks/2.png'), array)
    line = refused('make_config', *masks.arguments())
    assert (
        'values below the highest that no mask has' in line
        and 'value 2, value 3, value 4, ...' in line
    )
    (masks.folder / 'classes.txt').write_text('a\nb\n')
    named = ['--classes', masks.folder / 'classes.txt']
    line = refused('make_config', *masks.arguments(), *named)
    assert f'classes.txt: value 9 (3 px, {masks.folder}/masks/2.png)' in line
    table(*masks.arguments(), *named, '--ignore', '9')
    assert (masks.written('2.png') == 255).sum() == 3
    table(*masks.arguments(), '--ignore', '9')
    assert read_config(masks.folder / 'mine.py').classes == ('class_0', 'class_1')


def test_rare_values_are_asked_about(masks, refused, table):
    array = cv2.imread(str(masks.folder / 'masks/2.png'), -1)
    array[3, 4] = 2
    cv2.imwrite(str(masks.folder / 'masks/2.png'), array)
    line = refused('make_config', *masks.arguments())
    assert 'values of fewer than 0.01% of the pixels' in line and 'value 2 (1 px,' in line
    (masks.folder / 'classes.txt').write_text('a\nb\nc\nd\n')
    printed = table(*masks.arguments(), '--classes', masks.folder / 'classes.txt')
    assert 'note           1 classes that no mask has: d' in printed


def test_instance_masks_are_recognised(masks, refused, table):
    for i in range(5):
        array = np.zeros((HEIGHT, WIDTH), np.uint8)
        for number in range(i + 1):
            array[10:30, 12 * number : 12 * number + 9] = number + 1
        cv2.imwrite(str(masks.folder / f'masks/{i}.png'), array)
    assert 'masks that number objects from 1' in refused('make_config', *masks.arguments())
    (masks.folder / 'classes.txt').write_text('\n'.join('abcdef'))
    assert 'exit code 0' in table(*masks.arguments(), '--classes', masks.folder / 'classes.txt')


def test_names_of_classes(masks, table, refused):
    """A byte order mark is no part of a name, and a number may be."""
    classes = masks.folder / 'classes.txt'
    classes.write_bytes(b'\xef\xbb\xbfroad\nroute 66\n')
    table(*masks.arguments(), '--classes', classes)
    assert read_config(masks.folder / 'mine.py').classes == ('road', 'route 66')
    for i in range(5):
        mask(masks.folder / f'masks/{i}.png', [[0, 0, 0], [30, 20, 10]])  # BGR
    line = refused('make_config', *masks.arguments(), '--classes', classes)
    assert 'colour (10, 20, 30) (7680 px, in 5 masks, most in ' in line
    for text in ('road, 0, 0, 0\nroute 66 10 20 30\n', '0 0 0\troad\n10 20 30\troute 66\n'):
        classes.write_text(text)
        table(*masks.arguments(), '--classes', classes)
        assert read_config(masks.folder / 'mine.py').classes == ('road', 'route 66')
        assert masks.written('0.png').ravel()[:3].tolist() == [0, 1, 0]
    for text, fault in (
        ('road 0 0 0\nroute 66\n', 'a colour in all lines or in none'),
        ('a\na\n', 'each name once'),
    ):
        classes.write_text(text)
        assert fault in refused('make_config', *masks.arguments(), '--classes', classes)


@pytest.fixture
def photos(tmp_path):
    pytest.importorskip('mmpretrain')
    for kind in ('cat', 'dog'):
        for i in range(5):
            photo(tmp_path / f'photos/{kind}/{kind}{i}.png')
    return tmp_path / 'photos'


def test_class_folders_keep_images_of_one_name(photos, table, out):
    photo(photos / 'cat/cat1.jpg')
    printed = table('folders', photos, *out)
    assert 'read          11 images' in printed
    lists = [(photos.parent / f'mine/{part}.txt').read_text() for part in ('train', 'val')]
    lines = sorted(''.join(lists).splitlines())
    assert len(lines) == 11 and lines[1:3] == ['cat/cat1.jpg 0', 'cat/cat1.png 0']


def test_class_folders_with_dot_names_and_links(photos, table, out):
    photo(photos / '.ipynb_checkpoints/cat1.png')
    (photos / 'cat/._cat1.png').write_bytes(b'x')
    for i in range(3):
        photo(photos.parent / f'elsewhere/bird{i}.png')
    (photos / 'bird').symlink_to(photos.parent / 'elsewhere')
    (photos / 'empty').mkdir()
    (photos / 'cat/cat7.heic').write_bytes(b'x')
    printed = table('folders', photos, *out)
    assert read_config(photos.parent / 'mine.py').classes == ('bird', 'cat', 'dog')
    assert f'skipped        2 names that begin with a dot: {photos}/.ipynb_checkpoints, ' in printed
    assert (
        f'skipped        1 images of a kind that is not read (.heic): {photos}/cat/cat7.heic'
        in printed
    )
    assert f'note           1 folders without images: {photos}/empty' in printed


def test_class_folders_that_are_no_classes(photos, refused, table, out):
    photo(photos / 'alone.png')
    photo(photos / 'cat/old/a.png')
    line = refused('make_config', 'folders', photos, *out)
    assert f'images outside of <class>/: {photos}/alone.png' in line
    assert f'images deeper than <class>/: {photos}/cat/old/a.png' in line


def test_class_folders_with_a_split(photos, refused, table, out):
    for part in ('train', 'val', 'extra'):
        for kind in ('cat', 'dog'):
            for i in range(2):
                photo(photos.parent / f'parts/{part}/{kind}/{part}{i}.png')
    parts = photos.parent / 'parts'
    printed = table('folders', parts, *out)
    assert (
        'used           4 training images' in printed
        and 'used           4 validation images' in printed
    )
    assert 'skipped        4 images in neither train/ nor val/' in printed
    photo(parts / 'val/bird/1.png')
    assert 'classes without a training image: bird' in refused(
        'make_config', 'folders', parts, *out
    )


def test_damaged_images_in_class_folders_are_named(photos, refused, out):
    (photos / 'cat/cat1.png').write_bytes((photos / 'cat/cat0.png').read_bytes()[:200])
    (photos / 'dog/dog3.png').write_bytes(b'')
    line = refused('make_config', 'folders', photos, *out)
    assert f'2 refused: images that cannot be read: {photos}/cat/cat1.png (' in line
    assert f'{photos}/dog/dog3.png (the file is empty)' in line


YAML = 'path: {path}\ntrain: {train}\nval: {val}\nnames: {names}\n'


class YoloSet:
    """Five images of training and two of validation with a box of YOLO's each."""

    def __init__(self, folder):
        self.folder = folder / 'yolo'
        for part, count in (('train', 5), ('val', 2)):
            for i in range(count):
                photo(self.folder / f'images/{part}/{part}{i}.png')
                self.label(f'{part}/{part}{i}', '1 0.5 0.5 0.25 0.5')
        self.yaml()

    def label(self, name, text):
        path = self.folder / f'labels/{name}.txt'
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def yaml(self, **values):
        values = {
            'path': '.',
            'train': 'images/train',
            'val': 'images/val',
            'names': '[cat, dog]',
            **values,
        }
        (self.folder / 'data.yaml').write_text(YAML.format(**values))

    def written(self):
        return json.loads((self.folder.parent / 'mine/train.json').read_text())


@pytest.fixture
def yolo(tmp_path):
    pytest.importorskip('mmdet')
    return YoloSet(tmp_path)


def test_yolo_boxes_and_polygons(yolo, table, out):
    yolo.label('train/train1', '0 0.25 0.25 0.75 0.25 0.75 0.5\n\n1 0.5 0.5 1 1\n')
    for place in (yolo.folder, yolo.folder / 'data.yaml'):
        printed = table(place, *out, '--strict')
        assert f'The data are read as: yolo {place}\n' in printed
        assert (
            'used           5 training images' in printed
            and 'used           2 validation images' in printed
        )
        written = yolo.written()
        assert [one['bbox'] for one in written['annotations'][:3]] == [
            [24, 12, 16, 24],
            [16, 12, 32, 12],
            [0, 0, 64, 48],
        ]
        assert [one['category_id'] for one in written['annotations'][:3]] == [1, 0, 1]
        polygon = written['annotations'][1]
        assert (polygon['segmentation'], polygon['area']) == ([[16, 12, 48, 12, 48, 24]], 192)


@pytest.mark.parametrize(
    ('line', 'reason'),
    [
        ('2 0.5 0.5 0.5 0.5', 'classes outside 0 to 1'),
        ('0.5 0.5 0.5 0.5 0.5', 'classes outside 0 to 1'),
        ('1 0.5 0.5 0.5', 'lines of neither CLASS X Y WIDTH HEIGHT nor'),
        ('1 0.5 0.5 0.5 0.5 0.9', 'lines of neither CLASS X Y WIDTH HEIGHT nor'),
        ('1 30 20 10 10', 'coordinates that are no shares of 0 to 1'),
        ('1 nan 0.5 0.1 0.1', 'coordinates that are no shares of 0 to 1'),
        ('dog 0.5 0.5 0.5 0.5', 'lines with words that are no numbers'),
    ],
)
def test_faults_of_yolo_lines(yolo, refused, out, line, reason):
    yolo.label('train/train3', f'1 0.5 0.5 0.5 0.5\n{line}\n')
    text = refused('make_config', yolo.folder, *out)
    assert reason in text and f'{yolo.folder}/labels/train/train3.txt: line 2 (' in text


def test_yolo_images_without_labels(yolo, table, refused, out):
    (yolo.folder / 'labels/train/train3.txt').unlink()
    yolo.label('train/train2', '')
    yolo.label('train/nobody', '0 0.5 0.5 0.5 0.5')
    yolo.label('train/train1', '1 0.5 0.5 0.5 0.5\n1 0.5 0.5 0.5 0.5\n')
    printed = table(yolo.folder, *out)
    assert (
        'note           1 images without a label file: taken as images without objects' in printed
    )
    assert (
        'skipped        1 text files without an image' in printed
        and 'skipped        1 objects that are' in printed
    )
    assert 'used           2 training images without objects' in printed
    photo(yolo.folder / 'images/train/images/a.png')
    (yolo.folder / 'images/train/images/a.txt').write_text('1 0.5 0.5 0.5 0.5')
    yolo.folder.joinpath('images/train/labels').mkdir()
    (yolo.folder / 'images/train/labels/a.txt').write_text('0 0.5 0.5 0.5 0.5')
    assert 'images with two label files' in refused('make_config', yolo.folder, *out)


def test_yolo_layouts(yolo, table, refused, out):
    yolo.yaml(
        path='/nowhere', train='../images/train', names='{0: cat, 1: route 66}'
    )  # as Roboflow writes it
    assert 'used           5 training images' in table(yolo.folder, *out)
    (yolo.folder / 'train.txt').write_text('images/train/train0.png\nimages/train/train1.png\n')
    yolo.yaml(train='train.txt', val='[images/val]')
    assert 'used           2 training images' in table(yolo.folder, *out)
    for values, fault in (
        (dict(names='{1: cat}'), 'the keys of names'),
        (dict(names='[cat]\nnc: 2'), 'has nc: 2 and 1 names'),
        (dict(names='[cat, dog]\nkpt_shape: [17, 3]'), 'is of keypoints'),
        (dict(train='none'), "names 'none', but there is none of"),
        (dict(names='[cat'), 'is not YAML'),
    ):
        yolo.yaml(**values)
        assert fault in refused('make_config', yolo.folder, *out)
    (yolo.folder / 'data.yaml').unlink()
    (yolo.folder / 'train.txt').unlink()
    assert 'no data.yaml or classes.txt or obj.names' in refused('make_config', yolo.folder, *out)
    (yolo.folder / 'labels/classes.txt').write_bytes(b'\xef\xbb\xbfcat\nroute 66\n')
    printed = table(yolo.folder, *out, '--strict')
    assert (
        'used           5 training images' in printed
        and 'used           2 validation images' in printed
    )
    assert read_config(yolo.folder.parent / 'mine.py').classes == ('cat', 'route 66')


def test_yolo_labels_beside_the_images(tmp_path, table, out):
    pytest.importorskip('mmdet')
    for i in range(5):
        photo(tmp_path / f'data/{i}.jpg', (WIDTH, HEIGHT), orientation=6)
        (tmp_path / f'data/{i}.txt').write_text('0 0.5 0.5 0.5 0.5')
    (tmp_path / 'data/classes.txt').write_text('cat\n')
    printed = table(tmp_path / 'data', *out)
    assert 'The data are read as: yolo' in printed and 'skipped' not in printed
    written = json.loads((tmp_path / 'mine/train.json').read_text())
    # Shares are of the upright image.
    assert [one['bbox'] for one in written['annotations']] == [[12, 16, 24, 32]] * 4


def test_recognised_forms(coco, masks, photos, table, out, refused):
    folder = coco.folder
    for image in coco.images:
        mask(folder / 'masks' / image['file_name'], [0, 1])
    file = coco.arguments()[1]
    assert f'read as: coco {file} {folder}/images\n' in table(file, folder / 'images', *out)
    assert f'read as: masks {folder}/images {folder}/masks\n' in table(
        folder / 'images', folder / 'masks', *out
    )
    assert f'read as: folders {photos}\n' in table(photos, *out)
    assert 'there is no file or folder' in refused('make_config', 'vocc', photos, *out)
    assert '--val: only coco and instances have it, the data are folders' in refused(
        'make_config', photos, '--val', 'x', *out
    )
    assert 'recognised; name it' in refused('make_config', photos, photos, photos, *out)


def test_recognised_folders_of_masks(masks, table, out):
    (masks.folder / 'data').mkdir()
    for name in ('images', 'masks'):
        (masks.folder / name).rename(masks.folder / 'data' / name)
    assert f'read as: masks {masks.folder}/data/images {masks.folder}/data/masks\n' in table(
        masks.folder / 'data', *out
    )


def test_recognised_coco_layouts(coco, table, refused, out):
    """As Roboflow and COCO itself lay files out."""
    roboflow, own = coco.folder / 'roboflow', coco.folder / 'own'
    for part, other in (('train', 'train2017'), ('valid', 'val2017'), ('test', 'test2017')):
        for image in coco.images:
            photo(roboflow / part / image['file_name'], seed=[len(part), image['id']])
            photo(own / other / image['file_name'], seed=[len(part), image['id']])
        file = coco.arguments()[1]
        file.rename(roboflow / part / '_annotations.coco.json')
        file = coco.arguments()[1]
        (own / 'annotations').mkdir(exist_ok=True)
        file.rename(own / f'annotations/instances_{other}.json')
    (own / 'annotations/captions_train2017.json').write_text('{"images": [], "annotations": []}')
    printed = table(roboflow, *out)
    train, val = roboflow / 'train', roboflow / 'valid'
    wanted = (
        f'coco {train}/_annotations.coco.json {train} --val {val}/_annotations.coco.json {val}\n'
    )
    assert f'read as: {wanted}' in printed
    assert (
        'used          10 training images' in printed
        and 'used          10 validation images' in printed
    )
    printed = table(own, *out)
    wanted = f'--val {own}/annotations/instances_val2017.json {own}/val2017\n'
    assert f'instances_train2017.json {own}/train2017 {wanted}' in printed
    (own / 'annotations/more_train.json').write_text(
        (own / 'annotations/instances_train2017.json').read_text()
    )
    assert 'has several COCO files' in refused('make_config', own, *out)
    (roboflow / 'data.yaml').write_text('names: [cat]')
    assert 'has more than one form, coco (' in refused('make_config', roboflow, *out)


def test_labelme_is_named(tmp_path, refused, out):
    photo(tmp_path / 'data/1.png')
    (tmp_path / 'data/1.json').write_text('{"shapes": [], "imagePath": "1.png"}')
    assert 'is of LabelMe' in refused('make_config', tmp_path / 'data', *out)


def numbered_masks(folder):
    """Masks of two classes; an image of two objects of the first, and one of the second."""
    for i in range(5):
        for kind, spans in (('cat', ((4, 20), (30, 40))), ('route 66', ((25, 60),))):
            array = np.zeros((HEIGHT, WIDTH), np.uint8)
            for number, (left, right) in enumerate(spans, 1):
                array[10:30, left + i : right] = number
            file = folder / f'numbers/{kind}/{i}.png'
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(array).save(file)
    (folder / 'classes.txt').write_text('cat\nroute 66\n')
    return ['instances', folder / 'images', folder / 'numbers']


def test_masks_that_number_objects(masks, table, refused, out):
    """Each value of a mask is an object; several classes have a folder of masks each."""
    pytest.importorskip('mmdet')
    data = [*numbered_masks(masks.folder), *out]
    named = [*data, '--classes', masks.folder / 'classes.txt']
    assert 'used          12 training objects' in table(*named, '--strict')
    written = json.loads((masks.folder / 'mine/train.json').read_text())
    assert [category['name'] for category in written['categories']] == ['cat', 'route 66']
    of_first = [(one['bbox'], one['area']) for one in written['annotations'][:3]]
    assert of_first == [([4, 10, 16, 20], 320), ([30, 10, 10, 20], 200), ([25, 10, 35, 20], 700)]
    assert read_config(masks.folder / 'mine.py').model.roi_head.mask_head.num_classes == 2
    assert 'images without a mask' in refused('make_config', *data)
    one_class = [*data[:2], data[2] / 'cat', *data[3:]]
    assert 'used           8 training objects' in table(*one_class)
    assert read_config(masks.folder / 'mine.py').classes == ('object',)
    (masks.folder / 'numbers/cat/3.png').unlink()
    assert 'used          10 training objects' in table(*named)
    (masks.folder / 'numbers/route 66/3.png').unlink()
    assert 'images without a mask' in refused('make_config', *named)


@pytest.mark.parametrize(
    ('values', 'reason'),
    [
        ([0, 255], 'masks of 0 and 255 only'),
        ([0, 1], 'masks of one value in several pieces'),
        ([[0, 0, 0], [255, 255, 255]], 'masks of 0 and 255 only'),
    ],
)
def test_class_maps_are_no_instances(masks, refused, out, values, reason):
    pytest.importorskip('mmdet')
    for i in range(5):
        mask(masks.folder / f'masks/{i}.png', values)
    data = ['instances', masks.folder / 'images', masks.folder / 'masks', *out]
    assert reason in refused('make_config', *data)


def test_outlines_are_for_instances(coco, yolo, table, refused, out):
    for one in coco.annotations:
        one['segmentation'] = [[4, 5, 24, 5, 24, 21]]
    assert 'outlines are left out; form instances trains on them' in table(*coco.arguments(), *out)
    arguments = ['instances', *coco.arguments()[1:], *out]
    assert 'used          16 training objects' in table(*arguments, '--strict')
    coco.annotations[3].pop('segmentation')
    coco.arguments()
    assert 'objects without an outline, which form instances needs' in refused(
        'make_config', *arguments
    )
    coco.annotations[3]['iscrowd'] = 1
    coco.arguments()
    assert 'skipped        1 regions to ignore without an outline' in table(*arguments)
    for file in yolo.folder.glob('labels/*/*.txt'):
        file.write_text('1 0.25 0.25 0.75 0.25 0.75 0.5\n')
    assert 'used           5 training objects' in table('instances', yolo.folder, *out)
    assert 'instances takes COCO JSON' in refused(
        'make_config', 'instances', yolo.folder / 'images', *out
    )


def test_large_images_with_small_objects_are_cut_into_tiles(tmp_path, table, out):
    """Boxes in tiles have the pixels of the boxes in the images."""
    pytest.importorskip('mmdet')
    from pycocotools import mask as coco_mask

    rng = np.random.default_rng(0)
    images, annotations = [], []
    for i in range(3):
        array = rng.integers(0, 60, (110, 150, 3), np.uint8).repeat(10, 0).repeat(10, 1)
        images.append(dict(id=i, file_name=f'a/{i}.png'))
        for left, top in ((30, 40), (700, 700), (632, 300)):
            array[top : top + 20, left : left + 20] = 255
            corners = [left, top, left + 20, top, left + 20, top + 20, left, top + 20]
            box = dict(bbox=[left, top, 20, 20], segmentation=[corners])
            annotations.append(dict(id=len(annotations), image_id=i, category_id=1, **box))
        (tmp_path / 'a').mkdir(exist_ok=True)
        Image.fromarray(array).save(tmp_path / f'a/{i}.png')
    categories = [dict(id=1, name='square')]
    content = dict(images=images, annotations=annotations, categories=categories)
    (tmp_path / 'all.json').write_text(json.dumps(content))
    for form in ('coco', 'instances'):
        printed = table(form, tmp_path / 'all.json', tmp_path, *out)
        assert 'smallest class: 20 px, 9 px in images of 640 px: the config trains on' in printed
        assert '--scale native --tile-size 640 --overlap 64 --max-pixels 409600' in printed
        cfg = read_config(tmp_path / 'mine.py')
        assert cfg.scale == (640, 640)
        train = json.loads((tmp_path / 'mine/train.json').read_text())
        # (700, 700) is whole in one tile, (30, 40) too, (632, 300) whole in one, cut in another.
        assert len(train['annotations']) == 2 * 4
        files = {image['id']: image for image in train['images']}
        for one in train['annotations']:
            tile = cv2.imread(
                str(tmp_path / 'mine/tiles/train' / files[one['image_id']]['file_name'])
            )
            assert tile.shape[:2] == (640, 640)
            x, y, width, height = one['bbox']
            assert one['iscrowd'] == (width * height < 200)
            mask = tile[..., 0] > 150
            assert mask[y : y + height, x : x + width].all()
            if form == 'instances':
                outline = one['segmentation']
                if isinstance(outline, list):
                    outline = coco_mask.merge(coco_mask.frPyObjects(outline, 640, 640))
                found = coco_mask.decode(outline).astype(bool)
                assert found.sum() == width * height and mask[found].all()


def test_class_folders_are_split_by_class(photos, table, out):
    for kind, count in (('few', 3), ('two', 2), ('one', 1)):
        for i in range(count):
            photo(photos / f'{kind}/{kind}{i}.png')
    table('folders', photos, *out)
    held_out = (photos.parent / 'mine/val.txt').read_text().splitlines()
    assert held_out == ['cat/cat4.png 0', 'dog/dog4.png 1', 'few/few2.png 2']


def test_images_that_no_file_lists_are_noted(coco, table, out):
    photo(coco.folder / 'images/more.png')
    wanted = f'note           1 images that no JSON file lists: {coco.folder}/images/more.png'
    assert wanted in table(*coco.arguments(), *out)


def test_predictions_are_added_to_the_training(coco, table, refused, out, monkeypatch):
    """Paths of predicted images start from the working directory, or are absolute."""
    monkeypatch.chdir(coco.folder)
    for i in range(2):
        photo(coco.folder / f'unlabelled/a{i}.png')
    places = ['unlabelled/a0.png', str(coco.folder / 'unlabelled/a1.png')]
    size = dict(width=WIDTH, height=HEIGHT)
    images = [dict(id=i, file_name=place, **size) for i, place in enumerate(places, 1)]
    categories = [dict(id=0, name='dog'), dict(id=1, name='cat')]
    found = [dict(image_id=i, category_id=0, bbox=[1, 2, 30, 40], score=0.9) for i in (1, 2)]
    (coco.folder / 'labels').mkdir()
    for name, content in (
        ('images', dict(images=images, categories=categories)),
        ('predictions', found),
    ):
        (coco.folder / f'labels/{name}.json').write_text(json.dumps(content))
    arguments = [*coco.arguments(), '--add', 'labels', *out]
    printed = table(*arguments)
    assert (
        'used          10 training images' in printed and 'used           2 validation' in printed
    )
    written = json.loads((coco.folder / 'mine/train.json').read_text())
    names = {category['id']: category['name'] for category in written['categories']}
    last = written['annotations'][-1]
    assert (names[last['category_id']], last['bbox']) == ('dog', [1, 2, 30, 40])
    from mmengine.registry import DATASETS, init_default_scope

    init_default_scope('mmdet')
    data = DATASETS.build(read_config(coco.folder / 'mine.py').train_dataloader.dataset)
    assert all(cv2.imread(data.get_data_info(i)['img_path']) is not None for i in range(len(data)))
    (coco.folder / 'labels/predictions.json').write_text('[]')
    assert 'labels has no predictions' in refused('make_config', *arguments)
