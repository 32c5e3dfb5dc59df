# A plain ViT at detection sizes: strides 8, 16 and 32 are made from its last map (ViTDet), stride 8
# half as wide. Rates by layer: 0.75 * 1e-4 for the block nearest to the neck, 0.75 ** 13 * 1e-4 =
# 2.4e-6 for the patch embedding.
_base_ = [
    '../_base_/models/retinanet.py',
    '../_base_/datasets/coco_detection.py',
    '../_base_/schedules/coco_1x.py',
    '../_base_/runtime/mmdet.py',
]
model = dict(
    backbone=dict(
        type='MultiScaleCPVT',
        arch='small',
        init_cfg=dict(type='Pretrained', checkpoint='timm://deit_small_patch16_224.fb_in1k'),
        # The table of the weights, resized, and PEG as the identity.
        position=[dict(type='Learned'), dict(type='PEG', after_blocks='0-5')],
        drop_path_rate=0.1,
        out_indices=(1, 2, 3),
    ),
    neck=dict(in_channels=[192, 384, 384]),
    bbox_head=dict(num_classes=80),
)
optim_wrapper = dict(
    constructor='LayerDecayOptimWrapperConstructor',
    optimizer=dict(weight_decay=0.05),
    paramwise_cfg=dict(layer_decay_rate=0.75),
)
