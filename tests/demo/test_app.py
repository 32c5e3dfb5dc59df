"""The page's server and its calls, without a browser: results, bounds, users side by side,
stopping.
"""

import base64
import http.client
import io
import json
import re
import socket
import threading
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path

import numpy as np
import pytest
from app_server import serve
from PIL import Image
from try_images import server as server_module
from try_images.calls import CALLS
from try_images.examples import EXAMPLES
from try_images.models import Stopped, list_models
from try_images.server import STATIC

from cpvt_backbones.inference import read_image

for package in ('mmdet', 'mmseg', 'mmpretrain', 'skimage', 'sklearn'):
    pytest.importorskip(package)

MODELS = [*list_models(device='cpu')]
DETECTOR, CLASSIFIER = 'retinanet_cpvt_tiny_gap-bccd', 'cpvt_tiny_gap-imagenette'
SEGMENTOR = 'semantic_fpn_cpvt_tiny_gap-camvid'


@pytest.fixture
def server(models):
    with serve(models, max_bytes=200_000, read_limit=500_000, waiting=1) as server:
        yield server


def ask(server, path, body=None, method='POST', **headers):
    """Status and content of an answer."""
    connection = http.client.HTTPConnection('127.0.0.1', server.server_port, timeout=300)
    connection.request(method, path, body=body, headers=headers)
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def result(server, path, body):
    status, answer = ask(server, path, body)
    assert status == 200, answer
    return answer['result']


def png(array):
    stream = io.BytesIO()
    Image.fromarray(array).save(stream, format='PNG')
    return stream.getvalue()


def decoded(text):
    return Image.open(io.BytesIO(base64.b64decode(text)))


GREY = png(np.full((60, 80, 3), 128, np.uint8))


def test_boxes_are_those_of_the_inferencer(server, models, tmp_path):
    pytest.importorskip('pycocotools')
    cells = EXAMPLES['cells'].jpeg()
    found = result(server, f'/api/predict?model={DETECTOR}&score=0.4&size=300', cells)
    (tmp_path / 'cells.jpg').write_bytes(cells)
    own, _ = models[DETECTOR].inferencer(scale=(300, 300), tile=0)(
        read_image(tmp_path / 'cells.jpg'), score_thr=0.4
    )
    assert [one['box'] for one in found['boxes']] == own['boxes'] and len(own['boxes']) > 5
    assert [one['score'] for one in found['boxes']] == own['scores']
    assert found['seen'] == [300, 237] and found['grids'] == [[15, 19]] and found['tiles'] == 0
    assert [one['bbox'][:2] for one in found['coco']['annotations']] == [
        box[:2] for box in own['boxes']
    ]
    assert sum(one['count'] for one in found['classes']) == len(own['boxes'])
    assert {*found['seconds']} == {'read', 'forward', 'draw'}
    tiled = result(server, f'/api/predict?model={DETECTOR}&tile=200&size=300', cells)
    assert tiled['tiles'] == 4 and tiled['boxes']


def test_overlay_is_the_class_map(server, models, tmp_path):
    temple = EXAMPLES['temple'].jpeg()
    found = result(server, f'/api/predict?model={SEGMENTOR}&size=160', temple)
    (tmp_path / 'temple.jpg').write_bytes(temple)
    own, _ = models[SEGMENTOR].inferencer(scale=(160, 160), tile=0)(
        read_image(tmp_path / 'temple.jpg')
    )
    picture = decoded(found['overlay'])
    np.testing.assert_array_equal(np.asarray(picture), own['seg_map'])
    palette = np.array(picture.getpalette()).reshape(-1, 3)
    for one in found['classes']:
        assert palette[one['label']].tolist() == one['colour']
        assert one['pixels'] == (own['seg_map'] == one['label']).sum()


def test_five_sizes(server):
    for model, example in ((DETECTOR, 'cells'), (CLASSIFIER, 'tower')):
        found = result(server, f'/api/sizes?model={model}&size=128', EXAMPLES[example].jpeg())
        assert [max(one['seen']) for one in found['sizes']] == [64, 96, 128, 192, 256]
        for one in found['objects']:
            assert len(one['scores']) == 5 and any(one['scores'])
    assert found['objects'][0]['name'] == found['sizes'][0]['classes'][0]['name']


