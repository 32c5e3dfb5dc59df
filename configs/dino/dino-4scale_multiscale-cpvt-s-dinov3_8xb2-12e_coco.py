# DINOv3-S/16 with PEG, which starts as the identity; strides 8, 16 and 32 are made from its last
# map.
_base_ = './dino-4scale_pyramid-cpvt-s_8xb2-12e_coco.py'
model = dict(
    backbone=dict(
        _delete_=True,
        type='MultiScaleCPVT',
        arch='small',
        position=[dict(type='RoPE', mode='dinov3'), dict(type='PEG', after_blocks='0-5')],
        with_cls_token=True,
        num_registers=4,
        qkv_bias=False,
        layer_scale_init=1e-5,
        norm_eps=1e-5,
        out_indices=(1, 2, 3),
        drop_path_rate=0.1,
        init_cfg=dict(type='Pretrained', checkpoint='timm://vit_small_patch16_dinov3.lvd1689m'),
    ),
    neck=dict(in_channels=[192, 384, 384]),
)
