# CPVT-Ti‡, hard-distilled as DeiT: a distillation token learns the teacher's labels, predictions
# average both heads. The teacher is any classifier that mmpretrain builds; here DeiT's own,
# RegNetY-16GF, from timm.
_base_ = './cpvt-t_peg0-5_8xb256_in1k.py'
custom_imports = dict(imports=['cpvt_backbones'])
model = dict(
    type='HardDistillation',
    backbone=dict(with_dist_token=True),
    head=dict(
        _delete_=True,
        type='DistillationHead',
        num_classes=1000,
        in_channels=192,
        loss=dict(type='LabelSmoothLoss', label_smooth_val=0.1, mode='original'),
    ),
    teacher=dict(type='TimmClassifier', model_name='regnety_160.deit_in1k', pretrained=True),
    distillation_weight=0.5,
)