def test_attention_and_features(server):
    body = png(np.random.default_rng(0).integers(0, 255, (60, 80, 3), np.uint8))
    found = result(server, f'/api/attention?model={CLASSIFIER}&side=128&x=79&y=59&layer=0', body)
    heads = np.array(found['heads'])
    assert found['seen'] == [128, 96] and heads.shape == (3, 6, 8) and found['layers'] == 12
    np.testing.assert_allclose(heads.sum((1, 2)), 1, atol=48 * 5e-3)  # three digits of each weight
    (level,) = result(server, f'/api/features?model={CLASSIFIER}&side=128', body)['levels']
    assert level['grid'] == [6, 8] and decoded(level['picture']).size == (8, 6)


def test_a_format_that_browsers_do_not_read(server):
    stream = io.BytesIO()
    Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3)).save(stream, format='TIFF')
    found = result(server, '/api/upright', stream.getvalue())
    assert np.asarray(decoded(found['picture'])).ravel().tolist() == [*range(48)]


NOT_IMAGES = [
    b'/etc/passwd',
    b'file:///etc/passwd',
    b'http://127.0.0.1/a.png',
    b'<svg xmlns="http://www.w3.org/2000/svg"/>',
]


@pytest.mark.parametrize('body', NOT_IMAGES)
def test_no_path_or_address_is_opened(server, body):
    for call in CALLS:
        point = '?x=0&y=0' if call == 'attention' else ''
        status, answer = ask(server, f'/api/{call}{point}', body)
        assert status == 400 and 'not an image of an accepted format' in answer['error']


@pytest.mark.parametrize(
    ('path', 'body', 'status', 'word'),
    [
        ('/api/predict', b'0' * 200_001, 413, '200001 bytes, more than 200000'),
        ('/api/predict', png(np.zeros((1000, 501), np.uint8)), 400, 'more than read_limit=500000'),
        ('/api/predict', GREY[:100], 400, 'damaged'),
        ('/api/predict', b'', 411, 'Content-Length'),
        ('/api/predict?size=63', GREY, 400, 'size must be an integer in [64, 1000000]'),
        (
            '/api/predict?size=321',
            GREY,
            400,
            'size must be in [64, 320] px for this image, got 321',
        ),
        ('/api/predict?tile=127', GREY, 400, 'tile must be 0 or at least 128 px, got 127'),
        ('/api/predict?score=nan', GREY, 400, 'score must be a number in [0, 1]'),
        ('/api/predict?model=../../etc/passwd', GREY, 400, 'model must be one of'),
        ('/api/predict?checkpoint=evil.pth', GREY, 400, "'checkpoint' is not a parameter"),
        ('/api/attention?x=80&y=0', GREY, 400, 'x and y must lie within 80 x 60 px'),
        ('/api/attention?y=0', GREY, 400, 'x must be an integer'),
        (
            f'/api/attention?model={CLASSIFIER}&x=0&y=0&layer=12',
            GREY,
            400,
            'layer must be in [-12, 11]',
        ),
        ('/api/none', GREY, 404, 'there is no such call'),
    ],
)
def test_bounds(server, path, body, status, word):
    found, answer = ask(server, path, body)
    assert found == status and word in answer['error']
    assert not any(Path(server.folder.name).iterdir())


@pytest.mark.parametrize(
    'path',
    ['/app.py', '/../app.py', '/static/page.js', '/examples/..', '/%2e%2e/app.py', '//etc/passwd'],
)
def test_only_listed_files_are_served(server, path):
    assert ask(server, path, method='GET')[0] == 404


