# Twins' recipe: 8 GPUs * 2 crops = 16, drop path 0.2.
_base_ = [
    '../_base_/models/semantic_fpn.py',
    '../_base_/datasets/ade20k.py',
    '../_base_/schedules/ade20k_80k.py',
    '../_base_/runtime/mmseg.py',
]
model = dict(
    backbone=dict(
        type='PyramidCPVT',
        arch='small',
        init_cfg=dict(type='Pretrained', checkpoint='timm://twins_pcpvt_small.in1k'),
        drop_path_rate=0.2,
    ),
    neck=dict(in_channels=[64, 128, 320, 512]),
    decode_head=dict(
        num_classes=150, norm_cfg=dict(_delete_=True, type='SyncBN', requires_grad=True)
    ),
)
