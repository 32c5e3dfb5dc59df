"""The tutorials, block by block, on small data."""

import json

import numpy as np
import pytest
from pages import blocks, run_page
from PIL import Image

from cpvt_backbones.checkpoints import write_checkpoint
from cpvt_backbones.toolboxes import read_config
from cpvt_backbones.weights import shipped_weights

SCENES = {
    '--train 128x128:200': '--train 128x128:12',
    '--length 400': '--length 2',
    'iter_400': 'iter_2',
}


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def predictions(folder):
    return json.loads((folder / 'out/predictions.json').read_text())


def test_detector_from_coco(call, tmp_path):
    pytest.importorskip('mmdet')
    few = {**SCENES, '--heldout 128x128:50': '--heldout 128x128:4'}
    page = run_page('docs/tutorials/detector_coco.md', call, few)
    assert len(page['coco']['categories']) == 10
    assert len([*(tmp_path / 'out/vis').iterdir()]) == 4 and predictions(tmp_path) is not None


def test_autolabel(call, tmp_path):
    pytest.importorskip('mmdet')
    few = {**SCENES, '--heldout 128x128:50': '--heldout 128x128:4'}
    # After two iterations, scores are below the least that the model reports.
    few['--score-thr 0.5'] = '--score-thr 0 --cfg-options model.test_cfg.score_thr=0.0'
    run_page('docs/tutorials/autolabel.md', call, few)
    count = {}
    for name in ('first', 'second'):
        train = json.loads((tmp_path / f'mine/{name}/train.json').read_text())
        count[name] = len(train['images']), len(train['annotations'])
    found = json.loads((tmp_path / 'labels/predictions.json').read_text())
    assert count['second'][0] == count['first'][0] + 4
    assert count['first'][1] < count['second'][1] <= count['first'][1] + len(found)


@pytest.mark.slow
def test_detector_from_voc(call, tmp_path):
    pytest.importorskip('mmdet')
    run_page('docs/tutorials/detector_voc.md', call, SCENES)

    def boxes(*files):
        contents = [json.loads((tmp_path / file).read_text()) for file in files]
        return sorted(one['bbox'] for content in contents for one in content['annotations'])

    converted = boxes('mine/voc/train.json', 'mine/voc/val.json')
    assert converted == boxes('data/digits/train_128x128/instances.json')
    assert len([*(tmp_path / 'out/vis').iterdir()]) == 12


def test_segmentor(call, tmp_path):
    pytest.importorskip('mmseg')
    run_page('docs/tutorials/segmentor.md', call, SCENES)
    assert len(predictions(tmp_path)) == 12


@pytest.mark.slow
def test_classifier(call, tmp_path):
    pytest.importorskip('mmpretrain')
    few = {
        '--train 128x128:1000': '--train 128x128:40',
        '--length 10': '--length 2',
        'epoch_10': 'epoch_2',
    }
    run_page('docs/tutorials/classifier.md', call, few)
    assert {one['class'] for one in predictions(tmp_path)} <= {'3', '5', '8'}


@pytest.mark.slow
def test_public_weights(call, tmp_path):
    """With random weights in place of those that the name would fetch, under their name, which says
    the model.
    """
    pytest.importorskip('mmpretrain')
    timm = pytest.importorskip('timm')
    name = 'deit_tiny_patch16_224.fb_in1k'
    weights = timm.create_model(name.partition('.')[0]).state_dict()
    write_checkpoint(weights, tmp_path / f'{name}.safetensors', meta={})
    for kind in ('ash', 'birch'):
        (tmp_path / f'photos/{kind}').mkdir(parents=True)
        for i in range(5):
            photo = Image.new('RGB', (130, 120), (40 * i, 40, 200))
            photo.save(tmp_path / f'photos/{kind}/{i}.png')
    few = {
        f'timm://{name}': f'{tmp_path}/{name}.safetensors',
        '--length 10': '--length 2',
        'epoch_10': 'epoch_2',
    }
    page = run_page('docs/tutorials/finetune.md', call, few)
    assert page['model'] and (tmp_path / 'work_dirs/deit/epoch_2.pth').is_file()


def test_config_of_own_classes(tmp_path):
    pytest.importorskip('mmdet')
    code = blocks('docs/tutorials/finetune.md')
    (block,) = (text for _, text in code if text.startswith('# three_classes.py'))
    (tmp_path / 'mine.py').write_text(block)
    cfg = read_config(tmp_path / 'mine.py')
    assert cfg.model.bbox_head.num_classes == 3
    assert cfg.model.backbone.init_cfg.checkpoint == 'timm://twins_pcpvt_small.in1k'
    for part in ('train', 'val'):
        dataset = cfg[f'{part}_dataloader'].dataset
        assert dataset.metainfo.classes == ('car', 'person', 'tree')
        assert dataset.data_root + dataset.ann_file == f'data/mine/{part}.json'
        assert dataset.data_prefix.img == f'{part}/'
    assert cfg.test_evaluator.ann_file == cfg.val_evaluator.ann_file == 'data/mine/val.json'


@pytest.mark.slow
def test_onnx(call, tmp_path):
    pytest.importorskip('onnxruntime')
    pytest.importorskip('mmpretrain')
    photo = np.random.default_rng(0).integers(0, 255, (160, 160, 3), np.uint8)
    Image.fromarray(photo).save(tmp_path / 'photo.jpg')
    page = run_page('docs/tutorials/onnx.md', call, {})
    assert page['about']['classes'] == list(
        shipped_weights()['cpvt_tiny_gap-imagenette'].dataset_meta['classes']
    )
    assert page['scores'].shape == (1, 10) and predictions(tmp_path)
