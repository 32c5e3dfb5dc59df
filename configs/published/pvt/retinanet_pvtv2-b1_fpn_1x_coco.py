# RetinaNet with PVTv2-B1 on COCO.
_base_ = 'mmdet::pvt/retinanet_pvtv2-b1_fpn_1x_coco.py'
custom_imports = dict(imports=['cpvt_backbones'])
model = dict(
    backbone=dict(
        _delete_=True,
        type='PyramidCPVT',
        arch='pvtv2_b1',
        position=None,
        norm_after_stage=True,
        embed_norm_eps=1e-6,
        drop_path_rate=0.1,
        init_cfg=dict(
            type='Pretrained',
            checkpoint='https://github.com/whai362/PVT/releases/download/v2/pvt_v2_b1.pth',
        ),
    ),
    train_cfg=dict(assigner=dict(type='IgnoreAwareMaxIoUAssigner')),
)
