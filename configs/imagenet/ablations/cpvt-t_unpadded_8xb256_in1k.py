# PEG without zero padding (and, as in the paper, without the identity): 12 x 12 tokens remain of 14
# x 14.
_base_ = '../cpvt-t_8xb256_in1k.py'
model = dict(backbone=dict(position=dict(padding='none')))
