"""Faults of a user's own data: each is refused, altered, skipped or noted by a stated rule, with
the file named.
"""

import json
import shutil

import cv2
import numpy as np
import pytest
from PIL import Image

from cpvt_backbones.toolboxes import read_config

WIDTH, HEIGHT = 64, 48
NAN = float('nan')


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


def mask(path, values, size=(WIDTH, HEIGHT), dtype=np.uint8):
    """Write an image that repeats the values."""
    path.parent.mkdir(parents=True, exist_ok=True)
    array = np.resize(np.array(values, dtype), (size[1], size[0], *np.shape(values)[1:]))
    cv2.imwrite(str(path), array)


@pytest.fixture
def table(capsys, call, tmp_path):
    """Run make_config.py, which writes ``mine.py``, and return the lines that it prints."""

    def table(*arguments):
        capsys.readouterr()
        call('make_config', *arguments, '--out', tmp_path / 'mine.py', '--overwrite')
        return capsys.readouterr().out

    return table


@pytest.fixture
def refuse(refused, tmp_path):
    """Run make_config.py, which must end with an error; returns its line."""
    out = ['--out', tmp_path / 'mine.py', '--overwrite']
    return lambda *arguments: refused('make_config', *arguments, *out)


@pytest.fixture
def config(tmp_path):
    return lambda: read_config(tmp_path / 'mine.py')


def assert_used(printed, train, val):
    assert f'used  {train:10} training images' in printed
    assert f'used  {val:10} validation images' in printed


def dataset(config, part):
    """The data set of a config's dataloader."""
    from mmengine.registry import DATASETS, init_default_scope

    init_default_scope(config.default_scope)
    return DATASETS.build(config[f'{part}_dataloader'].dataset)


# -- COCO JSON
# --------------------------------------------------------------------------------------------------


