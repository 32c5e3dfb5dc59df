# UPerNet with BEiT-B on ADE20K.
_base_ = 'mmseg::beit/beit-base_upernet_8xb2-160k_ade20k-640x640.py'
custom_imports = dict(imports=['cpvt_backbones'])
# mmseg starts from BEiT's weights of 224 px, whose tables it resizes on loading. Here a table has
# the grid of its weights, so that a training starts from the whole model.
model = dict(
    pretrained=None,
    backbone=dict(
        _delete_=True,
        type='CPVT',
        arch='base',
        img_size=640,
        out_indices=[3, 5, 7, 11],
        layer_scale_init=0.1,
        final_norm=False,
        position=dict(type='RelativeBias'),
        drop_path_rate=0.1,
    ),
)
# mmseg's constructor of rates by layer knows its own trunks alone.
optim_wrapper = dict(
    constructor='LayerDecayOptimWrapperConstructor',
    paramwise_cfg=dict(
        _delete_=True, layer_decay_rate=0.9, norm_decay_mult=0.0, bias_decay_mult=0.0
    ),
)
