# ViTDet's data and schedule (arXiv 2203.16527, appendix A.1): 8 GPUs * 8 images = 64, of 1024 px
# with large-scale jitter, 100 epochs as 25 of 4 times the images, AdamW, rates by layer: 0.7 a
# block. Norms and, unlike ViTDet's, biases are exempt from weight decay.
_base_ = 'mmdet::common/lsj-100e_coco-instance.py'
test_pipeline = _base_.test_pipeline
test_pipeline[1].scale = (1024, 1024)
train_dataloader = dict(batch_size=8)
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
optim_wrapper = dict(
    constructor='LayerDecayOptimWrapperConstructor',
    optimizer=dict(_delete_=True, type='AdamW', lr=1e-4, betas=(0.9, 0.999), weight_decay=0.1),
    paramwise_cfg=dict(layer_decay_rate=0.7, norm_decay_mult=0.0, bias_decay_mult=0.0),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-3, by_epoch=False, begin=0, end=250),
    dict(type='MultiStepLR', by_epoch=True, begin=0, end=25, milestones=[22, 24], gamma=0.1),
]
custom_imports = dict(imports=['cpvt_backbones'])
runner_type = 'ResumableRunner'
default_hooks = dict(checkpoint=dict(type='DurableCheckpointHook'))
