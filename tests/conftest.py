"""Seeds and hypothesis settings shared by all tests."""

import pytest
import torch
from hypothesis import HealthCheck, settings

settings.register_profile(
    'project',
    deadline=None,
    derandomize=True,
    max_examples=20,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.load_profile('project')


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)
