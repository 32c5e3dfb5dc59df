# mmdet's RetinaNet for any backbone with strides 8, 16 and 32. A leaf sets the backbone, the neck's
# in_channels and num_classes. Batches are padded to their largest image and no further: any size is
# accepted. Predictions on ignored objects (difficult, iscrowd, cut off by a tile) are not
# background.
_base_ = 'mmdet::_base_/models/retinanet_r50_fpn.py'
model = dict(
    data_preprocessor=dict(pad_size_divisor=1),
    backbone=dict(_delete_=True),
    neck=dict(start_level=0),
    train_cfg=dict(assigner=dict(type='IgnoreAwareMaxIoUAssigner')),
)
