# UPerNet with Twins-SVT-S on ADE20K.
_base_ = 'mmseg::twins/twins_svt-s_uperhead_8xb2-160k_ade20k-512x512.py'
custom_imports = dict(imports=['cpvt_backbones'])
model = dict(
    backbone=dict(
        _delete_=True,
        type='PyramidCPVT',
        arch='svt_small',
        norm_after_stage=True,
        norm_eps=1e-5,
        drop_path_rate=0.2,
        init_cfg=dict(type='Pretrained', checkpoint='timm://twins_svt_small.in1k'),
    ),
)
