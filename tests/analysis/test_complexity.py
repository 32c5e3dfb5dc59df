"""Parameters and operations against published numbers and arithmetic, counted on the meta
device.
"""

import math

import pytest
import torch
from mmengine.config import Config

from cpvt_backbones.analysis.complexity import build_model, complexity_against_size
from cpvt_backbones.layers import map_to_tokens
from cpvt_backbones.layers.patch_embed import PatchEmbed
from cpvt_backbones.toolboxes import read_config

RETINANET = 'retinanet/retinanet_pyramid-cpvt-{}_fpn_1x_coco'
SEMANTIC_FPN = 'semantic_fpn/semantic-fpn_pyramid-cpvt-{}_8xb2-80k_ade20k-512x512'
# The authors' detectors and segmentors contain the unused classifier: a final norm and a linear
# layer.
CLASSIFIER = 2 * 512 + 512 * 1000 + 1000


@pytest.fixture
def config(pytestconfig):
    def read(name, **options):
        path = pytestconfig.rootpath / f'configs/{name}.py'
        pytest.importorskip(Config.fromfile(path).default_scope)
        return read_config(path, cfg_options=options)

    return read


def measured(cfg, height, width):
    with torch.device('meta'):
        return complexity_against_size({'model': cfg}, [(height, width)])[0]


@pytest.mark.parametrize(
    ('name', 'arch', 'millions'),
    [
        (RETINANET, 's', 34.4),
        (RETINANET, 'b', 54.1),
        (RETINANET, 'l', 71.2),
        (SEMANTIC_FPN, 's', 28.4),
        (SEMANTIC_FPN, 'b', 48.1),
        (SEMANTIC_FPN, 'l', 65.3),
    ],
)
def test_published_parameters(name, arch, millions, config):
    with torch.device('meta'):
        model = build_model(config(name.format(arch)))
    count = sum(parameter.numel() for parameter in model.parameters())
    assert round((count + CLASSIFIER) / 1e6, 1) == millions
    assert not model.training


@pytest.mark.parametrize(('arch', 'giga'), [('s', 40), ('b', 55), ('l', 71)])
def test_published_operations_of_semantic_fpn(arch, giga, config):
    """Published: 512 x 512 px, without attention's own products, rounded down."""
    found = measured(config(SEMANTIC_FPN.format(arch)), 512, 512)
    assert int(found.gmacs - found.attention_gmacs) == giga


def without_padding(self, images):
    feature_map = self.proj(images)
    return self.norm(map_to_tokens(feature_map)), tuple(feature_map.shape[2:])


@pytest.mark.parametrize(('arch', 'giga'), [('s', 118), ('b', 151)])
def test_published_operations_of_retinanet(arch, giga, config, monkeypatch):
    """Published: 800 x 600 px with attention; the authors crop to whole patches."""
    cfg = config(RETINANET.format(arch))
    ours = measured(cfg, 800, 600)
    monkeypatch.setattr(PatchEmbed, 'forward', without_padding)
    theirs = measured(cfg, 800, 600)
    assert int(theirs.gmacs) == giga
    assert theirs.gmacs < ours.gmacs <= 1.02 * theirs.gmacs


def test_attention_of_spatial_reduction(config):
    """Two products of queries, keys and channels a block.

    Reductions by 8, 4, 2, 1 leave 16 x 16 keys in each stage.
    """
    found = measured(config(SEMANTIC_FPN.format('s')), 512, 512)
    stages = zip((3, 4, 6, 3), (128, 64, 32, 16), (64, 128, 320, 512), strict=True)
    assert found.attention_gmacs * 1e9 == sum(
        depth * 2 * side**2 * 16**2 * dim for depth, side, dim in stages
    )


ARCH = dict(embed_dims=16, depth=2, num_heads=2, mlp_ratio=3)


def classifier(**backbone):
    backbone = dict(
        type='CPVT',
        arch=ARCH,
        patch_size=8,
        with_cls_token=False,
        out_type='avg_featmap',
        **backbone,
    )
    head = dict(type='LinearClsHead', num_classes=5, in_channels=16)
    pixels = dict(mean=[127.5] * 3, std=[127.5] * 3)
    model = dict(type='ImageClassifier', backbone=backbone, head=head)
    return Config(dict(default_scope='mmpretrain', model=model, data_preprocessor=pixels))


@pytest.mark.parametrize('device', ['cpu', 'meta'])
@pytest.mark.parametrize(('height', 'width'), [(32, 32), (41, 17), (1, 1)])
def test_counts_of_a_classifier(height, width, device):
    """Every pixel counts: sizes are rounded up."""
    pytest.importorskip('mmpretrain')
    cells = math.ceil(height / 8) * math.ceil(width / 8)
    linear = 4 * 16**2 + 2 * 3 * 16**2
    layers = cells * (3 * 8**2 * 16 + 2 * linear + 9 * 16) + 16 * 5
    attention = 2 * 2 * cells**2 * 16
    with torch.device(device):
        (found,) = complexity_against_size({'model': classifier()}, [(height, width)])
    assert found.attention_gmacs * 1e9 == pytest.approx(attention)
    assert found.gmacs * 1e9 == pytest.approx(layers + attention)
    block = linear + 4 * 16 + (3 + 1) * 16 + 4 * 16  # biases of attention and MLP, two norms
    assert found.parameters == (3 * 8**2 + 1) * 16 + 2 * block + 10 * 16 + 2 * 16 + 17 * 5


