"""Masks of class indices or colours: pairs, sizes, values, and names of the classes."""

import cv2
import numpy as np
import pytest
import tiny
import torch
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import MODELS
from own_data_sets import HEIGHT, WIDTH, assert_used, has, mask, photo
from PIL import Image


def test_data_without_faults_are_written_as_they_are(masks, table):
    printed = table(*masks.arguments, '--strict')
    assert_used(printed, 4, 1)
    assert 'data accepted' in printed
    assert masks.first(count=4) == [0, 1, 1, 0]


def number_objects(masks):
    """As many objects in mask i as i + 1, numbered from 1."""
    masks.fill([0])
    for i in range(5):
        for number in range(i + 1):
            columns = slice(12 * number, 12 * number + 9)
            masks.change(f'{i}.png', (slice(10, 30), columns), number + 1)


def binary(masks, **others):
    """Masks of 0 and 255, but for some."""
    masks.fill([0, 255, 255])
    for number, values in others.items():
        masks.put(f'{number[1:]}.png', values)


def turned(masks):
    (masks.images / '0.png').unlink()
    photo(masks.images / '0.jpg', orientation=6)


def twice(masks, *names):
    """Two images of one name, and masks of these names."""
    for suffix in ('jpg', 'png'):
        photo(masks.images / f'a.{suffix}')
    for i, name in enumerate(names):
        masks.put(name, [i, 1 - i])


def gap(masks):
    masks.change('2.png', (3, slice(4, 7)), 9)


def palette(masks):
    for i in range(5):
        image = Image.fromarray(np.resize(np.array([0, 1, 1], np.uint8), (HEIGHT, WIDTH)))
        image.putpalette([200, 0, 0, 0, 0, 90])
        image.save(masks.masks / f'{i}.png')


def palettes(masks):
    """As programs write that choose the palette of each file: 1 is red, or black."""
    palette(masks)
    with Image.open(masks.masks / '3.png') as image:
        image.putpalette([0, 0, 90, 200, 0, 0])
        image.save(masks.masks / '3.png')


def pages(masks):
    masks.remove('1.png')
    page = Image.fromarray(np.resize(np.array([0, 1, 1], np.uint8), (HEIGHT, WIDTH)))
    page.save(masks.masks / '1.tif', save_all=True, append_images=[page])


def arrays(masks):
    for i in range(5):
        masks.remove(f'{i}.png')
        np.save(masks.masks / f'{i}.npy', np.zeros((HEIGHT, WIDTH), np.uint8))


