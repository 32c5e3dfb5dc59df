"""A published EoMT goes on with a user's own objects: config, weights, training, prediction."""

import json

import pytest
import shape_data
import torch
from eomt_peers import AuthorsEoMT, published
from tiny import randomise
from tiny_configs import WORKERLESS

from cpvt_backbones.checkpoints.reading.sources import cached_file
from cpvt_backbones.toolboxes import published_classes, read_config
from cpvt_backbones.weights import published_weights

# Of each published model: classes of its last layer, one of them and its row, by the data sets'
# own order, which in ADE20K is not that of mmdet.
MODELS = {
    'eomt_large-coco_instance': (80, 'toaster', 70),
    'eomt_small-coco_panoptic': (133, 'toaster', 70),
    'eomt_large-ade20k_panoptic': (150, 'person', 12),
}
TRUNK = dict(embed_dims=24, depth=4, num_heads=2, mlp_ratio=2.0)
TINY = [
    *(f'model.backbone.arch.{key}={value}' for key, value in TRUNK.items()),
    'model.backbone.img_size=64',
    'model.panoptic_head.embed_dims=24',
    'model.panoptic_head.num_queries=6',
    'model.panoptic_head.num_blocks=2',
    'train_dataloader.batch_size=2',
    *WORKERLESS,
]


@pytest.fixture
def data(tmp_path, monkeypatch):
    """Function that writes objects of a known class and of another; returns the arguments."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.hub, 'get_dir', lambda: str(tmp_path / 'torch'))

    def data(known):
        scenes = shape_data.make_split(0, 'train', 6, objects=2)
        shape_data.write_images(tmp_path / 'images', scenes)
        file = shape_data.coco_json(tmp_path / 'all.json', scenes, masks=True)
        content = json.loads(file.read_text())
        content['categories'][1]['name'] = known
        file.write_text(json.dumps(content))
        return ['instances', 'all.json', 'images']

    return data


def publish(name, classes):
    """Put a tiny model, under the names of its authors, where the file of a name is cached."""
    source = randomise(AuthorsEoMT(classes))
    source.attn_mask_probs.zero_()
    file = cached_file(published_weights()[name].address)
    file.parent.mkdir(parents=True)
    torch.save(published(source, 'network.'), file)
    assert published_classes(str(file)) == published_classes(name)
    return source


@pytest.mark.full
@pytest.mark.parametrize('name', MODELS)
def test_a_published_model_goes_on_with_own_objects(name, data, tmp_path, call, capsys):
    pytest.importorskip('mmdet')
    classes, known, row = MODELS[name]
    labels = data(known)
    call('make_config', *labels, '--weights', name, '--out', 'first.py', '--length', '2')
    printed = capsys.readouterr().out
    assert f'classes of the same name keep what they learned: {known}' in printed
    cfg = read_config('first.py')
    head = cfg.model.panoptic_head
    assert (head.num_things_classes, head.num_stuff_classes) == (2, 0)
    assert 'class_order' not in head
    assert cfg.load_from == cfg.published_model == name
    assert not any('MaskAnnealing' in hook['type'] for hook in cfg.custom_hooks)

    source = publish(name, classes)
    still = ['optim_wrapper.optimizer.lr=0.0', 'model.backbone.drop_path_rate=0.0']
    call('train', 'first.py', '--work-dir', 'still', '--cfg-options', *TINY, *still)
    weights = torch.load('still/iter_2.pth', weights_only=False)['state_dict']
    own, stored = weights['panoptic_head.class_head.weight'], source.class_head.weight
    assert len(own) == 3
    assert torch.equal(own[1:], stored[[row, classes]])  # the known class, and "no object"
    assert not (own[0] == stored).all(1).any()
    assert torch.equal(weights['panoptic_head.q.weight'], source.q.weight)
    for part, name_of_part in ((source.mask_head, 'mask_head'), (source.upscale, 'upscale')):
        for key, value in part.state_dict().items():
            assert torch.equal(weights[f'panoptic_head.{name_of_part}.{key}'], value)
    trunk = source.encoder['backbone'].blocks[3].mlp['fc1'].weight
    assert any(torch.equal(value, trunk) for value in weights.values())
    assert not weights['panoptic_head.attn_mask_probs'].any()

    call('train', 'first.py', '--work-dir', 'moved', '--cfg-options', *TINY)
    moved = torch.load('moved/iter_2.pth', weights_only=False)['state_dict']
    assert not torch.equal(moved['panoptic_head.q.weight'], source.q.weight)
    infer = ['first.py', 'moved', 'images', '--out-dir', 'out', '--score-thr', '0']
    call('infer', *infer, '--cfg-options', *TINY)
    found = json.loads((tmp_path / 'out/predictions.json').read_text())
    assert {one['image_id'] for one in found} == {1, 2, 3, 4, 5, 6}
    assert all('segmentation' in one for one in found)


@pytest.mark.full
def test_names_that_are_all_new_keep_no_row(data, call, capsys):
    pytest.importorskip('mmdet')
    name = 'eomt_large-coco_instance'
    call('make_config', *data('Röhre'), '--weights', name, '--out', 'first.py', '--length', '1')
    assert 'classes of the same name keep what they learned: none' in capsys.readouterr().out
    source = publish(name, 80)
    call('train', 'first.py', '--work-dir', 'work', '--cfg-options', *TINY)
    weights = torch.load('work/iter_1.pth', weights_only=False)['state_dict']
    assert len(weights['panoptic_head.class_head.weight']) == 3
    assert len(source.class_head.weight) == 81


def test_an_image_of_many_objects_has_as_many_predictions(data, tmp_path, call):
    labels = data('toaster')
    content = json.loads((tmp_path / 'all.json').read_text())
    first = content['annotations'][0]
    for number in range(60):
        x, y = number % 10 * 7, number // 10 * 9
        outline = [[x, y, x + 6, y, x + 6, y + 8, x, y + 8]]
        one = dict(first, id=1000 + number, bbox=[x, y, 6, 8], area=48, segmentation=outline)
        content['annotations'].append(one)
    (tmp_path / 'all.json').write_text(json.dumps(content))
    name = 'eomt_large-coco_instance'
    call('make_config', *labels, '--weights', name, '--side', '320', '--out', 'first.py')
    assert read_config('first.py').model.test_cfg.max_per_image == 200
