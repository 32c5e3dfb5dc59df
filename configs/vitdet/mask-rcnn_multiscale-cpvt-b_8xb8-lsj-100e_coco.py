# ViTDet-B's Mask R-CNN with PEG: four global blocks, no top-down path, heads with norms. (A level
# has one 3 x 3 convolution and GroupNorm here, a 1 x 1 and a 3 x 3 one and LayerNorm there.)
_base_ = ['../_base_/models/mask_rcnn.py', '../_base_/schedules/vitdet.py']
gn = dict(type='GN', num_groups=32)
model = dict(
    backbone=dict(
        type='MultiScaleCPVT',
        arch='base',
        window_size=14,
        global_blocks=(2, 5, 8, 11),
        drop_path_rate=0.1,
        init_cfg=dict(type='Pretrained', checkpoint='timm://vit_base_patch16_224.mae'),
        # The table of the weights, resized, and PEG as the identity.
        position=[dict(type='Learned'), dict(type='PEG', after_blocks='0-5')],
    ),
    neck=dict(type='ChannelMapper', in_channels=[192, 384, 768, 768], norm_cfg=gn, act_cfg=None),
    rpn_head=dict(num_convs=2),
    roi_head=dict(
        bbox_head=dict(type='Shared4Conv1FCBBoxHead', norm_cfg=gn), mask_head=dict(norm_cfg=gn)
    ),
)
