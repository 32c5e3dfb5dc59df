"""Which objects are found, by class and IoU."""

import numpy as np
import pytest

from cpvt_backbones.analysis.matching import match

OBJECTS = np.array([[0, 0, 10, 10], [4, 0, 14, 10], [50, 50, 90, 90]])
LABELS = np.array([0, 0, 1])


def test_each_object_is_met_by_its_own_box():
    assert match(OBJECTS[::-1], LABELS[::-1], OBJECTS, LABELS).tolist() == [2, 1, 0]


@pytest.mark.parametrize(
    ('box', 'label', 'met'),
    [
        ([50, 50, 90, 90], 0, -1),  # of another class
        ([50, 50, 70, 90], 1, 2),  # an IoU of 0.5
        ([50, 50, 69, 90], 1, -1),  # just below
        ([200, 200, 210, 210], 1, -1),
    ],
)
def test_a_box_meets_an_object_of_its_class_with_half_of_the_area(box, label, met):
    assert match([box], [label], OBJECTS, LABELS).tolist() == [met]


def test_two_boxes_on_one_object_are_one_find():
    assert match([OBJECTS[2], OBJECTS[2]], [1, 1], OBJECTS, LABELS).tolist() == [2, -1]


def test_a_box_on_two_objects_is_one_find():
    wide = [2, 0, 12, 10]  # an IoU of 0.67 with both of the class
    assert match([wide], [0], OBJECTS, LABELS).tolist() == [0]
    assert match([wide, wide], [0, 0], OBJECTS, LABELS).tolist() == [0, 1]


@pytest.mark.parametrize(('boxes', 'objects'), [(0, 0), (0, 3), (2, 0)])
def test_without_boxes_or_objects_nothing_is_met(boxes, objects):
    met = match(OBJECTS[:boxes], LABELS[:boxes], OBJECTS[:objects], LABELS[:objects])
    assert met.tolist() == [-1] * boxes


def test_classes_may_be_names():
    assert match(OBJECTS[2:], ['white'], OBJECTS, ['red', 'red', 'white']).tolist() == [2]