class CocoSet:
    """Ten images with two boxes each, and a JSON file of them that a test changes."""

    def __init__(self, folder):
        self.folder = folder
        size = dict(width=WIDTH, height=HEIGHT)
        self.images = [dict(id=i, file_name=f'{i}.png', **size) for i in range(10)]
        self.annotations = []
        for i in range(20):
            box = [4 + i, 5, 20, 16]
            self.annotations.append(dict(id=i, image_id=i // 2, category_id=i % 2 + 1, bbox=box))
        self.categories = [dict(id=1, name='cat'), dict(id=2, name='dog')]
        for image in self.images:
            photo(folder / 'images' / image['file_name'])

    def arguments(self, name='all.json', form='coco'):
        content = dict(images=self.images, annotations=self.annotations, categories=self.categories)
        file = self.folder / name
        file.write_text(json.dumps(content))
        return [form, file, self.folder / 'images']

    def read(self, part):
        return json.loads((self.folder / f'mine/{part}.json').read_text())

    def written(self):
        parts = [self.read(part) for part in ('train', 'val')]
        both = {}
        for key in ('images', 'annotations'):
            both[key] = sorted(parts[0][key] + parts[1][key], key=lambda one: one['id'])
        return both, parts[0]['categories']


@pytest.fixture
def coco(tmp_path):
    pytest.importorskip('mmdet')
    return CocoSet(tmp_path)


def test_coco_without_faults(coco, table):
    printed = table(*coco.arguments(), '--strict')
    assert 'read          10 images' in printed and 'read          20 objects' in printed
    assert_used(printed, 8, 2)
    assert 'exit code 0' in printed
    assert not any(word in printed for word in ('skipped', 'altered', 'note'))
    written, categories = coco.written()
    boxes = [one['bbox'] for one in written['annotations']]
    assert boxes == [one['bbox'] for one in coco.annotations]
    assert categories == coco.categories


RLE = dict(size=[HEIGHT, WIDTH], counts=[HEIGHT * 10 + 8, 16, HEIGHT * WIDTH - HEIGHT * 10 - 24])
SHORT_RLE = dict(size=[HEIGHT, WIDTH], counts=[9])
TRIANGLE = [[4, 5, 24, 5, 24, 21]]
# Changes of the first annotation (None removes a key), the outcome, and its reason.
FAULTS = [
    (dict(bbox=[9, 9, -3, 5]), 'refused', 'boxes of negative width or height'),
    (dict(bbox=[9, 9, NAN, 5]), 'refused', 'bbox is not four finite numbers'),
    (dict(bbox=['9', 9, 9, 5]), 'refused', 'bbox is not four finite numbers'),
    (dict(bbox=[9, 9, 9]), 'refused', 'bbox is not four finite numbers'),
    (dict(bbox=[]), 'refused', 'objects with neither bbox nor outline'),
    (dict(bbox=None), 'refused', 'objects with neither bbox nor outline'),
    (dict(bbox=[9, 9, 0, 5]), 'skipped', 'boxes of no width or height'),
    (dict(bbox=[9, 9, 0.5, 5]), 'skipped', 'boxes narrower or lower than 1 px'),
    (dict(bbox=[70, 9, 5, 5]), 'skipped', 'boxes outside their image'),
    (dict(bbox=[60, 9, 9, 5]), 'altered', 'boxes are clipped to their image'),
    (dict(image_id=77), 'skipped', 'annotations of images that are not listed'),
    (dict(image_id=None), 'refused', 'annotations without image_id'),
    (dict(image_id='0'), 'altered', 'image_id as text'),
    (dict(category_id=9), 'refused', 'annotations of categories that are not listed'),
    (dict(category_id='1'), 'altered', 'category_id as text'),
    (dict(category_id=None), 'refused', 'annotations without category_id'),
    (dict(id=1), 'altered', 'annotation ids that are missing'),
    (dict(id=None), 'altered', 'annotation ids that are missing'),
    (dict(bbox=[5, 5, 20, 16], category_id=2), 'skipped', 'objects that are listed twice'),
    (dict(iscrowd=2), 'refused', 'iscrowd is neither 0 nor 1'),
    (dict(bbox=None, segmentation=TRIANGLE), 'altered', 'bbox is derived'),
    (dict(bbox=None, segmentation=RLE), 'altered', 'bbox is derived'),
    (dict(segmentation=[[4, 5, 24, 5]]), 'altered', 'polygons of fewer than three points'),
    (dict(segmentation=dict(size=[9, 9], counts=[81])), 'refused', 'RLE of another size'),
    (dict(segmentation=SHORT_RLE), 'refused', 'RLE whose counts'),
]


@pytest.mark.parametrize(('change', 'outcome', 'reason'), FAULTS, ids=str)
def test_faults_of_coco_objects(coco, table, refuse, change, outcome, reason):
    first = {**coco.annotations[0], **change}
    coco.annotations[0] = {key: value for key, value in first.items() if value is not None}
    if outcome == 'refused':
        assert reason in refuse(*coco.arguments())
        assert not (coco.folder / 'mine.py').exists()
        return
    printed = table(*coco.arguments())
    assert f'{outcome}        1 {reason}' in printed and 'exit code 0' in printed
    written = coco.written()[0]['annotations']
    count = 19 if outcome == 'skipped' else 20
    assert [one['id'] for one in written] == [*range(1, count + 1)]
    assert reason in refuse(*coco.arguments(), '--strict')
    assert reason in (coco.folder / 'mine/check.csv').read_text()


@pytest.mark.parametrize(
    ('part', 'change', 'reason'),
    [
        ('images', dict(id=1), 'images with the id of another'),
        ('images', dict(id=None), 'images without id'),
        ('images', dict(file_name='1.png'), 'images that are listed twice'),
        ('images', dict(file_name=None), 'images without file_name'),
        ('images', dict(file_name='none.png'), 'images that cannot be read'),
        ('images', dict(width=99), 'width and height are not those of the file'),
        ('categories', dict(id=2), 'categories with the id of another'),
        ('categories', dict(id=None), 'categories without id'),
        ('categories', dict(name='dog'), 'categories with the name of another'),
        ('categories', dict(name=' '), 'categories without name'),
    ],
)
def test_faults_of_coco_images_and_categories(coco, refuse, part, change, reason):
    getattr(coco, part)[0].update(change)
    assert reason in refuse(*coco.arguments())


def test_boxes_come_from_outlines_and_are_clipped(coco, table):
    for one, outline in zip(coco.annotations, (TRIANGLE, RLE), strict=False):
        one.pop('bbox')
        one['segmentation'] = outline
    coco.annotations[2]['bbox'] = [-6, 9, 12, 90]
    table(*coco.arguments())
    first, second, third, *_ = coco.written()[0]['annotations']
    assert (first['bbox'], first['area']) == ([4, 5, 20, 16], 160)
    assert (second['bbox'], second['area']) == ([10, 8, 1, 16], 16)
    assert third['bbox'] == [0, 9, 6, 39]


def outline_of(box, corners=(0, 0, 1, 0, 1, 1, 0, 1)):
    """A rectangle as a polygon."""
    left, top, width, height = box
    return [[left + width * x if i % 2 == 0 else top + height * x for i, x in enumerate(corners)]]


SWAPPED = 'Are these top, left, height, width (x and y swapped)?'
CORNERS = 'Are these corners x1, y1, x2, y2?'
CENTRED = 'Are these centre x, centre y, width, height?'


@pytest.mark.parametrize('outlines', [True, False])
@pytest.mark.parametrize(
    ('read', 'guess'),
    [
        (lambda x, y, w, h: [y, x, h, w], SWAPPED),
        (lambda x, y, w, h: [x, y, x + w, y + h], CORNERS),
        (lambda x, y, w, h: [x + w / 2, y + h / 2, w, h], CENTRED),
        (lambda x, y, w, h: [3 * x, 2 * y, w, h], 'Are they of other or resized images?'),
    ],
    ids=['swapped', 'corners', 'centre', 'scaled'],
)
def test_boxes_that_are_no_left_top_width_height(coco, refuse, read, guess, outlines):
    """Such boxes were clipped or skipped, with exit code 0."""
    for i, one in enumerate(coco.annotations):
        box = [38 - i, 24, 24, 21]
        one['bbox'] = read(*box)
        if outlines:
            one['segmentation'] = outline_of(box)
    line = refuse(*coco.arguments(form='instances' if outlines else 'coco'))
    assert guess in line and 'images/0.png: annotation 0 (' in line
    kind = 'that differ from their outlines' if outlines else 'that reach out of their image'
    assert f'boxes {kind}, a tenth of all or more' in line


def test_few_boxes_in_doubt_are_noted(coco, table):
    for one in coco.annotations:
        one['segmentation'] = outline_of(one['bbox'])
    coco.annotations[0]['bbox'] = [5, 5, 20, 26]
    coco.annotations[1]['bbox'] = [-9, 5, 34, 16]
    coco.annotations[1]['segmentation'] = outline_of([0, 5, 25, 16])
    coco.annotations[2]['bbox'][0] += 2.5
    printed = table(*coco.arguments(form='instances'))
    wanted = 'box [5, 5, 20, 26], its outline is in [4, 5, 20, 16])'
    assert 'note           1 boxes that differ from their outlines: the box counts: ' in printed
    assert wanted in printed and 'altered        1 boxes are clipped' in printed


@pytest.mark.parametrize(
    ('names', 'pair'),
    [
        (['raccoon'] * 19 + ['racoon'], 'racoon (1 objects), raccoon (19 objects)'),
        (['cat'] * 18 + ['Cat '] * 2, 'Cat (2 objects), cat (18 objects)'),
        (['stop sign'] * 11 + ['stop_sign'] * 9, 'stop_sign (9 objects), stop sign (11 objects)'),
        (['helmet'] * 11 + ['hemlet'] * 9, 'hemlet (9 objects), helmet (11 objects)'),
        (['cat'] * 11 + ['bat'] * 9, ''),
        (['class 1'] * 18 + ['class 2'] * 2, ''),
        (['motorcycle'] * 18 + ['bicycle'] * 2, ''),
    ],
    ids=str,
)
def test_classes_are_counted_and_similar_names_noted(coco, table, names, pair):
    kinds = [*dict.fromkeys(names)]
    coco.categories = [dict(id=i, name=name) for i, name in enumerate(kinds)]
    for one, name in zip(coco.annotations, names, strict=True):
        one['category_id'] = kinds.index(name)
    printed = table(*coco.arguments())
    wanted = f'note           1 classes with nearly equal names: are they one?: {pair}\n'
    assert (wanted in printed) == bool(pair) == ('nearly equal' in printed)
    train = coco.read('train')['annotations']
    for index, name in enumerate(kinds):
        count = [one['category_id'] for one in train].count(index)
        rest = names.count(name) - count
        line = f'{name.strip()}: {count} training objects, {rest} validation objects\n'
        assert f'class    {index:7} {line}' in printed


def test_the_folder_of_images_is_named(coco, refuse):
    """LabelMe writes JPEGImages/1.jpg in a file beside that folder."""
    for image in coco.images:
        image['file_name'] = f'images/{image["file_name"]}'
    line = refuse(*coco.arguments())
    assert f"such as 'images/0.png', starts from another folder than '{coco.folder}/im" in line
    assert line.endswith(f"give '{coco.folder}'")


def test_ids_as_text_are_replaced(coco, table):
    for image in coco.images:
        image['id'] = f'a{image["id"]}'
    for one in coco.annotations:
        one.update(image_id=f'a{one["image_id"]}', category_id=f'c{one["category_id"]}')
    for category in coco.categories:
        category['id'] = f'c{category["id"]}'
    printed = table(*coco.arguments())
    for kind in ('image', 'category'):
        assert f'{kind} ids that are no integers are replaced' in printed
    written, categories = coco.written()
    assert [image['id'] for image in written['images']] == [*range(1, 11)]
    assert all(isinstance(one['image_id'], int) for one in written['annotations'])
    assert [category['id'] for category in categories] == [1, 2]


def test_categories_are_sorted_and_the_parent_of_roboflow_is_left_out(coco, table, config):
    names = {2: 'dog', 1: 'cat', 0: 'animals', 7: 'unseen'}
    coco.categories = [dict(id=i, name=name, supercategory='animals') for i, name in names.items()]
    coco.categories[2]['supercategory'] = 'none'
    coco.categories.append(dict(id=50, name='_background_', supercategory=None))  # LabelMe's
    printed = table(*coco.arguments())
    left_out = 'parent and background categories without objects are left out'
    assert f'altered        2 {left_out}' in printed
    assert 'note           1 classes without a training object: unseen' in printed
    assert config().classes == ('cat', 'dog', 'unseen')


def test_validation_is_matched_by_name(coco, table, refuse):
    arguments = coco.arguments()
    coco.categories = [dict(id=1, name='dog'), dict(id=5, name='cat'), dict(id=9, name='none')]
    for one in coco.annotations:
        one['category_id'] = {1: 5, 2: 1}[one['category_id']]
    arguments += ['--val', coco.arguments('val.json')[1]]
    printed = table(*arguments)
    assert 'categories are matched by name' in printed
    assert 'skipped        1 categories without objects that training lacks' in printed
    train, val = coco.read('train'), coco.read('val')
    assert train['categories'] == val['categories']
    first = [one['category_id'] for one in train['annotations']]
    assert first == [one['category_id'] for one in val['annotations']]
    coco.annotations[0]['category_id'] = 9
    coco.arguments('val.json')
    assert 'categories with objects that training lacks' in refuse(*arguments)


def test_images_without_objects_are_trained_on(coco, table, config):
    coco.annotations = [one for one in coco.annotations if one['image_id'] in (0, 4)]
    assert 'used           7 training images without objects' in table(*coco.arguments())
    train = dataset(config(), 'train')
    without = [i for i in range(len(train)) if not train.get_data_info(i)['instances']]
    assert (len(train), len(without)) == (8, 7)
    # Nothing in the pipeline replaces such an image by another.
    for index in without:
        assert train[index]['data_samples'].img_id == train.get_data_info(index)['img_id']


def test_damaged_images_are_named_all_at_once(coco, refuse, table):
    photo(coco.folder / 'images/2.jpg', (400, 300))
    whole = (coco.folder / 'images/2.jpg').read_bytes()
    for index, content in {2: whole[: len(whole) * 2 // 3], 5: b'no image', 6: b''}.items():
        coco.images[index]['file_name'] = f'{index}.jpg'
        (coco.folder / f'images/{index}.jpg').write_bytes(content)
    coco.images[2].update(width=400, height=300)
    line = refuse(*coco.arguments())
    assert 'refused        3 images that cannot be read' in line
    assert all(f'images/{index}.jpg (' in line for index in (2, 5, 6))
    coco.images = [image for image in coco.images if image['id'] not in (5, 6)]
    coco.annotations = [one for one in coco.annotations if one['image_id'] not in (5, 6)]
    assert 'exit code 0' in table(*coco.arguments(), '--no-decode')


@pytest.mark.parametrize('size', ['stored', 'upright', 'missing'])
@pytest.mark.parametrize('labels', ['stored', 'upright', 'both', 'none'])
def test_orientation_of_coco(coco, refuse, table, size, labels):
    """A file of 64 x 48 px with orientation 6 is 48 x 64 px upright."""
    file = coco.folder / 'images/0.jpg'
    photo(file, orientation=6)
    assert cv2.imread(str(file)).shape[:2] == (WIDTH, HEIGHT)
    sizes = dict(stored={}, upright=dict(width=48, height=64), missing=dict(width=0, height=0))
    coco.images[0].update(file_name='0.jpg', **sizes[size])
    boxes = dict(stored=[40, 5, 20, 20], upright=[5, 40, 20, 20], both=[5, 5, 20, 20], none=None)
    box = boxes[labels]
    coco.annotations = [one for one in coco.annotations if one['image_id']]
    if box:
        coco.annotations.insert(0, dict(id=0, image_id=0, category_id=1, bbox=box))
    if labels == 'stored' or (labels == 'both' and size == 'stored'):
        line = refuse(*coco.arguments())
        reason = 'only before its EXIF rotation' if labels == 'stored' else 'fit both ways'
        assert str(file) in line and reason in line
        return
    printed = table(*coco.arguments())
    turned = 'altered        1 width and height are turned as EXIF turns the image'
    assert (turned in printed) == (size == 'stored')
    assert 'note           1 images turned by EXIF' in printed
    written, _ = coco.written()
    assert (written['images'][0]['width'], written['images'][0]['height']) == (48, 64)
    assert not box or written['annotations'][0]['bbox'] == box


def test_near_duplicates_and_unlisted_images_are_noted(coco, table):
    images = coco.folder / 'images'
    first = images / '4.png'  # the first of validation
    Image.open(first).resize((80, 60)).save(images / '7.jpg', quality=60)
    coco.images[7].update(file_name='7.jpg', width=80, height=60)
    printed = table(*coco.arguments())
    assert 'note           1 validation images that look like a training image' in printed
    assert f'{first} = {images}/7.jpg' in printed
    assert f'note           1 images that no JSON file lists: {images}/7.png' in printed


def test_values_of_12_bits_are_noted(coco, table):
    rng = np.random.default_rng(0)

    def write(name, limit):
        values = rng.integers(0, limit, (HEIGHT, WIDTH), np.uint16)
        cv2.imwrite(str(coco.folder / 'images' / name), values)

    write('0.png', 4096)
    write('1.png', 4096)
    wanted = 'altered        2 images of 16 bits with values of 0 to 4095 only, training sees 0 to'
    assert f'{wanted} 15 of 255' in table(*coco.arguments())
    write('2.png', 65536)
    assert 'images of 16 bits' not in table(*coco.arguments())


# -- Pascal VOC
# --------------------------------------------------------------------------------------------------

VOC = """<annotation><size><width>{width}</width><height>{height}</height></size>
<object><name>cat</name><difficult>{difficult}</difficult>
<bndbox><xmin>5</xmin><ymin>6</ymin><xmax>{right}</xmax><ymax>{bottom}</ymax></bndbox></object>
</annotation>"""


def label(path, *, width=WIDTH, height=HEIGHT, difficult=0, right=24, bottom=30):
    path.parent.mkdir(parents=True, exist_ok=True)
    values = dict(width=width, height=height, difficult=difficult, right=right, bottom=bottom)
    path.write_text(VOC.format(**values))


@pytest.fixture
def voc(tmp_path):
    """A folder of ten images, in whose Annotations each has a box."""
    pytest.importorskip('mmdet')
    for i in range(10):
        photo(tmp_path / f'voc/JPEGImages/{i}.png')
        label(tmp_path / f'voc/Annotations/{i}.xml')
    return tmp_path / 'voc'


@pytest.mark.parametrize('images', ['', 'pictures'], ids=['beside the labels', 'in a folder'])
def test_voc_without_its_folders_and_difficult_objects(tmp_path, table, images):
    pytest.importorskip('mmdet')
    voc = tmp_path / 'voc'
    for i in range(10):
        photo(voc / images / f'{i}.png')
        label(voc / f'{i}.xml', difficult=int(i == 0))
    if not images:
        photo(voc / 'others/9.png')  # the image beside the label counts
    assert 'note           1 difficult objects are ignored' in table('voc', voc)
    written = json.loads((tmp_path / 'mine/train.json').read_text())['annotations']
    assert [one['iscrowd'] for one in written] == [1, 0, 0, 0, 0, 0, 0, 0]
    assert written[0]['bbox'] == [4, 5, 20, 25]


def test_voc_files_of_equal_names_are_kept(tmp_path, table, refuse):
    pytest.importorskip('mmdet')
    bottoms = dict(train=30, valid=40)
    for part, bottom in bottoms.items():
        for i in range(3):
            photo(tmp_path / f'voc/{part}/images/{i}.png')
            label(tmp_path / f'voc/{part}/labels/{i}.xml', bottom=bottom)
    assert_used(table('voc', tmp_path / 'voc'), 3, 3)
    for part, bottom in zip(('train', 'val'), bottoms.values(), strict=True):
        written = json.loads((tmp_path / f'mine/{part}.json').read_text())
        assert {one['bbox'][3] for one in written['annotations']} == {bottom - 5}
    photo(tmp_path / 'voc/train/images/0.jpg')
    wanted = 'train/labels/0.xml (train/images/0.jpg, train/images/0.png)'
    assert wanted in refuse('voc', tmp_path / 'voc')


def test_voc_faults(voc, table, refuse):
    for i in range(10):
        photo(voc / f'SegmentationClass/{i}.png')
        photo(voc / f'AnnotationsVisualization/{i}.png')
    labels = voc / 'Annotations'
    assert 'exit code 0' in table('voc', voc, '--strict')
    (labels / '9.xml').unlink()
    wanted = f'skipped        1 images without a label file: {voc}/JPEGImages/9.png'
    assert wanted in table('voc', voc)
    label(labels / '10.xml', bottom=3)
    line = refuse('voc', voc)
    assert 'label files without an image' in line and 'in the wrong order' not in line
    (labels / '10.xml').unlink()
    label(labels / '0.xml', width=99)
    label(labels / '1.xml', bottom=3)
    label(labels / '2.xml', bottom='x')
    (labels / '3.xml').write_text('<annotation>')
    line = refuse('voc', voc)
    reasons = 'not those of the file', 'in the wrong order', 'without four numbers', 'are not XML'
    assert all(reason in line for reason in reasons)


def test_voc_names_with_spaces_in_lists(tmp_path, table, refuse):
    pytest.importorskip('mmdet')
    voc = tmp_path / 'voc'
    for name in ('my photo 1', 'my photo 2', 'a', 'b.c', 'd'):
        photo(voc / f'JPEGImages/{name}.png')
        label(voc / f'Annotations/{name}.xml')
    lists = voc / 'ImageSets/Main'
    lists.mkdir(parents=True)
    (lists / 'train.txt').write_bytes(b'\xef\xbb\xbfmy photo 1\r\nmy photo 2\r\nb.c\r\n')
    (lists / 'val.txt').write_text('a\n')
    printed = table('voc', voc)
    assert_used(printed, 3, 1)
    assert 'skipped        1 images in none of train.txt, val.txt' in printed
    (lists / 'val.txt').write_text('a\nnobody\n')
    wanted = f'names in a list without label file and image: {lists}/val.txt: nobody'
    assert wanted in refuse('voc', voc)


def test_voc_in_stored_orientation_is_refused(voc, refuse, table):
    """Boxes were cut from 4 to 2 px."""
    for i in range(10):
        (voc / f'JPEGImages/{i}.png').unlink()
        photo(voc / f'JPEGImages/{i}.jpg', orientation=6)
        label(voc / f'Annotations/{i}.xml', width=HEIGHT, height=WIDTH, bottom=60)
    assert 'exit code 0' in table('voc', voc, '--strict')
    label(voc / 'Annotations/3.xml', width=HEIGHT, height=WIDTH, right=64, bottom=30)
    line = refuse('voc', voc)
    assert 'labels that fit the image only before its EXIF rotation' in line and str(voc) in line


def test_dot_names_and_links(voc, table):
    label(voc / 'Annotations/._1.xml')
    photo(voc / '.ipynb_checkpoints/1.png')
    elsewhere = (voc / 'JPEGImages').rename(voc.parent / 'elsewhere')
    (voc / 'images').symlink_to(elsewhere)
    (elsewhere / 'again').symlink_to(elsewhere)
    printed = table('voc', voc)
    assert 'names that begin with a dot' in printed
    assert '.ipynb_checkpoints' in printed and '._1.xml' in printed
    assert 'links to a folder that contains them' in printed
    assert_used(printed, 8, 2)


# -- masks of class indices
# --------------------------------------------------------------------------------------------------


class MaskSet:
    """Five images with masks of two classes."""

    def __init__(self, folder):
        self.folder, self.images, self.masks = folder, folder / 'images', folder / 'masks'
        self.arguments = ['masks', self.images, self.masks]
        for i in range(5):
            photo(self.images / f'{i}.png')
            mask(self.masks / f'{i}.png', [0, 1, 1])

    def change(self, name, index, value):
        """Set some pixels of a mask."""
        array = cv2.imread(str(self.masks / name), -1)
        array[index] = value
        cv2.imwrite(str(self.masks / name), array)

    def classes(self, text):
        (self.folder / 'classes.txt').write_text(text)
        return ['--classes', self.folder / 'classes.txt']

    def written(self, name):
        return np.asarray(Image.open(self.folder / f'mine/masks/{name}.png'))


@pytest.fixture
def masks(tmp_path):
    pytest.importorskip('mmseg')
    return MaskSet(tmp_path)


def test_masks_without_faults(masks, table):
    printed = table(*masks.arguments, '--strict')
    assert_used(printed, 4, 1)
    assert 'exit code 0' in printed
    assert masks.written('3.png').ravel()[:4].tolist() == [0, 1, 1, 0]


def test_images_of_one_name_and_of_several_kinds(masks, table, refuse, config):
    """`.jpg` beside `.png` in one folder, and the suffix in the mask's name."""
    photo(masks.images / 'a.jpg')
    mask(masks.masks / 'a_mask.png', [1, 0])
    assert_used(table(*masks.arguments), 5, 1)
    for part in ('train', 'val'):
        data = dataset(config(), part)
        for info in map(data.get_data_info, range(len(data))):
            wanted = [1, 0, 1, 0] if info['img_path'].endswith('/a.jpg') else [0, 1, 1, 0]
            found = cv2.imread(info['seg_map_path'], -1)
            assert found.ravel()[:4].tolist() == wanted
    photo(masks.images / 'a.png')
    line = refuse(*masks.arguments)
    assert 'images of one name, whose masks cannot be told apart' in line
    assert 'images/a.jpg' in line and 'images/a.png' in line
    (masks.masks / 'a_mask.png').unlink()
    mask(masks.masks / 'a.jpg.png', [1, 0])
    mask(masks.masks / 'a.png.png', [0, 1])
    table(*masks.arguments)
    assert masks.written('a.jpg').ravel()[:2].tolist() == [1, 0]
    assert masks.written('a.png').ravel()[:2].tolist() == [0, 1]


def test_masks_that_are_left_over(masks, table):
    mask(masks.masks / '0_edges.png', [0, 9])
    mask(masks.masks / 'other.png', [0, 9])
    printed = table(*masks.arguments)
    assert 'skipped        1 masks beside one of the name of the image: 0_edges.png' in printed
    assert 'skipped        1 masks without an image: other.png' in printed


def test_sizes_and_orientation_of_masks(masks, table, refuse):
    (masks.images / '0.png').unlink()
    file = masks.images / '0.jpg'
    photo(file, orientation=6)
    line = refuse(*masks.arguments)
    assert 'masks of the image before its EXIF rotation' in line
    assert str(file) in line and 'masks/0.png' in line
    mask(masks.masks / '0.png', [0, 1, 1], (HEIGHT, WIDTH))
    assert 'exit code 0' in table(*masks.arguments)
    assert masks.written('0.jpg').shape == cv2.imread(str(file)).shape[:2]
    mask(masks.masks / '1.png', [0, 1, 1], (10, 9))
    assert 'masks of another size than their image' in refuse(*masks.arguments)


@pytest.mark.parametrize('named', [False, True])
def test_masks_of_more_than_8_bits(masks, refuse, table, named):
    """A value of 300 became class 44."""
    arguments = [*masks.arguments, *(masks.classes('a\nb\n') if named else [])]
    mask(masks.masks / '1.png', [0, 300], dtype=np.uint16)
    assert f'value 300 (1536 px, {masks.masks}/1.png)' in refuse(*arguments)
    mask(masks.masks / '1.png', [0, 1], dtype=np.uint16)
    table(*arguments)
    assert masks.written('1.png').ravel()[:4].tolist() == [0, 1, 0, 1]


def test_jpeg_masks_are_refused(masks, refuse):
    (masks.masks / '1.png').unlink()
    mask(masks.masks / '1.jpg', [0, 255])
    wanted = f'masks as JPEG, which changes their values: use PNG: {masks.masks}/1.jpg'
    line = refuse(*masks.arguments)
    assert line.count(wanted) == 1 and line.count('\n') == 1  # nothing else is refused


def test_values_without_a_name(masks, refuse, table, config):
    masks.change('2.png', (3, slice(4, 7)), 9)
    line = refuse(*masks.arguments)
    assert 'refused        1 values with gaps' in line
    assert 'the masks have 0, 1, 9, but no 2' in line
    named = [*masks.arguments, *masks.classes('a\nb\n')]
    assert f'value 9 (3 px, {masks.masks}/2.png)' in refuse(*named)
    table(*named, '--ignore', '9')
    assert (masks.written('2.png') == 255).sum() == 3
    table(*masks.arguments, '--ignore', '9')
    assert config().classes == ('class_0', 'class_1')


def test_rare_values_are_asked_about(masks, refuse, table):
    masks.change('2.png', (3, 4), 2)
    line = refuse(*masks.arguments)
    assert 'values of fewer than 0.01% of the pixels' in line and 'value 2 (1 px,' in line
    printed = table(*masks.arguments, *masks.classes('a\nb\nc\nd\n'))
    assert 'note           1 classes that no mask has: d' in printed


@pytest.mark.parametrize(
    ('codes', 'names', 'classes'),
    [
        ([0, 255, 255], '', {'class_0': 0, 'class_255': 255}),
        ([0, 255, 255], 'road\ncar\n', {'road': 0, 'car': 255}),
        ([0, 255, 255], 'car 255 255 255\nroad 0 0 0\n', {'car': 255, 'road': 0}),
        ([0, 128, 255], 'a 0 0 0\nb 255 255 255\nc 128 128 128', {'a': 0, 'b': 255, 'c': 128}),
        ([0, 1, 255], '', {'class_0': 0, 'class_1': 1}),
    ],
)
def test_what_255_is(masks, table, config, codes, names, classes):
    """255 is a class beside 0 alone, or if its colour is named."""
    for i in range(5):
        mask(masks.masks / f'{i}.png', codes)
    arguments = [*masks.arguments, *(masks.classes(names) if names else [])]
    printed = table(*arguments, '--strict')
    assert config().classes == (*classes,)
    wanted = [[*classes.values()].index(code) if code in classes.values() else 255
              for code in codes]  # fmt: skip
    assert masks.written('3.png').ravel()[:3].tolist() == wanted
    for index, (name, value) in enumerate(classes.items()):
        share = codes.count(value) / 3
        assert f'class    {index:7} {name}: value {value}, {share:.2%} of the pixels\n' in printed
    no_class = 'class          - no class: value 255, 33.33% of the pixels\n' in printed
    assert no_class == (255 in codes and 255 not in classes.values())


@pytest.mark.parametrize(
    ('codes', 'options', 'reason'),
    [
        ({'1': [0, 1]}, [], 'masks of 0 and 255 beside masks of 0 and 1'),
        ({'1': [0, 2, 1]}, [], 'masks of 0 and 255 beside masks of 0 and 1, or of more'),
        ({'1': [0, 1, 255]}, [], 'masks of 0 and 255 beside'),
        ({'1': [0, 1]}, ['--ignore', '255'], ''),
        ({}, ['--ignore', '255'], 'masks of one class, of which nothing is learnt: class_0 (v'),
        ({}, 'a\nb\nc\n', 'masks of 0 and 255 have two classes; --ignore 255 leaves 255 out: '),
        ({}, 'a\n', 'names 1\n'),
        ({}, 'a 0 0 0\nb 9 9 9\n', 'its colours are compared with those of the masks, grey ones'),
        (dict.fromkeys('01234', [1, 0, 255, 255, 255]), [], 'most pixels are of no class (255)'),
        (dict.fromkeys('01234', [0, 0]), [], 'masks of one class'),
        (
            dict.fromkeys('01234', [0, 128, 255]),
            [],
            'or each with its colour (NAME 9 9 9 is the value 9)',
        ),
    ],
)
def test_what_255_cannot_be(masks, table, refuse, codes, options, reason):
    """Such masks trained on nothing, with a mIoU of 100, or were refused however they were named"""
    for i in range(5):
        mask(masks.masks / f'{i}.png', codes.get(str(i), [0, 255, 255]))
    options = masks.classes(options) if isinstance(options, str) else options
    if reason:
        line = refuse(*masks.arguments, *options)
        assert reason in line and 'no mask has' not in line
    else:
        assert 'exit code 0' in table(*masks.arguments, *options)


def test_colours_of_a_palette_are_named(masks, table, refuse):
    for i in range(5):
        image = Image.fromarray(np.resize(np.array([0, 1, 1], np.uint8), (HEIGHT, WIDTH)))
        image.putpalette([200, 0, 0, 0, 0, 90])
        image.save(masks.masks / f'{i}.png')
    named = [*masks.arguments, *masks.classes('blue 0 0 90\nred 200 0 0\n')]
    assert 'class          0 blue: colour (0, 0, 90), 66.67%' in table(*named)
    assert masks.written('3.png').ravel()[:3].tolist() == [1, 0, 0]
    masks.classes('blue 0 0 91\nred 200 0 0\n')
    assert 'colour (0, 0, 90) (10240 px' in refuse(*named)


@pytest.mark.parametrize('colours', [(0, 255), (0, 90, 255), ((0, 0, 0), (255, 0, 0), (0, 0, 255))])
@pytest.mark.parametrize('sigma', [0.7, 3])
def test_blurred_masks(masks, refuse, colours, sigma):
    """Grey ones of all values were a segmentor of 255 classes."""
    for i in range(5):
        array = np.full((HEIGHT, WIDTH, *np.shape(colours[0])), colours[0], np.uint8)
        for number, colour in enumerate(colours[1:]):
            cv2.circle(array, (20 + 2 * i + 20 * number, 24), 11, colour, -1)
        cv2.imwrite(str(masks.masks / f'{i}.png'), cv2.GaussianBlur(array, (0, 0), sigma))
    line = refuse(*masks.arguments)
    assert 'refused        5 masks with blurred edges' in line and 'values are only on edge' in line


def test_instance_masks_are_recognised(masks, refuse, table):
    for i in range(5):
        masks.change(f'{i}.png', ..., 0)
        for number in range(i + 1):
            columns = slice(12 * number, 12 * number + 9)
            masks.change(f'{i}.png', (slice(10, 30), columns), number + 1)
    assert 'masks that number objects from 1' in refuse(*masks.arguments)
    assert 'exit code 0' in table(*masks.arguments, *masks.classes('\n'.join('abcdef')))


def test_names_of_classes(masks, table, refuse, config):
    """A byte order mark is no part of a name, and a number may be."""
    named = [*masks.arguments, *masks.classes('\ufeffroad\nroute 66\n')]
    table(*named)
    assert config().classes == ('road', 'route 66')
    for i in range(5):
        mask(masks.masks / f'{i}.png', [[0, 0, 0], [30, 20, 10]])  # BGR
    assert 'colour (10, 20, 30) (7680 px, in 5 masks, most in ' in refuse(*named)
    for text in ('road, 0, 0, 0\nroute 66 10 20 30\n', '0 0 0\troad\n10 20 30\troute 66\n'):
        masks.classes(text)
        table(*named)
        assert config().classes == ('road', 'route 66')
        assert masks.written('0.png').ravel()[:3].tolist() == [0, 1, 0]
    for text, fault in (
        ('road 0 0 0\nroute 66\n', 'a colour in all lines or in none'),
        ('a\na\n', 'each name once'),
    ):
        masks.classes(text)
        assert fault in refuse(*named)


# -- class folders
# --------------------------------------------------------------------------------------------------


@pytest.fixture
def photos(tmp_path):
    pytest.importorskip('mmpretrain')
    for kind in ('cat', 'dog'):
        for i in range(5):
            photo(tmp_path / f'photos/{kind}/{kind}{i}.png')
    return tmp_path / 'photos'


def test_class_folders_keep_images_of_one_name(photos, table):
    photo(photos / 'cat/cat1.jpg')
    assert 'read          11 images' in table('folders', photos)
    lists = [(photos.parent / f'mine/{part}.txt').read_text() for part in ('train', 'val')]
    lines = sorted(''.join(lists).splitlines())
    assert len(lines) == 11 and lines[1:3] == ['cat/cat1.jpg 0', 'cat/cat1.png 0']


def test_class_folders_with_dot_names_and_links(photos, table, config):
    photo(photos / '.ipynb_checkpoints/cat1.png')
    (photos / 'cat/._cat1.png').write_bytes(b'x')
    for i in range(3):
        photo(photos.parent / f'elsewhere/bird{i}.png')
    (photos / 'bird').symlink_to(photos.parent / 'elsewhere')
    (photos / 'empty').mkdir()
    (photos / 'cat/cat7.heic').write_bytes(b'x')
    printed = table('folders', photos)
    assert config().classes == ('bird', 'cat', 'dog')
    for line in (
        f'skipped        2 names that begin with a dot: {photos}/.ipynb_checkpoints, ',
        f'skipped        1 images of a kind that is not read (.heic): {photos}/cat/cat7.heic',
        f'note           1 folders without images: {photos}/empty',
    ):
        assert line in printed


def test_class_folders_that_are_no_classes_or_have_damaged_images(photos, refuse):
    photo(photos / 'alone.png')
    photo(photos / 'cat/old/a.png')
    line = refuse('folders', photos)
    assert f'images outside of <class>/: {photos}/alone.png' in line
    assert f'images deeper than <class>/: {photos}/cat/old/a.png' in line
    (photos / 'alone.png').unlink()
    (photos / 'cat/old/a.png').unlink()
    (photos / 'cat/cat1.png').write_bytes((photos / 'cat/cat0.png').read_bytes()[:200])
    (photos / 'dog/dog3.png').write_bytes(b'')
    line = refuse('folders', photos)
    assert f'refused        2 images that cannot be read: {photos}/cat/cat1.png (' in line
    assert f'{photos}/dog/dog3.png (the file is empty)' in line
    wanted = f'images deeper than <class>/: give {photos}: '
    photo(photos.parent / 'dog.png')  # beside the folder of the classes
    assert wanted not in refuse('folders', photos.parent)
    (photos.parent / 'dog.png').unlink()
    assert wanted in refuse('folders', photos.parent)


@pytest.mark.parametrize(
    ('folders', 'advice'),
    [
        (('image', 'label', 'aug'), 'masks {0}/image {0}/label;'),
        (('JPEGImages', 'SegmentationClass', 'SegmentationObject'), 'masks {0}/JPEGImages {0}/Se'),
        (('img', 'mask'), 'masks {0}/img {0}/mask;'),
        (('scans', 'Annotations'), 'masks {0}/IMAGES {0}/Annotations;'),
        (
            ('train/images', 'train/labels', 'val/images', 'val/labels'),
            'masks {0}/train/images {0}',
        ),
        (('cat', 'dog'), ''),
        (('mask', 'no mask'), ''),
    ],
    ids=str,
)
def test_folders_of_images_and_masks_are_no_classes(tmp_path, refuse, table, folders, advice):
    pytest.importorskip('mmpretrain')
    data = tmp_path / 'data'
    for i, folder in enumerate(folders):
        for j in range(3):
            # 'mask' is a class if other classes have other files.
            photo(data / f'{folder}/{j + 7 * i * (folders[0] == "mask")}.png', seed=[i, j])
    if advice:
        line = refuse('folders', data)
        assert 'folders of images or masks, which are no classes' in line
        assert advice.format(data) in line
    else:
        wanted = f'class folders with the same file names: are they images and masks?: {data}/cat'
        assert (wanted in table('folders', data)) == (folders[0] == 'cat')


def test_one_image_in_several_class_folders(photos, table):
    shutil.copy(photos / 'cat/cat1.png', photos / 'dog/again.png')
    wanted = f'contradict each other: {photos}/cat/cat1.png = {photos}/dog/again.png\n'
    printed = table('folders', photos)
    assert wanted in printed
    assert 'class          1 dog: 5 training images, 1 validation images\n' in printed


def test_class_folders_with_a_split(tmp_path, refuse, table):
    pytest.importorskip('mmpretrain')
    parts = tmp_path / 'parts'
    for part in ('train', 'val', 'extra'):
        for kind in ('cat', 'dog'):
            for i in range(2):
                photo(parts / f'{part}/{kind}/{part}{i}.png')
    printed = table('folders', parts)
    assert_used(printed, 4, 4)
    assert 'skipped        4 images in neither train/ nor val/' in printed
    photo(parts / 'val/bird/1.png')
    assert 'classes without a training image: bird' in refuse('folders', parts)


def test_class_folders_are_split_by_class(photos, table):
    for kind, count in (('few', 3), ('two', 2), ('one', 1)):
        for i in range(count):
            photo(photos / f'{kind}/{kind}{i}.png')
    table('folders', photos)
    held_out = (photos.parent / 'mine/val.txt').read_text().splitlines()
    assert held_out == ['cat/cat4.png 0', 'dog/dog4.png 1', 'few/few2.png 2']


# -- YOLO
# --------------------------------------------------------------------------------------------------


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
        content = dict(path='.', train='images/train', val='images/val', names='[cat, dog]')
        lines = [f'{key}: {value}\n' for key, value in {**content, **values}.items()]
        (self.folder / 'data.yaml').write_text(''.join(lines))


@pytest.fixture
def yolo(tmp_path):
    pytest.importorskip('mmdet')
    return YoloSet(tmp_path)


def test_yolo_boxes_and_polygons(yolo, table):
    yolo.label('train/train1', '0 0.25 0.25 0.75 0.25 0.75 0.5\n\n1 0.5 0.5 1 1\n')
    for place in (yolo.folder, yolo.folder / 'data.yaml'):
        printed = table(place, '--strict')
        assert f'The data are read as: yolo {place}\n' in printed
        assert_used(printed, 5, 2)
        written = json.loads((yolo.folder.parent / 'mine/train.json').read_text())
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
        ('1 30 20 10 10', 'coordinates that are no shares of 0 to 1'),
        ('1 nan 0.5 0.1 0.1', 'coordinates that are no shares of 0 to 1'),
        ('dog 0.5 0.5 0.5 0.5', 'lines with words that are no numbers'),
    ],
)
def test_faults_of_yolo_lines(yolo, refuse, line, reason):
    yolo.label('train/train3', f'1 0.5 0.5 0.5 0.5\n{line}\n')
    text = refuse(yolo.folder)
    assert reason in text and f'{yolo.folder}/labels/train/train3.txt: line 2 (' in text


def test_yolo_images_without_labels(yolo, table, refuse):
    (yolo.folder / 'labels/train/train3.txt').unlink()
    yolo.label('train/train2', '')
    yolo.label('train/nobody', '0 0.5 0.5 0.5 0.5')
    yolo.label('train/train1', '1 0.5 0.5 0.5 0.5\n1 0.5 0.5 0.5 0.5\n')
    printed = table(yolo.folder)
    for line in (
        'note           1 images without a label file: taken as images without objects',
        'skipped        1 text files without an image',
        'skipped        1 objects that are',
        'used           2 training images without objects',
    ):
        assert line in printed
    photo(yolo.folder / 'images/train/images/a.png')
    (yolo.folder / 'images/train/images/a.txt').write_text('1 0.5 0.5 0.5 0.5')
    (yolo.folder / 'images/train/labels').mkdir()
    (yolo.folder / 'images/train/labels/a.txt').write_text('0 0.5 0.5 0.5 0.5')
    assert 'images with two label files' in refuse(yolo.folder)


def test_yolo_layouts(yolo, table, refuse, config):
    # As Roboflow writes it.
    yolo.yaml(path='/nowhere', train='../images/train', names='{0: cat, 1: route 66}')
    assert_used(table(yolo.folder), 5, 2)
    for number in range(3):
        photo(yolo.folder / f'images/test/test{number}.png')
    yolo.yaml(test='[../images/test, none]', path='/nowhere')
    printed = table(yolo.folder)
    assert_used(printed, 5, 2)
    wanted = 'skipped        3 images of another set than training and validation, such as test:'
    assert f'{wanted} {yolo.folder}/images/test/test0.png' in printed
    shutil.rmtree(yolo.folder / 'images/test')
    (yolo.folder / 'train.txt').write_text('images/train/train0.png\nimages/train/train1.png\n')
    yolo.yaml(train='train.txt', val='[images/val]')
    assert_used(table(yolo.folder), 2, 2)
    for values, fault in (
        (dict(names='{1: cat}'), 'the keys of names'),
        (dict(names='[cat]\nnc: 2'), 'has nc: 2 and 1 names'),
        (dict(names='[cat, dog]\nkpt_shape: [17, 3]'), 'is of keypoints'),
        (dict(train='none'), "names 'none', but there is none of"),
        (dict(names='[cat'), 'is not YAML'),
    ):
        yolo.yaml(**values)
        assert fault in refuse(yolo.folder)
    (yolo.folder / 'data.yaml').unlink()
    (yolo.folder / 'train.txt').unlink()
    assert 'no data.yaml or classes.txt or obj.names' in refuse(yolo.folder)
    (yolo.folder / 'labels/classes.txt').write_text('\ufeffcat\nroute 66\n')
    assert_used(table(yolo.folder, '--strict'), 5, 2)
    assert config().classes == ('cat', 'route 66')


def test_yolo_labels_beside_the_images(tmp_path, table):
    pytest.importorskip('mmdet')
    for i in range(5):
        photo(tmp_path / f'data/{i}.jpg', orientation=6)
        (tmp_path / f'data/{i}.txt').write_text('0 0.5 0.5 0.5 0.5')
    (tmp_path / 'data/classes.txt').write_text('cat\n')
    printed = table(tmp_path / 'data')
    assert 'The data are read as: yolo' in printed and 'skipped' not in printed
    written = json.loads((tmp_path / 'mine/train.json').read_text())
    # Shares are of the upright image.
    assert [one['bbox'] for one in written['annotations']] == [[12, 16, 24, 32]] * 4


# -- the sheet of images with their labels
# --------------------------------------------------------------------------------------------------


def sheet(folder):
    """The sheet beside the config, RGB. An image of 64 x 48 px has 480 x 360 px in it, from 8, 8"""
    return np.asarray(Image.open(folder / 'mine/sheet.jpg')).astype(int)


def assert_near(pixel, colour):
    assert np.abs(pixel - np.array(colour)).max() < 40, (pixel, colour)


@pytest.mark.parametrize('form', ['coco', 'instances'])
def test_the_sheet_shows_boxes_and_outlines(coco, table, form):
    for image in coco.images:
        cv2.imwrite(str(coco.folder / 'images' / image['file_name']), np.zeros((HEIGHT, WIDTH, 3)))
    for one in coco.annotations:
        one['bbox'] = [16, 16, 32, 16] if one['id'] % 2 else [50, 8, 8, 8]
        one['segmentation'] = outline_of(one['bbox'])
    printed = table(*coco.arguments(form=form))
    last = next(line for line in reversed(printed.splitlines()) if 'python ' not in line)
    assert last.endswith(f'{coco.folder}/mine/sheet.jpg')
    found = sheet(coco.folder)
    green = np.array([0, 255, 0])  # of the second class, and of the second object
    assert_near(found[8 + 200, 8 + 121], green)  # its left side, at 16 / 64 of the width
    inside = green * 0.6 if form == 'instances' else [0, 0, 0]
    assert_near(found[8 + 200, 8 + 240], inside)
    assert_near(found[8 + 300, 8 + 240], [0, 0, 0])
    # Eight of training in two rows, two of validation.
    assert found.shape[1] == 8 + 4 * 488 and found.shape[0] == 8 + 3 * (360 + 18 + 8)


def test_the_sheet_shows_class_maps(masks, table):
    for i in range(5):
        cv2.imwrite(str(masks.images / f'{i}.png'), np.full((HEIGHT, WIDTH, 3), 100))
        mask(masks.masks / f'{i}.png', [0] * 20 + [1] * 24 + [255] * 20)
    table(*masks.arguments, *masks.classes('background\nroad\n'))
    found = sheet(masks.folder)
    green, grey = np.array([0, 255, 0]), np.array([128] * 3)
    for column, colour in ((100, [100] * 3), (240, 40 + 0.6 * green), (430, 40 + 0.6 * grey)):
        assert_near(found[8 + 300, 8 + column], colour)


def test_the_sheet_shows_classes(photos, table):
    table('folders', photos)
    found = sheet(photos.parent)
    for top, colour in ((8, [255, 51, 51]), (8 + 386, [0, 255, 0])):  # four cats, four dogs
        name = found[top : top + 12, 8:20].reshape(-1, 3)
        assert_near(np.median(name, axis=0), colour)


# -- which form it is
# --------------------------------------------------------------------------------------------------


def test_recognised_forms(coco, masks, photos, table, refuse):
    for image in coco.images:
        mask(masks.masks / image['file_name'], [0, 1])
    _, file, images = coco.arguments()
    assert f'read as: coco {file} {images}\n' in table(file, images)
    assert f'read as: masks {images} {masks.masks}\n' in table(images, masks.masks)
    assert f'read as: folders {photos}\n' in table(photos)
    for arguments, message in (
        (('vocc', photos), 'there is no file or folder'),
        (('masks', images, f'{masks.masks}s'), f"did you mean '{masks.masks}'?"),
        ((images, masks.masks, '--classes', 'none.txt'), '--classes: there is no file or folder'),
        ((photos, '--val', 'x'), '--val: only coco and instances have it, the data are folders'),
        ((photos, photos, photos), 'recognised; name it'),
    ):
        assert message in refuse(*arguments)
    data = coco.folder / 'data'
    data.mkdir()
    for folder in (images, masks.masks):
        folder.rename(data / folder.name)
    assert f'read as: masks {data}/images {data}/masks\n' in table(data)


def test_recognised_coco_layouts(coco, table, refuse):
    """As Roboflow and COCO itself lay files out."""
    roboflow, own = coco.folder / 'roboflow', coco.folder / 'own'
    (own / 'annotations').mkdir(parents=True)
    for part, other in (('train', 'train2017'), ('valid', 'val2017'), ('test', 'test2017')):
        for image in coco.images:
            photo(roboflow / part / image['file_name'], seed=[len(part), image['id']])
            photo(own / other / image['file_name'], seed=[len(part), image['id']])
        coco.arguments()[1].rename(roboflow / part / '_annotations.coco.json')
        coco.arguments()[1].rename(own / f'annotations/instances_{other}.json')
    (own / 'annotations/captions_train2017.json').write_text('{"images": [], "annotations": []}')
    printed = table(roboflow)
    parts = [f'{roboflow}/{part}/_annotations.coco.json {roboflow}/{part}' for part in
             ('train', 'valid')]  # fmt: skip
    assert f'read as: coco {" --val ".join(parts)}\n' in printed
    assert_used(printed, 10, 10)
    wanted = 'skipped       10 images of another set than training and validation, such as test:'
    assert f'{wanted} {roboflow}/test/_annotations.coco.json: 0.png' in printed
    wanted = f'--val {own}/annotations/instances_val2017.json {own}/val2017\n'
    assert f'instances_train2017.json {own}/train2017 {wanted}' in table(own)
    coco.arguments()[1].rename(own / 'annotations/more_train.json')
    assert 'has several COCO files' in refuse(own)
    (roboflow / 'data.yaml').write_text('names: [cat]')
    assert 'has more than one form, coco (' in refuse(roboflow)


def test_labelme_is_named(tmp_path, refuse):
    photo(tmp_path / 'data/1.png')
    (tmp_path / 'data/1.json').write_text('{"shapes": [], "imagePath": "1.png"}')
    assert 'is of LabelMe' in refuse(tmp_path / 'data')


# -- instances, tiles, predictions
# --------------------------------------------------------------------------------------------------


def numbered_masks(folder):
    """Masks of two classes; an image of two objects of the first, and one of the second."""
    for i in range(5):
        for kind, spans in (('cat', ((4, 20), (30, 40))), ('route 66', ((25, 60),))):
            array = np.zeros((HEIGHT, WIDTH), np.uint8)
            for number, (left, right) in enumerate(spans, 1):
                array[10:30, left + i : right] = number
            file = folder / f'{kind}/{i}.png'
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(array).save(file)


def test_masks_that_number_objects(masks, table, refuse, config):
    """Each value of a mask is an object; several classes have a folder of masks each."""
    pytest.importorskip('mmdet')
    numbers = masks.folder / 'numbers'
    numbered_masks(numbers)
    data = ['instances', masks.images, numbers]
    named = [*data, *masks.classes('cat\nroute 66\n')]
    assert 'used          12 training objects' in table(*named, '--strict')
    written = json.loads((masks.folder / 'mine/train.json').read_text())
    assert [category['name'] for category in written['categories']] == ['cat', 'route 66']
    of_first = [(one['bbox'], one['area']) for one in written['annotations'][:3]]
    assert of_first == [([4, 10, 16, 20], 320), ([30, 10, 10, 20], 200), ([25, 10, 35, 20], 700)]
    assert config().model.roi_head.mask_head.num_classes == 2
    assert 'images without a mask' in refuse(*data)
    assert 'used           8 training objects' in table('instances', masks.images, numbers / 'cat')
    assert config().classes == ('object',)
    (numbers / 'cat/3.png').unlink()
    assert 'used          10 training objects' in table(*named)
    (numbers / 'route 66/3.png').unlink()
    assert 'images without a mask' in refuse(*named)


@pytest.mark.parametrize(
    ('values', 'reason'),
    [
        ([0, 255], 'masks of 0 and 255 only'),
        ([0, 1], 'masks of one value in several pieces'),
        ([[0, 0, 0], [255, 255, 255]], 'masks of 0 and 255 only'),
    ],
)
def test_class_maps_are_no_instances(masks, refuse, values, reason):
    pytest.importorskip('mmdet')
    for i in range(5):
        mask(masks.masks / f'{i}.png', values)
    assert reason in refuse('instances', masks.images, masks.masks)


def test_outlines_are_for_instances(coco, yolo, table, refuse):
    for one in coco.annotations:
        one['segmentation'] = outline_of(one['bbox'])
    wanted = 'note          20 outlines are left out; form instances trains on them'
    assert wanted in table(*coco.arguments())
    assert 'used          16 training objects' in table(
        *coco.arguments(form='instances'), '--strict'
    )
    coco.annotations[3].pop('segmentation')
    wanted = 'objects without an outline, which form instances needs'
    assert wanted in refuse(*coco.arguments(form='instances'))
    coco.annotations[3]['iscrowd'] = 1
    printed = table(*coco.arguments(form='instances'))
    assert 'skipped        1 regions to ignore without an outline' in printed
    for file in yolo.folder.glob('labels/*/*.txt'):
        file.write_text('1 0.25 0.25 0.75 0.25 0.75 0.5\n')
    assert 'used           5 training objects' in table('instances', yolo.folder)
    assert 'instances takes COCO JSON' in refuse('instances', yolo.folder / 'images')


@pytest.mark.parametrize('form', ['coco', 'instances'])
def test_large_images_with_small_objects_are_cut_into_tiles(tmp_path, table, config, form):
    """Boxes in tiles have the pixels of the boxes in the images."""
    pytest.importorskip('mmdet')
    from pycocotools import mask as coco_mask

    rng = np.random.default_rng(0)
    images, annotations = [], []
    (tmp_path / 'a').mkdir()
    for i in range(3):
        array = rng.integers(0, 60, (110, 150, 3), np.uint8).repeat(10, 0).repeat(10, 1)
        images.append(dict(id=i, file_name=f'a/{i}.png'))
        for left, top in ((30, 40), (700, 700), (632, 300)):
            array[top : top + 20, left : left + 20] = 255
            corners = [left, top, left + 20, top, left + 20, top + 20, left, top + 20]
            box = dict(bbox=[left, top, 20, 20], segmentation=[corners])
            annotations.append(dict(id=len(annotations), image_id=i, category_id=1, **box))
        Image.fromarray(array).save(tmp_path / f'a/{i}.png')
    content = dict(images=images, annotations=annotations, categories=[dict(id=1, name='square')])
    (tmp_path / 'all.json').write_text(json.dumps(content))
    printed = table(form, tmp_path / 'all.json', tmp_path)
    assert 'smallest class: 20 px, 9 px in images of 640 px: the config trains on' in printed
    assert '--scale native --tile-size 640 --overlap 64 --max-pixels 409600' in printed
    assert config().scale == (640, 640)
    train = json.loads((tmp_path / 'mine/train.json').read_text())
    # (700, 700) is whole in one tile, (30, 40) too, (632, 300) whole in one, cut in another.
    assert len(train['annotations']) == 2 * 4
    files = {image['id']: image['file_name'] for image in train['images']}
    for one in train['annotations']:
        tile = cv2.imread(str(tmp_path / 'mine/tiles/train' / files[one['image_id']]))
        assert tile.shape[:2] == (640, 640)
        x, y, width, height = one['bbox']
        assert one['iscrowd'] == (width * height < 200)
        bright = tile[..., 0] > 150
        assert bright[y : y + height, x : x + width].all()
        if form == 'instances':
            outline = one['segmentation']
            if isinstance(outline, list):
                outline = coco_mask.merge(coco_mask.frPyObjects(outline, 640, 640))
            found = coco_mask.decode(outline).astype(bool)
            assert found.sum() == width * height and bright[found].all()


def test_predictions_are_added_to_the_training(coco, table, refuse, config, monkeypatch):
    """Paths of predicted images start from the working directory, or are absolute."""
    monkeypatch.chdir(coco.folder)
    places = ['unlabelled/a0.png', str(coco.folder / 'unlabelled/a1.png')]
    images, found = [], []
    for i, place in enumerate(places, 1):
        photo(coco.folder / place)
        images.append(dict(id=i, file_name=place, width=WIDTH, height=HEIGHT))
        found.append(dict(image_id=i, category_id=0, bbox=[1, 2, 30, 40], score=0.9))
    categories = [dict(id=0, name='dog'), dict(id=1, name='cat')]
    labels = coco.folder / 'labels'
    labels.mkdir()
    (labels / 'images.json').write_text(json.dumps(dict(images=images, categories=categories)))
    (labels / 'predictions.json').write_text(json.dumps(found))
    arguments = [*coco.arguments(), '--add', 'labels']
    assert_used(table(*arguments), 10, 2)
    written = coco.read('train')
    names = {category['id']: category['name'] for category in written['categories']}
    last = written['annotations'][-1]
    assert (names[last['category_id']], last['bbox']) == ('dog', [1, 2, 30, 40])
    data = dataset(config(), 'train')
    assert all(cv2.imread(data.get_data_info(i)['img_path']) is not None for i in range(len(data)))
    (labels / 'predictions.json').write_text('[]')
    assert 'labels has no predictions' in refuse(*arguments)
