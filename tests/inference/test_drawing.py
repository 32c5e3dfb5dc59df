"""Pictures of predictions."""

import numpy as np
import pytest
from local_models import BlockDetector, LocalSegmentor

from cpvt_backbones.inference.colours import distinct_colours
from cpvt_backbones.inference.drawing import (
    OPACITY,
    ClassStyle,
    class_colours,
    draw_prediction,
    make_preview,
)


@pytest.mark.parametrize('width', [6000, 5001])
def test_pictures_of_large_maps_are_not_shifted(width):
    """The picture of a mirrored map is the mirrored picture."""
    stripes = (np.arange(width) // 7 % 2).astype(np.uint8) * np.ones((4, 1), np.uint8)
    predictor = LocalSegmentor()
    predictor.palette = [[0, 0, 0], [250, 250, 250], [0, 0, 0], [0, 0, 0]]
    preview = make_preview(np.zeros((4, width, 3), np.uint8))
    assert preview.shape[1] == 2048
    picture, mirrored = (
        draw_prediction(preview, dict(seg_map=seg_map), predictor, size=(width, 4))
        for seg_map in (stripes, stripes[:, ::-1].copy())
    )
    assert (picture == mirrored[:, ::-1]).mean() > 0.999


def test_a_legend_is_below_the_picture_and_names_the_classes_that_are_there():
    predictor = LocalSegmentor()
    predictor.classes = ['road', 'background', 'sky', 'tree']
    predictor.palette = [[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 0]]
    seg_map = np.zeros((120, 200), np.uint8)
    seg_map[:50], seg_map[50:80] = 2, 1
    grey = np.full((120, 200, 3), 100, np.uint8)
    picture = draw_prediction(grey.copy(), dict(seg_map=seg_map), predictor, size=(200, 120))
    assert picture.shape[1] == 200 and 120 < picture.shape[0] <= 180
    for label, colour in enumerate(predictor.palette):
        shown = picture[:120][seg_map == label]
        assert (shown == shown[:1]).all()  # nothing is written on the image
        count = (picture[120:] == colour).all(axis=-1).sum()
        assert (count > 20) == (label in (0, 2))


@pytest.mark.parametrize('opacity', [0, 0.25, 1])
def test_a_mask_covers_the_image_by_its_opacity(opacity):
    coco_mask = pytest.importorskip('pycocotools.mask')
    grey, colour = np.full((40, 40, 3), 100, np.uint8), np.array([200, 0, 40])
    style = ClassStyle('segmentation', ['road'], [colour.tolist()])
    seg_map = np.zeros((40, 40), np.uint8)
    picture = draw_prediction(
        grey.copy(), dict(seg_map=seg_map), style, size=(40, 40), opacity=opacity
    )
    assert np.abs(picture[:40] - ((1 - opacity) * 100 + opacity * colour)).max() <= 0.5
    mask = coco_mask.encode(np.asfortranarray(seg_map + 1))
    found = dict(boxes=[[0, 0, 39, 39]], labels=[0], classes=['road'], masks=[mask])
    detector = ClassStyle('detection', ['road'])
    picture = draw_prediction(grey.copy(), found, detector, size=(40, 40), opacity=opacity)
    blend = (1 - opacity) * 100 + opacity * distinct_colours(1)[0]
    assert np.abs(picture[20, 20] - blend).max() <= 0.5


def test_the_background_takes_no_colour_from_the_classes():
    """The first colours differ most. Labels of masks and predictions have the same ones."""
    style = ClassStyle('segmentation', ['road', 'Background', 'sky'])
    assert class_colours(style)[[0, 2]].tolist() == distinct_colours(2).tolist()
    assert len(np.unique(class_colours(style), axis=0)) == 3


@pytest.mark.parametrize(('count', 'least'), [(11, 19), (24, 14), (300, 4)])
def test_colours_differ_on_an_image_and_none_looks_black(count, least):
    """By CIEDE2000, on dark grey; among the first 11 were two blues, two cyans and dark olive."""
    color = pytest.importorskip('skimage.color')
    colours = distinct_colours(count)
    lab = color.rgb2lab((OPACITY * colours + (1 - OPACITY) * 60) / 255)
    differences = color.deltaE_ciede2000(lab[:, None], lab[None])
    assert differences[~np.eye(count, dtype=bool)].min() > least
    assert color.rgb2lab(colours / 255)[:, 0].min() > 44
    assert colours[:2].tolist() == [[255, 204, 0], [0, 204, 255]]


GREY = (100, 100, 100)


def boxes_drawn(*boxes, scores=None, name='a', size=(200, 150), ground=GREY, shade=None):
    """The picture of boxes of one class on an image of one colour."""
    count = len(boxes)
    found = dict(boxes=np.array(boxes), labels=[0] * count, classes=[name] * count)
    found['scores'] = scores or [0.5] * count
    predictor = BlockDetector()
    if shade is not None:
        predictor.palette = [shade, shade]
    image = np.full((size[1], size[0], 3), ground, np.uint8)
    return draw_prediction(image, found, predictor, size=size)


@pytest.mark.parametrize('size', [(200, 150), (1200, 900)])
def test_a_box_is_seen_on_an_image_of_its_own_colour(size):
    """Each of its four lines has a margin with a contrast of 2 to the image, by WCAG 2."""
    width, height = size
    box = np.array([width // 4, height // 4, width // 2, height // 2])
    x, y = int(box[[0, 2]].mean()), int(box[[1, 3]].mean())
    for shade in distinct_colours(24).tolist():
        picture = boxes_drawn(box, size=size, ground=shade, shade=shade)
        for line in (picture[y, :x], picture[y, x:], picture[:y, x], picture[y:, x]):
            light = line / 255
            light = np.where(light <= 0.04045, light / 12.92, ((light + 0.055) / 1.055) ** 2.4)
            light = light @ [0.2126, 0.7152, 0.0722] + 0.05
            assert light.max() > 2 * light.min()


@pytest.mark.parametrize('corner', [(150, 90), (0, 90), (0, 0), (150, 0), (190, 140)])
def test_a_label_is_whole_within_the_picture(corner):
    alone = boxes_drawn((60, 60, 70, 70), name='cells')
    rows, columns = (alone[:59] != GREY).any(axis=-1).nonzero()
    label = alone[rows.min() + 1 : 59, 60 : columns.max() + 1]
    box = (*corner, min(200, corner[0] + 60), min(150, corner[1] + 60))
    picture = boxes_drawn(box, name='cells')
    windows = np.lib.stride_tricks.sliding_window_view(picture, label.shape)[:, :, 0]
    assert (windows == label).all(axis=(2, 3, 4)).sum() == 1


def test_no_letter_of_a_long_name_is_cut():
    shade = (250, 250, 0)
    picture = boxes_drawn((10, 30, 70, 50), name='erythrocytes', size=(80, 60), shade=shade)
    label = picture[20:29]
    assert (label == 0).all(axis=-1).any()  # letters
    used = (label[4] != GREY).any(axis=-1).nonzero()[0]
    assert (label[:, used.max()] == shade).all()


def test_no_box_crosses_a_label():
    first, crossing = (20, 60, 90, 120), (30, 30, 190, 140)
    alone, both = boxes_drawn(first), boxes_drawn(first, crossing)
    label = slice(51, 60), slice(20, 40)  # above the first box
    assert len(np.unique(alone[label].reshape(-1, 3), axis=0)) > 2
    np.testing.assert_array_equal(both[label], alone[label])


def test_no_label_covers_that_of_a_likelier_box():
    """It moves into its own box, to the top or the bottom; without a free place it is left out."""
    boxes = (26, 60, 90, 120), (20, 60, 100, 110), (23, 60, 95, 130), (24, 60, 99, 130)
    scores = [0.75, 0.95, 0.65, 0.55]
    picture = boxes_drawn(*boxes, scores=scores)
    corners = []
    for score in scores:
        text = boxes_drawn((100, 60, 190, 140), scores=[score])[51:60, 100:128]
        windows = np.lib.stride_tricks.sliding_window_view(picture, text.shape)[:, :, 0]
        corners.append(np.argwhere((windows == text).all(axis=(2, 3, 4))).tolist())
    assert corners == [[[61, 26]], [[51, 20]], [[121, 23]], []]


def test_each_label_has_its_own_text_and_colour():
    predictor = BlockDetector()
    predictor.palette = [[250, 250, 0], [0, 0, 120]]
    boxes = np.array([[20, 30, 90, 60], [20, 80, 90, 110], [20, 120, 90, 140], [120, 30, 180, 60]])
    found = dict(boxes=boxes, labels=[0, 1, 0, 0], classes=['a', 'a', 'b', 'a'])
    found['scores'] = np.full(4, 0.5)  # a list or an array
    grey = np.full((150, 200, 3), 100, np.uint8)
    picture = draw_prediction(grey, found, predictor, size=(200, 150))
    first, other_colour, other_text, same = (
        picture[box[1] - 8 : box[1] - 1, box[0] + 2 : box[0] + 30] for box in boxes
    )
    np.testing.assert_array_equal(same, first)
    assert {*map(tuple, other_colour.reshape(-1, 3))} >= {(0, 0, 120), (255, 255, 255)}
    assert {*map(tuple, other_text.reshape(-1, 3))} >= {(250, 250, 0), (0, 0, 0)}
    assert (other_text != first).any()
