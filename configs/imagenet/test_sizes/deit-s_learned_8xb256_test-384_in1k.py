# DeiT-S, its table interpolated: trained at 224 px, tested at 384 px without fine-tuning (224 / 256 of a shorter side
# of 438).
_base_ = '../deit-s_learned_8xb256_in1k.py'
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='ResizeEdge', scale=438, edge='short', backend='pillow', interpolation='bicubic'),
    dict(type='CenterCrop', crop_size=384),
    dict(type='PackInputs'),
]
test_dataloader = dict(dataset=dict(pipeline=test_pipeline))
