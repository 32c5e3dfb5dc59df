_base_ = 'mmdet::_base_/default_runtime.py'
custom_imports = dict(imports=['cpvt_backbones'])
runner_type = 'ResumableRunner'
default_hooks = dict(
    checkpoint=dict(type='DurableCheckpointHook', max_keep_ckpts=1),
)
# tools/test.py --tta: the image and its mirror image at three scales, boxes merged by NMS.
tta_model = dict(
    type='DetTTAModel', tta_cfg=dict(nms=dict(type='nms', iou_threshold=0.5), max_per_img=100)
)
