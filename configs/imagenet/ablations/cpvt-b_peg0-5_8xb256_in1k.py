# CPVT-B‡ with the batch of Ti and S, 8 GPUs * 256 images = 2048, rate 2e-3: the other reading of
# the paper.
_base_ = '../cpvt-b_peg0-5_8xb128_in1k.py'
train_dataloader = dict(batch_size=256)
optim_wrapper = dict(optimizer=dict(lr=5e-4 * 2048 / 512))
param_scheduler = [
    dict(
        type='LinearLR',
        start_factor=1e-6 / 2e-3,
        by_epoch=True,
        begin=0,
        end=5,
        convert_to_iter_based=True,
    ),
    dict(type='CosineAnnealingLR', eta_min=1e-5, by_epoch=True, begin=5, end=300),
]
auto_scale_lr = dict(base_batch_size=2048)
