"""Hard distillation: what the teacher sees, and what the student learns from it."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tiny import COLUMN, max_difference, randomise

pytest.importorskip('mmpretrain')
timm = pytest.importorskip('timm')

from mmengine.registry import MODELS, init_default_scope  # noqa: E402
from mmpretrain.models.heads import DeiTClsHead  # noqa: E402
from mmpretrain.structures import DataSample  # noqa: E402

from cpvt_backbones.backbones import announce_sizes  # noqa: E402
from cpvt_backbones.engine.distillation import DistillationHead  # noqa: E402

CLASSES = 3
STUDENT_PIXELS = dict(mean=[120.0, 110.0, 100.0], std=[60.0, 55.0, 50.0], to_rgb=True)
TEACHER_PIXELS = dict(mean=[127.5, 100.0, 90.0], std=[127.5, 70.0, 40.0], to_rgb=True)
TOKENS = dict(with_dist_token=True, out_type='cls_token')
POOLED = dict(with_cls_token=False, out_type='avg_featmap')


@pytest.fixture(autouse=True)
def _scope():
    init_default_scope('mmpretrain')


def backbone(**kwargs):
    return dict(type='CPVT', **{'arch': COLUMN, 'img_size': 32, 'patch_size': 8, **kwargs})


def mm_classifier(**kwargs):
    head = dict(type='LinearClsHead', num_classes=CLASSES, in_channels=24)
    return dict(type='ImageClassifier', backbone=backbone(**POOLED), head=head, **kwargs)


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """Weights of a tiny teacher of each package."""
    init_default_scope('mmpretrain')
    path = tmp_path_factory.mktemp('teachers')
    torch.manual_seed(1)
    model = randomise(MODELS.build(mm_classifier()))
    model.head.fc.weight.data.normal_()
    torch.save(dict(state_dict=model.state_dict()), path / 'mm.pth')
    torch.save(
        timm.create_model('test_resnet', num_classes=CLASSES).state_dict(), path / 'timm.pth'
    )
    return path


@pytest.fixture
def mm_teacher(folder):
    init_cfg = dict(type='Pretrained', checkpoint=str(folder / 'mm.pth'))
    return mm_classifier(init_cfg=init_cfg, data_preprocessor=dict(TEACHER_PIXELS))


@pytest.fixture
def timm_teacher(folder):
    name = dict(model_name='test_resnet', num_classes=CLASSES)
    return dict(type='TimmClassifier', **name, checkpoint_path=str(folder / 'timm.pth'))


def student(
    teacher, *, tokens=TOKENS, head=None, pixels=STUDENT_PIXELS, num_classes=CLASSES, **kwargs
):
    head = dict(type='DistillationHead', num_classes=num_classes, in_channels=24) | (head or {})
    parts = dict(backbone=backbone(**tokens), head=head, teacher=teacher, **kwargs)
    pixels = dict(pixels) if pixels else None
    model = MODELS.build(dict(type='HardDistillation', data_preprocessor=pixels, **parts))
    model.backbone = randomise(model.backbone)
    for layer in (model.head.layers.head, model.head.layers.head_dist):
        torch.nn.init.normal_(layer.weight, std=0.2)  # mmengine starts it at 0
    return model


def raw_pixels(batch=4, size=32):
    return torch.randint(0, 256, (batch, 3, size, size), dtype=torch.uint8)


def samples(labels):
    return [DataSample().set_gt_label(label) for label in labels]


def prepared(model, pixels, labels=None, training=False):
    """Images and samples as the student's own data preprocessor leaves them."""
    labels = [i % 2 for i in range(len(pixels))] if labels is None else labels
    data = model.data_preprocessor(dict(inputs=pixels, data_samples=samples(labels)), training)
    return data['inputs'], data['data_samples']


def seen_by(network):
    """What a network is given from now on."""
    seen = []
    network.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    return seen


