"""The sizes of a padded batch reach the backbone through each toolbox's own preprocessor, detector
and segmentor.
"""

import copy
import pickle

import numpy as np
import pytest
import torch
from mmengine.logging import MessageHub
from mmengine.registry import MODELS, init_default_scope
from tiny import COLUMN, build, image_classifier, predict, randomise, retinanet, semantic_fpn

from cpvt_backbones.backbones import announced_sizes
from cpvt_backbones.engine.training_checks import tell_classes

PIXELS = dict(mean=[120.0, 110.0, 100.0], std=[50.0, 60.0, 70.0])
BACKBONE = dict(type='MultiScaleCPVT', arch=COLUMN)


@pytest.fixture(autouse=True)
def _registered():
    pytest.importorskip('mmdet')
    import cpvt_backbones.engine.preprocessors  # noqa: F401


def seen_by(model):
    """What the backbone is given, call by call."""
    calls = []
    model.backbone.register_forward_pre_hook(lambda _, inputs: calls.append(inputs[0]))
    return calls


def pictures():
    return [torch.randint(0, 255, (3, h, w), dtype=torch.uint8) for h, w in ((40, 64), (56, 33))]


def detector(preprocessor):
    data_preprocessor = dict(_delete_=True, type=preprocessor, bgr_to_rgb=True, **PIXELS)
    return build(retinanet(BACKBONE, data_preprocessor=data_preprocessor))


def segmentor(preprocessor):
    data_preprocessor = dict(
        _delete_=True, type=preprocessor, bgr_to_rgb=True, size_divisor=1, **PIXELS
    )
    return build(semantic_fpn(BACKBONE, data_preprocessor=data_preprocessor))


def batch(scope, images):
    from mmdet.structures import DetDataSample
    from mmengine.structures import PixelData
    from mmseg.structures import SegDataSample

    samples = []
    for image in images:
        size = tuple(image.shape[1:])
        shapes = dict(img_shape=size, ori_shape=size, scale_factor=(1.0, 1.0))
        sample = {'mmdet': DetDataSample, 'mmseg': SegDataSample}[scope](metainfo=shapes)
        if scope == 'mmseg':
            sample.gt_sem_seg = PixelData(data=torch.zeros(1, *size, dtype=torch.long))
        samples.append(sample)
    return dict(inputs=images, data_samples=samples)


@pytest.mark.parametrize(
    ('scope', 'make', 'name', 'stock'),
    [
        ('mmdet', detector, 'ValidSizesDetDataPreprocessor', 'DetDataPreprocessor'),
        ('mmseg', segmentor, 'ValidSizesSegDataPreProcessor', 'SegDataPreProcessor'),
    ],
)
def test_features_in_a_batch_are_those_alone(scope, make, name, stock):
    torch.manual_seed(0)
    model = make(name).eval()
    calls = seen_by(model)
    images = pictures()
    features = []
    model.backbone.register_forward_hook(lambda _, __, outputs: features.append(outputs))

    def run(model, images):
        data = model.data_preprocessor(batch(scope, images), True)
        with torch.no_grad():
            model(**data, mode='tensor' if scope == 'mmseg' else 'predict')

    run(model, images)
    for image in images:
        run(model, [image])
    assert announced_sizes(calls[0]) == [(40, 64), (56, 33)]
    assert calls[0].shape == (2, 3, 56, 64)
    for index in range(2):
        for together, alone in zip(features[0], features[1 + index], strict=True):
            rows, columns = alone.shape[2:]
            torch.testing.assert_close(
                together[index, :, :rows, :columns], alone[0], atol=1e-5, rtol=1e-5
            )

    # The toolbox's own preprocessor says nothing of sizes, and then the neighbour matters.
    calls.clear()  # an equal batch would have the sizes of this one
    plain = make(stock).eval()
    plain.load_state_dict(model.state_dict())
    mixed = []
    plain.backbone.register_forward_hook(lambda _, __, outputs: mixed.append(outputs))
    run(plain, images)
    assert not torch.allclose(mixed[0][2][0], features[0][2][0], atol=1e-3)


