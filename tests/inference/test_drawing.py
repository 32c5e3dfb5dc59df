"""Pictures of predictions."""

import numpy as np
import pytest
from local_models import BlockDetector, LocalSegmentor

from cpvt_backbones.inference.drawing import draw_prediction, make_preview


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


def boxes_drawn(*boxes, scores=None):
    """The picture of boxes of class ``a`` on 200 x 150 px of grey."""
    count = len(boxes)
    found = dict(boxes=np.array(boxes), labels=[0] * count, classes=['a'] * count)
    found['scores'] = scores or [0.5] * count
    grey = np.full((150, 200, 3), 100, np.uint8)
    return draw_prediction(grey, found, BlockDetector(), size=(200, 150))


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