BLUE = [[0, 0, 0], [30, 20, 10]]  # BGR
OTHER_PALETTE = (
    'value 0: (200, 0, 0) in {masks}/0.png, (0, 0, 90) in {masks}/3.png, value 1: (0, 0, 90) in'
)
GREY = "no class, --ignore 255; else add line 3, such as 'road 255 255 255': value 255"
TWO = 'masks of 0 and 255 have two classes; --ignore 255 leaves 255 out: '
SAME_NAME = 'images of one name, whose masks cannot be told apart ... images/a.jpg ... images/a.png'
TURNED = 'masks of the image before its EXIF rotation ... {images}/0.jpg ... masks/0.png'
UNNAMED = (
    'values of masks without a name in {folder}/classes.txt: if they are no class, --ignore 9; else'
    ' list ... value 9 (3 px, 0.02%, {masks}/2'
)
NO_MASK = 'images without a mask (a.png or a_mask.png for a.jpg): {images}/1.png'
RARE = 'values of fewer than 0.01% of the pixels: if they are no class, --ignore 2; ... 2 (1 px,'
# What is changed, options or the names of the classes, and words of the error.
REFUSED = [
    # Pairs and sizes
    (lambda m: m.remove('1.png'), '', NO_MASK),
    (lambda m: twice(m, 'a_mask.png'), '', SAME_NAME),
    (turned, '', TURNED),
    (lambda m: m.put('1.png', [0, 1], size=(10, 9)), '', 'masks of another size than their image'),
    # Values
    (
        lambda m: m.put('1.png', [0, 300], dtype='uint16'),
        '',
        '300 (1536 px, 10.00%, {masks}/1.png)',
    ),
    (
        lambda m: m.put('1.png', [0, 300], dtype='uint16'),
        'a\nb\n',
        '300 (1536 px, 10.00%, {masks}',
    ),
    (gap, '', 'refused 1 values with gaps ... the masks have 0, 1, 9, but no 2'),
    (gap, 'a\nb', UNNAMED),
    (lambda m: m.change('2.png', (3, 4), 2), '', RARE),
    (number_objects, '', 'masks that number objects from 1'),
    (lambda m: m.fill([0, 0]), '', 'masks of one class'),
    # 255
    (lambda m: binary(m, _1=[0, 1]), '', 'masks of 0 and 255 beside masks of 0 and 1'),
    (lambda m: binary(m, _1=[0, 2, 1]), '', 'masks of 0 and 255 beside masks of 0 and 1, or of mo'),
    (lambda m: binary(m, _1=[0, 1, 255]), '', 'masks of 0 and 255 beside'),
    (binary, '--ignore 255', 'masks of one class, from which nothing is learned: class_0 (v'),
    (binary, 'a\nb\nc\n', TWO),
    (binary, 'a\n', 'names 1'),
    (binary, 'a 0 0 0\nb 9 9 9\n', GREY),
    (lambda m: m.fill([1, 0, 255, 255, 255]), '', 'most pixels have no class (255)'),
    (lambda m: m.fill([0, 128, 255]), '', "values with gaps ... such as 'road 128 128 128': t"),
    # Names and colours
    (lambda m: None, 'a\na\n', 'each name once'),
    (lambda m: m.fill(BLUE), 'a 0 0 0\nb\n', 'a colour in all lines or in none'),
    (
        lambda m: m.fill(BLUE),
        'a\nb\n',
        '(10, 20, 30) (7680 px, 50.00%, in 5 masks, most in ',
    ),
    (palette, 'blue 0 0 91\nred 200 0 0\n', 'colour (0, 0, 90) (10240 px'),
    (palettes, '', OTHER_PALETTE),
    (palettes, 'a\nb\n', OTHER_PALETTE),
    (pages, '', 'masks of several pages: one is accepted: {masks}/1.tif (2 pages)'),
    (arrays, '', 'masks that cannot be read (PNG and TIFF are accepted): {masks}/0.npy'),
]


@pytest.mark.parametrize(('change', 'options', 'words'), REFUSED, ids=[row[-1] for row in REFUSED])
def test_faults_are_refused(masks, refuse, change, options, words):
    change(masks)
    line = refuse(*masks.given(options))
    places = dict(folder=masks.folder, images=masks.images, masks=masks.masks)
    assert has(line, words.format(**places))
    assert 'no mask has' not in line


IGNORED = 'if they are no class, --ignore'
BY_VALUE = "or give each line the value of its class three times, such as 'road 9 9 9'"
TWO_GREYS = "2 3; else add lines 3 to 4, such as 'road 3 3 3': value 2"
BLACK, RED, BROWN = (0, 0, 0), (0, 0, 200), (9, 8, 7)  # BGR
# Values of the masks, names of the classes, and what the error says to do.
CURES = [
    ([0, 1, 2, 255], 'a\nb\n', f'{IGNORED} 2; else add line 3 to it: value 2 ('),
    ([0, 1, 2, 3, 255], 'a\nb\n', f'{IGNORED} 2 3; else add lines 3 to 4 to it: value 2 ('),
    (
        [0, 1, 2, 3, 9],
        'a\nb\nc\n--ignore 3',
        f'{IGNORED} 3 9; else list the names of all values fr',
    ),
    ([0, 1, 9], 'a\nb\n', f'else list the names of all values from 0 to 9, {BY_VALUE}: value 9'),
    ([0, 1, 2, 3], 'a 0 0 0\nb 1 1 1\n', f'{IGNORED} {TWO_GREYS}'),
    (
        [0, 1, 9],
        'a 0 0 0\nb 9 9 9\n',
        "add line 3, such as 'road 1 1 1'; if they are no class, also",
    ),
    (
        [BLACK, RED, BROWN],
        'a 0 0 0\nb 7 8 9\n',
        "'road 200 0 0'; if they are no class, also --ignore 2:",
    ),
    ([BLACK, RED], 'a\nb\n', "give each line the colour of its class, such as 'road 200 0 0': "),
    (
        [0, 1, 9],
        '',
        f'from 0 to 9, {BY_VALUE}; if 9 is no class, --ignore 9: the masks have 0, 1, 9',
    ),
    ([0, 1, 4, 9], '--ignore 4', 'if 9 is no class, --ignore 4 9: '),
]


