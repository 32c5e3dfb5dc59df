# Semantic FPN for any backbone with strides 4, 8, 16 and 32. A leaf sets the backbone, the neck's
# in_channels and num_classes, and SyncBN where a published figure has it: GroupNorm gives the same
# result for any batch and GPUs.
_base_ = './segmentor.py'
model = dict(
    neck=dict(type='FPN', out_channels=256, num_outs=4),
    decode_head=dict(
        type='FPNHead',
        in_channels=[256, 256, 256, 256],
        in_index=[0, 1, 2, 3],
        feature_strides=[4, 8, 16, 32],
        channels=128,
        dropout_ratio=0.1,
        norm_cfg=dict(type='GN', num_groups=32),
        align_corners=False,
        loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=False, loss_weight=1.0),
    ),
)
