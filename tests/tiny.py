"""The tiny backbones, detectors, segmentors and classifiers of all tests, and small tools.

``retinanet``, ``semantic_fpn`` and ``image_classifier`` give config dicts of a few thousand weights
for any backbone of this package. What a test needs otherwise it says by dotted keyword arguments,
as ``--cfg-options`` does: ``retinanet(backbone, **{'test_cfg.score_thr': 0.3})``. :func:`build`
makes the model.
"""

import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, RUNNERS, init_default_scope
from torch import nn

from cpvt_backbones import CPVT, MultiScaleCPVT, PyramidCPVT
from cpvt_backbones.engine import predict_by_size
from cpvt_backbones.engine.runner import ResumableRun

COLUMN = dict(embed_dims=24, depth=4, num_heads=2, mlp_ratio=2.0)
PYRAMID = dict(
    depths=(2, 1, 2, 2),
    embed_dims=(8, 12, 16, 24),
    num_heads=(1, 3, 2, 3),
    mlp_ratios=(2.0,) * 4,
    sr_ratios=(4, 2, 2, 1),
)

PEG = dict(type='PEG', after_blocks=(0,))
POSITIONS = {
    'none': None,
    'peg': PEG,
    'peg_before': dict(type='PEG', after_blocks=(-1,)),
    'peg_qk': dict(type='PEG', after_blocks=(-1,), target='qk'),
    'peg_bn': dict(type='PEG', norm='BN', act='ReLU', bias=False),
    'learned': dict(type='Learned'),
    'sin_cos': dict(type='SinCos'),
    'relative': dict(type='Relative', clip=3),
    'decomposed': dict(type='DecomposedRelative'),
    'relative_bias': dict(type='RelativeBias'),
    'learned_and_peg': [dict(type='Learned'), PEG],
    'rope_mixed': dict(type='RoPE', mode='mixed'),
    'rope_dinov3': dict(type='RoPE', mode='dinov3'),
    'learned_rope_and_peg': [dict(type='Learned'), dict(type='RoPE', mode='axial'), PEG],
}


# Encodings that attention with reduced keys refuses.
NEED_EVERY_KEY = ('relative', 'decomposed', 'relative_bias')
# As ViTDet and SAM.
VITDET = dict(
    position=POSITIONS['decomposed'],
    window_size=3,
    global_blocks=(1,),
    mask_window_padding=False,
    with_cls_token=False,
    final_norm=False,
)


def column(**kwargs):
    return CPVT(**{'arch': COLUMN, 'img_size': 64, **kwargs})


def multi_scale(**kwargs):
    return MultiScaleCPVT(**{'arch': COLUMN, 'img_size': 64, **kwargs})


def pyramid(**kwargs):
    return PyramidCPVT(**{'arch': PYRAMID, 'img_size': 64, **kwargs})


# Every kind of dense model: name -> builder taking further keyword arguments.
DENSE = {
    'column': lambda **kw: column(**kw),
    'column_gap': lambda **kw: column(with_cls_token=False, **kw),
    'column_clip': lambda **kw: column(pre_norm=True, activation='quick_gelu', **kw),
    'column_registers': lambda **kw: column(
        num_registers=2, activation='swiglu', layer_scale_init=0.5, **kw
    ),
    'column_windowed': lambda **kw: column(window_size=3, global_blocks=(1,), **kw),
    'column_vitdet': lambda **kw: column(**{**VITDET, **kw}),
    'multi_scale_last': lambda **kw: multi_scale(source='last', **kw),
    'multi_scale_last_8': lambda **kw: multi_scale(source='last', patch_size=8, **kw),
    'multi_scale_last_cls': lambda **kw: multi_scale(source='last', with_cls_token=True, **kw),
    'multi_scale_taps': lambda **kw: multi_scale(source='taps', **kw),
    'multi_scale_taps_8': lambda **kw: multi_scale(source='taps', patch_size=8, **kw),
    'multi_scale_windowed': lambda **kw: multi_scale(window_size=3, global_blocks=(1, 3), **kw),
    'multi_scale_taps_windowed_8': lambda **kw: multi_scale(
        source='taps', patch_size=8, window_size=4, **kw
    ),
    'pyramid': lambda **kw: pyramid(**kw),
    'pyramid_cls': lambda **kw: pyramid(with_cls_token=True, **kw),
    'pyramid_overlapping': lambda **kw: pyramid(
        **{'arch': {**PYRAMID, 'patch_kernels': (7, 3, 3, 3), 'mlp_kernel_size': 3}, **kw}
    ),
    'pyramid_windowed': lambda **kw: pyramid(
        **{'arch': {**PYRAMID, 'window_size': 3}, 'norm_after_stage': True, **kw}
    ),
}

