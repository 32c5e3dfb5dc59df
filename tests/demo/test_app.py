"""The page without a browser: what it shows, and what its server refuses."""

import hashlib
import http.client
import io
import json
import os
import re
import socket
import uuid
from pathlib import Path
from urllib.parse import quote

import app as demo_app
import numpy as np
import pytest
import torch
from example_images import CLASSIFIER, DETECTOR, SEGMENTOR, examples
from PIL import Image
from tiny import write_panoptic_model
from torchvision.ops import box_iou

from cpvt_backbones import weights
from cpvt_backbones.checkpoints import CheckpointError
from cpvt_backbones.inference import ImageError, Inferencer, ToolboxPredictor
from cpvt_backbones.toolboxes import read_config
from cpvt_backbones.weights import shipped_weights

pytestmark = pytest.mark.full

gradio = pytest.importorskip('gradio', reason="the page needs gradio: pip install '.[app]'")
get_model = pytest.importorskip('mmpretrain').get_model
ROOT = Path(__file__).parents[2]
STREET_SIGN = 919  # of ImageNet's classes


@pytest.fixture(scope='module')
def views(app):
    import app_views

    return app_views


@pytest.fixture
def file(tmp_path):
    """Write an image, by default the example of a model, and return its path."""

    def write(image):
        array = example(image).image if isinstance(image, str) else image
        path = tmp_path / f'{uuid.uuid4().hex}.png'
        Image.fromarray(array).save(path)
        return str(path)

    return write


def example(model):
    (one,) = (one for one in examples() if one.model == model)
    return one


def given(page, **values):
    """What the page passes to ``run``: its own values, but for those of ``values``."""
    components = [page.view, page.name, page.image, *page.sliders, page.side, page.score]
    components += [page.opacity, page.automatic]
    data = {component: component.value for component in components}
    return data | {getattr(page, name): value for name, value in values.items()}


def test_published_models_are_listed_and_fetched_by_choice(app, views, file, monkeypatch):
    name = 'retinanet_pvt_small-coco'
    labels = {value: label for label, value in app.page.name.choices}
    assert labels[name] == f'{name} (137 MB)' and labels[DETECTOR] == DETECTOR
    assert 'box AP 40.4' in app.models[name].describe()

    def fetch(checkpoint):
        raise CheckpointError(f'{checkpoint} could not be fetched; without a network, put it at /a')

    monkeypatch.setattr(views, 'locate_checkpoint', fetch)
    image = file(CLASSIFIER)
    assert next(app.page.run(given(app.page, name=CLASSIFIER, image=image)))
    (shown,) = app.page.run(given(app.page, name=name, image=image))
    assert f'{name} could not be fetched' in shown[app.page.prediction]
    assert 'put it at' not in shown[app.page.prediction]  # a folder of the server


def test_every_shipped_model_has_an_example_a_purpose_and_its_classes(app):
    assert {one.model for one in examples()} == shipped_weights().keys()
    for name, entry in shipped_weights().items():
        text = ' '.join(app.models[name].describe().split())
        assert text.index('**For.**') < text.index('**Not for.**') < text.index('**Classes.**')
        assert all(one in text for one in entry.dataset_meta['classes'])
        assert text.count('**') == 6


def test_boxes_are_those_of_the_inferencer(app, views, file):
    model, image = app.models[DETECTOR], file(DETECTOR)
    found = views.predict(model, image, 'config')
    assert found['seen'].shape == (240, 240, 3) and found['warning'] is None
    small = views.predict(model, file(example(DETECTOR).image[:40, :40]), (64, 64))
    assert 'times the test scale' in small['warning']
    own, _ = Inferencer(predictor=model.predictor)(image, score_thr=0.5)
    kept = views.keep_scores(found, 0.5)
    assert len(found['boxes']) > len(kept['boxes']) > 5
    assert (kept['boxes'], kept['scores']) == (own['boxes'], own['scores'])


