"""The distilled classifier: what its losses are, and that the plain classifier has the same weights."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tiny import COLUMN, max_difference, randomise

pytest.importorskip('mmpretrain')
timm = pytest.importorskip('timm')

from distilled_classifier.model import TEACHER, FeatureDistillation, OneHotLabel  # noqa: E402
from mmengine.dataset import Compose, pseudo_collate  # noqa: E402
from mmengine.registry import MODELS, init_default_scope  # noqa: E402
from mmpretrain.datasets import PackInputs  # noqa: E402
from mmpretrain.structures import DataSample  # noqa: E402

from cpvt_backbones.checkpoints import CheckpointError  # noqa: E402
from cpvt_backbones.engine.launch import read_config  # noqa: E402

CONFIG = Path(__file__).resolve().parents[2] / 'projects/distilled_classifier/configs/cpvt-tiny-gap_imagenette.py'
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
    model = FeatureDistillation(
        backbone=dict(PLAIN, out_type='featmap', out_indices=(1, 3)),
        neck=dict(type='GlobalAveragePooling'),
        head=dict(HEAD),
        **dict(teacher=path, teacher_classes=CHOSEN, teacher_size=64, sizes=[32], data_preprocessor=dict(PIXELS))
        | options,
    )
    model.backbone = randomise(model.backbone)
    return model


def batch(size=64):
    torch.manual_seed(2)
    images = torch.randn(4, 3, size, size)
    return images, [DataSample().set_gt_label(k % 3).set_gt_score(F.one_hot(torch.tensor(k % 3), 3)) for k in range(4)]


def test_the_targets_are_the_teachers_own_features(teacher):
    model = build(teacher.path)
    images, _ = batch()
    middle, pooled, probabilities = model.targets(images)
    mean, std = (torch.tensor(PIXELS[key]).view(3, 1, 1) for key in ('mean', 'std'))
    inputs = (images * std + mean) / 127.5 - 1
    maps = []
    hook = teacher.blocks[4].register_forward_hook(lambda module, inputs, output: maps.append(output))
    with torch.no_grad():
        expected = [teacher.forward_features(inputs).mean((2, 3)), teacher(inputs)[:, CHOSEN].softmax(1)]
    hook.remove()
    assert middle.shape == (4, 112, 4, 4)
    for found, wanted in zip((middle, pooled, probabilities), [maps[0], *expected], strict=True):
        assert max_difference(found, wanted) <= 1e-4 * wanted.abs().max()


def test_the_losses_reach_the_student_and_not_the_teacher(teacher):
    model = build(teacher.path)
    images, samples = batch()
    losses = model.loss(images, samples)
    assert list(losses) == ['loss_label', 'loss_probabilities', 'loss_pooled', 'loss_map']
    # Without a teacher the loss of the labels is that of the plain classifier, on the resized images.
    small = F.interpolate(images, 32, mode='bilinear', antialias=True)
    plain = plain_model()
    assert not plain.load_state_dict(model.state_dict(), strict=False).missing_keys
    labels = [DataSample().set_gt_label(sample.gt_label) for sample in samples]
    torch.testing.assert_close(losses['loss_label'], plain.train().loss(small, labels)['loss'])
    sum(losses.values()).backward()
    assert all(value.grad is not None and value.grad.abs().sum() > 0 for value in model.parameters())
    assert not any('teacher' in name and 'to_teacher' not in name for name in model.state_dict())


def plain_model():
    return MODELS.build(dict(type='ImageClassifier', backbone=dict(PLAIN, out_type='avg_featmap'), head=dict(HEAD)))


def test_the_plain_classifier_has_the_same_weights_and_scores(teacher):
    model, plain = build(teacher.path).eval(), plain_model().eval()
    missing, unexpected = plain.load_state_dict(model.state_dict(), strict=False)
    assert not missing and {name.split('.')[0] for name in unexpected} == {'to_teacher'}
    images, _ = batch(40)
    torch.testing.assert_close(plain(images), model(images))


def test_images_without_a_label_have_the_losses_of_the_features_alone(teacher):
    model = build(teacher.path, data_preprocessor=PIXELS | dict(num_classes=3, to_onehot=True))
    images, samples = batch()
    expected = model.loss(images, samples)
    pack, known, unknown = PackInputs(), OneHotLabel(classes=3), OneHotLabel(classes=3, known=False)
    picture = np.zeros((64, 64, 3), np.uint8)
    labelled = [known.transform(dict(img=picture, gt_label=k % 3)) for k in range(4)]
    others = [unknown.transform(dict(img=picture, gt_label=90 + k)) for k in range(4)]
    packed = [pack.transform(results)['data_samples'] for results in (*labelled, *others)]
    data = model.data_preprocessor(dict(inputs=torch.randn(8, 3, 64, 64), data_samples=packed), training=True)
    images = torch.cat((images, torch.randn_like(images)))
    found = model.loss(images, data['data_samples'])
    for name in ('loss_label', 'loss_probabilities'):
        torch.testing.assert_close(found[name], expected[name])
    assert found['loss_pooled'] != expected['loss_pooled']
    # A batch without any label is no division by zero.
    assert model.loss(images[4:], data['data_samples'][4:])['loss_label'] == 0


def test_the_config_trains_and_validates(teacher):
    config = read_config(CONFIG)
    init_default_scope('mmpretrain')
    options = dict(teacher=teacher.path, init_cfg=None, teacher_size=64, data_preprocessor=config.data_preprocessor)
    model = MODELS.build(config.model | options)
    labelled, others = config.train_dataloader.dataset.datasets
    pipelines = labelled.dataset.pipeline, others.pipeline, config.val_dataloader.dataset.pipeline
    images = [dict(img=np.zeros((128, 128, 3), np.uint8), gt_label=label) for label in (9, 99, 9)]
    samples = [Compose(pipeline)(image) for pipeline, image in zip(pipelines, images, strict=True)]
    batch = model.data_preprocessor(pseudo_collate(samples[:2]), training=True)
    assert all(value.isfinite() for value in model(**batch, mode='loss').values())
    (found,) = model.eval().val_step(pseudo_collate(samples[2:]))
    assert found.pred_score.shape == (10,) and found.gt_label == 9


def test_a_mixed_batch_has_mixed_images_and_mixed_labels(teacher, monkeypatch):
    model, seen = build(teacher.path, mixup=1.0), []
    targets = torch.ones(4, 112, 4, 4), torch.ones(4, 1280), torch.full((4, 3), 1 / 3)
    monkeypatch.setattr(model, 'targets', lambda images: seen.append(images) or targets)
    images, samples = batch()
    found = model.loss(images, samples)['loss_label']
    share = ((seen[0] - images.flip(0)) / (images - images.flip(0))).median()
    assert 0 <= share <= 1
    torch.testing.assert_close(seen[0], share * images + (1 - share) * images.flip(0), rtol=0, atol=1e-5)
    scores = model.head(model.neck(model.backbone(F.interpolate(seen[0], 32, mode='bilinear', antialias=True))))
    labels = torch.stack([sample.gt_score for sample in samples])
    expected = F.cross_entropy(scores, share * labels + (1 - share) * labels.flip(0))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_each_size_is_drawn(teacher, monkeypatch):
    model, seen = build(teacher.path, sizes=[16, 24, 40]), set()
    model.backbone.register_forward_pre_hook(lambda module, inputs: seen.add(inputs[0].shape[-1]))
    targets = torch.ones(4, 112, 4, 4), torch.ones(4, 1280), torch.ones(4, 3)
    monkeypatch.setattr(model, 'targets', lambda images: targets)
    images, samples = batch()
    for _ in range(60):  # one of three is missing with a probability of 3 * (2 / 3) ** 60 < 1e-9
        model.loss(images, samples)
    assert seen == {16, 24, 40}


def test_what_is_wrong_is_named(teacher, tmp_path):
    with pytest.raises(ValueError, match='teacher_classes must be 3 indices'):
        build(teacher.path, teacher_classes=[1, 2])
    with pytest.raises(ValueError, match='sizes must be'):
        build(teacher.path, sizes=[32, 0])
    with pytest.raises(ValueError, match='mixup must be'):
        build(teacher.path, mixup=1.5)
    torch.save(dict(a=torch.ones(2)), tmp_path / 'other.pth')
    with pytest.raises(CheckpointError, match='does not fit'):
        build(str(tmp_path / 'other.pth'))
