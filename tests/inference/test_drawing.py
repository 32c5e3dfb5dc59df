"""Pictures of predictions."""

import numpy as np
import pytest
from local_models import LocalSegmentor

from cpvt_backbones.inference.drawing import draw_prediction, label_font, make_preview


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


def test_names_with_accents_are_drawn():
    """Pillow's own font draws one box for each letter beyond ASCII."""
    drawn = {letter: bytes(label_font(20).getmask(letter)) for letter in 'üßéЖΩu'}
    assert len({*drawn.values()}) == len(drawn)
