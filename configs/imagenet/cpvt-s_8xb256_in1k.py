# CPVT-S as the paper's default: class token, one PEG after block 0. DeiT's recipe.
# 8 GPUs * 256 images = 2048, so the rate is 5e-4 * 2048 / 512 = 2e-3.
_base_ = [
    '../_base_/models/classifier.py',
    '../_base_/datasets/imagenet_224.py',
    '../_base_/schedules/imagenet_deit.py',
    '../_base_/runtime/mmpretrain.py',
]
model = dict(
    backbone=dict(
        type='CPVT',
        arch='small',
        out_type='cls_token',
        drop_path_rate=0.1,
        position=dict(type='PEG', after_blocks=(0,), kernel_size=3),
    ),
    head=dict(in_channels=384),
)
