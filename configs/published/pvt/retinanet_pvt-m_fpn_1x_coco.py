# RetinaNet with PVT-M on COCO.
_base_ = 'mmdet::pvt/retinanet_pvt-m_fpn_1x_coco.py'
custom_imports = dict(imports=['cpvt_backbones'])
model = dict(
    backbone=dict(
        _delete_=True,
        type='PyramidCPVT',
        arch='base',
        position=dict(type='Learned', interpolation='bilinear', antialias=False),
        embed_norm_eps=1e-6,
        drop_path_rate=0.1,
        init_cfg=dict(
            type='Pretrained',
            checkpoint='https://github.com/whai362/PVT/releases/download/v2/pvt_medium.pth',
        ),
    ),
    train_cfg=dict(assigner=dict(type='IgnoreAwareMaxIoUAssigner')),
)
