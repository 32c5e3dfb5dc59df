_base_ = './common.py'
default_scope = 'mmpretrain'
default_hooks = dict(
    timer=dict(type='IterTimerHook'),
    logger=dict(type='LoggerHook', interval=100),
    param_scheduler=dict(type='ParamSchedulerHook'),
    checkpoint=dict(type='DurableCheckpointHook', interval=1, max_keep_ckpts=3, save_best='auto', rule='greater'),
    sampler_seed=dict(type='DistSamplerSeedHook'),
    visualization=dict(type='VisualizationHook', enable=False),
)
visualizer = dict(type='UniversalVisualizer', vis_backends=[dict(type='LocalVisBackend')])
# tools/test.py --tta: scores averaged over the dataset's tta_pipeline.
tta_model = dict(type='AverageClsScoreTTA')