def test_segments_have_a_picture_a_table_and_sizes(views, file, tmp_path):
    pytest.importorskip('mmdet')
    config, checkpoint = write_panoptic_model(tmp_path)
    model = views.Model(lambda: read_config(config), str(checkpoint), 'cpu')
    assert 'for panoptic.' in model.describe()
    path = file(CLASSIFIER)
    found = views.keep_scores(views.predict(model, path, views.first_scale(model, path)), 0.9)
    segments = found['segments']
    picture, caption = views.draw(model, path, found, as_seen=True)
    assert len(segments) >= 2 and f'{len(segments)} segments' in caption
    assert (
        picture.height > found['seen'].shape[0] * picture.width / found['seen'].shape[1]
    )  # legend
    _, _, *rows = views.to_table(model, found).splitlines()
    shares = {row.split(' | ')[0].strip('| '): row.split(' | ')[1].strip('| %') for row in rows}
    assert shares.keys() == {one['class'] for one in segments}
    covered = (found['panoptic'] > 0).mean()
    assert sum(map(float, shares.values())) == pytest.approx(100 * covered, abs=0.05 * len(rows))
    assert len(views.scales_to_compare(model, path)) >= 2
    nothing = dict(found, segments=[], panoptic=np.zeros_like(found['panoptic']))
    assert views.to_table(model, nothing).count('\n') == 1
    assert '0 segments' in views.draw(model, path, nothing, as_seen=True)[1]
    count = len(model.layers)
    features, attention, caption = views.explain(model, path, 64, 1, 50, 50)
    assert features and attention is not None and f'Layer 1 of {count} (' in caption
    _, _, caption = views.explain(model, path, 64, 99, 50, 50)
    assert f'Layer {count} of {count} ({model.layers[-1]})' in caption


def test_scores_are_filtered_without_the_model(app, views, file, monkeypatch):
    page, image = app.page, file(DETECTOR)

    def run(score):
        given_now = given(page, view='Prediction', name=DETECTOR, image=image, score=score)
        (shown,) = page.run(given_now)
        count = re.search(r'\| RBC \| (\d+) \|', shown[page.table])
        return int(count[1]) if count else 0, shown[page.prediction]

    first, _ = run(0.6)
    monkeypatch.setattr(ToolboxPredictor, 'predict', None)
    more, picture = run(0.3)
    none, empty = run(1)
    assert more > first > 0 and none == 0
    assert '0 of the 11 labelled cells found, 0 false boxes' in empty and picture != empty
    # Without known objects, nothing is drawn.
    nothing = views.keep_scores(views.predict(app.models[DETECTOR], image, 'config'), 1)
    mirrored = example(DETECTOR).image[:, ::-1]
    drawn, caption = views.draw(app.models[DETECTOR], file(mirrored), nothing, as_seen=False)
    small = Image.fromarray(mirrored).resize((240, 240)).resize(drawn.size)
    assert '| 0 boxes |' in caption
    assert np.abs(np.asarray(drawn, float) - small).mean() < 3


def test_missed_objects_are_outlined_and_counted_by_class(app, views, file):
    model, one = app.models[DETECTOR], example(DETECTOR)
    path = file(one.image)
    found = views.keep_scores(views.predict(model, path, 'config'), 0.5)
    boxes = torch.tensor(found['boxes'])
    overlaps = box_iou(boxes, torch.tensor(one.boxes, dtype=boxes.dtype))
    overlaps[torch.tensor(found['labels'])[:, None] != torch.tensor(one.labels)] = 0
    missed = (overlaps.amax(0) < 0.5).nonzero().flatten().tolist()
    assert views.missed_objects(found, one) == missed
    assert sorted(model.predictor.classes[one.labels[i]] for i in missed) == ['RBC', 'WBC']
    picture, caption = views.draw(model, path, found, as_seen=False)
    assert 'missed (dashed outlines): 1 WBC, 1 RBC' in caption
    (white_cell,) = np.flatnonzero(one.labels == model.predictor.classes.index('WBC'))
    left, top, right, _ = (one.boxes[white_cell] * picture.width / one.image.shape[1]).astype(int)
    edge = np.asarray(picture)[top : top + 3, left:right].reshape(-1, 3)
    assert all((edge == shade).all(1).mean() > 0.3 for shade in (0, 255))
    everything = dict(found, boxes=one.boxes.tolist(), labels=one.labels.tolist())
    everything |= dict(classes=['?'] * len(one.labels), scores=[0.9] * len(one.labels))
    _, caption = views.draw(model, path, everything, as_seen=False)
    assert '11 of the 11 labelled cells found, 0 false' in caption and 'missed' not in caption