# And a column with every kind of position encoding.
BACKBONES = DENSE | {
    name: (lambda position=position, **kw: column(position=position, **kw))
    for name, position in POSITIONS.items()
}


# -- detectors, segmentors, classifiers
# ------------------------------------------------------------------------------

NORMALISE = dict(mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375])
TWO_BLOCKS = {**COLUMN, 'depth': 2}
# One block at patch 8: the quickest backbone that has every part.
ONE_BLOCK = dict(arch={**COLUMN, 'embed_dims': 16, 'depth': 1}, patch_size=8, position=PEG)
GN = dict(type='GN', num_groups=4)


def changed(config: dict, changes: dict[str, Any]) -> dict:
    """The config with values at dotted keys replaced, or merged if they are dicts."""
    whole = Config(dict(config=config))
    whole.merge_from_dict({f'config.{key}': value for key, value in changes.items()})
    return whole.to_dict()['config']


def outputs_of(backbone: dict) -> tuple[list[int], list[int]]:
    """Widths and strides of a backbone's maps."""
    model = MODELS.build({key: value for key, value in backbone.items() if key != 'init_cfg'})
    return list(model.out_channels), list(model.out_strides)


def retinanet(backbone: dict, *, classes: int = 3, width: int = 16, **changes: Any) -> dict:
    """RetinaNet with FPN, one anchor a cell on every map of the backbone.

    Every score counts as a detection.
    """
    channels, strides = outputs_of(backbone)
    config = dict(
        type='RetinaNet',
        data_preprocessor=dict(
            type='DetDataPreprocessor', bgr_to_rgb=True, pad_size_divisor=1, **NORMALISE
        ),
        backbone=backbone,
        neck=dict(type='FPN', in_channels=channels, out_channels=width, num_outs=len(channels)),
        bbox_head=dict(
            type='RetinaHead',
            num_classes=classes,
            in_channels=width,
            feat_channels=width,
            stacked_convs=1,
            anchor_generator=dict(
                type='AnchorGenerator',
                octave_base_scale=4,
                scales_per_octave=1,
                ratios=[1.0],
                strides=strides,
            ),
            bbox_coder=dict(type='DeltaXYWHBBoxCoder'),
        ),
        test_cfg=dict(
            nms_pre=100,
            min_bbox_size=0,
            score_thr=0.0,
            nms=dict(type='nms', iou_threshold=0.5),
            max_per_img=30,
        ),
    )
    return changed(config, changes)


def semantic_fpn(backbone: dict, *, classes: int = 3, width: int = 16, **changes: Any) -> dict:
    """Semantic FPN for four maps; predicts on whole images."""
    channels, strides = outputs_of(backbone)
    config = dict(
        type='EncoderDecoder',
        data_preprocessor=dict(
            type='SegDataPreProcessor', bgr_to_rgb=True, size_divisor=1, **NORMALISE
        ),
        backbone=backbone,
        neck=dict(type='FPN', in_channels=channels, out_channels=width, num_outs=len(channels)),
        decode_head=dict(
            type='FPNHead',
            in_channels=[width] * len(channels),
            in_index=list(range(len(channels))),
            feature_strides=strides,
            channels=width,
            num_classes=classes,
            norm_cfg=GN,
            align_corners=False,
        ),
        test_cfg=dict(mode='whole'),
    )
    return changed(config, changes)


EOMT_TRUNK = dict(
    type='CPVT',
    arch=COLUMN,
    img_size=64,
    num_registers=4,
    layer_scale_init=0.5,
    position=dict(type='Learned'),
)


def eomt(backbone: dict = EOMT_TRUNK, *, things: int = 3, stuff: int = 2, **changes: Any) -> dict:
    """EoMT of six queries in two blocks, which predicts segments and instances."""
    config = dict(
        type='EoMT',
        data_preprocessor=dict(
            type='DetDataPreprocessor', bgr_to_rgb=True, pad_mask=True, pad_seg=True, **NORMALISE
        ),
        backbone=backbone,
        panoptic_head=dict(
            type='EoMTHead',
            embed_dims=outputs_of(backbone)[0][0],
            num_things_classes=things,
            num_stuff_classes=stuff,
            num_queries=6,
            num_blocks=2,
        ),
        test_cfg=dict(instance_on=True, max_per_image=10),
    )
    return changed(config, changes)


