# DeiT-Ti, its table interpolated: trained at 224 px, tested at 512 px without fine-tuning (224 / 256 of a shorter side
# of 585).
_base_ = '../deit-t_learned_8xb256_in1k.py'
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='ResizeEdge', scale=585, edge='short', backend='pillow', interpolation='bicubic'),
    dict(type='CenterCrop', crop_size=512),
    dict(type='PackInputs'),
]
test_dataloader = dict(dataset=dict(pipeline=test_pipeline))