def test_the_caption_of_the_street_says_why_patches_are_wrong(app, views, file):
    """At its good sizes, with the figures of the model and its card."""
    model, path = app.models[SEGMENTOR], file(SEGMENTOR)
    captions = {}
    for scale in (views.first_scale(model, path), (960, 960)):
        found = views.predict(model, path, scale)
        captions[found['seen'].shape] = views.draw(model, path, found, as_seen=False)[1]
    good, outside = captions[360, 480, 3], captions[720, 960, 3]
    assert 'outside the good sizes' in outside and 'patches' not in outside
    parameters = sum(one.numel() for one in model.predictor.model.parameters())
    card = (weights.FOLDER / f'{SEGMENTOR}.md').read_text()
    (score,) = re.findall(r'\| 1 \| 480 x 360 \| ([\d.]+) \|', card)
    photographs = sum(map(int, re.search(r'(\d+) training and (\d+) validation', card).groups()))
    assert f'{parameters / 1e6:.1f} M parameters, trained on {photographs} photographs' in good
    assert '| good size | some patches are wrong' in good and f'{float(score):.1f} mIoU' in good


def test_opacity_is_for_masks_and_scores_are_for_boxes(app, file):
    page = app.page

    def run(model, **values):
        one = given(page, view='Prediction', name=model, image=file(model), **values)
        (shown,) = page.run(one)
        return shown

    for model, has_scores, has_masks in (
        (CLASSIFIER, False, False),
        (DETECTOR, True, False),
        (SEGMENTOR, False, True),
    ):
        shown = run(model)
        assert shown[page.score].visible == has_scores and shown[page.opacity].visible == has_masks
    faint, strong = (run(SEGMENTOR, opacity=value)[page.prediction] for value in (0, 1))
    assert len({faint, strong, shown[page.prediction]}) == 3


def test_the_slider_of_layers_has_as_many_as_the_model(app, file, monkeypatch):
    page = app.page
    chosen = given(page, view='Features', name=CLASSIFIER, image=file(CLASSIFIER))
    (shown,) = page.run(chosen | {page.layer: 12})
    assert 'Layer 12 of 12 (backbone.blocks.11.attn)' in shown[page.caption]
    assert (shown[page.layer].maximum, shown[page.layer].visible) == (12, True)
    monkeypatch.setitem(
        vars(app.models[CLASSIFIER]), 'layers', [f'backbone.blocks.{i}.attn' for i in range(2)]
    )
    (shown,) = page.run(chosen)
    assert 'Layer 2 of 2 (backbone.blocks.1.attn)' in shown[page.caption]
    assert (shown[page.layer].maximum, shown[page.layer].value) == (2, 2)


@pytest.mark.parametrize(
    ('name', 'cells'),
    [
        (CLASSIFIER, ['14 x 11']),
        (DETECTOR, ['64 x 64', '32 x 32', '16 x 16']),
        (SEGMENTOR, ['128 x 96', '64 x 48', '32 x 24', '16 x 12']),
    ],
)
def test_features_of_every_shipped_model_are_shown_by_stride(app, views, file, name, cells):
    model = app.models[name]
    features, picture, caption = views.explain(model, file(name), model.first_side, 7, 50, 50)
    assert [text.split(' map of ')[1] for _, text in features] == [f'{one} cells' for one in cells]
    rest = r'\(backbone\S+\); strongest cell: \d+\.\d% of the attention'
    assert picture is not None and re.fullmatch(rf'Layer 7 of 12 {rest}', caption)


