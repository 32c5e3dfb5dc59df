# Twins-PCPVT-S on ImageNet-1k.
_base_ = 'mmpretrain::twins/twins-pcpvt-small_8xb128_in1k.py'
custom_imports = dict(imports=['cpvt_backbones'])
model = dict(
    backbone=dict(
        _delete_=True,
        type='PyramidCPVT',
        arch='small',
        out_indices=-1,
        out_type='avg_featmap',
        drop_path_rate=0.3,
    ),
    neck=None,
)
