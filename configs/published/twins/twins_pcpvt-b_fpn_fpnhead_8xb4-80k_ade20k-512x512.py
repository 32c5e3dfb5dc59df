# Semantic FPN with Twins-PCPVT-B on ADE20K.
_base_ = 'mmseg::twins/twins_pcpvt-b_fpn_fpnhead_8xb4-80k_ade20k-512x512.py'
custom_imports = dict(imports=['cpvt_backbones'])
model = dict(
    backbone=dict(
        _delete_=True,
        type='PyramidCPVT',
        arch='base',
        norm_eps=1e-5,
        drop_path_rate=0.2,
        init_cfg=dict(type='Pretrained', checkpoint='timm://twins_pcpvt_base.in1k'),
    ),
)