def test_features_begin_at_a_size_that_the_model_is_good_at(app):
    sides = {name: app.models[name].first_side for name in (CLASSIFIER, DETECTOR)}
    assert sides == {CLASSIFIER: 224, DETECTOR: 512}  # good up to 224 and 554 px
    assert app.models['retinanet_pvt_small-coco'].first_side == 512  # not measured


@pytest.mark.parametrize(
    ('size', 'seen'),
    [
        ((640, 480), (480, 360)),
        ((1600, 1200), (480, 360)),
        ((40, 30), (480, 360)),
        ((1600, 50), (1024, 32)),
    ],
)
def test_an_image_is_first_shown_at_a_size_that_the_model_is_good_at(app, views, file, size, seen):
    """The segmentor was tested on images of 480 x 360 px as they are."""
    image = file(np.zeros((size[1], size[0], 3), np.uint8))
    model = app.models[SEGMENTOR]
    found = views.predict(model, image, views.first_scale(model, image))
    assert found['seen'].shape[1::-1] == seen
    scales = views.scales_to_compare(model, image)
    compared = [round(size[0] * scale) for scale in scales]
    assert compared == sorted({min(1024, round(seen[0] * factor)) for factor in views.FACTORS})
    *others, last = scales.values()
    replaced = ' and '.join(f'{one:g}' for one in views.FACTORS if one * seen[0] > 1024)
    assert not any(others) and (f'{replaced} times would exceed' in last) == bool(replaced)
    shown = [*app.page.run(given(app.page, view='Several sizes', name=SEGMENTOR, image=image))]
    figures = shown[-1][app.page.sizes].count('<figure>')
    assert figures == len(scales) + len(scales) % 2  # both columns are full
    assert ('| the image<' in shown[-1][app.page.sizes]) == (len(scales) % 2 == 1)


def test_an_upload_is_shown_as_the_models_see_it(views, file):
    rgba = np.zeros((4, 6, 4), np.uint8)
    rgba[0] = 255, 0, 0, 255
    seen = views.read_upload(file(rgba))
    assert (seen[0] == (255, 0, 0)).all() and (seen[1:] == 255).all()
    assert views.read_upload(file(np.zeros((40, 12000), np.uint8))).shape == (7, 2048, 3)
    assert (views.read_upload(file(seen)) == seen).all()  # from the page, too


@pytest.mark.parametrize(
    ('content', 'message'),
    [
        (b'/etc/passwd', 'not an image of an accepted format'),
        (None, '12000 x 4200 px are too many; at most 50 megapixels are accepted'),
    ],
)
def test_an_upload_that_is_refused(app, views, tmp_path, content, message):
    file = tmp_path / 'a.png'
    file.write_bytes(content) if content else Image.new('1', (12000, 4200)).save(file)
    with pytest.raises(ImageError, match=message):
        views.read_upload(str(file))
    (shown,) = app.page.run(given(app.page, image=str(file)))
    assert message in shown[app.page.prediction]


def test_a_refused_upload_clears_the_results(app, tmp_path, capfd):
    """With one message, and nothing in the terminal."""
    path = Path(app.folder, 'upload.png')
    path.write_bytes(b'no image')
    number = next(i for i, fn in app.page.blocks.fns.items() if fn.name == 'accept')
    answer = call(app, number, dict(path=str(path), meta=dict(_type='gradio.FileData')))
    assert answer['success'] and answer['output']['data'] == [None]
    assert 'cannot be used: not an image of an accepted format' in answer['warning']
    assert ''.join(capfd.readouterr()) == ''
    page = app.page
    for view in ('Features', 'Prediction', 'Several sizes'):
        (shown,) = page.run(given(page, view=view, image=None))
        for part in (page.features, page.prediction, page.sizes):
            assert (
                shown[part]
                == '<p>No image yet: choose an example, or drop an image of your own.</p>'
            )
        assert not any(shown[one] for one in (page.attention, page.caption, page.table))


