# Swin-T by its authors' recipe: 8 GPUs * 128 images = 1024, rate 1e-3, 20 epochs of warm-up, drop
# path 0.2.
_base_ = [
    'mmpretrain::_base_/models/swin_transformer/tiny_224.py',
    '../_base_/datasets/imagenet_224.py',
    'mmpretrain::_base_/schedules/imagenet_bs1024_adamw_swin.py',
    '../_base_/runtime/mmpretrain.py',
]
train_dataloader = dict(
    batch_size=128, sampler=dict(_delete_=True, type='DefaultSampler', shuffle=True)
)
optim_wrapper = dict(
    paramwise_cfg=dict(custom_keys=dict(pos_block=dict(decay_mult=0.0))),
    clip_grad=dict(max_norm=5.0),
)
