"""The distilled classifier: its stored targets, its losses, and that the plain classifier has the
same weights.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tiny import COLUMN, max_difference, randomise

pytest.importorskip('mmpretrain')
timm = pytest.importorskip('timm')

from distilled_classifier import views  # noqa: E402
from distilled_classifier.model import FeatureDistillation, OneHotLabel, rectangle  # noqa: E402
from distilled_classifier.views import TEACHER, StoredViews  # noqa: E402
from mmengine.dataset import Compose, pseudo_collate  # noqa: E402
from mmengine.registry import DATASETS, MODELS, init_default_scope  # noqa: E402
from mmpretrain.structures import DataSample  # noqa: E402

from cpvt_backbones.checkpoints import CheckpointError  # noqa: E402
from cpvt_backbones.toolboxes import read_config  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / 'projects/distilled_classifier/configs/cpvt-tiny-gap_imagenette.py'
CHOSEN = [7, 3, 900]
PIXELS = dict(mean=[120.0, 110.0, 100.0], std=[60.0, 55.0, 50.0], to_rgb=True)
PLAIN = dict(type='CPVT', arch=COLUMN, patch_size=8, with_cls_token=False)
HEAD = dict(type='LinearClsHead', num_classes=3, in_channels=24)


@pytest.fixture(scope='module')
def teacher(tmp_path_factory):
    """A teacher with random weights and statistics, and its file."""
    torch.manual_seed(1)
    network = timm.create_model(TEACHER).eval()
    for name, value in network.named_buffers():
        if name.endswith('running_mean'):
            value.normal_(std=0.1)
    network.path = str(tmp_path_factory.mktemp('teachers') / 'teacher.pth')
    torch.save(network.state_dict(), network.path)
    return network


def build(path, **options):
    init_default_scope('mmpretrain')
    torch.manual_seed(0)
    given = dict(teacher=path, teacher_classes=CHOSEN, sizes=[32], data_preprocessor=dict(PIXELS))
    given['backbone'] = dict(PLAIN, out_type='featmap', out_indices=(1, 3))
    neck = dict(type='GlobalAveragePooling')
    model = FeatureDistillation(neck=neck, head=dict(HEAD), **{**given, **options})
    model.backbone = randomise(model.backbone)
    return model


def batch(size=64, count=4):
    torch.manual_seed(2)
    samples = []
    for k in range(count):
        sample = DataSample().set_gt_label(k % 3).set_gt_score(F.one_hot(torch.tensor(k % 3), 3))
        sample.set_field(torch.rand(5), 'draw')
        sample.set_field(torch.randn(112, 7, 7), 'target_map')
        sample.set_field(torch.randn(1280).relu(), 'target_pooled')
        samples.append(sample)
    return torch.randn(count, 3, size, size), samples


@pytest.fixture
def stored(teacher, image_folders):
    """Builds two views of the images of a folder: 16 images of 36 px."""
    init_default_scope('mmpretrain')
    pack = dict(type='PackInputs', algorithm_keys=('draw', 'target_map', 'target_pooled'))
    options = dict(data_root=str(image_folders), data_prefix='train', teacher=teacher.path)
    options['teacher_size'] = 64
    pipeline = [dict(type='OneHotLabel', classes=3), pack]
    return lambda **changes: StoredViews(**options | dict(views=2, pipeline=pipeline) | changes)


@pytest.mark.parametrize('part', [100, 5])
def test_the_targets_are_the_teachers_own_features(teacher, stored, monkeypatch, part):
    monkeypatch.setattr(views, 'PART', part)
    data = stored()
    assert len(data) == 32
    maps = []
    hook = teacher.blocks[4].register_forward_hook(lambda _, __, output: maps.append(output))
    for index in (0, 11, 16, 31):
        item = data[index]
        sample = item['data_samples']
        crop = data.crop.crop(item['inputs'].flip(0)[None].float(), sample.draw[:, None])
        with torch.no_grad():
            pooled = teacher.forward_features(crop / 127.5 - 1).mean((2, 3))[0]
        expected = F.interpolate(maps.pop(), 7, mode='bilinear', align_corners=False)[0]
        # fp16 keeps eleven bits.
        assert max_difference(sample.target_map, expected) <= 2e-3 * expected.abs().max()
        assert max_difference(sample.target_pooled, pooled) <= 2e-3 * pooled.abs().max()
        assert sample.gt_label == index % 16 // 8
    hook.remove()
    # Each view has other crops, and each image has its own.
    draws = torch.stack([data[index]['data_samples'].draw for index in range(32)])
    assert len(draws.unique(dim=0)) == 32


def test_the_targets_are_computed_once(stored, monkeypatch, tmp_path):
    first = stored()[20]['data_samples']
    monkeypatch.setattr(views, 'features', lambda *args: pytest.fail('computed again'))
    again = stored()[20]['data_samples']
    assert torch.equal(first.target_map, again.target_map) and torch.equal(first.draw, again.draw)
    with pytest.raises(pytest.fail.Exception, match='computed again'):
        stored(teacher_size=80)


def test_the_losses_reach_the_student_and_not_the_teacher(teacher):
    model = build(teacher.path)
    images, samples = batch()
    prepared = model.batch(images, samples)
    model.batch = lambda *args: prepared
    losses = model.loss(images, samples)
    # The loss of the labels is that of the plain classifier, on the same crops.
    plain = plain_model()
    assert not plain.load_state_dict(model.state_dict(), strict=False).missing_keys
    labels = [DataSample().set_gt_label(sample.gt_label) for sample in samples]
    expected = plain.train().loss(prepared['images'], labels)['loss']
    torch.testing.assert_close(losses['loss_label'], expected)
    names = ('label', 'probabilities', 'classes', 'pooled', 'map')
    assert list(losses) == [f'loss_{name}' for name in names]
    sum(losses.values()).backward()
    assert all(value.grad.abs().sum() > 0 for value in model.parameters())
    assert not any('teacher' in name and 'to_teacher' not in name for name in model.state_dict())

    with torch.no_grad():
        scores = teacher.classifier(torch.stack([sample.target_pooled for sample in samples]))
    torch.testing.assert_close(prepared['classes'], scores.softmax(1))
    torch.testing.assert_close(prepared['probabilities'], scores[:, CHOSEN].softmax(1))


def test_a_flipped_image_has_a_flipped_map(teacher):
    model = build(teacher.path)
    images, samples = batch(count=32)
    draws = torch.stack([sample.draw for sample in samples]).T
    crops = model.crop.crop(images, draws)
    maps = torch.stack([sample.target_map for sample in samples])
    prepared = model.batch(images, samples)
    flipped = (crops != prepared['images']).flatten(1).any(1)
    assert 0 < flipped.sum() < 32  # all alike with a probability of 2 ** -31
    for name, values in (('images', crops), ('map', maps)):
        expected = torch.where(flipped[:, None, None, None], values.flip(3), values)
        assert torch.equal(prepared[name], expected)


def test_a_mixed_batch_has_the_same_rectangle_of_image_and_map(teacher, monkeypatch):
    images, samples = batch(count=8)
    plain = build(teacher.path, sizes=[56]).batch(images, samples)
    mask = torch.zeros(1, 1, 7, 7)
    mask[..., 1:4, 2:6] = 1
    monkeypatch.setattr('distilled_classifier.model.rectangle', lambda cells: mask)
    model = build(teacher.path, sizes=[56], cutmix=1.0)
    mixed = model.batch(images, samples)  # flipped alike: `build` seeds the generator
    pixels = mask.repeat_interleave(8, 2).repeat_interleave(8, 3).bool()
    for name, inside in (('images', pixels), ('map', mask.bool())):
        expected = torch.where(inside, plain[name].flip(0), plain[name])
        assert torch.equal(mixed[name], expected)
    for name in ('labels', 'pooled', 'probabilities', 'classes'):
        expected = 12 / 49 * plain[name].flip(0) + 37 / 49 * plain[name]
        torch.testing.assert_close(mixed[name], expected)


def test_rectangles_have_every_size_and_stay_inside():
    torch.manual_seed(0)
    masks = [rectangle(3) for _ in range(300)]
    assert {int(mask.sum()) for mask in masks} == {0, 1, 4, 9}
    ones = [mask for mask in masks if mask.sum() == 1]
    assert len({int(mask.flatten().argmax()) for mask in ones}) == 9


def plain_model():
    backbone = dict(PLAIN, out_type='avg_featmap')
    return MODELS.build(dict(type='ImageClassifier', backbone=backbone, head=dict(HEAD)))


def test_the_plain_classifier_has_the_same_weights_and_scores(teacher):
    model, plain = build(teacher.path).eval(), plain_model().eval()
    missing, unexpected = plain.load_state_dict(model.state_dict(), strict=False)
    assert not missing and {name.split('.')[0] for name in unexpected} == {'to_teacher'}
    images, _ = batch(40)
    torch.testing.assert_close(plain(images), model(images))


def test_images_without_a_label_have_the_losses_of_the_features_alone(teacher):
    model = build(teacher.path, data_preprocessor=PIXELS | dict(num_classes=3, to_onehot=True))
    images, samples = batch(count=8)
    picture = np.zeros((64, 64, 3), np.uint8)
    for sample in samples[4:]:
        unknown = OneHotLabel(classes=3, known=False).transform(dict(img=picture, gt_label=90))
        sample.set_gt_score(torch.from_numpy(unknown['gt_score']))
    known = OneHotLabel(classes=3).transform(dict(img=picture, gt_label=2))
    assert known['gt_score'].tolist() == [0, 0, 1]

    def losses(part):
        torch.manual_seed(0)
        return model.eval().loss(images[part], samples[part])

    whole, first, second = losses(slice(8)), losses(slice(4)), losses(slice(4, 8))
    # A batch without any label is no division by zero.
    assert second['loss_label'] == second['loss_probabilities'] == 0 and second['loss_pooled'] > 0
    for name in ('loss_label', 'loss_probabilities'):
        torch.testing.assert_close(whole[name], first[name], rtol=1e-4, atol=1e-5)


def test_the_config_trains_and_validates(teacher, image_folders):
    config = read_config(CONFIG)
    init_default_scope('mmpretrain')
    model = MODELS.build(config.model | dict(teacher=teacher.path, init_cfg=None, sizes=[32]))
    preprocessor = dict(config.data_preprocessor, type='ClsDataPreprocessor')
    model.data_preprocessor = MODELS.build(preprocessor)
    options = dict(data_root=str(image_folders), extensions=('.png',), teacher=teacher.path)
    options |= dict(views=1, teacher_size=64, amp=False)
    samples = []
    for dataset in config.train_dataloader.dataset.datasets:
        sample = DATASETS.build(dataset | options)[0]
        samples.append(sample | dict(inputs=F.interpolate(sample['inputs'][None], 128)[0]))
    batch = model.data_preprocessor(pseudo_collate(samples), training=True)
    assert all(value.isfinite() for value in model(**batch, mode='loss').values())
    resize = dict(type='Resize', scale=(128, 128))
    pipeline = Compose([resize, *config.val_dataloader.dataset.pipeline])
    validated = pipeline(dict(img=np.zeros((128, 128, 3), np.uint8), gt_label=9))
    (found,) = model.eval().val_step(pseudo_collate([validated]))
    assert found.pred_score.shape == (10,) and found.gt_label == 9


def test_each_size_is_drawn_and_the_crops_have_the_largest(teacher):
    model, seen = build(teacher.path, sizes=[16, 40, 24]), set()
    model.backbone.register_forward_pre_hook(lambda module, inputs: seen.add(inputs[0].shape[-1]))
    images, samples = batch()
    assert model.batch(images, samples)['images'].shape == (4, 3, 40, 40)
    for _ in range(60):  # one of three is missing with a probability of 3 * (2 / 3) ** 60 < 1e-9
        model.loss(images, samples)
    assert seen == {16, 24, 40}


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        (dict(teacher_classes=[1, 2]), 'teacher_classes must be 3 indices'),
        (dict(sizes=[32, 0]), 'sizes must be'),
        (dict(cutmix=1.5), 'cutmix must be'),
        (dict(teacher='other.pth'), 'does not fit'),
    ],
)
def test_bad_arguments_are_named(teacher, tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    torch.save(dict(a=torch.ones(2)), 'other.pth')
    with pytest.raises((ValueError, CheckpointError), match=message):
        build(teacher.path, **options)
