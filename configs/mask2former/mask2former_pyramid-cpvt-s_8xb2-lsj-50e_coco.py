# mmdet's Mask2Former for instances, 50 epochs: 8 GPUs * 2 images = 16. The backbone learns at a
# tenth of the rate.
_base_ = 'mmdet::mask2former/mask2former_r50_8xb2-lsj-50e_coco.py'
model = dict(
    backbone=dict(
        _delete_=True,
        type='PyramidCPVT',
        arch='small',
        drop_path_rate=0.2,
        init_cfg=dict(type='Pretrained', checkpoint='timm://twins_pcpvt_small.in1k'),
    ),
    panoptic_head=dict(type='IgnoreAwareMask2FormerHead', in_channels=[64, 128, 320, 512]),
)
no_decay = dict(lr_mult=0.1, decay_mult=0.0)
optim_wrapper = dict(paramwise_cfg=dict(custom_keys={'backbone.pos_block': no_decay}))
custom_imports = dict(imports=['cpvt_backbones'])
runner_type = 'ResumableRunner'
default_hooks = dict(checkpoint=dict(type='DurableCheckpointHook'))
