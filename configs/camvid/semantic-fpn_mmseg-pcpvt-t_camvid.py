# mmseg's own PCPVT at the depths of PyramidCPVT-Tiny.
_base_ = './semantic-fpn_pyramid-cpvt-t_camvid.py'
model = dict(
    backbone=dict(
        _delete_=True,
        type='PCPVT',
        embed_dims=[64, 128, 320, 512],
        num_heads=[1, 2, 5, 8],
        mlp_ratios=[8, 8, 4, 4],
        depths=[2, 2, 2, 2],
        sr_ratios=[8, 4, 2, 1],
        qkv_bias=True,
        drop_path_rate=0.1,
    ),
)
# Its PEG goes by another name; without this line it would decay, here as in mmseg's own files.
optim_wrapper = dict(paramwise_cfg=dict(custom_keys={'position_encodings': dict(decay_mult=0.0)}))
