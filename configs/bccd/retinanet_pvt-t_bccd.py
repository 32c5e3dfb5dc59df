# mmdet's own PVT-Tiny: learned tables in place of PyramidCPVT's PEG.
_base_ = './retinanet_pyramid-cpvt-t_bccd.py'
model = dict(
    backbone=dict(
        _delete_=True,
        type='PyramidVisionTransformer',
        num_layers=[2, 2, 2, 2],
        drop_path_rate=0.1,
        out_indices=(1, 2, 3),
    ),
)
