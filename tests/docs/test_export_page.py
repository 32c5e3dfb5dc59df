"""docs/export.md: its classifier runs without this package."""

import numpy as np
import pytest
from pages import run_page
from PIL import Image

from cpvt_backbones.weights import shipped_weights


@pytest.mark.slow
def test_a_classifier_runs_without_the_package(call, tmp_path, monkeypatch):
    pytest.importorskip('onnxruntime')
    pytest.importorskip('mmpretrain')
    monkeypatch.chdir(tmp_path)
    photo = np.random.default_rng(0).integers(0, 255, (160, 160, 3), np.uint8)
    Image.fromarray(photo).save('photo.jpg')
    page = run_page('docs/export.md', call, {}, parts=['Without this package'])
    assert page['about']['classes'] == list(
        shipped_weights()['cpvt_tiny_gap-imagenette'].dataset_meta['classes']
    )
    assert page['scores'].shape == (1, 10)
