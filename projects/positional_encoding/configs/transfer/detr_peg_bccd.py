# The same with PEG after the encoder's first layer.
_base_ = './detr_none_bccd.py'
model = dict(encoder=dict(peg=dict(after_blocks=(0,), bias=False, norm='BN', act='ReLU')))
