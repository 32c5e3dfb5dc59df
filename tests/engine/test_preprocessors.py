"""The sizes of a padded batch reach the backbone through each toolbox's own preprocessor, detector
and segmentor.
"""

import copy
import pickle

import pytest
import torch
from mmengine.logging import MessageHub
from mmengine.registry import MODELS, init_default_scope
from tiny import COLUMN, build, image_classifier, retinanet, semantic_fpn

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
        # mmseg pads images of several sizes in training only.
        data = model.data_preprocessor(batch(scope, images), scope == 'mmseg')
        with torch.no_grad():
            model(**data, mode='tensor' if scope == 'mmseg' else 'predict')

    run(model, images)
    for image in images:
        run(model, [image])
    assert calls[0].valid_sizes == [(40, 64), (56, 33)]
    assert calls[0].shape == (2, 3, 56, 64)
    for index in range(2):
        for together, alone in zip(features[0], features[1 + index], strict=True):
            rows, columns = alone.shape[2:]
            torch.testing.assert_close(
                together[index, :, :rows, :columns], alone[0], atol=1e-5, rtol=1e-5
            )

    # The toolbox's own preprocessor says nothing of sizes, and then the neighbour matters.
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
    found = preprocessor(dict(inputs=images))['inputs']
    assert found.shape == (2, 3, 56, 64)
    assert found.valid_sizes == [(40, 64), (56, 33)]


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
            assert preprocessor(second, training=True)['inputs'].valid_sizes == [(40, 64), (56, 33)]
        else:
            with pytest.raises(ValueError, match='batch_augments'):
                preprocessor(second, training=True)


def classifier(preprocessor):
    pytest.importorskip('mmpretrain')
    data_preprocessor = dict(_delete_=True, type=preprocessor, **PIXELS)
    backbone = dict(type='CPVT', arch=COLUMN, out_type='avg_featmap')
    return build(image_classifier(backbone, data_preprocessor=data_preprocessor))


def labelled(make, labels):
    """A model and a batch, of which the second image has the labels."""
    name, model_of = {
        'mmdet': ('ValidSizesDetDataPreprocessor', detector),
        'mmseg': ('ValidSizesSegDataPreProcessor', segmentor),
        'mmpretrain': ('ValidSizesClsDataPreprocessor', classifier),
    }[make]
    model = model_of(name)
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
    wanted = f"label {label} of 'photos/7.png' is no class: the model has {classes} classes, 0 to"
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
