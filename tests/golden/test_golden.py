"""Outputs of every backbone, encoding, shipped model and exported graph are those of golden.json.

They change with no refactoring and no upgrade of torch. `python tests/golden/record.py` writes the
file anew.

The tolerance is relative to the root mean square of an output. An fp32 operation rounds by up to
2**-24 = 6e-8. A product of matrices that sums in another order differs by about three times that,
independently in each of the up to 200 products in a row, so the errors add like a random walk:
sqrt(200) * 3 * 6e-8 = 2.5e-6 is their standard deviation. The largest of some thousand recorded
numbers is off by four of these, 1e-5; twice as much is allowed. On one machine,
GOLDEN_TOLERANCE=1e-6 is the strict comparison for a refactoring.
"""

import os

import numpy as np
import pytest
from golden_cases import CASES, difference, summarise
from record import read

TOLERANCE = float(os.environ.get('GOLDEN_TOLERANCE', '2e-5'))
GOLDEN = read()
TOOLBOXES = {'classifier': 'mmpretrain', 'segmentor': 'mmseg', 'detector': 'mmdet'}


def test_every_case_is_recorded():
    assert list(GOLDEN) == list(CASES)


def check(name, folder):
    found = {key: summarise(output) for key, output in CASES[name](folder).items()}
    assert list(found) == list(GOLDEN[name])
    differences = {key: difference(summary, GOLDEN[name][key]) for key, summary in found.items()}
    assert {key: value for key, value in differences.items() if value > TOLERANCE} == {}


@pytest.mark.parametrize(
    'name', [name for name in CASES if name.split()[0] not in ('shipped', 'exported')]
)
def test_backbones(name, tmp_path):
    check(name, tmp_path)


@pytest.mark.parametrize('model', TOOLBOXES)
def test_shipped_models(model, tmp_path):
    pytest.importorskip(TOOLBOXES[model])
    pytest.importorskip('safetensors')
    check(f'shipped {model}', tmp_path)


# tests/export compares graphs of detectors and segmentors with their models.
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ('segmentor', 'detector')]


@pytest.mark.full
@pytest.mark.parametrize('model', ['classifier', 'backbone', *SLOW])
def test_exported_graphs(model, tmp_path):
    pytest.importorskip(TOOLBOXES.get(model, 'mmdet'))
    pytest.importorskip('onnxscript')
    check(f'exported {model}', tmp_path)


def test_a_change_of_one_value_is_noticed():
    rng = np.random.default_rng(0)
    output = rng.normal(size=(2, 30, 7, 9)).astype(np.float32)
    expected = summarise(output)
    for place in rng.integers(output.size, size=50):
        changed = output.copy()
        changed.flat[place] += 0.1
        assert difference(summarise(changed), expected) > TOLERANCE
    assert difference(summarise(output[:, ::-1]), expected) > TOLERANCE
    assert difference(summarise(output.reshape(2, 30, 9, 7)), expected) == float('inf')
    assert difference(summarise(output * np.nan), expected) == float('inf')
