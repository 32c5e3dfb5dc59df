"""The HTTP server of the page, and its bounds.

An image travels in the body of each request, and the answer in its response: nothing is kept
between requests, so that users cannot see each other's. No path or address from a client is opened.
All models run in one thread, one request after the other; a request ends when its client closes the
connection.
"""

import json
import select
import socket
import tempfile
import threading
import traceback
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from cpvt_backbones.inference import ImageError

from . import work
from .calls import CALLS, Call, document_calls
from .examples import EXAMPLES
from .models import Job, Model, Stopped

STATIC = Path(__file__).parent / 'static'
TYPES = {
    '.html': 'text/html',
    '.css': 'text/css',
    '.js': 'text/javascript',
    '.svg': 'image/svg+xml',
}
LINES = 'application/x-ndjson'
LOCAL = ('127.0.0.1', 'localhost', '::1')
HEADERS = {
    # The browser itself refuses what is not from here.
    'Content-Security-Policy': (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    'Cross-Origin-Resource-Policy': 'same-origin',
    'X-Content-Type-Options': 'nosniff',
    'Referrer-Policy': 'no-referrer',
    'Cache-Control': 'no-store',
}


class Refused(Exception):
    """A request that is answered with an error, before it is worked on."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Server(ThreadingHTTPServer):
    """The server; ``models`` by name, the default first.

    As a context, it removes its temporary folder at the end.
    """

    daemon_threads = True

    def __init__(
        self,
        address: tuple[str, int],
        models: Mapping[str, Model],
        *,
        max_bytes: int,
        read_limit: int,
        waiting: int,
    ) -> None:
        self.models, self.max_bytes, self.read_limit = models, max_bytes, read_limit
        self.places = threading.BoundedSemaphore(
            waiting + 1
        )  # for bodies, which are held in memory
        self.worker = ThreadPoolExecutor(1)
        self.address_family = socket.AF_INET6 if ':' in address[0] else socket.AF_INET
        super().__init__(address, Handler)
        self.folder = tempfile.TemporaryDirectory(prefix='cpvt_app_')

    def load(self) -> None:
        """Load the default model."""
        self.worker.submit(lambda: next(iter(self.models.values())).predictor).result()

    def run(
        self, job: Job, call: Call, model: Model | None, body: bytes, options: dict[str, Any]
    ) -> dict[str, Any]:
        """Answer a request; in the worker's thread."""
        job.check()
        with tempfile.NamedTemporaryFile(
            dir=self.folder.name
        ) as file:  # the one reader of images takes files
            file.write(body)
            file.flush()
            image, seconds = work.read(job, Path(file.name), self.read_limit)
        if model is None:
            return call.run(job, image, **options)
        job.tell('loading')
        model.job = job
        try:
            result = call.run(job, model, image, **options)
        finally:
            model.job = None
        return dict(result, model=model.name, seconds=dict(result.get('seconds', {}), read=seconds))

    def server_close(self) -> None:
        super().server_close()
        self.worker.shutdown(cancel_futures=True)
        self.folder.cleanup()


class Handler(BaseHTTPRequestHandler):
    """One connection, one request."""

    server: Server
    timeout = 30  # s, of one read or write
    server_version, sys_version = 'cpvt_backbones', ''

    def do_GET(self) -> None:
        """Answer with the page, its files, an example, the documentation, or models and bounds."""
        path = urlsplit(self.path).path
        name = path.rpartition('/')[2] or 'index.html'
        try:
            self._check_origin()
            if path == '/api/models':
                self._send(self._about())
            elif path == '/docs':
                page = (
                    (STATIC / 'docs.html')
                    .read_text(encoding='utf-8')
                    .replace('<!-- calls -->', document_calls())
                )
                self._send(page.encode(), 'text/html')
            elif path == f'/examples/{name}' and name in EXAMPLES:
                self._send(EXAMPLES[name].jpeg(), 'image/jpeg')
            elif path in ('/', f'/{name}') and name in {file.name for file in STATIC.iterdir()}:
                self._send((STATIC / name).read_bytes(), TYPES[Path(name).suffix])
            else:
                raise Refused(HTTPStatus.NOT_FOUND, 'there is no such page; / and /docs exist')
        except Refused as error:
            self._send(dict(error=str(error)), status=error.status)

    def do_POST(self) -> None:
        """Answer a call of the API."""
        address, length = urlsplit(self.path), self.headers.get('Content-Length', '')
        size = int(length) if length.isdecimal() else 0
        try:
            self._check_origin()
            if (
                call := CALLS.get(address.path.removeprefix('/api/'))
            ) is None or not address.path.startswith('/api/'):
                raise Refused(
                    HTTPStatus.NOT_FOUND,
                    f'there is no such call; under /api/ are {", ".join(CALLS)}',
                )
            if not size:
                raise Refused(
                    HTTPStatus.LENGTH_REQUIRED,
                    'the body must be an image file, with its Content-Length',
                )
            if size > self.server.max_bytes:
                many = f'the image has {size} bytes, more than {self.server.max_bytes}'
                raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, many)
            try:
                given = dict(parse_qsl(address.query, keep_blank_values=True))
                name, options = call.parse(given, self.server.models)
            except ValueError as error:
                raise Refused(HTTPStatus.BAD_REQUEST, str(error)) from None
            if not self.server.places.acquire(blocking=False):
                raise Refused(
                    HTTPStatus.SERVICE_UNAVAILABLE,
                    'busy: too many requests wait; try again in a moment',
                )
        except Refused as error:
            # A body is read, or the client would see a broken connection instead of the answer.
            left = min(size, 4 * self.server.max_bytes)
            while left > 0 and (part := self.rfile.read(min(left, 1 << 20))):
                left -= len(part)
            self._send(dict(error=str(error)), status=error.status)
            return
        try:
            model = None if name is None else self.server.models[name]
            self._answer(call, model, options, self.rfile.read(size))
        finally:
            self.server.places.release()

    def _about(self) -> dict[str, Any]:
        return dict(
            models=[
                dict(name=model.name, about=model.about) for model in self.server.models.values()
            ],
            examples=[
                dict(name=name, about=one.about, model=one.model) for name, one in EXAMPLES.items()
            ],
            **dict(max_bytes=self.server.max_bytes, read_limit=self.server.read_limit),
            **dict(smallest=work.SMALLEST_SIDE, sides=work.EXPLAINED, factors=work.FACTORS),
        )

    def _check_origin(self) -> None:
        """Refuse what another page in the user's browser sends."""
        host, origin = self.headers.get('Host', ''), self.headers.get('Origin')
        # A name of another site may resolve to this machine.
        foreign = (
            self.server.server_address[0] in LOCAL and urlsplit(f'//{host}').hostname not in LOCAL
        )
        foreign |= origin is not None and urlsplit(origin).netloc != host
        if foreign or self.headers.get('Sec-Fetch-Site') in ('cross-site', 'same-site'):
            raise Refused(HTTPStatus.FORBIDDEN, 'requests from other pages are refused')

    def _answer(
        self, call: Call, model: Model | None, options: dict[str, Any], body: bytes
    ) -> None:
        """Wait for the worker.

        Tell its states to a client that wants them, stop for one that is gone.
        """
        job, lines, told = Job(), LINES in self.headers.get('Accept', ''), None
        future = self.server.worker.submit(self.server.run, job, call, model, body, options)
        try:
            if lines:
                self._start(HTTPStatus.OK, LINES)
            while not wait([future], timeout=0.05).done:
                if select.select([self.connection], [], [], 0)[0] and not self.connection.recv(
                    1, socket.MSG_PEEK
                ):
                    raise BrokenPipeError
                if lines and told is not job.state:
                    told = job.state
                    self.wfile.write(json.dumps(told).encode() + b'\n')
            status, answer = _outcome(future)
            if lines:
                self.wfile.write(json.dumps(answer).encode() + b'\n')
            else:
                self._send(answer, status=status)
        except OSError:
            job.stop.set()
            future.cancel()
            wait([future])  # the body counts until then

    def _send(
        self,
        content: bytes | dict[str, Any],
        kind: str = 'application/json',
        status: HTTPStatus = HTTPStatus.OK,
    ) -> None:
        sent = content if isinstance(content, bytes) else json.dumps(content).encode()
        try:
            self._start(status, kind, {'Content-Length': str(len(sent))})
            self.wfile.write(sent)
        except OSError:  # the client is gone
            pass

    def _start(self, status: HTTPStatus, kind: str, more: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        charset = '; charset=utf-8' if kind.startswith('text/') else ''
        for name, value in {**HEADERS, 'Content-Type': kind + charset, **(more or {})}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log nothing of who asks for what."""


def _outcome(future: Any) -> tuple[HTTPStatus, dict[str, Any]]:
    """Status and content of the answer."""
    try:
        return HTTPStatus.OK, dict(result=future.result())
    except Stopped:
        return HTTPStatus.OK, dict(error='stopped')
    except (ValueError, ImportError) as error:
        return HTTPStatus.BAD_REQUEST, dict(
            error=error.reason if isinstance(error, ImageError) else str(error)
        )
    except Exception as error:
        traceback.print_exception(error)
        return HTTPStatus.INTERNAL_SERVER_ERROR, dict(
            error=f'the model failed: {type(error).__name__}: {error}'
        )
