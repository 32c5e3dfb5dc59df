"""Parameters and operations against published numbers and arithmetic, counted on the meta
device.
"""

import math

import pytest
import torch
from mmengine.config import Config
from tiny import image_classifier, only

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


def measured(model, height, width):
    with torch.device('meta'):
        return complexity_against_size({'model': model}, [(height, width)])[0]


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


@pytest.mark.parametrize(('arch', 'giga'), only(of=[('s', 40), ('b', 55), ('l', 71)]))
def test_published_operations_of_semantic_fpn(arch, giga, config):
    """Published: 512 x 512 px, without attention's own products, rounded down.

    These are two products of queries, keys and channels a block. Reductions by 8, 4, 2, 1 leave
    16 x 16 keys in each stage.
    """
    found = measured(config(SEMANTIC_FPN.format(arch)), 512, 512)
    assert int(found.gmacs - found.attention_gmacs) == giga
    if arch == 's':
        stages = zip((3, 4, 6, 3), (128, 64, 32, 16), (64, 128, 320, 512), strict=True)
        products = sum(depth * 2 * side**2 * 16**2 * dim for depth, side, dim in stages)
        assert found.attention_gmacs * 1e9 == products


def without_padding(self, images):
    feature_map = self.proj(images)
    return self.norm(map_to_tokens(feature_map)), tuple(feature_map.shape[2:])


@pytest.mark.parametrize(('arch', 'giga'), [('s', 118), ('b', 151)])
@pytest.mark.full
def test_published_operations_of_retinanet(arch, giga, config, monkeypatch):
    """Published: 800 x 600 px with attention; the authors crop to whole patches."""
    cfg = config(RETINANET.format(arch))
    ours = measured(cfg, 800, 600)
    monkeypatch.setattr(PatchEmbed, 'forward', without_padding)
    theirs = measured(cfg, 800, 600)
    assert int(theirs.gmacs) == giga
    assert theirs.gmacs < ours.gmacs <= 1.02 * theirs.gmacs


ARCH = dict(embed_dims=16, depth=2, num_heads=2, mlp_ratio=3)
COLUMN = dict(type='CPVT', arch=ARCH, patch_size=8, with_cls_token=False, out_type='avg_featmap')


def classifier(**options):
    model = image_classifier(COLUMN, classes=5)
    model['backbone'].update(options)
    return Config(dict(default_scope='mmpretrain', model=model))


@pytest.mark.parametrize('device', ['cpu', 'meta'])
def test_counts_of_a_classifier_by_image_size(device):
    """Every pixel counts: sizes are rounded up."""
    pytest.importorskip('mmpretrain')
    sizes = [(32, 32), (41, 17), (1, 1), (41, 96)]
    with torch.device(device):
        rows = complexity_against_size({'model': classifier()}, sizes)
    linear = 4 * 16**2 + 2 * 3 * 16**2
    block = linear + 4 * 16 + (3 + 1) * 16 + 4 * 16  # biases of attention and MLP, two norms
    for row, (height, width) in zip(rows, sizes, strict=True):
        cells = math.ceil(height / 8) * math.ceil(width / 8)
        layers = cells * (3 * 8**2 * 16 + 2 * linear + 9 * 16) + 16 * 5
        attention = 2 * 2 * cells**2 * 16
        assert row.attention_gmacs * 1e9 == pytest.approx(attention)
        assert row.gmacs * 1e9 == pytest.approx(layers + attention)
        assert row.attention_share == pytest.approx(row.attention_gmacs / row.gmacs)
        assert row.parameters == (3 * 8**2 + 1) * 16 + 2 * block + 10 * 16 + 2 * 16 + 17 * 5
        assert row.peak_mib is None


def test_windows_reduce_attention_only():
    pytest.importorskip('mmpretrain')
    models = classifier(), classifier(window_size=4)
    whole, windowed = (measured(model, 128, 128) for model in models)
    assert whole.parameters == windowed.parameters
    layers = [row.gmacs - row.attention_gmacs for row in (whole, windowed)]
    assert layers[0] == pytest.approx(layers[1])
    # 16 x 16 cells in 16 windows.
    assert windowed.attention_gmacs * 16 == pytest.approx(whole.attention_gmacs)


def test_weights_of_init_cfg_are_not_loaded():
    """The checkpoint of an init_cfg may not exist locally."""
    pytest.importorskip('mmpretrain')
    promised = classifier(init_cfg=dict(type='Pretrained', checkpoint='there_is_no_such_file.pth'))
    assert measured(promised, 32, 32) == measured(classifier(), 32, 32)
    assert promised.model.backbone.init_cfg.type == 'Pretrained'
    backbone = promised.model.backbone.to_dict()
    assert measured(backbone, 32, 32).gmacs < measured(promised, 32, 32).gmacs


def test_second_stage_is_counted(config):
    arch = dict(_delete_=True, embed_dims=16, depth=1, num_heads=2, mlp_ratio=1)
    small = {
        'backbone.arch': arch,
        'backbone.position': [dict(type='PEG', after_blocks=(0,))],
        'neck.in_channels': [4, 8, 16, 16],
        'roi_head.bbox_head.fc_out_channels': 8,
        'roi_head.mask_head.conv_out_channels': 8,
    }
    heads = ('roi_head.bbox_head', 'roi_head.mask_head', 'rpn_head')
    extractors = ('roi_head.bbox_roi_extractor', 'roi_head.mask_roi_extractor', 'neck')
    small |= {f'{head}.in_channels': 8 for head in heads} | {'rpn_head.feat_channels': 8}
    small |= {f'{part}.out_channels': 8 for part in extractors}

    def counted(rois):
        options = {**small, 'test_cfg.rpn.max_per_img': rois}
        options = {f'model.{key}': value for key, value in options.items()}
        cfg = config('mask_rcnn/mask-rcnn_multiscale-cpvt-s_fpn_1x_coco', **options)
        return complexity_against_size({'': cfg}, [(64, 96)])[0]

    few, more = counted(2), counted(7)
    assert few.parameters == more.parameters
    # Five boxes more: two linear layers, then scores and corners of 80 classes; and masks, 14 x 14
    # to 28 x 28 px.
    box = 8 * 7**2 * 8 + 8**2 + 8 * (81 + 4 * 80)
    mask = 14**2 * (4 * 9 * 8**2 + 4 * 8**2) + 28**2 * 8 * 80
    assert (more.gmacs - few.gmacs) * 1e9 == pytest.approx(5 * (box + mask))


def test_configs_other_packages_and_memory(trained, tmp_path):
    path, _ = trained('mmseg')
    theirs = dict(type='mmseg.VisionTransformer', embed_dims=24, num_heads=3, num_layers=1)
    models = dict(config=read_config(path, work_dir=tmp_path / 'work'), theirs=theirs)
    rows = complexity_against_size(models, [(64, 96)], memory='cpu')
    cells = 4 * 6 + 1
    assert rows[1].attention_gmacs * 1e9 == pytest.approx(2 * cells**2 * 24)
    assert all(row.peak_mib is not None and row.peak_mib >= 0 for row in rows)
    assert torch.zeros(1).device.type == 'cpu'  # the default device is restored