# -- what the teacher sees
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize('teacher_rgb', [True, False])
@pytest.mark.parametrize('student_rgb', [True, False])
def test_the_teacher_sees_the_pixels_normalised_its_own_way(mm_teacher, student_rgb, teacher_rgb):
    mm_teacher['data_preprocessor']['to_rgb'] = teacher_rgb
    model = student(mm_teacher, pixels={**STUDENT_PIXELS, 'to_rgb': student_rgb})
    pixels = raw_pixels()
    seen = seen_by(model.teacher)
    model.loss(*prepared(model, pixels))
    options = {**TEACHER_PIXELS, 'to_rgb': teacher_rgb}
    mean, std = (torch.tensor(options[key])[:, None, None] for key in ('mean', 'std'))
    wanted = ((pixels.flip(1) if teacher_rgb else pixels) - mean) / std
    assert len(seen) == 1
    assert max_difference(seen[0], wanted) <= 1e-5


@pytest.mark.parametrize('own', [False, True], ids=["timm's values", 'a data preprocessor'])
def test_a_timm_model_says_how_it_normalises_if_the_config_does_not(timm_teacher, own):
    options = dict(data_preprocessor=dict(TEACHER_PIXELS)) if own else {}
    model = student({**timm_teacher, **options})
    pixels = raw_pixels()
    values = TEACHER_PIXELS if own else model.teacher.model.pretrained_cfg
    seen = seen_by(model.teacher.model)
    model.loss(*prepared(model, pixels))
    mean, std = (torch.tensor(values[key])[:, None, None] for key in ('mean', 'std'))
    scale = 1 if own else 255
    assert max_difference(seen[0], (pixels.flip(1) / scale - mean) / std) <= 1e-5


@pytest.mark.parametrize('size', [None, 20])
def test_the_teacher_sees_no_padding(mm_teacher, size):
    """Each image of a padded batch gets the teacher's label that it has alone."""
    model = student(mm_teacher, teacher_size=size)
    batch = torch.randn(3, 3, 40, 33)
    sizes = [(40, 20), (16, 33), (40, 20)]
    alone = [image[None, :, :h, :w] for image, (h, w) in zip(batch, sizes, strict=True)]
    wanted = torch.cat([model.teacher_labels(image) for image in alone])
    scores = torch.cat([model._teacher_scores(image) for image in alone])
    assert not torch.allclose(model._teacher_scores(batch), scores, atol=1e-3)
    announce_sizes(batch, sizes)
    assert torch.equal(model.teacher_labels(batch), wanted)
    seen = seen_by(model.teacher)
    model.loss(batch, samples([0, 1, 2]))
    side = (20, 20)
    assert [tuple(one.shape[2:]) for one in seen] == ([side] * 2 if size else sizes[:2])


def test_teacher_size(timm_teacher):
    model, same = student(timm_teacher, teacher_size=20), student(timm_teacher)
    pixels = torch.full((2, 3, 32, 32), 200, dtype=torch.uint8)
    seen, unchanged = seen_by(model.teacher.model), seen_by(same.teacher.model)
    model.loss(*prepared(model, pixels))
    same.loss(*prepared(same, pixels))
    assert seen[0].shape == (2, 3, 20, 20)
    # Resizing leaves a plain picture plain.
    assert max_difference(seen[0], unchanged[0][..., :20, :20]) <= 1e-4


@pytest.mark.parametrize('who', ['data_preprocessor', 'teacher.data_preprocessor'])
def test_normalisation_must_be_known(mm_teacher, who):
    if who == 'data_preprocessor':
        model = student(mm_teacher, pixels=None)
    else:
        mm_teacher.pop('data_preprocessor')
        model = student(mm_teacher)
    wanted = rf'^{who} must have mean and std, got mean=None, std=None'
    with pytest.raises(ValueError, match=wanted):
        model.loss(torch.zeros(2, 3, 32, 32), samples([0, 1]))


# -- what the teacher is
# -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize('kind', ['mm', 'timm'])
def test_the_teacher_stays_as_it_is(kind, request):
    model = student(request.getfixturevalue(f'{kind}_teacher'))
    before = set(model.state_dict()), {id(p) for p in model.parameters()}
    losses = model.train().loss(*prepared(model, raw_pixels()))
    sum(losses.values()).backward()
    model.train()
    networks = dict(model.teacher.named_children())
    networks.pop('data_preprocessor', None)
    modules = [module for network in networks.values() for module in network.modules()]
    assert modules and not any(module.training for module in modules)
    assert not any(p.requires_grad or p.grad is not None for p in model.teacher.parameters())
    assert (set(model.state_dict()), {id(p) for p in model.parameters()}) == before
    assert not {id(p) for p in model.parameters()} & {id(p) for p in model.teacher.parameters()}
    assert not any(module is model.teacher for module in model.modules())