@pytest.mark.parametrize(('values', 'options', 'words'), CURES, ids=[row[-1] for row in CURES])
def test_an_error_says_how_to_ignore_or_name_values(masks, refuse, values, options, words):
    masks.fill(values)
    assert words in ' '.join(refuse(*masks.given(options)).split())


def test_jpeg_masks_are_refused_and_nothing_else(masks, refuse):
    masks.remove('1.png')
    masks.put('1.jpg', [0, 255])
    wanted = f'masks as JPEG, which changes their values: use PNG: {masks.masks}/1.jpg'
    line = refuse(*masks.arguments)
    assert line.count(wanted) == 1 and line.count('\n') == 1


@pytest.mark.parametrize('colours', [(0, 255), (0, 90, 255), ((0, 0, 0), (255, 0, 0), (0, 0, 255))])
@pytest.mark.parametrize('sigma', [0.7, 3])
def test_blurred_masks_are_refused(masks, refuse, colours, sigma):
    """Grey ones of all values were a segmentor of 255 classes."""
    for i in range(5):
        array = np.full((HEIGHT, WIDTH, *np.shape(colours[0])), colours[0], np.uint8)
        for number, colour in enumerate(colours[1:]):
            cv2.circle(array, (20 + 2 * i + 20 * number, 24), 11, colour, -1)
        cv2.imwrite(str(masks.masks / f'{i}.png'), cv2.GaussianBlur(array, (0, 0), sigma))
    line = refuse(*masks.arguments)
    assert 'refused        5 masks with blurred edges' in line and 'values are only on edge' in line


CHANNELS = [[255 - i, i, 20 * i] for i in range(4)]
NAMED = 'a 0 0 255\nb 20 1 254\nc 40 2 253\nd 60 3 252'
# What is changed, options or the names of the classes, a mask and its first values as written.
WRITTEN = [
    (lambda m: m.put('1.png', [0, 1], dtype='uint16'), '', '1.png', [0, 1, 0, 1]),
    (lambda m: m.put('1.png', [0, 1], dtype='uint16'), 'a\nb\n', '1.png', [0, 1, 0, 1]),
    (lambda m: m.put('2.png', [0, 9, 1]), '--ignore 9', '2.png', [0, 255, 1]),
    (lambda m: m.put('2.png', [0, 9, 1]), 'a\nb\n--ignore 9', '2.png', [0, 255, 1]),
    (lambda m: m.fill([0, 1, 2, 3, 3]), 'sky\nvoid\ntree\nroad', '3.png', [0, 1, 2, 3, 3]),
    (number_objects, '\n'.join('abcdef'), '4.png', [0, 0]),
    (lambda m: binary(m, _1=[0, 1]), '--ignore 255', '1.png', [0, 1]),
    (lambda m: twice(m, 'a.jpg.png', 'a.png.png'), '', 'a.jpg', [0, 1]),
    (lambda m: twice(m, 'a.jpg.png', 'a.png.png'), '', 'a.png', [1, 0]),
    (lambda m: m.fill(BLUE), 'road, 0, 0, 0\nroute 66 10 20 30\n', '0.png', [0, 1, 0]),
    (lambda m: m.fill(BLUE), '0 0 0\troad\n10 20 30\troute 66\n', '0.png', [0, 1, 0]),
    (palette, 'blue 0 0 90\nred 200 0 0\n', '3.png', [1, 0, 0]),
    (lambda m: m.fill([[i] * 3 for i in range(4)]), 'a\nb\nc\nd', '3.png', [0, 1, 2, 3, 0]),
    (lambda m: m.fill(CHANNELS), NAMED, '3.png', [0, 1, 2, 3, 0]),
]


@pytest.mark.parametrize(('change', 'options', 'name', 'values'), WRITTEN)
def test_values_as_they_are_written(masks, table, change, options, name, values):
    change(masks)
    assert 'data accepted' in table(*masks.given(options))
    assert masks.first(name, len(values)) == values


