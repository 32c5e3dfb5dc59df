# A plain ViT with PVT's schedule; strides 4 to 32 are made from its last map.
_base_ = './semantic-fpn_pyramid-cpvt-s_8xb4-40k_ade20k-512x512.py'
model = dict(
    backbone=dict(
        _delete_=True,
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
    optimizer=dict(weight_decay=0.05),
    paramwise_cfg=dict(layer_decay_rate=0.75),
)
