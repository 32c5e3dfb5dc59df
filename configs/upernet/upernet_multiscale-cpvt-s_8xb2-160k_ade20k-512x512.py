# Four taps, one a stride, as BEiT and XCiT feed UperNet; layer-wise learning rates.
_base_ = './upernet_pyramid-cpvt-s_8xb2-160k_ade20k-512x512.py'
model = dict(
    backbone=dict(
        _delete_=True,
        type='MultiScaleCPVT',
        arch='small',
        init_cfg=dict(type='Pretrained', checkpoint='timm://deit_small_patch16_224.fb_in1k'),
        # The table of the weights, resized, and PEG as the identity.
        position=[dict(type='Learned'), dict(type='PEG', after_blocks='0-5')],
        source='taps',
        drop_path_rate=0.1,
    ),
    decode_head=dict(in_channels=[384, 384, 384, 384]),
    auxiliary_head=dict(in_channels=384),
)
optim_wrapper = dict(
    constructor='LayerDecayOptimWrapperConstructor', paramwise_cfg=dict(layer_decay_rate=0.75)
)
