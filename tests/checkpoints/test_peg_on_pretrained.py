"""A detector on a pretrained trunk with its own encoding and new PEGs: step 0 is the trunk without
PEG, bit for bit.
"""

import pytest
import torch
from tiny import COLUMN, build, column, randomise, retinanet

from cpvt_backbones.backbones import announce_sizes

PRETRAINED = {
    'deit': dict(position=[dict(type='Learned')]),
    'rope_vit': dict(
        position=[dict(type='Learned'), dict(type='RoPE', mode='mixed')], layer_scale_init=0.1
    ),
    'dinov3': dict(
        position=[dict(type='RoPE', mode='dinov3')],
        num_registers=4,
        qkv_bias=False,
        layer_scale_init=0.1,
        norm_eps=1e-5,
    ),
}
TRAIN_CFG = dict(
    assigner=dict(type='MaxIoUAssigner', pos_iou_thr=0.5, neg_iou_thr=0.4, min_pos_iou=0),
    sampler=dict(type='PseudoSampler'),
    allowed_border=-1,
    pos_weight=-1,
)
PEGS = {
    'dense': dict(type='PEG', after_blocks='0-5'),
    'bn': dict(type='PEG', norm='BN', act='GELU', bias=False),
}


def losses(model):
    """Of two images with one box each, one of them padded, with gradients."""
    from mmdet.structures import DetDataSample
    from mmengine.structures import InstanceData

    samples = []
    for height, width in ((64, 96), (64, 80)):
        sample = DetDataSample(
            metainfo=dict(img_shape=(height, width), pad_shape=(64, 96), batch_input_shape=(64, 96))
        )
        sample.gt_instances = InstanceData(
            bboxes=torch.tensor([[10.0, 12.0, 60.0, 50.0]]),
            labels=torch.tensor([1]),
            ignored=torch.tensor([False]),
        )
        samples.append(sample)
    images = torch.randn(2, 3, 64, 96, generator=torch.Generator().manual_seed(0))
    announce_sizes(images, [(64, 96), (64, 80)])
    found = model.loss(images, samples)
    sum(sum(loss) for loss in found.values()).backward()
    return {name: torch.stack(list(loss)) for name, loss in found.items()}


@pytest.mark.parametrize(
    ('trunk', 'peg', 'window_size'),
    [
        *(('deit', 'dense', None), ('deit', 'bn', 3)),
        *(('rope_vit', 'dense', 3), ('rope_vit', 'bn', None)),
        *(('dinov3', 'dense', None), ('dinov3', 'bn', 3)),
    ],
)
def test_step_0_has_the_losses_of_the_trunk_without_peg(trunk, peg, window_size, tmp_path):
    torch.save(randomise(column(**PRETRAINED[trunk])).state_dict(), tmp_path / 'trunk.pth')
    backbone = dict(
        type='MultiScaleCPVT',
        arch=COLUMN,
        img_size=64,
        with_cls_token=True,
        window_size=window_size,
        init_cfg=dict(type='Pretrained', checkpoint=str(tmp_path / 'trunk.pth')),
        **PRETRAINED[trunk],
    )
    without = build(retinanet(backbone, train_cfg=TRAIN_CFG))
    both = {**backbone, 'position': [*backbone['position'], PEGS[peg]]}
    with_peg = build(retinanet(both, train_cfg=TRAIN_CFG))
    for model in (without, with_peg):
        model.init_weights()
    new = {
        k: v
        for k, v in without.state_dict().items()
        if not k.startswith('backbone.') or '.pyramid.' in k
    }
    with_peg.load_state_dict(new, strict=False)
    expected, found = losses(without), losses(with_peg)
    assert expected.keys() == found.keys() and all(
        torch.equal(found[name], expected[name]) for name in expected
    )
    pegs = [p for name, p in with_peg.named_parameters() if '.pos_block.' in name]
    assert pegs and any(p.grad.abs().max() > 0 for p in pegs)