def test_the_classifiers_preprocessor():
    init_default_scope('mmpretrain')
    preprocessor = MODELS.build(dict(type='ValidSizesClsDataPreprocessor', to_rgb=True, **PIXELS))
    images = pictures()
    found = preprocessor(dict(inputs=images), True)['inputs']
    assert found.shape == (2, 3, 56, 64)
    assert announced_sizes(found) == [(40, 64), (56, 33)]


def test_a_batch_that_was_enlarged_is_refused():
    """Not by its size, which padding to a fixed one has as well."""
    from mmdet.structures.bbox import HorizontalBoxes
    from mmengine.structures import InstanceData

    init_default_scope('mmdet')
    MessageHub.get_current_instance().update_info('iter', 0)  # as a Runner does
    resize = dict(
        type='BatchSyncRandomResize', random_size_range=(128, 128), size_divisor=32, interval=1
    )
    for augment, accepted in (
        (dict(type='BatchFixedSizePad', size=(128, 128)), True),
        (resize, False),
    ):
        preprocessor = MODELS.build(
            dict(
                type='ValidSizesDetDataPreprocessor',
                batch_augments=[augment],
                pad_size_divisor=32,
                **PIXELS,
            )
        )
        first, second = (batch('mmdet', pictures()) for _ in range(2))
        for sample in first['data_samples'] + second['data_samples']:
            sample.gt_instances = InstanceData(bboxes=HorizontalBoxes(torch.zeros(0, 4)))
        preprocessor(first, training=True)  # the size of what comes next is drawn
        if accepted:
            found = preprocessor(second, training=True)['inputs']
            assert announced_sizes(found) == [(40, 64), (56, 33)]
        else:
            with pytest.raises(ValueError, match='batch_augments'):
                preprocessor(second, training=True)


def classifier(preprocessor):
    pytest.importorskip('mmpretrain')
    data_preprocessor = dict(_delete_=True, type=preprocessor, **PIXELS)
    backbone = dict(type='CPVT', arch=COLUMN, out_type='avg_featmap')
    return build(image_classifier(backbone, data_preprocessor=data_preprocessor))


# -- batch augmentations that mix images
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('kind', ['Mixup', 'CutMix', 'ResizeMix'])
def test_mixed_images_keep_the_pixels_of_both(kind):
    """Of a small image with a large one. The labels are mixed, so the pixels must be seen."""
    pytest.importorskip('mmpretrain')
    init_default_scope('mmpretrain')
    augments = dict(augments=[dict(type=kind, alpha=0.8)])
    preprocessor = MODELS.build(
        dict(
            type='ValidSizesClsDataPreprocessor',
            mean=[0.0] * 3,
            std=[1.0] * 3,
            num_classes=2,
            batch_augments=augments,
        )
    )
    small, large = (24, 40), (64, 56)
    seen = set()
    for seed in range(8):
        torch.manual_seed(seed)
        np.random.seed(seed)
        images = [torch.full((3, *small), 50.0), torch.full((3, *large), 200.0)]
        samples = mm_samples(0, 1)
        result = preprocessor(dict(inputs=images, data_samples=samples), training=True)
        sizes = announced_sizes(result['inputs'])
        for image, (height, width), own in zip(
            result['inputs'], sizes, (small, large), strict=True
        ):
            assert image.shape == (3, *large)
            filled = image[0].nonzero()
            assert (filled.amax(0) + 1).tolist() == [height, width]
            assert (height, width) == own or height > small[0] or width > small[1]
            seen.add((height, width))
    assert {small, large} <= seen

    # Images of one size are mixed by the toolbox alone: the same numbers are drawn.
    torch.manual_seed(0)
    np.random.seed(0)
    same = [torch.rand(3, 24, 24), torch.rand(3, 24, 24)]
    found = preprocessor(dict(inputs=same, data_samples=mm_samples(0, 1)), training=True)
    torch.manual_seed(0)
    np.random.seed(0)
    same = [torch.rand(3, 24, 24), torch.rand(3, 24, 24)]
    scores = torch.eye(2)
    wanted, _ = preprocessor.batch_augments(torch.stack(same), scores)
    assert torch.equal(found['inputs'], wanted)


