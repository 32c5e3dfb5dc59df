# mmseg's Mask2Former for any backbone with strides 4, 8, 16 and 32. A leaf sets the backbone, and
# the head's in_channels, num_classes and class weights: 1 a class, and 0.1 for none. Head, losses
# and matching are mmdet's.
_base_ = './segmentor.py'
sine = dict(num_feats=128, normalize=True)
ffn = dict(embed_dims=256, num_fcs=2, ffn_drop=0.0, act_cfg=dict(type='ReLU', inplace=True))
attention = dict(embed_dims=256, num_heads=8, dropout=0.0, batch_first=True)
pixel_attention = dict(num_levels=3, num_points=4, **attention)
model = dict(
    decode_head=dict(
        type='Mask2FormerHead',
        strides=[4, 8, 16, 32],
        feat_channels=256,
        out_channels=256,
        num_queries=100,
        num_transformer_feat_level=3,
        align_corners=False,
        pixel_decoder=dict(
            type='mmdet.MSDeformAttnPixelDecoder',
            num_outs=3,
            norm_cfg=dict(type='GN', num_groups=32),
            act_cfg=dict(type='ReLU'),
            encoder=dict(
                num_layers=6,
                layer_cfg=dict(
                    self_attn_cfg=pixel_attention, ffn_cfg=dict(feedforward_channels=1024, **ffn)
                ),
            ),
            positional_encoding=sine,
        ),
        enforce_decoder_input_project=False,
        positional_encoding=sine,
        transformer_decoder=dict(
            return_intermediate=True,
            num_layers=9,
            layer_cfg=dict(
                self_attn_cfg=attention,
                cross_attn_cfg=attention,
                ffn_cfg=dict(feedforward_channels=2048, **ffn),
            ),
            init_cfg=None,
        ),
        loss_cls=dict(type='mmdet.CrossEntropyLoss', use_sigmoid=False, loss_weight=2.0),
        loss_mask=dict(type='mmdet.CrossEntropyLoss', use_sigmoid=True, loss_weight=5.0),
        loss_dice=dict(
            type='mmdet.DiceLoss', use_sigmoid=True, naive_dice=True, eps=1.0, loss_weight=5.0
        ),
        train_cfg=dict(
            num_points=12544,
            oversample_ratio=3.0,
            importance_sample_ratio=0.75,
            assigner=dict(
                type='mmdet.HungarianAssigner',
                match_costs=[
                    dict(type='mmdet.ClassificationCost', weight=2.0),
                    dict(type='mmdet.CrossEntropyLossCost', weight=5.0, use_sigmoid=True),
                    dict(type='mmdet.DiceCost', weight=5.0, pred_act=True, eps=1.0),
                ],
            ),
            sampler=dict(type='mmdet.MaskPseudoSampler'),
        ),
    ),
)
