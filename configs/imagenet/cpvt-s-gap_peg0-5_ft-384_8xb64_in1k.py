# CPVT-S-GAP‡ fine-tuned at 384 px as DeiT does: 30 epochs, 8 GPUs * 64 images = 512, rate 5e-6 *
# 512 / 512 = 5e-6, weight decay 1e-8, the rate constant, without drop path. Set load_from to the
# weights of the training at 224 px.
_base_ = './cpvt-s-gap_peg0-5_8xb256_in1k.py'
model = dict(backbone=dict(drop_path_rate=0.0))
train_pipeline = _base_.train_pipeline
train_pipeline[1].scale = 384
test_pipeline = _base_.test_pipeline
test_pipeline[1].scale = 438
test_pipeline[2].crop_size = 384
train_dataloader = dict(batch_size=64, dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
optim_wrapper = dict(optimizer=dict(lr=5e-6, weight_decay=1e-8))
train_cfg = dict(max_epochs=30)
param_scheduler = [dict(type='ConstantLR', factor=1.0, by_epoch=True, begin=0, end=30)]
auto_scale_lr = dict(base_batch_size=512)
