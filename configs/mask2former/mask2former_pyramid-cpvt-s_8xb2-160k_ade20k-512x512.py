# mmseg's Mask2Former: 8 GPUs * 2 crops = 16, AdamW at 1e-4, weight decay 0.05; the backbone at a
# tenth of the rate.
_base_ = [
    '../_base_/models/mask2former.py',
    '../_base_/datasets/ade20k.py',
    '../_base_/schedules/ade20k_160k.py',
    '../_base_/runtime/mmseg.py',
]
model = dict(
    backbone=dict(
        type='PyramidCPVT',
        arch='small',
        drop_path_rate=0.2,
        init_cfg=dict(type='Pretrained', checkpoint='timm://twins_pcpvt_small.in1k'),
    ),
    decode_head=dict(
        in_channels=[64, 128, 320, 512],
        num_classes=150,
        loss_cls=dict(class_weight=[1.0] * 150 + [0.1]),
    ),
)
no_decay = dict(decay_mult=0.0)
optim_wrapper = dict(
    optimizer=dict(lr=1e-4, weight_decay=0.05),
    clip_grad=dict(_delete_=True, max_norm=0.01),
    paramwise_cfg=dict(
        _delete_=True,
        norm_decay_mult=0.0,
        custom_keys={
            'backbone': dict(lr_mult=0.1),
            'backbone.pos_block': dict(lr_mult=0.1, decay_mult=0.0),
            **{part: no_decay for part in ('query_embed', 'query_feat', 'level_embed')},
        },
    ),
)
param_scheduler = [dict(type='PolyLR', power=0.9, eta_min=0.0, by_epoch=False, begin=0, end=160000)]
custom_imports = dict(imports=['cpvt_backbones', 'mmdet.models'])
