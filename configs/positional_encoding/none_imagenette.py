# No position encoding.
_base_ = '../_base_/studies/positional_encoding.py'
model = dict(backbone=dict(position=None))
