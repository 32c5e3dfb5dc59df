# Swin-T with PVT's recipe: 8 GPUs * 4 crops = 32, drop path 0.2.
_base_ = './semantic-fpn_pyramid-cpvt-s_8xb4-40k_ade20k-512x512.py'
model = dict(
    backbone=dict(
        _delete_=True,
        type='mmseg.SwinTransformer',
        drop_path_rate=0.2,
        init_cfg=dict(
            type='Pretrained',
            checkpoint='https://download.openmmlab.com/mmsegmentation/v0.5/pretrain/swin/'
            'swin_tiny_patch4_window7_224_20220317-1cdeb081.pth',
        ),
    ),
    neck=dict(in_channels=[96, 192, 384, 768]),
)
optim_wrapper = dict(
    paramwise_cfg=dict(custom_keys={'relative_position_bias_table': dict(decay_mult=0.0)})
)
