"""Objects followed through predictions: each box once, in its object."""

from hypothesis import given
from hypothesis import strategies as st
from try_images.follow import follow_objects

BOXES = st.lists(
    st.tuples(
        st.integers(0, 3), st.integers(0, 3), st.integers(1, 9), st.integers(0, 1), st.floats(0, 1)
    ),
    max_size=6,
)


def prediction(*found):
    """A prediction of squares (x, y, side, label, score)."""
    boxes = [[10.0 * x, 10.0 * y, 10.0 * x + side, 10.0 * y + side] for x, y, side, _, _ in found]
    return dict(boxes=boxes, labels=[one[3] for one in found], scores=[one[4] for one in found])


def test_an_object_seen_at_all_sizes_and_one_seen_once():
    sizes = [
        prediction((0, 0, 8, 0, 0.5)),
        prediction((2, 2, 8, 1, 0.9), (0, 0, 9, 0, 0.7)),
        prediction((0, 0, 7, 0, 0.6)),
    ]
    best, other = follow_objects(sizes)
    assert best == dict(label=1, box=[20.0, 20.0, 28.0, 28.0], scores=[None, 0.9, None])
    assert other == dict(label=0, box=[0.0, 0.0, 9.0, 9.0], scores=[0.5, 0.7, 0.6])


def test_boxes_of_other_classes_or_of_little_overlap_are_other_objects():
    assert len(follow_objects([prediction((0, 0, 8, 0, 0.5)), prediction((0, 0, 8, 1, 0.5))])) == 2
    assert len(follow_objects([prediction((0, 0, 9, 0, 0.5)), prediction((0, 0, 6, 0, 0.5))])) == 2
    assert (
        len(
            follow_objects(
                [prediction((0, 0, 9, 0, 0.5)), prediction((0, 0, 6, 0, 0.5))], min_iou=0.4
            )
        )
        == 1
    )


@given(st.lists(BOXES, max_size=4))
def test_every_box_is_in_one_object(sizes):
    predictions = [prediction(*found) for found in sizes]
    objects = follow_objects(predictions)
    for number, one in enumerate(predictions):
        scores = [
            found['scores'][number] for found in objects if found['scores'][number] is not None
        ]
        assert sorted(scores) == sorted(one['scores'])
    bests = [max(score for score in found['scores'] if score is not None) for found in objects]
    assert bests == sorted(bests, reverse=True)
