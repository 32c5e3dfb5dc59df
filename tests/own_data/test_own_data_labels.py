"""Labels of strangers that differ from the usual ones in one respect: counted right, or refused."""

import json
import unicodedata

import cv2
import numpy as np
import pytest
from own_data_sets import (
    HEIGHT,
    WIDTH,
    CocoSet,
    YoloSet,
    assert_used,
    class_folders,
    has,
    photo,
    voc_pair,
    write_photos,
)

pytestmark = pytest.mark.full

# -- YOLO
# --------------------------------------------------------------------------------------------------

BOX = '0.5 0.5 0.4 0.4'


@pytest.mark.parametrize(
    'rest',
    [
        '0.45 0.4',
        '0.45 0.4 0.6 0.65',
        '0.45 0.4 0 0 0.6 0.65 0.31 0.31',
        '0.45 0.4 1 0.6 0.65 1',
        '0.45 0.4 1 0 0 0 0.6 0.65 1 0.5 0.5 0',
        '0.87 1',
        '0.31 0',
    ],
)
def test_boxes_with_keypoints_or_scores_are_no_polygons(rest, yolo, refuse, table):
    for part, count in (('train', 5), ('val', 2)):
        for i in range(count):
            yolo.label(f'{part}/{part}{i}', f'1 {BOX} {rest}')
    assert has(refuse('yolo', yolo.folder), 'refused 7 lines that fit boxes with keypoints')
    yolo.yaml(task='segment')
    assert_used(table('yolo', yolo.folder), 5, 2)


def test_names_of_classes_are_text_as_written(yolo, table, config):
    names = ['16:9', '007', '1.10', '1_000', 'yes', '1e3', 'no', '0x1F', '2024-01-02', '"on"']
    yolo.yaml(names=f'[{", ".join(names)}]', nc=10)
    table('yolo', yolo.folder)
    assert [*config().classes] == [name.strip('"') for name in names]
    yolo.yaml(names='{0: 1_0, 1: 010}', test='null')
    table('yolo', yolo.folder)
    assert config().classes == ('1_0', '010')


def test_paths_of_windows(yolo, table):
    yolo.yaml(path='.', train=r'images\train', val=r'..\images\val')
    assert_used(table('yolo', yolo.folder), 5, 2)
    lines = [rf'.\images\train\train{i}.png' for i in range(5)]
    (yolo.folder / 'train.txt').write_bytes('\r\n'.join(lines).encode())
    yolo.yaml(train='train.txt')
    content = (yolo.folder / 'data.yaml').read_text()
    (yolo.folder / 'data.yaml').write_bytes(content.replace('\n', '\r\n').encode())
    assert_used(table('yolo', yolo.folder), 5, 2)


def test_label_files_of_other_case_and_accents(yolo, table, tmp_path):
    labels = yolo.folder / 'labels/train'
    (labels / 'train0.txt').rename(labels / 'train0.TXT')
    (yolo.folder / 'images/train/train1.png').rename(
        yolo.folder / f'images/train/{unicodedata.normalize("NFC", "é1")}.png'
    )
    (labels / 'train1.txt').rename(labels / f'{unicodedata.normalize("NFD", "é1")}.Txt')
    assert 'used           5 training objects' in table('yolo', yolo.folder)


# -- masks
# --------------------------------------------------------------------------------------------------


def numbered(folder, values, dtype):
    """Masks of three squares with these values; returns the arguments."""
    folder.mkdir(parents=True)
    for i in range(6):
        photo(folder.parent / f'images/{i}.png')
        pixels = np.zeros((HEIGHT, WIDTH, *np.shape(values)[1:]), dtype)
        for place, value in zip(((2, 2), (2, 30), (25, 5)), values, strict=True):
            pixels[place[0] : place[0] + 15, place[1] : place[1] + 15] = value
        cv2.imwrite(str(folder / f'{i}.png'), pixels)
    return ['instances', folder.parent / 'images', folder]


@pytest.mark.parametrize('values', [(254, 255, 256), (255, 1, 4000)])
def test_255_is_an_object_among_greater_values(values, table, tmp_path):
    printed = table(*numbered(tmp_path / 'masks', values, np.uint16))
    assert 'read          18 objects' in printed


@pytest.mark.parametrize(
    ('values', 'dtype'),
    [
        ((253, 254, 255), np.uint8),
        ((253, 254, 255), np.uint16),
        (((9, 9, 200), (0, 90, 0), (255, 255, 255)), np.uint8),
    ],
)
def test_255_and_white_are_counted_otherwise(values, dtype, table, tmp_path):
    printed = table(*numbered(tmp_path / 'masks', values, dtype))
    assert 'read          12 objects' in printed
    assert 'note           6 masks with pixels of 255 or white, which are borders' in printed


