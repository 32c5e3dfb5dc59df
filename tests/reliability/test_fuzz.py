"""Random constructor arguments and image sizes.

``python tests/reliability/fuzz.py`` tries 2,000.
"""

import pytest
from fuzz import fuzz


@pytest.mark.parametrize(
    'count', [150, pytest.param(2000, marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
)
def test_refusals_are_clear_and_outputs_are_finite(count, record_property):
    record_property('tried', count)
    verdicts, faults = fuzz(count, seed=0)
    assert faults == []
    assert verdicts['passed'] > count / 5 and verdicts['refused'] > count / 5
