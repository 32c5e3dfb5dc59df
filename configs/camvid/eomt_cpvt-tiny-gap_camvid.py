# EoMT from the shipped weights: queries in the last three blocks of a CPVT with PEG, and no neck.
# Trunk, data, rates and steps are those of Semantic FPN.
_base_ = './semantic-fpn_cpvt-tiny-gap_camvid.py'
model = dict(
    type='EoMTSegmentor',
    backbone=dict(type='CPVT', with_cls_token=False),
    neck=None,
    decode_head=dict(
        _delete_=True,
        type='EoMTSegHead',
        embed_dims=192,
        num_classes=11,
        num_queries=50,
        num_blocks=3,
        ignore_index={{_base_.void}},
    ),
)
custom_hooks = [*_base_.custom_hooks, dict(type='MaskAnnealingHook')]
