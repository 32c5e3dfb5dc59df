# RetinaNet with PVTv2-B0 on COCO.
_base_ = 'mmdet::pvt/retinanet_pvtv2-b0_fpn_1x_coco.py'
custom_imports = dict(imports=['cpvt_backbones'])
model = dict(
    backbone=dict(
        _delete_=True,
        type='PyramidCPVT',
        arch='pvtv2_b0',
        position=None,
        norm_after_stage=True,
        embed_norm_eps=1e-6,
        drop_path_rate=0.1,
        init_cfg=dict(
            type='Pretrained',
            checkpoint='https://github.com/whai362/PVT/releases/download/v2/pvt_v2_b0.pth',
        ),
    ),
    train_cfg=dict(assigner=dict(type='IgnoreAwareMaxIoUAssigner')),
)
