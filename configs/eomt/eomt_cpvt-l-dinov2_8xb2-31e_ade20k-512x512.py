# EoMT-L from DINOv2 on ADE20K: 31 epochs of 16 crops a step (8 GPUs * 2).
_base_ = [
    '../_base_/models/eomt_segmentor.py',
    '../_base_/datasets/ade20k_512_windows.py',
    '../_base_/runtime/mmseg.py',
    '../_base_/schedules/eomt.py',
]
max_iters = 39120
train_cfg = dict(type='IterBasedTrainLoop', max_iters=max_iters, val_interval=5000)
param_scheduler = [dict(type='HeadFirstPolyLR', by_epoch=False, end=max_iters)]