@pytest.mark.parametrize(
    ('codes', 'names', 'classes'),
    [
        ([0, 255, 255], '', {'class_0': 0, 'class_255': 255}),
        ([0, 255, 255], 'road\ncar\n', {'road': 0, 'car': 255}),
        ([0, 255, 255], 'car 255 255 255\nroad 0 0 0\n', {'car': 255, 'road': 0}),
        ([0, 128, 255], 'a 0 0 0\nb 255 255 255\nc 128 128 128', {'a': 0, 'b': 255, 'c': 128}),
        ([0, 1, 255], '', {'class_0': 0, 'class_1': 1}),
        ([0, 1, 2], '\ufeffroad\nroute 66\nb\n', {'road': 0, 'route 66': 1, 'b': 2}),
    ],
)
def test_classes_and_their_shares_are_told(masks, table, config, codes, names, classes):
    """255 is a class beside 0 alone, or if it is named. A byte order mark is no part of a name."""
    masks.fill(codes)
    printed = table(*masks.given(names), '--strict')
    assert config().classes == (*classes,)
    values = [*classes.values()]
    assert masks.first() == [values.index(code) if code in values else 255 for code in codes]
    for index, (name, value) in enumerate(classes.items()):
        share = codes.count(value) / 3
        assert f'class    {index:7} {name}: value {value}, {share:.2%} of the pixels\n' in printed
    no_class = 'class          - no class: value 255, 33.33% of the pixels\n' in printed
    assert no_class == (255 in codes and 255 not in values)


def test_ignored_values_leave_no_gap_between_the_classes(masks, table, config):
    masks.fill([0, 1, 2, 3, 3])
    table(*masks.given('sky\nvoid\nbig tree\nroad'), '--ignore', '1')
    assert config().classes == ('sky', 'big tree', 'road')
    assert masks.first(count=5) == [0, 255, 1, 2, 2]


def test_classes_without_a_pixel_and_colours_are_listed(masks, table):
    assert has(table(*masks.given('a\nb\nd\n')), 'note 1 classes that no mask has: d')
    palette(masks)
    printed = table(*masks.given('blue 0 0 90\nred 200 0 0\n'))
    assert has(printed, 'class 0 blue: colour (0, 0, 90), 66.67%')


# -- pairs of images and masks
# --------------------------------------------------------------------------------------------------


def test_each_mask_belongs_to_the_image_of_its_name(masks, table, refuse):
    numbers = (1, 2, 3, 10, 11)
    for i, number in enumerate(numbers):
        (masks.images / f'{i}.png').rename(masks.images / f'img_{number}.png')
        masks.remove(f'{i}.png')
        masks.put(f'img_{number}_mask.png', [number % 2])
    table(*masks.arguments)
    for number in numbers:
        assert np.unique(masks.written(f'img_{number}.png')).tolist() == [number % 2], number
    masks.remove('img_1_mask.png')
    assert f'for a.jpg): {masks.images}/img_1.png' in refuse(*masks.arguments)
    for name in ('img_1-a', 'img_1_b'):
        masks.put(f'{name}.png', [1])
    assert 'img_1.png (img_1-a.png, img_1_b.png)' in refuse(*masks.arguments)
    photo(masks.images / 'img_1_b.png')
    assert_used(table(*masks.arguments), 5, 1)


@pytest.mark.parametrize('side', [6, 8])
def test_classes_of_few_pixels_are_noted_with_the_page_about_them(masks, table, side):
    """6 x 6 of 48 x 64 px are 1.2 %."""
    for i in range(5):
        masks.put(f'{i}.png', [0, 1, 1])
        masks.change(f'{i}.png', (slice(side), slice(side)), 2)
    printed = table(*masks.given('a\nb\nc\n'))
    rare = 'note: less than 1.5% of the pixels each: c; such classes stayed at an IoU of 0 in our'
    assert (rare in printed) == (side == 6)
    for line in (
        'starts from semantic_fpn_cpvt_tiny_gap-camvid; others: --weights',
        'note: these weights, and models trained from them, are for non-commercial use (docs/own',
    ):
        assert f'\n{line}' in printed


def test_folders_named_as_in_ade20k_are_the_split(masks, table):
    for i in range(5):
        for folder in (masks.images, masks.masks):
            part = folder / ('training' if i < 2 else 'validation')
            part.mkdir(exist_ok=True)
            (folder / f'{i}.png').rename(part / f'{i}.png')
    assert_used(table(*masks.arguments), 2, 3)


