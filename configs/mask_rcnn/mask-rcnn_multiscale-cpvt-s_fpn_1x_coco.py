# A plain ViT at detection sizes: strides 4 to 32 are made from its last map (ViTDet). Layer-wise
# learning rates.
_base_ = [
    '../_base_/models/mask_rcnn.py',
    '../_base_/datasets/coco_instance.py',
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
    ),
    neck=dict(in_channels=[96, 192, 384, 384]),
)
optim_wrapper = dict(
    constructor='LayerDecayOptimWrapperConstructor',
    optimizer=dict(lr=2e-4, weight_decay=0.05),
    paramwise_cfg=dict(layer_decay_rate=0.75),
)
tta_model = None  # mmdet merges boxes, not masks
