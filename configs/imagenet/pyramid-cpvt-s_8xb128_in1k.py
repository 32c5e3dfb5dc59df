# PyramidCPVT-Small (Twins-PCPVT-S), Twins' recipe: 8 GPUs * 128 images = 1024, rate 5e-4 * 1024 /
# 512 = 1e-3, drop path 0.2.
_base_ = [
    '../_base_/models/classifier.py',
    '../_base_/datasets/imagenet_224.py',
    '../_base_/schedules/imagenet_twins.py',
    '../_base_/runtime/mmpretrain.py',
]
model = dict(
    backbone=dict(
        type='PyramidCPVT',
        arch='small',
        out_indices=-1,
        out_type='avg_featmap',
        final_norm=True,
        drop_path_rate=0.2,
    ),
    head=dict(in_channels=512),
)
# DeiT repeats augmentations, Twins does not.
train_dataloader = dict(
    batch_size=128, sampler=dict(_delete_=True, type='DefaultSampler', shuffle=True)
)
