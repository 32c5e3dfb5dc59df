"""The training of the shipped classifier: its recipe, stored targets and losses."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tiny import COLUMN, max_difference, randomise

pytest.importorskip('mmpretrain')
timm = pytest.importorskip('timm')

from mmengine.registry import MODELS, init_default_scope  # noqa: E402
from mmpretrain.structures import DataSample  # noqa: E402
from shipped_weights import views  # noqa: E402
from shipped_weights.model import FeatureDistillation  # noqa: E402
from shipped_weights.views import TEACHER, StoredViews  # noqa: E402

from cpvt_backbones.engine import launch  # noqa: E402
from cpvt_backbones.toolboxes import read_config  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / 'projects/shipped_weights/configs/cpvt-tiny-gap_distilled_imagenette.py'
PLAIN_CONFIG = ROOT / 'configs/imagenette/cpvt-tiny-gap_imagenette.py'
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


@pytest.fixture
def build(teacher):
    """Build a small model; the same random numbers follow."""
    init_default_scope('mmpretrain')

    def build(**options):
        torch.manual_seed(0)
        given = dict(teacher=teacher.path, teacher_classes=CHOSEN, sizes=[32])
        given['backbone'] = dict(PLAIN, out_type='featmap', out_indices=(1, 3))
        given |= dict(neck=dict(type='GlobalAveragePooling'), head=dict(HEAD))
        model = FeatureDistillation(**{**given, 'data_preprocessor': dict(PIXELS), **options})
        model.backbone = randomise(model.backbone)
        return model

    return build


def batch(count=4):
    """Images of 64 px, their draws, labels and targets."""
    torch.manual_seed(2)
    samples = []
    for k in range(count):
        sample = DataSample().set_gt_label(k % 3).set_gt_score(F.one_hot(torch.tensor(k % 3), 3))
        sample.set_field(torch.rand(5), 'draw')
        sample.set_field(torch.randn(112, 7, 7), 'target_map')
        sample.set_field(torch.randn(1280).relu(), 'target_pooled')
        samples.append(sample)
    return torch.randn(count, 3, 64, 64), samples


@pytest.mark.full
def test_the_recipe_trains_validates_and_gives_the_plain_classifier(
    teacher, image_folders, tmp_path
):
    cfg = read_config(CONFIG, work_dir=tmp_path / 'work')
    cfg.model.update(teacher=teacher.path, init_cfg=None, sizes=[32], teacher_classes=[0, 217])
    labelled, others = cfg.train_dataloader.dataset.datasets
    others.pipeline[1].scale = (36, 36)
    for data in (labelled, others, cfg.val_dataloader.dataset):
        data.update(data_root=str(image_folders), extensions=('.png',))
    for data in (labelled, others):
        data.update(teacher=teacher.path, views=1, teacher_size=32)
        data.pipeline[0].classes = 2
    plain = read_config(PLAIN_CONFIG)
    for part in (cfg.data_preprocessor, cfg.model.head, plain.model.head):
        part.num_classes = 2
    cfg.train_dataloader.batch_size = 8
    cfg.train_cfg.max_epochs = 1
    cfg.experiment_name = 'distillation_of_features'
    runner = launch.train(cfg)
    assert runner.iter == 4  # of 16 images with a label and 16 without
    assert 0 <= runner.message_hub.get_scalar('val/accuracy/top1').current() <= 100
    model, plain = runner.model.eval(), MODELS.build(plain.model).eval()
    missing, unexpected = plain.load_state_dict(model.state_dict(), strict=False)
    assert not missing and {name.split('.')[0] for name in unexpected} == {'to_teacher'}
    images = torch.randn(2, 3, 40, 56)
    torch.testing.assert_close(plain(images), model(images))


@pytest.mark.full
def test_the_targets_are_the_teachers_own_features_and_computed_once(
    teacher, image_folders, monkeypatch
):
    monkeypatch.setattr(views, 'PART', 5)
    init_default_scope('mmpretrain')
    pack = dict(type='PackInputs', algorithm_keys=('draw', 'target_map', 'target_pooled'))
    options = dict(data_root=str(image_folders), data_prefix='train', teacher=teacher.path, views=2)
    options['pipeline'] = [dict(type='OneHotLabel', classes=3), pack]
    data = StoredViews(teacher_size=64, **options)
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
    monkeypatch.setattr(views, 'features', lambda *args: pytest.fail('computed again'))
    again = StoredViews(teacher_size=64, **options)[31]['data_samples']
    assert torch.equal(sample.target_map, again.target_map)
    with pytest.raises(pytest.fail.Exception, match='computed again'):
        StoredViews(teacher_size=80, **options)


def test_the_losses_reach_the_student_and_not_the_teacher(teacher, build):
    model = build()
    images, samples = batch()
    prepared = model.batch(images, samples)
    model.batch = lambda *args: prepared
    losses = model.loss(images, samples)
    # The loss of the labels is that of the plain classifier, on the same crops.
    plain = dict(type='ImageClassifier', backbone=dict(PLAIN, out_type='avg_featmap'), head=HEAD)
    plain = MODELS.build(plain).train()
    assert not plain.load_state_dict(model.state_dict(), strict=False).missing_keys
    labels = [DataSample().set_gt_label(sample.gt_label) for sample in samples]
    expected = plain.loss(prepared['images'], labels)['loss']
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
    # Images without a label have the losses of the features alone; no division by zero.
    prepared['labels'] = torch.zeros(4, 3)
    losses = model.loss(images, samples)
    assert losses['loss_label'] == losses['loss_probabilities'] == 0 < losses['loss_pooled']
