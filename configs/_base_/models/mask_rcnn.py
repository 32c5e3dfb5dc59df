# mmdet's Mask R-CNN for any backbone with strides 4, 8, 16 and 32. A leaf sets the backbone and the
# neck's in_channels.
_base_ = 'mmdet::_base_/models/mask-rcnn_r50_fpn.py'
model = dict(backbone=dict(_delete_=True))
