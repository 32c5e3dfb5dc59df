# No position encoding.
_base_ = '../_base_/classifier.py'
model = dict(backbone=dict(position=None))
