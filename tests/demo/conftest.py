import pytest


@pytest.fixture(scope='session')
def models():
    """The shipped models, which the tests of the page load once."""
    from try_images.models import list_models

    return list_models(device='cpu')