@pytest.mark.parametrize('count', [255, 256])
def test_maps_of_more_than_255_classes_have_16_bits(count, masks, table, config):
    names = masks.classes('\n'.join(f'kind {i}' for i in range(count)))
    for i in range(5):
        masks.put(f'{i}.png', range(count), dtype=np.uint16)
    table(*masks.arguments, *names)
    is_deep = count > 255
    assert (masks.written().dtype == np.uint8) != is_deep
    assert config().model.decode_head.ignore_index == (65535 if is_deep else 255)
    assert masks.written().max() == count - 1
    for part in ('train', 'test'):
        steps = {step['type'] for step in config()[f'{part}_dataloader'].dataset.pipeline}
        assert ('LoadClassMap' in steps) == is_deep == ('LoadAnnotations' not in steps)


# -- COCO
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('name', ['./0.png', 'sub/../0.png', r'.\0.png', 'link.png', '//0.png', ''])
def test_an_image_listed_under_two_names_is_refused(name, coco, refuse):
    (coco.photos / 'sub').mkdir()
    (coco.photos / 'link.png').symlink_to(coco.photos / '0.png')
    name = name.replace('//', f'{coco.photos}/') or str(coco.photos / '0.png')
    coco.images[1]['file_name'] = name
    assert has(refuse(*coco.arguments()), 'refused 1 images that are listed twice ... (0.png)')


@pytest.mark.parametrize(('form', 'side'), [('coco', 20), ('instances', 8)])
def test_images_of_many_objects(form, side, coco, table, config):
    """mmdet predicts 100 objects an image."""
    write_photos(coco.photos, *(f'{i}.png' for i in range(10)), size=(320, 320))
    coco.images, coco.annotations = coco.images[:4], []
    for image in coco.images:
        image.update(width=320, height=320)
        for place in range(side**2):
            x, y = place % side * 16, place // side * 16
            one = dict(id=len(coco.annotations), image_id=image['id'], category_id=1)
            coco.annotations.append(one | dict(bbox=[x, y, 12, 12]))
    coco.add_outlines()
    count = {'coco': 800, 'instances': 200}[form]
    assert f'the config predicts up to {count}' in table(*coco.arguments(form))
    test_cfg = config().model.test_cfg
    limits = test_cfg.rcnn if form == 'instances' else test_cfg
    assert limits.max_per_img == count
    if form == 'instances':
        assert test_cfg.rpn.max_per_img >= count <= test_cfg.rpn.nms_pre
    else:
        assert limits.nms_pre >= count
    evaluator = config().val_evaluator
    assert 100 in evaluator.proposal_nums and max(evaluator.proposal_nums) >= count
    assert config().default_hooks.checkpoint.save_best.endswith('mAP_50')


def test_names_without_letters_in_the_font_are_numbers(coco, table):
    """Not boxes of no meaning; accents, Greek and Cyrillic are drawn."""
    from cpvt_backbones.inference.drawing import can_draw

    coco.categories[0]['name'], coco.categories[1]['name'] = '猫', 'собака'
    line = 'pictures show these classes by their number, because their font lacks the letters: 0 猫'
    assert line in table(*coco.arguments()).splitlines()
    assert [can_draw(name) for name in ('élan', 'σκύλος', 'うし', 'कुत्ता', 'a b')] == [1, 1, 0, 0, 1]


# -- damage
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('form', ['voc', 'coco', 'yolo', 'folders', 'masks'])
def test_damaged_images_are_left_out_on_request(form, refuse, table, tmp_path, request):
    if form == 'voc':
        pytest.importorskip('mmdet')
        for i in range(10):
            voc_pair(tmp_path / 'voc', i)
        arguments, target = ['voc', tmp_path / 'voc'], tmp_path / 'voc/JPEGImages/3.png'
    elif form == 'coco':
        coco = CocoSet(tmp_path)
        arguments, target = coco.arguments(), coco.photos / '3.png'
    elif form == 'yolo':
        target = YoloSet(tmp_path).folder / 'images/train/train3.png'
        arguments = ['yolo', tmp_path / 'yolo']
    elif form == 'masks':
        masks = request.getfixturevalue('masks')
        arguments, target = masks.arguments, masks.images / '3.png'
    else:
        target = class_folders(tmp_path / 'photos') / 'cat/cat3.png'
        arguments = ['folders', tmp_path / 'photos']
    target.write_bytes(target.read_bytes()[:200])
    line = refuse(*arguments)
    assert has(line, 'refused 1 images that cannot be read (--skip-damaged leaves them out')
    printed = table(*arguments, '--skip-damaged')
    assert has(printed, 'skipped 1 images that cannot be read') and 'data accepted' in printed
    for part in ('train', 'val'):
        for file in (tmp_path / 'mine').glob(f'{part}.*'):
            assert target.name not in file.read_text()


def test_everything_wrong_is_named_in_one_round(coco, refuse):
    """A damaged image, a box out of its image, a class without name."""
    (coco.photos / '3.png').write_bytes(b'x')
    coco.annotations[0]['bbox'] = 'none'
    coco.categories.append(dict(id=3, name=''))
    line = refuse(*coco.arguments())
    for words in ('images that cannot be read', 'bbox is not four', 'categories without name'):
        assert words in line
    assert json.loads((coco.folder / 'all.json').read_text())['categories'] == coco.categories
    assert not (coco.folder / 'mine/train.json').exists()
