"""Decorators and helpers that every constructor shares."""

import pytest

from cpvt_backbones.layers import group_by_shape
from cpvt_backbones.layers.checks import renamed_arguments


@renamed_arguments(score_threshold='score_thr')
def keep(scores, *, score_thr=0.5):
    """Scores above the threshold."""
    return [score for score in scores if score > score_thr]


def test_old_keyword_is_accepted_with_a_warning():
    with pytest.warns(DeprecationWarning, match='keep: score_threshold is now score_thr'):
        assert keep([0.2, 0.4], score_threshold=0.3) == [0.4]


@pytest.mark.filterwarnings('error')
def test_new_keyword_and_default_do_not_warn():
    assert keep([0.2, 0.6]) == [0.6]
    assert keep([0.2, 0.6], score_thr=0.1) == [0.2, 0.6]
    assert keep.__doc__ == 'Scores above the threshold.'


def test_old_and_new_keyword_together_are_refused():
    with pytest.raises(
        TypeError, match='keep got both score_thr=0.1 and its old name score_threshold=0.2'
    ):
        keep([], score_thr=0.1, score_threshold=0.2)


def test_group_by_shape_keeps_the_order_of_first_appearance():
    assert group_by_shape([(2, 3), (1, 1), (2, 3), (4, 4), (1, 1)]) == [[0, 2], [1, 4], [3]]
    assert group_by_shape(iter([])) == []
