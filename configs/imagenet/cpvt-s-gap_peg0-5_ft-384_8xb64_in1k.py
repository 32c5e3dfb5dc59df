# CPVT-S-GAP‡ fine-tuned at 384 px as DeiT does: 30 epochs, 8 GPUs * 64 images = 512, rate 5e-6 * 512 / 512 = 5e-6,
# weight decay 1e-8. The weights of the 224 px training go to load_from.
_base_ = './cpvt-s-gap_peg0-5_8xb256_in1k.py'
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='RandomResizedCrop', scale=384, backend='pillow', interpolation='bicubic'),
    dict(type='RandomFlip', prob=0.5, direction='horizontal'),
    dict(
        type='RandAugment',
        policies='timm_increasing',
        num_policies=2,
        total_level=10,
        magnitude_level=9,
        magnitude_std=0.5,
        hparams=dict(pad_val=[104, 116, 124], interpolation='bicubic'),
    ),
    dict(type='PackInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='ResizeEdge', scale=438, edge='short', backend='pillow', interpolation='bicubic'),
    dict(type='CenterCrop', crop_size=384),
    dict(type='PackInputs'),
]
train_dataloader = dict(batch_size=64, dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = dict(dataset=dict(pipeline=test_pipeline))
optim_wrapper = dict(optimizer=dict(lr=5e-6, weight_decay=1e-8))
train_cfg = dict(max_epochs=30)
param_scheduler = [dict(type='CosineAnnealingLR', eta_min=1e-6, by_epoch=True, begin=0, end=30)]
auto_scale_lr = dict(base_batch_size=512)
