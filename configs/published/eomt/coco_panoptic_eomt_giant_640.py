# EoMT-g with DINOv2's trunk on COCO panoptic at 640 px, from its authors.
_base_ = './coco_panoptic_eomt_large_640.py'
model = dict(
    backbone=dict(
        arch=dict(embed_dims=1536, depth=40, num_heads=24, mlp_ratio=8 / 3),
        activation='swiglu',
        init_cfg=dict(checkpoint='timm://vit_giant_patch14_reg4_dinov2.lvd142m'),
    ),
    panoptic_head=dict(embed_dims=1536, num_blocks=5),
)
