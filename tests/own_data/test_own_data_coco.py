"""COCO JSON: each fault is refused, altered, skipped or noted by a stated rule, with its file."""

import shutil

import cv2
import pytest
from own_data_sets import HEIGHT, WIDTH, assert_used, data_set, has, mask, outline_of, photo

RLE = dict(size=[HEIGHT, WIDTH], counts=[HEIGHT * 10 + 8, 16, HEIGHT * WIDTH - HEIGHT * 10 - 24])
SHORT_RLE = dict(size=[HEIGHT, WIDTH], counts=[9])
TRIANGLE = [[4, 5, 24, 5, 24, 21]]


def one(**changes):
    """Change the first annotation; None removes a key."""

    def change(coco):
        first = {**coco.annotations[0], **changes}
        coco.annotations[0] = {key: value for key, value in first.items() if value is not None}

    return change


def image(**changes):
    return lambda coco: coco.images[0].update(changes)


def category(**changes):
    return lambda coco: coco.categories[0].update(changes)


def damaged(coco):
    photo(coco.photos / '2.jpg', (400, 300))
    whole = (coco.photos / '2.jpg').read_bytes()
    for index, content in {2: whole[: len(whole) * 2 // 3], 5: b'no image', 6: b''}.items():
        coco.images[index]['file_name'] = f'{index}.jpg'
        (coco.photos / f'{index}.jpg').write_bytes(content)


def one_folder_above(coco):
    """As LabelMe writes: JPEGImages/1.jpg in a file beside that folder."""
    for image in coco.images:
        image['file_name'] = f'images/{image["file_name"]}'


def on_another_machine(coco):
    for image in coco.images:
        image['file_name'] = f'https://a.b/c%20d/{image["file_name"]}'


REFUSED = [
    (one(bbox=[9, 9, -3, 5]), 'boxes of negative width or height'),
    (one(bbox=[9, 9, float('nan'), 5]), 'bbox is not four finite numbers'),
    (one(bbox=['9', 9, 9, 5]), 'bbox is not four finite numbers'),
    (one(bbox=[9, 9, 9]), 'bbox is not four finite numbers'),
    (one(bbox=[]), 'objects with neither bbox nor outline'),
    (one(bbox=None), 'objects with neither bbox nor outline'),
    (one(image_id=None), 'annotations without image_id'),
    (one(category_id=9), 'annotations of categories that are not listed'),
    (one(category_id=None), 'annotations without category_id'),
    (one(iscrowd=2), 'iscrowd is neither 0 nor 1'),
    (one(segmentation=dict(size=[9, 9], counts=[81])), 'RLE of another size'),
    (one(segmentation=SHORT_RLE), 'RLE whose counts'),
    (one(segmentation=dict(size=[HEIGHT, WIDTH], counts='this is none')), 'RLE whose counts'),
    (one(ignore='yes'), 'ignore is neither 0 nor 1'),
    (one(image_id=0.5), 'annotations whose image_id is neither a whole number nor text'),
    (image(id=True), 'images whose id is neither a whole number nor text'),
    (image(width='64'), "width and height that are not numbers: {0}/0.png ('64' and 48)"),
    (image(id=1), 'images with the id of another'),
    (image(id=None), 'images without id'),
    (image(file_name='1.png'), 'images that are listed twice'),
    (image(file_name=None), 'images without file_name'),
    (image(file_name='none.png'), 'images that cannot be read'),
    (image(width=99), 'width and height are not those of the file'),
    (category(id=2), 'categories with the id of another'),
    (category(id=None), 'categories without id'),
    (category(name='dog'), 'categories with the name of another'),
    (category(name=' '), 'categories without name'),
    (damaged, '3 images that cannot be read ... {0}/2.jpg ( ... {0}/5.jpg ( ... {0}/6.jpg ('),
    (one_folder_above, "such as 'images/0.png', starts from another folder than '{0}'"),
    (one_folder_above, "give '{1}'"),
    (on_another_machine, "a path from the folder '{0}', such as '0.png', got 'https://a.b/c%20d/0"),
]


@pytest.mark.parametrize(('change', 'words'), REFUSED, ids=[words for _, words in REFUSED])
def test_faults_are_refused(coco, refuse, change, words):
    change(coco)
    line = refuse(*coco.arguments())
    assert has(line, words.format(coco.photos, coco.folder))
    assert not (coco.folder / 'mine.py').exists()


REPORTED = [
    (one(bbox=[9, 9, 0, 5]), 'skipped 1 boxes of no width or height'),
    (one(bbox=[9, 9, 0.5, 5]), 'skipped 1 boxes narrower or lower than 1 px'),
    (one(bbox=[70, 9, 5, 5]), 'skipped 1 boxes outside their image'),
    (one(image_id=77), 'skipped 1 annotations of images that are not listed'),
    (one(bbox=[5, 5, 20, 16], category_id=2), 'skipped 1 objects that are listed twice'),
    (one(bbox=[60, 9, 9, 5]), 'altered 1 boxes are clipped to their image'),
    (one(image_id='0'), 'altered 1 image_id as text'),
    (one(category_id='1'), 'altered 1 category_id as text'),
    (one(id=1), 'altered 1 annotation ids that are missing'),
    (one(id=None), 'altered 1 annotation ids that are missing'),
    (one(bbox=None, segmentation=TRIANGLE), 'altered 1 bbox is derived'),
    (one(bbox=None, segmentation=RLE), 'altered 1 bbox is derived'),
    (one(segmentation=[[4, 5, 24, 5]]), 'altered 1 polygons of fewer than three points'),
]


@pytest.mark.parametrize(('change', 'words'), REPORTED, ids=[words for _, words in REPORTED])
def test_faults_are_skipped_or_altered(coco, table, change, words):
    change(coco)
    assert has(table(*coco.arguments()), f'{words} ... data accepted')
    count = 19 if words.startswith('skipped') else 20
    assert [one['id'] for one in coco.written()[0]['annotations']] == [*range(1, count + 1)]
    assert words.partition(' 1 ')[2] in (coco.folder / 'mine/check.csv').read_text()


@pytest.mark.parametrize('box', [[70, 9, 5, 5], [60, 9, 9, 5]], ids=['skipped', 'altered'])
def test_strict_refuses_what_is_skipped_or_altered(coco, refuse, box):
    coco.annotations[0]['bbox'] = box
    assert ' their image' in refuse(*coco.arguments(), '--strict')


def test_data_without_faults_are_written_as_they_are(coco, table):
    printed = table(*coco.arguments(), '--strict')
    assert has(printed, 'read 10 images ... read 20 objects ... data accepted')
    assert_used(printed, 8, 2)
    assert not any(word in printed for word in ('skipped', 'altered'))
    (note,) = [line for line in printed.splitlines() if line.startswith('note')]
    assert note.startswith('note: these weights, and models trained from them, are for non-comm')
    written, categories = coco.written()
    boxes = [one['bbox'] for one in written['annotations']]
    assert boxes == [one['bbox'] for one in coco.annotations]
    assert categories == coco.categories


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


@pytest.mark.parametrize('outlines', [True, False])
@pytest.mark.parametrize(
    'read',
    [
        lambda x, y, w, h: [x, y, x + w, y + h],
        lambda x, y, w, h: [x + w / 2, y + h / 2, w, h],
        lambda x, y, w, h: [3 * x, 2 * y, w, h],
    ],
    ids=['corners', 'centre', 'scaled'],
)
def test_boxes_that_are_no_left_top_width_height_are_refused(coco, refuse, read, outlines):
    for i, one in enumerate(coco.annotations):
        box = [38 - i, 24, 24, 21]
        one['bbox'] = read(*box)
        if outlines:
            one['segmentation'] = outline_of(box)
    line = refuse(*coco.arguments('instances' if outlines else 'coco'))
    kind = 'that differ from their outlines' if outlines else 'that reach out of their image'
    assert has(line, f'boxes {kind}, a tenth of all or more ... images/0.png: annotation 0 (')
    assert 'COCO has left, top, width, height: are these corners, or centres' in line


def test_outlines_are_left_out_of_a_detector_and_needed_by_instances(coco, table, refuse):
    coco.add_outlines()
    left_out = 'note 20 outlines are left out; the format instances trains on them'
    assert has(table(*coco.arguments()), left_out)
    assert has(table(*coco.arguments('instances'), '--strict'), 'used 16 training objects')
    coco.annotations[3].pop('segmentation')
    wanted = 'objects without an outline, which the format instances needs'
    assert wanted in refuse(*coco.arguments('instances'))
    coco.annotations[3]['iscrowd'] = 1
    ignored = 'skipped 1 regions to ignore without an outline'
    assert has(table(*coco.arguments('instances')), ignored)


@pytest.mark.parametrize(
    ('names', 'pair'),
    [
        (['cat'] * 18 + ['Cat '] * 2, 'cat (18 objects), Cat (2 objects)'),
        (['stop sign'] * 11 + ['stop_sign'] * 9, 'stop sign (11 objects), stop_sign (9 objects)'),
        (['cat'] * 11 + ['bat'] * 9, ''),
        (['RBC'] * 19 + ['WBC'], ''),
        (['class 1'] * 18 + ['class 2'] * 2, ''),
        (['!'] * 18 + ['?'] * 2, ''),
    ],
    ids=str,
)
def test_classes_are_counted_and_names_in_two_cases_noted(coco, table, names, pair):
    kinds = [*dict.fromkeys(names)]
    coco.categories = [dict(id=i, name=name) for i, name in enumerate(kinds)]
    for one, name in zip(coco.annotations, names, strict=True):
        one['category_id'] = kinds.index(name)
    printed = table(*coco.arguments())
    wanted = f'note           1 class names that differ only in case, spaces and signs: {pair}\n'
    assert (wanted in printed) == bool(pair) == ('only in case' in printed)
    train = [one['category_id'] for one in coco.read('train')['annotations']]
    for index, name in enumerate(kinds):
        count = train.count(index)
        rest = names.count(name) - count
        counts = f'{count} training objects, {rest} validation objects'
        assert has(printed, f'class {index} {name.strip()}: {counts}')


def test_ids_as_text_are_replaced(coco, table):
    for image in coco.images:
        image['id'] = f'a{image["id"]}'
    for one in coco.annotations:
        one.update(image_id=f'a{one["image_id"]}', category_id=f'c{one["category_id"]}')
    for category in coco.categories:
        category['id'] = f'c{category["id"]}'
    printed = table(*coco.arguments())
    for kind in ('image', 'category'):
        assert f'{kind} ids that are not integers are replaced' in printed
    written, categories = coco.written()
    assert [image['id'] for image in written['images']] == [*range(1, 11)]
    assert all(isinstance(one['image_id'], int) for one in written['annotations'])
    assert [category['id'] for category in categories] == [1, 2]


def test_categories_are_sorted_and_parents_without_objects_left_out(coco, table, config):
    """As Roboflow and LabelMe write them."""
    names = {2: 'dog', 1: 'cat', 0: 'animals', 7: 'unseen'}
    coco.categories = [dict(id=i, name=name, supercategory='animals') for i, name in names.items()]
    coco.categories[2]['supercategory'] = 'none'
    coco.categories.append(dict(id=50, name='_background_', supercategory=None))
    printed = table(*coco.arguments())
    assert has(printed, 'altered 2 parent and background categories without objects are left out')
    assert has(printed, 'note 1 classes without a training object: unseen')
    assert config().classes == ('cat', 'dog', 'unseen')


def test_categories_of_validation_are_matched_by_name(coco, table, refuse):
    arguments = coco.arguments()
    coco.categories = [dict(id=1, name='dog'), dict(id=5, name='cat'), dict(id=9, name='none')]
    for one in coco.annotations:
        one['category_id'] = {1: 5, 2: 1}[one['category_id']]
    arguments += ['--val', coco.write('val.json')]
    printed = table(*arguments)
    assert_used(printed, 10, 10)
    assert 'categories are matched by name' in printed
    assert has(printed, 'skipped 1 categories without objects that training lacks')
    train, val = coco.read('train'), coco.read('val')
    assert train['categories'] == val['categories']
    labels = [[one['category_id'] for one in part['annotations']] for part in (train, val)]
    assert labels[0] == labels[1]
    coco.annotations[0]['category_id'] = 9
    coco.write('val.json')
    assert 'categories with objects that training lacks' in refuse(*arguments)
    coco.categories[2]['name'] = 'Dog'
    assert f'{coco.write("val.json")}: Dog (training has dog)' in refuse(*arguments)


def test_images_without_objects_are_trained_on(coco, table, config):
    coco.annotations = [one for one in coco.annotations if one['image_id'] in (0, 4)]
    assert has(table(*coco.arguments()), 'used 7 training images without objects')
    train = data_set(config(), 'train')
    without = [i for i in range(len(train)) if not train.get_data_info(i)['instances']]
    assert (len(train), len(without)) == (8, 7)
    # Nothing in the pipeline replaces such an image by another.
    for index in without:
        assert train[index]['data_samples'].img_id == train.get_data_info(index)['img_id']


@pytest.mark.parametrize('size', ['stored', 'upright', 'missing'])
@pytest.mark.parametrize('labels', ['stored', 'upright', 'both', 'none'])
def test_sizes_and_boxes_are_those_of_the_upright_image(coco, refuse, table, size, labels):
    """A file of 64 x 48 px with orientation 6 is 48 x 64 px upright."""
    file = coco.photos / '0.jpg'
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
    turned = has(printed, 'altered 1 width and height are swapped as in the EXIF rotation')
    assert turned == (size == 'stored')
    assert has(printed, 'note 1 images rotated by EXIF')
    written, _ = coco.written()
    assert (written['images'][0]['width'], written['images'][0]['height']) == (48, 64)
    assert not box or written['annotations'][0]['bbox'] == box


def test_copies_in_both_parts_and_unlisted_images_are_noted(coco, table):
    first = coco.photos / '4.png'  # the first of validation
    shutil.copy(first, coco.photos / '7.jpg')
    coco.images[7].update(file_name='7.jpg')
    printed = table(*coco.arguments())
    assert has(printed, 'note 1 validation images that are copies of a training image')
    assert f'{first} = {coco.photos}/7.jpg' in printed
    assert has(printed, f'note 1 images that no JSON file lists: {coco.photos}/7.png')


def test_images_of_16_bits_with_values_of_12_are_noted(coco, table):
    for name in ('0.png', '1.png'):
        mask(coco.photos / name, [0, 4095], dtype='uint16')
    wanted = 'altered 2 images of 16 bits with values of 0 to 4095 only, training sees 0 to 15 of'
    assert has(table(*coco.arguments()), wanted)
    mask(coco.photos / '2.png', [0, 65535], dtype='uint16')
    assert has(table(*coco.arguments()), wanted)
    for name in ('3.png', '4.png'):
        mask(coco.photos / name, [0, 65535], dtype='uint16')
    assert 'images of 16 bits' not in table(*coco.arguments())


@pytest.mark.full
def test_objects_to_ignore_are_not_trained_on_as_background(coco, table, config):
    """mmdet leaves out objects with `ignore`, which makes their place background."""
    coco.annotations[0]['ignore'] = 1
    coco.annotations[1]['ignore'] = 0
    printed = table(*coco.arguments())
    assert 'note           1 objects to ignore are ignored in training and evaluation' in printed
    first = data_set(config(), 'train').get_data_info(0)['instances']
    assert [one['ignore_flag'] for one in first] == [1, 0]


@pytest.mark.full
def test_ids_of_other_programs(coco, table, config):
    """Floats of pandas, numbers beyond float64, names that are numbers, paths of Windows."""
    coco.categories = [dict(id=2**62 + 1, name=7), dict(id=2**62 + 2, name='8')]
    for image in coco.images:
        image.update(id=float(image['id']), file_name=f'.\\{image["file_name"]}')
    for one in coco.annotations:
        one.update(image_id=float(one['image_id']), category_id=one['category_id'] + 2**62)
    printed = table(*coco.arguments(), '--strict')
    assert_used(printed, 8, 2)
    assert config().classes == ('7', '8')
    assert 'smallest objects, 7: ' in printed
    first = data_set(config(), 'train')[0]['data_samples'].gt_instances
    assert first.labels.tolist() == [0, 1]


def test_names_with_accents_in_one_or_two_characters_are_one(coco, table):
    one, two = 'caf\u00e9', 'cafe\u0301'
    coco.categories[0]['name'] = one
    train = coco.write()
    coco.categories[0]['name'] = two
    val = coco.write('val.json')
    assert 'data accepted' in table('coco', train, coco.photos, '--val', val)


def brushed(coco, which):
    """Annotations as CVAT writes them: polygons, and brush masks as RLE with iscrowd."""
    coco.add_outlines()
    for index in which:
        coco.annotations[index] |= dict(segmentation=RLE, bbox=[10, 8, 1, 16], iscrowd=1)
        coco.annotations[index].pop('area', None)


@pytest.mark.parametrize('form', ['coco', 'instances'])
def test_annotations_with_iscrowd_are_counted_and_can_be_taken_as_objects(coco, table, form):
    brushed(coco, [*range(5, 15)])
    printed = table(*coco.arguments(form))
    assert has(printed, 'note 10 annotations with iscrowd are regions to ignore')
    assert has(printed, 'CVAT') and has(printed, '--crowd objects')
    assert sum(one['iscrowd'] for one in coco.written()[0]['annotations']) == 10
    chosen = table(*coco.arguments(form), '--crowd', 'ignore')
    assert 'note 10 annotations with iscrowd' not in ' '.join(chosen.split())
    taken = table(*coco.arguments(form), '--crowd', 'objects')
    assert has(taken, 'altered 10 annotations with iscrowd are taken as objects')
    assert has(taken, 'used 16 training objects')
    assert not any(one['iscrowd'] for one in coco.written()[0]['annotations'])


def test_a_class_of_regions_to_ignore_alone_is_refused_until_one_chooses(coco, table, refuse):
    brushed(coco, range(0, 20, 2))  # all cats
    line = refuse(*coco.arguments())
    assert 'classes whose annotations all have iscrowd: --crowd objects' in line
    assert 'cat' in line and 'dog' not in line
    for choice in ('ignore', 'objects'):
        table(*coco.arguments(), '--crowd', choice)
