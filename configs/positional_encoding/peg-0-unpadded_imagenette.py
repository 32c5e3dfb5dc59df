# One PEG without zero padding (and, as in the paper, without the identity).
_base_ = '../_base_/studies/positional_encoding.py'
model = dict(backbone=dict(position=dict(padding='none')))
