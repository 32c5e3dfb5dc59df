# A small DETR on the stride-16 map of a ResNet-18, from random weights; no position encoding in its
# encoder.
_base_ = '../../../../configs/bccd/retinanet_pyramid-cpvt-t_bccd.py'
attention = dict(embed_dims=128, num_heads=4, dropout=0.0, batch_first=True)
ffn = dict(
    embed_dims=128,
    feedforward_channels=256,
    num_fcs=2,
    ffn_drop=0.0,
    act_cfg=dict(type='ReLU', inplace=True),
)
costs = [
    dict(type='ClassificationCost', weight=1.0),
    dict(type='BBoxL1Cost', weight=5.0, box_format='xywh'),
    dict(type='IoUCost', iou_mode='giou', weight=2.0),
]
gn = dict(type='GN', num_groups=32)
model = dict(
    _delete_=True,
    type='DETRWithPEG',
    num_queries=50,
    data_preprocessor=_base_.model.data_preprocessor,
    backbone=dict(
        type='ResNet',
        depth=18,
        num_stages=3,
        strides=(1, 2, 2),
        dilations=(1, 1, 1),
        out_indices=(2,),
    ),
    neck=dict(
        type='ChannelMapper',
        in_channels=[256],
        kernel_size=1,
        out_channels=128,
        norm_cfg=gn,
        act_cfg=None,
    ),
    encoder=dict(num_layers=3, layer_cfg=dict(self_attn_cfg=attention, ffn_cfg=ffn)),
    decoder=dict(
        num_layers=3,
        layer_cfg=dict(self_attn_cfg=attention, cross_attn_cfg=dict(**attention), ffn_cfg=ffn),
        return_intermediate=True,
    ),
    positional_encoding=dict(num_feats=64, normalize=True),
    bbox_head=dict(
        type='DETRHead',
        num_classes=3,
        embed_dims=128,
        loss_cls=dict(
            type='CrossEntropyLoss', bg_cls_weight=0.1, loss_weight=1.0, class_weight=1.0
        ),
    ),
    train_cfg=dict(assigner=dict(type='HungarianAssigner', match_costs=costs)),
    test_cfg=dict(max_per_img=50),
)
custom_imports = dict(imports=['cpvt_backbones'])
