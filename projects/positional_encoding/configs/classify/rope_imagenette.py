# Rotary encoding of queries and keys, frequencies along the axes.
_base_ = '../_base_/classifier.py'
model = dict(backbone=dict(position=dict(_delete_=True, type='RoPE')))
