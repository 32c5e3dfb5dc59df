"""The page without a browser: what it shows, and what its server refuses."""

import http.client
import json
import re
import socket
import uuid
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest
from example_images import CLASSIFIER, DETECTOR, SEGMENTOR, examples
from PIL import Image

from cpvt_backbones.inference import Inferencer, ToolboxPredictor
from cpvt_backbones.weights import shipped_weights

pytest.importorskip('gradio', reason="the page needs gradio: pip install '.[app]'")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope='module')
def views(app):
    import app_views

    return app_views


def example(model):
    (one,) = (one for one in examples() if one.model == model)
    return one


def test_every_shipped_model_has_an_example_a_purpose_and_its_classes(app):
    assert {one.model for one in examples()} == shipped_weights().keys()
    for name, entry in shipped_weights().items():
        text = ' '.join(app.models[name].describe().split())
        assert text.index('**For.**') < text.index('**Not for.**') < text.index('**Classes.**')
        assert all(one in text for one in entry.dataset_meta['classes'])
        assert text.count('**') == 6


def test_it_opens_with_a_finished_example(app):
    page = app.page
    assert page.features.value.count('<img') == 1 and page.attention.value
    assert '640 x 427 px' in page.facts.value and '**Classes.** tench' in page.about.value
    assert page.score.visible is False


def test_boxes_are_those_of_the_inferencer_and_are_filtered_without_it(app, views, monkeypatch):
    model, rgb, page = app.models[DETECTOR], example(DETECTOR).image, app.page
    found = views.predict(model, rgb, 'config')
    assert 'seen at 320 x 240 px' in found['facts'] and 'Outside' not in found['facts']
    small = views.predict(model, rgb[:40, :40], (64, 64))
    assert '**Outside the sizes it is good at:**' in small['facts']
    own, _ = Inferencer(predictor=model.predictor)(rgb[..., ::-1].copy(), score_thr=0.6)
    monkeypatch.setattr(ToolboxPredictor, 'predict', None)
    kept = views.keep_scores(found, 0.6)
    assert len(found['boxes']) > len(kept['boxes']) > 15
    assert (kept['boxes'], kept['scores']) == (own['boxes'], own['scores'])
    data = {page.view: 'Prediction', page.name: DETECTOR, page.image: rgb, page.found: [found]}
    first, last = (page.draw({**data, page.score: score}) for score in (0.6, 1))
    assert f'| RBC | {len(kept["boxes"])} (best score' in first[page.table]
    assert 'Nothing of at least' in last[page.table]
    assert (np.asarray(last[page.prediction]) == rgb).all()
    assert not (np.asarray(first[page.prediction]) == rgb).all()


def test_captions_compare_with_the_truth(app, views, monkeypatch):
    monkeypatch.setattr(views, 'FACTORS', (0.5, 1))
    expected = {
        DETECTOR: r'320 x 240 px \| 2[2-4] of 24 found, [01] extra \| good size',
        SEGMENTOR: r'480 x 360 px \| 8\d% of the pixels right \| good size',
        CLASSIFIER: r'137 x 91 px \| church \d\d% \| good size',
    }
    for name, text in expected.items():
        one, model = example(name), app.models[name]
        scales = views.scales_to_compare(model, one.image)
        found = [views.predict(model, one.image, scale) for scale in scales]
        small, good = (views.keep_scores(prediction, 0.5) for prediction in found)
        assert views.caption(model, small, one).endswith('| outside the good sizes')
        assert re.fullmatch(text, views.caption(model, good, one))
        unknown = views.caption(model, good, None)
        assert re.fullmatch(r'\d+ x \d+ px( \| church \d\d%)? \| good size', unknown)


def test_sizes_are_shown_one_after_the_other_and_bounded(app, views, monkeypatch):
    monkeypatch.setattr(views, 'FACTORS', (0.5, 1))
    page, rgb = app.page, example(DETECTOR).image
    data = {page.view: 'Several sizes', page.name: DETECTOR, page.score: 0.5, page.side: 0}
    shown = {}
    for image in (rgb, rgb[:, ::-1].copy()):
        updates = [one for one in page.run({**data, page.image: image}) if page.sizes in one]
        assert [one[page.sizes].count('<figure>') for one in updates] == [1, 2]
        shown[len(shown)] = updates[-1][page.sizes]
    assert 'of 24 found' in shown[0] and 'of 24 found' not in shown[1]
    monkeypatch.setattr(views, 'FACTORS', (1, 30, 40))
    scales = views.scales_to_compare(app.models[DETECTOR], rgb)
    assert scales == [0.5, views.MAX_SIDE / 640]


