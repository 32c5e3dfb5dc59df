"""A server of files on the loopback address, which stands for the hub and for publishers."""

import hashlib
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch

from cpvt_backbones.checkpoints.reading import sources


class Handler(BaseHTTPRequestHandler):
    """Answers with the server's ``files``, by path.

    A path in ``gated`` needs a login, one in ``cut`` lacks its last byte, and one in ``moved``
    redirects to an address.
    """

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        server, path = self.server, self.path
        content, moved = server.files.get(path), server.moved.get(path)
        server.asked.append(f'{self.command} {path}')
        gated = path in server.gated
        self.send_response(302 if moved else 403 if gated else 404 if content is None else 200)
        if moved:
            self.send_header('Location', moved)
        elif gated:
            self.send_header('X-Error-Code', 'GatedRepo')
        elif content is not None:
            self.send_header('ETag', f'"{hashlib.sha256(content).hexdigest()}"')
            self.send_header('X-Repo-Commit', '0' * 40)
            self.send_header('Content-Length', str(len(content)))
        self.end_headers()
        if self.command == 'GET' and content and not gated:
            self.wfile.write(content[: len(content) - (path in server.cut)])

    def log_message(self, *_):
        pass


@contextmanager
def serving(monkeypatch, folder):
    """Context with a server, and empty caches of torch and huggingface_hub in a folder."""
    with ThreadingHTTPServer(('127.0.0.1', 0), Handler) as server:
        server.files, server.moved, server.asked = {}, {}, []
        server.gated, server.cut = set(), set()
        server.address = f'http://127.0.0.1:{server.server_port}'
        monkeypatch.setattr(torch.hub, 'get_dir', lambda: str(folder / 'torch'))
        monkeypatch.setattr(sources, 'TIMEOUT', 600.0)  # a slow machine is no slow network
        sources.warn_once.cache_clear()
        thread = threading.Thread(target=server.serve_forever, kwargs=dict(poll_interval=0.01))
        thread.start()
        yield server
        server.shutdown()
        thread.join()
