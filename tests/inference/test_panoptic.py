"""Panoptic segments: arrays, pictures, COCO's PNG and JSON, shards, and what is refused."""

import csv
import json

import numpy as np
import pytest
from mmengine.config import Config
from PIL import Image
from tiny import PANOPTIC_CLASSES as CLASSES
from tiny import write_panoptic_model

from cpvt_backbones.errors import InputError
from cpvt_backbones.images import ImageError
from cpvt_backbones.inference import Inferencer, merge_shards, predict_to_folder
from cpvt_backbones.inference.drawing import ClassStyle, draw_prediction, make_preview
from cpvt_backbones.inference.panoptic import encode_ids, segments_of


@pytest.fixture(scope='module')
def model_files(tmp_path_factory):
    """A config, and random weights that predict several segments."""
    pytest.importorskip('mmdet')
    return write_panoptic_model(tmp_path_factory.mktemp('panoptic'))


@pytest.fixture(scope='module')
def inferencer(model_files):
    cfg, checkpoint = model_files
    return Inferencer(cfg=str(cfg), checkpoint=str(checkpoint), device='cpu')


@pytest.fixture
def photos(tmp_path):
    rng = np.random.default_rng(0)
    for name, size in (('a', (90, 60)), ('b', (64, 80)), ('c', (50, 50))):
        pixels = rng.integers(0, 255, (*size[::-1], 3), dtype=np.uint8)
        (tmp_path / 'photos').mkdir(exist_ok=True)
        Image.fromarray(pixels).resize(size).save(tmp_path / 'photos' / f'{name}.png')
    return tmp_path / 'photos'


def test_an_image_gives_segments(inferencer, photos):
    prediction, picture = inferencer(photos / 'a.png', vis=True)
    panoptic, segments = prediction['panoptic'], prediction['segments']
    assert panoptic.shape == (60, 90) and len(segments) >= 2
    assert {*np.unique(panoptic)} - {0} == {one['id'] for one in segments}
    for one in segments:
        inside = panoptic == one['id']
        left, top, width, height = one['bbox']
        assert one['area'] == inside.sum() == inside[top : top + height, left : left + width].sum()
        assert inside[:, left].any() and inside[top].any()
        assert one['class'] == CLASSES[one['label']]
    regions = [one['label'] for one in segments if one['label'] >= 3]
    assert len(regions) == len(set(regions))  # one segment of each region
    assert picture.shape[1] == 90 and picture.shape[0] > 60  # a legend below


def test_segments_in_bfloat16(model_files, inferencer, photos):
    cfg, checkpoint = model_files
    options = dict(device='cpu', dtype='bfloat16')
    reduced = Inferencer(cfg=str(cfg), checkpoint=str(checkpoint), **options)
    for name in 'abc':
        exact, rounded = (one(photos / f'{name}.png')[0] for one in (inferencer, reduced))
        assert exact['panoptic'].shape == rounded['panoptic'].shape
        labels, others = ({part['label'] for part in one['segments']} for one in (exact, rounded))
        assert labels == others
        assert (exact['panoptic'] == rounded['panoptic']).mean() > 0.95  # but for borders


def test_the_folder_has_cocos_format(inferencer, photos, tmp_path, model_files):
    out = tmp_path / 'out'
    summary = predict_to_folder(inferencer, photos, out, progress=False)
    assert summary.predicted == 3 and not summary.failed and summary.classes
    content = json.loads((out / 'panoptic.json').read_text())
    assert [one['isthing'] for one in content['categories']] == [1, 1, 1, 0, 0]
    assert [one['name'] for one in content['categories']] == list(CLASSES)
    files = {one['id']: one['file_name'] for one in content['images']}
    for one in content['annotations']:
        rgb = np.asarray(Image.open(out / one['file_name'])).astype(int)
        ids = rgb[..., 0] + 256 * rgb[..., 1] + 256**2 * rgb[..., 2]
        wanted, _ = inferencer(files[one['image_id']])
        assert np.array_equal(ids, wanted['panoptic'])
        assert {part['id']: part['area'] for part in one['segments_info']} == {
            part['id']: part['area'] for part in wanted['segments']
        }
    assert json.loads((out / 'predictions.json').read_text()) == content['annotations']
    again = predict_to_folder(inferencer, photos, out, progress=False)
    assert (again.predicted, again.found) == (0, 3)
    assert {path.name for path in (out / 'vis').iterdir()} == {'a.jpg', 'b.jpg', 'c.jpg'}

    from cpvt_backbones.inference.outputs import write_csv

    rows = list(csv.reader(write_csv(out).open()))
    assert rows[0] == ['image', 'class', 'pixels']
    assert len(rows) - 1 == sum(len(one['segments_info']) for one in content['annotations'])
    predict_to_folder(inferencer, photos, out, progress=False, overwrite=True, vis=False)
    assert not (out / 'predictions.csv').exists() and not (out / 'vis').exists()


