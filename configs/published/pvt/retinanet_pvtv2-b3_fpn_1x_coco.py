# RetinaNet with PVTv2-B3 on COCO.
_base_ = __import__('cpvt_backbones') and ('mmdet::pvt/retinanet_pvtv2-b3_fpn_1x_coco.py')
custom_imports = dict(imports=['cpvt_backbones'])
model = dict(
    backbone=dict(
        _delete_=True,
        type='PyramidCPVT',
        arch=dict(
            depths=(3, 4, 18, 3),
            embed_dims=(64, 128, 320, 512),
            num_heads=(1, 2, 5, 8),
            mlp_ratios=(8, 8, 4, 4),
            sr_ratios=(8, 4, 2, 1),
            patch_kernels=(7, 3, 3, 3),
            mlp_kernel_size=3,
        ),
        position=None,
        norm_after_stage=True,
        embed_norm_eps=1e-6,
        drop_path_rate=0.1,
        init_cfg=dict(
            type='Pretrained',
            checkpoint='https://github.com/whai362/PVT/releases/download/v2/pvt_v2_b3.pth',
        ),
    ),
)