def test_masks_that_are_left_over_are_skipped(masks, table):
    mask(masks.masks / '0_edges.png', [0, 9])
    mask(masks.masks / 'other.png', [0, 9])
    printed = table(*masks.arguments)
    assert has(printed, 'skipped 1 masks beside one of the name of the image: 0_edges.png')
    assert has(printed, 'skipped 1 masks without an image: other.png')


def test_masks_have_the_size_of_the_upright_image(masks, table):
    turned(masks)
    masks.put('0.png', [0, 1, 1], size=(HEIGHT, WIDTH))
    assert 'data accepted' in table(*masks.arguments)
    assert masks.written('0.jpg').shape == (WIDTH, HEIGHT)


@pytest.mark.parametrize('names', ['blue 0 0 90\nred 200 0 0\n', 'a 0 0 0\nb 1 1 1\n'])
def test_colours_or_values_tell_what_palettes_mean(masks, table, names):
    palettes(masks)
    table(*masks.arguments, *masks.classes(names))
    values = masks.first('0.png'), masks.first('3.png')
    assert values == (([1, 0, 0], [0, 1, 1]) if 'red' in names else ([0, 1, 1], [0, 1, 1]))


@pytest.mark.parametrize(
    'names',
    [
        'Pixel Value, Class\n0, sky\n1, street\n',  # Roboflow's
        '# label:color_rgb:parts:actions\nsky:0,0,0::\nstreet:1,1,1::\n',  # CVAT's
        '0 sky\n1 street',
    ],
)
def test_names_in_tables_of_other_programs(masks, table, config, names):
    table(*masks.arguments, *masks.classes(names))
    assert config().classes == ('sky', 'street')


def test_masks_beside_their_images_and_negative_values_are_refused(masks, refuse, refused):
    wanted = f'images and masks must be in two folders, got {masks.images} twice'
    assert wanted in refuse('masks', masks.images, masks.images)
    assert 'an integer of at least 0 is expected' in refuse(*masks.arguments, '--ignore', '-1')


@pytest.mark.parametrize('side', tiny.only('320', of=['40', '320', '480']))
def test_class_scores_cover_a_crop_and_no_more(masks, table, config, side):
    """mmseg resizes them to the crop, so that cells beyond its edge would shift all objects."""
    pytest.importorskip('mmseg')
    table(*masks.arguments, '--side', side)
    cfg = config()
    height, width = cfg.train_dataloader.dataset.pipeline[3].crop_size
    backbone = MODELS.build({**cfg.model.backbone, 'init_cfg': None})
    maps = backbone(torch.zeros(1, 3, height, width))
    for stride, found in zip(backbone.out_strides, maps, strict=True):
        assert (stride * found.shape[2], stride * found.shape[3]) == (height, width)


def test_a_prediction_is_padded_to_whole_cells(masks, table, config):
    """Class scores of an odd size are those of the image on a larger canvas, cut and not squeezed.

    At 321 px, a model of the photographs of demo/cells has a mIoU of 83.8 without this line, and
    90.6 with it.
    """
    pytest.importorskip('mmseg')
    from mmseg.structures import SegDataSample

    table(*masks.arguments)
    cfg = config()
    torch.manual_seed(0)
    model = revert_sync_batchnorm(MODELS.build(dict(cfg.model, _scope_='mmseg'))).eval()
    image = torch.randint(256, (3, 33, 47), dtype=torch.uint8)
    canvas = torch.zeros(1, 3, 64, 64)
    canvas[..., :33, :47] = (image.flip(0) - model.data_preprocessor.mean) / (
        model.data_preprocessor.std
    )
    shapes = dict.fromkeys(('img_shape', 'ori_shape', 'pad_shape'), (33, 47))
    sample = SegDataSample(metainfo=shapes)
    (found,) = model.test_step(dict(inputs=[image], data_samples=[sample]))
    with torch.no_grad():
        wanted = model.encode_decode(canvas, [dict(img_shape=(64, 64))])[0, :, :33, :47]
    torch.testing.assert_close(found.seg_logits.data, wanted, rtol=1e-4, atol=1e-5)