PANOPTIC_CLASSES = ('person', 'car', 'dog', 'sky', 'road')
"""Three of objects, then two of regions."""


def write_panoptic_model(folder: Path) -> tuple[Path, Path]:
    """Write the config of an EoMT, and random weights that predict several segments."""
    meta = dict(classes=PANOPTIC_CLASSES, palette=[(40 * i, 100, 200) for i in range(5)])
    steps = [
        dict(type='LoadImageFromFile'),
        dict(type='Resize', scale=(64, 64), keep_ratio=True),
        dict(type='LoadPanopticAnnotations'),
        dict(type='PackDetInputs', meta_keys=('img_id', 'ori_shape', 'img_shape', 'scale_factor')),
    ]
    prediction = dict(panoptic_on=True, instance_on=False, square=64, iou_thr=0.1)
    model = eomt(**{'test_cfg': dict(prediction, object_mask_thr=0.3)})
    dataset = dict(type='CocoPanopticDataset', metainfo=meta, pipeline=steps, test_mode=True)
    dataset |= dict(data_prefix=dict(img='images/', seg='segments/'), ann_file='')
    content = dict(default_scope='mmdet', model=model, test_dataloader=dict(dataset=dataset))
    cfg = Config(dict(content, visualizer=dict(type='DetLocalVisualizer')))
    torch.manual_seed(3)
    built = randomise(build(cfg.model))
    head = built.panoptic_head
    with torch.no_grad():
        head.attn_mask_probs.zero_()
        head.q.weight.normal_(0, 3)
        head.class_head.weight.normal_(0, 1)
        head.mask_head[-1].weight.normal_(0, 1)
    torch.save(dict(state_dict=built.state_dict(), meta=dict(dataset_meta=meta)), folder / 'm.pth')
    cfg.dump(folder / 'config.py')
    return folder / 'config.py', folder / 'm.pth'


def eomt_segmentor(backbone: dict = EOMT_TRUNK, *, classes: int = 5, **changes: Any) -> dict:
    """EoMT of six queries in two blocks for class maps; predicts on whole images."""
    config = dict(
        type='EoMTSegmentor',
        data_preprocessor=dict(
            type='SegDataPreProcessor', bgr_to_rgb=True, size_divisor=1, **NORMALISE
        ),
        backbone=backbone,
        decode_head=dict(
            type='EoMTSegHead',
            embed_dims=outputs_of(backbone)[0][0],
            num_classes=classes,
            num_queries=6,
            num_blocks=2,
        ),
        test_cfg=dict(mode='whole'),
    )
    return changed(config, changes)


def image_classifier(backbone: dict, *, classes: int = 3, **changes: Any) -> dict:
    """A linear classifier on a backbone that gives vectors."""
    (channels,), _ = outputs_of(backbone)
    config = dict(
        type='ImageClassifier',
        data_preprocessor=dict(to_rgb=True, num_classes=classes, **NORMALISE),
        backbone=backbone,
        head=dict(type='LinearClsHead', num_classes=classes, in_channels=channels),
    )
    return changed(config, changes)


def stock_detector(name: str, backbone: dict, channels: list[int]) -> dict:
    """The model of mmdet's config, narrow, for three classes."""
    from mmengine.hub import get_config

    model = get_config(f'mmdet::{name}').model
    model.backbone = dict(backbone)
    model.neck.update(in_channels=channels, out_channels=16)
    for holder in [model, *model.get('roi_head', {}).values()]:
        for part in holder if isinstance(holder, list) else [holder]:
            if isinstance(part, dict):
                narrow(part)
    return model


def narrow(part: dict) -> None:
    widths = (
        'in_channels',
        'feat_channels',
        'out_channels',
        'fc_out_channels',
        'conv_out_channels',
    )
    for node in [part, *(child for child in part.values() if isinstance(child, dict))]:
        if node.get('type', '').endswith(('Head', 'Extractor')):
            node.update({key: 16 for key in widths if key in node})
            if 'num_classes' in node:
                node['num_classes'] = 3


SCOPES = {'EncoderDecoder': 'mmseg', 'EoMTSegmentor': 'mmseg', 'ImageClassifier': 'mmpretrain'}
SCOPES |= dict.fromkeys(('RetinaNet', 'MaskRCNN', 'CascadeRCNN', 'EoMT'), 'mmdet')


def build(config: dict) -> nn.Module:
    """The model of a config dict, in the scope of its toolbox.

    Skips the test if the toolbox is not installed.
    """
    scope = SCOPES.get(config['type'], 'mmpretrain')
    pytest.importorskip(scope)
    init_default_scope(scope)
    return MODELS.build(Config(dict(model=config)).model)


