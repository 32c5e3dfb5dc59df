"""A server of files on the loopback address, which stands for the hub and for publishers."""

import hashlib
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch

from cpvt_backbones.checkpoints.reading import sources


class Handler(BaseHTTPRequestHandler):
    """Answers with the server's ``files``, by path.

    A path in ``gated`` needs a login, one in ``cut`` lacks its last byte, and the answer for one in
    ``unsized`` does not say its length. ``most`` is the number of bytes of an answer; the rest can
    be asked for by range, unless ``resumes`` is false.
    """

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        server, path = self.server, self.path
        content = server.files.get(path)
        asked = self.headers.get('Range', '') if server.resumes else ''
        server.asked.append(f'{self.command} {path} {asked}'.strip())
        start = int(asked.removeprefix('bytes=').rstrip('-') or 0)
        gated = path in server.gated
        status = 206 if start else 200
        self.send_response(403 if gated else 404 if content is None else status)
        if gated:
            self.send_header('X-Error-Code', 'GatedRepo')
        elif content is not None:
            self.send_header('ETag', f'"{hashlib.sha256(content).hexdigest()}"')
            self.send_header('X-Repo-Commit', '0' * 40)
            if path not in server.unsized:
                self.send_header('Content-Length', str(len(content) - start))
        self.end_headers()
        if self.command == 'GET' and content and not gated:
            end = len(content) - (path in server.cut)
            self.wfile.write(content[start : min(end, start + server.most)])

    def log_message(self, *_):
        pass


@contextmanager
def serving(monkeypatch, folder):
    """Context with a server, and empty caches of torch and huggingface_hub in a folder."""
    with ThreadingHTTPServer(('127.0.0.1', 0), Handler) as server:
        server.files, server.asked, server.most, server.resumes = {}, [], 1 << 40, True
        server.gated, server.cut, server.unsized = set(), set(), set()
        server.address = f'http://127.0.0.1:{server.server_port}'
        monkeypatch.setattr(torch.hub, 'get_dir', lambda: str(folder / 'torch'))
        # A slow machine is no slow network: after a timeout a file is asked for again.
        monkeypatch.setattr(sources, '_TIMEOUT', 600.0)
        thread = threading.Thread(target=server.serve_forever, kwargs=dict(poll_interval=0.01))
        thread.start()
        yield server
        server.shutdown()
        thread.join()