def mm_samples(*labels):
    from mmpretrain.structures import DataSample

    return [DataSample().set_gt_label(label) for label in labels]


@pytest.mark.parametrize('kind', ['Mixup', 'CutMix', 'ResizeMix'])
def test_mixing_is_that_of_the_toolbox(kind):
    """The channel that tells images from padding changes no pixel and no score."""
    pytest.importorskip('mmpretrain')
    init_default_scope('mmpretrain')
    options = dict(
        num_classes=2,
        batch_augments=dict(augments=[dict(type=kind, alpha=0.8)]),
        **PIXELS,
    )
    results = []
    for name in ('ClsDataPreprocessor', 'ValidSizesClsDataPreprocessor'):
        preprocessor = MODELS.build(dict(type=name, **options))
        torch.manual_seed(3)
        np.random.seed(3)
        data = dict(inputs=pictures(), data_samples=mm_samples(0, 1))
        results.append(preprocessor(data, training=True))
    assert torch.equal(results[0]['inputs'], results[1]['inputs'])
    scores = [[one.gt_score for one in result['data_samples']] for result in results]
    assert all(torch.equal(a, b) for a, b in zip(*scores, strict=True))


# -- validation and test
# --------------------------------------------------------------------------------------------------


def slide(**changes):
    windows = dict(mode='slide', crop_size=(32, 48), stride=(24, 32))
    return lambda options: semantic_fpn(
        BACKBONE, data_preprocessor=options, test_cfg=windows, **changes
    )


PADDED = {
    'detector': (
        lambda options: retinanet(BACKBONE, data_preprocessor=options),
        'DetDataPreprocessor',
        dict(pad_size_divisor=32),
    ),
    'whole': (
        lambda options: semantic_fpn(BACKBONE, data_preprocessor=options),
        'SegDataPreProcessor',
        dict(test_cfg=dict(size_divisor=32), pad_val=3),
    ),
    'whole to a size': (
        lambda options: semantic_fpn(BACKBONE, data_preprocessor=options),
        'SegDataPreProcessor',
        dict(test_cfg=dict(size=(96, 128))),
    ),
    'slide': (slide(), 'SegDataPreProcessor', dict(test_cfg=dict(size_divisor=32))),
    'classifier': (
        lambda options: image_classifier(
            dict(type='CPVT', arch=COLUMN, out_type='avg_featmap'), data_preprocessor=options
        ),
        'ClsDataPreprocessor',
        dict(pad_size_divisor=32),
    ),
}


def raw_predictions(model, images):
    if hasattr(model, 'decode_head') or hasattr(model, 'bbox_head'):
        return predict(model, images)
    with torch.no_grad():
        found = model.eval().test_step(dict(inputs=images, data_samples=mm_samples(0)))
    return [one.pred_score for one in found]


@pytest.mark.parametrize('task', PADDED)
def test_a_test_pads_only_for_a_segmentor(task):
    """The predictions are those of the toolbox's own preprocessor, elsewhere without padding."""
    pytest.importorskip('mmpretrain')
    make, stock, padding = PADDED[task]
    name = {'Seg': 'ValidSizesSegDataPreProcessor', 'Cls': 'ValidSizesClsDataPreprocessor'}.get(
        stock[:3], 'ValidSizesDetDataPreprocessor'
    )
    options = dict(_delete_=True, **PIXELS)
    model = randomise(build(make(dict(options, type=name, **padding))))
    plain, padded = (build(make(dict(options, type=stock, **extra))) for extra in ({}, padding))
    image = torch.randint(0, 255, (3, 45, 77), dtype=torch.uint8)
    for other in (plain, padded):
        other.load_state_dict(model.state_dict())
    found, wanted, changed = (raw_predictions(one, [image])[0] for one in (model, plain, padded))
    if stock == 'SegDataPreProcessor':
        wanted, changed = changed, wanted
    assert torch.equal(found, wanted)
    assert changed.shape != wanted.shape or not torch.equal(changed, wanted)
    # Training still pads, and the next test does not.
    if task == 'detector':
        data = model.data_preprocessor(batch('mmdet', [image]), True)
        assert data['inputs'].shape == (1, 3, 64, 96)
        assert data['data_samples'][0].pad_shape == (64, 96)
        data = model.data_preprocessor(batch('mmdet', [image]), False)
        assert data['inputs'].shape == (1, 3, 45, 77)
        assert data['data_samples'][0].pad_shape == (45, 77)


