# mmengine's defaults are left out: env_cfg, and the hooks that take no options.
default_scope = 'mmseg'
custom_imports = dict(imports=['cpvt_backbones'])
runner_type = 'ResumableRunner'
default_hooks = dict(
    logger=dict(type='LoggerHook', interval=50),
    checkpoint=dict(type='DurableCheckpointHook', by_epoch=False, interval=1000, max_keep_ckpts=1),
    visualization=dict(type='SegVisualizationHook'),
)
visualizer = dict(
    type='SegLocalVisualizer', vis_backends=[dict(type='LocalVisBackend')], name='visualizer'
)
log_processor = dict(by_epoch=False)
load_from = None
resume = False
# tools/test.py --tta: logits averaged over the dataset's tta_pipeline.
tta_model = dict(type='SegTTAModel')
