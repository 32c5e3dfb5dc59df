"""WithPEG: PEGs behind blocks of backbones of other packages, and DETR with PEG."""

import copy

import pytest
import torch
from mmengine.registry import MODELS, init_default_scope
from tiny import assert_equal_outputs, max_difference, randomise

from cpvt_backbones.layers import PEG

SIZES = ((64, 96), (97, 131), (33, 200))


def swin(scope):
    return dict(
        type=f'{scope}.SwinTransformer', embed_dims=12, depths=(1, 1, 2, 1), num_heads=(1, 2, 3, 4)
    )


# toolbox: backbone, blocks, widths
BACKBONES = {
    'mmdet_swin': ('mmdet', swin('mmdet'), ('stages.0.blocks.0', 'stages.2.blocks.1'), (12, 48)),
    'mmseg_swin': ('mmseg', swin('mmseg'), ('stages.0.blocks.0', 'stages.2.blocks.1'), (12, 48)),
    'mmdet_pvt': (
        'mmdet',
        dict(
            type='mmdet.PyramidVisionTransformer',
            embed_dims=8,
            num_layers=[1, 1, 2, 1],
            num_heads=[1, 1, 1, 1],
        ),
        ('layers.0.1.0', 'layers.2.1.1'),
        (8, 8),
    ),
    'mmdet_resnet': (
        'mmdet',
        dict(type='mmdet.ResNet', depth=18, base_channels=8),
        ('conv1', 'layer1', 'layer3.1'),
        (8, 8, 32),
    ),
    'mmpretrain_swin': (  # its stages halve the map
        'mmpretrain',
        dict(
            type='mmpretrain.SwinTransformer',
            arch=dict(embed_dims=12, depths=[1, 1, 2, 1], num_heads=[1, 2, 3, 4]),
            pad_small_map=True,
        ),
        ('stages.1', 'stages.3.blocks.0'),
        (24, 96),
    ),
}


def with_peg(backbone, after, **options):
    return MODELS.build(
        dict(type='WithPEG', backbone=copy.deepcopy(backbone), after=after, **options)
    )


def outputs(model, size):
    """Outputs in evaluation mode; mmdet's ``Swin.eval()`` does not return the model."""
    model.eval()
    with torch.no_grad():
        return model(torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(0)))


def assert_same(left, right, size):
    assert_equal_outputs(outputs(left, size), outputs(right, size))


@pytest.fixture(params=list(BACKBONES))
def case(request):
    scope, *rest = BACKBONES[request.param]
    pytest.importorskip(scope)
    init_default_scope(scope)
    return rest


def test_starts_as_the_backbone_and_encodes_from_then_on(case):
    backbone, after, widths = case
    torch.manual_seed(1)
    plain = MODELS.build(copy.deepcopy(backbone))
    torch.manual_seed(1)
    model = with_peg(backbone, after, kernel_size=5)
    assert type(model) is type(plain)
    assert [model.pos_block[str(i)].dim for i in range(len(after))] == list(widths)
    assert model.state_dict().keys() - plain.state_dict().keys() == {
        f'pos_block.{i}.proj.0.{part}' for i in range(len(after)) for part in ('weight', 'bias')
    }
    for size in SIZES:
        assert_same(plain, model, size)
    randomise(model.pos_block)
    twin = copy.deepcopy(model)
    # A copy has PEGs of its own, and a plain backbone's weights load by their names.
    missing, unexpected = twin.load_state_dict(plain.state_dict(), strict=False)
    assert not unexpected and all(key.startswith('pos_block.') for key in missing)
    for parameter in twin.pos_block.parameters():
        torch.nn.init.zeros_(parameter)
    assert_same(plain, twin, SIZES[0])
    assert max_difference(outputs(plain, SIZES[0])[-1], outputs(model, SIZES[0])[-1]) > 1e-3


def test_every_peg_is_trained_from_the_first_step(case):
    backbone, after, _ = case
    model = with_peg(backbone, after)
    sum(output.square().mean() for output in model(torch.randn(2, 3, 64, 96))).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.pos_block.parameters())


def test_encodes_the_output_of_the_block_on_its_grid():
    pytest.importorskip('mmdet')
    model = with_peg(swin('mmdet'), ('stages.0.blocks.0',))
    block, peg = model.stages[0].blocks[0], randomise(model.pos_block['0'])
    tokens = torch.randn(2, 12, 12)
    block.eval()
    with torch.no_grad():
        found = block(tokens, (2, 6))
        block._forward_hooks.clear()
        assert torch.equal(found, peg(block(tokens, (2, 6)), (2, 6)))


class Maps(torch.nn.Module):
    """A backbone whose block gives (B, H, W, C)."""

    class Block(torch.nn.Module):
        def forward(self, x):
            return x.permute(0, 2, 3, 1)

    def __init__(self):
        super().__init__()
        self.block = self.Block()

    def forward(self, x):
        return (self.block(x),)


def test_maps_with_channels_last():
    MODELS.register_module(module=Maps, force=True)
    model = with_peg(dict(type='Maps'), ('block',), channels_last=True)
    peg = randomise(model.pos_block['0'])
    (found,) = outputs(model, (5, 7))
    (tokens,) = outputs(Maps(), (5, 7))
    assert peg.dim == 3
    assert torch.equal(found, peg(tokens.flatten(1, 2), (5, 7)).unflatten(1, (5, 7)))


def test_initial_weights_are_those_the_backbone_names(tmp_path):
    pytest.importorskip('mmdet')
    backbone = dict(type='mmdet.ResNet', depth=18, base_channels=8)
    source = MODELS.build(backbone)
    torch.save(source.state_dict(), tmp_path / 'resnet.pth')
    init_cfg = dict(type='Pretrained', checkpoint=str(tmp_path / 'resnet.pth'))
    model = with_peg({**backbone, 'init_cfg': init_cfg}, ('layer1', 'layer2'))
    model.init_weights()
    assert_same(source, model, (64, 64))


