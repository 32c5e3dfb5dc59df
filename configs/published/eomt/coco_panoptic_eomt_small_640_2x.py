# EoMT-S with DINOv2's trunk on COCO panoptic at 640 px, 24 epochs, from its authors.
_base_ = './coco_panoptic_eomt_large_640.py'
model = dict(
    backbone=dict(
        arch=dict(_delete_=True, embed_dims=384, depth=12, num_heads=6, mlp_ratio=4.0),
        init_cfg=dict(checkpoint='timm://vit_small_patch14_reg4_dinov2.lvd142m'),
    ),
    panoptic_head=dict(embed_dims=384, num_blocks=3),
)
max_iters = 177384
train_cfg = dict(max_iters=max_iters)
param_scheduler = [dict(type='HeadFirstPolyLR', by_epoch=False, end=max_iters)]
