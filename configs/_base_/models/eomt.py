# EoMT-L for mmdet, with DINOv2's trunk at 640 px. Images are padded with black to a square of
# `square` px inside the model, as its authors do; `square=None` computes an image alone.
model = dict(
    type='EoMT',
    data_preprocessor=dict(
        type='ValidSizesDetDataPreprocessor',
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        pad_mask=True,
        mask_pad_value=0,
        pad_seg=True,
        seg_pad_value=255,
    ),
    backbone=dict(
        type='CPVT',
        arch=dict(embed_dims=1024, depth=24, num_heads=16, mlp_ratio=4.0),
        img_size=640,
        num_registers=4,
        position=dict(type='Learned'),
        layer_scale_init=1e-5,
        init_cfg=dict(type='Pretrained', checkpoint='timm://vit_large_patch14_reg4_dinov2.lvd142m'),
    ),
    panoptic_head=dict(type='EoMTHead', embed_dims=1024, num_queries=200, num_blocks=4),
    test_cfg=dict(
        panoptic_on=True,
        instance_on=False,
        object_mask_thr=0.8,
        iou_thr=0.8,
        max_per_image=100,
        square=640,
    ),
)