def test_tables_of_a_segmentor_and_of_a_classifier(app, views):
    model, image = app.models[SEGMENTOR], example(SEGMENTOR).image
    found = views.predict(model, image, (160, 160))
    shares = re.findall(r'\| (\w+) \| ([\d.]+)% \|', views.to_table(model, found))
    assert sum(float(share) for _, share in shares) == pytest.approx(100, abs=0.6)
    largest = np.bincount(found['seg_map'].ravel()).argmax()
    assert shares[0][0] == model.predictor.classes[largest]
    model, image = app.models[CLASSIFIER], example(CLASSIFIER).image
    table = views.to_table(model, views.predict(model, image, 'config'))
    assert table.count('%') == 5 and '| church | 9' in table


def test_features_and_attention(app, views, monkeypatch):
    rgb = np.random.default_rng(0).integers(0, 255, (60, 80, 3), np.uint8)
    for name, levels in ((CLASSIFIER, 1), (DETECTOR, 3), (SEGMENTOR, 4)):
        features, attention, facts = views.explain(app.models[name], rgb, 128, 0, 100, 100)
        assert len(features) == levels and 'seen at 128 x 96 px' in facts
        assert {attention.size, *(picture.size for picture, _ in features)} == {(720, 540)}
        assert 'blocks.0.attn' in facts
        assert features[0][1] == '8 x 6 places, one for 16 x 16 px'
    _, other, facts = views.explain(app.models[SEGMENTOR], rgb, 128, 100, 0, 0)
    assert 'blocks.11.attn' in facts and other != attention
    monkeypatch.setattr(views.attention_maps, 'attention_layers', lambda model: {})
    features, attention, facts = views.explain(app.models[CLASSIFIER], rgb, 128, 0, 0, 0)
    assert len(features) == 1 and attention is None and 'has no attention layers' in facts


def test_an_upload_is_shown_as_the_models_see_it(app, views, tmp_path):
    rgba = np.zeros((4, 6, 4), np.uint8)
    rgba[0] = 255, 0, 0, 255
    Image.fromarray(rgba).save(tmp_path / 'a.png')
    shown, kept = app.page.read(str(tmp_path / 'a.png'))
    assert shown is kept and not (tmp_path / 'a.png').exists()
    assert (kept[0] == (255, 0, 0)).all() and (kept[1:] == 255).all()
    Image.new('L', (12000, 40)).save(tmp_path / 'b.png')
    assert views.read_upload(str(tmp_path / 'b.png')).shape == (7, 2048, 3)


@pytest.mark.parametrize(
    ('content', 'message'),
    [
        (b'/etc/passwd', 'not an image of an accepted format'),
        (None, 'more than read_limit=50000000'),
    ],
)
def test_an_upload_that_is_refused(app, tmp_path, content, message):
    import gradio

    file = tmp_path / 'a.png'
    file.write_bytes(content) if content else Image.new('1', (12000, 4200)).save(file)
    with pytest.raises(gradio.Error, match=message):
        app.page.read(str(file))


# -- the server


def ask(app, path, *, method='GET', body=None, **headers):
    """Status and text of an answer."""
    connection = http.client.HTTPConnection('127.0.0.1', app.port, timeout=60)
    connection.request(method, path, body=body, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def call(app, name, *data):
    """What an event of the page answers: its output, or its error."""
    fns = app.page.blocks.fns.items()
    number, fn = next((i, fn) for i, fn in fns if fn.name == name)
    session = uuid.uuid4().hex
    content = dict(data=[*data], fn_index=number, session_hash=session)
    body = json.dumps(content)
    kind = {'Content-Type': 'application/json'}
    status, text = ask(app, '/gradio_api/queue/join', method='POST', body=body, **kind)
    assert status == 200, text
    _, text = ask(app, f'/gradio_api/queue/data?session_hash={session}')
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith('data: ')]
    (done,) = (one for one in events if one['msg'] == 'process_completed')
    return done