def test_an_mm_teacher_has_the_weights_of_the_file(mm_teacher, folder):
    weights = torch.load(folder / 'mm.pth')['state_dict']
    model = student(mm_teacher)
    model.init_weights()
    model.loss(*prepared(model, raw_pixels()))
    got = model.teacher.state_dict()
    assert {key for key in got if 'data_preprocessor' not in key} == weights.keys()
    assert all(torch.equal(got[key], weights[key]) for key in weights)
    reference = MODELS.build(mm_classifier()).eval()
    reference.load_state_dict(weights)
    images, _ = prepared(model, raw_pixels(16))
    scores = reference(model._for_teacher(images))
    assert torch.equal(model.teacher_labels(images), scores.argmax(1))
    assert len(set(scores.argmax(1).tolist())) > 1


TIMM = dict(type='TimmClassifier', model_name='test_resnet', init_cfg=None)


@pytest.mark.parametrize(
    'change',
    [
        dict(init_cfg=None),
        dict(init_cfg=[dict(type='Constant', layer='Linear', val=0)]),
        TIMM,
        dict(TIMM, pretrained=False, checkpoint_path=''),
    ],
)
def test_a_teacher_without_weights(mm_teacher, change):
    wanted = r'teacher must come with weights: pretrained=True or checkpoint_path'
    with pytest.raises(ValueError, match=wanted):
        student({**mm_teacher, **change})


def test_a_checkpoint_that_does_not_fit_the_teacher_is_refused(mm_teacher, tmp_path):
    torch.save({'state_dict': {'backbone.conv1.weight': torch.zeros(1)}}, tmp_path / 'other.pth')
    mm_teacher['init_cfg']['checkpoint'] = str(tmp_path / 'other.pth')
    model = student(mm_teacher)
    with pytest.raises(ValueError, match='teacher.*other.pth'):
        model.teacher  # noqa: B018


def test_classes_must_match(mm_teacher):
    model = student(mm_teacher, num_classes=CLASSES + 1)
    wanted = r'teacher must know the 4 classes of the student, got 3; teacher_classes'
    with pytest.raises(ValueError, match=wanted):
        model.loss(*prepared(model, raw_pixels()))


def test_teacher_classes_selects(mm_teacher):
    order = [2, 0]
    all_of_them = student(mm_teacher)
    model = student(mm_teacher, num_classes=2, teacher_classes=order)
    images, labels = prepared(model, raw_pixels(16))
    scores = all_of_them.teacher(model._for_teacher(images))
    wanted = scores[:, order].argmax(1)
    assert torch.equal(model.teacher_labels(images), wanted)
    assert wanted.unique().tolist() == [0, 1]
    assert torch.isfinite(sum(model.loss(images, labels).values()))


# -- what the student learns
# -------------------------------------------------------------------------------------------


def scores_by_hand(model, images):
    """Logits of both heads, from the tokens."""
    features = model.backbone(images)[-1]
    first, second = features if isinstance(features, tuple) else (features, features)
    layers = model.head.layers
    return layers.head(first), layers.head_dist(second)


@pytest.mark.parametrize('weight', [0, 0.3, 1.0])
@pytest.mark.parametrize('tokens', [TOKENS, POOLED], ids=['tokens', 'pooled'])
@pytest.mark.parametrize('batch', [1, 2, 3])
def test_the_loss_by_hand(mm_teacher, tokens, batch, weight):
    """Batches of 2 and 3 pooled vectors are not taken for pairs and triples of tokens."""
    model = student(mm_teacher, tokens=tokens, distillation_weight=weight).train()
    images, _ = prepared(model, raw_pixels(batch))
    labels = [2, 0, 1][:batch]
    losses = model.loss(images, samples(labels))
    scores = scores_by_hand(model, images)
    with torch.no_grad():
        decided = model.teacher(model._for_teacher(images)).argmax(1)
    on_labels = (1 - weight) * F.cross_entropy(scores[0], torch.tensor(labels)).item()
    on_teacher = weight * F.cross_entropy(scores[1], decided).item()
    assert losses['loss_label'].item() == pytest.approx(on_labels, abs=1e-6)
    assert losses['loss_teacher'].item() == pytest.approx(on_teacher, abs=1e-6)
    total, _ = model.parse_losses(losses)
    assert total.item() == pytest.approx(on_labels + on_teacher, abs=1e-6)