# -- predictions
# --------------------------------------------------------------------------------------------------


def predict(
    model: nn.Module, images: list[torch.Tensor], *, by_size: bool = False
) -> list[torch.Tensor]:
    """Boxes and scores of a detector, or logits of a segmentor, for images (3, H, W) in a batch."""
    is_segmentor = hasattr(model, 'decode_head')
    if is_segmentor:
        from mmseg.structures import SegDataSample as Sample
    else:
        from mmdet.structures import DetDataSample as Sample

    samples = []
    for image in images:
        shapes = dict.fromkeys(('img_shape', 'ori_shape'), tuple(image.shape[1:]))
        samples.append(Sample(metainfo=dict(shapes, scale_factor=(1.0, 1.0))))
    batch = dict(inputs=[image.clone() for image in images], data_samples=samples)
    step = model.eval().test_step
    with torch.no_grad():
        found = predict_by_size(step, batch) if by_size else step(batch)
    if is_segmentor:
        return [one.seg_logits.data for one in found]
    if 'pred_instances' not in found[0]:
        return [one.pred_panoptic_seg.sem_seg[0] for one in found]
    instances = [one.pred_instances for one in found]
    return [torch.cat((one.bboxes, one.scores[:, None]), dim=1) for one in instances]


def assert_no_neighbour_matters(cfg: Config, model: nn.Module) -> None:
    """The runner that the config has for a test gives images of two sizes what each has alone."""
    assert issubclass(RUNNERS.get(cfg.runner_type), ResumableRun)
    images = [torch.randint(0, 256, (3, *size), dtype=torch.uint8) for size in ((64, 98), (90, 57))]
    together = predict(model, images, by_size=True)
    assert all(len(one) for one in together)
    assert_equal_outputs(together, [predict(model, [image])[0] for image in images])


# -- tools
# --------------------------------------------------------------------------------------------------


def only(*kept: Any, of: Iterable) -> list:
    """Values to parametrise a test with. ``make test`` takes ``kept``, ``make test-all`` all.

    The first is kept if none is named. A tuple has a value for each argument.
    """
    values = list(of)
    kept = kept or (values[0],)
    assert all(value in values for value in kept)
    marked = []
    for value in values:
        arguments = value if isinstance(value, tuple) else (value,)
        marks = [] if value in kept else [pytest.mark.full]
        marked.append(pytest.param(*arguments, marks=marks))
    return marked


def randomise(model: nn.Module) -> nn.Module:
    """Give every parameter a value far from its neutral start, so that no mistake hides behind a 0
    or a 1.
    """
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.add_(torch.randn_like(parameter) * 0.05)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def max_difference(left, right) -> float:
    return (left.double() - right.double()).abs().max().item()


def assert_equal_outputs(left, right) -> None:
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        assert torch.equal(a, b)


def leaves(tree: Any, path: str = '') -> dict[str, Any]:
    """Leaves of nested dicts and lists by path."""
    if isinstance(tree, dict):
        pairs = list(tree.items())
    elif isinstance(tree, (list, tuple)):
        pairs = list(enumerate(tree))
    else:
        return {path: tree}
    return {k: v for key, value in pairs for k, v in leaves(value, f'{path}/{key}').items()}


def assert_equal_leaves(left: Any, right: Any) -> None:
    """Every leaf of two checkpoints is equal, tensors bit for bit."""
    left, right = leaves(left), leaves(right)
    assert left.keys() == right.keys()
    for key, value in left.items():
        is_tensor = isinstance(value, torch.Tensor)
        assert torch.equal(value, right[key]) if is_tensor else value == right[key], key


def interrupting(*functions: Callable, at: int) -> list[Callable]:
    """The functions, whose call number ``at`` is Ctrl-C, counted over all of them."""
    count = itertools.count(1)

    def interrupted(function: Callable) -> Callable:
        def call(*arguments, **options):
            if next(count) == at:
                raise KeyboardInterrupt
            return function(*arguments, **options)

        return call

    return [interrupted(function) for function in functions]


# Start of a program whose mmcv has no compiled operators, although they are installed.
WITHOUT_COMPILED_OPERATORS = """
import sys
from importlib.machinery import PathFinder
class Hiding(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name == 'mmcv._ext' else super().find_spec(name, path, target)
sys.meta_path[sys.meta_path.index(PathFinder)] = Hiding
"""