def test_requests_of_other_pages_are_refused(server):
    own = f'127.0.0.1:{server.server_port}'
    for headers in (
        {'Host': 'evil.example'},
        {'Origin': 'http://evil.example'},
        {'Sec-Fetch-Site': 'cross-site'},
        {'Host': own, 'Origin': 'null'},
    ):
        assert ask(server, '/api/predict', GREY, **headers)[0] == 403
    assert (
        ask(server, f'/api/predict?model={CLASSIFIER}', GREY, Host=own, Origin=f'http://{own}')[0]
        == 200
    )


def test_users_side_by_side_get_their_own_results(server):
    bodies = [png(np.full((32 + i, 32, 3), 30 * i, np.uint8)) for i in range(8)]
    path = f'/api/predict?model={CLASSIFIER}'

    def one(body):
        while (answer := ask(server, path, body))[0] == 503:
            pass
        assert answer[1]['result'].pop('seconds')
        return answer[1]['result']

    alone = [one(body) for body in bodies]
    with ThreadPoolExecutor(2) as users:
        assert [*users.map(one, bodies)] == alone
    assert [one['height'] for one in alone] == [*range(32, 40)]


def test_requests_beyond_the_bound_are_refused_and_others_wait(server, monkeypatch):
    gate, started, run = threading.Event(), threading.Semaphore(0), server.run
    monkeypatch.setattr(
        server, 'run', lambda *arguments: (started.release(), gate.wait(), run(*arguments))[-1]
    )
    path = f'/api/predict?model={CLASSIFIER}'
    with ThreadPoolExecutor(3) as users:
        try:
            first = users.submit(ask, server, path, GREY)
            assert started.acquire(timeout=60)
            others = [users.submit(ask, server, path, GREY) for _ in range(2)]
            (refused,), (waiting,) = wait(others, return_when=FIRST_COMPLETED)
        finally:
            gate.set()
    assert refused.result()[0] == 503 and 'busy' in refused.result()[1]['error']
    assert first.result()[0] == waiting.result()[0] == 200


def test_progress_and_stop(server, monkeypatch):
    """A closed connection ends the work between two layers; the next request is served."""
    outcomes, ended, run = [], threading.Event(), server.run

    def watched(*arguments):
        try:
            return run(*arguments)
        except BaseException as error:
            outcomes.append(type(error))
            raise
        finally:
            ended.set()

    monkeypatch.setattr(server, 'run', watched)
    body = EXAMPLES['cells'].jpeg()
    head = (
        f'POST /api/sizes?model={DETECTOR}&size=1500 HTTP/1.0\r\nHost: 127.0.0.1\r\nAccept:'
        f' {server_module.LINES}\r\n'
    )
    connection = socket.create_connection(('127.0.0.1', server.server_port))
    connection.sendall(f'{head}Content-Length: {len(body)}\r\n\r\n'.encode() + body)
    with connection.makefile('rb') as lines:
        state = next(json.loads(line) for line in lines if b'"forward"' in line)
    connection.close()
    assert state == dict(state='forward', part=1, parts=5)
    assert ended.wait(300) and outcomes == [Stopped]
    assert ask(server, f'/api/predict?model={CLASSIFIER}', GREY)[0] == 200


def test_documentation_has_every_call_and_nothing_is_fetched_from_elsewhere(server):
    connection = http.client.HTTPConnection('127.0.0.1', server.server_port)
    texts = {}
    for path in (
        '/',
        '/docs',
        *(f'/{file.name}' for file in STATIC.iterdir() if file.suffix in ('.css', '.js')),
    ):
        connection.request('GET', path)
        answer = connection.getresponse()
        texts[path] = answer.read().decode()
        assert "default-src 'none'" in answer.headers['Content-Security-Policy']
    for text in texts.values():
        assert {*re.findall(r'https?://[^/\'"]+', text)} <= {
            'http://127.0.0.1:7860',
            'http://www.w3.org',
        }
    for name, call in CALLS.items():
        assert f'POST /api/{name}<' in texts['/docs']
        assert all(f'<code>{field}</code>' in texts['/docs'] for field in call.fields)
    listed = ask(server, '/api/models', method='GET')[1]
    assert [one['name'] for one in listed['models']] == MODELS and listed[
        'max_bytes'
    ] == server.max_bytes
