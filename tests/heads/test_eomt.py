"""EoMT in mmdet and mmsegmentation against its formula: logits, losses, whole predictions."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from eomt_peers import AuthorsEoMT, instances_of, of_picture, on_square, published, segments_of
from mmengine.config import ConfigDict
from mmengine.optim import build_optim_wrapper
from mmengine.structures import InstanceData, PixelData
from tiny import EOMT_TRUNK, build, eomt, eomt_segmentor, only, randomise

from benchmarks.peer_models import scaled
from cpvt_backbones.backbones import announce_sizes
from cpvt_backbones.checkpoints import CheckpointError, load_weights
from cpvt_backbones.checkpoints.mmengine_loader import check_loaded
from cpvt_backbones.errors import InputError
from cpvt_backbones.heads import HeadFirstPolyLR, MaskAnnealingHook
from cpvt_backbones.heads.annealing import default_steps

CLASSES = 5
NAMES = ('network.', '', 'transformers')
BUILDERS = {'detector': eomt, 'segmentor': eomt_segmentor}


def head_of(model):
    return model.panoptic_head if hasattr(model, 'panoptic_head') else model.decode_head


def peer_of(seed=0):
    torch.manual_seed(seed)
    peer = scaled(AuthorsEoMT(CLASSES)).eval()
    with torch.no_grad():  # masks and classes of both signs, and some that are sure
        peer.class_head.weight.mul_(3)
    return peer


def pair(kind, tmp_path, names='network.', **changes):
    """The formula and our model with its weights, through a file."""
    peer = peer_of()
    file = tmp_path / 'published.pth'
    torch.save(published(peer, names), file)
    model = build(BUILDERS[kind](**changes)).eval()
    load_weights(model, file)
    return peer, model


def normalised(peer, images):
    return (images - peer.encoder.pixel_mean) / peer.encoder.pixel_std


@pytest.mark.parametrize('kind', BUILDERS)
@pytest.mark.parametrize('names', NAMES)
def test_published_weights_give_the_published_logits(kind, names, tmp_path):
    peer, model = pair(kind, tmp_path, names)
    images = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        ((masks, classes),) = peer(images)
        found = model(normalised(peer, images), mode='tensor')
    for got, wanted in zip(found, ([classes], [masks]), strict=True):
        assert len(got) == 1
        torch.testing.assert_close(got[0], wanted[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('kind', BUILDERS)
def test_masked_attention_and_the_predictions_before_the_last_blocks(kind, tmp_path):
    """In training with all masks, and in a prediction before the annealing has ended."""
    peer, model = pair(kind, tmp_path)
    head_of(model).attn_mask_probs.fill_(1)
    images = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        wanted = peer(images, masked=True)
        plain = peer(images)
        for mode in (True, False):
            found = head_of(model.train(mode)).run(model.backbone, normalised(peer, images))
            assert len(found) == len(wanted) == 3
            for got, right in zip(found, wanted, strict=True):
                torch.testing.assert_close(got[0], right[0], rtol=1e-5, atol=1e-5)
                torch.testing.assert_close(got[1], right[1], rtol=1e-5, atol=1e-5)
    assert (wanted[-1][0] - plain[-1][0]).abs().max() > 1e-3  # masks matter


def test_queries_are_freed_one_by_one(tmp_path):
    _, model = pair('detector', tmp_path)
    head = head_of(model.train())
    masks, grid = torch.full((200, 6, 16, 16), -1.0), (4, 4)
    head.attn_mask_probs.copy_(torch.tensor([0.25, 0.0]))
    allowed = head.limit(0, masks, grid)
    free = allowed.all(2)
    assert torch.equal(free, allowed.any(2))  # all patches or none of these
    assert 0.65 < free.float().mean() < 0.85  # 1200 draws with 0.75: six deviations are 0.075
    assert head.limit(1, masks, grid) is None


@pytest.mark.parametrize('names', NAMES)
def test_other_weights_are_refused(names, tmp_path):
    weights = published(peer_of(), names)
    for fault, message in (
        (lambda key: 'mask_head' in key, 'it lacks 6 of'),
        (lambda key: key.endswith(('blocks.3.norm1.weight', 'layers.3.norm1.weight')), 'lacks'),
    ):
        file = tmp_path / 'part.pth'
        torch.save({key: value for key, value in weights.items() if not fault(key)}, file)
        with pytest.raises(CheckpointError, match=message):
            load_weights(build(eomt()), file)
    file = tmp_path / 'whole.pth'
    torch.save(weights, file)
    with pytest.raises(CheckpointError, match='other shapes'):
        load_weights(build(eomt(stuff=4)), file)


def test_differences_to_dinov3_are_refused_in_one_line(tmp_path):
    weights = published(peer_of(), 'network.')
    old, new = 'backbone.reg_token', 'backbone.patch_embed.register_tokens'
    weights = {key.replace(old, new): value for key, value in weights.items()}
    torch.save(weights, tmp_path / 'delta.pth')
    with pytest.raises(CheckpointError, match='differences from the weights of DINOv3') as error:
        load_weights(build(eomt()), tmp_path / 'delta.pth')
    assert '\n' not in str(error.value)


# -- whole predictions
# --------------------------------------------------------------------------------------------------


def det_sample(size, original):
    from mmdet.structures import DetDataSample

    return DetDataSample(metainfo=dict(img_shape=size, ori_shape=original, scale_factor=(1.0, 1.0)))


@pytest.mark.parametrize('size', [(64, 40), (33, 64), (64, 64)])
def test_segments_on_the_black_square_are_the_authors(size, tmp_path):
    peer, model = pair('detector', tmp_path, **{'test_cfg.square': 64})
    with torch.no_grad():
        peer.q.weight.mul_(3)
        peer.class_head.bias.zero_()
    torch.save(published(peer, 'network.'), tmp_path / 'changed.pth')
    load_weights(model, tmp_path / 'changed.pth')
    original = (size[0] + 13, size[1] + 9)
    image = (torch.rand(1, 3, *size) * 255).round()
    data = dict(inputs=[image[0].flip(0).byte()], data_samples=[det_sample(size, original)])
    with torch.no_grad():
        ((masks, classes),) = peer(on_square(image[0] / 255))
        (found,) = model.test_step(data)
    masks = of_picture(masks, size, original)
    wanted = segments_of(masks, classes[0], things=3)
    panoptic = found.pred_panoptic_seg.sem_seg[0]
    none = panoptic == CLASSES
    assert torch.equal(none, wanted[0] < 0)
    assert (~none).any()
    labels = torch.where(none, -1, panoptic % 1000)
    assert torch.equal(labels.long(), wanted[1])
    # Same segments: each of ours is one of the formula's.
    pairs = torch.stack((panoptic.flatten().long(), wanted[0].flatten())).unique(dim=1)
    things = (wanted[1].flatten()[(panoptic.flatten()[:, None] == pairs[0]).int().argmax(0)]) < 3
    assert len(pairs[0][things].unique()) == len(pairs[1][things].unique()) == int(things.sum())

    expected = sorted(
        (label, score, int(mask.sum()))
        for label, score, mask in instances_of(masks, classes[0], things=3, count=10)
    )
    instances = found.pred_instances
    got = sorted(
        (int(label), float(score), int(mask.sum()))
        for label, score, mask in zip(
            instances.labels, instances.scores, instances.masks, strict=True
        )
        if mask.any()
    )
    assert [(a, c) for a, _, c in got] == [(a, c) for a, _, c in expected]
    torch.testing.assert_close([b for _, b, _ in got], [b for _, b, _ in expected])


def test_without_the_square_padding_is_no_part_of_an_image(tmp_path):
    _, model = pair('detector', tmp_path)
    images = [torch.randint(0, 256, (3, *size), dtype=torch.uint8) for size in ((50, 61), (64, 33))]
    sizes = [tuple(image.shape[1:]) for image in images]
    with torch.no_grad():
        alone = [
            model.test_step(dict(inputs=[image], data_samples=[det_sample(size, size)]))[0]
            for image, size in zip(images, sizes, strict=True)
        ]
        data = model.data_preprocessor(
            dict(inputs=images, data_samples=[det_sample(size, size) for size in sizes])
        )
        announce_sizes(data['inputs'], sizes)
        together = model.predict(data['inputs'], data['data_samples'])
    for one, other in zip(alone, together, strict=True):
        assert torch.equal(one.pred_panoptic_seg.sem_seg, other.pred_panoptic_seg.sem_seg)
        assert len(one.pred_instances) == len(other.pred_instances)
        torch.testing.assert_close(one.pred_instances.scores, other.pred_instances.scores)
        assert torch.equal(one.pred_instances.masks, other.pred_instances.masks)


@pytest.mark.parametrize('size', [(64, 150), (131, 64), (64, 64), (64, 65)])
def test_class_maps_in_windows_are_the_authors(size, tmp_path):
    changes = {'test_cfg': dict(mode='slide', crop_size=(64, 64))}
    peer, model = pair('segmentor', tmp_path, **changes)
    images = torch.rand(1, 3, *size)
    longest = max(size)
    count = math.ceil(longest / 64)
    overlap = (count * 64 - longest) / (count - 1) if count > 1 else 0
    total, seen = torch.zeros(1, CLASSES, *size), torch.zeros(size)
    with torch.no_grad():
        for index in range(count):
            start = int(index * (64 - overlap))
            window = (slice(start, start + 64), slice(None))[:: 1 if size[0] > 64 else -1]
            ((masks, classes),) = peer(images[(..., *window)])
            masks = F.interpolate(masks, (64, 64), mode='bilinear').sigmoid()
            scores = torch.einsum('bqhw,bqc->bchw', masks, classes.softmax(2)[..., :-1])
            total[(..., *window)] += scores
            seen[window] += 1
        meta = dict(img_shape=size, ori_shape=size, pad_shape=size, padding_size=[0, 0, 0, 0])
        found = model.inference(normalised(peer, images), [meta])
    torch.testing.assert_close(found, total / seen, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('size', [(50, 70), (1, 1), (16, 200)])
def test_any_size_in_one_piece(size):
    for kind, make in BUILDERS.items():
        model = randomise(build(make())).eval()
        if kind == 'segmentor':
            with torch.no_grad():
                (found,) = model.predict(torch.rand(1, 3, *size))
            assert found.seg_logits.data.shape == (5, *size)
            continue
        with torch.no_grad():
            (found,) = model.predict(torch.rand(1, 3, *size), [det_sample(size, size)])
        assert found.pred_panoptic_seg.sem_seg.shape == (1, *size)
        assert found.pred_instances.masks.shape[1:] == size


@pytest.mark.parametrize(('patch', 'steps', 'stride'), [(8, None, 4), (16, 0, 16), (16, 1, 8)])
def test_strides(patch, steps, stride):
    trunk = {**EOMT_TRUNK, 'patch_size': patch, 'position': dict(type='PEG')}
    options = {'panoptic_head.patch_size': patch, 'panoptic_head.num_upscale': steps}
    model = build(eomt(trunk, **options)).eval()
    with torch.no_grad():
        masks, _ = model.extract_feat(torch.rand(1, 3, 41, 64))[-1]
    assert masks.shape[2:] == (math.ceil(41 / stride), math.ceil(64 / stride))


# -- training
# --------------------------------------------------------------------------------------------------


def training_batch(kind, objects):
    """Two images with as many objects as given, as the data preprocessors hand them over."""
    torch.manual_seed(0)
    images, samples = torch.rand(2, 3, 48, 64), []
    for count in objects:
        labels = torch.arange(count) % 3
        masks = torch.zeros(count, 48, 64, dtype=torch.uint8)
        for index in range(count):
            masks[index, 8 * index : 8 * index + 8, :40] = 1
        regions = torch.full((1, 48, 64), 255)
        for index in range(count):
            regions[0][masks[index].bool()] = int(labels[index])
        if kind == 'segmentor':
            from mmseg.structures import SegDataSample

            sample = SegDataSample(metainfo=dict(img_shape=(48, 64)))
            sample.gt_sem_seg = PixelData(data=regions)
        else:
            from mmdet.structures import DetDataSample
            from mmdet.structures.mask import BitmapMasks

            sample = DetDataSample(metainfo=dict(img_shape=(48, 64), batch_input_shape=(48, 64)))
            sample.gt_instances = InstanceData(
                labels=labels, masks=BitmapMasks(masks.numpy(), 48, 64)
            )
            sample.gt_sem_seg = PixelData(sem_seg=torch.where(regions < 255, 3, 4))
        samples.append(sample)
    return images, samples


@pytest.mark.parametrize('kind', BUILDERS)
@pytest.mark.parametrize('objects', [(2, 1), (1, 0), (0, 0)])
def test_a_training_step_reaches_every_weight(kind, objects):
    points = dict(num_points=64)
    where = 'train_cfg' if kind == 'detector' else 'decode_head.train_cfg'
    model = randomise(build(BUILDERS[kind](**{where: points}))).train()
    assert head_of(model).num_points == 64
    images, samples = training_batch(kind, objects)
    losses = model.loss(images, samples)
    names = {'loss_cls', 'loss_mask', 'loss_dice'}
    expected = {f'{before}{name}' for before in ('', 'd0.', 'd1.') for name in names}
    start = 'decode.' if kind == 'segmentor' else ''
    assert {key for key in losses if 'loss' in key} == {f'{start}{name}' for name in expected}
    total, _ = model.parse_losses(losses)
    total.backward()
    assert torch.isfinite(total)
    without = [name for name, value in model.named_parameters() if value.grad is None]
    assert not without
    if any(objects):
        assert head_of(model).q.weight.grad.abs().sum() > 0


def test_losses_are_those_of_the_authors(monkeypatch):
    """On masks that are the same in all points, so that no random point matters."""
    random = torch.rand  # away from the border, where points mix a mask with zeros
    monkeypatch.setattr(torch, 'rand', lambda *a, **k: 0.25 + random(*a, **k) / 2)
    model = build(eomt(**{'train_cfg': dict(num_points=16)})).train()
    head = model.panoptic_head
    torch.manual_seed(1)
    classes, values = torch.randn(1, 6, CLASSES + 1), torch.randn(6)
    masks = values[None, :, None, None].expand(1, 6, 8, 8).clone()
    truth = torch.tensor([1, 3])
    objects = InstanceData(labels=truth, masks=torch.ones(2, 8, 8, dtype=torch.long))
    found = head._loss_by_feat_single(classes, masks, [objects], [dict(img_shape=(8, 8))])

    probabilities = classes[0].softmax(1)

    def dice(query):
        p = values[query].sigmoid() * 16
        return 1 - (2 * p + 1) / (p + 16 + 1)

    def cross_entropy(query):
        return F.binary_cross_entropy_with_logits(values[query], torch.ones(()))

    def cost(query, label):
        return -2 * probabilities[query, label] + 5 * cross_entropy(query) + 5 * dice(query)

    pairs = [(i, j) for i in range(6) for j in range(6) if i != j]
    first, second = min(pairs, key=lambda q: float(cost(q[0], 1) + cost(q[1], 3)))
    labels = torch.full((6,), CLASSES)
    labels[first], labels[second] = 1, 3
    weight = torch.ones(CLASSES + 1)
    weight[-1] = 0.1
    wanted = (
        2 * F.cross_entropy(classes[0], labels, weight),
        5 * (cross_entropy(first) + cross_entropy(second)) / 2,
        5 * (dice(first) + dice(second)) / 2,
    )
    for got, right in zip(found, wanted, strict=True):
        torch.testing.assert_close(got.squeeze(), right)


def test_padding_of_a_batch_has_no_loss():
    """Outside an image no mask is predicted, so that its points cost nothing."""
    model = randomise(build(eomt())).train()
    images = torch.rand(2, 3, 64, 64)
    announce_sizes(images, [(64, 64), (30, 40)])
    masks, _ = model.extract_feat(images)[-1]
    assert (masks[1, :, 8:] == -20).all() and (masks[1, :, :, 10:] == -20).all()
    assert (masks[1, :, :8, :10] > -20).all()


def sample_of(kind, size, objects):
    """Labels of an image of a size: objects in bands, and for a detector a region below them."""
    from mmdet.structures import DetDataSample
    from mmdet.structures.mask import BitmapMasks
    from mmseg.structures import SegDataSample

    meta = dict(img_shape=size, ori_shape=size)
    bands = np.zeros((objects, *size), np.uint8)
    regions = torch.full((1, *size), 255)
    for k in range(objects):
        bands[k, 7 * k : 7 * k + 7, : size[1] - 9 * k] = 1
        regions[0][bands[k].astype(bool)] = k
    if kind == 'segmentor':
        return SegDataSample(gt_sem_seg=PixelData(data=regions), metainfo=meta)
    regions[:, 20:] = 4
    instances = InstanceData(labels=torch.arange(objects), masks=BitmapMasks(bands, *size))
    regions = PixelData(sem_seg=regions)
    return DetDataSample(gt_instances=instances, gt_sem_seg=regions, metainfo=meta)


@pytest.fixture
def same_points(monkeypatch):
    """Random numbers that depend on their shape alone."""
    random = torch.rand

    def rand(*shape, **options):
        numbers = shape[0] if isinstance(shape[0], tuple) else shape
        generator = torch.Generator().manual_seed(sum(numbers))
        return random(*shape, generator=generator, **options)

    monkeypatch.setattr(torch, 'rand', rand)


@pytest.mark.parametrize('kind', BUILDERS)
def test_losses_of_a_padded_batch_are_those_of_the_images_alone(kind, same_points):
    """Through the data preprocessor: of all layers, with masked attention, and the gradients."""
    name = 'Det' if kind == 'detector' else 'Seg'
    preprocessor = f'ValidSizes{name}Data{"Prep" if kind == "detector" else "PreP"}rocessor'
    where = 'train_cfg' if kind == 'detector' else 'decode_head.train_cfg'
    changes = {where: dict(num_points=256), 'data_preprocessor.type': preprocessor}
    model = randomise(build(BUILDERS[kind](**changes))).train()
    head = head_of(model)
    head.attn_mask_probs.fill_(1)
    sizes, objects = [(48, 64), (30, 41)], (3, 2)
    images = [torch.randint(0, 256, (3, *size), dtype=torch.uint8) for size in sizes]

    def run(*indices):
        samples = [sample_of(kind, sizes[k], objects[k]) for k in indices]
        data = dict(inputs=[images[k] for k in indices], data_samples=samples)
        data = model.data_preprocessor(data, True)
        losses = model.loss(data['inputs'], data['data_samples'])
        model.zero_grad()
        model.parse_losses(losses)[0].backward()
        return {key: float(value) for key, value in losses.items() if 'loss' in key}

    alone, together = [run(0), run(1)], run(0, 1)
    gradient = head.q.weight.grad
    masks = [count + (kind == 'detector') for count in objects]
    classes = [count + 0.1 * (head.num_queries - count) for count in masks]
    assert len(together) == 9
    for key, value in together.items():
        weights = classes if 'loss_cls' in key else masks
        wanted = np.average([losses[key] for losses in alone], weights=weights)
        assert value == pytest.approx(wanted, rel=1e-4), key
    assert torch.isfinite(gradient).all() and gradient.abs().sum() > 0


def test_losses_of_one_image_are_mmdets(same_points):
    from mmdet.models.dense_heads import Mask2FormerHead

    head = randomise(build(eomt(**{'train_cfg': dict(num_points=256)}))).panoptic_head
    gt = InstanceData(labels=torch.tensor([0, 3]), masks=torch.randint(0, 2, (2, 48, 64)))
    meta = dict(img_shape=(48, 64))
    values = torch.randn(1, 6, CLASSES + 1), torch.randn(1, 6, 12, 16), [gt], [meta]
    found = head._loss_by_feat_single(*values)
    wanted = Mask2FormerHead._loss_by_feat_single(head, *values)
    for got, right in zip(found, wanted, strict=True):
        assert torch.equal(got.squeeze(), right.squeeze())


@pytest.mark.parametrize('stuff', [2, 0])
def test_crowds_of_panoptic_data_are_no_background(stuff):
    """mmdet leaves them in the semantic map alone, where they have the class of an object."""
    from mmdet.structures.mask import BitmapMasks

    model = randomise(build(eomt(stuff=stuff, **{'train_cfg': dict(num_points=64)}))).eval()
    head = model.panoptic_head
    with torch.no_grad():  # every query is on the crowd, and half of them on the object
        head.mask_head[-1].weight.zero_()
        head.mask_head[-1].bias.fill_(1)
        head.upscale[-1].norm.weight.zero_()
        head.upscale[-1].norm.bias.fill_(1)
    crowd = torch.zeros(1, 48, 64, dtype=torch.uint8)
    crowd[:, 16:] = 1

    def loss(kind):
        images, samples = training_batch('detector', (1, 0))
        for sample in samples:
            regions = sample.gt_sem_seg.sem_seg
            objects = sample.gt_instances.masks.to_tensor(torch.bool, 'cpu').any(0)
            regions[:] = torch.where(objects, 0, 255)
            if kind == 'crowd':
                regions[crowd.bool()] = 2
            elif kind == 'ignored':
                masks = BitmapMasks(crowd.numpy(), 48, 64)
                sample.ignored_instances = InstanceData(masks=masks)
        torch.manual_seed(1)
        with torch.no_grad():
            losses = model.loss(images, samples)
        return float(losses['loss_cls'])

    plain, crowds, ignored = map(loss, ('nothing', 'crowd', 'ignored'))
    assert ignored != plain
    # Without regions there is no semantic map of a panoptic data set.
    assert crowds == (ignored if stuff else plain)


# -- annealing
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('total', 'starts', 'ends'),
    [  # of the authors' configs: COCO with ViT-L and ViT-S, ADE20K with ViT-g, Cityscapes
        (88692, [14782, 29564, 44346, 59128], [29564, 44346, 59128, 73910]),
        (177384, [29564, 73910, 118256], [59128, 103474, 147820]),
        (39120, [6520, 11410, 16300, 21190, 26080], [13040, 17930, 22820, 27710, 32600]),
        (19902, [3317, 6634, 9951, 13268], [6634, 9951, 13268, 16585]),
    ],
)
def test_the_papers_steps(total, starts, ends):
    assert default_steps(total, len(starts)) == (starts, ends)


def test_the_hook_lowers_the_probabilities():
    model = build(eomt())
    hook, probabilities = MaskAnnealingHook(), []
    for step in range(60):
        runner = SimpleNamespace(model=model, iter=step, max_iters=60)
        if step == 0:
            hook.before_train(runner)
        hook.before_train_iter(runner, step)
        probabilities.append(model.panoptic_head.attn_mask_probs.tolist())
    first, second = zip(*probabilities, strict=True)
    assert first[10] == 1 and first[20] == 0 and second[40] == 1 and second[50] == 0
    assert first[15] == pytest.approx(0.5**0.9)
    assert list(first) == sorted(first, reverse=True)


def test_a_model_without_eomt_is_refused():
    runner = SimpleNamespace(model=torch.nn.Linear(1, 1))
    with pytest.raises(InputError, match='MaskAnnealingHook needs a model with EoMTHead'):
        MaskAnnealingHook().before_train(runner)
    with pytest.raises(InputError, match='start_steps must have a step for each of 2 blocks'):
        hook = MaskAnnealingHook(start_steps=[1], end_steps=[2])
        hook.before_train(SimpleNamespace(model=build(eomt())))


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        (dict(start_steps=[1]), 'must both be given'),
        (dict(start_steps=[1, 5], end_steps=[2, 5]), 'each of end_steps must be above'),
        (dict(start_steps=['1'], end_steps=[2]), 'must be integers'),
        (dict(power=0), 'power must be'),
    ],
)
def test_wrong_steps(options, message):
    with pytest.raises(InputError, match=message):
        MaskAnnealingHook(**options)


# -- arguments
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'panoptic_head.num_upscale': 5}, 'num_upscale must be None or halve patch_size=16'),
        ({'panoptic_head.class_order': [0, 1]}, 'class_order must have each of 0 to 4 once'),
        ({'panoptic_head.num_queries': 0}, 'num_queries must be'),
        ({'panoptic_head.num_things_classes': -1}, 'num_things_classes must be'),
        ({'panoptic_head.masked_attention': 1}, 'masked_attention must be'),
        ({'test_cfg.square': '64'}, 'test_cfg.square must be'),
    ],
)
def test_wrong_arguments(changes, message):
    with pytest.raises(InputError, match=message):
        build(eomt(**changes))


def test_classes_in_another_order(tmp_path):
    _, plain = pair('detector', tmp_path)
    order = [4, 2, 0, 1, 3]
    _, other = pair('detector', tmp_path, **{'panoptic_head.class_order': order})
    images = torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        ((_, wanted),) = plain.extract_feat(images)
        ((_, found),) = other.extract_feat(images)
    assert torch.equal(found, wanted[:, :, [*order, CLASSES]])


def test_classes_of_the_same_name_keep_their_rows():
    """The layer has one more row, "no object", which stays, too."""
    theirs, ours = ['a', 'b', 'c', 'd', 'e'], ['x', 'd', 'a']
    source, model = (randomise(build(eomt_segmentor(classes=n))) for n in (5, 3))
    own = model.decode_head.class_head.weight.detach().clone()
    content = dict(state_dict=source.state_dict(), meta=dict(dataset_meta=dict(classes=theirs)))
    stored = source.decode_head.class_head.weight.detach().clone()
    check_loaded(content, model, 'file.pth', other_classes=True, classes=ours)
    rows = content['state_dict']['decode_head.class_head.weight']
    assert torch.equal(rows, torch.stack((own[0], stored[3], stored[0], stored[5])))


def test_an_image_without_a_segment():
    model = build(eomt(**{'test_cfg.instance_on': False})).eval()
    with torch.no_grad():
        model.panoptic_head.class_head.bias[-1] = 100
        (found,) = model.predict(torch.rand(1, 3, 32, 32), [det_sample((32, 32), (45, 40))])
    assert (found.pred_panoptic_seg.sem_seg == CLASSES).all()
    assert found.pred_panoptic_seg.sem_seg.shape == (1, 45, 40)


def test_fewer_pairs_than_instances():
    changes = {'panoptic_head.num_stuff_classes': 0, 'panoptic_head.num_things_classes': 1}
    model = build(eomt(**changes, **{'test_cfg.max_per_image': 100})).eval()
    with torch.no_grad():
        (found,) = model.predict(torch.rand(1, 3, 32, 32), [det_sample((32, 32), (32, 32))])
    assert len(found.pred_instances) == 6


@pytest.mark.parametrize('kind', only(of=BUILDERS))
def test_peg_in_place_of_the_table(kind):
    trunk = {**EOMT_TRUNK, 'position': dict(type='PEG', after_blocks='0-2')}
    model = build(BUILDERS[kind](trunk)).train()
    images, samples = training_batch(kind, (1, 1))
    total, _ = model.parse_losses(model.loss(images, samples))
    total.backward()
    assert all(value.grad is not None for value in model.parameters())
    assert isinstance(model.test_cfg, ConfigDict)


# -- learning rates
# --------------------------------------------------------------------------------------------------


def test_the_head_warms_up_before_the_trunk():
    """By the wrapper of a real training, which has a group more than the optimizer."""
    model = build(eomt())
    wrapper = dict(
        constructor='LayerDecayOptimWrapperConstructor',
        optimizer=dict(type='AdamW', lr=0.1, weight_decay=0.05),
        paramwise_cfg=dict(layer_decay_rate=1.0),
    )
    wrapper = build_optim_wrapper(model, wrapper)
    schedule = HeadFirstPolyLR(wrapper, end=10, head_steps=2, trunk_steps=4)
    found = []
    for _ in range(10):
        rates = {group['param_name']: group['lr'] for group in wrapper.optimizer.param_groups}
        trunk = {rate for name, rate in rates.items() if name.startswith('backbone.')}
        head = {rate for name, rate in rates.items() if name.startswith('panoptic_head.')}
        (one,), (other,) = trunk, head
        found.append((one, other))
        assert wrapper.get_lr()['base_lr'] == [other]
        schedule.step()
    trunk, head = zip(*found, strict=True)
    assert trunk[:7] == pytest.approx([0, 0, 0, 0.025, 0.05, 0.075, 0.1])
    assert trunk[7:] == pytest.approx([0.1 * (k / 4) ** 0.9 for k in (3, 2, 1)])
    assert head == pytest.approx([0, 0.05] + [0.1 * (k / 8) ** 0.9 for k in range(8, 0, -1)])


def test_a_schedule_needs_the_names_of_the_parameters():
    plain = torch.optim.SGD(build(eomt()).parameters(), lr=0.1)
    with pytest.raises(InputError, match='whose groups have names'):
        HeadFirstPolyLR(plain, end=10)
