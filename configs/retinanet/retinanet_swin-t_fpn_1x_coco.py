# Swin-T in PVT's and Twins' setting: drop path 0.2; 8 GPUs * 2 images = 16.
_base_ = './retinanet_pyramid-cpvt-s_fpn_1x_coco.py'
model = dict(
    backbone=dict(
        _delete_=True,
        type='mmdet.SwinTransformer',
        out_indices=(1, 2, 3),
        drop_path_rate=0.2,
        convert_weights=True,
        init_cfg=dict(
            type='Pretrained',
            checkpoint='https://github.com/SwinTransformer/storage/releases/download/v1.0.0/'
            'swin_tiny_patch4_window7_224.pth',
        ),
    ),
    neck=dict(in_channels=[192, 384, 768], start_level=0),
)
optim_wrapper = dict(
    paramwise_cfg=dict(custom_keys={'relative_position_bias_table': dict(decay_mult=0.0)})
)