def test_windows_reduce_attention_only():
    pytest.importorskip('mmpretrain')
    whole, windowed = (
        measured(classifier(), 128, 128),
        measured(classifier(window_size=4), 128, 128),
    )
    assert whole.parameters == windowed.parameters
    assert whole.gmacs - whole.attention_gmacs == pytest.approx(
        windowed.gmacs - windowed.attention_gmacs
    )
    assert windowed.attention_gmacs * 16 == pytest.approx(
        whole.attention_gmacs
    )  # 16 x 16 cells in 16 windows


def test_weights_of_init_cfg_are_not_loaded():
    """The checkpoint of an init_cfg may not exist locally."""
    pytest.importorskip('mmpretrain')
    promised = classifier(init_cfg=dict(type='Pretrained', checkpoint='there_is_no_such_file.pth'))
    assert measured(promised, 32, 32) == measured(classifier(), 32, 32)
    assert promised.model.backbone.init_cfg.type == 'Pretrained'


def test_second_stage_is_counted(config):
    small = {
        'model.backbone.arch': dict(
            _delete_=True, embed_dims=16, depth=1, num_heads=2, mlp_ratio=1
        ),
        'model.backbone.position': dict(type='PEG', after_blocks=(0,)),
        'model.neck.in_channels': [4, 8, 16, 16],
        'model.neck.out_channels': 8,
        'model.rpn_head.in_channels': 8,
        'model.rpn_head.feat_channels': 8,
        'model.roi_head.bbox_roi_extractor.out_channels': 8,
        'model.roi_head.mask_roi_extractor.out_channels': 8,
        'model.roi_head.bbox_head.in_channels': 8,
        'model.roi_head.bbox_head.fc_out_channels': 8,
        'model.roi_head.mask_head.in_channels': 8,
        'model.roi_head.mask_head.conv_out_channels': 8,
    }
    name = 'mask_rcnn/mask-rcnn_multiscale-cpvt-s_fpn_1x_coco'
    few, more = (
        complexity_against_size(
            {'': config(name, **small, **{'model.test_cfg.rpn.max_per_img': rois})}, [(64, 96)]
        )[0]
        for rois in (2, 7)
    )
    assert few.parameters == more.parameters
    # Five boxes more: two linear layers, then scores and corners of 80 classes; and masks, 14 x 14
    # to 28 x 28 px.
    box = 8 * 7**2 * 8 + 8**2 + 8 * (81 + 4 * 80)
    mask = 14**2 * (4 * 9 * 8**2 + 4 * 8**2) + 28**2 * 8 * 80
    assert (more.gmacs - few.gmacs) * 1e9 == pytest.approx(5 * (box + mask))


COLUMN = dict(
    type='CPVT',
    arch=dict(embed_dims=16, depth=2, num_heads=2, mlp_ratio=3),
    patch_size=8,
    with_cls_token=False,
    init_cfg=dict(type='Pretrained', checkpoint='there_is_no_such_file.pth'),
)


def test_counts_by_image_size():
    rows = complexity_against_size({'column': COLUMN}, [(32, 32), (64, 64), (41, 96)])
    for row, cells in zip(rows, (16, 64, 6 * 12), strict=True):
        linear = 4 * 16**2 + 2 * 3 * 16**2
        layers = cells * (3 * 8**2 * 16 + 2 * linear + 9 * 16)
        assert row.attention_gmacs * 1e9 == pytest.approx(2 * 2 * cells**2 * 16)
        assert row.gmacs * 1e9 == pytest.approx(layers + row.attention_gmacs * 1e9)
        assert row.attention_share == pytest.approx(row.attention_gmacs / row.gmacs)
        assert row.peak_mib is None
    assert rows[0].parameters == rows[1].parameters


def test_configs_other_packages_and_memory(trained, tmp_path):
    path, _ = trained('mmseg')
    cfg = read_config(path, work_dir=tmp_path / 'work')
    models = {
        'config': cfg,
        'theirs': dict(type='mmseg.VisionTransformer', embed_dims=24, num_heads=3, num_layers=1),
    }
    rows = complexity_against_size(models, [(64, 96)], memory='cpu')
    cells = 4 * 6 + 1
    assert rows[1].attention_gmacs * 1e9 == pytest.approx(2 * cells**2 * 24)
    assert all(row.peak_mib is not None and row.peak_mib >= 0 for row in rows)
    assert torch.zeros(1).device.type == 'cpu'  # the default device is restored