@pytest.mark.parametrize(('port', 'message'), [(0, 'in 1 to 65535, got 0'), (70000, 'got 70000')])
def test_a_port_that_is_none_is_refused(port, message):
    with pytest.raises(ValueError, match=f'--port must be {message}|{message}'):
        demo_app.check_port('127.0.0.1', port)


@pytest.mark.parametrize(
    ('words', 'message'),
    [
        ('retinanet_cpvt_tiny_gap-bcd', f"did you mean '{DETECTOR}'"),
        ('no.py a.pth', "there is no config file 'no.py'"),
        (f'{ROOT}/configs/bccd/retinanet_pvt-t_bccd.py a.pth', "no file or folder 'a.pth'"),
    ],
)
def test_a_model_that_is_not_there_is_refused_before_torch_is_loaded(words, message, capsys):
    with pytest.raises(ValueError, match=message):
        demo_app.main([*words.split(' '), '--port', '7899'])
    assert capsys.readouterr().err == ''


def test_a_port_in_use_is_refused_before_a_model_is_loaded(app):
    message = f'--port: 127.0.0.1 port {app.port} cannot be listened on .Address already in use.;'
    with pytest.raises(ValueError, match=message):
        demo_app.check_port('127.0.0.1', app.port)
    with pytest.raises(ValueError, match='Name or service|name resolution'):
        demo_app.check_port('no.such.invalid', app.port)


# -- the server


def ask(app, path, *, method='GET', body=None, **headers):
    """Status and text of an answer."""
    connection = http.client.HTTPConnection('127.0.0.1', app.port, timeout=60)
    connection.request(method, path, body=body, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def call(app, number, *data, session=None):
    """What an event of the page answers, by its number: its output, or its error."""
    session = session or uuid.uuid4().hex
    content = dict(data=[*data], fn_index=number, session_hash=session)
    body = json.dumps(content)
    kind = {'Content-Type': 'application/json'}
    status, text = ask(app, '/gradio_api/queue/join', method='POST', body=body, **kind)
    assert status == 200, text
    _, text = ask(app, f'/gradio_api/queue/data?session_hash={session}')
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith('data: ')]
    (done,) = (one for one in events if one['msg'] == 'process_completed')
    said = [one['log'] for one in events if one['msg'] == 'log']
    return dict(done, warning=' '.join(said))


SIDE, SCORE = 4, 9  # places in the data of a request


def ask_result(app, place=None, value=None, session=None):
    """The answer to a request for a result, with another value at one place."""
    # Image, model, a state, which the server keeps; automatic, side; side, layer and point of the
    # features; score, opacity.
    image = dict(app.page.image.value, meta=dict(_type='gradio.FileData'))
    data = [image, CLASSIFIER, None, place != SIDE, 512, 64, 7, 50, 50, 0.5, 0.6]
    if place is not None:
        data[place] = value
    number = next(i for i, fn in app.page.blocks.fns.items() if fn.name == 'run')
    return call(app, number, *data, session=session)


