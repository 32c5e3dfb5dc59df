# Mask R-CNN for any backbone with strides 4, 8, 16 and 32: mmdet's own, whose backbone and neck.in_channels a leaf
# sets.
_base_ = 'mmdet::_base_/models/mask-rcnn_r50_fpn.py'
