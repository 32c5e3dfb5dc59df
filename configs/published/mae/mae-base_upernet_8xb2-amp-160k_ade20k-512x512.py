# UPerNet with MAE-B on ADE20K.
_base_ = 'mmseg::mae/mae-base_upernet_8xb2-amp-160k_ade20k-512x512.py'
custom_imports = dict(imports=['cpvt_backbones'])
model = dict(
    pretrained=None,
    backbone=dict(
        _delete_=True,
        type='CPVT',
        arch='base',
        img_size=512,
        out_indices=[3, 5, 7, 11],
        layer_scale_init=1.0,
        final_norm=False,
        position=[dict(type='Learned', antialias=False), dict(type='RelativeBias')],
        drop_path_rate=0.1,
        init_cfg=dict(
            type='Pretrained',
            checkpoint='timm://vit_base_patch16_224.mae',
            allow_missing=['rel_pos_bias.*', 'blocks.*.gamma'],
        ),
    ),
)
# mmseg's constructor of rates by layer knows its own trunks alone.
optim_wrapper = dict(
    constructor='LayerDecayOptimWrapperConstructor',
    paramwise_cfg=dict(
        _delete_=True, layer_decay_rate=0.65, norm_decay_mult=0.0, bias_decay_mult=0.0
    ),
)