def test_a_published_model_in_the_cache_answers(app, tmp_path, monkeypatch):
    """A file of mmpretrain, random but for a bias, with its hash in the name and no class names."""
    peer = get_model('deit-tiny_4xb256_in1k', device='cpu')
    peer.head.layers.head.bias.data[STREET_SIGN] += 50
    content = io.BytesIO()
    torch.save(dict(state_dict=peer.state_dict(), meta={}), content)
    name = f'tiny-{hashlib.sha256(content.getvalue()).hexdigest()[:8]}.pth'
    monkeypatch.setattr(torch.hub, 'get_dir', lambda: str(tmp_path))
    (tmp_path / 'checkpoints').mkdir()
    (tmp_path / 'checkpoints' / name).write_bytes(content.getvalue())
    index = json.loads(weights.INDEX.read_text())
    index['deit_tiny-imagenet'] |= dict(address=f'https://example.com/{name}')
    (tmp_path / 'index.json').write_text(json.dumps(index))
    monkeypatch.setattr(weights, 'INDEX', tmp_path / 'index.json')
    assert 'deit_tiny-imagenet' in [value for _, value in app.page.name.choices]
    answer = ask_result(app, 1, 'deit_tiny-imagenet')
    assert answer['success'], answer
    shown = json.dumps(answer['output'])
    assert (
        '<img src=' in shown and 'street sign 100%' in shown and '| street sign | 100.0% |' in shown
    )


def test_a_model_without_an_example_keeps_the_image(app):
    """And later requests of the same user are answered."""
    number = next(i for i, fn in app.page.blocks.fns.items() if fn.name == 'follow')
    image = dict(app.page.image.value, meta=dict(_type='gradio.FileData'))
    session = uuid.uuid4().hex
    answer = call(app, number, 'deit_tiny-imagenet', image, session=session)
    assert answer['success']
    answer = ask_result(app, session=session)
    assert answer['success'], answer


def test_names_of_requests_are_checked(app):
    assert ask_result(app)['success']
    assert not ask_result(app, 1, '../../etc/passwd')['success']


@pytest.mark.parametrize(
    ('place', 'value', 'size'),
    [
        (SIDE, 5000, '1024 x 768 px'),
        (SIDE, 64.5, '64 x 48 px'),
        (SIDE, -5, '32 x 24 px'),
        (SIDE, None, '32 x 24 px'),
        (SIDE, float('nan'), '32 x 24 px'),
        (SCORE, 9, '112 x 112 px'),
    ],
)
def test_a_number_that_its_field_does_not_accept_is_the_nearest(app, place, value, size, capfd):
    """As the field shows it, without an error. An empty field is the least number."""
    answer = ask_result(app, place, value)
    assert answer['success'] and size in json.dumps(answer['output'])
    assert ''.join(capfd.readouterr()) == ''


@pytest.fixture
def other_images(app, tmp_path):
    """Paths of one image outside of the page's folder, and of files that are none or missing."""
    image = tmp_path / 'private.png'
    Image.new('RGB', (40, 30), 'red').save(image)
    folder = Path(app.folder)
    beside = folder.with_name(folder.name + '_of_another_program') / 'private.png'
    beside.parent.mkdir(exist_ok=True)
    beside.write_bytes(image.read_bytes())
    link = folder / 'link.png'
    link.symlink_to(image)
    (folder / 'elsewhere').symlink_to(tmp_path)
    with image.open('rb') as opened:
        yield [
            str(image),
            str(beside),
            f'{folder}/../{tmp_path.name}/private.png',
            os.path.relpath(image),
            f'{folder}/elsewhere/private.png',
            str(link),
            f'/proc/self/fd/{opened.fileno()}',
            '/etc/passwd',
            '/root',
            '/dev/zero',
            '/no/such/file',
            str(folder / 'no_such_file.png'),
            str(folder),
            'private\0.png',
            '\ud800.png',
            'x' * 5000,
            'http://203.0.113.1/a.png',
            'file:///etc/passwd',
            '',
        ]
    link.unlink()
    (folder / 'elsewhere').unlink()


METAS = ({}, {'meta': {'_type': 'gradio.FileData'}}, {'meta': {}}, {'meta': {'_type': 'x'}})


