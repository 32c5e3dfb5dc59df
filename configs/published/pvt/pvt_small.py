# PVT-Small on ImageNet-1k, from its authors.
_base_ = 'mmpretrain::deit/deit-tiny_4xb256_in1k.py'
custom_imports = dict(imports=['cpvt_backbones'])
model = dict(
    backbone=dict(
        _delete_=True,
        type='PyramidCPVT',
        arch='small',
        out_indices=-1,
        out_type='cls_token',
        with_cls_token=True,
        position=dict(type='Learned', interpolation='bilinear', antialias=False),
        embed_norm_eps=1e-6,
        drop_path_rate=0.1,
    ),
    head=dict(in_channels=512),
)
