# EoMT-L for mmsegmentation, with DINOv2's trunk at 512 px. A test takes as few square windows as
# cover an image, as its authors do; `mode='whole'` computes the image in one piece.
_base_ = './segmentor.py'
model = dict(
    type='EoMTSegmentor',
    data_preprocessor=dict(test_cfg=None),  # the head maps each cell to its own pixels
    backbone=dict(
        type='CPVT',
        arch=dict(embed_dims=1024, depth=24, num_heads=16, mlp_ratio=4.0),
        img_size=512,
        num_registers=4,
        position=dict(type='Learned'),
        layer_scale_init=1e-5,
        init_cfg=dict(type='Pretrained', checkpoint='timm://vit_large_patch14_reg4_dinov2.lvd142m'),
    ),
    decode_head=dict(
        type='EoMTSegHead', embed_dims=1024, num_classes=150, num_queries=100, num_blocks=4
    ),
    test_cfg=dict(mode='slide', crop_size=(512, 512)),
)
