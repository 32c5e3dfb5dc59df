"""Helpers that every constructor shares."""

from cpvt_backbones.layers import group_by_shape


def test_group_by_shape_keeps_the_order_of_first_appearance():
    assert group_by_shape([(2, 3), (1, 1), (2, 3), (4, 4), (1, 1)]) == [[0, 2], [1, 4], [3]]
    assert group_by_shape(iter([])) == []