# Three states, which the server keeps; model; side, layer and point of features; side; score.
FEATURES = [None, None, None, CLASSIFIER, 64, 0, 50, 50, 0, 0.5]


def test_numbers_and_names_of_requests_are_bounded(app):
    assert call(app, 'run', *FEATURES)['success']
    wrong = {3: '../../etc/passwd', 4: 12000, 5: 999, 7: 101, 8: 12000, 9: 2}
    for place, value in wrong.items():
        answer = call(app, 'run', *FEATURES[:place], value, *FEATURES[place + 1 :])
        assert not answer['success'], (place, answer)


@pytest.mark.parametrize(
    'path', ['/etc/passwd', str(ROOT / 'README.md'), 'http://203.0.113.1/a.png']
)
def test_no_path_or_address_of_a_request_is_opened(app, path, capfd):
    answer = call(app, 'read', dict(path=path, meta=dict(_type='gradio.FileData')))
    assert not answer['success']
    assert 'http' not in path or 'not fetched' in answer['output']['error']
    assert ask(app, f'/gradio_api/file={quote(path)}')[0] in (302, 403)
    assert ask(app, f'/gradio_api/proxy={quote(path)}')[0] >= 400


@pytest.mark.parametrize(
    'lines',
    [
        'Host: [',
        'Host: [::1',
        'Host: evil.example',
        'Host: 127.0.0.1\r\nOrigin: http://[',
        f'Host: 127.0.0.1\r\nContent-Length: {"9" * 5000}',
        'Host: 127.0.0.1\r\nContent-Length: -1',
        'Host: 127.0.0.1\r\nContent-Length: x',
    ],
)
@pytest.mark.parametrize('first', ['GET /', 'POST /gradio_api/queue/join'])
def test_malformed_headers_get_an_answer_and_no_traceback(app, first, lines, capfd):
    with socket.create_connection(('127.0.0.1', app.port), timeout=30) as connection:
        connection.sendall(f'{first} HTTP/1.1\r\n{lines}\r\nConnection: close\r\n\r\n'.encode())
        answer = connection.recv(100)
    assert re.match(rb'HTTP/1.1 [2345]\d\d ', answer), answer
    assert 'Traceback' not in ''.join(capfd.readouterr())
    if 'evil' in lines or '[' in lines.split('\r\n')[0]:
        assert b' 400 ' in answer


def test_requests_of_other_pages_are_not_readable(app):
    connection = http.client.HTTPConnection('127.0.0.1', app.port)
    connection.request('GET', '/config', headers={'Origin': 'http://evil.example'})
    assert 'evil' not in str(connection.getresponse().headers)


def test_slow_connections_do_not_lock_others_out(app):
    slow = [socket.create_connection(('127.0.0.1', app.port)) for _ in range(20)]
    try:
        for connection in slow:
            connection.sendall(b'POST /gradio_api/upload HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-')
        assert ask(app, '/config')[0] == 200 and call(app, 'run', *FEATURES)['success']
    finally:
        for connection in slow:
            connection.close()


def test_an_upload_of_too_many_bytes_is_refused(app, monkeypatch):
    monkeypatch.setattr(app.page.blocks, 'max_file_size', 1000)
    head = '--x\r\nContent-Disposition: form-data; name="files"; filename="a.png"\r\n\r\n'
    body = head.encode() + b'0' * 2000 + b'\r\n--x--\r\n'
    kind = {'Content-Type': 'multipart/form-data; boundary=x'}
    assert ask(app, '/gradio_api/upload', method='POST', body=body, **kind)[0] == 413


def test_pictures_of_the_docs_are_of_the_weights_that_ship():
    """`make test-app` takes them again, in build/app."""
    pictures = [*(ROOT / 'docs/figures').glob('app_*.jpg')]
    assert len(pictures) == 2
    for file in pictures:
        assert file.stat().st_size < 150_000
        with Image.open(file) as picture:
            name, sha256 = picture.info['comment'].decode().split()
        assert shipped_weights()[name].sha256 == sha256
