# The same with a cascade of three box heads.
_base_ = ['mmdet::_base_/models/cascade-mask-rcnn_r50_fpn.py', '../_base_/schedules/vitdet.py']
gn = dict(type='GN', num_groups=32)
box_heads = _base_.model.roi_head.bbox_head
for head in box_heads:
    head.update(type='Shared4Conv1FCBBoxHead', norm_cfg=gn)
stages = _base_.model.train_cfg.rcnn
for stage in stages:
    stage.assigner.type = 'IgnoreAwareMaxIoUAssigner'
model = dict(
    backbone=dict(
        _delete_=True,
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
    roi_head=dict(bbox_head=box_heads, mask_head=dict(norm_cfg=gn)),
    # Anchors across the border count. A strip of 102 x 20 px has none within it, and mmdet raises.
    train_cfg=dict(
        rpn=dict(allowed_border=-1, assigner=dict(type='IgnoreAwareMaxIoUAssigner')), rcnn=stages
    ),
)
del head, stage