@pytest.mark.parametrize('more', [*METAS, {'is_stream': True}, {'url': 'http://203.0.113.1/a'}])
def test_every_event_refuses_every_path_but_uploads_alike(app, other_images, more, capfd):
    answers = set()
    for number, fn in app.page.blocks.fns.items():
        for place, component in enumerate(fn.inputs):
            if not isinstance(component, gradio.Image):
                continue
            for path in other_images if not more else other_images[::4]:
                data = [None] * len(fn.inputs)
                data[place] = {'path': path} | more
                answer = call(app, number, *data)
                assert not answer['success'], (fn.name, path)
                answers.add(json.dumps(answer['output']))
    assert len(answers) == 1
    assert 'uploaded images only' in answers.pop()
    assert 'Traceback' not in ''.join(capfd.readouterr())


def test_events_without_an_image_open_no_file_either(app, other_images):
    places = 0
    for number, fn in app.page.blocks.fns.items():
        for place, _ in enumerate(fn.inputs):
            for value in ({'path': other_images[0]}, [{'value': {'path': other_images[0]}}]):
                data = [None] * len(fn.inputs)
                data[place] = value
                answer = call(app, number, *data)
                assert 'uploaded images only' in answer['output']['error'], (fn.name, answer)
                places += 1
    assert places > 10


@pytest.mark.parametrize('route', ['call/accept', 'run/accept', 'api/accept'])
def test_no_other_route_opens_a_path(app, other_images, route):
    body = json.dumps(dict(data=[{'path': other_images[0]}], session_hash=uuid.uuid4().hex))
    kind = {'Content-Type': 'application/json'}
    status, text = ask(app, f'/gradio_api/{route}', method='POST', body=body, **kind)
    if status == 200:
        text = ask(app, f'/gradio_api/{route}/{json.loads(text)["event_id"]}')[1]
    assert 'event: error' in text or status >= 400


def test_files_of_an_upload_are_opened(app, tmp_path):
    image = io.BytesIO()
    Image.new('RGB', (40, 30), 'red').save(image, 'PNG')
    head = b'--x\r\nContent-Disposition: form-data; name="files"; filename="a.png"\r\n\r\n'
    kind = {'Content-Type': 'multipart/form-data; boundary=x'}
    body = head + image.getvalue() + b'\r\n--x--\r\n'
    status, text = ask(app, '/gradio_api/upload', method='POST', body=body, **kind)
    (path,) = json.loads(text)
    assert status == 200
    answer = ask_result(app, 0, dict(path=path, meta=dict(_type='gradio.FileData')))
    assert answer['success']


@pytest.mark.parametrize(
    'path',
    [
        '/etc/passwd',
        str(ROOT / 'README.md'),
        'http://203.0.113.1/a.png',
        'http://host.example/a.png',
        'https://host.example/',
        'HTTP://host.example/a.png',
    ],
)
def test_no_path_or_address_is_served(app, path, monkeypatch):
    names: list[str] = []
    monkeypatch.setattr(socket, 'getaddrinfo', lambda name, *_, **__: names.append(name) or [])
    connection = http.client.HTTPConnection('127.0.0.1', app.port, timeout=60)
    connection.sock = socket.socket()  # without a look-up of its own
    connection.sock.connect(('127.0.0.1', app.port))
    connection.request('GET', f'/gradio_api/file={quote(path)}')
    assert connection.getresponse().status == 403
    assert names == []


@pytest.mark.parametrize('path', ['/etc/passwd', 'http://203.0.113.1/a.png'])
def test_nothing_is_asked_of_another_server(app, path):
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
        assert ask(app, '/config')[0] == 200 and ask_result(app)['success']
    finally:
        for connection in slow:
            connection.close()


def test_an_upload_of_too_many_bytes_is_refused(app, monkeypatch):
    monkeypatch.setattr(app.page.blocks, 'max_file_size', 1000)
    head = '--x\r\nContent-Disposition: form-data; name="files"; filename="a.png"\r\n\r\n'
    body = head.encode() + b'0' * 2000 + b'\r\n--x--\r\n'
    kind = {'Content-Type': 'multipart/form-data; boundary=x'}
    assert ask(app, '/gradio_api/upload', method='POST', body=body, **kind)[0] == 413
