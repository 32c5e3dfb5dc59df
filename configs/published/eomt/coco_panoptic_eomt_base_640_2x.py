# EoMT-B with DINOv2's trunk on COCO panoptic at 640 px, 24 epochs, from its authors.
_base_ = './coco_panoptic_eomt_small_640_2x.py'
model = dict(
    backbone=dict(
        arch=dict(embed_dims=768, num_heads=12),
        init_cfg=dict(checkpoint='timm://vit_base_patch14_reg4_dinov2.lvd142m'),
    ),
    panoptic_head=dict(embed_dims=768),
)
