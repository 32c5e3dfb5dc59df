import os
import socket
from types import SimpleNamespace
from unittest import mock

import pytest


@pytest.fixture(scope='session')
def app(tmp_path_factory):
    """The running page: ``page``, ``models``, ``port``, its temporary ``folder``."""
    pytest.importorskip('gradio', reason="the page needs gradio: pip install '.[app]'")
    for package in ('mmdet', 'mmseg', 'mmpretrain', 'skimage', 'sklearn'):
        pytest.importorskip(package)
    folder = str(tmp_path_factory.mktemp('gradio'))
    with mock.patch.dict(os.environ, GRADIO_TEMP_DIR=folder):
        from app_page import Page
        from app_views import list_models

        models = list_models('cpu')
        page = Page(models)
        with socket.socket() as free:
            free.bind(('127.0.0.1', 0))
            port = free.getsockname()[1]
        page.launch('127.0.0.1', port)
        yield SimpleNamespace(page=page, models=models, port=port, folder=folder)
        page.blocks.close(verbose=False)
