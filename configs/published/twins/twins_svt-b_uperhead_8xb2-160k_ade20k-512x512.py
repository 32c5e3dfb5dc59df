# UPerNet with Twins-SVT-B on ADE20K.
_base_ = 'mmseg::twins/twins_svt-b_uperhead_8xb2-160k_ade20k-512x512.py'
custom_imports = dict(imports=['cpvt_backbones'])
model = dict(
    backbone=dict(
        _delete_=True,
        type='PyramidCPVT',
        arch='svt_base',
        norm_after_stage=True,
        norm_eps=1e-5,
        drop_path_rate=0.2,
        init_cfg=dict(type='Pretrained', checkpoint='timm://twins_svt_base.in1k'),
    ),
)
