# UPerNet with Twins-SVT-L on ADE20K.
_base_ = 'mmseg::twins/twins_svt-l_uperhead_8xb2-160k_ade20k-512x512.py'
custom_imports = dict(imports=['cpvt_backbones'])
model = dict(
    backbone=dict(
        _delete_=True,
        type='PyramidCPVT',
        arch='svt_large',
        norm_after_stage=True,
        norm_eps=1e-5,
        drop_path_rate=0.3,
        init_cfg=dict(type='Pretrained', checkpoint='timm://twins_svt_large.in1k'),
    ),
)
