import socket
from types import SimpleNamespace

import pytest


@pytest.fixture(scope='session')
def app(tmp_path_factory):
    """The running page: ``page``, ``models``, ``port``."""
    pytest.importorskip('gradio', reason="the page needs gradio: pip install '.[app]'")
    for package in ('mmdet', 'mmseg', 'mmpretrain', 'skimage', 'sklearn'):
        pytest.importorskip(package)
    from app import HOSTS, launch, prepare_gradio

    prepare_gradio(str(tmp_path_factory.mktemp('gradio')))
    from app_page import Page
    from app_views import list_models

    models = list_models('cpu')
    page = Page(models)
    with socket.socket() as free:
        free.bind((HOSTS[0], 0))
        port = free.getsockname()[1]
    launch(page.blocks, host=HOSTS[0], port=port)
    yield SimpleNamespace(page=page, models=models, port=port)
    page.blocks.close(verbose=False)