BLOCK = ('stages.0.blocks.0',)


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        (dict(after=('stages.0.blocks.7',)), r"such as \['stages.0.bl.*got 'stages.0.blocks.7'"),
        (dict(after=BLOCK * 2), 'after must be different names'),
        (dict(after='stages.0.blocks.0'), 'after must be different names'),
        (dict(after=()), 'after must be different names'),
        (dict(after=('stages',)), "must name modules that SwinTransformer calls, got 'stages'"),
        (dict(after=BLOCK, padding='none'), "padding must be 'zero'.*got 'none'"),
        (dict(after=BLOCK, channels_last=1), 'channels_last must be True or False, got 1'),
        (dict(after=BLOCK, kernel_size=2), 'kernel_size must be an odd integer'),
        (dict(after=BLOCK, size=3), "has no argument 'size'"),
        (dict(after=('blocks.3',), backbone=dict(type='CPVT', arch='tiny')), 'without pos_block'),
    ],
)
def test_refuses(options, message):
    pytest.importorskip('mmdet')
    with pytest.raises((ValueError, TypeError), match=message):
        with_peg(**{'backbone': swin('mmdet'), **options})


def test_refuses_tokens_without_a_grid():
    pytest.importorskip('mmpretrain')
    vit = dict(type='mmpretrain.VisionTransformer', arch='deit-tiny', img_size=64, patch_size=16)
    with pytest.raises(
        ValueError, match=r"tokens of 'layers.0' must fill .*64 x 64 px\), got 17 \(a class token"
    ):
        with_peg(vit, ('layers.0',))
    patches = with_peg({**vit, 'with_cls_token': False, 'out_type': 'avg_featmap'}, ('layers.0',))
    for size in ((64, 144), (96, 64), (32, 128)):  # 4 x 9 tokens are no square
        outputs(patches, size)


# -- DETR
# --------------------------------------------------------------------------------------------------


def detr(**encoder):
    pytest.importorskip('mmdet')
    import cpvt_backbones.engine.detr  # noqa: F401

    init_default_scope('mmdet')
    loss_cls = dict(type='CrossEntropyLoss', bg_cls_weight=0.1, class_weight=1.0)
    attention, ffn = dict(embed_dims=16, num_heads=2), dict(embed_dims=16, feedforward_channels=16)
    return MODELS.build(
        dict(
            type='DETRWithPEG',
            num_queries=4,
            backbone=dict(type='mmdet.ResNet', depth=18, base_channels=8, out_indices=(3,)),
            neck=dict(
                type='mmdet.ChannelMapper',
                in_channels=[64],
                out_channels=16,
                act_cfg=None,
                num_outs=1,
            ),
            encoder=dict(
                num_layers=2, layer_cfg=dict(self_attn_cfg=attention, ffn_cfg=ffn), **encoder
            ),
            decoder=dict(
                num_layers=1,
                layer_cfg=dict(self_attn_cfg=attention, cross_attn_cfg={**attention}, ffn_cfg=ffn),
            ),
            positional_encoding=dict(num_feats=8, normalize=True),
            bbox_head=dict(type='mmdet.DETRHead', num_classes=3, embed_dims=16, loss_cls=loss_cls),
        )
    ).eval()


PAPER = dict(after_blocks=(0,), bias=False, norm='BN', act='ReLU')


@pytest.mark.parametrize('layers', [(-1,), (0,), (0, 1)])
def test_detr_encodes_after_the_named_layers_and_keeps_padded_tokens(layers):
    model = detr(peg={**PAPER, 'after_blocks': layers})
    pegs = [module for module in model.modules() if isinstance(module, PEG)]
    assert len(pegs) == len(layers)
    randomise(model.pos_block)
    tokens, mask = torch.randn(2, 12, 16), torch.zeros(2, 12, dtype=torch.bool)
    mask[1, 3::4] = mask[1, 8:] = True  # 3 x 4 tokens, of which 2 x 3 are an image

    def expected(x, mask):
        pegs_left = list(pegs)
        for index in range(-1, 2):
            x = x if index < 0 else model.encoder.layers[index](x, None, mask)
            if index in layers:
                encoded = pegs_left.pop(0)(x, (3, 4))
                x = encoded if mask is None else torch.where(mask[..., None], x, encoded)
        return x

    with torch.no_grad():
        for m in (None, mask):
            memory = model.forward_encoder(tokens, m, torch.randn(2, 12, 16), (3, 4))['memory']
            assert torch.equal(memory, expected(tokens, m))
    if layers == (0,):
        counted = sum(p.numel() for p in model.pos_block.parameters())
        assert counted == 16 * 9 + 2 * 16  # a kernel without bias, and BatchNorm


def test_detr_without_encoding_is_blind_to_the_order_of_its_tokens():
    model, order = detr(), torch.randperm(12)
    tokens = torch.randn(2, 12, 16)
    with torch.no_grad():
        straight = model.forward_encoder(tokens, None, None, (3, 4))['memory']
        shuffled = model.forward_encoder(tokens[:, order], None, None, (3, 4))['memory']
        assert model.pos_block is None
        assert max_difference(straight[:, order], shuffled) < 1e-5
        model = detr(peg=dict(after_blocks=(0,)))
        straight = model.forward_encoder(tokens, None, None, (3, 4))['memory']
        shuffled = model.forward_encoder(tokens[:, order], None, None, (3, 4))['memory']
        assert max_difference(straight[:, order], shuffled) > 1e-3
