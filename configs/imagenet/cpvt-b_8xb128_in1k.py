# CPVT-B as the paper's default: class token, one PEG after block 0. It trains with DeiT-B's batch:
# 8 GPUs * 128 images = 1024, so the rate is 5e-4 * 1024 / 512 = 1e-3.
_base_ = './cpvt-t_8xb256_in1k.py'
model = dict(backbone=dict(arch='base'), head=dict(in_channels=768))
train_dataloader = dict(batch_size=128)
optim_wrapper = dict(optimizer=dict(lr=5e-4 * 1024 / 512))
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
auto_scale_lr = dict(base_batch_size=1024)
