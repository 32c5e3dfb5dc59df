# mmdet's DINO, four scales, 12 epochs: 8 GPUs * 2 images = 16. The backbone learns at a tenth of
# the rate.
_base_ = 'mmdet::dino/dino-4scale_r50_8xb2-12e_coco.py'
model = dict(
    backbone=dict(
        _delete_=True,
        type='PyramidCPVT',
        arch='small',
        out_indices=(1, 2, 3),
        drop_path_rate=0.2,
        init_cfg=dict(type='Pretrained', checkpoint='timm://twins_pcpvt_small.in1k'),
    ),
    neck=dict(in_channels=[128, 320, 512]),
    bbox_head=dict(type='IgnoreAwareDINOHead'),
)
no_decay = dict(lr_mult=0.1, decay_mult=0.0)
optim_wrapper = dict(paramwise_cfg=dict(custom_keys={'backbone.pos_block': no_decay}))
custom_imports = dict(imports=['cpvt_backbones'])
runner_type = 'ResumableRunner'
default_hooks = dict(
    checkpoint=dict(type='DurableCheckpointHook', max_keep_ckpts=1),
)
