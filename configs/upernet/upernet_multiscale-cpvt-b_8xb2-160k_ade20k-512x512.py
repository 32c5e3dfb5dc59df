# A column: four taps, one a stride, as BEiT and XCiT feed UperNet; rates shrink towards the stem.
_base_ = './upernet_pyramid-cpvt-s_8xb2-160k_ade20k-512x512.py'
model = dict(
    backbone=dict(_delete_=True, type='MultiScaleCPVT', arch='base', source='taps', drop_path_rate=0.1),
    decode_head=dict(in_channels=[768, 768, 768, 768]),
    auxiliary_head=dict(in_channels=768),
)
optim_wrapper = dict(constructor='LayerDecayOptimWrapperConstructor', paramwise_cfg=dict(layer_decay_rate=0.75))