def test_shards_are_merged(inferencer, photos, tmp_path):
    whole, parts = tmp_path / 'whole', tmp_path / 'parts'
    predict_to_folder(inferencer, photos, whole, progress=False, vis=False)
    for index in range(2):
        shard = (index, 2)
        predict_to_folder(inferencer, photos, parts, progress=False, vis=False, shard=shard)
    summary = merge_shards(photos, parts)
    one, other = (json.loads((path / 'panoptic.json').read_text()) for path in (whole, parts))
    assert one['categories'] == other['categories'] and one['images'] == other['images']
    for left, right in zip(one['annotations'], other['annotations'], strict=True):
        assert left['segments_info'] == right['segments_info']
        assert (parts / right['file_name']).read_bytes() == (whole / left['file_name']).read_bytes()
    assert sum(summary.classes.values()) == sum(len(a['segments_info']) for a in one['annotations'])


def test_tiles_are_refused(model_files, photos):
    cfg, checkpoint = model_files
    small = dict(max_pixels=1024, tile_size=32, overlap=8)
    inferencer = Inferencer(cfg=str(cfg), checkpoint=str(checkpoint), device='cpu', **small)
    with pytest.raises(ImageError, match='a panoptic segmentor cannot be tiled: set scale'):
        inferencer(photos / 'a.png')


def test_what_the_config_switches_on_is_the_task(model_files, photos):
    """With instances alone, a model of the same family is a detector."""
    cfg, checkpoint = model_files
    cfg = Config.fromfile(cfg)
    cfg.model.test_cfg.update(panoptic_on=False, instance_on=True)
    inferencer = Inferencer(cfg=cfg, checkpoint=str(checkpoint), device='cpu')
    prediction, _ = inferencer(photos / 'a.png', score_thr=0.0, vis=True)
    assert inferencer.predictor.task == 'detection'
    assert len(prediction['masks']) == len(prediction['boxes']) > 0


def test_ids_of_mmdet():
    found = np.array([[-1, 3, 3], [1002, 2002, 2002]])
    prediction = segments_of(found, None)
    assert prediction['panoptic'].tolist() == [[0, 1, 1], [2, 3, 3]]
    assert [(one['id'], one['label'], one['area']) for one in prediction['segments']] == [
        (1, 3, 2),
        (2, 2, 1),
        (3, 2, 2),
    ]
    assert prediction['segments'][2]['bbox'] == [1, 1, 2, 1]
    nothing = segments_of(np.full((2, 2), -1), None)
    assert nothing['segments'] == [] and not nothing['panoptic'].any()


def test_large_ids_are_colours():
    ids = np.array([[0, 255, 256, 70000]], dtype=np.uint32)
    assert encode_ids(ids).tolist() == [[[0, 0, 0], [255, 0, 0], [0, 1, 0], [112, 17, 1]]]


def test_a_picture_without_a_segment_is_the_image():
    image = np.full((40, 50, 3), 90, np.uint8)
    style = ClassStyle('panoptic', CLASSES)
    prediction = segments_of(np.full((40, 50), -1), CLASSES)
    picture = draw_prediction(make_preview(image), prediction, style, size=(50, 40))
    assert np.array_equal(picture, image)


def test_a_predictor_of_an_unknown_task_is_refused():
    class Other:
        task, classes, palette, fingerprint = 'depth', None, None, ''

    with pytest.raises(InputError, match='predictor.task must be one of'):
        Inferencer(predictor=Other())
