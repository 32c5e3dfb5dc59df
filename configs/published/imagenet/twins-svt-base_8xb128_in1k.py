# Twins-SVT-B on ImageNet-1k.
_base_ = 'mmpretrain::twins/twins-svt-base_8xb128_in1k.py'
custom_imports = dict(imports=['cpvt_backbones'])
model = dict(
    backbone=dict(
        _delete_=True,
        type='PyramidCPVT',
        arch='svt_base',
        out_indices=-1,
        out_type='avg_featmap',
        norm_eps=1e-5,
        drop_path_rate=0.3,
    ),
    neck=None,
)