@pytest.mark.parametrize('tokens', [TOKENS, POOLED], ids=['tokens', 'pooled'])
@pytest.mark.parametrize('batch', [1, 2, 3])
def test_predictions_average_both_heads(mm_teacher, tokens, batch):
    model = student(mm_teacher, tokens=tokens).eval()
    images, labels = prepared(model, raw_pixels(batch))
    with torch.no_grad():
        first, second = scores_by_hand(model, images)
        assert max_difference(first, second) > 1e-3
        assert max_difference(model(images, mode='tensor'), (first + second) / 2) <= 1e-6
        results = model(images, labels, mode='predict')
    wanted = ((first + second) / 2).softmax(1)
    assert len(results) == batch
    for result, scores in zip(results, wanted, strict=True):
        assert max_difference(result.pred_score, scores) <= 1e-6
        assert result.pred_label.item() == scores.argmax().item()


def test_mixed_labels(mm_teacher):
    """Mixup gives scores in place of labels; the teacher decides about the mixed images."""
    np.random.seed(0)  # how much is mixed
    torch.manual_seed(0)  # and with what
    augments = dict(augments=dict(type='Mixup', alpha=1.0))
    loss = dict(type='CrossEntropyLoss', use_soft=True)
    pixels_of = {**STUDENT_PIXELS, 'num_classes': CLASSES}
    model = student(mm_teacher, head=dict(loss=loss), pixels=pixels_of, train_cfg=augments).train()
    pixels = raw_pixels()
    images, labels = prepared(model, pixels, labels=[0, 1, 2, 0], training=True)
    targets = torch.stack([label.gt_score for label in labels])
    assert ((targets > 0).sum(1) == 2).any()
    seen = seen_by(model.teacher)
    losses = model.loss(images, labels)
    scores = scores_by_hand(model, images)
    wanted = -(targets * scores[0].log_softmax(1)).sum(1).mean()
    assert losses['loss_label'].item() == pytest.approx(0.5 * wanted.item(), abs=1e-6)
    plain = student(mm_teacher)
    seen_plain = seen_by(plain.teacher)
    plain.loss(*prepared(plain, pixels))
    assert max_difference(seen[0], seen_plain[0]) > 0.1


@pytest.mark.parametrize('built', [False, True])
def test_deepcopy(mm_teacher, built):
    model = student(mm_teacher)
    images, labels = prepared(model, raw_pixels())
    if built:
        model.loss(images, labels)
    twin = copy.deepcopy(model)
    assert twin.teacher is not model.teacher
    wanted, got = model.loss(images, labels), twin.loss(images, labels)
    assert wanted.keys() == got.keys()
    assert all(wanted[name].equal(got[name]) for name in wanted)


@pytest.mark.parametrize('hidden_dim', [None, 5])
@pytest.mark.parametrize('batch', [1, 2, 3])
def test_weights_of_mmpretrains_head_load(hidden_dim, batch):
    theirs = DeiTClsHead(num_classes=CLASSES, in_channels=24, hidden_dim=hidden_dim)
    ours = DistillationHead(num_classes=CLASSES, in_channels=24, hidden_dim=hidden_dim)
    randomise(theirs)
    ours.load_state_dict(theirs.state_dict(), strict=True)
    theirs.eval()
    ours.eval()
    pair = torch.randn(batch, 24), torch.randn(batch, 24)
    assert max_difference(ours((pair,)), theirs((pair,))) <= 1e-6
    pooled = torch.randn(batch, 24)
    assert max_difference(ours((pooled,)), theirs(((pooled, pooled),))) <= 1e-6
