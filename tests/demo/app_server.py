"""The page's server in this process."""

import threading
from contextlib import contextmanager

from try_images.server import Server


@contextmanager
def serve(models, **limits):
    """A server at a free port."""
    with Server(('127.0.0.1', 0), models, **limits) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs=dict(poll_interval=0.01))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