@pytest.mark.parametrize(
    ('scope', 'make', 'name'),
    [
        ('mmdet', detector, 'ValidSizesDetDataPreprocessor'),
        ('mmseg', segmentor, 'ValidSizesSegDataPreProcessor'),
    ],
)
def test_a_test_batch_of_several_sizes_is_refused_unless_the_model_splits_it(scope, make, name):
    """The wrappers of FSDP and DeepSpeed, for example, call the preprocessor with all images."""
    model = make(name)
    with pytest.raises(ValueError, match=r'one size, got \[\(40, 64\), \(56, 33\)\] px'):
        model.data_preprocessor(batch(scope, pictures()), False)
    assert len(predict(model, pictures(), by_size=True)) == 2


def test_another_preprocessor_that_pads_in_a_test_is_refused():
    from mmengine.model import ImgDataPreprocessor

    from cpvt_backbones.engine import ValidSizes

    class ToSquare(ImgDataPreprocessor):
        square = True

        def forward(self, data, training=False):
            result = super().forward(data, training)
            height, width = result['inputs'].shape[2:]
            side = max(height, width)
            if self.square:
                padding = (0, side - width, 0, side - height)
                result['inputs'] = torch.nn.functional.pad(result['inputs'], padding)
            return result

    class Padding(ValidSizes, ToSquare):
        pass

    class NotInATest(ValidSizes, ToSquare):
        test_options = dict(square=False)

    image = torch.rand(3, 40, 64)
    assert Padding()(dict(inputs=[image]), True)['inputs'].shape == (1, 3, 64, 64)
    with pytest.raises(ValueError, match='Padding.test_options must name the attributes'):
        Padding()(dict(inputs=[image]))
    assert NotInATest()(dict(inputs=[image]))['inputs'].shape == (1, 3, 40, 64)
    assert NotInATest()(dict(inputs=[image]), True)['inputs'].shape == (1, 3, 64, 64)


# -- several batches in one step
# --------------------------------------------------------------------------------------------------


def test_branches_of_a_semi_supervised_detector():
    """Each branch is a batch of its own. The last is announced before the first is used."""
    init_default_scope('mmdet')
    part = dict(type='ValidSizesDetDataPreprocessor', pad_size_divisor=32, **PIXELS)
    branches = dict(type='mmdet.MultiBranchDataPreprocessor', data_preprocessor=part)
    preprocessor = MODELS.build(branches)
    images = dict(sup=pictures()[:1] * 2, teacher=pictures(), student=pictures()[::-1])
    data = dict(
        inputs=images,
        data_samples={name: batch('mmdet', images[name])['data_samples'] for name in images},
    )
    inputs = preprocessor(data, True)['inputs']
    backbone = MODELS.build(BACKBONE).eval().bfloat16()
    with torch.no_grad():
        for name in ('teacher', 'sup', 'student'):
            cast = inputs[name].bfloat16()
            sizes = [tuple(image.shape[1:]) for image in images[name]]
            for found, wanted in zip(backbone(cast), backbone(cast, sizes), strict=True):
                assert torch.equal(found, wanted)


class Engine(torch.nn.Module):
    """Stands for DeepSpeed's engine, which holds the model in half precision."""

    def __init__(self, model):
        super().__init__()
        self.module = model

    def forward(self, inputs, data_samples, mode):
        return self.module.backbone(inputs)


