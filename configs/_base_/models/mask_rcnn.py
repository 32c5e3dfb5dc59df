# mmdet's Mask R-CNN for any backbone with strides 4, 8, 16 and 32. A leaf sets the backbone and the
# neck's in_channels. Predictions on ignored objects (difficult, iscrowd, cut off by a tile) are not
# background.
_base_ = 'mmdet::_base_/models/mask-rcnn_r50_fpn.py'
assigner = dict(type='IgnoreAwareMaxIoUAssigner')
model = dict(
    backbone=dict(_delete_=True),
    train_cfg=dict(rpn=dict(assigner=assigner), rcnn=dict(assigner=assigner)),
)
