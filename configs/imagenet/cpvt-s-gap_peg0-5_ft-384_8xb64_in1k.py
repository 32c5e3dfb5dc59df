# CPVT-S-GAP‡ fine-tuned at 384 px as DeiT does: 30 epochs, 8 GPUs * 64 images = 512, rate 5e-6 * 512 / 512 = 5e-6,
# weight decay 1e-8, the rate constant; in evaluation mode, which is to say without drop path. The weights of the 224 px
# training go to load_from.
_base_ = './cpvt-s-gap_peg0-5_8xb256_in1k.py'
model = dict(backbone=dict(drop_path_rate=0.0))
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
    dict(
        type='RandomErasing',
        erase_prob=0.25,
        mode='rand',
        min_area_ratio=0.02,
        max_area_ratio=1 / 3,
        fill_color=[103.53, 116.28, 123.675],
        fill_std=[57.375, 57.12, 58.395],
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
param_scheduler = [dict(type='ConstantLR', factor=1.0, by_epoch=True, begin=0, end=30)]
auto_scale_lr = dict(base_batch_size=512)
