# Twins: as DeiT, with gradients clipped at 5 and 1024 images a batch (8 GPUs * 128), hence 1e-3;
# 1252 iterations an epoch of 1,281,167 images.
_base_ = './imagenet_deit.py'
optim_wrapper = dict(
    optimizer=dict(lr=5e-4 * 1024 / 512), clip_grad=dict(_delete_=True, max_norm=5.0)
)
param_scheduler = [
    dict(
        type='LinearLR',
        start_factor=1e-6 / 1e-3,
        by_epoch=True,
        begin=0,
        end=5,
        convert_to_iter_based=True,
    ),
    dict(type='CosineAnnealingLR', eta_min=1e-5, by_epoch=True, begin=5, end=300),
]
auto_scale_lr = dict(enable=False, base_batch_size=1024)
