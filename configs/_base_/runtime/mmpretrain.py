_base_ = 'mmpretrain::_base_/default_runtime.py'
custom_imports = dict(imports=['cpvt_backbones'])
runner_type = 'ResumableRunner'
default_hooks = dict(
    checkpoint=dict(
        type='DurableCheckpointHook', max_keep_ckpts=3, save_best='auto', rule='greater'
    )
)
# tools/test.py --tta: scores averaged over the dataset's tta_pipeline.
tta_model = dict(type='AverageClsScoreTTA')
