# A smaller plain ViT for this data, trained at twice the rate.
_base_ = './retinanet_pyramid-cpvt-t_bccd.py'
model = dict(
    backbone=dict(
        _delete_=True,
        type='MultiScaleCPVT',
        arch=dict(embed_dims=128, depth=6, num_heads=4, mlp_ratio=4),
        patch_size=8,
        position=dict(type='PEG', after_blocks=(0, 1, 2, 3, 4, 5), kernel_size=3),
        # 320 x 240 px are 40 x 30 tokens: 12 windows of 10 x 10; every third block attends to all
        # tokens.
        window_size=10,
        global_blocks=(2, 5),
        drop_path_rate=0.05,
        out_indices=(1, 2, 3),
    ),
    # Stride 8 is the plain ViT's own map (patch 8); 16 and 32 are pooled from it. All are as
    # wide as the ViT.
    neck=dict(in_channels=[128, 128, 128]),
)
optim_wrapper = dict(optimizer=dict(lr=1e-3))
