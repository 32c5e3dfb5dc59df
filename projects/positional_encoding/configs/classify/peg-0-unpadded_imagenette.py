# One PEG without zero padding (and, as in the paper, without the identity).
_base_ = '../_base_/classifier.py'
model = dict(backbone=dict(position=dict(padding='none')))