def test_deepspeed_replaces_the_batch_by_a_cast_copy(monkeypatch):
    """mmengine's wrapper casts the batch and drops it, before the model is called."""
    from mmengine._strategy.deepspeed import MMDeepSpeedEngineWrapper

    model = classifier('ValidSizesClsDataPreprocessor').eval()
    model.backbone.bfloat16()
    found = []
    monkeypatch.setattr(model, 'parse_losses', lambda losses: (found.append(losses), {}))
    wrapper = MMDeepSpeedEngineWrapper(model=Engine(model), inputs_to_half=['inputs'])

    class Optimizer:
        def update_params(self, loss):
            pass

    data = dict(inputs=pictures(), data_samples=mm_samples(0, 1))
    with torch.no_grad():
        wrapper.train_step(dict(data), Optimizer())
        batch = model.data_preprocessor(data, True)['inputs'].bfloat16()
        wanted = model.backbone(batch, [(40, 64), (56, 33)])
    assert torch.equal(found[0][0], wanted[0])


def labelled(make, labels):
    """A model and a batch, of which the second image has the labels."""
    name, model_of = {
        'mmdet': ('ValidSizesDetDataPreprocessor', detector),
        'mmseg': ('ValidSizesSegDataPreProcessor', segmentor),
        'mmpretrain': ('ValidSizesClsDataPreprocessor', classifier),
    }[make]
    model = model_of(name)
    tell_classes(model)
    if make == 'mmpretrain':
        from mmpretrain.structures import DataSample

        data = dict(inputs=pictures(), data_samples=[DataSample(), DataSample()])
        for sample in data['data_samples']:
            sample.set_gt_label(0)
        data['data_samples'][1].set_gt_label(labels)
    elif make == 'mmdet':
        from mmengine.structures import InstanceData

        data = batch(make, pictures())
        for sample in data['data_samples']:
            sample.gt_instances = InstanceData(labels=torch.zeros(2, dtype=torch.long))
        data['data_samples'][1].gt_instances.labels = torch.tensor([0, labels])
    else:
        data = batch(make, pictures())
        data['data_samples'][1].gt_sem_seg.data[0, 3:5, 7] = labels
    data['data_samples'][1].set_metainfo(dict(img_path='photos/7.png'))
    return model, data


@pytest.mark.parametrize(
    ('toolbox', 'label', 'classes'),
    [
        ('mmdet', 3, 3),
        ('mmdet', -1, 3),
        ('mmseg', 3, 3),
        ('mmseg', 254, 3),
        ('mmseg', -100, 3),
        ('mmpretrain', 3, 3),
    ],
)
def test_a_label_outside_the_classes_is_named_before_the_loss(toolbox, label, classes):
    pytest.importorskip(toolbox)
    model, data = labelled(toolbox, label)
    wanted = (
        f"label {label} of 'photos/7.png' is not a class: the model has {classes} classes, 0 to"
    )
    wanted += f' {classes - 1}'
    wanted += ', and ignore_index is 255' if toolbox == 'mmseg' else '$'
    with pytest.raises(ValueError, match=wanted):
        model.data_preprocessor(data, True)
    one = {key: values[1:] for key, values in data.items()}
    model.data_preprocessor(one, False)  # a test has no loss


@pytest.mark.parametrize(
    ('toolbox', 'label'),
    [('mmdet', 2), ('mmseg', 2), ('mmseg', 255), ('mmpretrain', 2)],
)
def test_classes_and_ignored_pixels_are_no_fault(toolbox, label):
    pytest.importorskip(toolbox)
    model, data = labelled(toolbox, label)
    assert len(model.data_preprocessor(data, True)['data_samples']) == 2


def test_a_model_that_checks_labels_is_copied_and_pickled():
    model, _ = labelled('mmseg', 0)
    copies = copy.deepcopy(model), pickle.loads(pickle.dumps(model.data_preprocessor))
    for one in copies:
        assert one.state_dict().keys() <= model.state_dict().keys()
