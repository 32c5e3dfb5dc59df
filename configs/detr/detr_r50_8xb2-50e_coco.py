# mmdet's DETR for 50 epochs, as in the paper's comparison; the rate falls by 10 after 40 (the paper
# names no epoch).
_base_ = 'mmdet::detr/detr_r50_8xb2-150e_coco.py'
model = dict(bbox_head=dict(type='IgnoreAwareDETRHead'))
train_cfg = dict(max_epochs=50)
param_scheduler = [
    dict(type='MultiStepLR', by_epoch=True, begin=0, end=50, milestones=[40], gamma=0.1)
]
custom_imports = dict(imports=['cpvt_backbones'])
runner_type = 'ResumableRunner'
default_hooks = dict(
    checkpoint=dict(type='DurableCheckpointHook', max_keep_ckpts=1),
)
